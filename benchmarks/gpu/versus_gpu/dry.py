"""No GPU: every kernel is emulated on the CPU and compared with NumPy; nothing is timed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.check.emulate import emulate

from .building import BuildFailure, Built, Job, emitted, in_words
from .device import Case, Compared, Device, Pace, Times
from .exact import bound, linear
from .problems import Problem

UNITS = 4
"""Multiprocessors of the device that there is not: few, so that small problems have several waves."""


class DryCase(Case):
    """Arrays of NumPy; the reference is the workload's own."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.work = problem, problem.workload()
        self.about: dict[str, Any] = {"sets": 1}

    def check(self, built: Built) -> Compared:
        found = self._same(built) if self.problem.exact else Compared(True)
        return found if self.problem.timed or not found.exact else self._near(built)

    def _same(self, built: Built) -> Compared:
        arrays = self.problem.drawn(whole=True)
        run = emulate(built.source, arrays)
        if run.problems:
            return Compared(False, None, str(run.problems[0].message))
        want, got = self.work.reference(*arrays), run.outputs[0]
        largest = float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max())
        return Compared(bool(np.array_equal(got, want)), largest if np.isfinite(largest) else None)

    def _near(self, built: Built) -> Compared:
        arrays = self.problem.drawn(whole=False)
        run = emulate(built.source, arrays)
        if run.problems:
            return Compared(False, None, str(run.problems[0].message))
        want, got = (np.asarray(x, np.float64) for x in (self.work.reference(*arrays), run.outputs[0]))
        absolute = [
            a if at.role == "table" else np.abs(a) for a, at in zip(arrays, self.problem.arguments, strict=True)
        ]
        magnitude = np.asarray(linear(self.problem).workload().reference(*absolute), np.float64)
        worst = float((np.abs(got - want) / bound(self.problem, want, magnitude)).max())
        return Compared(
            worst <= 1, float(np.abs(got - want).max()), "" if worst <= 1 else f"{worst:.3g} of bound", worst
        )

    def errors(self, built: Built) -> dict[str, float]:
        """In the dry run of the small whole numbers: there is nothing to be learnt of rounding."""
        return {"ours": self.check(built).largest or 0.0}

    def screen(self, built: Built) -> float | None:
        return None

    def compete(self, built: Built, pace: Pace, cold: bool) -> Times:
        return Times()


class Dry(Device):
    """The emulator in place of a GPU."""

    def __init__(self, arch: str = "sm_90a") -> None:
        self.arch, self.target = arch, f"cuda -arch={arch} -units={UNITS}"
        self.shared_optin_bytes = tir.Target.parse(self.target).shared_optin_bytes

    def environment(self) -> dict[str, Any]:
        return {"device": "none: emulated", "arch": self.arch}

    def ahead(self, jobs: Iterable[Job]) -> None:
        """Nothing is compiled ahead."""

    def built(self, job: Job) -> Built:
        try:
            return Built(emitted(job))
        except Exception as error:
            raise BuildFailure(in_words(error)) from None

    def case(self, problem: Problem) -> Case:
        return DryCase(problem)
