"""The CPU templates of matmul: which suit a shape, their spaces, and the configurations to start from.

Those come from a small model of a core and of how blocks are dealt to cores; measuring decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir.api.workload import Template
from tensorir.ops.common import Config
from tensorir.ops.gemm_cpu import (
    cpu_column,
    cpu_dot,
    cpu_strip,
)  # fmt: skip
from tensorir.ops.model import BLOCK_BYTES, balance, best_of, crowding, in_balanced_tiles
from tensorir.ops.problems import Gemm

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.tune.legal import Predicate
    from tensorir.tune.space import Space

Apply = Callable[["Schedule", Config, Gemm], "Schedule"]

LATENCY = 5.5
"""Cycles between dependent multiply-adds, with what a compiler's order adds."""
CACHE_WAY = 16 * 1024
"""A pitch of a multiple of this many bytes leads to the same few sets of the second-level cache."""
STREAM = 16.0
"""Bytes a cycle that come from far away."""
L3_PART = 8 << 20
"""Bytes that one block after another can read again from the last cache."""
LAUNCH = 20_000.0
"""Cycles of one more kernel."""
SMALL = 96
"""Rows up to which the sums of a strip of columns fit next to what the block reads of b."""
FEW = 12
"""Rows up to which reading b in place costs less than packing it."""


def cpu_templates(shape: Gemm) -> dict[str, Template]:
    """The algorithms, the one that promises most for the shape first."""
    m, large = shape.m, shape.n * shape.k >= 1 << 20
    order = ["column", "strip"]
    if not shape.prepack and not shape.tb and (m <= FEW or (m <= SMALL and large)):
        order = ["strip", "column"]
    if shape.tb:
        order.insert(0 if m <= SMALL // 3 and not shape.prepack else len(order), "dot")
    return {f"cpu_{name}": _template(shape, *_ALGORITHMS[name]) for name in order}


def _template(shape: Gemm, schedule: Apply, space: Callable[[Gemm], Space]) -> Template:
    def function(s: Schedule, c: Config) -> Schedule:
        return schedule(s, c, shape.on(s.target))

    return Template(function, lambda target: space(shape.on(target)), kinds=("cpu",))


def _knobs(shape: Gemm) -> dict[str, list[Any]]:
    """What all algorithms have, the values to start from first."""
    m, whole = shape.m, shape.wide is None
    large = not whole or m * shape.k * shape.sum_bytes > 1 << 20
    parts = {-(-m // d) for d in (2, 4, 8)} | {64, 128, 256, 512, 1024}
    return dict(
        rows=[0, *sorted(r for r in parts if 1 < r < m)],
        tile=[6, 4, 5, 3, 2, 1, 8, 12] if shape.registers < 32 else [14, 12, 8, 6, 4, 3, 2, 1, 10, 7, 5, 20, 28],
        vectors=[2, 3, 4, 1, 6, 8],
        pack_a=[0] if whole and not shape.ta else [1, 0] if large and m > FEW else [0, 1],
        unroll_k=[4, 1, 2, 8],
    )


def _rules(shape: Gemm) -> dict[str, Predicate]:
    """What holds for all: the sums, one operand's part and an element of the other fill the registers and no more."""
    m, lanes = shape.m, shape.vector_lanes
    busy = min(6, m * -(-shape.n // lanes), (shape.registers + 2) // 3) if m >= 4 else 1
    return {
        "registers": lambda c: c["tile"] * c["vectors"] + min(c["tile"], c["vectors"]) < shape.registers,
        "busy": lambda c: c["tile"] * c["vectors"] >= busy,
        "sensible": lambda c: c["tile"] <= m and lanes * (c["vectors"] - 1) < shape.n and c["tile"] <= (c["rows"] or m),
    }


def panel_cycles(shape: Gemm, rows: int, tile: int, vectors: int) -> float:
    """Cycles per step of the reduction for all rows of a panel of so many vectors, in balanced tiles.

    A core multiplies and adds 64 bytes a cycle, each sum ready after four cycles and a bit, and loads two operands a
    cycle; vectors cost more than elements to bring near.
    """
    rate = 64 / shape.vector_bytes
    pitch = 0 if shape.ta else shape.k * shape.sum_bytes

    def step(high: int) -> float:
        busy = max(high * vectors / rate, (high + vectors) / 2, LATENCY) * crowding(high, pitch)
        return float(busy + 0.03 * high + 0.08 * vectors)

    return in_balanced_tiles(rows, tile, step)


def _tiles(shape: Gemm) -> list[tuple[int, int]]:
    """Register tiles (rows, vectors) to start from."""
    found = [(6, 2), (4, 3), (3, 4), (2, 6), (1, 8), (4, 2), (3, 3), (2, 4), (1, 4)]
    found += [(rows, 1) for rows in (8, 6, 4, 3, 2, 1)]
    if shape.registers >= 32:
        found = [(14, 2), (12, 2), (8, 3), (6, 4), (10, 2), (28, 1), (20, 1), (14, 1), (12, 1), *found]
    most = shape.registers // shape.product_room
    return [p for p in found if p[0] <= shape.m and p[0] * p[1] <= most]


def _makespan(blocks: int) -> float:
    """Equal blocks that the busiest core runs; a few more of them give the other jobs of a machine room to move."""
    return blocks / balance(blocks) * (1.02 if blocks < 4 else 1.0)


def _start(
    knobs: Mapping[str, Sequence[Any]],
    where: Mapping[str, Predicate],
    cost: Callable[[Mapping[str, Any]], float],
    tiles: Sequence[Mapping[str, int]],
    **chosen: Sequence[Any],
) -> dict[str, Any] | None:
    """The cheapest configuration over register tiles and the ``chosen`` knobs; other knobs at their first values."""
    values = {name: chosen.get(name, given[:1]) for name, given in knobs.items()}
    found = [best_of({**values, **{n: [v] for n, v in tile.items()}}, where, cost) for tile in tiles]
    return min((c for c in found if c is not None), key=cost, default=None)


def _column_space(shape: Gemm) -> Space:
    m, n, k, lanes, size = shape.m, shape.n, shape.k, shape.vector_lanes, shape.sum_bytes
    knobs = dict(panels=[1, 2, 4, 8, 16], **_knobs(shape), pack=["kernel"] if shape.prepack else ["block", "kernel"])

    def width(c: Mapping[str, Any]) -> int:
        return int(c["panels"] * c["vectors"] * lanes)

    where: dict[str, Predicate] = {
        **_rules(shape),
        "columns": lambda c: c["panels"] == 1 or width(c) < n + c["vectors"] * lanes,
        "fits": lambda c: c["pack"] != "block" or size * width(c) * k <= BLOCK_BYTES,
    }
    packing = k * (1.2 if shape.tb else 0.35)

    def cost(c: Mapping[str, Any]) -> float:
        rows = c["rows"] or m
        blocks = shape.batch * -(-n // width(c)) * -(-m // rows)
        cycles = (
            c["panels"] * panel_cycles(shape, rows, c["tile"], c["vectors"]) * k + size * width(c) * k / STREAM + 20.0
        )
        if rows * k * size > L3_PART:
            cycles *= 1.05
        if c["pack"] == "block":
            return float((cycles + packing * width(c)) * _makespan(blocks))
        ahead = 0.0 if shape.prepack else (packing + 0.35 * k) * n * shape.batch + LAUNCH
        return float(cycles * _makespan(blocks) + ahead)

    tiles = [dict(tile=rows, vectors=vectors) for rows, vectors in _tiles(shape)]
    start = _start(knobs, where, cost, tiles, panels=knobs["panels"], rows=knobs["rows"], pack=knobs["pack"])
    return _space(knobs, where, start)


def _strip_space(shape: Gemm) -> Space:
    m, n, k, lanes, size = shape.m, shape.n, shape.k, shape.vector_lanes, shape.sum_bytes
    packs = ["kernel", "none"] if shape.prepack else ["panel", "none", "kernel"]
    if shape.tb:
        packs.remove("none")
    in_place = m <= FEW and "none" in packs and n >= lanes and not shape.prepack
    pieces = dict.fromkeys(_divisor_near(k, d) for d in (256, 128, 64, 16, 8))
    knobs = dict(columns=_strips(n, lanes), depth=list(pieces), **_knobs(shape), pack=packs)

    def block(c: Mapping[str, Any]) -> int:
        panel = c["depth"] * lanes * c["vectors"] if c["pack"] == "panel" else 0
        return int(size * ((c["rows"] or m) * c["columns"] + panel))

    where: dict[str, Predicate] = {
        **_rules(shape),
        "columns": lambda c: c["columns"] % (lanes * c["vectors"]) == 0 and (c["pack"] != "none" or c["columns"] <= n),
        "fits": lambda c: block(c) <= BLOCK_BYTES,
        "unrolled": lambda c: c["unroll_k"] <= c["depth"],
    }

    def cost(c: Mapping[str, Any]) -> float:
        rows, panels = c["rows"] or m, c["columns"] // (lanes * c["vectors"])
        cycles = (
            panels * panel_cycles(shape, rows, c["tile"], c["vectors"]) * (1 + (40 if in_place else 10) / c["columns"])
        )
        crowded = 1.1 if block(c) > BLOCK_BYTES // 3 else 1.0  # what is read of b is there too
        blocks = shape.batch * -(-n // c["columns"]) * -(-m // rows)
        return float(cycles * crowded * _makespan(blocks))

    depth = _divisor_near(k, (8 if m == 1 else 64) if in_place else 256)
    # wider tiles pay in place only, and not where all rows of b start in the same few sets of the caches; a single row
    # has two sums, so that many rows of b are read side by side
    narrow = m == 1 or not in_place or n * size % CACHE_WAY == 0
    line = max(1, 64 // shape.vector_bytes)
    tiles = [dict(tile=rows, vectors=vectors) for rows, vectors in _tiles(shape) if vectors <= line or not narrow]
    if m == 1:
        tiles.append(dict(tile=1, vectors=line))
    start = _start(
        knobs, where, cost, tiles,
        columns=knobs["columns"],
        rows=knobs["rows"] if m > SMALL else [0],
        depth=[depth],
        pack=["none"] if in_place else packs[:1],
        unroll_k=[u for u in ((8, 4, 1) if m == 1 else (4, 1)) if u <= depth][:1],
    )  # fmt: skip
    return _space(knobs, where, start)


def _dot_space(shape: Gemm) -> Space:
    m, n, steps = shape.m, shape.n, -(-shape.k // shape.vector_lanes)
    knobs = {name: values for name, values in _knobs(shape).items() if name != "vectors"}
    knobs = dict(columns=_strips(n, 1, (16, 32, 48, 64, 96, 128, 256)), outputs=[3, 4, 8, 2, 6, 1, 12], **knobs)
    sensible = _rules(shape)["sensible"]
    where: dict[str, Predicate] = {
        "registers": lambda c: c["outputs"] * (c["tile"] + (c["tile"] > 1)) < shape.registers,
        "sensible": lambda c: sensible({**c, "vectors": 1}) and c["outputs"] <= c["columns"],
    }

    def cost(c: Mapping[str, Any]) -> float:
        rows = c["rows"] or m
        cycles = -(-c["columns"] // c["outputs"]) * panel_cycles(shape, rows, c["tile"], c["outputs"]) * steps + 100.0
        return float(cycles * _makespan(shape.batch * -(-n // c["columns"]) * -(-m // rows)))

    pairs = [(4, 3), (2, 4), (1, 8), (3, 3), (2, 2), (1, 4), (1, 2), (1, 1)]
    tiles = [dict(tile=rows, outputs=outputs) for rows, outputs in pairs]
    return _space(knobs, where, _start(knobs, where, cost, tiles, columns=knobs["columns"], unroll_k=[1]))


def _strips(n: int, lanes: int, wanted: Sequence[int] = ()) -> list[int]:
    """Widths of strips of n columns in whole vectors: parts of n, and round numbers."""
    sizes = wanted or [lanes * v for v in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)]
    parts = {-(-n // (d * lanes)) * lanes for d in (1, 2, 4, 6, 8)}
    limit = max(2048, *sizes)
    return sorted({v for v in (*sizes, *parts) if v <= limit and v < n + 6 * lanes})


def _divisor_near(k: int, wanted: int) -> int:
    """A divisor of k from 3/4 to 3/2 of ``wanted``; without one the length of balanced pieces of about that size."""
    near = [d for d in range(max(1, 3 * wanted // 4), 3 * wanted // 2 + 1) if k % d == 0]
    return min(near, key=lambda d: abs(d - wanted)) if near else -(-k // max(1, round(k / wanted)))


def _space(knobs: Mapping[str, Sequence[Any]], where: Mapping[str, Predicate], start: dict[str, Any] | None) -> Space:
    from tensorir.tune.space import Space

    return Space(where=where, default=start, **knobs)


_ALGORITHMS: dict[str, tuple[Apply, Callable[[Gemm], Any]]] = {
    "column": (cpu_column, _column_space),
    "strip": (cpu_strip, _strip_space),
    "dot": (cpu_dot, _dot_space),
}
