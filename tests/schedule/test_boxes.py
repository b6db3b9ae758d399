"""The boxes that producers compute for their readers."""

import numpy as np
import pytest

import tensorir as tir

pytestmark = pytest.mark.usefixtures("unoptimised")


def staged(extent, most, tail, blocks=3):
    """A tile of A for each block, of which results are computed in tiles of at most ``most``."""
    A = tir.placeholder((blocks * extent,), name="A")
    B = tir.compute(A.shape, lambda i: A[i] * 2, name="B")
    s = tir.Schedule(B, "opencl")
    block, i = s.split("B.i", [None, extent])
    s.bind(block, "block.x")
    s.split(i, [None, most], tail=tail)
    s.stage_in("A", block, "shared")
    return s


@pytest.mark.parametrize("tail", ["balanced", "peel"])
@pytest.mark.parametrize(("extent", "most"), [(49, 28), (49, 14), (27, 14), (50, 12), (13, 8), (7, 7)])
def test_tiles_of_two_sizes_need_no_more_than_the_loop_that_they_cut(extent, most, tail):
    s = staged(extent, most, tail)
    assert f"__local float A_shared[{extent}]" in s.source()
    assert "if (" not in s.source() and "?" not in s.source()
    assert s.check()
    a = np.arange(3.0 * extent, dtype="float32")
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(a)), a * 2)


def test_guarded_tiles_keep_their_size_so_that_no_reader_needs_a_guard():
    s = staged(49, 14, "guard")
    assert "__local float A_shared[56]" in s.source()
    assert s.check()


def rows_read_beyond_their_end(*tiles, scope="shared"):
    """Rows of 16 that overlap their 14 cells: tiles of Y reach beyond the rows of the block that staged P."""
    X = tir.placeholder((64,), name="X")
    P = tir.compute((64,), lambda j: X[j] * 2, name="P")
    Y = tir.compute((14 * 14 + 2,), lambda i: P[i // 4] + 1, name="Y")
    Z = tir.compute((14, 16), lambda p, q: Y[p * 14 + q], name="Z")
    s = tir.Schedule(Z, "opencl")
    rows, row = s.split("Z.p", [None, 7])
    inner = s.fuse(row, "Z.q")
    s.compute_at("Y", rows)
    s.compute_at("P", rows)
    s.set_scope("P", scope)
    for most in tiles:
        tile, inner = s.split(inner, [None, most])
        s.compute_at("Y", tile)
    return s


@pytest.mark.parametrize("tiles", [(28,), (28, 7), (40, 24, 5)])
@pytest.mark.parametrize("scope", ["shared", "register"])
def test_what_moves_into_a_tile_stays_in_the_box_that_its_inputs_were_staged_for(tiles, scope):
    s = rows_read_beyond_their_end(*tiles, scope=scope)
    assert s.check(shapes=[{"p": 14, "q": 16}])
    assert s.check()
    x = np.arange(64.0, dtype="float32")
    at = np.arange(14)[:, None] * 14 + np.arange(16)
    assert np.array_equal(np.asarray(s.build("opencl:pocl")(x)), x[at // 4] * 2 + 1)


def test_what_moves_into_tiles_that_are_parts_of_its_box_needs_no_condition():
    X = tir.placeholder((64,), name="X")
    P = tir.compute((64,), lambda j: X[j] * 2, name="P")
    Y = tir.compute((64,), lambda i: P[i] + 1, name="Y")
    Z = tir.compute((64,), lambda i: Y[i] * 3, name="Z")
    s = tir.Schedule(Z, "opencl")
    block, i = s.split("Z.i", [None, 16])
    tile, _ = s.split(i, [None, 4])
    s.compute_at("Y", block).compute_at("P", block).set_scope("P", "shared").compute_at("Y", tile)
    assert "if (" not in s.source() and "?" not in s.source()
    assert s.check()


@pytest.mark.parametrize(
    "image",
    [
        dict(c=16, h=14, w=14, k=16, pad=1),
        dict(c=8, h=10, w=10, k=16, pad=1),
        dict(c=6, h=14, w=14, k=8, r=5, s=5, pad=2),
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_default_convolutions_of_small_images_pass_their_check(image, layout):
    s = tir.ops.conv2d(n=1, layout=layout, **image).schedule(target="opencl -registers=32 -vector_bytes=64")
    assert s.check(), s.check()


def gathered(rows=10, value=lambda P, I, i, j: P[I[i], j]):
    """Rows of P that I says, of which P computes as many as there are indices."""
    I, A = tir.placeholder((rows,), "int32", name="I"), tir.placeholder((16, 8), name="A")
    P = tir.compute((16, 8), lambda i, j: A[i, j] * 2, name="P")
    return tir.Schedule(tir.compute((rows, 8), lambda i, j: value(P, I, i, j), name="C"), "opencl")


@pytest.mark.parametrize("scope", ["register", "shared", "global"])
def test_a_producer_in_a_tail_is_placed_by_indices_that_are_there(scope):
    s = gathered()
    s.split("C.i", [None, 4])
    s.compute_at("P", "C.i.1")
    assert "stage P(i=I[C.i.0 * 4 + C.i.1] + P.i, j=P.j) where C.i.0 * 4 + C.i.1 < 10:" in s.tree()
    s.set_scope("P", scope)
    assert s.check(), s.check()


def test_conditions_that_place_a_box_are_on_the_axes_of_its_index():
    s = gathered()
    s.split("C.i", [None, 4])
    j, _ = s.split("C.j", [None, 3])
    s.compute_at("P", j)
    assert "j=P.j + C.j.0 * 3) where C.i.0 * 4 + C.i.1 < 10:" in s.tree().replace("C.j.0 * 3 + P.j", "P.j + C.j.0 * 3")
    assert s.check(), s.check()


def test_a_producer_is_not_placed_by_an_index_that_only_a_condition_lets_be_read():
    s = gathered(value=lambda P, I, i, j: tir.where(i > 0, P[I[i - 1], j], 0.0))
    tree = s.tree()
    with pytest.raises(tir.ScheduleError) as e:
        s.compute_at("P", "C.i")
    assert e.value.code == "compute-at.guard" and "I[C.i - 1]" in str(e.value) and s.tree() == tree
