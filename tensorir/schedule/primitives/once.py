"""run_once: run kernels that depend on constant inputs ahead of time, such as weight packing."""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import shown
from tensorir.ir.once import nests, runs_once
from tensorir.ir.tree import Buffer, Loop, Program
from tensorir.ir.visit import reads, writes
from tensorir.schedule.analysis import Index, caret
from tensorir.schedule.history import Name, S
from tensorir.schedule.registry import mark, primitive
from tensorir.schedule.rewrite import Rewrite, with_buffers


@primitive("Copies and memory")
def run_once(self: S, tensor: Name) -> S:
    """Make an intermediate tensor ahead of time, once for all launches on the same inputs.

    The tensor must be made by nests of its own, from inputs, constants and tensors that are made ahead of time too.
    """
    buffer = self._history._buffer(tensor)
    self._history._apply("run_once", (buffer,), {}, lambda p: _run_once(p, buffer))
    return self


def _run_once(program: Program, buffer: Buffer) -> Rewrite:
    if buffer in program.params or buffer.data is not None:
        what = "an output" if buffer in program.outputs else "an input" if buffer in program.inputs else "a constant"
        copied = f"s.stage_in({buffer.name!r}, at='root', scope='global', run='once')"
        raise ScheduleError(
            Problem(
                "run-once.own-buffer",
                f"{buffer.name} is {what}: only what the program makes for itself can be made ahead of time",
                hint=copied if what == "an input" else "",
            )
        )
    made = with_buffers(program, {buffer: buffer.replace(once=True)})
    ahead = runs_once(made)
    for nest, old, once in zip(nests(made), nests(program), ahead, strict=True):
        if buffer in writes(old) and not once:
            ready = {b for n, early in zip(nests(made), ahead, strict=True) if early for b in writes(n)}
            others = [b.name for b in writes(nest) if not b.once]
            late = [b.name for b in reads(nest) if b not in program.inputs and b.data is None and b not in ready]
            if not others and not late:
                continue  # it makes a part of the tensor, another nest the rest: that one is told of
            why = f"makes {', '.join(others)} as well" if others else f"reads {', '.join(late)}"
            raise ScheduleError(
                Problem(
                    "run-once.depends",
                    f"the kernel that makes {buffer.name} {why}, which is made in every launch",
                    at=caret(old) if isinstance(old, Loop) else "",
                    hint="" if others else f"s.run_once({late[0]!r}) first, or compute_inline it",
                )
            )
    return Rewrite(made)


@mark("run_once", "stage_in", option=("run", "once"))
def unfit(before: Program, after: Program, primitive: str) -> Problem | None:
    """Problem if ``primitive`` would move an ahead-of-time tensor's computation into every launch, else None."""
    lost = _made_early(before) - _made_early(after)
    kept = {b.name for b in (*reads(after.body), *writes(after.body))}
    if not lost & kept:
        return None
    name = min(lost & kept)
    return Problem(
        "run-once.lost",
        f"{primitive} leaves {name}, which is made ahead of time, no kernel that could be: every launch would make it",
        hint=f"{primitive} without run_once, or of a copy: s.stage_in({name!r}, …)",
    )


def _made_early(program: Program) -> set[str]:
    """Names of tensors computed ahead of time."""
    early = zip(nests(program), runs_once(program), strict=True)
    return {b.name for n, once in early if once for b in writes(n) if b.once}


def need_run(index: Index, buffer: Buffer, at: Loop | None, run: str) -> bool:
    """True if ``run`` of ``stage_in`` is "once"; raises if the copied buffer is not available ahead of time."""
    if not isinstance(run, str) or run not in ("each", "once"):
        raise ScheduleError(
            Problem("stage-in.run", f"run={shown(run)} is not a time to copy at", hint="run='each' or run='once'")
        )
    if run == "each":
        return False
    if at is not None:
        raise ScheduleError(
            Problem(
                "stage-in.once",
                f"a copy inside {at.var.name} is made in every iteration: run='once' needs a kernel of its own",
                at=caret(at),
                hint="at='root'",
            )
        )
    inputs = index.program.inputs
    if buffer not in inputs and not buffer.once:
        raise ScheduleError(
            Problem(
                "stage-in.once",
                f"{buffer.name} is made by the program in every launch: only inputs can be copied ahead of time",
                hint=f"one of {', '.join(b.name for b in inputs)}" if inputs else "",
            )
        )
    return True
