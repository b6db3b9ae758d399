"""Finds kernels that can run once ahead of time: those that fill only ``once`` buffers from data known by then."""

from __future__ import annotations

from tensorir.ir.tree import Buffer, Program, Seq, Stmt
from tensorir.ir.visit import reads, writes


def nests(program: Program) -> tuple[Stmt, ...]:
    """Top-level nests of a program, one kernel each."""
    return program.body.stmts if isinstance(program.body, Seq) else (program.body,)


def runs_once(program: Program) -> list[bool]:
    """Per kernel, true if one run serves all launches on the same inputs.

    A buffer's ``once`` mark is a request. A nest qualifies if it writes a marked buffer, if all buffers it shares with
    other nests or the caller and writes are marked and written by qualifying nests only, and if it reads only inputs,
    constants, its own temporaries and results of qualifying nests.
    """
    wrote = [set(writes(n)) for n in nests(program)]
    once = [any(b.once for b in made) for made in wrote]
    if not any(once):
        return once
    read = [set(reads(n)) for n in nests(program)]
    users: dict[Buffer, int] = {}
    for b in (b for made, used in zip(wrote, read, strict=True) for b in made | used):
        users[b] = users.get(b, 0) + 1

    def ahead(made: set[Buffer], used: set[Buffer], late: set[Buffer]) -> bool:
        private = {b for b in made | used if users[b] == 1 and b not in program.params}
        known = {b for b in used if b.once or b.data is not None or b in program.inputs}
        return not late & (made | used) and all(b.once for b in made - private) and used <= known | private

    while True:
        late = {b for made, early in zip(wrote, once, strict=True) if not early for b in made}
        kept = [early and ahead(made, used, late) for early, made, used in zip(once, wrote, read, strict=True)]
        if kept == once:
            return once
        once = kept
