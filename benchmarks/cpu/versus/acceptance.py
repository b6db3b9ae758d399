"""The figures that count: which workloads, which of our variants, against whom, and what is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from versus.document import Result, Row, Test
from versus.handwritten import LABELS
from versus.shapes import Conv, Matmul, Problem, chosen
from versus.stats import Interval, geomean, geomean_of, sums_of


@dataclass(frozen=True)
class Bar:
    """What a figure must reach, and what is pursued; None where nothing is asked."""

    floor: float | None = None
    goal: float | None = None

    def verdict(self, value: float) -> str:
        if self.floor is None:
            return ""
        if self.goal is None:
            return "reached" if value >= self.floor else "BELOW"
        return "goal reached" if value >= self.goal else "floor reached" if value >= self.floor else "BELOW THE FLOOR"


NONE = Bar()


@dataclass(frozen=True)
class Figure:
    """value:   by medians, with its interval;  fastest: the same of the fastest calls
    worst:   the smallest ratio, that of fastest calls, and whose it is; None for a sum
    at_peak: of the fastest calls, if each of our kernels that multiplies directly reached the measured FMA peak and
             took no time for anything else; None where something else is the limit
    count:   of workloads in it, of ``wanted``
    """

    item: str
    title: str
    value: Interval
    fastest: float
    bar: Bar
    count: int
    wanted: int
    worst: tuple[float, float, str] | None = None
    worst_bar: Bar = NONE
    remark: str = ""
    at_peak: float | None = None


@dataclass(frozen=True)
class Pair:
    """A contest: their result and ours on one workload. ``theirs_fastest`` may be another of their side."""

    name: str
    theirs: Result
    theirs_fastest: float
    ours: Result
    flops: float
    times: int = 1

    def ratio_at(self, peak: float) -> float:
        """Of the fastest calls, ours at ``peak`` GF/s unless it makes do with fewer operations."""
        direct = self.ours.algorithm != "winograd"
        return self.theirs_fastest / min(self.ours.fastest_s, self.flops / peak / 1e9 if direct else math.inf)

    @property
    def ratio(self) -> float:
        return self.theirs.median_s / self.ours.median_s

    @property
    def ratio_fastest(self) -> float:
        return self.theirs_fastest / self.ours.fastest_s


def pair(row: Row, ours: Test, theirs: Test = lambda _: True, side: str = "peer", name: str = "") -> Pair | None:
    """The best of theirs against the best of ours."""
    a, b, fastest = row.best(side, theirs), row.best("ours", ours), row.fastest(side, theirs)
    if a is None or b is None or fastest is None:
        return None
    return Pair(name or row.problem.name, a, fastest, b, row.problem.flops, row.problem.times)


@dataclass(frozen=True)
class Line:
    """A geometric mean of ratios: the workloads that it is over, our variants that count, the peers that count.

    arithmetic: what limits it; not for products with few rows or depthwise convolutions, which wait for memory
    """

    item: str
    title: str
    wanted: int
    problems: Callable[[Problem], bool]
    ours: Test
    bar: Bar = NONE
    worst: Bar = NONE
    theirs: Test = lambda _: True
    side: str = "peer"
    arithmetic: bool = False

    def pairs(self, rows: Sequence[Row]) -> list[Pair]:
        found = (pair(r, self.ours, self.theirs, self.side) for r in rows if self.problems(r.problem))
        return [p for p in found if p is not None]

    def figure(self, rows: Sequence[Row], peak: float | None = None) -> Figure | None:
        pairs = self.pairs(rows)
        return _mean(self, pairs, peak if self.arithmetic else None) if pairs else None


def _mean(line: Line, pairs: Sequence[Pair], peak: float | None = None) -> Figure:
    return Figure(
        line.item, line.title, geomean_of([(p.theirs.rounds, p.ours.rounds) for p in pairs]),
        geomean(p.ratio_fastest for p in pairs), line.bar, len(pairs), line.wanted, _worst(pairs), line.worst,
        _error(pairs), None if peak is None else geomean(p.ratio_at(peak) for p in pairs),
    )  # fmt: skip


def _worst(pairs: Sequence[Pair]) -> tuple[float, float, str]:
    lowest = min(pairs, key=lambda p: p.ratio)
    return lowest.ratio, min(p.ratio_fastest for p in pairs), lowest.name


def _error(pairs: Sequence[Pair]) -> str:
    """Winograd's rounding is part of what is claimed."""
    found = [p.ours.error for p in pairs if p.ours.algorithm == "winograd"]
    return f"largest error of Winograd {max(found):.0e}" if found else ""


# --- what is asked


def _group(*names: str) -> Callable[[Problem], bool]:
    return lambda p: p.group in names and not getattr(p, "extra", False)


def _layout(layout: str, algorithm: str = "") -> Test:
    return lambda r: r.layout == layout and algorithm in ("", r.algorithm)


def _three(p: Problem) -> bool:
    return isinstance(p, Conv) and p.winograd


def _resnet_three(p: Problem) -> bool:
    return p.group == "resnet50" and _three(p)


def _resnet_any_stride(p: Problem) -> bool:
    return p.group == "resnet50" and isinstance(p, Conv) and p.r == 3


def _timed(r: Result) -> bool:
    return not r.ahead


def _timed_in(layout: str) -> Test:
    return lambda r: r.layout == layout and not r.ahead


def _ahead(r: Result) -> bool:
    return r.ahead


_LAYOUTS = ("NCHW", "NHWC")
_RESNET = {"NCHW": Bar(1.10, 1.30), "NHWC": Bar(1.15, 1.35)}
_DEPTHWISE = {"NCHW": Bar(1.0, 1.4), "NHWC": Bar(1.4, 1.8)}
_VGG_ALL = "VGG-16 whole + AlexNet, best style"

LINES: tuple[Line, ...] = (
    *(Line("1", f"ResNet-50 layers, best style, {o}", 23, _group("resnet50"), _layout(o), _RESNET[o], Bar(0.85, 1.0),
           arithmetic=True)
      for o in _LAYOUTS),
    *(Line("2", f"ResNet-50 3x3 stride 1, Winograd, {o}", 4, _resnet_three, _layout(o, "winograd"), Bar(1.8, 2.5))
      for o in _LAYOUTS),
    *(Line("2", f"ResNet-50 3x3 stride 1, direct, {o}", 4, _resnet_three, _layout(o, "direct"), Bar(0.90, 1.0),
           arithmetic=True)
      for o in _LAYOUTS),
    *(Line("", f"every 3x3 stride 1, Winograd, {o}", 9, _three, _layout(o, "winograd")) for o in _LAYOUTS),
    *(Line("3", f"MobileNet v1 depthwise, {o}", 9, _group("mobilenet"), _layout(o), _DEPTHWISE[o]) for o in _LAYOUTS),
    *(Line("3", f"VGG + AlexNet, best style, {o}", 7, _group("vgg+alexnet"), _layout(o), Bar(1.4, 1.9),
           arithmetic=True)
      for o in _LAYOUTS),
    *(Line("", f"{_VGG_ALL}, {o}", 14, lambda p: p.group == "vgg+alexnet", _layout(o)) for o in _LAYOUTS),
    *(Line("", f"ResNet-50 3x3 layers, packing timed, against peers that pack in every call, {o}", 7,
           _resnet_any_stride, _timed_in(o), Bar(1.3, 1.8), theirs=_timed)
      for o in _LAYOUTS),
    Line("4", "matmul squares + BERT, all packing timed", 7, _group("square", "bert"), _timed, Bar(0.88, 1.0),
         Bar(0.75, 0.9), arithmetic=True),
    Line("", "the same, against peers that pack in every call", 7, _group("square", "bert"), _timed, theirs=_timed),
    Line("4", "matmul with B prepacked, skinny included", 13, lambda p: isinstance(p, Matmul), _ahead,
         Bar(0.90, 1.05)),
)  # fmt: skip

_SUM = Bar(1.15, 1.40)
_SPEED, _SPEED_WORST = Bar(0.97), Bar(0.85)
RESNET_CONVOLUTIONS = 53


def figures(rows: Sequence[Row], peak: float | None = None) -> list[Figure]:
    """Everything that this run says something about, in the order of the items; peak: GF/s of multiply-adds."""
    found = [line.figure(rows, peak) for line in LINES]
    found[2:2] = [_whole_network(rows, layout) for layout in _LAYOUTS]
    found += _against_handwritten(rows)
    return [f for f in found if f is not None]


def _whole_network(rows: Sequence[Row], layout: str) -> Figure | None:
    """All convolutions of ResNet-50, sums of times, against ONNX Runtime."""
    pairs = [
        p
        for r in rows
        if r.problem.group == "resnet50"
        for p in [pair(r, _layout(layout), lambda t: t.name == "ort")]
        if p is not None
    ]
    if not pairs:
        return None
    value = sums_of([(p.times, p.theirs.rounds, p.ours.rounds) for p in pairs])
    fastest = sum(p.times * p.theirs_fastest for p in pairs) / sum(p.times * p.ours.fastest_s for p in pairs)
    seconds = [sum(p.times * s for p, s in zip(pairs, times, strict=True))
               for times in ([p.theirs.median_s for p in pairs], [p.ours.median_s for p in pairs])]  # fmt: skip
    remark = f"ort {seconds[0] * 1e3:.1f} ms, ours {seconds[1] * 1e3:.1f} ms"
    title = f"ResNet-50, sum of all convolutions against ONNX Runtime, {layout}"
    return Figure("1", title, value, fastest, _SUM, sum(p.times for p in pairs), RESNET_CONVOLUTIONS, remark=remark)


def _against_handwritten(rows: Sequence[Row]) -> list[Figure | None]:
    """The hand-written set's time over ours: each of its workloads in the same mode, best style; then by its labels."""
    modes: list[tuple[str, Test]] = [
        *((layout, _layout(layout)) for layout in _LAYOUTS),
        ("packing timed", lambda r: not r.layout and not r.ahead),
        ("prepacked", lambda r: not r.layout and r.ahead),
    ]
    found = [p for r in rows for mode, test in modes if (p := _hand_pair(r, mode, test)) is not None]
    wanted = 2 * len(chosen())  # every workload in both layouts, or with both kinds of packing
    line = Line("5", "ours against the hand-written set, all its workloads", wanted, lambda _: True, lambda _: True,
                _SPEED, _SPEED_WORST)  # fmt: skip
    whole = _mean(line, found) if found else None
    return [whole, *(_by_label(rows, label) for label in LABELS)]


def _hand_pair(row: Row, mode: str, test: Test) -> Pair | None:
    return pair(row, test, test, "reference", f"{row.problem.name} {mode}")


def _by_label(rows: Sequence[Row], label: str) -> Figure | None:
    """One style of the set against the same style of ours."""
    layout, style = LABELS[label]

    def same(r: Result) -> bool:
        wanted = r.ahead == (style == "ahead") if not layout else r.algorithm == style
        return r.layout == layout and wanted

    there = [r for r in rows if r.side("reference", lambda t: t.label == label)]
    line = Line("", f"its {label}", len(there), lambda _: True, same, side="reference",
                theirs=lambda t: t.label == label)  # fmt: skip
    return line.figure(there)
