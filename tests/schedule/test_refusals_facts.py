"""What assume and specialize refuse."""

import pytest
from refusal_cases import Refusals, assert_refused, gather, relu

REFUSALS = Refusals()
once = REFUSALS.once

# --- assume ----------------------------------------------------------------------------------------------------------

once("assume.nothing", "A", lambda s: s.assume("A"))
once("assume.argument", "made by the program", lambda s: s.assume("C", align=64), relu)
once("assume.align", "48", lambda s: s.assume("A", align=48))
once("assume.align", "from 4", lambda s: s.assume("A", align=2))
once("assume.align", "to 128", lambda s: s.assume("A", align=256))
once("assume.not-an-index", "no tensor is indexed by A", lambda s: s.assume("A", low=0, high=3))
once("assume.not-an-index", "T", lambda s: s.assume("T", low=0), gather)
once("assume.range", "at least 3 and below 3", lambda s: s.assume("at", low=3, high=3), gather)
once(
    "assume.range", "at least 5 and below 2", lambda s: s.assume("at", low=5), gather, lambda s: s.assume("at", high=2)
)
once("argument.type", "align", lambda s: s.assume("A", align="64"))


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)
