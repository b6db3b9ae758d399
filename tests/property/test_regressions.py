"""Every bug that random schedules have found, as small as it gets."""

import numpy as np
import pytest
import random_schedules as drawn

import tensorir as tir

CASES = {
    # a fused loop that drove a spatial and a reduction axis left the initialisation with a variable that did not exist
    "fuse spatial with reduce": ("argmin", (2, 3, 1), [("fuse", "Y.i", "Y.r")], "fuse.mixed-axes"),
    "fuse reduce with spatial": (
        "pool",
        (1, 2, 2),
        [("reorder", "Y.r", "Y.j"), ("fuse", "Y.r", "Y.j")],
        "fuse.mixed-axes",
    ),
    "fuse parts of a spatial and a reduce axis": (
        "matmul",
        (1, 1, 1),
        [("tile", "C.k", "C.i", {"factors": [5, 8]}), ("fuse", "C.k.1", "C.i.1")],
        "fuse.mixed-axes",
    ),
    # a version of a body that never runs had room for a negative number of elements
    "a version that never runs": (
        "two_matmuls",
        (3, 5, 1),
        [("specialize", "C.i", "C.i != 2 or not C.i < 1"), ("stage_out", "C", "C.i", "shared")],
        None,
    ),
    # barriers asked which slot of a ring an access without an index is in
    "one element in global memory, made by several threads": (
        "total",
        (1, 2, 1),
        [("stage_in", "X", "Y.r", "global", {"cooperative": False}), ("bind", "X_global.ax1", "thread.y")],
        None,
    ),
    # what stood in a loop of virtual threads alone became several kernels
    "virtual threads around two statements": (
        "pool",
        (1, 1, 1),
        [("bind", "Y.i", "vthread"), ("stage_out", "Y", "Y.i", "register")],
        None,
    ),
    # spare elements of a workspace were not allocated
    "padded workspace": ("upsample", (1, 1, 1), [("layout", "Y", {"pad": 1})], None),
    "padded workspace of rank 4": ("conv2d", (1, 1, 1), [("layout", "X_pad", {"pad": 3})], None),
    # a copy inside a reduction was closed in pieces that had not opened it, once a later split overshot
    "a split of the pieces of a reopened copy": (
        "total",
        (7, 7, 7),
        [("stage_out", "Y", "Y.q", "global"), ("split", "Y.r", [None, 2], {"tail": "balanced"})],
        None,
    ),
    "the stage that closes a reopened copy": (
        "total",
        (2, 2, 2),
        [("stage_out", "Y", "Y.q", "register"), ("stage_out", "Y.out", "Y.q", "register")],
        "stage-out.ordered",
    ),
    # the copy was written out behind a reader that needed it
    "stage_out behind its reader": (
        "conv2d",
        (1, 1, 1),
        [("stage_in", "X_pad", "Y.q", "shared"), ("stage_out", "X_pad_shared", "Y.k", "register")],
        "stage-out.read-before",
    ),
    # cells written by one thread and read by another
    "register tile filled by blocks": (
        "anywhere",
        (1, 2, 1),
        [("stage_in", "X", "Y.i", "register"), ("bind", "X_register.ax1", "block.y")],
        "scope.private",
    ),
    "shared tile filled by blocks": (
        "two_outputs",
        (1, 2, 1),
        [("bind", "S.j", "block.z"), ("stage_out", "S", "S.i", "shared")],
        "scope.private",
    ),
    "global tile read by other blocks": (
        "matmul",
        (1, 2, 1),
        [("stage_out", "C", "C.i", "global"), ("bind", "C.j", "block.z")],
        "scope.grid-wide",
    ),
    "global copy written by every block": (
        "gather",
        (2, 1, 1),
        [("bind", "G.p", "block.y"), ("stage_in", "B", "G.q", "global")],
        "scope.overlap",
    ),
    "global copy written by one block and read by all": (
        "upsample",
        (1, 1, 1),
        [("reorder", "Z.j", "Z.i"), ("bind", "Z.i", "block.y"), ("stage_in", "Y", "Z.j", "global")],
        "scope.grid-wide",
    ),
    "initialised by one kind of block, summed by another": (
        "epilogue",
        (1, 2, 1),
        [("decompose_reduction", "C", "C.j"), ("bind", "C.init.j", "block.y")],
        "scope.grid-wide",
    ),
    "a register tile copied for the whole block": (
        "pool",
        (2, 1, 1),
        [
            ("bind", "Y.i", "thread.y"),
            ("stage_out", "Y", "Y.j", "register"),
            ("stage_in", "Y_register", "Y.out.i", "shared", {"cooperative": False}),
        ],
        "scope.private",
    ),
    # the initialisation ran on every thread although the reduction ran on one
    "init of a reduction that one thread does": (
        "anywhere",
        (1, 1, 1),
        [("split", "Z.j", [1, 4]), ("compute_at", "Y", "Z.j.0"), ("bind", "Z.j.1", "thread.z")],
        None,
    ),
    # loops of one iteration were folded out of a box, and a later split let them overshoot
    "a copy of a copy in a loop that overshoots": (
        "pool",
        (1, 1, 1),
        [
            ("stage_in", "X", "Y.i", "shared", {"cooperative": False}),
            ("split", "Y.i", [3, 8]),
            ("stage_in", "X_shared", "Y.r", "shared", {"pad": 4}),
        ],
        None,
    ),
    "a box over a thread axis of one thread": (
        "chain",
        (1, 2, 1),
        [
            ("stage_out", "Y", "Y.q", "register"),
            ("stage_out", "Y.out", "Y.p", "shared"),
            ("bind", "Y.out.out.p", "thread.x"),
            ("compute_at", "Y.out", "Y.out.out.p"),
        ],
        None,
    ),
    "a copy of a copy whose maker has a tail of its own": (
        "anywhere",
        (2, 1, 1),
        [
            ("stage_in", "X", "Z.j", "register", {"pad": 4}),
            ("split", "X_register.ax0", [None, 5, 8]),
            ("stage_out", "X_register", "X_register.ax0.0", "global"),
            ("stage_in", "X_register_global", "X_register.out.ax0", "shared"),
        ],
        None,
    ),
    # the other state of a reduction that is outermost was allocated twice
    "a reduction outermost, with a hidden state": ("argmin", (1, 2, 1), [("reorder", "Y.r", "Y.i")], None),
    # constants have no place to be moved to
    "scope of a constant": ("constants", (1, 1, 1), [("set_scope", "W", "register")], "set-scope.own-buffer"),
    "layout of a constant": ("constants", (1, 1, 1), [("layout", "W", {"pad": 1})], "layout.own-buffer"),
    # a copy at the root of an intermediate tensor renamed what its producer writes
    "stage_in at the root of a computed tensor": ("normalise", (2, 3, 1), [("stage_in", "S", "root", "global")], None),
    "stage_in at the root of an output": ("two_outputs", (2, 3, 1), [("stage_in", "T_0", "root", "global")], None),
    # nothing else can run inside loops that are dealt out or vectorized
    "a copy inside a cooperative copy": (
        "window",
        (1, 1, 1),
        [("stage_in", "P", "Y.i", "shared"), ("stage_in", "P", "P_shared.ax0", "shared")],
        "stage-in.room",
    ),
    "a vectorized loop moved out": (
        "argmin",
        (1, 4, 1),
        [("stage_in", "X", "root", "global", {"vector": 2}), ("reorder", "X_global.ax1.1", "X_global.ax1.0")],
        "reorder.vectorized",
    ),
    # the right side of && was evaluated where the left one failed (in the interpreter)
    "a condition that guards a load": (
        "window",
        (1, 1, 1),
        [("split", "Z.i", [None, 4]), ("stage_out", "Z", "Z.i.0", "register")],
        None,
    ),
    # a tail that leaves out terms of a sum leaves out no cell
    "a partial sum whose terms are all beyond the end, copied out": (
        "product_where",
        (1, 1, 1),
        [("split", "Y.r", [2, None]), ("rfactor", "Y", "Y.r.0"), ("stage_out", "Y.rf", "Y.rf.r.0", "global")],
        None,
    ),
    "two axes of partial sums": (
        "total",
        (1, 1, 1),
        [("split", "Y.q", [3, 8]), ("rfactor", "Y", "Y.q.0"), ("rfactor", "Y.rf", "Y.rf.q.1")],
        None,
    ),
    "partial sums over a loop that overshoots by itself": (
        "product_where",
        (2, 9, 1),
        [("split", "Y.r", [None, 4]), ("fuse", "Y.r.0", "Y.r.1"), ("rfactor", "Y", "Y.r.0&r.1")],
        None,
    ),
    # reads of a local copy in the place of another copy were not seen
    "a copy at an index that was copied": (
        "gather",
        (3, 2, 4),
        [("stage_in", "at", "G.q", "register"), ("stage_in", "B", "G.q", "shared")],
        None,
    ),
    "a copy whose place is read from a table, in a loop that overshoots": (
        "gather",
        (1, 4, 1),
        [("split", "G.p", [5, None]), ("stage_in", "B", "G.p.1", "global")],
        None,
    ),
    # a read of global memory was clamped to a cell that another iteration writes later
    "a clamped read of what this kernel makes": (
        "normalise",
        (2, 1, 1),
        [
            ("compute_inline", "E"),
            ("stage_in", "M", "S.i", "global"),
            ("split", "S.i", [None, 2, 8]),
            ("stage_out", "S", "S.i.1", "register"),
            ("bind", "S.i.1", "thread.y"),
        ],
        None,
    ),
    "partial sums beside a loop of one iteration that is fused away": (
        "total",
        (1, 1, 1),
        [("tile", "Y.r", "Y.q", {"factors": [8, 5]}), ("rfactor", "Y", "Y.q.1"), ("fuse", "Y.rf.r.0", "Y.rf.q.0")],
        None,
    ),
    # the first and the last lane agreed, the ones between did not
    "a condition that repeats along the lanes": (
        "upsample",
        (2, 1, 1),
        [("fuse", "Z.i", "Z.j"), ("vectorize", "Z.i&j")],
        None,
    ),
    # the initialisation in a kernel of its own makes the buffer global
    "blocks that read what others of their kernel sum": (
        "epilogue",
        (1, 2, 1),
        [("reverse_compute_at", "D", "C.i"), ("bind", "C.j", "block.y"), ("decompose_reduction", "C", "C.i")],
        "scope.grid-wide",
    ),
    # an initialisation outside a loop that runs the whole reduction again
    "initialised once, summed twice": (
        "two_matmuls",
        (1, 1, 2),
        [("compute_at", "C", "D.j"), ("decompose_reduction", "C", "D.i")],
        "decompose.repeats",
    ),
    "initialised once, summed for each reader": (
        "best_two",
        (1, 1, 2),
        [("compute_at", "S", "T.j"), ("decompose_reduction", "S", "T.j")],
        "decompose.repeats",
    ),
    # a copy at the root held one row, because the loop over the rows ran once then
    "a copy at the root before a loop overshoots": (
        "pool",
        (1, 1, 1),
        [
            ("stage_out", "Y", "Y.j", "register"),
            ("stage_in", "X", "root", "global", {"pad": 1}),
            ("split", "Y.i", [None, 8]),
        ],
        None,
    ),
    # threads that fill a copy together, each wanting its own
    "a cooperative copy for each thread, through global memory": (
        "upsample",
        (1, 4, 1),
        [("stage_in", "Y", "Z.i", "shared"), ("stage_out", "Y_shared", "Z.i", "global"), ("bind", "Z.i", "thread.x")],
        "scope.private",
    ),
    # sums that overshoot added to cells that nobody had initialised
    "an initialisation smaller than the sum": (
        "two_matmuls",
        (1, 1, 1),
        [
            ("stage_out", "C", "C.j", "register"),
            ("split", "C.j", [None, 1]),
            ("split", "C.j.0", [None, 8]),
            ("decompose_reduction", "C", "C.j.0.0"),
            ("split", "C.j.0.1", [None, 5]),
        ],
        None,
    ),
    # a consumer was placed behind the initialisation of what it reads
    "a reader placed behind an initialisation": (
        "padded_pool",
        (1, 1, 1),
        [
            ("stage_out", "Y", "Y.j", "global"),
            ("decompose_reduction", "Y", "Y.j"),
            ("reverse_compute_at", "Y.out", "Y.init.j"),
        ],
        "reverse-compute-at.made-later",
    ),
    "blocks that write one cell at different times": (
        "pool",
        (2, 1, 3),
        [("reorder", "Y.r", "Y.i", "Y.j"), ("bind", "Y.i", "block.x"), ("stage_in", "X", "Y.j", "global")],
        "scope.overlap",
    ),
    # several threads of one block read, then one of them writes behind a barrier: no race
    "readers of one block before a writer": (
        "padded_pool",
        (2, 1, 4),
        [
            ("split", "Y.i", [4, 3]),
            ("stage_in", "X", "Y.i.0", "register"),
            ("bind", "Y.i.1", "thread.y"),
            ("set_scope", "X_register", "global"),
        ],
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_found_by_random_schedules(name):
    what, extents, calls, code = CASES[name]
    case = drawn.Case(what, extents, "float32", "opencl")
    s = case.schedule()
    calls = [(c[0], c[1:-1], c[-1]) if isinstance(c[-1], dict) else (c[0], c[1:], {}) for c in calls]
    for primitive, args, options in calls[:-1]:
        getattr(s, primitive)(*args, **options)
    primitive, args, options = calls[-1]
    before = str(s)
    if code is None:
        getattr(s, primitive)(*args, **options)
        assert drawn.check(s, case) == "ok"
        return
    with pytest.raises(tir.ScheduleError) as caught:
        getattr(s, primitive)(*args, **options)
    assert caught.value.code == code
    assert str(s) == before


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "float32", "float64"])
def test_scalars_beside_vectors(dtype):
    """``char4 * 2`` does not compile: the 2 is an int."""
    pytest.importorskip("pyopencl")
    X, v = tir.placeholder((4, 8), dtype, name="X"), tir.placeholder((4,), dtype, name="v")
    Y = tir.compute(
        (4, 8), lambda i, j: (X[i, j] * 2 + 1, 3 - X[i, j] * v[i], X[i, j] + tir.where(i < 2, v[i], 5)), name="Y"
    )
    s = tir.Schedule(Y)
    s.vectorize(s.split("Y.j", [None, 4])[1])
    x, w = np.arange(32).reshape(4, 8).astype(dtype), np.array([1, 2, 3, 4], dtype)
    got = s.build()(x, w)
    wide = x.astype("int64")
    want = (wide * 2 + 1, 3 - wide * w[:, None], wide + np.array([[1], [2], [5], [5]]))
    for g, one in zip(got, want, strict=True):
        assert np.array_equal(g, one.astype(dtype))


def test_an_identity_that_is_neutral_for_the_data_only():
    """-100 is no identity of max in the field: it counts once on both sides."""
    case = drawn.Case("best_two", (2, 3, 2), "float32", "opencl")
    assert drawn.check(case.schedule(), case) == "ok"


def test_equal_lanes_on_both_sides_of_a_choice():
    """A vector chosen lane by lane between two constants is still a vector."""
    case = drawn.Case("pool", (7, 12, 12), "int32", "cuda")
    s = case.schedule()
    s.split("Y.i", [None, 5])
    s.split("Y.j", [None, 2, 8])
    s.partition("Y.i.1", [4])
    s.reorder("Y.i.0", "Y.i.1", "Y.j.0", "Y.r", "Y.j.2")
    s.stage_out("Y", "Y.r", "shared")
    s.vectorize("Y.init.j.2")
    assert drawn.check(s, case) == "ok"
