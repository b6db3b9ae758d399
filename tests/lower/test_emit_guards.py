"""Conditions that lowering leaves out because all that is read exists: only where it does."""

import pytest

import tensorir as tir
from tensorir.lower.boxes import _chain


def test_one_part_of_a_cut_copy_that_is_filled_says_nothing_of_the_others():
    """Columns from 9 on are zeros and written without conditions; of the others, rows from 7 on are not written at all.
    Tiles of sums in columns 4 to 6 read those rows, unless the tiles keep their own condition.
    """
    A = tir.placeholder((3, 5, 7), name="A")
    P = tir.compute((7, 9, 7), lambda h, w, c: A.get(h - 2, w - 2, c, fill=0), name="P")
    r, t = tir.reduce_axis(3, name="r"), tir.reduce_axis(3, name="t")
    Y = tir.compute((5, 7, 19), lambda p, q, k: tir.sum(P[p + r, q + t, k // 3], axis=(r, t)), name="Y")
    Z = tir.compute((5, 7, 19), lambda p, q, k: Y[p, q, k] + 1, name="Z")
    s = tir.Schedule(Z, "opencl")
    channels, k = s.split("Z.k", [None, 16], tail="shift")
    block, rows = s.split("Z.p", [None, 8])
    tile, row = s.split(rows, [None, 2])
    columns, column = s.split("Z.q", [None, 4], tail="balanced")
    s.reorder(block, channels, tile, columns, row, column, k)
    s.compute_at("Y", columns)
    s.set_scope("P", "shared").compute_at("P", channels)
    s.partition("P.w", [2, 9])
    s.vectorize(s.split("P.c", [None, 16])[1])
    assert s.check(shapes=[{"p": 5, "q": 7, "k": 19, "r": 3, "t": 3}])
    assert s.check()


def test_a_default_with_three_results_a_channel_passes_its_check():
    shape = dict(n=3, c=16, h=7, w=7, k=48, r=4, s=3, pad=2, layout="NHWC", dtype="float8_e4m3", groups=16)
    s = tir.ops.conv2d(**shape).schedule(target="opencl -registers=32 -vector_bytes=64")
    assert s.check(), s.check()


@pytest.mark.parametrize("parts", [[], [2], [2, 11], [5, 6, 7]])
def test_the_parts_of_a_cut_copy_fill_it_together(parts):
    """Channels end inside of a vector. What is copied is 0 there, so that sums of it need no condition."""
    A = tir.placeholder((9, 13), name="A")
    P = tir.compute((13, 13), lambda w, c: A.get(w - 2, c, fill=0), name="P")
    t = tir.reduce_axis(3, name="t")
    T = tir.compute((11, 13), lambda q, c: tir.sum(P[q + t, c], axis=t), name="T")
    s = tir.Schedule(tir.compute((11, 13), lambda q, c: T[q, c] * 2, name="Z"), "c")
    several, lanes = s.split("Z.c", [None, 8])
    s.reorder(several, "Z.q", lanes)
    s.compute_at("T", "Z.q").set_scope("P", "shared").compute_at("P", several)
    s.partition("P.w", parts)
    text = s.source()
    sums = text[text.index("float T[8]") :]
    assert sums.count("< 13)") == 1, "only what is written has a condition"
    assert s.check(), s.check()


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([((0, 2), "a"), ((2, 9), "b")], {"a", "b"}),
        ([((5, 9), "b"), ((-1, 6), "a"), ((0, 2), "c")], {"a", "b"}),
        ([((0, 2), "a"), ((3, 9), "b")], set()),
        ([((1, 9), "a")], set()),
        ([((0, 8), "a"), (None, "b")], set()),
    ],
)
def test_intervals_with_a_gap_fill_nothing(row, found):
    assert _chain(row, 9) == found


@pytest.mark.parametrize(("term", "guarded"), [
    (lambda x: x, False), (lambda x: -x, False), (lambda x: ~x, True), (lambda x: tir.cast(~(x > 3), "int32"), True),
    (lambda x: tir.cast(~tir.cast(x, "uint8"), "int32"), True),
    (lambda x: tir.cast(tir.cast(x, "float32"), "int32"), True),  # opaque in the field
])  # fmt: skip
def test_what_is_not_0_of_the_zeros_around_a_copy_is_not_added(term, guarded):
    A, B = tir.placeholder((13, 13), "int32", name="A"), tir.placeholder((13, 13), "int32", name="B")
    k = tir.reduce_axis(13, name="k")
    C = tir.compute((13, 13), lambda i, j: tir.sum(term(A[i, k]) * term(B[k, j]), axis=k), name="C")
    s = tir.Schedule(C, "opencl")
    (io, ii), (jo, ji), (ko, ki) = (s.split(f"C.{v}", [None, 4]) for v in "ijk")
    s.reorder(io, jo, ko, ki, ii, ji)
    s.stage_out("C", at=jo, scope="register")
    for name in "AB":
        s.stage_in(name, at=ko, scope="register")
    assert s.check(shapes=[{}]) and ("k_0 * 4 + k_1 < 13" in s.source().partition("+=")[0][-250:]) == guarded
