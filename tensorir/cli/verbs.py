"""Declarations of all commands with options and help; implementations are imported when called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tensorir._package import Lazy
from tensorir.cli.common import did_you_mean
from tensorir.cli.group import VerbGroup
from tensorir.cli.options import (
    DEVICE,
    JSON,
    LOG,
    WORKLOAD,
    WORKLOAD_OPTIONS,
    Duration,
    NameChoice,
    argument,
    at_least,
    operators_text,
    option,
)

_SECTIONS = {
    "Target": ("device", "target", "arch", "template", "config", "emulate"),
    "Search": ("trials", "budget", "seed", "tuner", "restrict", "patience", "least_gain", "top", "regret", "fresh",
               "dry_run"),
    "Measuring": ("builders", "timeout", "compile_timeout", "no_wait", "require"),
}  # fmt: skip
"""{section of the help: its options} of a verb that takes a workload; others are under Computation or Results."""


def _section(name: str) -> str:
    if name in WORKLOAD_OPTIONS:
        return "Computation"
    return next((section for section, names in _SECTIONS.items() if name in names), "Results")


class Verb(click.Command):
    """A command with grouped options and spelling suggestions.

    work: function that is called with the values of all options by name and returns the exit code
    text: help text
    """

    def __init__(self, name: str, work: Callable[..., Any], text: str, *options: click.Parameter) -> None:
        settings: dict[str, Any] = {
            "help_option_names": ["-h", "--help"],
            "auto_envvar_prefix": "TENSORIR",  # every flag is also TENSORIR_FLAG
            "max_content_width": 100,
        }
        super().__init__(name, context_settings=settings, callback=work, params=list(options), help=text)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        if not any(p.name == "shapes" for p in options):
            super().format_options(ctx, formatter)
            return
        for section in ("Computation", *_SECTIONS, "Results"):
            records = [p.get_help_record(ctx) for p in options if _section(str(p.name)) == section]
            if any(records):
                with formatter.section(section):
                    formatter.write_dl([r for r in records if r is not None])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            legal = [o for p in self.get_params(ctx) if isinstance(p, click.Option) for o in p.opts if len(o) > 2]
            raise click.UsageError(f"No such option {name[:60]!r}.{did_you_mean(name, legal)}", ctx) from None


TUNERS = ("bayes", "climb", "evolve", "grid", "random", "replay")  # strategy.STRATEGIES, which imports NumPy
_FILE: click.Path = click.Path(path_type=Path)
_RECORDED = "Only this workload (as log ls prints it)."
_WORKLOADS = option("--workload", multiple=True, help="Only this workload (as log ls prints it); may be repeated.")
_REGRET = option("--regret", type=click.FloatRange(min=0), help="--shapes: what its kernel may cost a shape (0.05).")

_TUNE = Verb(
    "tune",
    Lazy("tensorir.cli.early", "tune"),
    f"""Search for the fastest schedule of OP and log every trial.

    OP is {operators_text()}, or FILE.py:FUNCTION. The same command continues where the last
    one stopped. Ctrl-C ends it with the best so far. --device cuda:0,cuda:1 measures on several devices of one kind at
    the same time.

    --shapes tunes a set of shapes under one budget and finds the fewest kernels that are fast on all of them.
    """,
    *WORKLOAD,
    DEVICE,
    option("--trials", type=at_least(1), help="Configurations in total, earlier ones included."),
    option("--budget", type=Duration(), help="Wall time of the command (default 60s without --trials)."),
    option("--seed", type=int, default=0, show_default=True),
    option("--tuner", type=NameChoice(TUNERS), default="bayes", show_default=True),
    option("--template", multiple=True, metavar="NAME", help="Search this template only (see tensorir list OP)."),
    option("--restrict", multiple=True, metavar="EXPR", help="A condition on knobs, such as 'tile <= 8'."),
    option("--builders", type=at_least(1), help="Candidates built at once on PoCL (default: at most 4, a core each)."),
    option("--timeout", type=Duration(), default="10s", show_default=True, help="For one launch."),
    option("--compile-timeout", type=Duration(), default="60s", show_default=True),
    LOG,
    option("--fresh", is_flag=True, help="Do not use earlier records."),
    option("--no-wait", is_flag=True, help="Time next to other tunings on this device instead of waiting for them."),
    option("--patience", type=at_least(1), help="Stop after so many trials without a gain."),
    option(
        "--least-gain",
        type=click.FloatRange(0, 1, max_open=True),
        metavar="SHARE",
        help="Stop when the model expects less of the next trials: 0.01 is 1 %.",
    ),
    option("--top", type=click.IntRange(min=1, max=50), default=5, show_default=True, help="Finalists."),
    option("--progress", type=NameChoice(["auto", "live", "plain", "none"]), default="auto", show_default=True),
    _REGRET,
    option("-o", "--output", metavar="DIR", help="--shapes: write the kernels, and the choice among them as code."),
    option("--dry-run", is_flag=True, help="Say what would be searched; measure nothing."),
    JSON,
)

_SHOW = Verb(
    "show",
    Lazy("tensorir.cli.verb_show", "run"),
    """Show what runs for OP: the best recorded schedule, or the default one.

    OP is an operator with shapes, FILE.py:FUNCTION, or the id of a record.
    """,
    *WORKLOAD,
    option("--target", help='"opencl", "cuda", "opencl -kind=gpu"; no device is needed.'),
    option("--arch", help="A CUDA architecture, such as sm_80."),
    option("--template", help="Another template than the usual one."),
    option("--config", metavar="K=V,…", help="Another configuration than the best recorded one."),
    option("--tree", "parts", flag_value="tree", multiple=True, help="The loop tree."),
    option("--source", "parts", flag_value="source", multiple=True, help="The emitted source."),
    option(
        "--why-schedule",
        "parts",
        flag_value="why",
        multiple=True,
        help="The steps of the schedule, of an automatic one with rules and reasons.",
    ),
    option(
        "--fusions", "parts", flag_value="fusions", multiple=True, help="Pairs of stages, and what one kernel gains."
    ),
    option("--resources", is_flag=True, help="Registers, spills, shared memory."),
    option("--sass", is_flag=True, help="CUDA machine code (offline)."),
    DEVICE,
    LOG,
    JSON,
)

_BENCH = Verb(
    "bench",
    Lazy("tensorir.cli.verb_bench", "run"),
    "Time the best recorded (or the default) kernel of OP against libraries, interleaved.",
    *WORKLOAD,
    DEVICE,
    LOG,
    option("--require", type=float, metavar="R", help="Exit 8 when a peer's time / ours is below R."),
    JSON,
)

_CHECK = Verb(
    "check",
    Lazy("tensorir.cli.verb_check", "run"),
    """Check the best recorded (or the default) kernel of OP: in the interpreter and on the device.

    With --emulate its CUDA text runs on the CPU instead, and up to some 5e8 operations each access is counted.
    """,
    *WORKLOAD,
    DEVICE,
    option("--emulate", is_flag=True, help="Run the CUDA text on the CPU instead, watching every access."),
    option("--target", metavar="TARGET", help='With --emulate: "cuda" (the default), "cuda -arch=sm_90" …'),
    LOG,
    JSON,
)

_EXPORT = Verb(
    "export",
    Lazy("tensorir.cli.verb_export", "run"),
    """Export the best recorded kernel of OP; never tunes.

    Destinations of several languages share the folder, each with what is fastest on the devices of its language.

    --shapes exports a kernel for each shape of a set, of the fewest that are fast on all of them, and the choice.
    """,
    *WORKLOAD,
    option(
        "--to",
        multiple=True,
        required=True,
        metavar="DEST,…",
        help="source, pyopencl, cupy, c, torch, jax, onnxruntime, tvm_ffi.",
    ),
    option("--name", metavar="NS::NAME", help="What frameworks call it (by the folder when not given)."),
    option("--arch", metavar="SM,…", help="CUDA: compile now for these, sm_80,sm_90a, and to PTX."),
    option("-o", "--output", required=True, type=_FILE, metavar="DIR"),
    option("--target", help="Export for another kind of target than that of the best record."),
    option("--untuned", is_flag=True, help="Export the default schedule when there is no record."),
    option("--test", is_flag=True, help="Run the folder's self-test."),
    _REGRET,
    LOG,
    JSON,
)

_ONNX = Verb(
    "onnx",
    Lazy("tensorir.cli.verb_onnx", "run"),
    """Say for which nodes of an ONNX MODEL kernels are on record; with --replace, write a model that calls them.

    Nodes are Conv (of two dimensions), MatMul and Gemm of floats, with the Add
    and the activation after them where nothing else reads them. Shapes are fixed: symbolic extents need --dim.

    OUT runs with onnxruntime 1.16 or newer once the library in OUT.kernels is registered in the session's options.
    """,
    argument("model", type=_FILE),
    option("--replace", is_flag=True, help="Write a model that calls the kernels."),
    option("-o", "--output", type=_FILE, metavar="OUT", help="That model; next to it OUT.kernels."),
    option("--dim", multiple=True, metavar="NAME=SIZE", help="The size of a symbolic extent, such as the batch."),
    option("--tune", is_flag=True, help="First tune what is not on record, on --device, for --budget in all."),
    option("--budget", type=Duration(), help="--tune: wall time (default 60s)."),
    option("--device", help="--tune: where to measure (default c:0, where there is a C compiler)."),
    option("--untuned", is_flag=True, help="Take default schedules for what is not on record."),
    option("--test", is_flag=True, help="Run both models on random inputs and compare (1e-4)."),
    LOG,
    JSON,
)

_LOG = VerbGroup(
    "log",
    "Look at, check and tidy tuning logs.",
    Verb(
        "best",
        Lazy("tensorir.cli.verb_log", "best"),
        "The fastest valid configuration of each workload and device, latest first.",
        option("--workload", help=_RECORDED),
        LOG,
        JSON,
    ),
    Verb(
        "compact",
        Lazy("tensorir.cli.verb_log", "compact"),
        "One sorted file per workload instead of one per run.",
        LOG,
        JSON,
    ),
    Verb(
        "freeze",
        Lazy("tensorir.cli.verb_verify", "freeze"),
        """Pin the choice of each workload and device in one file, which --log, w.load(log=…) and TENSORIR_FROZEN take.

        A file that is loaded from decides alone, whatever the log learns later; a choice whose kernel this version of
        tensorir makes in another way is refused.
        """,
        _WORKLOADS,
        option("-o", "--output", default="frozen.json", show_default=True, metavar="FILE"),
        LOG,
        JSON,
    ),
    Verb("ls", Lazy("tensorir.cli.verb_log", "ls"), "One line per workload and device.", LOG, JSON),
    Verb(
        "merge",
        Lazy("tensorir.cli.verb_log", "merge"),
        "Write the union of several logs below -o.",
        argument("sources", nargs=-1, required=True, metavar="DIR..."),
        option("-o", "--output", required=True, metavar="DIR"),
        JSON,
    ),
    Verb(
        "show",
        Lazy("tensorir.cli.verb_log", "show"),
        "The records whose id starts with RECORD.",
        argument("record"),
        LOG,
        JSON,
    ),
    Verb("stats", Lazy("tensorir.cli.verb_log", "stats"), "Counts over a whole log.", LOG, JSON),
    Verb(
        "verify",
        Lazy("tensorir.cli.verb_verify", "verify"),
        "Check every line, and make every source again to compare its digest; exit 7 when something is wrong.",
        LOG,
        JSON,
    ),
)

_CACHE = VerbGroup(
    "cache",
    "Take tuned, compiled kernels to another machine.",
    Verb(
        "export",
        Lazy("tensorir.cli.verb_cache", "export"),
        """Pack a log and its compiled kernels into FILE.

        The chosen kernels of tensorir's own operators are compiled and checked first where that is needed; of
        workloads of your own, what load() left in the cache is packed.
        """,
        argument("file", type=_FILE),
        _WORKLOADS,
        DEVICE,
        LOG,
        JSON,
    ),
    Verb(
        "import",
        Lazy("tensorir.cli.verb_cache", "take"),
        """Take over the log and the compiled kernels of FILE, after verifying all of it.

        It holds machine code: import files of people whom you would let install programs, and no others.
        """,
        argument("file", type=_FILE),
        LOG,
        JSON,
    ),
)

_DOCTOR = Verb(
    "doctor",
    Lazy("tensorir.cli.verb_doctor", "run"),
    "Check Python, packages, devices, compilers, the cache and the log's place; exit 3 without a usable device.",
    JSON,
)

_DEVICES = Verb(
    "devices",
    Lazy("tensorir.cli.verb_devices", "run"),
    "List the devices with the name to pass to --device.",
    JSON,
)

_LIST = Verb(
    "list",
    Lazy("tensorir.cli.verb_list", "run"),
    "List the operators; with OP, that one and its templates.",
    argument("op", required=False),
    option("--space", is_flag=True, help="The knobs and how many configurations each condition removes."),
    JSON,
)

_EXPLAIN = Verb(
    "explain",
    Lazy("tensorir.cli.verb_explain", "run"),
    "Explain an error code, such as split.covers-extent.",
    argument("code"),
)

_REPRO = Verb(
    "repro",
    Lazy("tensorir.cli.verb_repro", "run"),
    """Schedule, check, compile, run and time the configuration of RECORD again, and say everything about it.

    Nothing is logged. Exit 0 when it is ok, 5 when its result is wrong, 4 for any other failure.
    """,
    argument("record"),
    option("--workload", metavar="FILE.py:FUNCTION", help="Where the workload is, unless it is an operator."),
    option("--arg", multiple=True, metavar="K=V", help="FILE.py:FUNCTION: an argument of the function."),
    option("--timeout", type=Duration(), default="10s", show_default=True),
    DEVICE,
    LOG,
    JSON,
)

_REPORT = Verb(
    "report",
    Lazy("tensorir.cli.verb_report", "run"),
    """Make one HTML page of the tuning log in the folder LOG, which needs no other file and no network.

    The best next to the library, the default and the device's measured peaks; convergence, what the knobs explain,
    the configurations that were tried, what failed and why, the best kernel's source.
    """,
    argument("log", default="tuning_logs", metavar="[LOG]"),
    option("-o", "--output", default="report.html", show_default=True, metavar="FILE", help="The page to write."),
    option("--workload", help=_RECORDED),
    option("--peaks/--no-peaks", "measure", default=True, help="Measure the peaks of a device that is here. [default]"),
    JSON,
)

VERBS: dict[str, click.Command] = {
    str(verb.name): verb
    for verb in (
        _TUNE,
        _SHOW,
        _BENCH,
        _CHECK,
        _EXPORT,
        _ONNX,
        _LOG,
        _CACHE,
        _DOCTOR,
        _DEVICES,
        _LIST,
        _EXPLAIN,
        _REPRO,
        _REPORT,
    )
}


def verb_called(name: str) -> click.Command:
    """The command named ``name``; raises KeyError."""
    return VERBS[name]
