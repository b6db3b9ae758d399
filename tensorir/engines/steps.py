"""Schedule helpers of engines: the output stage, divisors for tiles, unroll hints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorir.ir.visit import writes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule


def out_stage(s: BaseSchedule, main: str, scope: str = "register", epilogue: str | None = None) -> str:
    """Name of the stage that writes the output: the epilogue, or a copy of ``main`` created here (``stage_out``).

    scope: memory of ``main`` if the copy is created
    epilogue: its name, or "" for ``<main>.out``, used if it exists; None: the last stage, with the stages between
              ``main`` and it inlined
    """
    if epilogue is not None:
        own = epilogue or f"{main}.out"
        return own if own in s.index.stages else s.stage_out(main, at="root", scope=scope).name
    names = [st.name for st in s.stages()]
    if names[-1] == main:
        return s.stage_out(main, at="root", scope=scope).name
    return last_stage(s, names[names.index(main) + 1])


def last_stage(s: BaseSchedule, main: str) -> str:
    """Name of the last stage, after inlining ``main`` and all stages between into it."""
    names = [st.name for st in s.stages()]
    for name in names[names.index(main) : -1]:
        s.compute_inline(name)
    return names[-1]


def written_by(s: BaseSchedule, stage: str) -> str:
    """Name of the first array that a stage writes."""
    return writes(s.index.stages[stage].body)[0].name


def unroll_by(s: BaseSchedule, loop: str, times: int) -> BaseSchedule:
    """Annotate ``loop`` with an unroll factor, if greater than 1."""
    return s.annotate(loop, "unroll", times) if times > 1 else s


def divisors_near(n: int, wanted: Sequence[int]) -> list[int]:
    """Candidate part sizes of n, ascending: n, n/2, n/3, n/4, n/8 rounded up, and those of ``wanted`` below n."""
    out = {n, *(-(-n // d) for d in (2, 3, 4, 8)), *(x for x in wanted if x < n)}
    return sorted(out)


def divisor_of(k: int, most: int) -> int:
    """Greatest divisor of k that is at most ``most``; 1 if ``most`` < 1."""
    return next(d for d in range(max(1, min(k, most)), 0, -1) if k % d == 0)


def divisor_near(k: int, wanted: int) -> int:
    """Divisor of k nearest to ``wanted``, within 3/4 to 3/2 of it; else k // parts rounded up, a length near it."""
    near = [d for d in range(max(1, 3 * wanted // 4), 3 * wanted // 2 + 1) if k % d == 0]
    return min(near, key=lambda d: abs(d - wanted)) if near else -(-k // max(1, round(k / wanted)))
