"""``lower``: runs the lowering passes in order and verifies the final form."""

from __future__ import annotations

from collections.abc import Iterator

from tensorir.errors import DeclarationError, LoweringError
from tensorir.ir.tree import Alloc, Kind, Loop, Program, Scope, Stage, Update
from tensorir.ir.visit import find, has, reads, writes
from tensorir.lower.bind_threads import bind_threads
from tensorir.lower.boxes import LOCAL
from tensorir.lower.combine_threads import combine_threads
from tensorir.lower.compact import compact
from tensorir.lower.deal_copies import deal_copies
from tensorir.lower.emit_guards import emit_guards
from tensorir.lower.end_loops import end_loops
from tensorir.lower.expand_stages import expand_stages
from tensorir.lower.expand_updates import expand_updates
from tensorir.lower.finish import finish
from tensorir.lower.flatten import flatten
from tensorir.lower.fold_constants import fold_constants
from tensorir.lower.form import Pass, fail
from tensorir.lower.form_instructions import form_instructions
from tensorir.lower.hold_cells import hold_cells
from tensorir.lower.insert_barriers import insert_barriers
from tensorir.lower.interleave_vthreads import interleave_vthreads
from tensorir.lower.kernel import Module, module_of
from tensorir.lower.name_indices import name_indices
from tensorir.lower.name_values import name_values
from tensorir.lower.order_products import order_products
from tensorir.lower.partition_loops import partition_loops
from tensorir.lower.pipeline_loops import pipeline_loops
from tensorir.lower.resolve_scopes import resolve_scopes
from tensorir.lower.room import need_room
from tensorir.lower.settle_copies import settle_copies
from tensorir.lower.specialize_loops import specialize_loops
from tensorir.lower.split_init import split_init
from tensorir.lower.split_roles import split_roles
from tensorir.lower.spread_warps import spread_warps
from tensorir.lower.start_products import start_products
from tensorir.lower.vectorize import vectorize
from tensorir.lower.version_loops import version_loops
from tensorir.target import Target

PASSES: list[Pass] = [
    resolve_scopes,
    combine_threads,
    interleave_vthreads,
    bind_threads,
    split_init,
    specialize_loops,
    partition_loops,
    deal_copies,
    emit_guards,
    form_instructions,
    expand_updates,
    compact,
    spread_warps,
    start_products,
    order_products,
    split_roles,
    pipeline_loops,
    insert_barriers,
    expand_stages,
    flatten,
    vectorize,
    settle_copies,
    hold_cells,
    fold_constants,
    end_loops,
    version_loops,
    finish,
    name_indices,
    name_values,
]
"""In order; each module says what its pass needs and gives."""

_STANDARD = tuple(PASSES)


def standard() -> bool:
    """True if ``PASSES`` is unmodified."""
    return tuple(PASSES) == _STANDARD


# A missing barrier is not a missing form: the interpreter finds the race.
REQUIRED = tuple(p.__name__ for p in PASSES if p is not insert_barriers)


def forms(program: Program, target: Target) -> Iterator[tuple[str, Program]]:
    """Yield (pass name, program): the initial program, then the result of each pass."""
    yield "scheduled", program
    for p in PASSES:
        program = p(program, target)
        yield p.__name__, program


def lower(program: Program, target: Target) -> Module:
    """Return the kernels of a scheduled program (Module) by running all lowering passes.

    Raises LoweringError when the program cannot be expressed, or when a pass is missing (``lower.pass-missing``);
    ``dim.constant`` where it needs a constant extent; CompileError for what the target cannot hold (``need_room``).
    """
    try:
        for p in PASSES:
            program = p(program, target)
        verify(program)
        return need_room(module_of(program), target)
    except DeclarationError as e:
        if e.code == "dim.constant":  # an instruction, or a layout, that no expression of dims has
            raise LoweringError(e.problems) from None
        raise


def verify(program: Program) -> None:
    """Raise LoweringError ``lower.pass-missing`` or ``lower.form`` unless the program can be printed or interpreted."""
    missing = [name for name in REQUIRED if name not in program.done]
    if missing:
        raise fail("lower.pass-missing", f"the pass {missing[0]} has not run", "restore tensorir.lower.pipeline.PASSES")
    if has(program.body, Stage, Update):
        raise fail("lower.form", "stages remain after lowering")
    left = {x.kind for x in find(program.body, Loop)} & {Kind.VECTOR, Kind.COOPERATIVE, Kind.INTRIN}
    if left:
        raise fail("lower.form", f"{next(iter(left)).value} loops remain after lowering")
    allocated = {a.buffer for a in find(program.body, Alloc)}
    for b in {*reads(program.body), *writes(program.body)}:
        if b.scope is Scope.AUTO or (b.scope in LOCAL and b not in allocated):
            raise fail("lower.form", f"{b.name} has no place in memory after lowering")
