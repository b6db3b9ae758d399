"""Winograd convolution on GPUs (CUDA): the stages as kernels of their own, with products as matmul has them.

Every intermediate is stored so that neighbouring threads of each kernel that reads it read neighbours: channels last in
NHWC, tiles last in NCHW, where the product of a tile's place is (channels, tiles) instead of (tiles, channels).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorir.ops.common import Config, last_stage
from tensorir.ops.gemm_blocks import Operand, Sums
from tensorir.ops.gemm_gpu import WarpTile
from tensorir.ops.gemm_tensor import TensorTile, multiplication
from tensorir.ops.problems import Conv, Gemm
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.gpu_model import DRAM_SHARE
from tensorir.tune.legal import Predicate

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

THREADS = 256
"""Threads of a block that transforms."""
LANES = 32
TILES = (4, 2)
"""Tile sizes m, the one to start with first, for filters of three taps."""
ROOM = 48 * 1024
"""Shared memory of a block that any device has."""
PATCH = {True: 64, False: 8}
"""Rows or columns of tiles of a block that transforms, by whether they are contiguous."""
REGISTERS = 72
"""Of a thread, for the places of its tiles."""


def tiles(shape: Conv, m: int) -> tuple[int, int]:
    """Rows and columns of tiles of an image."""
    return -(-shape.p // m), -(-shape.q // m)


def products(shape: Conv, tile: int) -> Gemm:
    """The products of all places of a tile, as one matmul is described."""
    rows, columns = tiles(shape, tile)
    many, k, nchw = shape.n * rows * columns, shape.k, shape.nchw
    m, n = (k, many) if nchw else (many, k)
    return Gemm(m=m, n=n, k=shape.c, batch=(tile + shape.r - 1) ** 2, ta=nchw, dtype=shape.dtype,
                precision=shape.precision)  # fmt: skip


def gpu_winograd(s: Schedule, c: Config, shape: Conv) -> Schedule:
    """Kernels: the weights, the input's tiles, the products, and the way back with the epilogue.

    c: m; ``th`` x ``tw`` tiles of a block that transforms, ``vec`` channels of a thread of it; those of
       ``WarpTile``, or of ``TensorTile`` where products of a named precision are asked for
    """
    s.redeclare("winograd", tile=c["m"])
    transform_weights(s, shape)
    _input(s, c, shape)
    _output(s, c, shape)
    p = products(shape, c["m"])
    tile = engine(p)(c, p, s.target)
    s.stage_out("M", at="root", scope=tile.scope)
    names = ("U", "V") if shape.nchw else ("V", "U")
    given = {operand: Operand(name, "z, ") for operand, name in zip("ab", names, strict=True)}
    return tile.product(s, Sums.over("M", "M.out", ["z"]), given)


def engine(p: Gemm) -> type[TensorTile | WarpTile]:
    """What multiplies: tensor cores, where products of a named precision are asked for."""
    return WarpTile if multiplication(p) is None else TensorTile


def transform_weights(s: Schedule, shape: Conv) -> None:
    """A thread transforms a filter of one channel to one; the block reads filters as stored and turns them in shared
    memory.
    """
    s.stage_out("U", "root", "register")
    kb, kl = s.split("U.out.k", [None, LANES])
    cb, cl = s.split("U.out.c", [None, THREADS // LANES])
    s.reorder(kb, cb, cl, kl, "U.out.z")
    block = s.fuse(kb, cb)
    s.bind(block, "block.x").bind(cl, "thread.y").bind(kl, "thread.x").unroll("U.out.z")
    s.compute_at("U", kl).compute_at("W", kl)
    written_out(s, "U", ("z", "c", "k", "s"))
    written_out(s, "W", ("u", "s", "c", "k", "r"))
    turned = "k, c, r, s -> c, r, s, k" if shape.nchw else "k, r, s, c -> r, s, c, k"
    s.stage_in("w", at=block, scope="shared", layout=turned, pad=1)
    if shape.prepack:
        s.run_once("U")


def _input(s: Schedule, c: Config, shape: Conv) -> None:
    """A thread transforms a tile, of ``vec`` channels where these are contiguous. What it reads, its neighbours read
    as well: out of the cache, or in NCHW out of shared memory.
    """
    nchw, (rows, columns) = shape.nchw, tiles(shape, c["m"])
    s.stage_out("V", "root", "register")
    image, high, wide = s.split("V.out.t", [None, rows, columns])
    block, thread, lanes = _threads(s, c, nchw, image, high, wide, "V.out.c", shape.c, ["V.out.z"])
    s.unroll("V.out.z")
    s.compute_at("V", thread).compute_at("T", thread)
    written_out(s, "V", ("c", "t", "z", "x"))
    written_out(s, "T", ("t", "x", "c", "u", "y"))
    if nchw:
        m = c["m"]
        # the columns that threads read at once are contiguous; a row of a warp's threads is written to all banks
        apart = f"n, h, w, c -> n, c, h, w%{m}, w/{m}"
        copy = s.stage_in("x_pad", at=block, scope="shared", layout=apart, pad=_pad(c)).name
        s.reorder(f"{copy}.ax3", f"{copy}.ax1", f"{copy}.ax2")
    else:
        s.unroll(f"{_near(s, 'x_pad', 'T.x', c['vec'])}.ax1")
        _side_by_side(s, lanes, c["vec"])
    s.compute_inline("x_pad")


def _output(s: Schedule, c: Config, shape: Conv) -> None:
    """A thread makes the m x m outputs of a tile, of ``vec`` channels where these are contiguous."""
    nchw, m = shape.nchw, c["m"]
    out = last_stage(s, "y")
    high, p = s.split(f"{out}.p", [None, m])
    wide, q = s.split(f"{out}.q", [None, m])
    _, thread, lanes = _threads(s, c, nchw, f"{out}.n", high, wide, f"{out}.k", shape.k, [p, q])
    way_back(s, thread, p, q, shape, m)
    if not nchw:
        s.unroll(f"{_near(s, 'M', thread, c['vec'])}.ax0")
        _side_by_side(s, lanes, c["vec"])


def way_back(s: Schedule, at: Any, p: Any, q: Any, shape: Conv, m: int) -> None:
    """A thread's m x m outputs of a tile, loops ``p`` and ``q``, from the products of its places, ``at`` its loop."""
    s.compute_at("Y", at).compute_at("Z", at)
    written_out(s, "Y", ("t", "k", "i", "j", "v"))
    written_out(s, "Z", ("t", "b", "k", "i", "u"))
    s.unroll(p)
    if shape.nchw and shape.q % m == 0:
        s.vectorize(q)
    else:
        s.unroll(q)


def _threads(s: Schedule, c: Config, nchw: bool, image: Any, high: Any, wide: Any, channel: Any, channels: int,
             inner: Sequence[Any]) -> tuple[Any, Any, Any]:  # fmt: skip
    """Blocks, threads and the channels of a thread, for a nest over tiles and channels: neighbouring threads take what
    is contiguous.
    """
    hb, hl = s.split(high, [None, c["th"]])
    wb, wl = s.split(wide, [None, c["tw"]])
    cb, cl, lanes = s.split(channel, [None, groups(c, channels), c["vec"]])
    outer, own = ((image, cb, hb, wb), (cl, hl, wl)) if nchw else ((image, hb, wb, cb), (hl, wl, cl))
    s.reorder(*outer, *own, *((lanes, *inner) if nchw else (*inner, lanes)))
    block, thread = s.fuse(*outer, name="block"), s.fuse(*own, name="thread")
    s.bind(block, "block.x").bind(thread, "thread.x")
    return block, thread, lanes


def _pad(c: Config) -> int:
    """Spare columns of each m-th part of a row in shared memory, so that all lanes of a warp write to other banks."""
    return LANES // c["m"] - 1 if c["tw"] == LANES else 0


def groups(c: Config, channels: int) -> int:
    """Channels of a block that transforms so many of them, by ``vec``: a power of two, and enough for its threads."""
    most, needed = THREADS // (c["th"] * c["tw"]), -(-channels // c["vec"])
    return int(2 ** min(int(math.log2(most)), math.ceil(math.log2(needed))))


def _near(s: Schedule, tensor: str, at: Any, lanes: int) -> str:
    """What an iteration reads, in registers first, in vectors of channels; returns the copy's name."""
    return s.stage_in(tensor, at=at, scope="register", vector=lanes if lanes > 1 else None).name


def _side_by_side(s: Schedule, lanes: Any, many: int) -> None:
    """The innermost loop over so many neighbours."""
    if many > 1:
        s.vectorize(lanes)
    else:
        s.unroll(lanes)


def written_out(s: Schedule, stage: str, order: Sequence[str]) -> None:
    """A small nest without loops, whose constants fold away."""
    s.reorder(*(f"{stage}.{x}" for x in order))
    for x in order:
        s.unroll(f"{stage}.{x}")


def winograd_space(shape: Conv, target: Target, sizes: Sequence[int]) -> Space:
    """The tiles of outputs among ``sizes``, how threads share the transforms, and the space of the products."""
    from tensorir.tune.space import Space

    nchw = shape.nchw
    make = engine(products(shape, sizes[0]))
    inner = {m: make.space(products(shape, m), target) for m in sizes}
    any_ = inner[sizes[0]]

    def told(name: str) -> Predicate:
        return lambda c: inner[c["m"]].where[name](c)

    def whole(c: Config) -> bool:  # so that nobody asks which tile is beyond the last one
        rows, columns = tiles(shape, c["m"])
        return bool(rows % c["th"] == 0 and columns % c["tw"] == 0 and c["th"] * c["tw"] <= THREADS)

    def shared(c: Config) -> bool:
        high, wide = (c[v] * c["m"] + shape.r - 1 for v in ("th", "tw"))
        return bool(not nchw or 4 * high * (wide + c["m"] * _pad(c)) * groups(c, shape.c) <= ROOM)

    def registers(c: Config) -> bool:
        return bool((c["m"] + shape.r - 1) ** 2 * c["vec"] <= REGISTERS)

    where: dict[str, Predicate] = {"whole": whole, "shared": shared, "registers": registers,
                                   **{name: told(name) for name in any_.where}}  # fmt: skip
    lanes = [1] if nchw else [n for n in (2, 4, 1) if shape.c % n == 0 and shape.k % n == 0]
    fixed = {"splits": (1,), "atomic": (0,), "rest": (0,)}  # there are as many products as places of a tile
    rows, columns = ({n for m in sizes for n in _parts(tiles(shape, m)[d], PATCH[nchw])} for d in (0, 1))
    knobs = dict(m=sizes, tw=sorted(columns), th=sorted(rows), vec=lanes,
                 **{n: fixed.get(n, v) for n, v in zip(any_.names, any_.values, strict=True)})  # fmt: skip
    default = {**any_.default, "splits": 1, "atomic": 0}
    every = (dict(zip(("m", "tw", "th", "vec"), v, strict=True))
             for v in itertools.product(sizes[:1], knobs["tw"], knobs["th"], lanes))  # fmt: skip
    legal = [c for c in every if all(test(c) for test in (whole, shared, registers))]
    start = min(legal, key=lambda c: _idle(c, shape))
    space = Space(where=where, default={**start, **default}, **knobs)
    gpu = gpu_of(target)
    if gpu is None:
        return space
    moved = {m: _moved_bytes(shape, m) / (DRAM_SHARE * gpu.dram) for m in sizes}

    def expected(c: Config) -> float:
        seconds = inner[c["m"]].expected_s
        assert seconds is not None
        return seconds(c) + moved[c["m"]]

    return space.expecting(expected)


def _parts(extent: int, most: int) -> list[int]:
    """Sizes of equal parts of a row or column of tiles, the three largest within ``most``; all of it where it has none
    but single tiles.
    """
    found = [n for n in range(1, min(extent, THREADS) + 1) if extent % n == 0]
    near = [n for n in found if n <= most][-3:]
    return found if near == [1] else near


def _idle(c: Config, shape: Conv) -> tuple[bool, float, int]:
    """What is bad about a block that transforms: neighbours in a warp that are in pieces, the share of its threads
    with nothing to do, tiles that it has no room for.
    """
    (rows, columns), patch, used = tiles(shape, c["m"]), c["th"] * c["tw"], 1.0
    apart = (patch if c["tw"] == columns else c["tw"]) < min(LANES, rows * columns) * 3 // 4
    for n in (shape.c, shape.k):
        wide = groups(c, n) * c["vec"]
        if not shape.nchw:
            apart = wide < min(LANES, n)
        used *= patch * groups(c, n) / THREADS * n / (-(-n // wide) * wide)
    return apart, round(1 - used, 1), -c["tw"]


def _moved_bytes(shape: Conv, m: int) -> int:
    """Bytes that the transforms read and write."""
    c, k, n = shape.c, shape.k, shape.n
    places, many = (m + shape.r - 1) ** 2, n * math.prod(tiles(shape, m))
    weights = 0 if shape.prepack else c * k * (places + shape.r**2)
    images = n * (c * shape.h * shape.w + k * shape.p * shape.q)
    return int(4 * (weights + images + places * many * (c + k)))
