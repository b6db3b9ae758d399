"""The tree before and after each primitive, kept word for word, and what each returns."""

import json

import pytest

import tensorir as tir
from tensorir.schedule.registry import PRIMITIVES


def matmul(m=9, n=8, k=8):
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    kk = tir.reduce_axis(k, name="k")
    return tir.Schedule(tir.compute((m, n), lambda i, j: tir.sum(A[i, kk] * B[kk, j], axis=kk), name="C"))


def chain():
    X = tir.placeholder((8, 9), name="X")
    P = tir.compute((8, 11), lambda i, j: X.get(i, j - 1, fill=0), name="P")
    Q = tir.compute((8, 9), lambda i, j: P[i, j] + P[i, j + 2], name="Q")
    return tir.Schedule(tir.compute((8, 9), lambda i, j: tir.maximum(Q[i, j], 0), name="R"))


def with_split(s, *calls):
    for c in calls:
        c(s)
    return s


def gather():
    T, at = tir.placeholder((7, 8), name="T"), tir.placeholder((5,), "int32", name="at")
    return tir.Schedule(tir.compute((5, 8), lambda i, j: T[at[i], j] * 2, name="G"))


def softmax():
    X, k, k2 = tir.placeholder((5, 9), name="X"), tir.reduce_axis(9, name="k"), tir.reduce_axis(9, name="k")
    m = tir.compute((5,), lambda i: tir.max(X[i, k], axis=k), name="m")
    total = tir.compute((5,), lambda i: tir.sum(tir.exp(X[i, k2] - m[i]), axis=k2), name="l")
    return tir.Schedule(tir.compute((5, 9), lambda i, j: tir.exp(X[i, j] - m[i]) / total[i], name="Y"))


def triangle():
    A, B, k = tir.placeholder((9, 9), name="A"), tir.placeholder((9, 2), name="B"), tir.reduce_axis(9, name="k")
    term = lambda i, j: tir.where(k <= i, A[i, k] * B[k, j], 0)  # noqa: E731
    return tir.Schedule(tir.compute((9, 2), lambda i, j: tir.sum(term(i, j), axis=k), name="C"))


def spread():
    """Every second element of P is none of A; each C meets one that is."""
    A, B = tir.placeholder((5,), name="A"), tir.placeholder((2,), name="B")
    P = tir.compute((9,), lambda i: tir.where(tir.equal(i % 2, 0), A[i // 2], 0), name="P")
    k = tir.reduce_axis(2, name="k")
    return tir.Schedule(tir.compute((8,), lambda i: tir.sum(P[i + k] * B[k], axis=k), name="C"))


EXAMPLES = {
    "split": (matmul, lambda s: s.split("C.i", [None, 4])),
    "split named": (matmul, lambda s: s.split("C.k", [2, None], tail="exact", names=["ko", "ki"])),
    "split balanced": (matmul, lambda s: s.split("C.i", [None, 4], tail="balanced")),
    "split peel": (matmul, lambda s: s.split("C.i", [None, 4], tail="peel")),
    "split shift": (chain, lambda s: s.split("R.j", [None, 4], tail="shift")),
    "partition": (matmul, lambda s: s.partition("C.i", [1, 8])),
    "cut": (matmul, lambda s: s.cut("C.i", 4).split("j", [None, 4])),
    "fuse": (matmul, lambda s: s.fuse("C.i", "C.j")),
    "reindex": (
        matmul,
        lambda s: s.reindex("C", "i, j | k -> t = (i, j), k0 = k/4, k1 = k%4", {"t": 10}, {"B": "k0, t, k1"}),
    ),
    "fuse named": (matmul, lambda s: s.fuse("C.i", "C.j", name="tile")),
    "reorder": (matmul, lambda s: s.reorder("C.k", "C.i")),
    "tile": (matmul, lambda s: s.tile("C.i", "C.j", factors=[4, 2])),
    "register_tile": (matmul, lambda s: s.register_tile("C.i", "C.j", sizes=[3, 8], lanes=4, terms=2)),
    "register_tile of whole loops": (
        matmul,
        lambda s: (s.stage_out("C", "root", "global"), s.register_tile("C.out.i", "C.out.j", lanes=4)),
    ),
    "share_out": (matmul, lambda s: s.share_out("C.i", "C.j", each=16)),
    "share_out of an inner loop": (matmul, lambda s: s.share_out("C.j", each=4, to="block.y", tail="balanced")),
    "bind": (matmul, lambda s: s.bind("C.i", "block.x").bind("C.j", "thread.x")),
    "parallel": (matmul, lambda s: s.parallel("C.j").parallel("C.i")),
    "vectorize": (chain, lambda s: s.vectorize(s.split("R.j", [None, 4])[1])),
    "unroll": (matmul, lambda s: s.unroll("C.k")),
    "annotate": (matmul, lambda s: s.annotate("C.k", "unroll", 4)),
    "assume": (gather, lambda s: s.assume("T", align=64).assume("at", 16, low=0).assume("at", high=7)),
    "redeclare": (matmul, lambda s: s.redeclare("stream_k", rest=4)),
    "specialize": (
        matmul,
        lambda s: s.specialize("C.j", "C.i % 2 == 0 and not A[C.i, C.j] > 0").bind("C.i", "block.x"),
    ),
    "compute_at": (chain, lambda s: s.compute_at("Q", s.split("R.j", [None, 4])[0])),
    "reverse_compute_at": (chain, lambda s: s.reverse_compute_at("R", s.split("Q.j", [None, 4])[0])),
    "compute_inline": (chain, lambda s: s.compute_inline("P")),
    "reverse_compute_inline": (chain, lambda s: s.reverse_compute_inline("R")),
    "stage_in": (matmul, lambda s: s.stage_in("A", s.split("C.k", [None, 4])[0], "shared", vector=4, pad=1)),
    "stage_in of a copy": (chain, lambda s: (s.compute_at("P", "Q.i"), s.stage_in("P", "Q.j", "register"))),
    "stage_in at the root": (matmul, lambda s: s.stage_in("B", "root", "global", order=[1, 0])),
    "stage_in once": (
        matmul,
        lambda s: (s.stage_in("B", "root", "global", order=[1, 0], run="once"), s.bind("B_global.ax0", "block.x")),
    ),
    "run_once": (chain, lambda s: s.run_once("P").run_once("Q")),
    "stage_in with a layout": (matmul, lambda s: s.stage_in("B", layout="k, j -> j/3, k, j%3", scope="global")),
    "stage_out with a layout": (matmul, lambda s: s.stage_out("C", "C.i", layout="i, j -> j/2, i, j%2")),
    "stage_out": (matmul, lambda s: s.stage_out("C", s.split("C.i", [None, 4])[0], "register")),
    "stage_out in pieces of the reduction": (
        matmul,
        lambda s: (s.reorder(s.split("C.k", [None, 4])[0], "C.i", "C.j", "C.k.1"), s.stage_out("C", "C.i")),
    ),
    "skip": (
        triangle,
        lambda s: (
            s.reorder(s.split("C.i", [None, 4])[0], s.split("C.k", [None, 2])[0], "C.i.1", "C.j", "C.k.1"),
            s.decompose_reduction("C", "C.k.0"),
            s.skip("C.k.0"),
        ),
    ),
    "keep_term": (spread, lambda s: s.keep_term("C.k", "C.i % 2")),
    "prefetch": (matmul, lambda s: s.prefetch("B", at="C.k", ahead="C.i", distance=2)),
    "pipeline": (
        lambda: tir.Schedule(matmul().outputs, "opencl -kind=gpu"),
        lambda s: (s.stage_in("B", s.split("C.k", [None, 2])[0], "shared"), s.pipeline("C.k.0")),
    ),
    "set_scope": (chain, lambda s: (s.compute_at("P", "Q.i"), s.set_scope("P", "shared"))),
    "layout": (chain, lambda s: (s.compute_at("P", "Q.i"), s.layout("P", pad=3, order=[1, 0]))),
    "layout as a map": (
        chain,
        lambda s: (
            s.compute_at("P", "Q.i"),
            s.set_scope("P", "shared"),
            s.layout("P", "a, b -> b/4, a, (b/2)%2, b%2", pad=1),
        ),
    ),
    "decompose_reduction": (matmul, lambda s: s.decompose_reduction("C", "C.j")),
    "compute_at in registers": (chain, lambda s: s.compute_at("Q", "R.i", scope="register")),
    "reduce_in_lanes": (matmul, lambda s: s.reduce_in_lanes("C", "C.k", 2, vectors=2, joined=2)),
    "reduce_in_lanes of rows": (softmax, lambda s: s.reduce_in_lanes("l", "l.k", 4, at="Y.i")),
    "rfactor": (matmul, lambda s: s.rfactor("C", s.split("C.k", [None, 4])[1])),
    "reduce_across": (matmul, lambda s: s.reduce_across(s.split("C.k", [4, None])[0], "thread.x")),
    "fuse_with": (softmax, lambda s: s.fuse_with("m", "l")),
    "clone": (softmax, lambda s: s.clone("m", for_="Y")),
    "rolling": (softmax, lambda s: s.rolling("m", into="l", at=s.split("l.k", [None, 4])[0])),
    "tensorize": (
        lambda: matmul(8),
        lambda s: s.reorder("C.k", "C.j").tensorize("C.j", "opencl.fma.f32x8"),
    ),
    "atomic": (
        lambda: tir.Schedule(matmul().outputs, "cuda"),
        lambda s: (s.decompose_reduction("C", "C.i"), s.atomic("C").bind("C.k", "block.x")),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_tree(name, golden):
    make, act = EXAMPLES[name]
    s = make()
    before = str(s)
    act(s)
    golden(f"{before}\n\n--- {s.trace!s}\n\n{s}", f"schedule/{name.replace(' ', '_')}.txt")
    assert s.check()
    fresh = make()
    exec(str(s.trace), {"s": fresh})
    assert str(fresh) == str(s)
    assert str(tir.replay(s.definition, s.trace, target=s.target)) == str(s)
    assert json.loads(s.trace.to_json())
    after = str(s)
    other = s.fork()
    s.undo(len(s.trace))
    assert str(s) == before
    assert str(other) == after


def test_every_primitive_has_an_example():
    shown = {n.split(" ")[0] for n in EXAMPLES}
    assert {p for p in PRIMITIVES if p not in shown} == set()


def test_what_primitives_return():
    s = matmul()
    outer, inner = s["C"].split("i", [None, 4])
    assert (outer, inner) == ("C.i.0", "C.i.1")
    assert s["C"].fuse(outer, inner) == "C.i.0&i.1"
    assert s["C"].reorder("j", "k") is not None
    assert s.bind("C.j", "thread.x") is s
    out = s.stage_out("C", "root", "global")
    assert (out.name, out.axes) == ("C.out", ("C.out.i", "C.out.j"))
    assert [x.name for x in s.stages("C")] == ["C.out"]
    assert s.stages()[0].name == "C"


def test_versions():
    s = matmul()
    s.split("C.i", [None, 4])
    s.split("C.j", [None, 4])
    assert str(s.at(1)) != str(s) != str(s.at(0))
    assert "+" in s.diff(s.at(0))
    assert s.diff(s.fork()) == ""
    assert len(repr(s).splitlines()) <= 3 and "print(s)" in repr(s)
    assert repr(s["C"]) == "<stage C>"
