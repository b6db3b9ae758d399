"""What stage_in, stage_out, layout and set_scope refuse, and copies that their readers cannot see."""

import pytest
from refusal_cases import Refusals, assert_refused, plain, relu, triangular, written_backwards

import tensorir as tir


def gathered():
    T, at = tir.placeholder((7, 8), name="T"), tir.placeholder((5,), "int32", name="at")
    return tir.compute((5, 8), lambda i, j: T[at[i], j] * 2, name="G")


REFUSALS = Refusals()
once = REFUSALS.once

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
once("stage-in.vector", "16 lanes, not 3", lambda s: s.stage_in("A", "C.k", "shared", vector=3))
once(
    "stage-in.vector",
    "vector=4",
    lambda s: s.stage_in("A", "C.k.0", "shared", vector=4),
    before=lambda s: s.split("C.k", [None, 6]),
)
once(
    "stage-in.room",
    "distributed to",
    lambda s: s.stage_in("A", "A_shared.ax0", "register"),
    before=lambda s: s.stage_in("A", "C.i", "shared"),
)
once("stage-in.once", "inside C.k", lambda s: s.stage_in("A", "C.k", "shared", run="once"))
once("stage-in.once", "C is made", lambda s: s.stage_in("C", "root", "global", run="once"), relu)
once("stage-in.run", "'twice'", lambda s: s.stage_in("A", "root", "global", run="twice"))
once("stage-in.run", "None", lambda s: s.stage_in("A", "root", "global", run=None))
once("run-once.own-buffer", "A is an input", lambda s: s.run_once("A"))
once("run-once.own-buffer", "C is an output", lambda s: s.run_once("C"))
once("run-once.depends", "reads P", lambda s: s.run_once("C"), relu)
once("run-once.depends", "makes D", lambda s: s.run_once("C"), relu, lambda s: s.compute_at("C", "D.i"))
once("scope.unknown", "warpish", lambda s: s.stage_in("A", "C.k", "warpish"))
once("scope.unknown", "cache", lambda s: s.stage_out("C", "C.i", "cache"))
once("layout.order", "permutation", lambda s: s.stage_in("A", "C.k", "shared", order=[0, 0]))
once("layout.pad", "-1", lambda s: s.stage_in("A", "C.k", "shared", pad=-1))
for code, key, text in (
    ("layout.syntax", "there is no ->", "k, j"),
    ("layout.syntax", "'2' is no name", "2, j -> j"),
    ("layout.syntax", "twice on the left", "k, k -> k"),
    ("layout.syntax", "'x' is none of k, j", "k, j -> k, x"),
    ("layout.syntax", "a number from 1 up is expected, not 0", "k, j -> k, j/0"),
    ("layout.syntax", "'j//4' has no meaning here", "k, j -> k, j//4, j%4"),
    ("layout.syntax", "unexpected 'j'", "k, j -> k j"),
    ("layout.syntax", "not closed", "k, j -> k, (j/4"),
    ("layout.syntax", "a piece is missing", "k, j -> k, "),
    ("layout.syntax", "a number from 1 up is expected, not True", "k, j -> k, j/True"),
    ("layout.syntax", "5 does not divide 12", "k, j -> k, j/12, j%12/5, j%5"),
    ("layout.syntax", "2, 4, 8", "k, j -> k, j/4 ^ k%3, j%4"),
    ("layout.syntax", "2, 4, 8", "k, j -> k, j/4 ^ k, j%4"),
    ("layout.syntax", "2, 4, 8", "k, j -> k, j/4 ^ k%4*3, j%4"),
    ("layout.syntax", "unexpected 'k'", "k, j -> k, j/4 ^ k%4 k, j%4"),
    ("layout.fold", "another one", "k, j -> k, j/4 ^ j/4%2, j%4"),
    ("layout.fold", "another one", "k, j -> k ^ j/4%2, j/4 ^ k%2, j%4"),
    ("layout.rank", "names 3 dimensions, A has 2", "a, b, c -> a, b, c"),
    ("layout.not-bijective", "k is not stored", "k, j -> j"),
    ("layout.not-bijective", "try: layout='k, j -> j/16, k, j%16'", "k, j -> j/16, k, j%8"),
    ("layout.not-bijective", "try: layout='k, j -> k, j'", "k, j -> k, j, j"),
    ("layout.not-bijective", "the pieces j%4 do not cover j exactly once", "k, j -> k, j%4"),
    ("layout.not-bijective", "k/8, k/2%2, k%2 do not", "k, j -> k/8, (k/2)%2, j, k%2"),
):
    once(code, key, lambda s, text=text: s.stage_in("A", "C.k", "shared", layout=text))
once("layout.twice", "both say", lambda s: s.stage_in("A", "C.k", "shared", order=[1, 0], layout="i, k -> k, i"))
once("argument.type", "layout must be", lambda s: s.stage_out("C", "C.i", layout=3))
once(
    "stage-in.ordered",
    "nobody has written",
    lambda s: s.stage_in("C", "C.init.j", "register"),
    before=lambda s: (s.reorder("C.k", "C.i", "C.j"), s.stage_out("C", "C.i")),
)
once(
    "stage-out.ordered",
    "closes a copy",
    lambda s: s.stage_out("C.out", "C.k"),
    before=lambda s: s.stage_out("C", "C.k"),
)
once("prefetch.not-read", "nothing inside", lambda s: s.prefetch("C", at="C.k"))
once("prefetch.encloses", "not a loop around", lambda s: s.prefetch("B", at="C.j", ahead="C.k"))
once("prefetch.lines", "cache lines", lambda s: s.prefetch("B", at="C.i"))
once("prefetch.near", "already", lambda s: s.prefetch("B_shared", at="C.k"), before=lambda s: s.stage_in("B", "C.j"))
once(
    "prefetch.room",
    "vectorized",
    lambda s: s.prefetch("A", at="C.j.1"),
    before=lambda s: s.reorder("C.k", "C.j").vectorize(s.split("C.j", [None, 4])[1]),
)
once("prefetch.gather", "data tells", lambda s: s.prefetch("T", at="G.i"), lambda: tir.Schedule(gathered()))
once("prefetch.cpu", "no such requests", lambda s: s.prefetch("B", at="C.k"), lambda: plain("opencl -kind=gpu"))
on_gpu = {"make": lambda: plain("opencl -kind=gpu")}
once("pipeline.cpu", "cannot overlap", lambda s: s.pipeline("C.k"), before=lambda s: s.stage_in("A", "C.k"))
once("pipeline.depth", "depth=3", lambda s: s.pipeline("C.k", 3), **on_gpu)
once("pipeline.no-copies", "no iteration of C.k", lambda s: s.pipeline("C.k"), **on_gpu)
once(
    "pipeline.symbolic-extent",
    "C.j has the symbolic extent of an outer loop or of data",
    lambda s: s.pipeline("C.j"),
    lambda: triangular(on_gpu["make"]),
)
once("pipeline.serial", "unrolled", lambda s: s.pipeline("C.k"), before=lambda s: s.unroll("C.k"), **on_gpu)
once(
    "pipeline.parts",
    "more than once",
    lambda s: s.pipeline("C.k"),
    before=lambda s: (s.stage_in("A", "C.k", "shared"), s.partition("C.k", [1])),
    **on_gpu,
)
once(
    "pipeline.lost",
    "set_scope takes away",
    lambda s: s.set_scope("A_shared", "register"),
    before=lambda s: (s.stage_in("A", "C.k", "shared"), s.pipeline("C.k")),
    **on_gpu,
)
once(
    "pipeline.lost",
    "split changes C.k",
    lambda s: s.split("C.k", [None, 2]),
    before=lambda s: (s.stage_in("A", "C.k", "shared"), s.pipeline("C.k")),
    **on_gpu,
)
once("stage-out.encloses", "not a loop around", lambda s: s.stage_out("C", "D.i"), relu)
once(
    "stage-out.scattered",
    "whole tile",
    lambda s: s.stage_out("C", "C.i.1"),
    before=lambda s: (s.split("C.i", [4, 4]), s.reorder("C.i.1", "C.i.0")),
)
once("stage-out.vector", "its own copy", lambda s: s.stage_out("C", "C.i", vector=4))
once("stage-out.vector", "16 lanes, not 3", lambda s: s.stage_out("C", "C.i", scope="shared", vector=3))
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
    "distributed to",
    lambda s: s.stage_out("A_shared", "A_shared.ax0"),
    before=lambda s: s.stage_in("A", "C.i", "shared"),
)


@REFUSALS.case("stage-out.one-buffer", "writes 2 buffers")
def two_buffers():
    X = tir.placeholder((8,), name="X")
    s = tir.Schedule(tir.compute((8,), lambda i: (X[i], X[i] * 2), name="P"))
    yield s
    s.stage_out("P", "P.i")


once("stage-out.index", "computed index", lambda s: s.stage_out("P", "P.i"), written_backwards)

# --- buffers ---------------------------------------------------------------------------------------------------------

once("set-scope.own-buffer", "parameter", lambda s: s.set_scope("A", "shared"))
once("layout.own-buffer", "parameter", lambda s: s.layout("C", pad=1))
once("layout.own-buffer", "parameter", lambda s: s.layout("A", "i, k -> k, i"))
once("layout.rank", "names 1 dimensions, P has 2", lambda s: s.layout("P", "i -> i/2, i%2"), relu)
once("scope.unknown", "moon", lambda s: s.set_scope("P", "moon"), relu)
once("layout.order", "[1, 1]", lambda s: s.layout("P", order=[1, 1]), relu)
once("layout.pad", "1.5", lambda s: s.layout("P", pad=1.5), relu)

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


@REFUSALS.case("scope.overlap", "same cells")
def halos_of_neighbours():
    X = tir.placeholder((17,), name="X")
    r = tir.reduce_axis(3, name="r")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.max(X[2 * i + r], axis=r), name="Y"))
    s.bind("Y.i", "thread.x")
    s.stage_in("X", "Y.i", "register")
    yield s
    s.set_scope("X_register", "shared")


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)
