"""reduce_across: distribute the terms of a reduction to threads and combine their partial results."""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.habits import meant
from tensorir.errors.needs import need_text
from tensorir.ir.tree import THREADS, Axis, Loop, Program, Stage
from tensorir.schedule.analysis import (
    across,
    adds_atomically,
    caret,
    driven_axes,
    driven_by,
    has_axis,
    index_of,
    need_serial,
)
from tensorir.schedule.history import Name, S
from tensorir.schedule.primitives.binding import bound
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite
from tensorir.target import Target


@primitive("Reductions", moves=True)
def reduce_across(self: S, axis: Name, to: str) -> S:
    """Distribute the terms of a reduction to the threads of a thread axis, and combine the threads' partial results.

    ``axis`` is the outermost loop of the reduction. Each thread combines the terms of its iteration, from the identity
    on; those partial results are combined in about log2(threads) steps, in an order that the schedule alone decides: by
    warp shuffles on CUDA, where whole warps have each result (32, 64, 96 … threads of thread.x, or 2, 4, 8 or 16 of
    them) and its values have 32 or 64 bits, else by a tree in shared memory. All threads may read the result. The
    meaning stays that of the reduction, with any combiner; one that does not commute joins neighbours only
    """
    loop, history = self._loop(axis), self._history
    need_text("to", to, ScheduleError)
    history._apply("reduce_across", (loop, to), {}, lambda p: _reduce_across(p, loop, to, history.target))
    return self


def _reduce_across(program: Program, loop: Loop, axis: str, target: Target) -> Rewrite:
    kinds = {k.value: k for k in THREADS}
    if axis not in kinds:
        raise _refuse(
            "reduce-across.thread-axis", f"{axis} is not a thread axis", loop,
            f"{meant('axis', axis, kinds)}; partial results of blocks: s.rfactor(…, {loop.var.name!r})",
        )  # fmt: skip
    need_serial(loop, "reduce-across")
    if target.max_threads == 1:
        raise _refuse(
            "reduce-across.threads", f"blocks of {target.text} have one thread", loop,
            f"lanes of a vector: s.rfactor(…, {loop.var.name!r}), and vectorize its partial results",
        )  # fmt: skip
    for stage in _stages(loop):
        _need_alone(program, stage, loop, axis)
    return bound(program, loop, kinds[axis], target)


def _stages(loop: Loop) -> list[Stage]:
    """Stages reduced by ``loop``; raises ScheduleError if it drives no reduction axis, or also other axes."""
    found = [s for s, _ in has_axis(loop, Axis.REDUCE) if not adds_atomically(s)]
    others = [(s, it) for s, it in driven_by(loop) if s in found and it.axis is not Axis.REDUCE]
    others += has_axis(loop, Axis.ORDERED)
    if not found or others:
        what = "drives no reduction axis"
        if others:
            stage, it = others[0]
            what = f"drives the {it.axis.value} axis {it.var.name} of {stage.name}"
        raise _refuse(
            "reduce-across.reduce-loop", f"loop {loop.var.name} {what}", loop,
            f"a loop of a reduction; s.bind({loop.var.name!r}, …) of the result, s.atomic(…) of a scatter",
        )  # fmt: skip
    return found


def _need_alone(program: Program, stage: Stage, loop: Loop, to: str) -> None:
    """Raise ScheduleError if an outer loop repeats ``loop`` for the same element, or other threads already share its
    terms.
    """
    index = index_of(program)
    for x in index.above(stage):
        axes = {it.axis for it in driven_axes(x, stage)}
        if x is loop or Axis.REDUCE not in axes:
            continue
        if across(x, stage):
            raise _refuse(
                "reduce-across.once", f"{x.kind.value} has terms of {stage.name} already, those of {x.var.name}", loop,
                f"s.fuse({x.var.name!r}, {loop.var.name!r}), and reduce_across of that one",
            )  # fmt: skip
        if x in index.above(loop):
            hint = f"s.reorder({loop.var.name!r}, {x.var.name!r})"
            if not _perfect(x, loop):
                hint = f"s.rfactor({stage.name!r}, {loop.var.name!r}), before other stages move into its loops"
            if stage.init is None:  # as where rolling repairs partial results before each piece
                hint = (
                    f"s.bind(…, {to!r}) of a loop over the results of {stage.name}: a thread has all terms of its own"
                )
            raise _refuse(
                "reduce-across.outermost",
                f"{x.var.name}, outside {loop.var.name}, reduces {stage.name} too: threads would combine their partial "
                "results in each of its iterations", loop, hint,
            )  # fmt: skip


def _perfect(outer: Loop, inner: Loop) -> bool:
    """True if only loops stand between ``outer`` and ``inner``, so that ``reorder`` applies."""
    below = outer.body
    while isinstance(below, Loop) and below is not inner:
        below = below.body
    return below is inner


def _refuse(code: str, message: str, loop: Loop, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(loop), hint=hint))
