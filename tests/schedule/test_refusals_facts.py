"""What assume and specialize refuse."""

import pytest
from refusal_cases import Refusals, assert_refused, gather, masked, relu

REFUSALS = Refusals()
once = REFUSALS.once

# --- assume ----------------------------------------------------------------------------------------------------------

once("assume.nothing", "A", lambda s: s.assume("A"))
once("assume.argument", "made by the program", lambda s: s.assume("C", align=64), relu)
once("assume.align", "48", lambda s: s.assume("A", align=48))
once("assume.align", "from 4", lambda s: s.assume("A", align=2))
once("assume.align", "to 64", lambda s: s.assume("A", align=128))
once("assume.not-an-index", "no tensor is indexed by A", lambda s: s.assume("A", low=0, high=3))
once("assume.not-an-index", "T", lambda s: s.assume("T", low=0), gather)
once("assume.range", "at least 3 and below 3", lambda s: s.assume("at", low=3, high=3), gather)
once(
    "assume.range", "at least 5 and below 2", lambda s: s.assume("at", low=5), gather, lambda s: s.assume("at", high=2)
)
once("argument.type", "align", lambda s: s.assume("A", align="64"))

# --- specialize ------------------------------------------------------------------------------------------------------

GRAMMAR = (
    ("  ", "too early"), ("C.i <", "too early"), ("C.i < 3 3", "unexpected '3'"), ("(C.i < 3", "'(' is not closed"),
    ("C.i < 3; x", "unexpected ';'"), ("f(C.i) < 3", "'f(C.i)' has no meaning"),
    ("C.i ** 2 < 3", "'C.i ** 2' has no meaning"),
    ("C.i // C.i < 1", "after // comes a positive number"), ("C.i % 0 == 0", "after % comes"),
    ("A[C.i] == 0", "A has 2 dimensions, not 1"), ("A[C.i, 0 == 0", "'[' is not closed"),
    ("C.i < " + "9" * 11, "10 digits"),
    ("(" * 40 + "C.i < 3" + ")" * 40, "deeper than 30"),
    ("C.i < 3 " * 200, "up to 1000 characters"), ("C.i.__class__ < 3", "called C.i.__class__"),
    ("1.5 < C.i", "unexpected"),
    ("and", "unexpected 'and'"), ("C.i < 3 or", "too early"), ("C.i = 3", "unexpected '='"),
)  # fmt: skip
for _text, _key in GRAMMAR:
    _code = "specialize.unknown-name" if "called" in _key else "specialize.grammar"
    once(_code, _key, lambda s, _text=_text: s.specialize("C.i", _text))
TYPES = (
    ("C.i", "neither true nor false"), ("3", "neither true nor false"), ("not C.i", "neither true nor false"),
    ("A[C.i, 0]", "neither true nor false"), ("A[C.i, 0] + 1 < 3", "arithmetic is for loops"),
    ("A[C.i, 0] == A[0, 0]", "compared with a whole number"), ("A[C.i, 0] == C.i", "compared with a whole number"),
    ("(C.i < 3) + 1 < 3", "a condition is no number"), ("-(C.i < 3) == 0", "a condition is no number"),
    ("A[A[0, 0], 0] == 0", "arithmetic is for loops"), ("C.i < 3 and C.i", "neither"),
)  # fmt: skip
for _text, _key in TYPES:
    once("specialize.type", _key, lambda s, _text=_text: s.specialize("C.i", _text))
once(
    "specialize.type", "300 does not fit int8", lambda s: s.specialize("Y.i", "mask[Y.i] < 300"), lambda: masked("int8")
)
once("specialize.type", "true or false", lambda s: s.specialize("Y.i", "mask[Y.i] == 1"), lambda: masked("bool"))
once("specialize.unknown-name", "C.i?", lambda s: s.specialize("C.i", "C.ii < 3"))
once("specialize.unknown-name", "C.j", lambda s: s.specialize("C.i", "C.j < 3"))
once("specialize.unknown-name", "no input called P", lambda s: s.specialize("C.i", "P[C.i, 0] < 3"), relu)
once("specialize.unknown-name", "no input called C", lambda s: s.specialize("C.i", "C[C.i, 0] < 3"))
once("specialize.out-of-range", "index C.i + 1, but A has 16", lambda s: s.specialize("C.i", "A[C.i + 1, 0] == 0"))
once("specialize.out-of-range", "index C.i - 1", lambda s: s.specialize("C.i", "A[C.i - 1, 0] == 0"))
once(
    "specialize.out-of-range",
    "A[C.i.0 * 5 + C.i.1, 0]",
    lambda s: s.split("C.i", [None, 5]),
    before=lambda s: s.specialize("C.j", "A[C.i, 0] == 0"),
)
once("specialize.negative", "C.i - 8", lambda s: s.specialize("C.i", "(C.i - 8) % 4 == 0"))
once("specialize.versions", "32 times", lambda s: s.specialize("C.k", "C.k < 5"), before=lambda s: [
    s.specialize(x, "C.i < 1") for x in ("C.i", "C.i", "C.j", "C.k")
])  # fmt: skip
once("specialize.lost", "split before specialize", lambda s: s.split("C.i", [None, 4]),
     before=lambda s: s.specialize("C.i", "C.i < 1"))  # fmt: skip
once("specialize.lost", "specialized where C.j < 1", lambda s: s.fuse("C.i", "C.j"),
     before=lambda s: s.specialize("C.j", "C.j < 1"))  # fmt: skip
once("specialize.scope", "about C.i", lambda s: s.reorder("C.j", "C.i"),
     before=lambda s: s.specialize("C.j", "C.i < 1"))  # fmt: skip
once("specialize.lanes", "C.j run at once (vectorize)", lambda s: s.vectorize("C.j"), lambda: masked("int32", "C"),
     lambda s: s.specialize("C.j", "C.i < 1"))  # fmt: skip
once("specialize.lanes", "cooperative", lambda s: s.specialize("A_shared.ax0", "A_shared.ax0 < 1"),
     before=lambda s: s.stage_in("A", "C.j", "shared"))  # fmt: skip
once("specialize.divergent", "threads of C.j", lambda s: s.specialize("C.j", "C.j < 1"),
     before=lambda s: (s.bind("C.j", "thread.x"), s.stage_in("A", "C.j", "shared")))  # fmt: skip
once("specialize.divergent", "A_shared in shared memory", lambda s: s.stage_in("A", "C.j", "shared"),
     before=lambda s: s.specialize("C.j", "C.j < 1").bind("C.j", "thread.x"))  # fmt: skip
once("argument.type", "cond", lambda s: s.specialize("C.i", 3))


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)
