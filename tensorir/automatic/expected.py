"""``Expected``: modelled seconds of a schedule, its limit, and notes on idle vectors and cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorir.automatic.counts import Counted, KernelCounts, arithmetic, counted, kernels_of
from tensorir.errors.shown import Shown
from tensorir.ir.marks import Remark
from tensorir.ir.tree import Binary, Kind, Loop, Update
from tensorir.ir.visit import find, has
from tensorir.lower.lowered import lowered
from tensorir.machine import Machine, machine_of
from tensorir.schedule.schedule import BaseSchedule

NOTED_SHARE = 0.3
"""Least share of the modelled time for a note on a kernel or a stage."""


@dataclass(frozen=True, repr=False)
class Expected(Shown):
    """Modelled time of a schedule on its target's machine.

    seconds: of one call, launches included, kernels of ``run_once`` left out; symbolic extents count as their maximum
    limit:   of the slowest kernel: "multiply-adds", "arithmetic", "dependent sums" (each waits for the last), "memory",
             "idle cores" (fewer blocks than half of them), or "launch" if launches take most of the time
    kernels: number of kernels
    notes:   scalar loops, idle cores, chains of many kernels, each with a step against it
    """

    seconds: float
    limit: str
    kernels: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        kernels = f"{self.kernels} kernel{'s' * (self.kernels != 1)}"
        first = f"expected {self.seconds * 1e6:.3g} us in {kernels}, bound by {self.limit} (modelled, not measured)"
        return "\n".join((first, *(f"  {note}" for note in self.notes)))


def expected_of(s: BaseSchedule) -> Expected:
    """The modelled time of a schedule. Raises LoweringError and CompileError if it cannot be lowered."""
    machine = machine_of(s.target)
    kernels = [k for k in kernels_of(s.program, s.target) if not all(c.once for c in k.stages)]
    counts = counted(kernels, machine)
    slowest = max(kernels, key=lambda k: k.worked(machine))
    launch = not slowest.cycles or 2 * (counts.launch_s + machine.call_s) > counts.seconds
    limit = "launch" if launch else _limit(slowest, machine)
    notes = [*_scalar(s), *_idle(kernels, machine, counts.seconds), *_without_vectors(kernels, machine, counts.seconds)]
    if counts.kernels > 1 and limit == "launch":
        notes.append(f"{counts.kernels} kernels: tir.fusions(outputs) says of each pair whether one may compute it")
    return Expected(counts.seconds, limit, counts.kernels, tuple(dict.fromkeys(notes)))


def _limit(k: KernelCounts, machine: Machine) -> str:
    if 2 * k.blocks < machine.cores:
        return "idle cores"
    if k.moved / k.rate > k.cycles / (machine.clock * machine.threads):
        return "memory"
    most = k.stages[0]
    if most.waits > most.busy:
        return "dependent sums"
    products = any(isinstance(x, Binary) and x.op == "*" for x, _ in arithmetic(most.stage.body, None))
    return "multiply-adds" if products and has(most.stage.body, Update) else "arithmetic"


def _scalar(s: BaseSchedule) -> Iterator[str]:
    """Notes on vector loops without a vector form."""
    for kernel in lowered(s).kernels:
        for loop in find(kernel.body, Loop):
            if (why := Remark.of(loop).why).startswith("not in vectors"):
                yield f"{kernel.name}: loop {loop.var.name} is {why}; s.vectorize an axis for which it does not hold"


def _idle(kernels: list[KernelCounts], machine: Machine, seconds: float) -> Iterator[str]:
    for k in kernels:
        if 2 * k.blocks < machine.cores and k.worked(machine) > NOTED_SHARE * seconds:
            name, blocks = k.stages[0].stage.name, f"{k.blocks} block{'s' * (k.blocks != 1)}"
            yield f"{name}: {blocks} for {machine.cores} cores; s.share_out more of its axes, or s.rfactor a long sum"


def _without_vectors(kernels: list[KernelCounts], machine: Machine, seconds: float) -> Iterator[str]:
    """Notes on costly stages of CPUs without a vector loop."""
    for k in kernels:
        for c in k.stages:
            share = k.worked(machine) / seconds * (c.cycles / k.cycles if k.cycles else 0.0)
            if c.target.kind == "cpu" and share > NOTED_SHARE and c.times > 1 and not _in_vectors(c):
                yield f"{c.stage.name}: computed cell by cell; s.vectorize one of its axes"


def _in_vectors(c: Counted) -> bool:
    return any(x.kind is Kind.VECTOR for x in c.loops)
