"""A gradient of a convolution in groups on CPUs, as declared: tiles of rows and columns, by a work-item a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorir.api.workload import Template
from tensorir.engines.problems import Conv
from tensorir.engines.steps import out_stage

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule
    from tensorir.tune.space import Space

LANES = 8


@dataclass(frozen=True, kw_only=True)
class ConvNest:
    """The loops of a computation, by what the schedule does with them.

    main: what adds up;  lead: loops every iteration of which is a block's;  tiled: rows, then columns
    around, taps: the other loops of the reduction, outside and inside of ``split``
    padded: what only rearranges an operand, if anything does
    """

    main: str
    lead: tuple[str, ...]
    tiled: tuple[str, ...]
    around: tuple[str, ...] = ()
    split: str
    taps: tuple[str, ...] = ()
    padded: str


def nest_of(shape: Conv, made: str) -> ConvNest:
    """The loops of the convolution's gradient with respect to the image ("x") or the filter ("w")."""
    if made == "w":
        return ConvNest(main="dw", lead=("r", "s"), tiled=("k", "c"), around=("n", "p"), split="q",
                    padded="x_pad" if shape.pad else "")  # fmt: skip
    tiled = ("c", "w") if shape.nchw else ("w", "c")
    return ConvNest(main="dx", lead=("n", "h"), tiled=tiled, split="k", taps=("r", "s"), padded="dy_spread")


def row_templates(shape: Conv, made: str) -> dict[str, Template]:
    """The template of a gradient for CPUs."""
    nest = nest_of(shape, made)
    return {"cpu_rows": Template(lambda s, c: cpu_rows(s, nest, **c), lambda _: _cpu_space(nest, shape), ("cpu",))}


def cpu_rows(s: BaseSchedule, nest: ConvNest, rows: int, columns: int, lanes: int) -> BaseSchedule:
    """A work-item a block: ``rows`` by ``columns`` sums in registers, in vectors where these are neighbours in memory;
    the rearranged operand by a kernel of its own.
    """
    y, (row, column) = nest.main, nest.tiled
    out = out_stage(s, y)
    if nest.padded:
        s.bind(f"{nest.padded}.n", "block.y").bind(s.loops(nest.padded)[1], "block.x")
    rb, rl = s.split(f"{out}.{row}", [None, rows])
    cb, cl = s.split(f"{out}.{column}", [None, columns])
    lead = [f"{out}.{v}" for v in nest.lead]
    s.reorder(*lead, rb, cb, rl, cl)
    s.bind(lead[0], "block.z").bind(s.fuse(lead[1], rb), "block.y").bind(cb, "block.x")
    s.compute_at(y, cb)
    s.reorder(*(f"{y}.{v}" for v in (*nest.lead, *nest.around, nest.split, *nest.taps, row, column)))
    s.unroll(f"{y}.{row}").unroll(rl)
    for loop in (f"{y}.{column}", cl):
        if lanes > 1:
            loop, lane = s.split(loop, [None, lanes])
            s.vectorize(lane)
        s.unroll(loop)
    return s


def _cpu_space(nest: ConvNest, shape: Conv) -> Space:
    from tensorir.tune.space import Space

    neighbours = nest.tiled[1] == ("w" if shape.nchw else "c")
    return Space(
        rows=[4, 2, 6, 1, 3],
        columns=[2 * LANES, LANES, 3 * LANES, 4, 1] if neighbours else [2, 1, 3, 4],
        lanes=[LANES, 4, 1] if neighbours else [1],
        where={
            "vectors": lambda c: c["columns"] % c["lanes"] == 0,
            "registers": lambda c: c["rows"] * c["columns"] // c["lanes"] <= 12,
        },
    )
