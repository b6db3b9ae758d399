"""matmul on GPUs: shared tiles and register tiles on any, and the templates for CUDA (``gemm_warp``: warp tiles,
``gemm_tensor``, ``gemm_hopper``: on tensor cores).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.api.workload import Template
from tensorir.ops.blocks import bind_grid, has_room, start
from tensorir.ops.common import Config, out_stage
from tensorir.ops.gemm_blocks import first_of_one_group, in_groups, join_operands, of_one_group, operands
from tensorir.ops.gemm_hopper import gpu_hopper, hopper_block, hopper_space, warpgroups
from tensorir.ops.gemm_tensor import gpu_tensor, least_target, multiplication, tensor_block, tensor_space
from tensorir.ops.gemm_warp import DTYPES as THREADED
from tensorir.ops.gemm_warp import gpu_warp, warp_block, warp_space
from tensorir.ops.gemm_waves import in_two
from tensorir.ops.problems import Gemm

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space


def gpu_templates(shape: Gemm) -> dict[str, Template]:
    """The templates for GPUs: for CUDA on tensor cores where these multiply the operands' type, else in threads; for
    any of them by shared tiles.
    """
    tiles = Template(lambda s, cfg: gpu_tile(s, cfg, shape), lambda t: _gpu_space(shape, t), kinds=("gpu",))
    return {**_by_warps(shape), "gpu_tile": tiles}


def _by_warps(shape: Gemm) -> dict[str, Template]:
    """The templates for CUDA."""
    if multiplication(shape) is not None:
        cores = Template(
            lambda s, c: gpu_tensor(in_two(s, c, shape, tensor_block(c)), c, shape),
            lambda t: tensor_space(shape, t),
            ("gpu",),
            needs=least_target(shape),
        )
        if warpgroups(shape) is None:
            return {"gpu_tensor": cores}
        groups = Template(
            lambda s, c: gpu_hopper(in_two(s, c, shape, hopper_block(c)), c, shape, s.target),
            lambda t: hopper_space(shape, t),
            ("gpu",),
            needs="sm_90a",
        )
        return {"gpu_hopper": groups, "gpu_tensor": cores}
    if shape.dtype in THREADED:
        tiles = Template(
            lambda s, c: gpu_warp(in_two(s, c, shape, warp_block(c)), c, shape),
            lambda t: warp_space(shape, t),
            ("gpu",),
            needs="sm_70",
        )
        return {"gpu_warp": tiles}
    return {}


def gpu_tile(s: Schedule, c: Config, p: Gemm) -> Schedule:
    """Both operands staged in shared memory per ``bk``, register tiles read from there in vectors of four."""
    out = out_stage(s, "c")
    ib, it, il = s.split(f"{out}.i", [None, c["ti"], c["ri"]])
    jb, jt, jl = s.split(f"{out}.j", [None, c["tj"], c["rj"]])
    batch = [f"{out}.z"] if p.batch > 1 else []
    s.reorder(*batch, ib, jb, it, jt, il, jl)
    bind_grid(s, batch, [ib], [jb])
    s.bind(it, "thread.y").bind(jt, "thread.x")
    s.compute_at("c", jt)
    ko, ki = s.split("c.k", [None, c["bk"]])
    s.reorder(*(["c.z"] if batch else []), ko, ki, "c.i", "c.j")
    along_k = _vector(c["bk"], p.k, c["vector"])
    along_m = _vector(c["ti"] * c["ri"], p.m, c["vector"])
    along_n = _vector(c["tj"] * c["rj"], p.n, c["vector"])
    rows = _quads("i", c["ri"], c["ti"], c["bk"], not p.ta)
    columns = _quads("j", c["rj"], c["tj"], c["bk"], p.tb)
    (a, z, _), (b, y, _) = operands(p).values()
    s.stage_in(a, at=ko, scope="shared", vector=along_m if p.ta else along_k,
               layout=f"{z}k, i -> {z}k, {rows}" if p.ta else f"{z}i, k -> {z}k, {rows}")  # fmt: skip
    s.stage_in(b, at=ko, scope="shared", vector=along_k if p.tb else along_n,
               layout=f"{y}j, k -> {y}k, {columns}" if p.tb else f"{y}k, j -> {y}k, {columns}")  # fmt: skip
    join_operands(s, p)
    if c["fragments"]:
        for given, tile, axis in (
            (operands(p)["a"], c["ri"], 1 if p.ta else 0),
            (operands(p)["b"], c["rj"], 0 if p.tb else 1),
        ):
            fragment = s.stage_in(f"{given.name}_shared", at=ki, scope="register")
            if tile % 4 == 0:  # four neighbours of a tile are contiguous, whichever axis comes last
                _, four = s.split(f"{fragment.name}.ax{axis + given.dims}", [None, 4])
                own = [x for x in s.loops(fragment.name) if str(x).startswith(f"{fragment.name}.") and x != four]
                s.reorder(*own, four).vectorize(four)
    s.unroll("c.i").unroll("c.j").unroll(ki)
    if c["rj"] % 4 == 0:
        tile, lane = s.split(jl, [None, 4])
        s.unroll(tile).vectorize(lane)
    s.unroll(il)
    if c["depth"] > 1:
        s.pipeline(ko, c["depth"])
    return s


def _quads(axis: str, tile: int, threads: int, bk: int, along_k: bool) -> str:
    """Storage of an axis that threads read in tiles: the first four of all threads side by side, then the next four, so
    that what a warp reads at once is in different banks; xored so that what it writes at once does, too.

    A warp writes 32 vectors of four, along the axis, or along k and then element by element. Their places in eight
    groups of four banks take three bits: low bits of ``axis/4``, of which some are in the order anyway, and where it
    writes along k, bits of ``k/4`` in what is left of the three.
    """
    groups = tile // 4
    if tile % 4 or tile == 4:
        return axis
    plain = f"({axis}/4)%{groups}", f"{axis}/{tile}", f"{axis}%4"
    if groups not in (2, 4, 8) or threads % 8:
        return ", ".join(plain)
    low = groups.bit_length() - 1
    folds = [f"{axis}/4%{groups}*{8 // groups}"]
    if along_k:
        rows = (32 // bk).bit_length() - 1  # bits of axis/4 in a warp
        used = {3 - low + n if n < low else n - low for n in range(rows)}
        free = [n for n in range(3) if n not in used]
        folds += [f"k/{4 << n}%2*{1 << bit}" for n, bit in zip(range((bk // 4).bit_length() - 1), free, strict=False)]
    return f"{plain[0]}, {' ^ '.join([plain[1], *folds])}, {plain[2]}"


def _vector(tile: int, extent: int, wanted: int) -> int | None:
    """Lanes of a cooperative copy along a row of ``tile`` elements of a tensor ``extent`` wide."""
    for lanes in (4, 2):
        if lanes <= wanted and tile % lanes == 0 and extent % lanes == 0:
            return lanes
    return None


def _gpu_space(p: Gemm, target: Target) -> Space:
    from tensorir.tune.space import Space

    def threads(c: Mapping[str, Any]) -> bool:
        return c["ti"] * c["tj"] in (64, 128, 256)

    def tile_bytes(c: Mapping[str, Any]) -> int:
        return int(p.element_bytes * c["depth"] * c["bk"] * (c["ti"] * c["ri"] + c["tj"] * c["rj"]))

    def shared(c: Mapping[str, Any]) -> bool:
        return tile_bytes(c) <= target.shared_optin_bytes

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["ri"] * c["rj"] <= 128)

    def unrolled(c: Mapping[str, Any]) -> bool:
        return bool(c["ri"] * c["rj"] * c["bk"] <= 1024)

    def grid(c: Mapping[str, Any]) -> bool:
        rows, columns = -(-p.m // (c["ti"] * c["ri"])), -(-p.n // (c["tj"] * c["rj"]))
        return has_room(target, p.batch, rows, columns)

    where = {"threads": threads, "shared": shared, "registers": registers, "unrolled": unrolled}
    if p.batch * p.m * p.n > target.max_grid[0]:
        where["grid"] = grid
    if in_groups(p):
        where["groups"] = lambda c: of_one_group(p, c["ti"] * c["ri"])
    big = p.m >= 256 and p.n >= 256
    tile = 8 if big else 4
    wanted = dict(ti=16, tj=16, ri=tile, rj=tile, bk=8 if big else 16, vector=4, fragments=1, depth=2)
    smaller = [{**wanted, "ri": n} for n in (8, 4, 2, 1) if n < tile]
    wanted = dict(first_of_one_group(p, lambda c: c["ti"] * c["ri"], [wanted, *smaller]))
    knobs = dict(
        ti=[16, 8, 32, 4],
        tj=[16, 8, 32],
        ri=[8, 4, 2, 1, 16],
        rj=[8, 4, 2, 1],
        bk=[8, 16, 32],
        vector=[4, 1],
        fragments=[1, 0],
        depth=[2, 1],
    )
    return Space(where=where, default=start(knobs, where, tile_bytes, wanted), **knobs)
