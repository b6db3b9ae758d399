"""Refused names and traces; and no code without a test."""

import ast
import re
from pathlib import Path

import pytest
from error_codes import COMPOSED, composed, made_of
from refusal_cases import Refusals, assert_refused, plain, relu

import tensorir as tir
from tensorir.schedule.schedule import BaseSchedule

PACKAGE = Path(__file__).parents[2] / "tensorir"
TESTS = Path(__file__).parents[1]

REFUSALS = Refusals()
once = REFUSALS.once

# --- names and traces ------------------------------------------------------------------------------------------------

once("loop.unknown", "C.q", lambda s: s.split("C.q", [None, 4]))
once(
    "loop.gone",
    "split into C.i.0, C.i.1",
    lambda s: s.bind("C.i", "block.x"),
    before=lambda s: s.split("C.i", [None, 4]),
)
once("loop.ambiguous", "i fits", lambda s: s.split("i", [None, 4]), relu)
once("stage.unknown", "Z", lambda s: s["Z"])
once("stage.gone", "P", lambda s: s["P"], relu, lambda s: s.compute_inline("P"))
once("tensor.unknown", "Z", lambda s: s.stage_in("Z", "C.k", "shared"))
once("tensor.gone", "P", lambda s: s.set_scope("P", "shared"), relu, lambda s: s.compute_inline("P"))
once("argument.type", "an axis by name or handle", lambda s: s.split(3, [None, 4]))
once("argument.type", "an axis by name or handle", lambda s: s["C"].split(3, [None, 4]))
once("argument.type", "a stage by name or handle", lambda s: s.compute_inline(3))
once("undo.count", "5 of 0", lambda s: s.undo(5))
once("trace.malformed", "not JSON", lambda s: s.replay("{"))
once("trace.malformed", "list of steps", lambda s: s.replay("{}"))
once("trace.malformed", "step 1", lambda s: s.replay("[1]"))
once("trace.malformed", "reason", lambda s: s.replay('[["unroll", ["C.i"], {}, 1]]'))
once("trace.unknown-primitive", "system", lambda s: s.replay('[["system", ["ls"], {}]]'))


@REFUSALS.case("schedule.too-deep", "too deep")
def too_deep():
    s = plain()
    yield s
    s._apply("split", (), {}, lambda p: (_ for _ in ()).throw(RecursionError))


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)


# --- no code without a test ------------------------------------------------------------------------------------------

CODE = re.compile(r"[a-z][a-z0-9]+(?:-[a-z]+)*\.[a-z]+(?:-[a-z0-9]+)*")
RAISES = re.compile(r"(Problem|refuse|fail|constant_extent)$")
ELSEWHERE = {"tensorize.last", "lower.intrinsic", "codegen.intrinsic"}
"""tests/intrin"""


def raised():
    """The codes in the sources of schedule, expr, algorithms, nn and lower."""
    files = [
        *PACKAGE.glob("schedule/**/*.py"),
        *PACKAGE.glob("expr/*.py"),
        *PACKAGE.glob("algorithms/*.py"),
        *PACKAGE.glob("nn/*.py"),
        *PACKAGE.glob("lower/*.py"),
    ]
    for file in files:
        for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(n, ast.Call) or not RAISES.search(ast.unparse(n.func)):
                continue
            for a in (
                x for arg in n.args[:2] for x in ([arg.body, arg.orelse] if isinstance(arg, ast.IfExp) else [arg])
            ):
                if isinstance(a, ast.Constant) and isinstance(a.value, str) and CODE.fullmatch(a.value):
                    yield a.value
                elif text := composed(a):
                    assert text in COMPOSED, f"{text} in {file.name} is new: list it in tests/error_codes.py"
                    yield from made_of(text)


def test_every_code_is_tested():
    tested = "\n".join(f.read_text(encoding="utf-8") for f in TESTS.rglob("test_*.py"))
    missing = sorted({c for c in raised() if f'"{c}"' not in tested and c not in ELSEWHERE})
    assert not missing, f"codes without a test: {missing}"


def test_a_fork_is_not_touched_by_refusals():
    s = plain()
    other = s.fork()
    with pytest.raises(tir.ScheduleError):
        s.split("C.i", [None, 0])
    s.split("C.i", [None, 4])
    assert str(other) == str(BaseSchedule(s.outputs))
