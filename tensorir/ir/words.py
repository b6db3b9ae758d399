"""Enumerations of the IR: memory scopes, loop kinds, axis kinds."""

from __future__ import annotations

import enum


class Scope(enum.Enum):
    """Memory of a buffer (register, shared, global, …), which determines who shares one copy."""

    AUTO = "auto"  # lowering picks the narrowest scope that its readers allow
    GLOBAL = "global"  # the grid
    CLUSTER = "cluster"
    SHARED = "shared"  # a block
    WARP = "warp"  # the threads of a warp, or of a warpgroup: registers that instructions distribute to them
    REGISTER = "register"  # a thread
    CONSTANT = "constant"  # the grid, read-only
    BARRIER = "barrier"


class Kind(enum.Enum):
    """Kinds of loops: how their iterations are executed."""

    SERIAL = "serial"
    UNROLL = "unroll"
    VECTOR = "vectorize"
    COOPERATIVE = "cooperative"  # distributed to all threads of the block
    INTRIN = "tensorize"  # one of the loops that the instruction of the stage inside performs
    BLOCK_X, BLOCK_Y, BLOCK_Z = "block.x", "block.y", "block.z"
    CLUSTER = "cluster"  # blocks that run at the same time and may fill each other's shared memory
    THREAD_X, THREAD_Y, THREAD_Z = "thread.x", "thread.y", "thread.z"
    VTHREAD = "vthread"  # threads to whoever looks from outside, interleaved in a real one
    WARP_X, WARP_Y = "warp.x", "warp.y"  # whole warps: what is inside, their threads do together
    WARPGROUP = "warpgroup"  # four warps, whose 128 threads do together what is inside

    level: str
    """Hardware level of an iteration: "block", "thread" (loops over warps and warpgroups too) or "sequential"."""
    lanes: int
    """Threads that execute one iteration together: 32 for warps, 128 for warpgroups, else 1."""

    def __init__(self, word: str) -> None:  # told once: loops are asked for both all the time
        self.lanes = {"warp.x": 32, "warp.y": 32, "warpgroup": 128}.get(word, 1)
        bound = word.split(".")[0] if "." in word else {"cluster": "block", "vthread": "thread"}.get(word, "sequential")
        self.level = "thread" if self.lanes > 1 else bound


BLOCKS = (Kind.BLOCK_X, Kind.BLOCK_Y, Kind.BLOCK_Z)
THREADS = (Kind.THREAD_X, Kind.THREAD_Y, Kind.THREAD_Z)
WARPS = (Kind.WARP_X, Kind.WARP_Y, Kind.WARPGROUP)

SIDES = (8, 4)
"""Rows and columns of a register tile that may be transposed at a time (``codegen.shuffles``)."""


class Axis(enum.Enum):
    """Kinds of a stage's axes: spatial, reduce, ordered."""

    SPATIAL = "spatial"  # iterations write disjoint cells: any order, any thread
    REDUCE = "reduce"  # iterations combine into one cell: any order, one owner at a time
    ORDERED = "ordered"  # each iteration reads what the one before wrote: never reordered, bound or split-reduced
