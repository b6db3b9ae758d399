"""Over all pairs of a mark and a primitive: marks are kept, moved or the primitive is refused, and trees print them."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.ir import text
from tensorir.ir.build import as_expr
from tensorir.ir.marks import MARKS as MARKS_ON_LOOPS
from tensorir.ir.marks import Partition, Pipelined, Remark, Skipped, UnrollBy, Versions
from tensorir.ir.tree import Kind, Loop, Prefetch, Scope, Seq, Stage, Update, Var
from tensorir.ir.visit import find, reads, writes
from tensorir.schedule.registry import PRIMITIVES

GPU, CUDA = "opencl -kind=gpu", "cuda -arch=sm_80"


def chain(target):
    """A producer, a reduction that reads it, and a consumer of that."""
    A, B = tir.placeholder((16, 16), name="A"), tir.placeholder((16, 8), name="B")
    k = tir.reduce_axis(16, name="k")
    P = tir.compute((16, 16), lambda i, j: A[i, j] * 2, name="P")
    C = tir.compute((16, 8), lambda i, j: tir.sum(P[i, k] * B[k, j], axis=k), name="C")
    return tir.Schedule(tir.compute((16, 8), lambda i, j: C[i, j] + 1, name="D"), target=target)


LOOPS = ("P.i", "P.j", "C.i", "C.j", "C.k", "D.i", "D.j")
STAGES, TENSORS = ("P", "C", "D"), ("A", "B", "P", "C", "D")


def evidence(s):
    """How often each sort of mark is in the tree."""
    found, body = Counter(), s.program.body
    for x in find(body, Loop):
        live = x.kind is Kind.SERIAL
        found[f"kind {x.kind.value}"] += not live
        found["hint"] += bool(UnrollBy.of(x).factor) and live
        found["parts"] += len(Partition.of(x).at)
        found["cases"] += len(Versions.of(x).where)
        found["only"] += len(Skipped.of(x).unless)
        found["depth"] += Pipelined.of(x).depth > 1
    for x in find(body, Stage):
        found["intrin"] += x.intrin is not None
        found["prefetch"] += isinstance(x.body, Prefetch)
        found["atomic"] += isinstance(x.body, Update) and x.body.atomic
        found["padded"] += len(x.padded)
    for b in {*reads(body), *writes(body)}:
        found["once"] += b.once
        found["layout"] += b.layout is not None
        found[f"scope {b.scope.value}"] += b.scope in (Scope.SHARED, Scope.REGISTER)
    found["facts"] = len(s.program.facts)
    return +found


PRINTED = {
    "hint": "unroll by", "parts": "partition at", "cases": "specialized where", "only": "skipped unless",
    "depth": "pipeline depth=", "prefetch": "prefetch ", "atomic": "# atomic", "padded": "padded", "once": "once",
    "layout": " as ", "facts": "assume ", "intrin": "opencl.", "scope shared": "shared", "scope register": "register",
}  # fmt: skip
"""What a tree says of each sort of mark; kinds and instructions by their own names."""


def on(loops, make, target="opencl", sort=""):
    return [(f"{sort}({x})", target, lambda s, x=x: make(s, x)) for x in loops]


MARKS = [
    *on(LOOPS, lambda s, x: s.partition(x, [4]), sort="partition"),
    *on(LOOPS, lambda s, x: s.partition(x, [5]), sort="partition odd"),
    *on(LOOPS, lambda s, x: s.annotate(x, "unroll", 4), sort="annotate"),
    *on(LOOPS, lambda s, x: s.unroll(x), sort="unroll"),
    *on(("P.j", "D.j"), lambda s, x: s.vectorize(x), sort="vectorize"),
    *on(("P.i", "C.i", "D.i"), lambda s, x: s.parallel(x), sort="parallel"),
    *on(("P.i", "C.i", "C.j", "D.j"), lambda s, x: s.bind(x, "thread.x"), GPU, "bind"),
    *on(("C.i", "D.i"), lambda s, x: s.bind(x, "vthread"), GPU, "vthread"),
    *on(("P.i", "D.i"), lambda s, x: s.bind(x, "threads"), GPU, "threads"),
    *on(LOOPS, lambda s, x: s.specialize(x, f"{x} < 4"), sort="specialize"),
    *on(("P.i", "D.i"), lambda s, x: s.split(x, [None, 5], tail="peel"), sort="peel"),
    *on(("P.i", "D.j"), lambda s, x: s.split(x, [None, 3], tail="balanced"), sort="balanced"),
    *on(("C.k",), lambda s, x: s.prefetch("B", x), sort="prefetch"),
    ("pipeline", GPU, lambda s: (s.stage_in("B", "C.k", "shared"), s.pipeline("C.k"))),
    ("pad", GPU, lambda s: (s.stage_out("C", "C.i"), s.split("C.j", [None, 5], tail="pad"))),
    ("pipeline outside", GPU, lambda s: (s.stage_in("B", "C.j", "shared"), s.pipeline("C.j"))),
    ("tensorize", "opencl", lambda s: (s.reorder("C.k", "C.j"), s.tensorize("C.j", "opencl.fma.f32x8"))),
    ("atomic", CUDA, lambda s: (s.decompose_reduction("C", "C.i"), s.atomic("C"))),
    ("run_once", "opencl", lambda s: s.run_once("P")),
    ("set_scope", GPU, lambda s: (s.compute_at("P", "C.i"), s.set_scope("P", "shared"))),
    ("layout", "opencl", lambda s: s.layout("P", "i, j -> j, i")),
    ("assume", "opencl", lambda s: s.assume("A", align=64)),
    ("stage_in", GPU, lambda s: s.stage_in("A", "P.i", "shared")),
]  # fmt: skip


def each(*parts):
    """A call for each choice of one of each part: names of loops, stages, tensors, or arguments."""
    return list(itertools.product(*parts))


def calls(method, *parts, **options):
    return [lambda s, a=a: getattr(s, method)(*a, **options) for a in each(*parts)]


PAIRS = [("P.i", "P.j"), ("C.i", "C.j"), ("C.j", "C.k"), ("D.i", "D.j")]
CALLS = {
    "split": [c for tail in ("guard", "exact", "peel", "balanced", "shift") for c in calls(
        "split", LOOPS, ([None, 2], [None, 8], [None, 4], [None, 5], [16, None], [2, 4, None]), tail=tail)],
    "partition": calls("partition", LOOPS, ([2], [4])),
    "cut": calls("cut", LOOPS, (3, 4)),
    "fuse": [lambda s, p=p: s.fuse(*p) for p in [*PAIRS, ("C.i", "C.j", "C.k")]],
    "reorder": [lambda s, p=p: s.reorder(*reversed(p)) for p in [*PAIRS, ("C.i", "C.j", "C.k")]],
    "reindex": [
        *calls("reindex", ("P", "D"), ("i, j -> t = (i, j)", "i, j -> t = (j, i)"), ({}, {"t": 5})),
        *calls("reindex", ("P", "D"), ("j -> a = j/4, b = j%4",)),
        *calls("reindex", ("C",), ("i, j | k -> k2 = k, t = (i, j)", "i -> a = i/4, b = i%4")),
        lambda s: s.reindex("C", "i, j | k -> i = i, j = j, t = k", reads={"P": "i, t", "B": "t, j"}),
        *calls("reindex", ("P", "D"), ("i, j -> i, j",), writes="j, i"),
        lambda s: s.reindex("C", "i, j | k -> i, j, t = k", writes="j, i"),
    ],
    "bind": calls("bind", LOOPS, ("block.x", "thread.x", "thread.y", "vthread", "threads", "warp.x")),
    "share_out": [*calls("share_out", LOOPS, each=2), *[lambda s, p=p: s.share_out(*p, each=8) for p in PAIRS]],
    "register_tile": [
        *[lambda s, x=x, n=n: s.register_tile(x, sizes=[n], lanes=n) for x in LOOPS for n in (2, 4)],
        *[lambda s, p=p: s.register_tile(*p, sizes=[2, 4], lanes=4, terms=2) for p in PAIRS],
    ],
    "parallel": calls("parallel", LOOPS),
    "vectorize": calls("vectorize", LOOPS),
    "unroll": calls("unroll", LOOPS),
    "compute_at": calls("compute_at", STAGES, LOOPS),
    "reverse_compute_at": calls("reverse_compute_at", STAGES, LOOPS),
    "compute_inline": calls("compute_inline", STAGES),
    "reverse_compute_inline": [
        *calls("reverse_compute_inline", STAGES), lambda s: (s.stage_out("C"), s.reverse_compute_inline("D"))
    ],
    "stage_in": [*calls("stage_in", TENSORS, LOOPS, ("shared", "register", "global")),
                 *calls("stage_in", TENSORS, ("root",), ("global",))],
    "stage_out": [*calls("stage_out", STAGES, LOOPS, ("shared", "register")),
                  *calls("stage_out", STAGES, ("root",), ("global",))],
    "fuse_with": [lambda s, a=a: s.fuse_with(*a) for a in each(STAGES, STAGES)],
    "clone": [lambda s, a=a: s.clone(a[0], for_=a[1]) for a in each(STAGES, STAGES)],
    "rolling": [lambda s, x=x: s.rolling("P", into="C", at=x) for x in LOOPS],
    "set_scope": calls("set_scope", TENSORS, ("shared", "register", "global")),
    "layout": calls("layout", TENSORS, ("i, j -> j, i",)),
    "run_once": calls("run_once", TENSORS),
    "decompose_reduction": calls("decompose_reduction", ("C",), ("C.i", "C.j", "C.k")),
    "rfactor": [*calls("rfactor", ("C",), ("C.i", "C.k")),
                lambda s: (s.split("C.k", [None, 4]), s.rfactor("C", "C.k.0"))],
    "reduce_in_lanes": calls("reduce_in_lanes", ("C",), LOOPS, (2,), (1, 2), (2,)),
    "reduce_across": calls("reduce_across", LOOPS, ("thread.x", "thread.y")),
    "keep_term": [*calls("keep_term", LOOPS, ("0",)),
                  lambda s: (s.reindex("C", "i, j | k -> i, j, t = k, u = k%1"), s.keep_term("C.u", "0"))],
    "tensorize": [lambda s: (s.reorder("C.k", "C.j"), s.tensorize("C.j", "opencl.fma.f32x8"))],
    "annotate": calls("annotate", LOOPS, ("unroll",), (2, 4)),
    "prefetch": calls("prefetch", TENSORS, LOOPS),
    "pipeline": [*calls("pipeline", LOOPS), lambda s: (s.stage_in("P", "C.k", "shared"), s.pipeline("C.k"))],
    "assume": calls("assume", ("A", "B"), (64,)),
    "redeclare": calls("redeclare", ("stream_k",), rest=4, of="C"),
    "specialize": [lambda s, x=x: s.specialize(x, f"{x} < 2") for x in LOOPS],
    "skip": [*calls("skip", LOOPS), lambda s: (s.decompose_reduction("C", "C.i"), s.skip("C.k"))],
    "atomic": [*calls("atomic", ("C",)), lambda s: (s.decompose_reduction("C", "C.i"), s.atomic("C"))],
}  # fmt: skip
"""Ways to call each primitive on all that a schedule of ``chain`` has."""

AGAIN = {
    "layout": ("layout", "compute_inline"), "scope shared": ("set_scope", "compute_inline"), "once": ("compute_inline",)
}  # fmt: skip
"""Marks of tensors, which may be said anew, and go where the tensor goes."""


def test_every_field_of_a_loop_is_of_a_mark_and_printed():
    values = [Partition((2,)), UnrollBy(2), Versions((as_expr(1),)), Skipped((as_expr(1),)), Remark("so"),
              Pipelined(3), Pipelined(4, True), Pipelined(4, True, (40, 160)), Pipelined(4, turns=2)]  # fmt: skip
    assert Loop.FIELDS == ("var", "extent", "body", "kind", "marks")
    assert {type(m) for m in values} == {*MARKS_ON_LOOPS}
    plain = Loop(Var("i", "index"), as_expr(8), Loop(Var("j", "index"), as_expr(8), Seq(())))
    for loop in (plain, plain.marked(Pipelined(2))):
        said = [tuple(text.noted(loop.marked(m))) for m in values]
        assert len({*said}) == len(values) and tuple(text.noted(loop)) not in said


def test_every_primitive_is_among_the_pairs():
    assert tir.Schedule  # has them registered
    assert CALLS.keys() == {name for name, p in PRIMITIVES.items() if p.step}


@pytest.mark.parametrize(("target", "mark"), [m[1:] for m in MARKS], ids=[m[0] for m in MARKS])
def test_marks_are_kept_or_the_primitive_is_refused(target, mark):
    base = chain(target)
    before = evidence(base)
    mark(base)
    wanted = {sort: count for sort, count in evidence(base).items() if count > before[sort]}
    assert wanted
    wrong, done = [], 0
    for primitive, some in CALLS.items():
        for call in some:
            s = base.fork()
            try:
                call(s)
            except tir.TensorIRError:
                if len(s._steps) == len(base._steps):
                    assert s.program is base.program
                continue
            done += 1
            has = evidence(s)
            lost = {sort for sort, count in wanted.items() if has[sort] < count}
            gone = {sort for sort in lost if primitive not in AGAIN.get(sort, ())}
            said = s.tree()
            unsaid = {sort for sort in has if PRINTED.get(sort, sort.split()[-1]) not in said}
            if gone or unsaid:
                wrong.append((str(s._steps[-1]), gone, unsaid))
    assert done > 20
    assert not wrong


def test_cuts_and_hints_move_to_the_loop_that_can_have_them():
    s = chain("opencl")
    s.partition("C.i", [4, 8]).annotate("C.i", "unroll", 2)
    s.split("C.i", [None, 2, 2])
    assert "for C.i.0 in 4:  # partition at 1, 2\n" in s.tree() and "for C.i.2 in 2:  # unroll by 2\n" in s.tree()
    s.fuse("C.i.0", "C.i.1")
    assert "for C.i.0&i.1 in 8:  # partition at 2, 4\n" in s.tree()
    s.partition("D.i", [15]).split("D.i", [None, 3], tail="peel")
    assert "for D.i.0 in 6:  # partition at 5\n" in s.tree(), "the tail cuts where the loop was cut before"
    s.partition("P.i", [4]).split("P.i", [1, 4, 4])
    assert "for P.i.1 in 4:  # partition at 1\n" in s.tree(), "the outermost loop has one iteration"
    assert s.check()


def test_refusals_say_which_mark_would_be_lost_and_change_nothing():
    s = chain("opencl")
    s.partition("C.i", [5]).annotate("C.j", "unroll", 4).annotate("D.i", "unroll", 2)
    tree = s.tree()
    for call, code, words in [
        (lambda: s.split("C.i", [None, 8]), "partition.lost", "partition at 5"),
        (lambda: s.split("C.i", [None, 3], tail="balanced"), "partition.lost", "split before partition"),
        (lambda: s.split("C.j", [None, 2]), "annotate.lost", "unroll by 4"),
        (lambda: s.fuse("D.i", "D.j"), "annotate.lost", "fuse before annotate"),
        (lambda: s.unroll("C.j"), "annotate.lost", "unroll makes C.j a loop that no hint applies to"),
        (lambda: s.compute_at("C", "D.i"), "partition.lost", "the mark of C.i"),
    ]:
        with pytest.raises(tir.ScheduleError) as e:
            call()
        assert e.value.code == code and words in str(e.value) and s.tree() == tree


WATCHED = {
    "specialize": ("opencl", lambda s: s.specialize("C.j", "C.i < 4"), lambda s: s.reorder("C.j", "C.i"),
                   "specialize.scope"),
    "run_once": ("opencl", lambda s: s.run_once("P"), lambda s: s.compute_at("P", "C.i"), "run-once.lost"),
    "stage_in": ("opencl", lambda s: s.stage_in("A", "root", "global", run="once"),
                 lambda s: s.compute_at("A_global", "P.i"), "run-once.lost"),
    "tensorize": ("opencl", lambda s: s.reorder("C.k", "C.j").tensorize("C.j", "opencl.fma.f32x8"),
                  lambda s: s.layout("C", "i, j -> j, i"), "tensorize.last"),
    "pipeline": (GPU, lambda s: s.stage_in("B", "C.k", "shared").pipeline("C.k"),
                 lambda s: s.set_scope("B_shared", "register"), "pipeline.lost"),
}  # fmt: skip
"""Marks that are judged after each later step, a step that would take their meaning, and why it is refused."""
COMPOSED = {
    "share_out": lambda s: s.share_out("E.i", each=4),
    "register_tile": lambda s: s.register_tile("D.i", "D.j", sizes=[2, 4], lanes=4),
    "reduce_in_lanes": lambda s: s.reduce_in_lanes("E", "E.j", 4),
}


@pytest.mark.parametrize("name", WATCHED)
def test_a_composition_leaves_the_marks_of_its_parts(name):
    target, mark, spoil, code = WATCHED[name]
    s, alone = chain(target), chain(target)
    mark(alone)
    s._compose("share_out", ("D.i",), {}, lambda parts: (mark(parts), ())[1])
    assert len(s._steps) == 1 and s.tree() == alone.tree()
    for marked in (s, alone):
        with pytest.raises(tir.ScheduleError) as e:
            spoil(marked)
        assert e.value.code == code and marked.tree() == alone.tree()


@pytest.mark.parametrize("composition", COMPOSED)
@pytest.mark.parametrize("name", WATCHED)
def test_marks_are_judged_after_a_composition_as_well(name, composition):
    target, mark, spoil, code = WATCHED[name]
    (D,) = chain(target).outputs
    j = tir.reduce_axis(8, name="j")
    s = tir.Schedule(tir.compute((16,), lambda i: tir.sum(D[i, j], axis=j), name="E"), target=target)
    mark(s)
    COMPOSED[composition](s)
    tree = s.tree()
    with pytest.raises(tir.ScheduleError) as e:
        spoil(s)
    assert e.value.code == code and s.tree() == tree


def test_what_is_made_ahead_of_time_stays_so():
    s = chain("opencl")
    s.run_once("P")
    for call in (lambda: s.compute_at("P", "C.i"), lambda: s.stage_in("A", "root", "global")):
        with pytest.raises(tir.ScheduleError) as e:
            call()
        assert e.value.code == "run-once.lost" and "P" in str(e.value)
    s.stage_in("A", "root", "global", run="once")
    assert s.tree().count("# once") == 2


def test_a_copy_that_all_threads_make_is_made_by_all_where_it_is_moved_to():
    s = chain(GPU)
    s.bind("P.i", "threads")
    s.set_scope("P", "shared")
    s.compute_at("P", "C.i")
    assert "for P.i in 1:  # cooperative" in s.tree() and s.check()
    with pytest.raises(tir.ScheduleError) as e:
        s.compute_inline("P")
    assert e.value.code == "inline.scheduled"


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_moved_cuts_compute_the_same(data):
    n = data.draw(st.integers(1, 40))
    A = tir.placeholder((n,), name="A")
    s = tir.Schedule(tir.compute((n,), lambda i: A[i] * 2, name="C"))
    inner = data.draw(st.integers(1, 7))
    points = sorted(data.draw(st.sets(st.integers(1, n))))
    s.partition("C.i", points)
    cuts = len([p for p in points if p < n])
    try:
        s.split("C.i", [None, inner], tail=data.draw(st.sampled_from(["guard", "peel"])))
    except tir.ScheduleError as e:
        assert e.code == "partition.lost" and any(p % inner for p in points)
    else:
        assert evidence(s)["parts"] >= cuts
        assert s.check()
