"""Rewrites copy nests of ``stage_in(…, via="tma")`` and ``stage_out`` to whole-tile TMA copies."""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.intrin.declare import MOST_DIMS
from tensorir.intrin.hopper import tile_copy, tile_store
from tensorir.intrin.match import MOST_SPAN
from tensorir.ir.build import as_expr, as_int, binary
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, Expr, Kind, Loop, Scope, Stage, Stmt, Var
from tensorir.ir.visit import find, substitute
from tensorir.schedule.rewrite import nest
from tensorir.target import Target

MECHANISMS = ("threads", "tma")
ROW_BYTES = 128
"""Of a row of a tile, where it is swizzled (CUDA driver API, cuTensorMapEncodeTiled)."""
PIECE_BYTES = 16


def need_mechanism(via: str, primitive: str) -> bool:
    """True for "tma", False for "threads"; raises ``stage-in.via`` or ``stage-out.via`` for others."""
    if via not in MECHANISMS:
        raise ScheduleError(Problem(f"{primitive}.via", f"via={via!r} copies nothing", hint=f"one of {MECHANISMS}"))
    return via == "tma"


def tile_copies(made: Stmt, buffer: Buffer, copy: Buffer, target: Target, primitive: str) -> Stmt:
    """Copy nest ``made`` rewritten as loops over tiles, with one asynchronous copy instruction (TMA) per tile.

    buffer: the array in global memory;  copy: its copy in shared memory
    primitive: "stage-in" fills ``copy`` from ``buffer``, "stage-out" stores it back
    Raises ScheduleError ``stage-in.tile-copy``, ``stage-out.tile-copy``.
    """

    def _refuse(message: str, hint: str) -> ScheduleError:
        return ScheduleError(Problem(f"{primitive}.tile-copy", message, hint=hint))

    if not target.has("sm_90"):
        raise _refuse(f"{target.text} has no asynchronous copies of whole tiles", "via='threads', or -arch=sm_90a")
    if copy.scope is not Scope.SHARED or buffer.scope not in (Scope.GLOBAL, Scope.AUTO):
        raise _refuse(f"whole tiles are copied between global and shared memory: {buffer.name} is in "
                      f"{buffer.scope.value}, {copy.name} in {copy.scope.value} memory",
                      "scope='shared', of a tensor in global memory")  # fmt: skip
    size, loops, stage = DTYPES[buffer.dtype].bits // 8, find(made, Loop), find(made, Stage)[0]
    dims = [as_int(n) for n in buffer.shape]
    if len(dims) > 1 and dims[-1] * size % PIECE_BYTES:  # and so is each stride, being so many rows
        raise _refuse(f"{buffer.name} has rows of {dims[-1]} elements, whose {dims[-1] * size} bytes are no multiple "
                      f"of {PIECE_BYTES}", "via='threads'")  # fmt: skip
    if len(dims) > MOST_DIMS and buffer.scope is Scope.GLOBAL:  # others may be inlined: lowering knows the array
        raise _refuse(f"{buffer.name} has {len(dims)} dimensions, and tiles have up to {MOST_DIMS}", "via='threads'")
    columns = as_int(loops[-1].extent)
    row = ROW_BYTES // size if copy.layout is not None else MOST_SPAN
    box = [*(_divisor(as_int(x.extent), MOST_SPAN) for x in loops[:-1]), _divisor(columns, row)]
    if box[-1] * size % PIECE_BYTES:
        raise _refuse(f"a row of {columns} elements falls into pieces of {box[-1] * size} bytes, no multiple of "
                      f"{PIECE_BYTES}", "tiles along the last dimension of 16, 32, 64 or 128 bytes")  # fmt: skip
    outer: list[Loop] = []
    inner: list[Loop] = []
    values: dict[Var, Expr] = {}
    for x, n in zip(loops, box, strict=True):
        o, i = Var(f"{x.var.name}.0", "index"), Var(f"{x.var.name}.1", "index")
        outer.append(Loop(o, as_expr(as_int(x.extent) // n), stage, Kind.UNROLL))
        inner.append(Loop(i, as_expr(n), stage, Kind.INTRIN))
        values[x.var] = binary("+", binary("*", o, n), i)
    tile = tuple(n for d, n in enumerate(box) if n > 1 or d == len(box) - 1)
    move = tile_copy if primitive == "stage-in" else tile_store
    marked = substitute(stage, values).replace(intrin=move(buffer.dtype, tile))
    return nest([*outer, *inner], marked)


def _divisor(n: int, most: int) -> int:
    """The largest divisor of ``n`` up to ``most``."""
    return next(d for d in range(min(n, most), 0, -1) if n % d == 0)
