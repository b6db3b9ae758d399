"""Legal schedules are accepted in any order that makes sense, and what a refusal advises is accepted too."""

import itertools
import re

import pytest
from refusal_cases import plain

import tensorir as tir
from tensorir.target import Target


def chain(target="opencl"):
    """P = 2 A, C = P and P with its rows turned."""
    A = tir.placeholder((8, 8), name="A")
    P = tir.compute((8, 8), lambda i, j: A[i, j] * 2, name="P")
    return tir.Schedule(tir.compute((8, 8), lambda i, j: P[i, j] + P[i, 7 - j], name="C"), target)


STEPS = {
    "place": lambda s: s.compute_at("P", "C.i"),
    "scope": lambda s: s.set_scope("P", "shared"),
    "producer": lambda s: s.bind("P.j", "thread.x"),
    "consumer": lambda s: s.bind("C.j", "thread.x"),
    "block": lambda s: s.bind("C.i", "block.x"),
}


@pytest.mark.parametrize("names", [o for o in itertools.permutations(STEPS) if o.index("place") < o.index("producer")])
def test_an_intermediate_in_shared_memory_is_bound_in_any_order(names):
    s, wanted = chain(), chain()
    for name in STEPS:
        STEPS[name](wanted)
    for name in names:
        STEPS[name](s)
    assert s.tree() == wanted.tree() and s.check()


@pytest.mark.parametrize("bound", [("C.i",), ("C.j",), ("C.i", "C.j"), ("C.j", "C.i")])
@pytest.mark.parametrize("at", ["C.i", "C.j", "C.k"])
@pytest.mark.parametrize("first", [True, False])
def test_copies_of_single_threads_in_shared_memory(bound, at, first):
    """A copy that the threads of a loop around it fill one by one is large enough for all, whenever it is bound."""
    s = plain()
    axes = dict(zip(bound, ("thread.x", "thread.y"), strict=False))
    stage = lambda: s.stage_in("A", at, "shared", cooperative=False)  # noqa: E731
    try:
        if not first:
            stage()
        for loop, axis in axes.items():
            s.bind(loop, axis)
        if first:
            stage()
    except tir.ScheduleError as e:  # several threads would write the same cells of the one copy
        assert e.code == "scope.overlap"
    else:
        assert s.check()


def test_threads_that_fill_a_copy_together_have_none_of_their_own():
    s = plain()
    s.stage_in("A", "C.j", "shared")
    with pytest.raises(tir.ScheduleError) as e:
        s.bind("C.i", "thread.x")
    assert e.value.code == "scope.private"
    assert "bind C.i first, then stage; or cooperative=False" in str(e.value)


# --- loops that have a meaning

MEANINGS = {
    "bind": lambda s, loop: s.bind(loop, "block.y" if "block.x" in str(s) else "block.x"),
    "thread": lambda s, loop: s.bind(loop, "thread.y" if "thread.x" in str(s) else "thread.x"),
    "threads": lambda s, loop: s.bind(loop, "threads"),
    "vthread": lambda s, loop: s.bind(loop, "vthread"),
    "parallel": lambda s, loop: s.parallel(loop),
    "unroll": lambda s, loop: s.unroll(loop),
    "vectorize": lambda s, loop: s.vectorize(loop),
}
NEXT = {
    **MEANINGS,
    "split": lambda s, loop: s.split(loop, [None, 2]),
    "fuse": lambda s, loop: s.fuse("P.i", loop),
    "partition": lambda s, loop: s.partition(loop, [1]),
    "annotate": lambda s, loop: s.annotate(loop, "unroll", 2),
}


def elements():
    A = tir.placeholder((4, 16), name="A")
    return tir.Schedule(tir.compute((4, 16), lambda i, j: A[i, j] * 2, name="P"))


def code(act):
    with pytest.raises(tir.ScheduleError) as e:
        act()
    return e.value.code, e.value.problems[0].hint


@pytest.mark.parametrize("then", NEXT)
@pytest.mark.parametrize("now", MEANINGS)
def test_what_is_advised_for_a_loop_with_a_meaning_is_accepted(now, then):
    s = elements()
    MEANINGS[now](s, "P.j")
    found, hint = code(lambda: NEXT[then](s, "P.j"))
    assert found == {"thread": "bind", "threads": "bind", "vthread": "bind"}.get(then, then) + ".serial"
    s = elements()
    if hint == "":  # it has this meaning
        assert now == then
    elif split := re.fullmatch(r"s\.split\('P\.j', \[None, (\d)\]\) before that: (\w+) .*", hint):
        parts = s.split("P.j", [None, int(split[1])])
        inner = int(now == "vectorize")
        MEANINGS[now](s, parts[inner])
        if "threads" in (now, then) and (now if then == "threads" else then) in ("thread", "threads", "vthread"):
            then = "bind"  # the part that is left goes to blocks: threads that share all have none of their own
            assert now != "threads" or "the other to block.x" in hint
        NEXT[then](s, parts[1 - inner])
        assert s.check()
    else:
        assert hint == f"{then} it first, then {now if now in ('unroll', 'vectorize') else 'bind'}"
        NEXT[then](s, "P.j")
        loop = {"split": "P.j.1", "fuse": "P.i&j", "partition": "P.j"}[then]
        if now == "vectorize" and then == "fuse":
            assert code(lambda: MEANINGS[now](s, loop))[0] == "vectorize.lanes"  # of 64 iterations: split it again
            _, loop = s.split(loop, [None, 4])
        MEANINGS[now](s, loop)
        assert s.check()


# --- copies by one element at a time, dialects


@pytest.mark.parametrize("scope", ["shared", "register"])
def test_a_vector_of_one_is_none(scope):
    def staged(**options):
        s = plain()
        s.stage_in("A", "C.i", scope, **options)
        return s

    assert staged(vector=1).tree() == staged().tree() != staged(vector=2).tree()
    assert tir.replay(staged().outputs, staged(vector=1).trace).tree() == staged().tree()


def test_a_result_is_written_out_by_one_element_at_a_time():
    s = plain()
    s.stage_out("C", "C.i", "shared", vector=1)
    assert "cooperative" in s.tree() and "vectorize" not in s.tree() and s.check()


@pytest.mark.parametrize(
    ("vector", "why", "hint"),
    [(0, "2, 4, 8, 16 lanes, not 0", 2), (-1, "not -1", 2), (3, "not 3", 2), (4, "vector=4 does not divide the 6", 2)],
)
def test_lanes_are_refused_with_the_reason(vector, why, hint):
    s = plain()
    s.split("C.k", [None, 6])
    with pytest.raises(tir.ScheduleError) as e:
        s.stage_in("A", "C.k.0", "shared", vector=vector)
    assert e.value.code == "stage-in.vector" and why in str(e.value)
    assert e.value.problems[0].hint == f"vector={hint}"


@pytest.mark.parametrize(
    "target", ["cuda -arch=sm_90a", "cuda -arch=sm_80", "opencl -kind=gpu", "opencl -registers=16"]
)
def test_the_name_of_its_language_is_a_schedules_own_target(target):
    s = chain(target)
    assert s._meant(s.target.language) is s.target
    assert s._meant("cuda -arch=sm_75") == Target.parse("cuda -arch=sm_75")
    other = "opencl" if s.target.language == "cuda" else "cuda"
    assert s._meant(other) == Target.parse(other)
