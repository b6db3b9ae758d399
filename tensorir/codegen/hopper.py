"""Text for Hopper's asynchronous statements: mbarriers, TMA copies, wgmma groups, register redistribution (PTX
ISA 8).
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.codegen.expressions import Expressions
from tensorir.intrin.hopper import first_registers
from tensorir.ir.build import as_int
from tensorir.ir.tree import (
    Arrive,
    Await,
    Buffer,
    CommitGroup,
    Expr,
    Fence,
    InitBarriers,
    IntrinCall,
    Role,
    Scope,
    Stmt,
    WaitGroup,
)  # fmt: skip
from tensorir.ir.visit import find, reads, writes

_COMMIT = {"copies": "tir_commit_copies", "products": "tir_wgmma_commit", "stores": "tir_commit_stores"}
_WAIT_CALLS = {"copies": "tir_wait_copies", "products": "tir_wgmma_wait", "stores": "tir_wait_stores"}


def product_registers(body: Stmt) -> tuple[set[Buffer], set[Buffer]]:
    """(accumulators, register operands) of the wgmma instructions in ``body``."""
    products = find(body, IntrinCall, lambda call: call.intrin.later)
    own = (Scope.REGISTER, Scope.WARP)
    sums = {b for call in products for b in writes(call) if b.scope in own}
    return sums, {b for call in products for b in reads(call) if b.scope in own} - sums


def order_lines(s: Stmt, expr: Expressions, sums: Sequence[Buffer], given: Sequence[Buffer]) -> list[str]:
    """Lines for the fence, commit, wait or arrival ``s`` of asynchronous work; TypeError for other statements.

    sums, given: accumulators and register operands of wgmma instructions declared here. Compilers do not know what
                 these instructions access: empty asm statements on the registers keep accesses before or after them
    """
    line = _order_line(s, expr)
    if isinstance(s, Fence) and s.of == "products":
        return [*_holds([*sums, *given], expr), line]
    if isinstance(s, WaitGroup) and s.of == "products" and not s.pending:
        return [line, *_holds(sums, expr)]
    return [line]


def _holds(registers: Sequence[Buffer], expr: Expressions) -> list[str]:
    if registers:
        expr.need("tir_hold")
    return [f"tir_hold({expr.names.buffer(b)});" for b in registers]


def _order_line(s: Stmt, expr: Expressions) -> str:
    def call(name: str, arguments: str = "", pending: int | None = None) -> str:
        expr.need(name)
        return f"{name}{'' if pending is None else f'<{pending}>'}({arguments});"

    match s:
        case CommitGroup():
            return call(_COMMIT[s.of])
        case WaitGroup():
            return call(_WAIT_CALLS[s.of], pending=s.pending)
        case Fence():
            return call("tir_wgmma_fence" if s.of == "products" else "tir_async_fence")
        case Arrive() if s.rank is not None:
            return call("tir_barrier_arrive_at", f"{barrier(s.buffer, s.index, expr)}, {expr(s.rank)}")
        case Arrive() if s.bytes:
            return call("tir_barrier_expect", f"{barrier(s.buffer, s.index, expr)}, {s.bytes}")
        case Arrive():
            return call("tir_barrier_arrive", barrier(s.buffer, s.index, expr))
        case Await():
            return call("tir_barrier_wait", f"{barrier(s.buffer, s.index, expr)}, {expr(s.parity)}")
    raise TypeError(type(s).__name__)


def barrier(b: Buffer, index: tuple[Expr, ...], expr: Expressions) -> str:
    """C text of the address of the mbarrier ``b[index]``."""
    return f"&{expr.names.buffer(b)}[{expr(index[0])}]"


def init_lines(s: InitBarriers, expr: Expressions) -> list[str]:
    """Lines by which one thread initializes mbarriers and makes them visible; the block's barrier follows
    separately.
    """
    expr.need("tir_barrier_init")
    expr.need("tir_barriers_ready")
    name, count = expr.names.buffer(s.buffer), as_int(s.buffer.shape[0])
    return [
        "if (threadIdx.x + threadIdx.y == 0) {",
        f"  for (int n = 0; n < {count}; ++n) tir_barrier_init(&{name}[n], {s.arrivals});",
        "  tir_barriers_ready();",
        "}",
    ]


def registers_line(r: Role, threads: int, expr: Expressions) -> list[str]:
    """The line by which a role's warps take or release registers (``setmaxnreg``); [] if they keep those assigned at
    launch.
    """
    begins = first_registers(threads)
    if r.registers in (0, begins):
        return []
    name = "tir_registers_up" if r.registers > begins else "tir_registers_down"
    expr.need(name)
    return [f"{name}<{r.registers}>();"]
