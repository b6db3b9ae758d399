"""Steps of engines and templates: the stage that writes the output, divisors for tiles, hints to unroll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorir.ir.visit import writes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule


def out_stage(s: BaseSchedule, main: str, scope: str = "register", epilogue: str | None = None) -> str:
    """The stage that writes the output: the epilogue where there is one, else a copy out of registers.

    epilogue: which that is, "" for none but that of a view (``reindex``); without it, all stages that follow: one of
              several (bias, then a conversion) is joined into its last one
    """
    if epilogue is not None:
        own = epilogue or f"{main}.out"
        return own if own in s.index.stages else s.stage_out(main, at="root", scope=scope).name
    names = [st.name for st in s.stages()]
    if names[-1] == main:
        return s.stage_out(main, at="root", scope=scope).name
    return last_stage(s, names[names.index(main) + 1])


def last_stage(s: BaseSchedule, main: str) -> str:
    """The stage that writes the output, with the copy ``main`` and an epilogue's earlier stages joined into it."""
    names = [st.name for st in s.stages()]
    for name in names[names.index(main) : -1]:
        s.compute_inline(name)
    return names[-1]


def written_by(s: BaseSchedule, stage: str) -> str:
    """The array that a stage writes."""
    return writes(s.index.stages[stage].body)[0].name


def unroll_by(s: BaseSchedule, loop: str, times: int) -> BaseSchedule:
    """A hint to write ``times`` iterations of a loop out in a row, where that is more than one."""
    return s.annotate(loop, "unroll", times) if times > 1 else s


def divisors_near(n: int, wanted: Sequence[int]) -> list[int]:
    """Sizes of equal parts of n: n itself, and about n/2, n/4 … rounded up, plus the wanted ones that are smaller."""
    out = {n, *(-(-n // d) for d in (2, 3, 4, 8)), *(x for x in wanted if x < n)}
    return sorted(out)


def divisor_near(k: int, wanted: int) -> int:
    """A divisor of k from 3/4 to 3/2 of ``wanted``; without one the length of balanced pieces of about that size."""
    near = [d for d in range(max(1, 3 * wanted // 4), 3 * wanted // 2 + 1) if k % d == 0]
    return min(near, key=lambda d: abs(d - wanted)) if near else -(-k // max(1, round(k / wanted)))
