"""What split, fuse, reorder, tile, bind, vectorize, unroll and annotate refuse."""

import pytest
from refusal_cases import Refusals, assert_refused, elementwise, matmul, ordered, plain, relu, triangular

import tensorir as tir

REFUSALS = Refusals()
once = REFUSALS.once

# --- split -----------------------------------------------------------------------------------------------------------

once("split.factors", "list of ints", lambda s: s.split("C.i", "abc"))
once("split.factors", "list of ints", lambda s: s.split("C.i", [2.5]))
once("split.factors", "list of ints", lambda s: s.split("C.i", []))
once("split.factors", "list of ints", lambda s: s.split("C.i", 4))
once("split.factors", "list of ints", lambda s: s.split("C.i", range(10**30)))
once("split.inferred", "2 None", lambda s: s.split("C.i", [None, None]))
once("split.positive", "0", lambda s: s.split("C.i", [None, 0]))
once("split.positive", "-3", lambda s: s.split("C.i", [None, -3]))
once("split.covers-extent", "4 iterations cannot cover the 16", lambda s: s.split("C.i", [2, 2]))
once("split.divides", "5", lambda s: s.split("C.i", [None, 5], tail="exact"))
once("split.tail", "hope", lambda s: s.split("C.i", [None, 5], tail="hope"))
once("split.tail-factors", "takes [None, n]", lambda s: s.split("C.i", [None, 5, 2], tail="balanced"))
once("split.tail-factors", "takes [None, n]", lambda s: s.split("C.i", [5, None], tail="peel"))
once("split.shift-store", "C would add them twice", lambda s: s.split("C.i", [None, 5], tail="shift"))
once("partition.order", "not ascending", lambda s: s.partition("C.i", [5, 2]))
once("partition.serial", "unrolled", lambda s: s.partition("C.i", [5]), before=lambda s: s.unroll("C.i"))
once("partition.symbolic-extent", "symbolic extent", lambda s: s.partition("C.j", [1]), triangular)
once("split.names", "2 names", lambda s: s.split("C.i", [None, 5], names=["a"]))
once("split.names", "taken", lambda s: s.split("C.i", [None, 5], names=["j", "a"]))
once("split.names", "taken", lambda s: s.split("C.i", [None, 5], names=["a", "a"]))
once("split.serial", "unrolled", lambda s: s.split("C.i", [None, 4]), before=lambda s: s.unroll("C.i"))
once("split.symbolic-extent", "symbolic extent", lambda s: s.split("C.j", [None, 4]), triangular)

# --- fuse, reorder, tile ---------------------------------------------------------------------------------------------

once("fuse.name", "taken", lambda s: s.fuse("C.i", "C.j", name="k"))
once("fuse.count", "two", lambda s: s.fuse("C.i"))
once("fuse.directly-nested", "whole body", lambda s: s.fuse("C.i", "C.k"))
once("fuse.directly-nested", "whole body", lambda s: s.fuse("C.j", "C.i"))
once("fuse.mixed-axes", "reduce and spatial", lambda s: s.fuse("C.j", "C.k"))
once("fuse.serial", "bound to block.x", lambda s: s.fuse("C.i", "C.j"), before=lambda s: s.bind("C.i", "block.x"))
once("cut.symbolic-extent", "C.j has the symbolic extent", lambda s: s.cut("C.j", 4), triangular)
once("fuse.symbolic-extent", "symbolic extent", lambda s: s.fuse("C.i", "C.j"), triangular)
once("reorder.repeats", "C.i is given twice", lambda s: s.reorder("C.i", "C.i"))
once("reorder.perfect-nest", "not below", lambda s: s.reorder("C.i", "D.i"), relu)
once(
    "reorder.perfect-nest",
    "more than one statement",
    lambda s: s.reorder("D.i", "D.j"),
    relu,
    lambda s: s.compute_at("C", "D.i"),
)
once(
    "reorder.ordered",
    "another order",
    lambda s: s.reorder("C.k.1", "C.k.0"),
    ordered,
    lambda s: s.split("C.k", [None, 4]),
)
once(
    "reorder.ordered",
    "ordered axis",
    lambda s: s.reorder("C.k.0", "C.j"),
    before=lambda s: (s.split("C.k", [None, 4]), s.stage_out("C", at="C.k.0")),
)
once("reorder.extent-depends", "C.j", lambda s: s.reorder("C.j", "C.i"), triangular)
once(
    "reorder.vectorized",
    "innermost",
    lambda s: s.reorder("P.j", "P.i"),
    lambda: elementwise(lambda X, i, j: X[i, j])[1],
    lambda s: s.vectorize("P.j"),
)
once("tile.factors", "2 factors", lambda s: s.tile("C.i", "C.j", factors=[4]))
once("split.positive", "0", lambda s: s.tile("C.i", "C.j", factors=[4, 0]))

# --- bind, vectorize, unroll, annotate, parallel ---------------------------------------------------------------------

once("bind.unknown-axis", "blockIdx.w", lambda s: s.bind("C.i", "blockIdx.w"))
once("bind.reduction-has-one-owner", "several", lambda s: s.bind("C.k", "thread.x"))
once("bind.ordered", "ordered axis", lambda s: s.bind("C.k", "thread.x"), ordered)
once("bind.serial", "already", lambda s: s.bind("C.i", "block.y"), before=lambda s: s.bind("C.i", "block.x"))
once(
    "bind.axis-free",
    "block.x already runs",
    lambda s: s.bind("C.j", "block.x"),
    before=lambda s: s.bind("C.i", "block.x"),
)
once(
    "bind.one-extent-per-axis",
    "D.j",
    lambda s: s.bind("C.j.1", "thread.x"),
    relu,
    lambda s: (s.compute_at("C", "D.i"), s.bind("D.j", "thread.x"), s.split("C.j", [2, 4])),
)
once(
    "bind.device-limit",
    "1024",
    lambda s: s.bind("P.i", "thread.x"),
    lambda: tir.Schedule(tir.compute((2048,), lambda i: tir.cast(i, "int32"), name="P"), "cuda"),
)
once(
    "bind.device-limit",
    "65535",
    lambda s: s.bind("P.i", "block.y"),
    lambda: tir.Schedule(tir.compute((70000,), lambda i: tir.cast(i, "int32"), name="P"), "cuda"),
)
once(
    "bind.vthread",
    "bodies of their own",
    lambda s: s.bind("C.i.0", "vthread"),
    before=lambda s: s.split("C.i", [None, 6], tail="peel"),
)
once(
    "bind.vthread",
    "1600 virtual threads",
    lambda s: s.bind("P.j", "vthread"),
    lambda: tir.Schedule(tir.compute((40, 40), lambda i, j: tir.cast(i + j, "int32"), name="P")),
    lambda s: s.bind("P.i", "vthread"),
)
once("bind.vthread", "the length of C.j", lambda s: s.bind("C.i", "vthread"), triangular)
once(
    "bind.vthread",
    "hold tiles together",
    lambda s: s.bind("C.j", "vthread"),
    lambda: plain("cuda"),
    lambda s: s.bind("C.i", "warp.x"),
)
once(
    "bind.vthread",
    "hold tiles together",
    lambda s: s.bind("C.j", "warp.x"),
    lambda: plain("cuda"),
    lambda s: s.bind("C.i", "vthread"),
)
once("bind.symbolic-extent", "symbolic extent", lambda s: s.bind("C.j", "block.x"), triangular)
once("vectorize.innermost", "C.i", lambda s: s.vectorize("C.i"))
once("vectorize.reduction", "reduction axis k", lambda s: s.vectorize("C.k"))
once(
    "vectorize.lanes",
    "9 iterations",
    lambda s: s.vectorize("P.i"),
    lambda: tir.Schedule(tir.compute((9,), lambda i: tir.cast(i, "int32"), name="P")),
)
once(
    "vectorize.serial",
    "unrolled",
    lambda s: s.vectorize("P.j"),
    lambda: elementwise(lambda X, i, j: X[i, j])[1],
    lambda s: s.unroll("P.j"),
)
once(
    "vectorize.symbolic-extent",
    "symbolic extent",
    lambda s: s.vectorize("P.j"),
    lambda: triangular(lambda: elementwise(lambda X, i, j: X[i, j])[1]),
)
once("unroll.size-limit", "1024", lambda s: s.unroll("C.i"), lambda: tir.Schedule(matmul(2000, 2, 2)[2]))
once(
    "unroll.serial",
    "vectorized",
    lambda s: s.unroll("P.j"),
    lambda: elementwise(lambda X, i, j: X[i, j])[1],
    lambda s: s.vectorize("P.j"),
)
once("unroll.symbolic-extent", "symbolic extent", lambda s: s.unroll("C.j"), triangular)
once("annotate.known-key", "speed", lambda s: s.annotate("C.i", "speed", 9))
once("annotate.value", "3", lambda s: s.annotate("C.i", "unroll", 3))
once("annotate.serial", "unrolled", lambda s: s.annotate("C.i", "unroll", 4), before=lambda s: s.unroll("C.i"))
once("parallel.serial", "unrolled", lambda s: s.parallel("C.i"), before=lambda s: s.unroll("C.i"))
once("parallel.serial", "bound to block.x", lambda s: s.parallel("C.i"), before=lambda s: s.parallel("C.i"))
once("parallel.independent", "reduce axis k", lambda s: s.parallel("C.k"))
once("parallel.independent", "ordered axis k", lambda s: s.parallel("C.k"), ordered)
once("parallel.symbolic-extent", "symbolic extent", lambda s: s.parallel("C.j"), triangular)
once(
    "parallel.block-axis",
    "block.x already runs loop C.i.0 of C; block.y already runs loop C.j.0 of C; block.z already runs loop C.i.1 of C",
    lambda s: s.parallel("C.j.1"),
    before=lambda s: (
        s.tile("C.i", "C.j", factors=[4, 4]),
        s.parallel("C.i.0").parallel("C.j.0").parallel("C.i.1"),
    ),
)
once(
    "parallel.block-axis",
    "70000 blocks along block.y exceed the 65535",
    lambda s: s.parallel("P.i"),
    lambda: tir.Schedule(tir.compute((4, 70000), lambda j, i: tir.cast(i, "int32"), name="P"), "cuda"),
    lambda s: s.parallel("P.j"),
)

# --- share_out, register_tile ----------------------------------------------------------------------------------------

once("share-out.axes", "no loops", lambda s: s.share_out(each=4))
once("share-out.within", "none to go to thread.x", lambda s: s.share_out("C.i", within="thread.x"))
once("fuse.directly-nested", "whole body", lambda s: s.share_out("C.i", "C.k", each=4))
once("bind.unknown-axis", "block.w", lambda s: s.share_out("C.i", each=4, to="block.w"))
once("bind.reduction-has-one-owner", "drives the reduction", lambda s: s.share_out("C.k", each=4))
once("split.positive", "0", lambda s: s.share_out("C.i", each=0))
once("register-tile.axes", "no loops", lambda s: s.register_tile(sizes=[4]))
once("register-tile.count", "2 sizes, got 1", lambda s: s.register_tile("C.i", "C.j", sizes=[4]))
once("register-tile.count", "2 tail, got 1", lambda s: s.register_tile("C.i", "C.j", tail=["guard"]))
once("register-tile.lanes", "no whole vectors of 8", lambda s: s.register_tile("C.i", "C.j", sizes=[4, 12], lanes=8))
once("register-tile.tail", "'even'", lambda s: s.register_tile("C.i", sizes=[4], tail="even"))
once("register-tile.terms", "no loop around", lambda s: s.register_tile("D.i", "D.j", terms=2), relu)
once("vectorize.lanes", "3 iterations", lambda s: s.register_tile("C.i", "C.j", sizes=[4, 3], lanes=3))
once("unroll.size-limit", "the limit is", lambda s: s.register_tile("C.i", "C.j", "C.k"))


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)
