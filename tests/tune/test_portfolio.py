"""Few kernels for many shapes: the smallest set, who gets which, and the choice as code."""

import ctypes
import itertools
import json
import math
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.api.shape_set import expected_gain
from tensorir.tune.dispatch import Dispatch, DispatchKernel, Leaf, Split, aligned, follow, grow, tree_json
from tensorir.tune.dispatch_text import c_text, python_text
from tensorir.tune.portfolio import cover, within
from tensorir.tune.strategy import Given, Kept

NO = math.inf


@st.composite
def matrices(draw, most=(7, 6)):
    """Times of few values, so that shapes share configurations; some are missing, no shape has none."""
    rows, columns = draw(st.integers(1, most[0])), draw(st.integers(1, most[1]))
    cell = st.sampled_from([1.0, 1.04, 1.06, 2.0, NO])
    times = np.array([[draw(cell) for _ in range(columns)] for _ in range(rows)])
    for j in np.flatnonzero(~np.isfinite(times).any(axis=0)):
        times[draw(st.integers(0, rows - 1)), j] = 1.0
    return times


@settings(max_examples=80, deadline=None)
@given(matrices(), st.sampled_from([0.0, 0.05]))
def test_no_smaller_set_is_within_the_regret(times, regret):
    found = cover(times, regret)
    fits = times <= times.min(axis=0) * (1 + regret) + 1e-12
    assert found.exact and fits[list(found.rows)].any(axis=0).all()
    assert (within(times, regret) == fits).all()
    for size in range(1, len(found.rows)):
        assert not any(fits[list(few)].any(axis=0).all() for few in itertools.combinations(range(len(times)), size))


def test_exact_where_greed_is_not():
    """Greed takes the row of four shapes, and then needs one for each of the two that are left."""
    rows = [[0, 1, 2, 3], [0, 1, 4], [2, 3, 5]]
    times = np.array([[1.0 if j in row else 9.0 for j in range(6)] for row in rows])
    assert cover(times, 0.05).rows == (1, 2)
    found = cover(times, 0.05, nodes=0)
    assert found.rows == (0, 1, 2) and not found.exact


def test_among_small_sets_a_fast_one():
    times = [[1.04, 1.04, 1.0], [1.0, 1.03, 1.02], [1.01, 1.0, 3.0]]
    assert cover(times, 0.05).rows == (1,)
    assert cover(times, 0.05, weights=[0, 0, 1]).rows == (0,)


def test_a_shape_without_a_time():
    for times in ([[1.0, NO]], [[1.0, float("nan")]], [[]]):
        with pytest.raises(tir.DeclarationError) as caught:
            cover(times, 0.05)
        assert caught.value.code == "argument.value"


SHAPES = [
    dict(c=c, h=h, tb=tb, act=act)
    for c, h, tb, act in [(3, 224, False, None), (64, 56, False, "relu"), (64, 56, True, "relu"), (512, 7, True, None)]
]
KERNELS = [
    DispatchKernel("a", {"tile": (4, 8)}),
    DispatchKernel("b", {"tile": [16], "mode": "it's"}),
    DispatchKernel("a", {"tile": None}),
]
TIMES = np.array([[1.0, 2.0, 2.0, NO], [3.0, 1.0, 1.5, 2.0], [NO, 1.04, 1.0, 1.0]])


def dispatch(times=TIMES, shapes=SHAPES, regret=0.05):
    return Dispatch.of(KERNELS[: len(times)], shapes, times, regret)


@settings(max_examples=60, deadline=None)
@given(matrices(most=(3, 6)), st.data())
def test_table_tree_and_python_agree(times, data):
    """Tuned shapes get their fastest kernel, by the tree one within the regret; the emitted function says the same."""
    columns = times.shape[1]
    shapes = [dict(n=n, m=data.draw(st.sampled_from([0, 1, 5, 40]))) for n in range(columns)]
    d = dispatch(times, shapes)
    names = {}
    exec(python_text(d), names)
    for j, shape in enumerate(shapes):
        best = times[:, j].min()
        assert times[d.index(**shape), j] == best
        assert times[follow(d.tree, shape), j] <= best * 1.05 + 1e-9
        assert names["choose"](**shape) == {"template": d.choose(**shape).template, "config": d.choose(**shape).config}
    other = dict(n=columns + 3, m=2)
    assert names["choose"](**other) == names["KERNELS"][d.index(**other)] == names["KERNELS"][follow(d.tree, other)]


def test_words_and_switches():
    d = dispatch()
    assert d.asked == ("c", "h", "tb", "act") and d.fixed == {}
    assert [d.index(**s) for s in SHAPES] == [0, 1, 2, 2]
    few = dispatch(TIMES[:, 1:3], SHAPES[1:3])
    assert few.asked == ("c", "h", "tb") and few.fixed == {"act": "relu"}
    assert few.tree == Leaf(2)  # within 5 % on both
    strict = dispatch(TIMES[:, 1:3], SHAPES[1:3], regret=0.0)
    assert strict.tree == Split("tb", False, Leaf(1), Leaf(2))
    assert strict.index(c=1, h=1, tb=True) == 2 and strict.index(c=1, h=1, tb=False, act="relu") == 1
    for wrong in (dict(c=1, h=1), dict(c=1, h=1, tb=True, act=None), dict(c=1, h=1, tb=True, x=5)):
        with pytest.raises(tir.DeclarationError) as caught:
            strict.choose(**wrong)
        assert caught.value.code == "shapes.parameters"
    names = {}
    exec(python_text(strict, ['"""', "\\", "a\nb"], ["note\nimport os"]), names)
    assert names["choose"](1, 1, True) == {"template": "a", "config": {"tile": None}}
    with pytest.raises(ValueError, match="act='relu'"):
        names["choose"](1, 1, True, act=None)
    assert json.loads(json.dumps(tree_json(strict.tree))) == {
        "if": ["tb", "==", False], "then": {"kernel": 1}, "else": {"kernel": 2}
    }  # fmt: skip


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan"), NO])
def test_what_has_no_time_is_chosen_nowhere(time):
    d = dispatch([[time, 2.0], [3.0, time]], SHAPES[:2])
    assert [d.index(**s) for s in SHAPES[:2]] == [follow(d.tree, s) for s in SHAPES[:2]] == [1, 0]


def test_words_that_no_shape_has():
    """Shapes differ in a word, and another one is asked about: the tree knows nothing of it."""
    d = dispatch()
    assert d.words == {"act": (None, "relu")}
    unknown = {**SHAPES[0], "act": "gelu"}
    names = {}
    exec(python_text(d), names)
    with pytest.raises(ValueError, match="act in \\(None, 'relu'\\)"):
        names["choose"](**unknown)
    with pytest.raises(tir.DeclarationError, match="not for 'gelu'"):
        d.choose(**unknown)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_c_says_the_same(tmp_path):
    shapes = [{"int": s["c"], "h": s["h"] + 0.5, "tb": s["tb"], "act": s["act"]} for s in SHAPES]
    shapes += [{"int": 1, "h": 0.5, "tb": False, "act": 'a"\\?é'}]
    times = np.concatenate([TIMES, [[NO], [NO], [1.0]]], axis=1)
    d = dispatch(times, shapes, regret=0.0)
    text = c_text(d, head=["*/ int main;"])
    (tmp_path / "choose.c").write_text(text)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC", "-O0"]
    subprocess.run(["cc", *flags, "-o", "choose.so", "choose.c"], cwd=tmp_path, check=True)
    choose = ctypes.CDLL(str(tmp_path / "choose.so")).tensorir_choose
    choose.argtypes = [ctypes.c_longlong, ctypes.c_double, ctypes.c_longlong, ctypes.c_char_p]
    for s in [*shapes, *({**s, "h": s["h"] * 2} for s in shapes), *({**s, "int": 9} for s in shapes)]:
        act = None if s["act"] is None else s["act"].encode()
        assert choose(s["int"], s["h"], s["tb"], act) == d.index(**s)
    assert choose(3, 224.5, 0, b"gelu") == -1


@pytest.mark.parametrize(
    "shapes",
    [
        [{"n": 1}, {"m": 1}],
        [{"n": 1}, {"n": "x"}],
        [{"n": 1}, {"n": True}],
        [{"n": (1, 2)}],
        [{"a b": 1}],
        [{"class": 1}],
        [{"KERNELS": 1}],
        [{"n": float("nan")}],
    ],
)
def test_parameters_that_cannot_be_asked_about(shapes):
    with pytest.raises(tir.DeclarationError) as caught:
        Dispatch.of(KERNELS[:1], shapes, [[1.0] * len(shapes)], 0.05)
    assert caught.value.code == "shapes.parameters"


def test_what_a_title_leaves_out():
    assert aligned([{"m": 1, "prepack": True}, {"m": 2, "precision": "tf32"}]) == [
        {"m": 1, "prepack": True, "precision": None}, {"m": 2, "prepack": False, "precision": "tf32"}
    ]  # fmt: skip


@pytest.mark.parametrize("values", [(0.0, 5e-324, 0.5), (1.0, 1e300, 1.7e308), (1.0, math.nextafter(1.0, 2)), (3, 4)])
def test_neighbours_are_told_apart(values):
    times = 2 - np.eye(len(values))
    tree = grow([{"x": x} for x in values], times, 0.05)
    assert [follow(tree, {"x": x}) for x in values] == list(range(len(values)))


def test_equal_shapes_end_the_tree():
    assert grow([{"n": 1}, {"n": 1}], np.array([[1.0, 9.0], [2.0, 1.0]]), 0.05) == Leaf(1)


class TestGains:
    def test_hope_fades_and_trends_count(self):
        fresh, tried = expected_gain(1, [1.0], 1), expected_gain(1, [1.0] * 20, 1)
        improving = expected_gain(1, [2.0 * 0.9**n for n in range(20)], 1)
        assert fresh > tried > 0 and improving > tried

    def test_weight_time_and_cost(self):
        base = expected_gain(1, [1.0, 1.0], 1)
        assert expected_gain(3, [1.0, 1.0], 1) == pytest.approx(3 * base)
        assert expected_gain(1, [3.0, 3.0], 1) == pytest.approx(3 * base)
        assert expected_gain(1, [1.0, 1.0], 4) == pytest.approx(base / 4)
        assert expected_gain(0, [1.0], 1) == 0

    def test_nothing_valid_yet(self):
        assert expected_gain(1, [NO], 1, typical_s=1.0) > expected_gain(1, [1.0], 1)
        assert expected_gain(1, [NO, NO, 1.0], 1) < NO


class Told:
    def __init__(self):
        self.told, self.counts = [], {"initial": 3}

    def ask(self, n=1):
        return [7] * n

    def tell(self, row, seconds):
        self.told.append((row, seconds))


def test_a_kept_strategy_hears_everything_once():
    made = []
    kept = Kept(lambda: made.append(Told()) or made[0])
    kept.tell(1, 0.5)
    kept.tell(2, None)
    assert not made and getattr(kept, "counts", None) is None
    assert kept.ask(2) == [7, 7] and made[0].told == [(1, 0.5), (2, None)] and kept.counts == {"initial": 3}
    for row, seconds in ((1, 0.5), (2, None), (2, 0.25), (7, 1.0)):
        kept.tell(row, seconds)
    assert made[0].told[2:] == [(2, 0.25), (7, 1.0)]


def test_given_rows():
    rows = Given([4, 9, 2])
    rows.tell(9, 1.0)
    assert rows.ask() == [4] and rows.ask(5) == [2] and rows.ask() == []
