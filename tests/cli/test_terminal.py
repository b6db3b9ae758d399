"""What people read fits their terminal, whole lines go into pipes, and nothing in it is Python's."""

import contextlib
import functools
import io
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import zoo

import tensorir as tir
from tensorir import ops
from tensorir.cli import common, main, verb_check, verb_tune
from tensorir.cli.tables import table
from tensorir.cli.terminal import coloured, columns, fold, fold_code, paint
from tensorir.cli.titles import brief
from tensorir.errors.catalogue import entries
from tensorir.ops.operators import OPERATORS
from tensorir.runtime.device import devices
from tensorir.tune.record import RunIdentity

OWN = f"{Path(zoo.__file__)}:product"
CONV = ("conv2d", "1x2x5x5", "3x2x3x3", "--pad", "1")
WIDTHS = (60, 80, 120)

needs_device = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)


@pytest.fixture(autouse=True, scope="module")
def _planned_once():
    """How wide lines are is asked of the same convolution dozens of times: its templates are made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "conv2d", functools.cache(ops.conv2d))
        yield


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The log of one tuned operator, and the id of its best record."""
    where = tmp_path_factory.mktemp("logs")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main.run(["tune", *CONV, "--trials", "2", "--log", str(where), "--json", "--progress", "none"]) == 0
    return str(where), json.loads(said.getvalue())["best"]["trial"]


OFFLINE = [
    *((verb, "--help") for verb in main.VERBS),
    ("--help",), ("--version",), ("frobnicate",), ("tune", "conv3d"), ("tune", *CONV, "--layout", "nchww"),
    ("tune", *CONV, "--dtype", "flaot32"), ("log", "--help"), ("log", "ls", "--help"), ("cache", "export", "--help"),
    ("list",), ("list", "matmul", "--space"), ("devices",),
    ("show", *CONV), ("show", *CONV, "--target", "cuda"),
    ("show", "matmul", "64x64x64", "--target", "cuda -arch=sm_90a"), ("show", *CONV, "--target", "tpu"),
    ("show", *CONV, "--target", "cuda -waarp=1"), ("show", *CONV, "--config", "tile=-1"), ("tune", *CONV, "--dry-run"),
    ("tune", *CONV, "--restrict", "nothing == 1"), ("export", *CONV, "--to", "source", "-o", "x"),
    ("tune", "conv2d", "--shapes", "nothing"), ("explain", "no.such-code"), ("repro", "nothing"), ("log", "verify"),
]  # fmt: skip
TUNED = [
    ("log", "ls"), ("log", "best"), ("log", "stats"), ("log", "verify"), ("log", "show", "RECORD"),
    ("log", "freeze", "-o", "frozen.json"), ("tune", *CONV, "--trials", "2"), ("show", "RECORD"),
    ("show", *CONV, "--resources"),
    ("check", *CONV), ("bench", *CONV), ("repro", "RECORD"), ("report", "LOG", "-o", "page.html"), ("doctor",),
    ("cache", "export", "all.pack"), ("export", *CONV, "--to", "source", "-o", "out"),
    ("tune", "matmul", "8x8x8", "--trials", "1"),
]  # fmt: skip


def too_wide(text, width):
    return [line for line in text.split("\n") if len(line) > width]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("args", OFFLINE, ids=" ".join)
def test_no_line_is_wider_than_the_terminal(cli, monkeypatch, args, width):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, err = cli(*args)
    assert not too_wide(out, width) and not too_wide(err, width) and (out or err)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_explanation_is_wider_than_the_terminal(cli, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    for code in entries():
        assert not too_wide(cli("explain", code)[1], width), code


@needs_device
@pytest.mark.parametrize(
    ("args", "width"), [*((a, min(WIDTHS)) for a in TUNED), *((a, max(WIDTHS)) for a in TUNED[:6])]
)
def test_no_line_of_a_tuned_operator_is_wider_than_the_terminal(cli, monkeypatch, logs, tmp_path, args, width):
    monkeypatch.setenv("COLUMNS", str(width))
    log, record = str(shutil.copytree(logs[0], tmp_path / "log")), logs[1]  # some add trials, which may be better
    given = [{"RECORD": record, "LOG": log}.get(a, a) for a in args]
    given += ["--log", log] if args[0] not in ("report", "doctor") else []
    code, out, err = cli(*given)
    assert code == 0 and not too_wide(out, width) and not too_wide(err, width) and out
    assert args == ("show", "RECORD") or not re.search(r"\bNone\b|\{'|\['", out + err)  # there: steps, in Python


@needs_device
def test_a_short_title_names_the_workload(cli, logs, tmp_path):
    log, record = logs
    title = "conv2d n=1 c=2 h=5 w=5 k=3 r=3 s=3 pad=1"
    assert title in cli("log", "ls", "--log", log)[1] and "layout" not in cli("log", "ls", "--log", log)[1]
    for named in (title, str(ops.conv2d(n=1, c=2, h=5, w=5, k=3, r=3, s=3, pad=1).title)):
        assert cli("log", "best", "--workload", named, "--log", log)[1].startswith(record)
        assert cli("log", "freeze", "--workload", named, "--log", log)[0] == 0
        assert cli("report", log, "--workload", named)[0] == 0
        assert cli("cache", "export", "a.pack", "--workload", named, "--log", log)[0] == 0
    assert cli("log", "best", "--workload", "conv2d n=2", "--log", log)[1] == ""
    stored = json.loads(cli("log", "ls", "--log", log, "--json")[1])["rows"][0]["workload"]
    assert stored != title and brief(stored) == title


@pytest.mark.parametrize("name", OPERATORS)
def test_short_titles(name):
    """An operator's own title loses its defaults and keeps its extents and what was asked for."""
    title = getattr(ops, name)(dtype="float16").title
    short = brief(f"{title} is not tuned; {title}")
    some = any(f not in (*ops.OPERATORS[name].needed, "dtype") for f in ops.OPERATORS[name].flags)  # that have defaults
    assert short.count(f"{name} ") == 2 and short.count("dtype=float16") == 2
    assert (len(brief(title)) < len(title)) == some
    assert not re.search(r"act=|layout=|precision=|batch=|residual=", short)
    assert all(re.search(rf"\b{x}=\d", short) for x in ops.OPERATORS[name].extents)
    assert brief("product n=12") == "product n=12" and brief("my_conv2d act=None") == "my_conv2d act=None"


def test_pipes_get_whole_lines(cli, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert too_wide(cli("list", "conv2d")[1], 120)
    monkeypatch.setenv("COLUMNS", "60")
    assert json.loads(cli("list", "conv2d", "--json")[1])["operators"]


@pytest.mark.parametrize(("told", "width"), [(0, 0), (5, 20), (72, 72)])
def test_the_width_that_a_terminal_says(monkeypatch, told, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True, fileno=lambda: 1))
    monkeypatch.setattr("os.get_terminal_size", lambda number: os.terminal_size((told, 24)))
    assert columns() == width


def test_tables():
    rows = [["workload", "time", "peers"], ["conv2d a b c d e f", "1.0 ms", "numpy 2.0 ms, torch 3.0 ms"]]
    with pytest.MonkeyPatch.context() as patch:
        for width in (20, 30, 40, 60):
            patch.setenv("COLUMNS", str(width))
            text = table(rows)
            words = {w for row in rows for cell in row for w in cell.split()}
            assert not too_wide(fold(text, width), width) and words - {"workload"} <= set(text.split())
        patch.delenv("COLUMNS")
        assert len(table(rows).split("\n")) == 2


SOURCE = """#define WIDE(a, b, c, d, e, f, g, h) ((a) + (b) + (c) + (d) + (e) + (f) + (g) + (h) + (a) * (b) * (c))
// a comment that says a lot about the line below it, more than would go into sixty columns of a terminal
    const float long_name_of_a_value = some_function(first_argument, second_argument) + other[index * 4 + 1];
asm volatile("mma.sync.aligned.m16n8k16.row.col.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8};" : : "r"(a));
x = y;  // trailing words that make the line much longer than a terminal of sixty columns is, by some way
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_folded_sources_mean_the_same(width):
    def tokens(text):
        text = re.sub(r"(?m)//.*$", "", text.replace("\\\n", ""))
        return re.findall(r'"[^"]*"|\w+|\S', text)

    for text in (SOURCE, ops.matmul(m=64, n=64, k=64).schedule(target="cuda").source()):
        folded = fold_code(text, width)
        assert tokens(folded) == tokens(text) and not too_wide(folded, width)
    assert fold_code(SOURCE, 0) == SOURCE == fold(SOURCE, 0)


TABLES = {
    "log ls": table([["workload", "device", "trials", "ok", "last"], ["matmul", "a b", "2", "2", "now"]]),
    "bench": table([["workload", "time", "rate", "peers", "ratio"], ["matmul", "1 ms", "2 G", "numpy 2 ms", "2.0"]]),
    "check --emulate": "\n".join(verb_check.table([
        dict(line=12, what="shared read", width=16, requests=8, units=8, ideal=8, text="x = a[i];")
    ])),
}  # fmt: skip


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_headers_of_tables_are_bold_on_a_terminal(text):
    head, *rest = paint(text).split("\n")
    assert head.lstrip().startswith("\x1b[1m") and head.endswith("\x1b[0m")
    assert "\x1b" not in "".join(rest)
    assert re.sub(r"\x1b\[[\d;]*m", "", "\n".join([head, *rest])) == text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["one", "set"])
def test_the_live_panel_is_as_wide_as_the_terminal(kind, width, monkeypatch):
    """A frame and lines in it, none of them lost or cut."""
    monkeypatch.setenv("COLUMNS", str(width))
    work = ops.conv2d(n=1, h=56, w=56, c=64, k=64, r=3, s=3, pad=1, act="relu", layout="NHWC")
    me = RunIdentity(work.title, "d1g357", {"name": "cpu", "driver": "1"}, {})
    record = me.record("trial", "cpu", {"tile": 8}, {"status": "ok", "time_s": 1e-3, "samples": [1e-3]})
    if kind == "one":
        live = verb_tune.Live(work, 100, 60.0, time.monotonic())
        device = {"id": "opencl:0:0", "name": "pthread-" + "a long name of a processor " * 3, "platform": "Portable"}
        live.on_start(device, {"cpu": tir.Space(tile=[4, 8])}, 0)
    else:
        live = verb_tune.LiveSet([work], [1.0], 60.0, time.monotonic())
    try:
        live.on_trial(record)
        panel = live._live.get_renderable()
        with live._live.console.capture() as shown:
            live._live.console.print(panel)
    finally:
        live.close()
    lines = shown.get().rstrip("\n").split("\n")
    assert {len(x) for x in lines} == {width} and "tensorir tune" in lines[0]
    words = set(re.sub("[│╭╮╰╯─]", " ", " ".join(lines)).split())
    assert set(panel.renderable.plain.split()) <= words


def test_colours_are_for_terminals(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured()
    common.put("  WRONG launch  the result\n  try: this\nplain")
    shown = sys.stdout.getvalue()
    assert shown.count("\x1b[0m") == 2 and re.sub(r"\x1b\[[\d;]*m", "", shown).startswith("  WRONG launch")
    assert paint("okay nothing here") == "okay nothing here"
    assert (
        paint("stopped    trials") == "stopped    trials"
        and paint("default  no time  is left") == "default  no time  is left"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("NO_COLOR")
    assert not coloured()
