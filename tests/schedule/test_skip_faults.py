"""Faults planted in the condition under which a tile is run: the exact check sees each and blames skip."""

import functools
import re
import shutil

import online
import pytest
from blaming import checked_and_blamed
from test_skip import triangle

import tensorir as tir
from tensorir.arith.conditions import contrary
from tensorir.ir.build import binary, const
from tensorir.ir.tree import Binary, Var
from tensorir.ir.visit import Rewriter, find
from tensorir.schedule.primitives import skip
from tensorir.schedule.primitives.skip import Masked, Reach


@functools.cache
def attention(variant="window", rows=3):
    return lambda: online.rolled(online.attention(40, 4, online.VARIANTS[variant]), 4, rows).skip("O.j.0")


def wide(n=200, window=22):
    """Of a window that is wider than several tiles, in extents that are not interpreted whole."""
    score = lambda s, b, i, j: tir.where(tir.all_(j <= i, i - j < window), s, -online.INF)  # noqa: E731
    return online.rolled(online.attention(n, 4, score), 4, 4).skip("O.j.0")


def off_by_one(n):
    return binary("<", binary("+", n.a, 1), n.b)


def strict(n):
    return binary("<", n.a, n.b)


def turned(n):
    return n.replace(a=n.b, b=n.a)


def uneven():
    return triangle(tile=4, keys=3)


class Compared(Rewriter):
    """Each comparison of a condition changed."""

    def __init__(self, act):
        self.act = act

    def on_Binary(self, n):
        return self.act(n) if n.op in ("<", "<=") else self.children(n)


def condition(act):
    """What is said of a tile, changed."""

    def plant(monkeypatch):
        right = Reach.of
        monkeypatch.setattr(Reach, "of", lambda self, cond: act(right(self, cond)))

    return plant


def compared(act, left=""):
    """Its comparisons changed, or those that have a loop on the left."""

    def one(n):
        return act(n) if not left or any(v.name == left for v in find(n.a, Var)) else n

    return condition(Compared(one))


def moving(act):
    """The box of a tile taken for another one."""

    def plant(monkeypatch):
        box = lambda moving: {v: act(*r) for v, r in moving.items()}  # noqa: E731
        monkeypatch.setattr(skip, "Reach", lambda arith, moving, legal: Reach(arith, box(moving), legal))

    return plant


def form(act):
    """The least and the largest value of a linear form, changed."""

    def plant(monkeypatch):
        right = Reach._form
        monkeypatch.setattr(Reach, "_form", lambda self, f: act(*right(self, f)))

    return plant


def masks(act):
    """What is known of a term under a mask, changed."""

    def plant(monkeypatch):
        right = Masked._chosen
        monkeypatch.setattr(Masked, "_chosen", lambda self, e: act(e, right(self, e)))

    return plant


def without(name):
    """A proof that finds nothing to refuse."""
    return lambda monkeypatch: monkeypatch.setattr(skip._Tile, name, lambda self, *a, **k: True)


def stored_as_well():
    A, k = tir.placeholder((20, 20), name="A"), tir.reduce_axis(20, name="k")
    D = tir.compute((20,), lambda i: tir.sum(tir.where(k <= i - 4, A[i, k], 0), axis=k), name="D")
    E = tir.compute((20, 20), lambda r, i: A[i, r] + 1, name="E")
    s = tir.Schedule((D, E))
    s.reorder("D.k", "D.i").decompose_reduction("D", "D.k")
    s.fuse_with("D", "E")
    return s.skip("D.k")


def ones():
    return triangle(term=lambda i, j, k: tir.where(k <= i, 2, 1))


FAULTS = {
    "the condition is off by one": (compared(off_by_one), attention()),
    "< in place of <=": (compared(strict), attention()),
    "the first comparison is off by one": (compared(off_by_one, "O.j.0"), attention()),
    "the second comparison is off by one": (compared(off_by_one, "O.i.0"), attention(rows=4)),
    "a wide window is off by one": (compared(off_by_one, "O.i.0"), wide),
    "a wide window is turned": (compared(turned, "O.i.0"), wide),
    "the wrong direction": (compared(turned), attention("causal")),
    "the wrong direction of a window": (compared(turned), attention()),
    "the contrary": (condition(contrary), attention("causal")),
    "none is run": (condition(lambda c: const(False, "bool")), attention("causal")),
    "only tiles that are whole": (form(lambda low, high: (high, low)), attention("causal")),
    "the largest value for the least": (form(lambda low, high: (high, high)), attention("causal")),
    "tiles without their last row": (moving(lambda low, high: (low, max(low, high - 1))), uneven),
    "tiles without their first row": (moving(lambda low, high: (min(low + 1, high), high)), attention()),
    "tiles of one place": (moving(lambda low, high: (low, low)), uneven),
    "keys begin one later": (moving(lambda low, high: (low + (high == 3), high)), attention()),
    "a row of a tile for all": (moving(lambda low, high: (low, low) if high == 2 else (low, high)), attention()),
    "documents end one earlier": (compared(strict), attention("documents")),
    "the mask is not of the identity": (masks(lambda e, known: {**known, 0: e.cond}), ones),
    "the mask is turned": (masks(lambda e, known: {v: contrary(e.cond) for v in known}), triangle),
    "a half of the mask": (
        masks(lambda e, known: {v: c.a if isinstance(c, Binary) and c.op == "or" else c for v, c in known.items()}),
        lambda: triangle(term=lambda i, j, k: tir.where(tir.any_(k < i - 3, k > i), 1, 0)),
    ),
    "another result is stored": (lambda m: m.setattr(skip, "same", lambda a, b: True), stored_as_well),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_seen_and_blamed(fault, monkeypatch):
    plant, make = FAULTS[fault]
    with monkeypatch.context() as m:
        plant(m)
        s = make()
        verdict, step = checked_and_blamed(s)
        assert not verdict, str(s)
        assert verdict.problems[0].code in ("check.not-equal", "memory.unwritten"), str(verdict)
        assert step.primitive == "skip"


def test_tiles_before_a_wide_window_are_skipped_in_the_check():
    assert "O.j=31 " in str(wide().check())  # two tiles, one place, and the window
    assert "O.j=31 " not in str(wide(window=2000).check())  # as far apart as that cannot be interpreted


@pytest.mark.parametrize("make", {id(m): m for _, m in FAULTS.values()}.values())
def test_it_is_right_or_refused_without_a_fault(make):
    try:
        s = make()
    except tir.ScheduleError as e:
        assert e.code.startswith("skip.")
    else:
        assert s.check()


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="needs a C++ compiler")
def test_nans_that_skipped_tiles_alone_would_read():
    """0 times a NaN is declared of values that a mask leaves out, and not read; what is read shows still."""
    assert (found := wide().check("emulate")), found
    assert "O.j=31 " in found.shapes[0]  # tiles are left out on either side; NaNs are among its values
    text = (s := attention()()).source("cuda")
    s = tir.Schedule(s.began_with, "cuda").replay(s.trace)
    assert s.with_source(text).check("emulate")
    for value in (r"(V\[[^;]*\]);", r"\? (S\[[^:]*\]) :"):
        lost = re.sub(value, lambda m: m[0].replace(m[1], f"(isnan({m[1]}) ? 0.0f : {m[1]})"), text)
        verdict = s.with_source(lost).check("emulate")
        assert {p.code for p in verdict.problems} == {"check.wrong-result"} and "NaNs" in verdict.kind
