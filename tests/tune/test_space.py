"""Declared spaces: counting, constraints, restriction by text, configurations that come back from JSON."""

from __future__ import annotations

import itertools
import json
import math
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.errors import DeclarationError
from tensorir.tune import legal
from tensorir.tune.legal import enumerate_legal, listed_until
from tensorir.tune.restrict import parse
from tensorir.tune.space import Space


def space() -> Space:
    return Space(
        tile=[1, 2, 4, 8],
        mode=["row", "col"],
        vec=[(1, 1), (1, 4)],
        pad=[False, True],
        where={
            "fits": lambda c: c["tile"] * c["vec"][1] <= 16,
            "rows": lambda c: c["mode"] == "row" or c["tile"] > 1,
        },
    )


def refusal(call) -> DeclarationError:
    with pytest.raises(DeclarationError) as caught:
        call()
    return caught.value


def brute(s: Space) -> list[dict]:
    every = (dict(zip(s.names, v, strict=True)) for v in itertools.product(*s.values))
    return [c for c in every if all(p(c) for p in s.where.values())]


# -- counting and listing


def test_lists_exactly_the_legal_configurations_in_order() -> None:
    s = space()
    assert s.size == 32
    assert [s.config(n) for n in range(len(s.legal))] == brute(s)
    assert s.configs is s.legal
    assert not s.sampled
    assert not s.legal.flags.writeable
    assert np.issubdtype(s.legal.dtype, np.integer)


def test_names_and_values_as_declared() -> None:
    s = space()
    assert s.names == ("tile", "mode", "vec", "pad")
    assert s.values == ((1, 2, 4, 8), ("row", "col"), ((1, 1), (1, 4)), (False, True))
    assert repr(s).startswith("Space(tile=[1, 2, 4, 8], mode=['row', 'col']")


def test_a_space_without_knobs_has_one_configuration() -> None:
    s = Space()
    assert s.size == 1
    assert s.legal.shape == (1, 0)
    assert s.config(0) == s.default == {}
    assert s.index({}) == 0
    assert "no knobs" in s.explain()


def test_numpy_values_and_ranges_become_plain() -> None:
    s = Space(a=np.array([1, 2]), b=range(3), c=[[1, 2], (3, 4)])
    assert s.values == ((1, 2), (0, 1, 2), ((1, 2), (3, 4)))
    assert type(s.values[0][0]) is int


def test_nothing_runs_before_it_is_needed() -> None:
    calls = []
    s = Space(a=[1, 2], where={"count": lambda c: calls.append(1) or c["a"] > 0})
    assert not calls
    assert len(s.legal) == 2
    seen = len(calls)
    assert len(s.legal) == 2
    assert len(calls) == seen


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_pruned_enumeration_equals_brute_force(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    knobs = {f"k{j}": list(range(1, n + 1)) for j, n in enumerate(sizes)}
    names = list(knobs)
    where = {}
    for n in range(data.draw(st.integers(0, 3))):
        a, b = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
        bound = data.draw(st.integers(1, 8))
        form = data.draw(st.integers(0, 3))
        where[f"c{n}"] = [
            lambda c, a=a, b=b, bound=bound: c[a] * c[b] <= bound,
            lambda c, a=a, b=b: c[a] % c[b] == 0 or c[b] > 2,
            lambda c, bound=bound: sum(c.values()) != bound,
            lambda c, a=a, bound=bound: {**c}[a] != bound and c.get("absent", 1) == 1,
        ][form]
    s = Space(where=where, **knobs)
    expected = brute(s)
    found = enumerate_legal(s.names, s.values, s.where)
    assert [s._at(row) for row in found.rows] == expected
    assert sum(found.removed.values()) + len(expected) == s.size == found.total + sum(found.removed.values())
    for n, config in enumerate(expected):
        assert s.index(config) == n


def test_constraints_run_once_for_each_combination_of_what_they_read() -> None:
    calls = []

    def small(c):
        calls.append(1)
        return c["a"] < 3

    s = Space(a=range(4), b=range(10), c=range(10), d=range(10), where={"small": small})
    assert len(s.legal) == 3000
    assert len(calls) < 20


def test_a_constraint_may_rely_on_another_that_excludes_its_bad_cases() -> None:
    s = Space(
        a=[0, 1, 2], b=[0, 1], where={"half": lambda c: 4 // c["a"] > 2, "some": lambda c: c["a"] > 0 or c["b"] > 1}
    )
    assert refusal(lambda: s.legal).code == "space.constraint-raised"
    s = Space(
        a=[0, 1, 2], b=[0, 1], where={"some": lambda c: c["a"] > c["b"] - 1 and c["a"], "h": lambda c: 4 // c["a"]}
    )
    assert len(s.legal) == 4


def test_a_constraint_cannot_swallow_the_pruning() -> None:
    def careful(c):
        try:
            return c["b"] > 0
        except Exception:
            return False

    assert len(Space(a=[1, 2], b=[0, 1], where={"careful": careful}).legal) == 2


def test_huge_spaces_are_sampled_and_say_so() -> None:
    knobs = {f"k{j}": list(range(6)) for j in range(6)}
    where = {"even": lambda c: (c["k0"] + c["k5"]) % 2 == 0}
    names, values = tuple(knobs), tuple(tuple(v) for v in knobs.values())
    found = enumerate_legal(names, values, where, limit=2000)
    assert found.sampled
    assert 0 < len(found.rows) <= 2000
    assert all((r[0] + r[5]) % 2 == 0 for r in found.rows)
    assert found.total == pytest.approx(6**6 / 2, rel=0.2)
    assert found.removed["even"] == pytest.approx(6**6 / 2, rel=0.2)
    again = enumerate_legal(names, values, where, limit=2000)
    assert np.array_equal(found.rows, again.rows)


def test_rows_of_many_are_the_index_of_each() -> None:
    """As JSON returned them, with values and knobs that there are not."""
    space = Space(order=[(0, 1), (1, 0)], tile=[1, 2, 4], where={"odd": lambda c: c["tile"] != 2})
    known = [json.loads(json.dumps(space.config(row))) for row in range(4)]
    others: list[dict[str, Any]] = [{"order": [0, 1], "tile": 2}, {"order": [0, 1], "tile": 3}, {"tile": 1}, {"x": 1}]
    assert space.rows(known) == [0, 1, 2, 3] and space.rows([]) == []
    for asked in (known, [*known, *others], others[:1]):
        assert space.rows(asked) == [space.index(config) for config in asked]
    few = space.rows([*known, others[2]])
    assert few == [0, 1, 2, 3, -1]


def test_needles_in_a_sample_lead_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A given product of all knobs: no prefix can be judged, and no single knob of a legal one can be changed."""
    monkeypatch.setattr(legal, "SEARCH_STEPS", 5000)
    names, values = [f"k{j}" for j in range(8)], [[2**i for i in range(6)]] * 8
    asked = 0

    def product(c: Any) -> bool:
        nonlocal asked
        asked += 1
        return math.prod(c[n] for n in names) == 2**37

    start = [5, 5, 5, 5, 5, 5, 5, 2]
    found = enumerate_legal(names, values, {"product": product}, limit=4000, start=start)
    assert found.sampled and len(found.rows) > 20 and start in found.rows.tolist()
    assert (found.rows.sum(axis=1) == 37).all() and len(np.unique(found.rows, axis=0)) == len(found.rows)
    assert asked < 20_000, "prefixes about which nothing can be said are not asked about one by one"
    again = enumerate_legal(names, values, {"product": product}, limit=4000, start=start)
    assert (again.rows == found.rows).all()
    assert not len(enumerate_legal(names, values, {"no": lambda c: sum(c[n] for n in names) < 0}, limit=4000).rows)


def test_knobs_of_one_constraint_are_fixed_together() -> None:
    """Tiles of three axes, declared level by level: the whole product need not be sampled."""
    names = [f"{axis}{level}" for level in range(4) for axis in "ijk"]
    where = {a: lambda c, a=a: math.prod(c[f"{a}{n}"] for n in range(4)) == 8 for a in "ijk"}
    found = enumerate_legal(names, [[1, 2, 4, 8]] * 12, where)
    assert not found.sampled and len(found.rows) == 20**3
    weights = 4 ** np.arange(11, -1, -1)
    assert (np.diff(found.rows @ weights) > 0).all(), "in the order of the declaration"


def test_what_was_not_drawn_is_not_called_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legal, "SEARCH_STEPS", 1000)
    monkeypatch.setattr("tensorir.tune.space.enumerate_legal", partial(enumerate_legal, limit=1000))
    knobs: Any = {f"k{j}": list(range(10)) for j in range(9)}
    where = {"needle": lambda c: sum(c[f"k{j}"] for j in range(9)) == 81}
    with pytest.raises(DeclarationError, match=r"too many to list, and none of \d+ drawn is legal"):
        _ = Space(where=where, **knobs).legal
    nines = dict.fromkeys(knobs, 9)
    assert Space(where=where, default=nines, **knobs).config(0) == nines


def test_a_sampled_space_keeps_its_default() -> None:
    s = Space(default={f"k{j}": 15 for j in range(16)}, **{f"k{j}": list(range(16)) for j in range(16)})
    assert s.size == 2**64
    assert s.sampled
    assert s.index(s.default) >= 0
    assert s.config(s.index(s.default)) == s.default
    assert "estimated" in s.explain()


# -- default


def test_default_is_the_declared_or_the_first_legal_configuration() -> None:
    assert space().default == space().config(0)
    s = Space(a=[1, 2], b=[(1, 2), (3, 4)], default={"a": 2, "b": [3, 4]}, where={"w": lambda c: c["a"] > 1})
    assert s.default == {"a": 2, "b": (3, 4)}
    s.default["a"] = 1
    assert s.default["a"] == 2


def test_default_moves_with_pins_and_yields_to_restrictions() -> None:
    s = Space(a=[1, 2, 4], b=[1, 2], default={"a": 4, "b": 2})
    assert s.pin(b=1).default == {"a": 4, "b": 1}
    assert s.restrict("b == 2").default == {"a": 4, "b": 2}
    assert s.restrict("a < 4").default == {"a": 1, "b": 1}


# -- configurations from outside


def test_a_configuration_survives_json() -> None:
    s = space()
    for row in range(len(s.legal)):
        back = json.loads(json.dumps(s.config(row)))
        assert s.canonical(back) == s.config(row)
        assert s.index(back) == row


def test_canonical_returns_the_declared_types() -> None:
    s = Space(a=[1, 2], b=[False, True], c=[0.5, None])
    config = s.canonical({"c": None, "b": 1, "a": 2.0})
    assert config == {"a": 2, "b": True, "c": None}
    assert list(config) == ["a", "b", "c"]
    assert type(config["a"]) is int
    assert config["b"] is True


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"tile": 3, "mode": "row", "vec": (1, 1), "pad": True}, "space.unknown-value"),
        ({"tile": {}, "mode": "row", "vec": (1, 1), "pad": True}, "space.unknown-value"),
        ({"tile": 1, "mode": "row", "vec": (1, 1)}, "space.missing-knob"),
        ({"tile": 1, "mode": "row", "vec": (1, 1), "pad": True, "x": 1}, "space.unknown-knob"),
    ],
)
def test_foreign_configurations_are_refused_and_have_no_row(config: dict, code: str) -> None:
    assert refusal(lambda: space().canonical(config)).code == code
    assert space().index(config) == -1


def test_an_illegal_configuration_is_canonical_but_has_no_row() -> None:
    config = {"tile": 1, "mode": "col", "vec": (1, 1), "pad": False}
    assert space().canonical(config) == config
    assert space().index(config) == -1


def test_a_row_that_does_not_exist() -> None:
    with pytest.raises(DeclarationError) as caught:
        space().config(10**6)
    assert caught.value.code == "argument.value"


# -- restrict and pin


def test_restrict_and_pin_give_new_spaces() -> None:
    s = space()
    before = len(s.legal)
    small = s.restrict("tile <= 4 and mode in ('row', 'x')").restrict("pad")
    assert all(c["tile"] <= 4 and c["mode"] == "row" and c["pad"] for c in map(small.config, range(len(small.legal))))
    assert len(small.legal) == 6
    pinned = s.pin(tile=4, vec=[1, 4])
    assert {(c["tile"], c["vec"]) for c in map(pinned.config, range(len(pinned.legal)))} == {(4, (1, 4))}
    assert len(s.legal) == before


def test_the_same_condition_twice_changes_nothing() -> None:
    s = Space(a=[1, 2, 3]).restrict("a > 1")
    assert np.array_equal(s.restrict("a > 1").legal, s.legal)


TRUTHS = [
    "a == 4",
    "a != 3 and b < 2",
    "not a == 3",
    "not not a == 4",
    "a * b + 2 == 6",
    "a - b * 2 == 2",
    "(a - b) * 2 == 6",
    "a // 3 == 1 and a % 3 == 1",
    "-a < 0",
    "--a == 4",
    "1 <= b < a <= 4",
    "not 1 <= a < b",
    "a in (1, 4)",
    "a in [4]",
    "a not in (1, 2,)",
    "w == 'fast' or missing_is_not_read == 1",
    'w in ("fast", "slow")',
    "w > 'a'",
    "t == (1, 2)",
    "t in ((1, 2), (3, 4))",
    "f",
    "f == True and not False",
    "n == None",
    "x == 0.5",
    "a == 4 or a < 'word'",
    "  a==4  ",
]
CASE = {"a": 4, "b": 1, "w": "fast", "t": (1, 2), "f": True, "n": None, "x": 0.5, "missing_is_not_read": 0}


@pytest.mark.parametrize("text", TRUTHS)
def test_conditions_that_hold(text: str) -> None:
    assert parse(text, list(CASE))(CASE) is True
    assert parse(f"not ({text})", list(CASE))(CASE) is False


NUMBERS = st.integers(-20, 20)


@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["+", "-", "*"]), st.sampled_from(["//", "%", "*", "+"]))
@settings(max_examples=100, deadline=None)
def test_arithmetic_is_pythons(a: int, b: int, c: int, first: str, second: str) -> None:
    ops = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "//": int.__floordiv__, "%": int.__mod__}
    if second in ("//", "%"):
        c = c or 1
    if first != "*" and second != "+":
        expected = ops[first](a, ops[second](b, c))
    else:
        expected = ops[second](ops[first](a, b), c)
    config = {"a": a, "b": b, "c": c, "r": expected}
    assert parse(f"a {first} b {second} c == r", list(config))(config)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a <",
        "a ** 2 > 1",
        "a / 2 == 1",
        "a = 1",
        "a & 1",
        "a.real",
        "a[0]",
        "a(1)",
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "a in 4",
        "a in",
        "a in ()",
        "a, a",
        "(a, a)",
        "a == 'x' 'y'",
        "a == 1 # one",
        "not (a, a)",
        "a<4and a>1",
        "a == 1_0",
        "ａ == 1",
        "a == 1\x00",
        "(" * 100_000,
        "a not",
        "(a",
        "a)",
        "a a",
        "'open",
        "'a\\n'",
        "1" * 30 + " == a",
        "(" * 40 + "a" + ")" * 40,
        "a + " * 2000 + "a",
        "a == 1; a",
        "a if a else a",
    ],
)
def test_other_texts_are_refused_with_the_place(text: str) -> None:
    error = refusal(lambda: Space(a=[1, 2]).restrict(text))
    assert error.code == "space.restrict-grammar"
    assert "test_space.py" in str(error)


@given(st.text(alphabet="ab12 ()+-*/%<>=!'\",.in not and or\n\\[]é\x00", max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        assert isinstance(Space(a=[1, 2], b=["x", "y"]).restrict(text), Space)
    except DeclarationError as error:
        assert error.code.startswith("space.")


def test_long_but_flat_conditions_are_fine() -> None:
    s = Space(a=[1, 2]).restrict(" or ".join(["a == 1"] * 150))
    assert len(s.legal) == 1
    assert len(Space(a=[1, 2]).restrict("-" * 1000 + "a > 0").legal) == 2


@pytest.mark.parametrize("text", ["w < 3", "w + 1 == 2", "a % (a - a) == 0", "a // 0", "-w == 1", "t * 2 == 1"])
def test_operations_that_do_not_fit_the_values(text: str) -> None:
    s = Space(a=[1, 2], w=["x", "y"], t=[(1, 2), (3, 4)])
    assert refusal(lambda: s.restrict(text)).code == "space.restrict-type"


def test_unknown_knobs_get_a_suggestion() -> None:
    for call in (lambda: space().restrict("tyle > 1"), lambda: space().pin(tyle=1)):
        error = refusal(call)
        assert error.code == "space.unknown-knob"
        assert "try: tile" in str(error)
    assert "in quotes" in str(refusal(lambda: space().restrict("mode == zzz")))


def test_pin_to_a_value_that_was_not_declared() -> None:
    error = refusal(lambda: space().pin(tile=3))
    assert error.code == "space.unknown-value"
    assert "1, 2, 4, 8" in str(error)


# -- refusals of the declaration itself


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: Space(a=[]), "space.knob-values"),
        (lambda: Space(a="row"), "space.knob-values"),
        (lambda: Space(a=3), "space.knob-values"),
        (lambda: Space(a=[1, 1.0]), "space.knob-values"),
        (lambda: Space(a=[math.inf]), "space.knob-values"),
        (lambda: Space(a=[10**5000]), "space.knob-values"),
        (lambda: Space(a=[{1}]), "space.knob-values"),
        (lambda: Space(a=[object()]), "space.knob-values"),
        (lambda: Space(**{"a.b": [1]}), "space.knob-name"),
        (lambda: Space(**{"in": [1]}), "space.knob-name"),
        (lambda: Space(where=[1, 2]), "space.reserved-knob"),
        (lambda: Space(default=[1, 2]), "space.reserved-knob"),
        (lambda: Space(a=[1], where={"w": "a > 1"}), "space.constraint"),
        (lambda: Space(a=[1, 2], default={"a": 1}, where={"w": lambda c: c["a"] > 1}), "space.default-illegal"),
        (lambda: Space(a=[1, 2], default={"a": 3}), "space.unknown-value"),
        (lambda: Space(a=[1, 2], default={}), "space.missing-knob"),
        (lambda: Space(a=[1, 2], where={"no": lambda c: c["a"] > 2}).legal, "space.empty"),
        (lambda: Space(a=[1, 2], where={"no": lambda c: False}).default, "space.empty"),
        (lambda: Space(a=[1, 2]).restrict("a > 2"), "space.empty"),
        (lambda: Space(a=[1, 2], where={"w": lambda c: c["a"] > 1}).pin(a=1), "space.empty"),
        (lambda: Space(a=[1, 2], where={"w": lambda c: c["b"] > 1}).legal, "space.unknown-knob"),
        (lambda: Space(a=[1, 2], where={"w": lambda c: c["a"].x}).legal, "space.constraint-raised"),
        (lambda: Space(where={"w": lambda c: 1 // 0}).legal, "space.constraint-raised"),
    ],
)
def test_refusals(call, code: str) -> None:
    error = refusal(call)
    assert error.code == code
    assert "test_space.py" in str(error)


def test_constraints_that_take_longer_than_there_is_time_are_refused() -> None:
    asked = []
    slow = Space(
        a=range(1000), b=range(1000), where={"slow": lambda c: asked.append(time.sleep(1e-3)) or c["a"] < c["b"]}
    )
    with listed_until(time.monotonic() + 0.02):
        error = refusal(lambda: slow.legal)
    assert error.code == "space.constraint-slow" and "'slow'" in str(error) and len(asked) < 100
    with listed_until(None):
        assert len(Space(a=[1, 2], where={"w": lambda c: c["a"] > 1}).legal) == 1


def test_messages_name_the_constraint_and_the_case() -> None:
    error = refusal(lambda: Space(a=[1, 0], where={"halves": lambda c: 1 // c["a"]}).legal)
    assert "'halves'" in str(error)
    assert "a=0" in str(error)
    error = refusal(lambda: Space(a=[1, 2], where={"much": lambda c: c["a"] > 2}).legal)
    assert "'much' removes 2" in str(error)


# -- explain


def test_explain_counts_what_each_constraint_removed() -> None:
    text = space().explain()
    assert text.splitlines()[0] == "32 configurations (tile 4 x mode 2 x vec 2 x pad 2), 24 legal"
    assert "rows  removes 4" in text
    assert "fits  removes 4" in text
    assert "restrict tile > 1  removes" in space().restrict("tile > 1").explain()


def test_explain_works_on_an_empty_space() -> None:
    text = Space(a=[1, 2], where={"no": lambda c: c["a"] > 2}).explain()
    assert "0 legal" in text
    assert "no  removes 2" in text


# -- knobs of the usual sorts


def test_powers_divisors_and_orders() -> None:
    assert tir.powers_of_two(3, 40) == [4, 8, 16, 32]
    assert tir.divisors(28, high=14) == [1, 2, 4, 7, 14]
    assert tir.divisors(36, low=5) == [6, 9, 12, 18, 36]
    assert tir.permutations("ij") == [("i", "j"), ("j", "i")]
    assert Space(order=tir.permutations(["k", "i", "j"])).size == 6


@given(st.integers(1, 5000))
def test_divisors_are_those_that_divide(n: int) -> None:
    assert tir.divisors(n) == [d for d in range(1, n + 1) if n % d == 0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: tir.powers_of_two(33, 63),
        lambda: tir.powers_of_two(64, 2),
        lambda: tir.divisors(7, 2, 6),
        lambda: tir.permutations("aab"),
        lambda: tir.permutations(list(range(9))),
        lambda: tir.permutations(""),
    ],
)
def test_knobs_without_values(call) -> None:
    with pytest.raises(DeclarationError) as error:
        call()
    assert error.value.code == "space.knob-values"
    assert error.value.problems[0].hint


def test_a_knob_that_means_nothing_has_its_first_value() -> None:
    s = Space(staged=[False, True], depth=[1, 2, 3], pad=[0, 4]).when(depth=lambda c: c["staged"])
    found = [s.config(row) for row in range(len(s.legal))]
    assert len(found) == 2 + 6
    assert all(c["depth"] == 1 for c in found if not c["staged"])
    assert "depth is 1 where it means nothing" in s.explain()
    assert len(s.restrict("depth > 1").legal) == 4
    assert s.index({"staged": False, "depth": 2, "pad": 0}) == -1


def test_conditions_of_knobs_that_are_none() -> None:
    with pytest.raises(DeclarationError) as error:
        Space(x=[1, 2]).when(y=lambda c: True)
    assert error.value.code == "space.unknown-knob"
    with pytest.raises(DeclarationError) as error:
        Space(x=[1, 2]).when(x=True)
    assert error.value.code == "space.constraint"


def test_features_stay_with_a_space() -> None:
    def area(c: dict) -> list[float]:
        return [c["x"] * c["y"]]

    s = Space(x=[1, 2], y=[1, 2]).describing(area)
    assert s.restrict("x < 2").features is area
    assert s.pin(y=1).features is area
    assert s.describing(None).features is None
    with pytest.raises(DeclarationError) as error:
        s.describing([1, 2])
    assert error.value.code == "space.features"
