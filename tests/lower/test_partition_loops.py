"""Tails without guards: balanced, peeled and shifted tiles, loops cut by hand, padded borders."""

import pytest

import tensorir as tir
from tensorir.check.equivalence import compare_module
from tensorir.interp.numbers import Field
from tensorir.ir.build import binary
from tensorir.ir.tree import Alloc, If, Loop, Select
from tensorir.ir.visit import Rewriter, find
from tensorir.lower.pipeline import forms, lower

pytestmark = pytest.mark.usefixtures("unoptimised")


def tiled_matmul(m, tail, tile=6, target="opencl -kind=cpu"):
    a, b, k = tir.placeholder((m, 8), name="A"), tir.placeholder((8, 32), name="B"), tir.reduce_axis(8, name="k")
    c = tir.compute((m, 32), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = tir.Schedule(c, target)
    s.stage_out("C", "root", "register")
    i0, i1 = s.split("C.out.i", [None, tile], tail=tail)
    jb, j = s.split("C.out.j", [None, 16])
    s.reorder(jb, i0, i1, j)
    s.bind(jb, "block.x")
    s.compute_at("C", i0)
    s.unroll("C.i").unroll(i1)
    return s


def body(s):
    return lower(s.program, s.target).kernels[0].body


@pytest.mark.parametrize("target", ["opencl -kind=cpu", "cuda"])
@pytest.mark.parametrize("tail", ["balanced", "peel", "shift"])
@pytest.mark.parametrize("m", [49, 48, 5, 7, 1])
def test_no_guard_is_left_and_the_result_is_right(m, tail, target):
    s = tiled_matmul(m, tail, target=target)
    if m >= 6 or tail != "shift":
        assert not find(body(s), If)
        assert not find(body(s), Select)
    assert s.check()
    if target != "cuda":
        assert s.check(level="device")


@pytest.mark.parametrize(
    ("m", "tail", "rows"),
    [(49, "balanced", [6, 5]), (48, "balanced", [6]), (13, "balanced", [5, 4]), (5, "balanced", [5]),
     (49, "peel", [6, 1]), (48, "peel", [6]), (49, "shift", [6])],
)  # fmt: skip
def test_one_body_per_size_with_its_own_accumulators(m, tail, rows):
    tiles = [a.buffer.dims[0] // 16 for a in find(body(tiled_matmul(m, tail)), Alloc)]
    assert tiles == rows


def test_the_sizes_of_balanced_tiles_cover_the_loop_once():
    for m in range(1, 40):
        for tile in (1, 4, 6):
            s = tiled_matmul(m, "balanced", tile)
            cut = dict(forms(s.program, s.target))["partition_loops"].body
            sizes = []
            for outer in find(cut, Loop, lambda x: x.var.name == "C.out.i.0"):
                inner = find(outer.body, Loop, lambda x: x.var.name == "C.out.i.1")
                sizes += [int(inner[0].extent.value)] * int(outer.extent.value)
            assert len(sizes) == -(-m // tile)
            assert sum(sizes) == m
            assert max(sizes) - min(sizes) <= 1


class AddBlock(Rewriter):
    """Each block stores its own number besides."""

    def __init__(self, block):
        self.block = block

    def on_Stage(self, n):
        return n.replace(body=n.body.replace(value=binary("+", n.body.value, tir.cast(self.block, "float32"))))


def test_shifted_blocks_may_store_the_same_value_twice_and_no_other():
    a = tir.placeholder((49,), name="A")
    s = tir.Schedule(tir.compute((49,), lambda i: a[i] * 2, name="C"), "opencl -kind=cpu")
    i0, i1 = s.split("C.i", [None, 8], tail="shift")
    s.bind(i0, "block.x").vectorize(i1)
    assert not find(body(s), If)
    assert s.check()
    block = find(s.program.body, Loop)[0].var
    problem = compare_module(lower(AddBlock(block)(s.program), s.target), s.outputs, Field(), 0)
    assert problem is not None
    assert problem.code == "race.global"


def test_a_padded_copy_cut_at_its_borders_has_no_condition_inside():
    x = tir.placeholder((20, 49), name="X")
    s = tir.Schedule(tir.compute((20, 51), lambda h, w: x.get(h, w - 1, fill=0), name="P"), "opencl -kind=cpu")
    s.partition("P.w", [1, 50])
    assert not find(body(s), Select)
    assert "partition at 1, 50" in s.tree()
    assert s.check()
    assert s.check(level="device")


def test_a_cut_kernel_stays_one_kernel_and_replays_to_the_same_source():
    x = tir.placeholder((9,), name="X")
    y = tir.compute((9,), lambda i: x[i] + 1, name="Y")
    s = tir.Schedule(y, "opencl")
    s.partition("Y.i", [3])
    assert len(lower(s.program, s.target).kernels) == 1
    assert tir.replay(y, s.trace, target="opencl").source() == s.source()
    assert s.check()


def stencil(target="opencl -kind=cpu", thread=False):
    """Sums of two neighbours, two rows a block; the first and the last block reach beyond the border."""
    x = tir.placeholder((8, 16), name="X")
    y = tir.compute((8, 16), lambda i, j: x.get(i - 1, j, fill=0) + x.get(i + 1, j, fill=0), name="Y")
    s = tir.Schedule(y, target)
    i0, _ = s.split("Y.i", [None, 2])
    s.partition(i0, [1, 3])
    s.bind(i0, "block.x")
    if thread:
        s.bind("Y.j", "thread.x")
    else:
        s.vectorize(s.split("Y.j", [None, 8])[1])
    return s


def test_each_block_runs_the_copy_of_its_part():
    s = stencil()
    parts = find(body(s), If)
    assert len(parts) == 3
    assert [len(find(p, Select)) for p in parts] == [1, 0, 1]  # only the border asks whether a row exists
    assert len(lower(s.program, s.target).kernels) == 1
    assert s.check()
    assert s.check(level="device")
    assert tir.replay(s.outputs[0], s.trace, target=s.target).source() == s.source()


def test_blocks_of_several_threads_keep_one_body():
    s = stencil("opencl -kind=gpu", thread=True)
    assert not find(body(s), If)
    assert s.check()


TAILS_OF_BLOCKS = {
    "partition": lambda s: s.partition("Y.i", [5]).bind("Y.i", "block.x"),
    "balanced": lambda s: s.bind(s.split("Y.i", [None, 8], tail="balanced")[0], "block.x"),
    "peel": lambda s: s.bind(s.split("Y.i", [None, 8], tail="peel")[0], "block.x"),
}
KEPT = "no partition at {}: a block of 24 threads has one body"


@pytest.mark.parametrize("target", ["opencl", "opencl -kind=gpu", "cuda", "hip"])
@pytest.mark.parametrize(("how", "at"), [("partition", 5), ("balanced", 2), ("peel", 4)])
@pytest.mark.parametrize("inside", [True, False])
def test_what_is_not_cut_is_said(how, at, target, inside):
    """By the tree and by the text, wherever the threads stand; and by neither of a kernel that is cut."""
    X = tir.placeholder((37, 24), name="X")
    Y = tir.compute((37, 24), lambda i, j: tir.where(i < 5, X[i, j], X[i, j] * 2), name="Y")
    for threads in (True, False):
        s = tir.Schedule(Y, target)
        TAILS_OF_BLOCKS[how](s)
        if not inside:
            s.reorder("Y.j", *(n for n in s["Y"].axes if n != "Y.j"))
        s.bind("Y.j", "thread.x" if threads else "block.y")
        said = KEPT.format(at)
        assert (f"# block.x, {said}" in s.tree()) == threads
        assert (f";  // {said}\n" in s.source()) == threads
        assert (f"partition at {at}" in s.tree()) and (f"// no partition at {at}" in s.source()) == threads
        assert s.check()


def test_a_thread_has_one_iteration_and_no_parts():
    X = tir.placeholder((12,), name="X")
    s = tir.Schedule(tir.compute((12,), lambda i: tir.where(i < 5, X[i], 0), name="Y"), "cuda")
    s.partition("Y.i", [5]).bind("Y.i", "thread.x")
    said = "no partition at 5: each thread has an iteration"
    assert f"# thread.x, {said}" in s.tree() and f"// {said}\n" in s.source()
    assert s.check()


def test_every_block_of_a_balanced_loop_has_its_own_size():
    s = tiled_matmul(7, "balanced", tile=4)
    s = tir.Schedule(s.outputs, "opencl -kind=cpu")
    s.stage_out("C", "root", "register")
    i0, i1 = s.split("C.out.i", [None, 4], tail="balanced")
    s.bind(i0, "block.x")
    s.compute_at("C", i0)
    s.unroll("C.i").unroll(i1)
    assert len(find(body(s), If)) == 2
    assert [a.buffer.dims[0] // 32 for a in find(body(s), Alloc)] == [4, 3]
    assert s.check()
    assert s.check(level="device")


def test_cuts_add_up():
    a = tir.placeholder((20,), name="A")
    s = tir.Schedule(tir.compute((20,), lambda i: a[i] + 1, name="C"), "opencl -kind=cpu")
    i0, _ = s.split("C.i", [None, 6], tail="peel")
    s.partition(i0, [1]).partition(i0, [2])
    assert "partition at 1, 2, 3" in s.tree()
    assert s.check()


def test_a_stage_that_fills_two_buffers_fills_both_as_far_as_they_are_read():
    x = tir.placeholder((40,), name="X")
    p, q = tir.compute((34,), lambda i: (x[i] * 2, x[i + 6] * 3), name="P")
    s = tir.Schedule(tir.compute((29,), lambda i: p[i] + q[i + 5], name="Y"), "opencl")
    outer, _ = s.split("Y.i", [None, 8], tail="balanced")
    s.compute_at(s.stages()[0], outer)
    s.set_scope(p, "register").set_scope(q, "register")
    assert s.check()
    assert s.check(level="device")


def test_parts_in_which_nothing_is_left_to_do_vanish():
    x = tir.placeholder((3, 3), name="X")
    s = tir.Schedule(tir.compute((3, 3), lambda i, j: x[i, j] + 1, name="Y"), "opencl -kind=cpu")
    rows, i = s.split("Y.i", [None, 8])
    f0, _ = s.split(s.fuse(i, "Y.j"), [None, 6], tail="balanced")
    s.partition(f0, [1, 2, 3])
    s.bind(rows, "block.x")
    assert s.check()
    assert s.check(level="device")


def test_a_part_of_the_blocks_knows_which_they_are():
    """Two rows a block of 15: only the last block asks whether a row exists."""
    x = tir.placeholder((15, 16), name="X")
    s = tir.Schedule(tir.compute((15, 16), lambda i, j: x[i, j] + 1, name="Y"), "opencl -kind=cpu")
    i0, _ = s.split("Y.i", [None, 2])
    s.partition(i0, [7]).bind(i0, "block.x")
    first, _ = find(body(s), If, lambda c: bool(find(c, Loop)))
    assert not find(first.then, If)
    assert s.check()
