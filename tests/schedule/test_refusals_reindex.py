"""What reindex refuses."""

import pytest
from refusal_cases import Refusals, assert_refused, plain, relu, triangular

import tensorir as tir

REFUSALS = Refusals()
once = REFUSALS.once


def exponentials():
    A, k = tir.placeholder((8, 12), name="A"), tir.reduce_axis(12, name="k")
    return tir.Schedule(tir.compute((8,), lambda i: tir.sum(tir.exp(A[i, k]), axis=k), name="C"))


def twice():
    A, k = tir.placeholder((8, 12), name="A"), tir.reduce_axis(11, name="k")
    return tir.Schedule(tir.compute((8,), lambda i: tir.sum(A[i, k] * A[i, k + 1], axis=k), name="C"))


for text, key in (
    ("i, j", "no ->"), ("i, i -> t = i", "twice"), ("i | j | k -> t = i", "second |"),
    ("i, -> t = i, t = i", "made twice"),
    ("i -> 2i", "no new axis"), ("i -> t = q", "none of i"), ("i -> t = i*2", "no part of i"),
    ("2 -> t = i", "no name"), ("i -> t = i%6/4, u = i", "does not divide"), ("i -> t = ()", "none of i"),
):  # fmt: skip
    once("reindex.syntax", key, lambda s, text=text: s.reindex("C", text))
once("reindex.not-bijective", "j = 0 and j = 1 would be one", lambda s: s.reindex("C", "i, j -> t = i"))
once("reindex.not-bijective", "i = 0 and i = 4 would be one", lambda s: s.reindex("C", "i -> t = i%4"))
once("reindex.not-bijective", "i = 0 and i = 1 would be one", lambda s: s.reindex("C", "i -> t = i/4, u = i/8"))
once("reindex.not-bijective", "no i has i, i = 0, 1", lambda s: s.reindex("C", "i -> t = (i, i)"))
once("reindex.not-bijective", "no i has i/4, i%8 = 0, 4", lambda s: s.reindex("C", "i -> a = i/4, b = i%8"))
once("reindex.axes", "C.k drives a reduce axis", lambda s: s.reindex("C", "i, k -> t = (i, k)"))
once("reindex.axes", "C.j drives a spatial axis", lambda s: s.reindex("C", "i | j -> i = i, j = j"))
once("reindex.axes", "one loop cannot do both", lambda s: s.reindex("C", "i | k -> t = (i, k)"))
once("reindex.nest", "not in one perfect nest", lambda s: s.reindex("D", "i, j -> t = (i, j)"), relu,
     lambda s: s.compute_at("C", "D.i"))  # fmt: skip
once(
    "reindex.serial", "bound", lambda s: s.reindex("C", "i, j -> t = (i, j)"), before=lambda s: s.bind("C.i", "block.x")
)
once("reindex.symbolic-extent", "symbolic extent", lambda s: s.reindex("C", "i, j -> t = (i, j)"), triangular)
once("reindex.names", "C.k is taken", lambda s: s.reindex("C", "i, j -> k = (i, j)"))
once("reindex.pad", "{'u': 4}: u is no axis", lambda s: s.reindex("C", "i, j -> t = (i, j)", pad={"u": 4}))
once("argument.value", "pad", lambda s: s.reindex("C", "i, j -> t = (i, j)", pad={"t": 0}))
once("reindex.pad-identity", "exp(0.0) with the zeros",
     lambda s: s.reindex("C", "i | k -> i = i, t = k", pad={"t": 8}, reads={"A": "i, t"}), exponentials)  # fmt: skip
once("reindex.reads", "C.k = 0 and C.k = 1", lambda s: s.reindex("C", "i, j -> t = (i, j)", reads={"A": "t"}))
once("reindex.reads", "does not read C", lambda s: s.reindex("C", "i, j -> t = (i, j)", reads={"C": "t"}))
once(
    "reindex.reads",
    "does not read A[i, i], but ",
    lambda s: s.reindex("C", "i | k -> i, k", reads={"A[i, i]": "i, k"}),
    twice,
)
once("reindex.syntax", "'i' is none of t", lambda s: s.reindex("C", "i, j -> t = (i, j)", reads={"A": "i"}))
once("reindex.reads", "several places", lambda s: s.reindex("C", "i | k -> i = i, t = k", reads={"A": "i, t"}), twice)
once("reindex.reads", "C.i.0 is a part of an axis", before=lambda s: s.split("C.i", [None, 4]),
     act=lambda s: s.reindex("C", "i.0, i.1 | k -> t = (i.0, i.1), k = k", reads={"A": "t, k"}))  # fmt: skip
once("reindex.dtype", "reads A[i, k] as float32, and not converted to float64",
     lambda s: s.reindex("C", "i, j | k -> i, j, k", reads={"A": "i, k"}, dtype="float64"), plain)  # fmt: skip
once("reindex.not-bijective", "'ii = i%4, k'",
     lambda s: s.reindex("C", "i, j | k -> i, j, k", reads={"A": "ii = i%4, k"}))  # fmt: skip
once("reindex.writes", "one element for each i, j", lambda s: s.reindex("C", "i, j | k -> i, j, k", writes="i"))
once("reindex.writes", "k is not among the axes", lambda s: s.reindex("C", "i, j -> t = (i, j)", writes="t"))
once("reindex.writes", "j is not among", before=lambda s: s.split("C.j", [None, 4]),
     act=lambda s: s.reindex("C", "i, j.0, j.1 | k -> t = (i, j.0, j.1), k", writes="t"))  # fmt: skip
once("reindex.writes", "several stages", lambda s: s.reindex("C", "i, j | k -> i, j, k", writes="i, j"),
     before=lambda s: s.cut("C.i", 4))  # fmt: skip
once(
    "reindex.dtype",
    "P[i, k] is read as float32",
    lambda s: s.reindex("P", "i, r -> i, r", writes="r, i", dtype="float64"),
    relu,
)
once("loop.unknown", "C.q", lambda s: s.reindex("C", "i, q -> t = (i, q)"))
once("tensor.unknown", "Z", lambda s: s.reindex("C", "i, j -> t = (i, j)", reads={"Z": "t"}))
once("partition.lost", "C.i", lambda s: s.reindex("C", "i, j -> t = (i, j)"), before=lambda s: s.partition("C.i", [5]))


@REFUSALS.case("reindex.reads", "made in the nest of C")
def made_near():
    s = relu()
    s.compute_at("P", "C.i")
    yield s
    s.reindex("C", "j | k -> j = j, t = k", reads={"P": "t"})


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)


def test_a_refusal_leaves_no_half_of_a_copy():
    s = plain()
    with pytest.raises(tir.ScheduleError):
        s.reindex("C", "i, j | k -> t = (i, j), k = k", reads={"A": "t, k", "B": "t"})
    assert [x.name for x in s.stages()] == ["C"]
