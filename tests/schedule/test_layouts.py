"""Copies and intermediates in any layout compute the same, in the interpreter and on the device."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.ir.build import const
from tensorir.ir.layout import cells, recoverable, scattered
from tensorir.ir.tree import Buffer, Layout, Load, Ramp, Scope, Store
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower
from tensorir.schedule.primitives.buffers import layout_of

pytestmark = pytest.mark.usefixtures("unoptimised")


@st.composite
def index_maps(draw, rank):
    """The text of a layout: each dimension whole, in blocks or in blocks of blocks, the pieces in any order; some of
    them may be xored onto another.
    """
    names, pieces = [f"x{d}" for d in range(rank)], []
    for name in names:
        n, m = draw(st.sampled_from([1, 1, 2, 3, 4, 8])), draw(st.sampled_from([1, 1, 2, 3]))
        pieces += [f"{name}/{n * m}"] if n * m > 1 else [name]
        pieces += [f"({name}/{n})%{m}" if n > 1 else f"{name}%{m}"] if m > 1 else []
        pieces += [f"{name}%{n}"] if n > 1 else []
    pieces = draw(st.permutations(pieces))
    if len(pieces) > 1 and draw(st.booleans()):
        onto, *others = draw(st.permutations(range(len(pieces))))
        bits = [f"({pieces[n]})%2" for n in others if not pieces[n].endswith("%3")]
        for bit in draw(st.lists(st.sampled_from(bits), max_size=2)) if bits else []:
            pieces[onto] += f" ^ {bit}*{draw(st.sampled_from([1, 2, 4]))}"
    return f"{', '.join(names)} -> {', '.join(pieces)}"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_index_has_a_cell_of_its_own(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 13), min_size=1, max_size=3)))
    text, pad = data.draw(index_maps(len(shape))), data.draw(st.integers(0, 2))
    b = Buffer("b", tuple(const(n, "index") for n in shape), "float32", Scope.SHARED)
    made, size = cells(b.replace(layout=layout_of(b, text, pad)))
    taken = set()
    for index in itertools.product(*map(range, shape)):
        at = 0
        for cell in made:
            d, divisor, extent = cell.piece
            i = index[d] // divisor % (extent or 1 << 30)
            for f, div, e, scale in cell.folds:
                i ^= index[f] // div % e * scale
            at += i * cell.stride
        assert 0 <= at < size, "inside"
        assert at not in taken, "and nobody else's"
        taken.add(at)
    if "^" in text:
        assert recoverable(layout_of(b, text))


def test_what_cannot_be_told_from_the_cell_is_refused():
    """0 and 3 would share a cell: of i only i%3 stands plain, and i%2 does not follow from it."""
    for text in ("i -> i/3 ^ i%2, i%3", "i -> i/6 ^ i/3%4, i/3%2, i%3", "i -> i%2, i/2 ^ i/2%2"):
        with pytest.raises(tir.ScheduleError) as caught:
            tir.Schedule(computed((12,))).stage_in("X", at="root", scope="global", layout=text)
        assert caught.value.code in ("layout.fold", "layout.not-bijective")


def test_a_tile_along_a_swizzled_dimension_is_not_even():
    names, plain = ("i", "j"), ((0, 1, 0), (1, 1, 0))
    assert scattered(Layout(names, plain), (1, 4)) is None
    assert scattered(Layout(names, plain, folds=((), ((0, 1, 4, 1),))), (1, 4)) == 1, "its elements are permuted"
    assert scattered(Layout(names, plain, folds=((), ((0, 1, 4, 1),))), (4, 1)) == 1
    assert scattered(Layout(names, plain, folds=((), ((0, 1, 4, 1),))), (1, 1)) is None


def test_a_swizzle_is_written_as_it_is_read():
    text = "k, j -> k, j/8 ^ k%8 ^ j/4%2*4, (j/4)%2, j%4"
    s = tir.Schedule(computed((12, 32)))
    s.stage_in("X", at="Y.a", scope="shared", layout=text)
    assert "X_shared as k, j -> k, j/8 ^ k%8 ^ j/4%2*4, j/4%2, j%4" in str(s)
    assert s.check()
    assert "^" in s.source()
    assert tir.replay(s.outputs, s.trace.to_json()).source() == s.source()


def computed(shape):
    """Each element and its neighbour along the diagonal, so that the boxes of tiles overlap and start anywhere."""
    X = tir.placeholder(tuple(n + 1 for n in shape), name="X")
    f = {
        1: lambda a: X[a] * 2 + X[a + 1],
        2: lambda a, b: X[a, b] * 2 + X[a + 1, b + 1],
        3: lambda a, b, c: X[a, b, c] * 2 + X[a + 1, b + 1, c + 1],
    }[len(shape)]
    return tir.compute(shape, f, name="Y")


def wanted(x):
    low, high = tuple(slice(0, -1) for _ in x.shape), tuple(slice(1, None) for _ in x.shape)
    return x[low] * 2 + x[high]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_layout_computes_the_same(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 11), min_size=1, max_size=3)))
    s = tir.Schedule(computed(shape))
    outer, inner = s.split("Y.a", [None, data.draw(st.integers(1, 5))])
    at, scope = data.draw(
        st.sampled_from([("root", "global"), (outer, "shared"), (outer, "register"), (inner, "shared")])
    )
    pad = data.draw(st.integers(0, 2))
    s.stage_in("X", at=at, scope=scope, layout=data.draw(index_maps(len(shape))), pad=pad)
    s.stage_out("Y", at=outer, scope="register", layout=data.draw(index_maps(len(shape))))
    assert s.check()
    assert str(tir.replay(s.outputs, s.trace.to_json())) == str(s)
    if data.draw(st.integers(0, 3)) == 0:
        pytest.importorskip("pyopencl")
        x = np.random.default_rng(0).integers(-9, 9, tuple(n + 1 for n in shape)).astype("float32")
        assert np.array_equal(s.build("opencl")(x), wanted(x))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_layout_of_an_intermediate(data):
    X = tir.placeholder((7, 9), name="X")
    P = tir.compute((7, 9), lambda i, j: X[i, j] * 2, name="P")
    s = tir.Schedule(tir.compute((6, 8), lambda i, j: P[i, j] + P[i + 1, j + 1], name="Q"))
    if data.draw(st.booleans()):
        s.compute_at("P", s.split("Q.j", [None, 3])[0])
        s.set_scope("P", data.draw(st.sampled_from(["shared", "register"])))
    s.layout("P", data.draw(index_maps(2)), pad=data.draw(st.integers(0, 1)))
    assert s.check()
    assert str(tir.replay(s.outputs, s.trace)) == str(s)


def matmul(m, n, k, target="opencl -kind=cpu"):
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    r = tir.reduce_axis(k, name="k")
    return tir.Schedule(tir.compute((m, n), lambda i, j: tir.sum(A[i, r] * B[r, j], axis=r), name="C"), target)


def accesses(s, buffer):
    """The lowered indices of a buffer."""
    found = [n for k in lower(s.program, s.target).kernels for n in find(k.body, (Load, Store))]
    return [n.index[0] for n in found if n.buffer.name == buffer]


@pytest.mark.parametrize("lanes", [[8, 2], [16, 1], [4, 4]])
def test_panels_are_read_by_whole_aligned_vectors(lanes):
    """Where the loops are split by the block, no division is left and every vector is aligned."""
    s = matmul(8, 64, 6)
    jb, jp, j1, j2 = s.split("C.j", [None, 2, lanes[1], lanes[0]])
    s.reorder(jb, jp, "C.i", "C.k", j1, j2)
    s.bind(jb, "block.x")
    s.stage_in("B", at=jb, scope="shared", layout="k, j -> j/16, k, j%16", vector=lanes[0])
    s.stage_out("C", at="C.i", scope="register")
    s.vectorize(j2)
    assert s.check()
    *_, read = accesses(s, "B_shared")
    assert isinstance(read, Ramp)
    assert read.lanes == lanes[0]
    assert "/" not in str(s.source()).split("for (long j_1", 1)[1]
    assert "vload" not in s.source()
    assert f"float{lanes[0]}u" not in s.source()


def test_the_zeros_of_a_packed_copy_spare_its_readers_the_guard():
    s = matmul(7, 50, 9)
    j0, j1 = s.split("C.j", [None, 16])
    i0, i1 = s.split("C.i", [None, 3])
    s.reorder(j0, i0, "C.k", i1, j1)
    s.stage_in("B", layout="k, j -> j/16, k, j%16", scope="global")
    s.stage_in("A", layout="i, k -> i/3, k, i%3", scope="global")
    s.stage_out("C", at=i0, scope="register")
    s.unroll(i1).vectorize(j1)
    assert s.check()
    hot = s.source().split("for (long k", 1)[1].split("for (long out", 1)[0]
    assert "if" not in hot
    assert "min(" not in hot
    assert "float16" in hot


def test_blocks_start_where_the_box_starts():
    """A tile of 3 columns in blocks of 4: the first of each tile is the first of its block."""
    X = tir.placeholder((4, 13), name="X")
    s = tir.Schedule(tir.compute((4, 12), lambda i, j: X[i, j] + X[i, j + 1], name="Y"))
    outer, _ = s.split("Y.j", [None, 3])
    s.stage_in("X", at=outer, scope="shared", layout="i, j -> j/4, i, j%4")
    assert s.check()
    assert "__local float X_shared[4]" in s.source()
    assert "X_shared[ax1]" in s.source()


def test_an_index_that_falls_is_divided_as_c_does():
    X = tir.placeholder((9, 20), name="X")
    r = tir.reduce_axis(3, name="r")
    s = tir.Schedule(tir.compute((9, 18), lambda i, j: tir.sum(X[8 - i, j + 2 - r], axis=r), name="Y"))
    s.stage_in(X, scope="global", layout="i, j -> i/4, j/3, i%4, j%3")
    assert s.check()
    pytest.importorskip("pyopencl")
    x = np.random.default_rng(1).integers(-9, 9, (9, 20)).astype("float32")
    assert np.array_equal(s.build("opencl")(x), sum(x[::-1, 2 - n : 20 - n] for n in range(3)))


def test_rows_gathered_from_blocks():
    X, rows = tir.placeholder((9, 20), name="X"), tir.placeholder((12,), "int32", name="rows")
    s = tir.Schedule(tir.compute((12, 20), lambda i, j: X[rows[i], j], name="Y"))
    s.stage_in(X, scope="global", layout="i, j -> i/4, j/8, i%4, j%8")
    assert s.check()
    pytest.importorskip("pyopencl")
    x, at = np.arange(180, dtype="float32").reshape(9, 20), np.array([8, 0, 3, 3, 4, 7, 1, 2, 5, 6, 0, 8], "int32")
    assert np.array_equal(s.build("opencl")(x, at), x[at])


def test_columns_apart_by_their_stride():
    """What a strided convolution reads together lies together: every second column, then the others."""
    X = tir.placeholder((3, 4, 33), name="X")
    s = tir.Schedule(tir.compute((3, 4, 16), lambda c, h, w: X[c, h, 2 * w] + X[c, h, 2 * w + 1], name="Y"))
    s.stage_in(X, at="Y.c", scope="shared", layout="c, h, w -> c, h, w%2, w/2")
    _, lanes = s.split("Y.w", [None, 8])
    s.vectorize(lanes)
    assert s.check()
    reads = [i for i in accesses(s, "X_shared") if isinstance(i, Ramp)]
    assert [i.lanes for i in reads] == [8, 8]


def test_the_trace_keeps_the_text():
    s = matmul(8, 64, 6)
    s.stage_in("B", scope="global", layout="k, j -> j/16, k, j%16")
    s.layout("B_global", "k, j->j/8,k,j%8")
    assert str(s.trace).splitlines()[1] == "s.layout('B_global', 'k, j->j/8,k,j%8')"
    assert "  B_global as k, j -> j/8, k, j%8" in s.tree().splitlines()
    s.layout("B_global")
    assert "B_global as" not in s.tree()
