"""How near the best kernels come to what their device computes and moves at most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorir.api.identity import target_of as find
from tensorir.api.peaks import Peaks, known_peaks, measured_peaks
from tensorir.api.workload import Workload
from tensorir.cli.titles import brief
from tensorir.errors import TensorIRError
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.show.figures import Point, Roof
from tensorir.target import Target
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.summary import Tuned

LEAST_S = 1e-9
"""Seconds of the shortest time that a device can take."""


@dataclass(frozen=True)
class Above:
    """What is above a workload's best kernel.

    point: where it stands; None for a workload that is defined elsewhere, or a time that no device takes
    roof:  of the device; its arithmetic is that of float32
    why:   why there is no share of a measured roof; empty where there is one
    """

    point: Point | None
    roof: Roof | None
    busy: str
    why: str

    @property
    def share(self) -> float | None:
        """The fraction of the roof that the best reaches."""
        if self.why or self.point is None or self.roof is None:
            return None
        return self.point.best / self.roof.at(self.point.intensity)[0]


class Roofs:
    """The roofs of devices. measure: those that are here and not known are measured, in a second or two each"""

    def __init__(self, measure: bool) -> None:
        self._measure = measure
        self._found: dict[str, Peaks | None] = {}

    def above(self, t: Tuned, work: Workload | None) -> Above:
        """For a workload with a best kernel."""
        point = None if work is None else _point(t, work)
        if work is None or point is None:
            return Above(None, None, "", "its operations are not known here" if work is None else "no operations")
        peaks = self._peaks(t)
        if peaks is None:
            return Above(
                point,
                _sheet(target_of(t)),
                "",
                "not measured: the device is not here" if self._measure else "not measured: --no-peaks",
            )
        roof = Roof(peaks.flops, peaks.bytes_s, "measured")
        if peaks.busy and point.high > 1.05 * roof.at(point.intensity)[0]:
            return Above(point, roof, peaks.busy, "not measured: the best is above what this busy machine shows")
        others = sorted({a.dtype for a in (*work.inputs, *work.outputs)} - {"float32"})
        others += [str(p) for p in (work.parameters.get("precision", "fp32"),) if p != "fp32"]
        if others and roof.at(point.intensity)[1] == "arithmetic":
            return Above(point, roof, peaks.busy, f"not measured for {', '.join(others)}")
        if point.best > 1.05 * peaks.flops:  # Winograd's are fewer operations than are counted
            return Above(point, roof, peaks.busy, "not measured: the best is above the peak of multiply-adds")
        return Above(point, roof, peaks.busy, "")

    def _peaks(self, t: Tuned) -> Peaks | None:
        assert t.best is not None
        device: Mapping[str, Any] = t.best.record.device
        name = str(sorted((k, str(v)) for k, v in device.items()))
        if name not in self._found:
            found = known_peaks(device)
            if self._measure and device.get("id") and (found is None or found.busy):  # then it was no peak
                found = measured_peaks(t.best.record) or found
            self._found[name] = found
        return self._found[name]


def target_of(t: Tuned) -> Target | None:
    """What the best configuration was made for; None where this version does not know it."""
    try:
        return None if t.best is None else find(t.best.record)
    except TensorIRError:
        return None


def _sheet(target: Target | None) -> Roof | None:
    gpu = None if target is None else gpu_of(target)
    if gpu is None:
        return None
    return Roof(gpu.threads_rate * gpu.units * gpu.clock, gpu.dram, f"{gpu.name} by its data sheet", measured=False)


def _point(t: Tuned, work: Workload) -> Point | None:
    """None for times that no device takes."""
    assert t.best is not None
    arrays = [a for a in (*work.inputs, *work.outputs) if isinstance(a, Tensor)]
    moved = sum(DTYPES[a.dtype].bits * math.prod(map(int, a.shape)) // 8 for a in arrays)
    if t.best.time_s < LEAST_S or not work.flops or not moved:
        return None
    default = None if t.default_s is None or t.default_s < LEAST_S else work.flops / t.default_s
    low, best, high = (work.flops / max(s, LEAST_S) for s in (t.best.high_s, t.best.time_s, t.best.low_s))
    return Point(brief(t.workload), work.flops / moved, best, low, high, default)
