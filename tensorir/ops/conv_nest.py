"""A convolution, or a gradient of it, as declared: tiles of rows and columns, by a work-item or a block of threads.

This is for any processor and any parameters; what suits better, where it can be had, has files of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorir.api.workload import Template
from tensorir.engines.blocks import ALIGNED, bind_grid, groups_met, has_room, joint, start, within_group
from tensorir.engines.problems import Conv
from tensorir.engines.steps import out_stage
from tensorir.ops.views import image_of

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

LANES = 8


@dataclass(frozen=True, kw_only=True)
class Nest:
    """The loops of a computation, by what the schedules do with them.

    main: what adds up;  lead: loops every iteration of which is a block's
    tiled: rows, then columns;  knobs: of each of these, threads of a block and results of a thread
    columns_first: a thread's results are walked by columns, then rows
    around, split, taps: the reduction, of which ``split`` is staged piece by piece, as the knob ``step`` says
    operands: what is staged, and the order in which it is copied where that is not its own
    padded: what only rearranges an operand, if anything does
    """

    main: str
    lead: tuple[str, ...]
    tiled: tuple[str, ...]
    knobs: tuple[tuple[str, str], ...] = (("tr", "rr"), ("tc", "rc"))
    columns_first: bool = False
    around: tuple[str, ...] = ()
    split: str
    step: str = "depth"
    taps: tuple[str, ...] = ()
    operands: Mapping[str, Sequence[int] | None]
    padded: str

    def extents(self, shape: Conv) -> dict[str, int]:
        """Of the loops of the result."""
        inner = "cg" if self.main == "dw" else "c"
        return {v: getattr(shape, inner if v == "c" else v) for v in (*self.lead, *self.tiled)}


def nest_of(shape: Conv, made: str) -> Nest:
    """The loops of the convolution ("y"), or of its gradient with respect to the image ("x") or the filter ("w")."""
    padded = "x_pad" if shape.pad else ""
    if made == "w":
        operands = {"dy": None, image_of(shape): None}
        return Nest(main="dw", lead=("r", "s"), tiled=("k", "c"), around=("n", "p"), split="q", operands=operands,
                    padded=padded)  # fmt: skip
    if made == "x":
        tiled = ("c", "w") if shape.nchw else ("w", "c")
        return Nest(main="dx", lead=("n", "h"), tiled=tiled, split="k", taps=("r", "s"),
                    operands={"dy_spread": None, "w": None}, padded="dy_spread")  # fmt: skip
    return Nest(main="y", lead=("n",), tiled=("k", "p", "q"), knobs=(("tk", "rk"), ("tp", "rp"), ("tq", "rq")),
                columns_first=not shape.nchw, split="c", step="bc", taps=("r", "s"),
                operands={"w": [1, 2, 3, 0], image_of(shape): None}, padded=padded)  # fmt: skip


# --- a work-item a block


def row_templates(shape: Conv, made: str) -> dict[str, Template]:
    """The template of a gradient for CPUs."""
    nest = nest_of(shape, made)
    return {"cpu_rows": Template(lambda s, c: cpu_rows(s, nest, **c), lambda _: _cpu_space(nest, shape), ("cpu",))}


def cpu_rows(s: Schedule, nest: Nest, rows: int, columns: int, lanes: int) -> Schedule:
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


def _cpu_space(nest: Nest, shape: Conv) -> Space:
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


# --- a block of threads


def tile_template(shape: Conv, made: str) -> Template:
    """The template for any GPU."""
    nest = nest_of(shape, made)
    return Template(lambda s, c: gpu_tile(s, nest, **c), lambda t: _gpu_space(nest, shape, t), ("gpu",))


def gpu_tile(s: Schedule, nest: Nest, **c: int) -> Schedule:
    """A block computes a tile of rows by columns, from some elements of the reduction at a time, of which both operands
    are staged.

    c: as the nest calls them: threads along each tiled loop, results of a thread, and the elements
    """
    y = nest.main
    out = out_stage(s, y)
    lead = [f"{out}.{v}" for v in nest.lead]
    split = [s.split(f"{out}.{v}", [None, *(c[name] for name in names)])
             for v, names in zip(nest.tiled, nest.knobs, strict=True)]  # fmt: skip
    (row, *columns), (thread, *threads), (own, *others) = zip(*split, strict=True)
    s.reorder(*lead, row, *columns, thread, *threads, *((*others, own) if nest.columns_first else (own, *others)))
    along, across = joint(s, columns), joint(s, threads)
    bind_grid(s, lead[:1], [*lead[1:], row], [along])
    s.bind(thread, "thread.y").bind(across, "thread.x")
    s.compute_at(y, across)
    so, si = s.split(f"{y}.{nest.split}", [None, c[nest.step]])
    around, inner = ([f"{y}.{v}" for v in names] for names in ((*nest.lead, *nest.around), (*nest.taps, *nest.tiled)))
    s.reorder(*around, so, si, *inner)
    for v in nest.tiled:
        s.unroll(f"{y}.{v}")
    for operand, order in nest.operands.items():
        s.stage_in(operand, at=so, scope="shared", order=order)
    return s.compute_inline(nest.padded) if nest.padded else s


def tile_bytes(c: Mapping[str, int], nest: Nest, shape: Conv) -> int:
    """Shared memory that ``gpu_tile`` stages: of all groups that the tile's channels may belong to."""
    tile = {v: c[t] * c[r] for v, (t, r) in zip(nest.tiled, nest.knobs, strict=True)}
    cells = {"y": _of_result, "dx": _of_image, "dw": _of_filter}[nest.main]
    return shape.element_bytes * cells(shape, tile, c[nest.step]) + 2 * ALIGNED


def _of_result(shape: Conv, tile: Mapping[str, int], step: int) -> int:
    """Elements that a tile of results needs: filters, and ``step`` channels of each group of the image."""

    def side(size: int, taps: int) -> int:
        return (size - 1) * shape.stride + (taps - 1) * shape.dilation + 1

    met = groups_met(shape.k, shape.kg, tile["k"]) if shape.groups > 1 else 1
    strip = side(tile["p"], shape.r) * side(tile["q"], shape.s)
    return tile["k"] * step * shape.taps + ((met - 1) * shape.cg + step) * strip


def _of_image(shape: Conv, tile: Mapping[str, int], step: int) -> int:
    """Elements that a tile of an image's gradient, channels by pixels of a row, needs."""
    read, inner, c, cg = step, tile["c"], shape.c, shape.cg
    if shape.groups > 1:
        read += (groups_met(c, cg, inner) - 1) * shape.kg
        inner = within_group(c, cg, inner)
    rows, columns = 1 + (shape.r - 1) * shape.dilation, tile["w"] + (shape.s - 1) * shape.dilation
    return read * (rows * columns + shape.taps * inner)


def _of_filter(shape: Conv, tile: Mapping[str, int], step: int) -> int:
    """Elements that a tile of a filter's gradient needs."""
    met = groups_met(shape.k, shape.kg, tile["k"]) if shape.groups > 1 else 1
    return step * tile["k"] + ((step - 1) * shape.stride + 1) * (tile["c"] + (met - 1) * shape.cg)


def _gpu_space(nest: Nest, shape: Conv, target: Target) -> Space:
    from tensorir.tune.space import Space

    extents, knobs, wanted = nest.extents(shape), *_knobs(nest, shape)
    few = nest.main == "y" and shape.k * shape.p * shape.q < 1024
    threads, results = ([names[n] for names in nest.knobs] for n in (0, 1))

    def grid(c: Mapping[str, int]) -> bool:
        rows, *columns = (-(-extents[v] // (c[t] * c[r])) for v, (t, r) in zip(nest.tiled, nest.knobs, strict=True))
        first, *second = (extents[v] for v in nest.lead)
        return has_room(target, first, math.prod(second) * rows, math.prod(columns))

    where: dict[str, Callable[[Mapping[str, int]], bool]] = {
        "threads": lambda c: (1 if few else 32) <= math.prod(c[t] for t in threads) <= 256,
        "shared": lambda c: tile_bytes(c, nest, shape) <= target.shared_optin_bytes,
        "registers": lambda c: math.prod(c[r] for r in results) <= 64,
    }
    if math.prod(extents.values()) > target.max_grid[0]:
        where["grid"] = grid
    default = start(knobs, where, lambda c: tile_bytes(c, nest, shape), wanted)
    return Space(where=where, default=default, **knobs)


def _knobs(nest: Nest, shape: Conv) -> tuple[dict[str, list[int]], dict[str, int] | None]:
    """The knobs of a nest with their values, and what to start with if it is legal."""
    if nest.main != "y":
        # single channels as well, since of groups of 43 any four may belong to two, and both are staged whole then
        one, many = ([1], [1, 32]) if shape.groups > 1 else ([], [])
        return dict(tr=[8, 4, 16, *many], tc=[8, 16, 4, 32, *one], rr=[4, 2, 1, 8], rc=[4, 2, 1],
                    depth=[8, 4, 16, 2, 1]), None  # fmt: skip
    knobs = dict(tk=[4, 8, 16, 2, 1], rk=[4, 8, 2, 1], tp=[4, 2, 8, 1], rp=[1, 2, 4], tq=[8, 4, 16, 1],
                 rq=[2, 1, 4, 7], bc=[4, 8, 2, 1, 16])  # fmt: skip
    large = min(shape.p, shape.q) >= 4
    return knobs, dict(tk=8, rk=4, tp=4 if large else 1, rp=1, tq=8 if large else 4, rq=2, bc=4)
