"""Parts of a tall expression that are rewritten first: those that are evaluated wherever it is."""

import pytest

from tensorir.ir.build import binary, const, select
from tensorir.ir.node import STEP
from tensorir.ir.places import Rewritten
from tensorir.ir.text import show
from tensorir.ir.tree import Var
from tensorir.ir.visit import Rewriter, uses

X, Y, C = Var("x", "float32"), Var("y", "float32"), Var("c", "index")


def tower(e, levels):
    """``e`` and what is made of it, each one level taller."""
    made = [e]
    for _ in range(levels):
        made.append(binary("*", made[-1], Y))
    return made


def test_without_conditions_all_tall_parts_come_first_and_nothing_else_is_looked_at():
    parts = tower(X, 4 * STEP)
    memo = Rewritten(parts[-1])
    assert memo.stops(parts[-1]) == [e for e in parts if e.height > STEP]
    assert memo.places is None, "scopes are made of conditions alone"
    memo[parts[2 * STEP]] = X
    assert memo.stops(parts[-1]) == parts[2 * STEP + 1 :]


@pytest.mark.parametrize("second", [False, True])
def test_what_a_condition_guards_does_not_come_first(second):
    here, there = tower(X, 2 * STEP), tower(binary("+", X, Y), 2 * STEP)
    sides = (here[-1], there[-1]) if second else (there[-1], here[-1])
    chosen = select(binary("<", C, const(4)), *sides)
    parts = tower(binary("+", here[-1], chosen), 2 * STEP)
    memo = Rewritten(parts[-1])
    first = memo.stops(parts[-1])
    assert {*first} == {*here[STEP:], chosen, *parts} and not {*first} & {*there}
    assert memo.places is not None


@pytest.mark.parametrize("guarded", [False, True])
def test_tall_expressions_are_rewritten_whole_by_few_calls_at_a_time(guarded):
    class Renamed(Rewriter):
        depth = deepest = 0

        def on_Var(self, v):
            return X if v is Y else v

        def on_Binary(self, e):
            self.depth += 1
            self.deepest = max(self.deepest, self.depth)
            made = self.children(e)
            self.depth -= 1
            return made

    e = tower(X, 40 * STEP)[-1]
    if guarded:
        e = binary("+", select(binary("<", C, const(4)), e, Y), e)
    rename = Renamed()
    assert uses(e, {Y}) and not uses(rename(e), {Y})
    assert rename.deepest <= 3 * STEP


def test_tall_expressions_are_shown_in_parts():
    """None is shared: they are named for their height alone, which is that of the taller side."""
    said = show(tower(X, 40 * STEP)[-1])
    assert said.count("* y") == 40 * STEP and "v2 = v1 * y" in said
    assert show(tower(X, 2)[-1]) == "x * y * y"
