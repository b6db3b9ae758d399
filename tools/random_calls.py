"""Random calls of every public function and method, with wrong, huge, odd and hostile arguments.

    python tools/random_calls.py --calls 20000 --seeds 1 2 3 4 5 --json benchmarks/results/random_calls.json
    python tools/random_calls.py --every           # each hostile value in each place, all else as it should be
    python tools/random_calls.py --only 3:1234     # one call of a seed again, with its traceback

Expected of each call: it gives something, or it raises a ``TensorIRError``, or Python's own TypeError for the number or
the names of arguments. Findings: any other exception, a call that takes longer than CALL_LIMIT_S of processor time or
more memory than MEMORY_LIMIT, and a file that a refused call leaves in the current or in the temporary folder.

Call n of a seed depends on nothing else. Calls run in processes of their own, PART at a time, so that one that hangs or
crashes is one finding; parts that are in the result file are not run again.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import inspect
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from hostile_values import HOSTILE, good_values

import tensorir as tir
from tensorir.ir.node import Node

ROOT = Path(__file__).resolve().parents[1]
PART = 1000
"""Calls of one process."""
CALL_LIMIT_S = 20.0
"""Processor time of one call: compilers take some of it."""
MEMORY_LIMIT = 6 << 30
"""Bytes of address space of a process."""
OPERATORS = frozenset(
    f"__{name}__"
    for name in (
        "add", "radd", "sub", "rsub", "mul", "truediv", "rtruediv", "floordiv", "mod", "divmod", "pow", "rpow",
        "matmul", "lt", "ge", "and", "or", "xor", "lshift", "rshift", "invert", "neg", "abs", "round", "getitem",
        "call", "len", "iter", "repr", "eq", "ne", "hash", "bool", "contains",
    )
) | {"_repr_html_"}  # fmt: skip
"""Special methods that are called as methods, of classes that define them."""
INTERNAL = {"Device", "Source"}
"""Classes of which attributes alone are the users': their methods take memory of a device, or lowered programs."""
ERRORS = {name for name in tir.__all__ if isinstance(v := getattr(tir, name), type) and issubclass(v, Exception)}
SLOW = {"tune", "tune_shapes"}
"""What searches when all of its arguments are good: it is given a budget of one trial."""
EVERY, PLACES = -1, 5
"""The seed of calls that are not drawn: each hostile value in each of the first places of each function."""
FILES = {"export", "export_shapes", "tune", "tune_shapes", "save"}
"""What writes files when it succeeds."""


@cache
def specimens() -> dict[str, Callable[[], object]]:
    """One object of the classes that users hold, by name; those that calls change are made anew for each."""
    import numpy as np

    A, B = tir.placeholder((16, 12), name="A"), tir.placeholder((12, 8), name="B")
    k = tir.reduce_axis(12, name="k")
    P = tir.compute((16, 12), lambda i, r: A[i, r] * 2, name="P")
    C = tir.compute((16, 8), lambda i, j: tir.sum(P[i, k] * B[k, j], axis=k), name="C")
    D = tir.compute((16, 8), lambda i, j: tir.maximum(C[i, j], 0), name="D")
    s = tir.Schedule(D)
    s.split("C.i", [None, 4])
    f = tir.Schedule(C).build()
    n = tir.dim("n", high=64)
    N = tir.placeholder((n,), name="N")
    g = tir.Schedule(tir.compute((n,), lambda i: N[i] + 1, name="M")).build()
    huge = tir.compute((1 << 44,), lambda i: A[0, 0] + 1.0, name="H")
    huge_f = tir.Schedule(huge).build()
    a, b = np.ones((16, 12), "float32"), np.ones((12, 8), "float32")
    bound = f.bind(a, b)
    space = tir.Space(tile=[1, 2, 4], mode=["a", "b"], where={"w": lambda c: c["tile"] < 4})
    work = tir.Workload("mm", C, {"t": (lambda s, c: s, space)})
    op = tir.ops.matmul(8, 8, 8)
    giant = tir.Workload("giant", huge, {"t": (lambda s, c: s, tir.Space(x=[1]))})
    edited = tir.Schedule(C).with_source(tir.Schedule(C).source())
    fusions = tir.fusions(tir.nn.relu(D))
    constant: dict[str, object] = {
        "Tensor": C, "placeholder": A, "integer": tir.placeholder((4,), "int32", name="I"),
        "scalar tensor": tir.placeholder((), name="Z"), "element": A[0, 0] + 1, "constant element": A[0, 0] * 0,
        "axis": k, "dim": n, "Executable": f, "dims Executable": g, "huge Executable": huge_f, "BoundLaunch": bound,
        "sequence": tir.sequence([bound]), "Space": space, "Workload": work, "operator": op, "huge Workload": giant,
        "Target": tir.Target.parse("cuda -arch=sm_80"), "Verdict": s.check(), "Device": f.device, "Source": f.emitted,
        "Timing": f.time(a, b, repeat=2), "combiner": tir.combiner(lambda a, b: a + b, 0), "Compute": C.op,
        "Template": next(iter(work.templates.values())), "trace": s.trace, "Fusions": fusions, "error": _refused(A),
    }  # fmt: skip
    made: dict[str, Callable[[], object]] = {name: (lambda v=v: v) for name, v in constant.items()}
    return made | {
        "Schedule": s.fork, "StageRef": lambda: s.fork()["C"], "AxisRef": lambda: s.fork()["C"].axes[0],
        "edited": edited.fork, "gpu Schedule": tir.Schedule(D, "cuda -arch=sm_80").fork,
    }  # fmt: skip


def _refused(A: tir.Tensor) -> tir.TensorIRError:
    try:
        A[0]
    except tir.TensorIRError as error:
        return error
    raise AssertionError("not refused")


@cache
def subjects() -> list[tuple[str, Callable[[], Callable[..., object]]]]:
    """Every public function, constructor and method, by name: discovered, so that none is forgotten."""
    found: list[tuple[str, Callable[[], Callable[..., object]]]] = []
    for name in tir.__all__:
        value = getattr(tir, name)
        if isinstance(value, types.ModuleType):
            inside = [*getattr(value, "__all__", ()), *(tir.ops.OPERATORS if value is tir.ops else ())]
            called = [(n, getattr(value, n)) for n in inside]
            found += [(f"{name}.{n}", lambda v=v: v) for n, v in called if callable(v)]
        elif callable(value) and name not in ERRORS - {"TensorIRError", "ScheduleError"}:
            found.append((name, lambda v=value: v))
            methods = [m for m in vars(value) if isinstance(vars(value)[m], classmethod | staticmethod)]
            found += [(f"{name}.{m}", lambda v=value, m=m: getattr(v, m)) for m in methods if not m.startswith("_")]
    for label, make in specimens().items():
        thing = make()
        cls = type(thing)
        for name in dir(cls):
            home = next(c for c in cls.__mro__ if name in vars(c))
            if (
                not home.__module__.startswith("tensorir")
                or (hasattr(Node, name) and not hasattr(object, name))
                or (name.startswith("_") and name not in OPERATORS)
            ):
                continue
            if callable(getattr(cls, name, None)):
                if label in INTERNAL and not name.startswith("_"):
                    continue
                found.append((f"<{label}>.{name}", lambda make=make, name=name: getattr(make(), name)))
            elif not name.startswith("_"):
                found.append((f"<{label}>.{name}", lambda make=make, name=name: lambda: getattr(make(), name)))
        for how in (copy.copy, copy.deepcopy):
            found.append((f"<{label}>.{how.__name__}", lambda make=make, how=how: lambda: how(make())))
        if isinstance(thing, tir.Tensor):
            from tensorir.expr.tensor import METHODS

            found += [(f"<{label}>.{m}", lambda make=make, m=m: getattr(make(), m)) for m in METHODS]
    return found


@cache
def _parameters(name: str) -> list[inspect.Parameter]:
    function = dict(subjects())[name]()
    if name in ("Space", "<Space>.pin", "<Space>.when", "<Executable>.prepack"):
        return [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None)
            for n in ("tile", "mode", "where", "default")
        ]
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY, default=None) for n in "xy"]


def arguments(
    name: str, rng: random.Random
) -> tuple[list[tuple[str, Callable[[], object]]], dict[str, tuple[str, Callable[[], object]]]]:
    """Makers of the positional and the named arguments of a random call, each with a word for it."""
    args: list[tuple[str, Callable[[], object]]] = []
    kwargs: dict[str, tuple[str, Callable[[], object]]] = {}
    named = False
    hostility = rng.choice((0.15, 0.4, 0.8))
    leaf = name.rpartition(".")[2]
    for p in _parameters(name):
        if p.kind is p.VAR_POSITIONAL:
            args += [_value(p, rng, hostility) for _ in range(rng.choice((0, 1, 2, 2, 3)))]
            continue
        if p.kind is p.VAR_KEYWORD:
            for _ in range(rng.choice((0, 0, 0, 1))):
                kwargs[rng.choice(("axis", "name", "x", "where", "dtype", "keepdims", "trials", "\ud800"))] = _value(
                    p, rng, hostility
                )
            continue
        if p.default is not p.empty and rng.random() < 0.55:
            named = named or p.kind is not p.KEYWORD_ONLY
            continue
        if named or p.kind is p.KEYWORD_ONLY or rng.random() < 0.1:
            named = True
            if p.kind is not p.POSITIONAL_ONLY:
                kwargs[p.name] = _value(p, rng, hostility)
        else:
            args.append(_value(p, rng, hostility))
    if rng.random() < 0.01:
        kwargs["no_such_argument"] = ("5", lambda: 5)
    if leaf in SLOW:
        kwargs |= {"trials": ("1", lambda: 1), "budget": ("0.2", lambda: 0.2)}
        kwargs.pop("executor", None)
    return args, kwargs


@cache
def places() -> list[tuple[str, int, str]]:
    """Function, place of a parameter, and hostile value of each call of ``EVERY``."""
    names = [name for name, _ in subjects() if name.rpartition(".")[2] not in SLOW]
    return [(name, at, bad) for name in names for at in range(min(PLACES, len(_parameters(name)))) for bad in HOSTILE]


def placed(
    name: str, at: int, bad: str, rng: random.Random
) -> tuple[list[tuple[str, Callable[[], object]]], dict[str, tuple[str, Callable[[], object]]]]:
    """``arguments`` with a hostile value in one place, and good ones where a call needs some."""
    args: list[tuple[str, Callable[[], object]]] = []
    kwargs: dict[str, tuple[str, Callable[[], object]]] = {}
    for n, p in enumerate(_parameters(name)):
        optional = p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if n != at and optional:
            continue
        value = (bad, HOSTILE[bad]) if n == at else _value(p, rng, 0.0)
        if p.kind is p.VAR_KEYWORD:
            kwargs["axis"] = value
        elif p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and optional):
            kwargs[p.name] = value
        else:
            args.append(value)
    return args, kwargs


def _value(p: inspect.Parameter, rng: random.Random, hostility: float) -> tuple[str, Callable[[], object]]:
    good = good_values(p.name, specimens())
    if rng.random() < hostility or not good:
        return rng.choice([*HOSTILE.items(), *specimens().items()])
    return rng.choice(good)


def call(seed: int, n: int) -> tuple[str, Callable[[], object]]:
    """The text of call n of a seed, and the call."""
    rng = random.Random(f"{seed}:{n}")
    if seed == EVERY:
        name, at, bad = places()[n]
        function = dict(subjects())[name]
        args, kwargs = placed(name, at, bad, rng)
    else:
        functions = sum(not name.startswith("<") for name, _ in subjects())
        among = subjects()[:functions] if rng.random() < 0.4 else subjects()[functions:]
        name, function = rng.choice(among)
        args, kwargs = arguments(name, rng)
    said = ", ".join([*(w for w, _ in args), *(f"{k}={w}" for k, (w, _) in kwargs.items())])
    use = rng.random()

    def act() -> object:
        called = function()
        made = called(*(make() for _, make in args), **{k: make() for k, (_, make) in kwargs.items()})
        if use < 0.2:
            repr(made)
        if use < 0.1 and hasattr(made, "_repr_html_") and not isinstance(made, type):
            made._repr_html_()
        if use > 0.9 and isinstance(made, tir.Tensor) and made.op is not None:
            tir.Schedule(made).source("c")
        return made

    return f"{name}({said})".encode("unicode_escape").decode(), act


class Hang(BaseException):
    """A call that took too long."""


def _stop(*_: object) -> None:
    raise Hang


def judged(act: Callable[[], object]) -> str:
    """What is wrong with a call, as the kind of finding; "" where nothing is."""
    signal.setitimer(signal.ITIMER_PROF, CALL_LIMIT_S)
    try:
        act()
    except tir.TensorIRError as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        lines = str(error).splitlines()
        return f"{type(error).__name__} of {len(lines)} lines" if len(lines) > 12 else ""
    except Hang:
        return "hang"
    except TypeError as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        tb = error.__traceback__
        own = tb is not None and tb.tb_next is not None and tb.tb_next.tb_next is None  # raised by the call itself
        return "" if own else _kind(error)
    except (Exception, SystemExit) as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return _kind(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def _kind(error: BaseException) -> str:
    """Class and place of what was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/tensorir/" in f.filename]
    place = f"{frames[-1].filename.partition('/tensorir/')[2]}:{frames[-1].name}" if frames else "?"
    try:
        message = str(error)[:100].splitlines()[:1]
    except Exception:
        message = ["?"]
    return f"{type(error).__name__} in {place}: {''.join(message)}"


def run_part(seed: int, first: int, end: int, out: Path) -> None:
    """Calls of a seed in this process: a line for each call that begins, and one for each finding."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGPROF, _stop)
    warnings.simplefilter("ignore")
    names = {n for n, _ in subjects()}
    place = Path.cwd()
    elsewhere = Path(tempfile.gettempdir())
    with out.open("a", encoding="utf-8") as file:
        for n in range(first, end):
            said, act = call(seed, n)
            file.write(json.dumps({"n": n, "call": said}) + "\n")
            file.flush()
            before = set(os.listdir(elsewhere))
            begun = time.process_time()
            kind = judged(act)
            left = [*os.listdir(place), *(set(os.listdir(elsewhere)) - before)]
            writes = any(w in said.partition("(")[0] for w in FILES)
            if left and not kind and not writes:
                kind = f"left behind by {said.partition('(')[0]}"
            for entry in os.listdir(place):
                shutil.rmtree(place / entry, ignore_errors=True) if (place / entry).is_dir() else (
                    place / entry
                ).unlink()
            seconds = round(time.process_time() - begun, 2)
            if kind or seconds > 2:
                file.write(json.dumps({"n": n, "finding": kind, "call": said, "seconds": seconds}) + "\n")
        file.write(json.dumps({"done": [seed, first, end], "subjects": len(names)}) + "\n")


def parts(calls: int) -> Iterator[tuple[int, int]]:
    """Ranges of calls for one process each."""
    for first in range(0, calls, PART):
        yield first, min(first + PART, calls)


def findings(seed: int, first: int, end: int) -> list[dict[str, object]]:
    """What is wrong with some calls of a seed, in a process, which is resumed after a call that kills it.

    The process has a minute and a tenth of a second a call of processor time.
    """
    found: list[dict[str, object]] = []
    while first < end:
        with tempfile.TemporaryDirectory(prefix="random-calls-") as folder:
            lines, died = _part(seed, first, end, Path(folder), 60 + (end - first) * 0.1)
        found += [{"seed": seed, **line} for line in lines if line.get("finding")]
        if any("done" in line for line in lines):
            break
        if not lines:
            raise SystemExit(f"part {seed}:{first}:{end} did not begin: {died}")
        last = lines[-1]
        found.append({"seed": seed, "n": last["n"], "finding": f"process ended: {died}", "call": last["call"]})
        first = int(str(last["n"])) + 1
    for line in found:
        print(json.dumps(line), flush=True)
    return found


def _part(seed: int, first: int, end: int, folder: Path, limit_s: float) -> tuple[list[dict[str, object]], str]:
    out = folder / "lines"
    for name in ("here", "tmp"):
        (folder / name).mkdir()
    env = os.environ | {
        "TMPDIR": str(folder / "tmp"), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}", "PYTHONHASHSEED": "0",
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).resolve()), f"--part={seed}:{first}:{end}", "--out", str(out)]
    seconds = int(limit_s)

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    done = subprocess.run(
        command, cwd=folder / "here", env=env, preexec_fn=limits, capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    return lines, f"{done.returncode} {done.stderr.strip().splitlines()[-1:]}"


def main() -> None:
    """Run what the command line asks for; exit status 1 where something was found."""
    parse = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parse.add_argument("--calls", type=int, default=2000)
    parse.add_argument("--seeds", type=int, nargs="+", default=None)
    parse.add_argument("--every", action="store_true", help="each hostile value in each place")
    parse.add_argument("--only", help="SEED:N, one call with its traceback")
    parse.add_argument("--json", type=Path, help="where the results of seeds are kept")
    parse.add_argument("--part", help=argparse.SUPPRESS)
    parse.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parse.parse_args()
    if given.part:
        run_part(*map(int, given.part.split(":")), given.out)
        os._exit(0)  # destructors of what hostile arguments left are not what is looked at
    if given.only:
        seed, n = map(int, given.only.split(":"))
        said, act = call(seed, n)
        print(said)
        print(repr(act())[:500])
        return
    seeds = [EVERY] if given.every else given.seeds or [random.SystemRandom().randrange(1 << 30)]
    print("seeds", *seeds, flush=True)
    kept = json.loads(given.json.read_text()) if given.json and given.json.exists() else {"seeds": {}}
    for seed in seeds:
        of_seed = kept["seeds"].setdefault(str(seed), {"calls": 0, "findings": [], "seconds": 0})
        for first, end in parts(len(places()) if seed == EVERY else given.calls):
            if end <= of_seed["calls"]:
                continue
            begun = time.time()
            of_seed["findings"] += findings(seed, first, end)
            of_seed["calls"], of_seed["seconds"] = end, of_seed["seconds"] + round(time.time() - begun)
            if given.json:
                kept["environment"] = environment()
                given.json.write_text(json.dumps(kept, indent=1) + "\n")
    found = [f for seed in seeds for f in kept["seeds"][str(seed)]["findings"]]
    for kind, count in Counter(str(f["finding"]) for f in found).most_common():
        print(count, kind)
    print(len(found), "findings in", sum(kept["seeds"][str(s)]["calls"] for s in seeds), "calls")
    sys.exit(bool(found))


def environment() -> dict[str, object]:
    """Date, versions and commit."""
    import numpy as np

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(), "tensorir": tir.__version__,
        "python": platform.python_version(), "numpy": np.__version__, "system": platform.platform(),
        "functions": len(subjects()),
    }  # fmt: skip


if __name__ == "__main__":
    main()
