"""Instructions that users declare: one and two dimensions, and declarations that make no sense."""

import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.intrin.intrin import Intrin, meaning, register
from tensorir.ir.build import as_expr
from tensorir.ir.text import text
from tensorir.ir.tree import Buffer, Region, Scope


def test_documented_example(device, table):
    a, b = tir.placeholder((4,), name="a"), tir.placeholder((4,), name="b")
    c = tir.compute((4,), lambda n: tir.sqrt(a[n]) * b[n], name="c")
    register(
        Intrin(
            name="my.sqrt-mul.f32x4",
            semantics=meaning(c),
            emit={"opencl": "vstore4(sqrt(vload4(0, {a})) * vload4(0, {b}), 0, {c});"},
            source="OpenCL C 3.0, 6.15.2 and 6.15.7",
        )
    )
    x, y = tir.placeholder((3, 8), name="X"), tir.placeholder((3, 8), name="Y")
    z = tir.compute((3, 8), lambda i, j: y[i, j] * tir.sqrt(x[i, j]), name="Z")
    s = tir.Schedule(z)
    _, inner = s[z].split("j", [None, 4])
    s.tensorize(inner, "my.sqrt-mul.f32x4")
    p, q = np.arange(24, dtype="f").reshape(3, 8) ** 2, np.ones((3, 8), "f")
    assert np.array_equal(s.build(device)(p, q), np.sqrt(p))
    assert s.check()


OUTER = """for (int m = 0; m < 4; ++m)
  for (int n = 0; n < 2; ++n) ({c})[m * {c_stride} + n] += ({a})[m] * ({b})[n];"""


def outer_product():
    a, b = tir.placeholder((4,), name="a"), tir.placeholder((2,), name="b")
    c = tir.compute((4, 2), lambda m, n: a[m] * b[n], name="c")
    return Intrin("my.outer", meaning(c, accumulate=True), {"opencl": OUTER}, "none")


@pytest.mark.parametrize("order", [("i.1", "j.1"), ("j.1", "i.1")])
def test_two_dimensions(device, table, order):
    register(outer_product())
    a, b = tir.placeholder((6, 8), name="A"), tir.placeholder((6, 10), name="B")
    k = tir.reduce_axis(6, name="k")
    c = tir.compute((8, 10), lambda i, j: tir.sum(b[k, j] * a[k, i], axis=k), name="C")
    s = tir.Schedule(c)
    s[c].split("i", [None, 4])
    s[c].split("j", [None, 2])
    s[c].reorder("i.0", "j.0", "k", *order)
    s.tensorize(f"C.{order[0]}", "my.outer")
    assert "m * 10 + n" in s.source()
    p, q = np.arange(48, dtype="f").reshape(6, 8) % 7, np.arange(60, dtype="f").reshape(6, 10) % 5
    assert np.array_equal(s.build(device)(p, q), p.T @ q)
    assert s.check()


def test_inline_before_and_after_flattening():
    intrin = outer_product()
    a, b, c = (Buffer(n, (as_expr(40), as_expr(8)), "float32", Scope.GLOBAL) for n in "ABC")
    regions = (
        Region(a, (as_expr(5), as_expr(3)), (1, 4)),
        Region(b, (as_expr(6), as_expr(1)), (1, 2)),
        Region(c, (as_expr(7), as_expr(2)), (4, 2)),
    )
    assert "C[c.m + 7, c.n + 2]" in text(intrin.inline(regions)).replace("7 + c.m", "c.m + 7").replace(
        "2 + c.n", "c.n + 2"
    )
    flat = tuple(Region(r.buffer, (r.first[0] * 8 + r.first[1],), r.extents, (8, 1)) for r in regions)
    body = text(intrin.inline(flat))
    assert "C[58 + c.m * 8 + c.n] = C[58 + c.m * 8 + c.n] + A[43 + c.m] * B[49 + c.n]" in body


def test_two_calls_have_different_loops():
    intrin = outer_product()
    r = tuple(Region(b, tuple(as_expr(0) for _ in b.shape), b.dims) for b in intrin.operands)
    assert intrin.inline(r).var is not intrin.inline(r).var


def refused(call, *args, **options):
    with pytest.raises(tir.DeclarationError) as e:
        call(*args, **options)
    return e.value.code


def test_meaning_is_one_computation():
    a = tir.placeholder((4,), name="a")
    b = tir.compute((4,), lambda n: a[n] + 1.0, name="b")
    assert refused(meaning, tir.compute((4,), lambda n: b[n] * 2.0, name="c")) == "intrin.meaning"


def test_meaning_of_a_reduction_accumulates():
    a, k = tir.placeholder((4,), name="a"), tir.reduce_axis(4, name="k")
    c = tir.compute((1,), lambda _: tir.sum(a[k], axis=k), name="c")
    assert refused(meaning, c) == "intrin.meaning"
    assert text(meaning(c, accumulate=True).body) == "for c.k in 4:\n  c[0] += a[c.k]"


def test_operands_have_one_or_two_dimensions():
    a = tir.placeholder((2, 2, 2), name="a")
    c = tir.compute((2, 2, 2), lambda i, j, k: a[i, j, k], name="c")
    assert refused(Intrin, "my.copy", meaning(c), {}, "none") == "intrin.meaning"


@pytest.mark.parametrize("emit", ["{d};", "{a_size};", "{", "{c_vector} = 1;"])
def test_text_is_about_the_operands(emit):
    a = tir.placeholder((3,), name="a")
    c = tir.compute((3,), lambda n: a[n], name="c")
    assert refused(Intrin, "my.copy", meaning(c), {"opencl": emit}, "none") == "intrin.text"


def doubles(of_a="i, k -> i, k |"):
    """mma.m8n8k4 of float64, in which each lane has one element of a and of b."""
    a, b = (tir.placeholder((8, 4), "float64", name=x) for x in "ab")
    q = tir.reduce_axis(4, name="q")
    d = tir.compute((8, 8), lambda i, j: tir.sum(a[i, q] * b[j, q], axis=q), name="d")
    return Intrin(
        "my.mma.f64", meaning(d, accumulate=True), {"cuda": "my_mma({d}, {a}, {b});"}, "PTX ISA", needs=("sm_80",),
        fragments={"a": of_a, "b": "j, k -> j, k |", "d": "i, j -> i, j/2 | j%2"},
        prelude={"cuda": "static __device__ void my_mma(double *d, const double *a, const double *b);"},
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_one_element_a_lane(table):
    register(doubles())
    x, y = tir.placeholder((33, 26), "float64", name="X"), tir.placeholder((50, 26), "float64", name="Y")
    r = tir.reduce_axis(26, name="r")
    z = tir.compute((33, 50), lambda i, j: tir.sum(x[i, r] * y[j, r], axis=r), name="Z")
    s = tir.Schedule(tir.compute((33, 50), lambda i, j: tir.maximum(z[i, j], 0), name="out"), "cuda -arch=sm_80")
    bi, wi, i = s.split("out.i", [None, 2, 16])
    bj, wj, j = s.split("out.j", [None, 2, 24])
    s.reorder(bi, bj, wi, wj, i, j).bind(bi, "block.y").bind(bj, "block.x").bind(wi, "warp.y").bind(wj, "warp.x")
    s.compute_at("Z", wj)
    ko, ki, kk = s.split("Z.r", [None, 3, 4])
    i0, i1 = s.split("Z.i", [None, 8])
    j0, j1 = s.split("Z.j", [None, 8])
    s.reorder(ko, ki, i0, j0, i1, j1, kk)
    for name in "XY":
        s.stage_in(name, at=ko, scope="shared", vector=2)
        s.stage_in(f"{name}_shared", at=ki, scope="warp")
    s.tensorize(i1, "my.mma.f64").pipeline(ko, 3, async_=True)
    arrays = random_arguments(s.outputs, 1)
    got = emulate(s.emitted(), arrays)
    assert not got.problems, got.problems
    assert np.array_equal(got.outputs[0], evaluate(s.outputs, arrays)[0])


@pytest.mark.parametrize("given", ["i, k -> i, k", "i, k -> i, k | 0", "i, k -> i%8, k%4 | i/8"])
def test_fragments_that_are_none(given):
    """What is told is about lanes and registers, at the user's own line."""
    with pytest.raises(tir.DeclarationError) as e:
        doubles(given)
    assert e.value.code == "intrin.fragment"
    assert "lanes" in e.value.problems[0].hint
    assert "test_declare.py" in e.value.where


def test_alignment_is_proved_or_refused(table):
    x = tir.placeholder((4,), name="x")
    y = tir.compute((4,), lambda n: x[n], name="y")
    register(Intrin("my.copy", meaning(y), {"opencl": "*({y_space}float4 *)({y}) = *({x_space}const float4 *)({x});"},
                    "none", align={"x": 16, "y": 16}))  # fmt: skip

    def copied(width):
        a = tir.placeholder((4, width), name="A")
        b = tir.compute((4, 4), lambda i, j: a[i, j], name="B")
        return tir.Schedule(b).tensorize("B.j", "my.copy").source()

    assert "*(__global float4 *)(B + i * 4) = *(__global const float4 *)(A + i * 8);" in copied(8)
    with pytest.raises(tir.LoweringError) as e:
        copied(5)
    assert e.value.code == "codegen.intrinsic-alignment"
    assert "multiples of 4 elements" in str(e.value)
