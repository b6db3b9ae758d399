"""Extents that are apart: kernels that take one dim for another are seen, in indices, guards, grids and arguments."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

import tensorir as tir
from tensorir.check import equivalence
from tensorir.check.different import ascending, independent, kept_apart, reaching, values_apart
from tensorir.check.equivalence import awkward_shapes, axes_of
from tensorir.check.resize import dim_values, resize
from tensorir.ir.build import const
from tensorir.ir.structure import among, same
from tensorir.ir.tree import If, Kind, Load, Store
from tensorir.ir.visit import find, replace, substitute
from tensorir.lower.pipeline import lower


def product(low=1, high=64, tile=4, target="cuda"):
    n, m = (tir.dim(name, low=low, high=high) for name in "nm")
    A, B, k = tir.placeholder((n, 6), name="A"), tir.placeholder((6, m), name="B"), tir.reduce_axis(6, name="k")
    C = tir.compute((n, m), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = tir.Schedule(C, target)
    for axis, at in (("C.i", "y"), ("C.j", "x")):
        outer, inner = s.split(axis, [None, tile])
        s.bind(outer, f"block.{at}")
        s.bind(inner, f"thread.{at}")
    s.reorder("C.i.0", "C.j.0", "C.i.1", "C.j.1", "C.k")
    return s, n, m


def swapped(module, n, m):
    """The module with n and m swapped in one place of it after another: what was swapped, and the module."""
    (kernel,) = module.kernels
    both = {n: m, m: n}
    for kind in (If, Load, Store):
        for x in dict.fromkeys(find(kernel.body, kind)):
            parts = {If: lambda x: x.replace(cond=substitute(x.cond, both)),
                     Load: lambda x: x.replace(index=tuple(substitute(i, both) for i in x.index)),
                     Store: lambda x: x.replace(index=tuple(substitute(i, both) for i in x.index))}  # fmt: skip
            other = parts[kind](x)
            if not same(other, x):
                body = replace(kernel.body, {x: other})
                yield kind.__name__, dataclasses.replace(module, kernels=(dataclasses.replace(kernel, body=body),))
    for a, axis in enumerate(kernel.axes):
        other = axis.replace(extent=substitute(axis.extent, both))
        if not same(other, axis):
            axes = (*kernel.axes[:a], other, *kernel.axes[a + 1 :])
            yield "grid", dataclasses.replace(module, kernels=(dataclasses.replace(kernel, axes=axes),))


@pytest.mark.parametrize(("low", "high"), [(1, 64), (16, 4096), (1, 9), (3, 8)])
def test_one_dim_for_another_is_seen_wherever_it_is_taken(low, high, monkeypatch):
    s, n, m = product(low, high)
    assert s.check()
    faults = list(swapped(lower(s.program, s.target), n, m))
    assert {kind for kind, _ in faults} >= {"If", "Load", "Store", "grid"}
    for kind, wrong in faults:
        monkeypatch.setattr(equivalence, "lower", lambda *_, wrong=wrong: wrong)
        try:
            seen = not s.check()
        except IndexError:  # of an access that lowering had proved in range
            seen = True
        assert seen, f"{kind} with the other dim is not seen"


def test_arguments_of_a_launch_and_a_grid_that_are_swapped_are_seen_in_text(monkeypatch):
    s, *_ = product(16, 4096)
    assert s.check("emulate")
    right = tir.Schedule.emitted

    def args(k):
        other = {"n": "m", "m": "n"}
        return dataclasses.replace(k, args=tuple(other.get(a, a) for a in k.args))

    def grid(k):
        return dataclasses.replace(k, grid=(k.grid[1], k.grid[0], *k.grid[2:]))

    for fault in (args, grid):

        def wrong(*given, fault=fault, **more):
            source = right(*given, **more)
            return dataclasses.replace(source, kernels=tuple(map(fault, source.kernels)))

        monkeypatch.setattr(tir.Schedule, "emitted", wrong)
        assert not s.check("emulate"), fault.__name__


def test_edited_text_that_takes_one_dim_for_another_is_seen_in_either_order():
    s, *_ = product(16, 4096)
    text = s.source()
    assert s.with_source(text).check("emulate")
    guards = [line for line in text.splitlines() if "if (" in line and (" < n" in line or " < m" in line)]
    assert guards
    for old, new in ((" < n", " < m"), (" < m", " < n")):
        assert not s.with_source(text.replace(old, new)).check("emulate"), f"{old} as {new}"


@pytest.mark.parametrize("low", [1, 16])
def test_dims_have_other_values_in_both_orders_and_the_same_at_times(low):
    s, n, m = product(low, 4096)
    seen = [dim_values(s.began_with, w) for w in awkward_shapes(s)]
    assert {np.sign(x[n] - x[m]) for x in seen} == {-1, 0, 1}
    assert {np.sign(x[n] - x[m]) for x in seen[:3]} >= {-1, 1}, "among the few that are run as text"
    tiles = [(-(-x[n] // 4), -(-x[m] // 4)) for x in seen]
    assert any(a < b for a, b in tiles) and any(a > b for a, b in tiles)


def test_constant_extents_have_other_values_in_both_orders():
    A, B, k = tir.placeholder((64, 64), name="A"), tir.placeholder((64, 64), name="B"), tir.reduce_axis(64, name="k")
    C = tir.compute((64, 64), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = tir.Schedule(C)
    i, j = (axes_of((C,))[f"C.{x}"][0] for x in "ij")
    assert {np.sign(w[i] - w[j]) for w in awkward_shapes(s)[:3]} >= {-1, 1}
    assert len(s.check().shapes) == 5


def test_many_axes_are_apart_in_pairs_and_little_work():
    """Nine extents that are all different are 3.6 million iterations."""
    X, W = tir.placeholder((9, 9, 9, 9), name="X"), tir.placeholder((9,) * 5, name="W")
    sums = [tir.reduce_axis(4, name=name) for name in "uvwx"]
    u, v, w, x = sums
    cell = lambda a, b, c, d, e: tir.sum(X[a + u, b + v, c + w, x] * W[u, v, w, d, e], axis=sums)  # noqa: E731
    s = tir.Schedule(tir.compute((5,) * 5, cell, name="Y"))
    found = [{v.name: n for v, n in x.items()} for x in awkward_shapes(s)]
    assert all(
        math.prod(x.values()) <= equivalence.WORK_OF_DISTINCT_EXTENTS * equivalence.MOST_ITERATIONS for x in found
    )
    for kind in ("abcde", "uvwx"):
        for one, other in itertools.combinations(kind, 2):
            assert {np.sign(x[one] - x[other]) for x in found[:3]} >= {-1, 1}, "among the few that are run as text"
    for one, other in itertools.product("abcde", "uvwx"):
        assert any(x[one] != x[other] for x in found[:3]), (one, other)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_of_joined_axes_have_several_blocks(dtype, monkeypatch):
    """Pixels are rows of a matrix: that all blocks do what the first one does is seen, at shapes of little work."""
    s = tir.ops.conv2d(n=4, c=64, k=128, h=28, w=28, pad=1, dtype=dtype).schedule(target="cuda -arch=sm_80")
    assert s.check()
    for level in (Kind.BLOCK_X, Kind.BLOCK_Y):

        def first_alone(*given, level=level):
            m = lower(*given)
            still = [{a.var: const(0, "index") for a in k.axes if a.kind is level} for k in m.kernels]
            return dataclasses.replace(m, kernels=tuple(dataclasses.replace(k, body=substitute(k.body, x))
                                            for k, x in zip(m.kernels, still, strict=True)))  # fmt: skip

        several = any(a.kind is level for k in lower(s.program, s.target).kernels for a in k.axes)
        with monkeypatch.context() as planted:
            planted.setattr(equivalence, "lower", first_alone)
            assert bool(s.check()) != several


@pytest.mark.parametrize("extents", [[4, 28, 28], [64, 7, 7], [1, 1, 300], [300, 1, 1], [80, 9], [400], [3, 5, 7, 11]])
def test_joined_axes_have_a_little_more_than_a_tile(extents):
    for tile in (2, 3, 16, 64, 96, 128, 200):
        found = equivalence._shared(tile, extents, 4)
        assert all(1 <= n <= most for n, most in zip(found, extents, strict=True))
        assert tile < math.prod(found) <= 4 * tile or math.prod(found) == math.prod(extents), (tile, found)


def test_text_that_is_run_has_several_blocks():
    s = tir.ops.conv2d(n=4, c=64, k=64, h=28, w=28, pad=1, layout="NHWC", dtype="bfloat16").schedule(
        template="gpu_tensor", target="cuda -arch=sm_80")  # fmt: skip
    grids = []
    for extents in awkward_shapes(s)[:2]:
        at = tir.Schedule(resize(s.began_with, extents), s.target).replay(s.trace)
        grids.append(at.emitted().kernels[-1].grid)
    assert all(max(axis) > 1 for axis in zip(*grids, strict=True) if axis != (1, 1))
    assert any(x > 1 and z > 1 for x, _, z in grids)


def test_axes_along_the_same_dimension_are_one_group():
    X, k = tir.placeholder((5, 9), name="X"), tir.reduce_axis(9, name="k")
    t = tir.compute((5,), lambda i: tir.sum(X[i, k], axis=k), name="t")
    Y = tir.compute((5, 9), lambda i, j: X[i, j] / t[i], name="Y")
    axes = {name: v for name, (v, _) in axes_of((Y,)).items()}
    groups = independent((Y,), axes.values())
    assert [[name for name, v in axes.items() if among(v, g)] for g in groups] == [["Y.i"], ["t.k", "Y.j"]]
    square, n = tir.placeholder((4, 4), name="S"), tir.dim("n")
    T = tir.compute((n, n), lambda i, j: square[0, 0] + tir.cast(i + j, "float32"), name="T")
    assert len(independent((T,), [v for v, _ in axes_of((T,)).values()])) == 1, "both end with n"


def test_extents_ascend_with_their_tiles():
    s, *_ = product()
    i, j, k = (axes_of(s.began_with)[f"C.{x}"][0] for x in "ijk")
    groups, periods = [[i], [j], [k]], {i: 16, j: 16, k: 1}
    assert ascending(groups, periods, 60_000) == {i: 9, j: 17, k: 18}
    assert ascending(groups, periods, 1000) == {i: 9, j: 17, k: 2}
    assert ascending([[j], [i], [k]], {i: 1, j: 1, k: 1}, 60_000) == {j: 2, i: 3, k: 4}
    assert kept_apart({i: 9, j: 17, k: 17}, {i: 4, j: 4, k: 2}) == {i: 4, j: 5, k: 2}


def test_values_are_near_what_is_wanted_and_in_range():
    a, b, c = tir.dim("a", low=16, high=40), tir.dim("b", low=16, high=40), tir.dim("c", low=16, high=16)
    assert values_apart([a, b, c], {a: 2, b: 3, c: 5}) == {a: 16, b: 17, c: 16}, "c has one value"
    assert values_apart([a, b, c], {a: 70, b: 50, c: 16}) == {a: 39, b: 40, c: 16}
    assert values_apart([a, b], {a: 1, b: 1}) == {a: 16, b: 16}, "wanted alike"
    assert reaching(2 * a + 1, a, 50) == 25 and reaching(2 * a, a, 1000) == 40


def test_an_extent_that_is_a_multiple_of_a_dim_decides_its_value():
    n = tir.dim("n", low=1, high=100)
    X = tir.placeholder((8 * n,), name="X")
    Y = tir.compute((8 * n,), lambda i: X[i] + 1.0, name="Y")
    s = tir.Schedule(Y)
    s.split("Y.i", [None, 32])
    seen = {dim_values(s.began_with, w)[n] for w in awkward_shapes(s)}
    assert seen >= {4, 5, 1} and len(seen) >= 4, seen
