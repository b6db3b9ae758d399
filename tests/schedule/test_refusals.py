"""Every refusal: its code, the key part of its message, the user's line, and a schedule left as it was."""

import ast
import re
from pathlib import Path

import pytest

import tensorir as tir
from tensorir.ir.tree import Axis, Iter, Loop, Stage, Store, Var
from tensorir.ir.visit import find, replace
from tensorir.schedule.schedule import Schedule

PACKAGE = Path(__file__).parents[2] / "tensorir"
TESTS = Path(__file__).parents[1]


def matmul(m=16, n=16, k=16):
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    kk = tir.reduce_axis(k, name="k")
    return A, B, tir.compute((m, n), lambda i, j: tir.sum(A[i, kk] * B[kk, j], axis=kk), name="C")


def plain(target="opencl"):
    return tir.Schedule(matmul()[2], target)


def relu(target="opencl"):
    """P = A * 2, C = P B, D = relu(C)."""
    A, B = tir.placeholder((8, 8), name="A"), tir.placeholder((8, 8), name="B")
    k = tir.reduce_axis(8, name="k")
    P = tir.compute((8, 8), lambda i, r: A[i, r] * 2, name="P")
    C = tir.compute((8, 8), lambda i, j: tir.sum(P[i, k] * B[k, j], axis=k), name="C")
    return tir.Schedule(tir.compute((8, 8), lambda i, j: tir.maximum(C[i, j], 0), name="D"), target)


def elementwise(*steps):
    """A chain of 8 x 8 tensors, each from the one before: ``lambda X, i, j: expression``."""
    X = first = tir.placeholder((8, 8), name="X")
    for name, f in zip("PQRS", steps, strict=False):
        X = tir.compute((8, 8), lambda i, j, X=X, f=f: f(X, i, j), name=name)
    return first, tir.Schedule(X)


def ordered():
    """A schedule whose loop C.k is ordered: each iteration needs the one before."""
    s = plain()
    stage = find(s.program, Stage)[0]
    iters = tuple(Iter(it.var, it.extent, Axis.ORDERED if it.axis is Axis.REDUCE else it.axis) for it in stage.iters)
    return changed(s, stage, stage.replace(iters=iters))


def triangular(make=None):
    """A schedule whose second loop runs to i."""
    s = (make or plain)()
    i, j = find(s.program, Loop)[:2]
    return changed(s, j, j.replace(extent=i.var + 1))


def changed(s, old, new):
    s._start(s.program.replace(body=replace(s.program.body, {old: new})))
    return s


def diamond():
    """Z reads X1 and Y1, and Y1 is made after X1."""
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    Q = tir.compute((8,), lambda i: X[i] * 2, name="Q")
    return tir.Schedule(tir.compute((8,), lambda i: P[i] + Q[i], name="Z"))


def _written_by_two():
    s = elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, j], lambda X, i, j: X[i, j])[1]
    first, second = find(s.program, Store)[:2]
    return changed(s, second, second.replace(buffer=first.buffer))


def _store_at(make_index):
    s = elementwise(lambda X, i, j: X[i, j] + 1)[1]
    store = find(s.program, Store)[0]
    return changed(s, store, store.replace(index=make_index(*store.index)))


def _written_backwards():
    return _store_at(lambda i, j: (7 - i, j))


REFUSALS = []


def refusal(code, key):
    """Register a generator: what comes before its ``yield`` is legal, what follows is refused."""

    def add(f):
        REFUSALS.append(pytest.param(code, key, f, id=f"{code} {f.__name__}"))
        return f

    return add


# --- split -----------------------------------------------------------------------------------------------------------


def once(code, key, act, make=plain, before=lambda s: None):
    def f():
        s = make()
        before(s)
        yield s
        act(s)

    f.__name__ = str(key).replace(" ", "-")
    refusal(code, key)(f)


once("split.factors", "list of ints", lambda s: s.split("C.i", "abc"))
once("split.factors", "list of ints", lambda s: s.split("C.i", [2.5]))
once("split.factors", "list of ints", lambda s: s.split("C.i", []))
once("split.factors", "list of ints", lambda s: s.split("C.i", 4))
once("split.inferred", "2 None", lambda s: s.split("C.i", [None, None]))
once("split.positive", "0", lambda s: s.split("C.i", [None, 0]))
once("split.positive", "-3", lambda s: s.split("C.i", [None, -3]))
once("split.covers-extent", "4 iterations cannot cover the 16", lambda s: s.split("C.i", [2, 2]))
once("split.divides", "5", lambda s: s.split("C.i", [None, 5], tail="exact"))
once("split.tail", "hope", lambda s: s.split("C.i", [None, 5], tail="hope"))
once("split.tail-later", "peel", lambda s: s.split("C.i", [None, 5], tail="peel"))
once("split.names", "2 names", lambda s: s.split("C.i", [None, 5], names=["a"]))
once("split.names", "taken", lambda s: s.split("C.i", [None, 5], names=["j", "a"]))
once("split.names", "taken", lambda s: s.split("C.i", [None, 5], names=["a", "a"]))
once("split.serial", "unrolled", lambda s: s.split("C.i", [None, 4]), before=lambda s: s.unroll("C.i"))
once("split.symbolic-extent", "symbolic extent", lambda s: s.split("C.j", [None, 4]), triangular)

# --- fuse, reorder, tile ---------------------------------------------------------------------------------------------

once("fuse.count", "two", lambda s: s.fuse("C.i"))
once("fuse.directly-nested", "whole body", lambda s: s.fuse("C.i", "C.k"))
once("fuse.directly-nested", "whole body", lambda s: s.fuse("C.j", "C.i"))
once("fuse.mixed-axes", "reduce and spatial", lambda s: s.fuse("C.j", "C.k"))
once("fuse.serial", "bound to block.x", lambda s: s.fuse("C.i", "C.j"), before=lambda s: s.bind("C.i", "block.x"))
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
once("reorder.ordered", "ordered axis", lambda s: s.reorder("C.k", "C.j"), ordered)
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
    "bind.shared-per-thread",
    "A_shared",
    lambda s: s.bind("C.i", "thread.x"),
    before=lambda s: s.stage_in("A", "C.j", "shared"),
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
once("parallel.later", "bind", lambda s: s.parallel("C.i"))


# --- compute_at and its relatives ------------------------------------------------------------------------------------

once("compute-at.self", "loop of C itself", lambda s: s.compute_at("C", "C.i"))
once(
    "compute-at.self",
    "D.i",
    lambda s: s.compute_at("C", "D.i"),
    relu,
    lambda s: s.compute_at("C", "D.j"),
)
once("compute-at.output", "output", lambda s: s.compute_at("D", "C.i"), relu)
once("compute-at.not-read", "nothing inside", lambda s: s.compute_at("P", "D.i"), relu)
once(
    "compute-at.scheduled",
    "already (C.i.1)",
    lambda s: s.compute_at("C", "D.i"),
    relu,
    lambda s: s.split("C.i", [2, 4]),
)
once("compute-at.scheduled", "C.i", lambda s: s.compute_at("C", "D.i"), relu, lambda s: s.unroll("C.i"))
once("compute-at.room", "vectorized", lambda s: s.compute_at("C", "D.j"), relu, lambda s: s.vectorize("D.j"))
once(
    "compute-at.nest-shared",
    "other stages",
    lambda s: s.compute_at("C", "D.i"),
    relu,
    lambda s: s.compute_at("P", "C.i"),
)
once(
    "compute-at.several-writers",
    "several stages",
    lambda s: s.compute_at("C", "D.i"),
    relu,
    lambda s: s.decompose_reduction("C", "C.i"),
)
once("reverse-compute-at.self", "itself", lambda s: s.reverse_compute_at("D", "D.i"), relu)
once("reverse-compute-at.not-written", "nothing inside", lambda s: s.reverse_compute_at("D", "P.i"), relu)
once("reverse-compute-at.reduction", "reduces", lambda s: s.reverse_compute_at("C", "P.i"), relu)
once("reverse-compute-at.partial-reduction", "not complete", lambda s: s.reverse_compute_at("D", "C.k"), relu)
once(
    "reverse-compute-at.scheduled",
    "D.i",
    lambda s: s.reverse_compute_at("D", "C.j"),
    relu,
    lambda s: s.split("D.i", [2, 4]),
)
once(
    "reverse-compute-at.room",
    "dealt out",
    lambda s: s.reverse_compute_at("D", "P_shared.ax0"),
    relu,
    lambda s: s.stage_in("P", "C.i", "shared"),
)
once(
    "reverse-compute-at.nest-shared",
    "other stages",
    lambda s: s.reverse_compute_at("Z", "Q.i"),
    diamond,
    lambda s: s.stage_in("P", "Z.i", "register"),
)
once(
    "reverse-compute-at.scattered",
    "whole tile",
    lambda s: s.reverse_compute_at("D", "C.i.1"),
    relu,
    lambda s: (s.split("C.i", [2, 4]), s.reorder("C.i.1", "C.i.0")),
)
once(
    "reverse-compute-at.not-elementwise",
    "computed index",
    lambda s: s.reverse_compute_at("Q", "P.i"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[7 - i, j])[1],
)
once(
    "reverse-compute-at.not-elementwise",
    "several tiles",
    lambda s: s.reverse_compute_at("Q", "P.i"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, j] + X[j, i])[1],
)
once("inline.output", "output", lambda s: s.compute_inline("D"), relu)
once("inline.pure", "reduces", lambda s: s.compute_inline("C"), relu)
once("inline.scheduled", "P.i", lambda s: s.compute_inline("P"), relu, lambda s: s.split("P.i", [2, 4]))
once(
    "inline.nest-shared",
    "other stages",
    lambda s: s.compute_inline("P"),
    relu,
    lambda s: s.stage_in("A", "P.i", "register"),
)
once("inline.several-writers", "several stages", lambda s: s.compute_inline("P"), _written_by_two)
once("reverse-inline.pure", "reduces", lambda s: s.reverse_compute_inline("C"), relu)
once("reverse-inline.producer", "no plain stage", lambda s: s.reverse_compute_inline("D"), relu)
once(
    "reverse-inline.scheduled",
    "Q.i",
    lambda s: s.reverse_compute_inline("Q"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, j])[1],
    lambda s: s.split("Q.i", [2, 4]),
)
once(
    "reverse-inline.elementwise",
    "element by element",
    lambda s: s.reverse_compute_inline("Q"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, 7 - j])[1],
)
once(
    "reverse-inline.nest-shared",
    "other stages",
    lambda s: s.reverse_compute_inline("Q"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, j])[1],
    lambda s: s.stage_in("P", "Q.i", "register"),
)


@refusal("reverse-inline.other-readers", "used elsewhere")
def two_readers():
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    Q = tir.compute((8,), lambda i: P[i] * 2, name="Q")
    s = tir.Schedule((Q, tir.compute((8,), lambda i: P[i] - 1, name="R")))
    yield s
    s.reverse_compute_inline("Q")


@refusal("reverse-inline.elementwise", "only a part")
def smaller_reader():
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    s = tir.Schedule(tir.compute((7,), lambda i: P[i] * 2, name="Q"))
    yield s
    s.reverse_compute_inline("Q")


once("reverse-compute-at.made-later", "Q", lambda s: s.reverse_compute_at("Z", "P.i"), diamond)
once("reverse-inline.made-later", "Q", lambda s: s.reverse_compute_inline("Z"), diamond)


@refusal("reverse-compute-at.whole-axis", "axis j of Q")
def reader_with_an_axis_more():
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    s = tir.Schedule(tir.compute((8, 4), lambda i, j: P[i] * j, name="Q"))
    yield s
    s.reverse_compute_at("Q", "P.i")


def crooked(make=lambda: elementwise(lambda X, i, j: X[i, j] + 1, lambda X, i, j: X[i, j] * 2)[1]):
    """P runs where i + 2 * j < 9: no primitive makes such a tail."""
    s = make()
    stage = find(s.program, Stage)[0]
    return changed(s, stage, stage.replace(guards=(stage.binds[0] + stage.binds[1] * 2 < 9,)))


once("reverse-compute-at.guard", "tail of P", lambda s: s.reverse_compute_at("Q", "P.i"), crooked)
once("stage-out.guard", "tail of P", lambda s: s.stage_out("P", "P.i"), crooked)


@refusal("stage-in.guard", "tail of P")
def copy_of_a_crooked_tail():
    s = elementwise(lambda X, i, j: X[i, j] + 1, lambda X, i, j: X[i, j] * 2)[1]
    s.compute_at("P", "Q.i")
    stage = find(s.program, Stage)[0]
    changed(s, stage, stage.replace(guards=(stage.binds[0] + stage.binds[1] * 3 < 9,)))
    yield s
    s.stage_in("P", "Q.j", "register")


@refusal("compute-at.other-readers", "reads P outside")
def producer_of_two():
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    Q = tir.compute((8,), lambda i: P[i] * 2, name="Q")
    s = tir.Schedule((Q, tir.compute((8,), lambda i: P[i] - 1, name="R")))
    yield s
    s.compute_at("P", "Q.i")


# --- staging ---------------------------------------------------------------------------------------------------------

once("stage-in.not-read", "C is not read", lambda s: s.stage_in("C", "C.k", "shared"))
once("stage-in.root-scope", "shared by all blocks", lambda s: s.stage_in("A", "root", "shared"))
once(
    "stage-in.written",
    "written inside",
    lambda s: s.stage_in("C", "D.i", "register"),
    relu,
    lambda s: s.compute_at("C", "D.i"),
)
once(
    "stage-in.written",
    "nest that reads it",
    lambda s: s.stage_in("C", "root", "global"),
    relu,
    lambda s: s.compute_at("C", "D.i"),
)
once("stage-in.vector", "vector=3", lambda s: s.stage_in("A", "C.k", "shared", vector=3))
once(
    "stage-in.vector",
    "vector=4",
    lambda s: s.stage_in("A", "C.k.0", "shared", vector=4),
    before=lambda s: s.split("C.k", [None, 6]),
)
once(
    "stage-in.room",
    "dealt out",
    lambda s: s.stage_in("A", "A_shared.ax0", "register"),
    before=lambda s: s.stage_in("A", "C.i", "shared"),
)
once("scope.unknown", "warpish", lambda s: s.stage_in("A", "C.k", "warpish"))
once("scope.unknown", "cache", lambda s: s.stage_out("C", "C.i", "cache"))
once("layout.order", "permutation", lambda s: s.stage_in("A", "C.k", "shared", order=[0, 0]))
once("layout.pad", "-1", lambda s: s.stage_in("A", "C.k", "shared", pad=-1))
once("stage-out.encloses", "not a loop around", lambda s: s.stage_out("C", "D.i"), relu)
once("stage-out.partial-reduction", "not complete", lambda s: s.stage_out("C", "C.k"))
once(
    "stage-out.scattered",
    "whole tile",
    lambda s: s.stage_out("C", "C.i.1"),
    before=lambda s: (s.split("C.i", [4, 4]), s.reorder("C.i.1", "C.i.0")),
)
once(
    "stage-out.several-writers",
    "several stages",
    lambda s: s.stage_out("C", "C.i"),
    before=lambda s: s.decompose_reduction("C", "C.i"),
)
once(
    "stage-out.read-before",
    "before the copy",
    lambda s: s.stage_out("C", "D.i", "register") and None,
    relu,
    lambda s: s.compute_at("C", "D.j"),
)
once(
    "stage-out.room",
    "dealt out",
    lambda s: s.stage_out("A_shared", "A_shared.ax0"),
    before=lambda s: s.stage_in("A", "C.i", "shared"),
)


@refusal("stage-out.one-buffer", "writes 2 buffers")
def two_buffers():
    X = tir.placeholder((8,), name="X")
    s = tir.Schedule(tir.compute((8,), lambda i: (X[i], X[i] * 2), name="P"))
    yield s
    s.stage_out("P", "P.i")


once("stage-out.index", "computed index", lambda s: s.stage_out("P", "P.i"), _written_backwards)


# --- buffers ---------------------------------------------------------------------------------------------------------

once("set-scope.own-buffer", "parameter", lambda s: s.set_scope("A", "shared"))
once("layout.own-buffer", "parameter", lambda s: s.layout("C", pad=1))
once("scope.unknown", "moon", lambda s: s.set_scope("P", "moon"), relu)
once("layout.order", "[1, 1]", lambda s: s.layout("P", order=[1, 1]), relu)
once("layout.pad", "1.5", lambda s: s.layout("P", pad=1.5), relu)

# --- reductions ------------------------------------------------------------------------------------------------------

once("decompose.no-reduction", "does not reduce", lambda s: s.decompose_reduction("D", "D.i"), relu)
once("decompose.encloses", "not a loop around", lambda s: s.decompose_reduction("C", "D.i"), relu)
once(
    "decompose.encloses",
    "drives the reduction already",
    lambda s: s.decompose_reduction("C", "C.j"),
    before=lambda s: s.reorder("C.k", "C.j"),
)


@refusal("decompose.repeats", "D.j runs the reduction")
def a_product_for_every_column():
    A, B = tir.placeholder((8, 8), name="A"), tir.placeholder((8, 8), name="B")
    k, n = tir.reduce_axis(8, name="k"), tir.reduce_axis(8, name="l")
    C = tir.compute((8, 8), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = tir.Schedule(tir.compute((8, 8), lambda i, j: tir.sum(C[i, n] * B[n, j], axis=n), name="D"))
    s.compute_at("C", "D.j")
    yield s
    s.decompose_reduction("C", "D.i")


once("rfactor.one-update", "not a single reduction", lambda s: s.rfactor("D", "D.i"), relu)
once("rfactor.reduce-loop", "does not drive", lambda s: s.rfactor("C", "C.i"))
once(
    "rfactor.own-nest",
    "other stages",
    lambda s: s.rfactor("C", "C.k"),
    before=lambda s: s.stage_in("A", "C.k", "register"),
)


@refusal("rfactor.tail", "cannot be said")
def crooked_reduction():
    s = plain()
    stage = find(s.program, Stage)[0]
    changed(s, stage, stage.replace(guards=(stage.binds[2] + Var("q", "index") < 9,)))
    yield s
    s.rfactor("C", "C.k")


# --- who holds a cell ------------------------------------------------------------------------------------------------

once(
    "scope.private",
    "own register copy",
    lambda s: s.bind("A_register.ax1", "thread.x"),
    before=lambda s: s.stage_in("A", "C.j", "register"),
)
once(
    "scope.private",
    "copies C_register for the whole block",
    lambda s: s.stage_in("C_register", "C.out.i", "shared"),
    before=lambda s: (s.bind("C.i", "thread.y"), s.stage_out("C", "C.i")),
)
once(
    "scope.grid-wide",
    "another block",
    lambda s: s.stage_in("A", "C.j", "global"),
    before=lambda s: s.bind("C.j", "block.x"),
)


@refusal("scope.overlap", "same cells")
def halos_of_neighbours():
    X = tir.placeholder((17,), name="X")
    r = tir.reduce_axis(3, name="r")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.max(X[2 * i + r], axis=r), name="Y"))
    s.bind("Y.i", "thread.x")
    s.stage_in("X", "Y.i", "register")
    yield s
    s.set_scope("X_register", "shared")


# --- names and traces ------------------------------------------------------------------------------------------------

once("loop.unknown", "C.q", lambda s: s.split("C.q", [None, 4]))
once(
    "loop.gone",
    "split into C.i.0, C.i.1",
    lambda s: s.bind("C.i", "block.x"),
    before=lambda s: s.split("C.i", [None, 4]),
)
once("loop.ambiguous", "i fits", lambda s: s.split("i", [None, 4]), relu)
once("stage.unknown", "Z", lambda s: s["Z"])
once("stage.gone", "P", lambda s: s["P"], relu, lambda s: s.compute_inline("P"))
once("tensor.unknown", "Z", lambda s: s.stage_in("Z", "C.k", "shared"))
once("tensor.gone", "P", lambda s: s.set_scope("P", "shared"), relu, lambda s: s.compute_inline("P"))
once("argument.type", "an axis by name or handle", lambda s: s.split(3, [None, 4]))
once("argument.type", "an axis by name or handle", lambda s: s["C"].split(3, [None, 4]))
once("argument.type", "a stage by name or handle", lambda s: s.compute_inline(3))
once("undo.count", "5 of 0", lambda s: s.undo(5))
once("trace.malformed", "not JSON", lambda s: s.replay("{"))
once("trace.malformed", "list of steps", lambda s: s.replay("{}"))
once("trace.malformed", "step 1", lambda s: s.replay("[1]"))
once("trace.unknown-primitive", "system", lambda s: s.replay('[["system", ["ls"], {}]]'))


@refusal("schedule.too-deep", "too deep")
def too_deep():
    s = plain()
    yield s
    s._apply("split", (), {}, lambda p: (_ for _ in ()).throw(RecursionError))


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    steps = act()
    s = next(steps)
    before, trace = str(s), str(s.trace)
    with pytest.raises(tir.ScheduleError) as caught:
        next(steps, None)
    error = caught.value
    text = str(error)
    assert error.code == code, text
    assert key in text
    assert str(s) == before
    assert str(s.trace) == trace
    assert re.search(r"test_refusals\.py:\d+", text), text
    assert len(text.splitlines()) <= 14, text
    assert error.problems[0].code == code


# --- no code without a test ------------------------------------------------------------------------------------------

CODE = re.compile(r"[a-z][a-z0-9]+(?:-[a-z]+)*\.[a-z]+(?:-[a-z0-9]+)*")
COMPOSED = {  # f-strings that make codes, with what fills them in
    "{primitive}.serial": ("split", "fuse", "bind", "vectorize", "unroll", "annotate"),
    "{primitive}.scheduled": ("compute-at", "reverse-compute-at", "inline", "reverse-inline"),
    "{primitive}.partial-reduction": ("reverse-compute-at", "stage-out"),
    "{primitive}.not-elementwise": ("reverse-compute-at",),
    "{primitive}.whole-axis": ("reverse-compute-at",),
    "{primitive}.guard": ("reverse-compute-at", "stage-in", "stage-out"),
    "{primitive}.scattered": ("reverse-compute-at", "stage-out"),
    "{primitive}.made-later": ("reverse-compute-at", "reverse-inline"),
    "{primitive}.room": ("compute-at", "reverse-compute-at", "stage-in", "stage-out"),
    "{what}.own-buffer": ("set-scope", "layout"),
    "{what}.gone": ("loop", "stage", "tensor"),
    "{what}.unknown": ("loop", "stage", "tensor"),
    "conv2d.{name}": ("stride", "dilation", "groups"),
    "tensorize.{code}": (),  # tests/intrin
}
ELSEWHERE = {"tensorize.last", "lower.intrinsic", "codegen.intrinsic"}
"""tests/intrin"""


def raised():
    """The codes in the sources of schedule, expr, nn and lower."""
    files = [
        *PACKAGE.glob("schedule/**/*.py"),
        *PACKAGE.glob("expr/*.py"),
        PACKAGE / "nn.py",
        *PACKAGE.glob("lower/*.py"),
    ]
    for file in files:
        for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(n, ast.Call) or not re.search(r"(Problem|refuse|fail)$", ast.unparse(n.func)):
                continue
            for a in (
                x for arg in n.args[:2] for x in ([arg.body, arg.orelse] if isinstance(arg, ast.IfExp) else [arg])
            ):
                if isinstance(a, ast.Constant) and isinstance(a.value, str) and CODE.fullmatch(a.value):
                    yield a.value
                elif isinstance(a, ast.JoinedStr):
                    text = "".join(
                        v.value if isinstance(v, ast.Constant) else f"{{{ast.unparse(v.value)}}}" for v in a.values
                    )
                    if re.fullmatch(r"[\w{}.-]+\.[\w{}-]+", text):
                        assert text in COMPOSED, f"{text} in {file.name} is new: list it in COMPOSED"
                        yield from (re.sub(r"\{\w+\}", what, text) for what in COMPOSED[text])


def test_every_code_is_tested():
    tested = "\n".join(f.read_text(encoding="utf-8") for f in TESTS.rglob("test_*.py"))
    missing = sorted({c for c in raised() if f'"{c}"' not in tested and c not in ELSEWHERE})
    assert not missing, f"codes without a test: {missing}"


def test_a_fork_is_not_touched_by_refusals():
    s = plain()
    other = s.fork()
    with pytest.raises(tir.ScheduleError):
        s.split("C.i", [None, 0])
    s.split("C.i", [None, 4])
    assert str(other) == str(Schedule(s.outputs))
