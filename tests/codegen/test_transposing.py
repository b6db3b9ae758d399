"""Register tiles written by rows and read by columns: turned in shuffles."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.arith.affine import Arith
from tensorir.codegen.shuffles import TRANSPOSE, across
from tensorir.ir.build import as_expr, binary, const
from tensorir.ir.tree import Buffer, If, Kind, Load, Loop, Pack, Ramp, Scope, Store, Var

pytestmark = pytest.mark.usefixtures("unoptimised")

CPU_LIMITS = "opencl -registers=16 -vector_bytes=32"
CPU, WIDE = "opencl -kind=cpu", "opencl -registers=32 -vector_bytes=64"


def turned(rows, columns, lanes, target, change=lambda v, c: v, n=2, whole=False):
    """``B[j, c] = A[c, j]`` in tiles, filled along j and written along c."""
    A = tir.placeholder((rows, n * columns), name="A")
    v = tir.placeholder((rows,), name="v")
    T = tir.compute((n * columns, rows), lambda j, c: A[c, j], name="T", axes=("j", "c"))
    B = tir.compute((n * columns, rows), lambda j, c: change(T[j, c], v[c]), name="B", axes=("j", "c"))
    s = tir.Schedule(B, target)
    block, j = s.split("B.j", [None, columns])
    several, lane = s.split("B.c", [None, lanes])
    s.reorder(block, several, j, lane)
    s.bind(block, "block.x").set_scope("T", "register").compute_at("T", block if whole else several)
    s.reorder("T.c", "T.j").unroll("T.c").unroll(j).vectorize(lane)
    s.vectorize(s.split("T.j", [None, 8])[1])
    return s


@pytest.mark.parametrize(("target", "lanes"), [(CPU, 8), (WIDE, 8), (WIDE, 16), (CPU, 4)])
@pytest.mark.parametrize("columns", [8, 16])
def test_tiles_are_turned_by_shuffles(target, lanes, columns):
    s = turned(32, columns, lanes, target)
    text = s.source()
    side = min(8, lanes)
    assert text.count(f"  tir_transpose_{side}x{side}(") == lanes // side * columns // side
    assert text.count(TRANSPOSE["opencl"][side]) == 1
    a = np.arange(32.0 * 2 * columns, dtype="float32").reshape(32, -1)
    assert s.check(level="fast")
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(a)), a.T)


def test_columns_that_are_no_whole_square_are_turned_with_others():
    s = turned(32, 6, 8, CPU)
    assert "tir_transpose_4x4(" in s.source()
    a = np.arange(32.0 * 12, dtype="float32").reshape(32, -1)
    assert s.check(level="fast")
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(a)), a.T)


def test_with_what_follows():
    s = turned(16, 8, 16, WIDE, lambda x, b: tir.maximum(x + b, 0))
    assert "tir_transpose_8x8(" in s.source()
    g = np.random.default_rng(0)
    a, v = (g.integers(-9, 9, n).astype("float32") for n in ((16, 16), 16))
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(a, v)), np.maximum(a.T + v, 0))


def test_a_loop_around_it_keeps_it_together():
    s = turned(32, 8, 8, CPU, whole=True)
    assert "tir_transpose_8x8(" in s.source()
    a = np.arange(32.0 * 16, dtype="float32").reshape(32, -1)
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(a)), a.T)


def test_loops_may_have_any_name():
    A = tir.placeholder((8, 64), name="A")
    T = tir.compute((64, 8), lambda j, c: A[c, j], name="T", axes=("j", "c"))
    B = tir.compute((64, 8), lambda j, c: T[j, c], name="B", axes=("j", "c"))
    s = tir.Schedule(B, CPU)
    _block, several, j = s.split("B.j", [None, 2, 8], names=("blk", "T_across", "jj"))
    s.set_scope("T", "register").compute_at("T", several)
    s.reorder("T.c", "T.j").unroll("T.c").unroll(j).vectorize("B.c").vectorize("T.j")
    assert "T_across_1[64]" in s.source()
    a = np.arange(8.0 * 64, dtype="float32").reshape(8, -1)
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(a)), a.T)


R, G = (Buffer(n, (const(256),), "float32", scope) for n, scope in (("R", Scope.REGISTER), ("G", Scope.GLOBAL)))
J = Var("j", "index")


def column(at=lambda r: J + 8 * r, rows=8, extent=8, to=G, kind=Kind.UNROLL):
    """A loop whose iterations store one column of ``R`` each."""
    pack = Pack(tuple(Load(R, (as_expr(at(r)),), "float32") for r in range(rows)), "float32")
    return Loop(J, as_expr(extent), Store(to, (Ramp(J * rows, rows, "index"),), pack), kind)


def guarded(*args, **kwargs):
    """``column`` whose stores stand under a condition."""
    loop = column(*args, **kwargs)
    return loop.replace(body=If(binary("<", J, 5), loop.body))


def test_what_is_a_transposition_and_what_is_not():
    assert across(column(), Arith()) is not None
    assert across(guarded(lambda r: J + 8 * r + 192), Arith()) is not None
    others = {
        "into itself": column(to=R),
        "a variable inside a term": column(lambda r: J + J // 4 * 8 + 8 * r),
        "one row": column(rows=1),
        "three columns": column(extent=3),
        "an unknown number of columns": column(extent=Var("n", "index")),
        "a loop that is not written out": column(kind=Kind.SERIAL),
        "every other column": column(lambda r: J * 2 + 8 * r),
        "rows of nine": column(lambda r: J + 9 * r),
        "not aligned": column(lambda r: J + 8 * r + 1),
        "columns that do not exist": guarded(lambda r: J + 8 * r + 192, extent=16),
    }
    for name, loop in others.items():
        assert across(loop, Arith()) is None, name


def test_other_sizes_and_gpus_are_not():
    assert "tir_transpose" not in turned(32, 3, 8, CPU).source()
    assert "tir_transpose" not in turned(16, 8, 8, "opencl -kind=gpu").source()


@pytest.mark.parametrize(("channels", "pixels"), [(16, 8), (13, 8), (16, 13), (5, 4), (16, 27)])
def test_sums_by_channels_leave_by_pixels(channels, pixels):
    work = tir.ops.conv2d(c=8, h=pixels, w=pixels, k=channels, r=3, s=3, pad=1, prepack=True)
    for target in (CPU_LIMITS, WIDE):
        template = work.templates["cpu_tile_turned"]
        config = {**template.space_for(tir.Target.parse(target)).default, "tile": pixels, "vectors": 1, "rows": 0}
        s = tir.Schedule(work.outputs, target)
        s = template.function(s, config) or s  # some are not worth a trial at so few pixels
        text = s.source()
        assert "tir_transpose_" in text[text.index("y_packed[") :], "and no element of the result is stored alone"
        arrays = work.random_inputs(3)
        got = np.asarray(s.build("opencl:pocl")(*arrays))
        np.testing.assert_allclose(got, work.reference(*arrays), rtol=1e-4, atol=1e-4)
