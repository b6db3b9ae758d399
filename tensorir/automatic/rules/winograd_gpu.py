"""Winograd convolution on CUDA if its larger rounding error is allowed: separate kernels, or one kernel (2 x 2 tiles).

Separate kernels: filter transform, image transform, one matrix product per element of a transformed tile, output
transform. Intermediates are stored so that adjacent threads read adjacent elements: channels last for NHWC, tiles last
for NCHW, with products (channels, tiles) instead of (tiles, channels).

Fused kernel, F(2 x 2, 3 x 3): Yan, Wang and Chu, "Optimizing Batched Winograd Convolution on GPUs", PPoPP 2020. A block
computes the products of all 16 elements of a tile, for some tiles and output channels; only the image, the transformed
filter and the result use global memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.conv_part import (
    ConvStages,
    ConvTile,
    Legal,
    approximate_parts,
    cells,
)
from tensorir.engines.gemm_blocks import Blocks, Operand, Sums
from tensorir.engines.gemm_gpu import WarpTile
from tensorir.engines.gemm_tensor import TensorTile, multiplication
from tensorir.engines.problems import Conv, Gemm
from tensorir.engines.tiles import Knob, Knobs, Rule
from tensorir.gpu_devices import gpu_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_model import MatrixProduct, Tiles, seconds

THREADS = 256
"""Threads per block of a transform kernel."""
LANES = 32
TILES = (4, 2)
"""Tile sizes m for filters of three taps, the default first."""
SHARED_BYTES = 48 * 1024
"""Bytes of shared memory per block available on any device."""
PATCH = {True: 64, False: 8}
"""Maximum rows or columns of tiles per block of a transform kernel, by whether they are contiguous (NCHW)."""
REGISTERS = 72
"""Maximum registers per thread for the elements of its tiles."""
TILE_SIDE = 2
"""Rows and columns of outputs per tile of the fused kernel."""
PLACES = 16
ROWS, COLUMNS = 16, 32
"""Rows and columns of accumulators that a warp stores to shared memory at once."""
TILES_OF_A_BLOCK = 32
"""Tiles per block of the fused kernel: one per lane, so that a warp reads rows of pixels without bank conflicts."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for a convolution and its epilogue, if ``Wishes.max_error`` allows Winograd's rounding."""
    if target.language == "cuda":
        yield from approximate_parts(graph, anchor, target, (WinogradTile, FusedTile))


def tiles(shape: Conv, m: int) -> tuple[int, int]:
    """(rows, columns) of tiles of an image."""
    return -(-shape.p // m), -(-shape.q // m)


def products(shape: Conv, tile: int) -> Gemm:
    """The batched matrix product over all elements of a transformed tile."""
    rows, columns = tiles(shape, tile)
    many, k, nchw = shape.n * rows * columns, shape.k, shape.nchw
    m, n = (k, many) if nchw else (many, k)
    return Gemm(m=m, n=n, k=shape.c, batch=(tile + shape.r - 1) ** 2, ta=nchw, dtype=shape.dtype,
                precision=shape.precision)  # fmt: skip


def transform_weights(s: BaseSchedule, shape: Conv, weights: str) -> None:
    """Schedule the filter transform: one thread per (input, output) channel; filters are transposed in shared
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
    s.stage_in(weights, at=block, scope="shared", layout=turned, pad=1)


def way_back(s: BaseSchedule, at: str, p: str, q: str, shape: Conv, m: int) -> None:
    """Schedule the output transform at loop ``at``: one thread per tile of m x m outputs, loops ``p`` and ``q``."""
    s.compute_at("Y", at).compute_at("Z", at)
    written_out(s, "Y", ("t", "k", "i", "j", "v"))
    written_out(s, "Z", ("t", "b", "k", "i", "u"))
    s.unroll(p)
    if shape.nchw and shape.q % m == 0:
        s.vectorize(q)
    else:
        s.unroll(q)


def _near(s: BaseSchedule, tensor: str, at: Any, lanes: int) -> str:
    """Stage an iteration's reads in registers, vectorized along the channels; return the copy's name."""
    return s.stage_in(tensor, at=at, scope="register", vector=lanes if lanes > 1 else None).name


def _side_by_side(s: BaseSchedule, lanes: Any, many: int) -> None:
    """Vectorize loop ``lanes`` if its count ``many`` exceeds 1, else unroll it."""
    if many > 1:
        s.vectorize(lanes)
    else:
        s.unroll(lanes)


def written_out(s: BaseSchedule, stage: str, order: Sequence[str]) -> None:
    """Reorder and unroll all loops of a small stage, so that constants fold."""
    s.reorder(*(f"{stage}.{x}" for x in order))
    for x in order:
        s.unroll(f"{stage}.{x}")


def _parts(extent: int, most: int) -> list[int]:
    """Divisors of ``extent`` up to ``most``, the three largest; all divisors if only 1 is within ``most``."""
    found = [n for n in range(1, min(extent, THREADS) + 1) if extent % n == 0]
    near = [n for n in found if n <= most][-3:]
    return found if near == [1] else near


def _patches(rows: int, columns: int, most: int) -> tuple[list[int], list[int]]:
    """Rows and columns of a block's tiles: ``_parts`` of both, of which some are at most ``THREADS`` together."""
    high, wide = _parts(rows, most), _parts(columns, most)
    if high[0] * wide[0] > THREADS:  # as of 60 x 60: 20, 30 and 60
        high, wide = (_parts(n, math.isqrt(THREADS)) for n in (rows, columns))
    return high, wide


class WinogradTile(ConvTile):
    """Winograd in separate kernels: filter transform, image transform, products, output transform with epilogue.

    m: rows and columns of outputs per tile;  th, tw: tiles per block of a transform;  vec: channels per thread

    Products are scheduled by ``gemm_gpu.WarpTile``, or on tensor cores by ``gemm_tensor`` for a given precision.
    """

    way, approximate = "winograd", True
    m, tw, th, vec = Knob(*TILES), Knob(1), Knob(1), Knob(2, 4, 1)

    @classmethod
    def needs(cls, p: Conv) -> str | None:
        fits = p.r == 3 and p.precision != "tf32" and cls.sizes(p)
        return ("sm_70" if p.precision == "fp32" else "sm_80") if fits else None

    @staticmethod
    def sizes(p: Conv) -> list[int]:
        """Tile sizes m whose error bound is within ``max_error``."""
        return [m for m in TILES if m in p.winograd_tiles]

    @classmethod
    def engine(cls, p: Conv) -> type[Blocks]:
        """Engine of the products."""
        return WarpTile if multiplication(p) is None else TensorTile

    @property
    def product(self) -> Gemm:
        """The batched matrix product of this tile size."""
        return products(self.p, self.m)

    @property
    def inner(self) -> Blocks:
        """Configuration of the products' engine, with the values of this configuration's knobs."""
        return self.engine(self.p)(self.config, self.product, self.target)

    def declare(self, s: BaseSchedule, of: ConvStages) -> None:
        s.redeclare("winograd", tile=self.m, of=of.sums)

    def schedule(self, s: BaseSchedule, of: ConvStages) -> BaseSchedule:
        transform_weights(s, self.p, of.other)
        self._input(s, f"{of.image}_pad")
        self._output(s, of.last(s))
        tile = self.inner
        s.stage_out("M", at="root", scope=tile.scope)
        names = ("U", "V") if self.p.nchw else ("V", "U")
        given = {operand: Operand(name, "z, ") for operand, name in zip("ab", names, strict=True)}
        return tile.product(s, Sums.over("M", "M.out", ["z"]), given)

    def _input(self, s: BaseSchedule, image: str) -> None:
        """Schedule the image transform: one thread per tile and ``vec`` contiguous channels.

        Overlapping reads of adjacent threads hit the cache, or for NCHW shared memory.
        """
        shape, nchw, (rows, columns) = self.p, self.p.nchw, tiles(self.p, self.m)
        s.stage_out("V", "root", "register")
        n, high, wide = s.split("V.out.t", [None, rows, columns])
        block, thread, lanes = self._threads(s, n, high, wide, "V.out.c", shape.c, ["V.out.z"])
        s.unroll("V.out.z")
        s.compute_at("V", thread).compute_at("T", thread)
        written_out(s, "V", ("c", "t", "z", "x"))
        written_out(s, "T", ("t", "x", "c", "u", "y"))
        if nchw:
            m = self.m
            # the columns that threads read at once are contiguous; a row of a warp's threads is written to all banks
            apart = f"n, h, w, c -> n, c, h, w%{m}, w/{m}"
            copy = s.stage_in(image, at=block, scope="shared", layout=apart, pad=self.pad).name
            s.reorder(f"{copy}.ax3", f"{copy}.ax1", f"{copy}.ax2")
        else:
            s.unroll(f"{_near(s, image, 'T.x', self.vec)}.ax1")
            _side_by_side(s, lanes, self.vec)
        s.compute_inline(image)

    def _output(self, s: BaseSchedule, out: str) -> None:
        """Schedule the output transform: one thread per tile and ``vec`` contiguous channels."""
        shape, nchw, m = self.p, self.p.nchw, self.m
        n, k, p, q = cells(s, out, shape)
        high, p = s.split(p, [None, m])
        wide, q = s.split(q, [None, m])
        _, thread, lanes = self._threads(s, n, high, wide, k, shape.k, [p, q])
        way_back(s, thread, p, q, shape, m)
        if not nchw:
            s.unroll(f"{_near(s, 'M', thread, self.vec)}.ax0")
            _side_by_side(s, lanes, self.vec)

    def _threads(self, s: BaseSchedule, image: Any, high: Any, wide: Any, channel: Any, channels: int,
                 inner: Sequence[Any]) -> tuple[Any, Any, Any]:  # fmt: skip
        """Bind a nest over tiles and channels to blocks and threads, contiguous axis innermost; return (block, thread,
        lanes).
        """
        hb, hl = s.split(high, [None, self.th])
        wb, wl = s.split(wide, [None, self.tw])
        cb, cl, lanes = s.split(channel, [None, self.channels(channels), self.vec])
        outer, own = ((image, cb, hb, wb), (cl, hl, wl)) if self.p.nchw else ((image, hb, wb, cb), (hl, wl, cl))
        s.reorder(*outer, *own, *((lanes, *inner) if self.p.nchw else (*inner, lanes)))
        block, thread = s.fuse(*outer, name="block"), s.fuse(*own, name="thread")
        s.bind(block, "block.x").bind(thread, "thread.x")
        return block, thread, lanes

    @property
    def pad(self) -> int:
        """Padding columns of shared memory for each m-th part of a row, against bank conflicts."""
        return LANES // self.m - 1 if self.tw == LANES else 0

    def channels(self, many: int) -> int:
        """Channels per block of a transform, in units of ``vec``: a power of two that fits its threads."""
        most, needed = THREADS // (self.th * self.tw), -(-many // self.vec)
        return int(2 ** min(int(math.log2(most)), math.ceil(math.log2(needed))))

    def whole(self) -> bool:
        """True if blocks have whole tiles only, so that no thread needs a guard."""
        rows, columns = tiles(self.p, self.m)
        return rows % self.th == 0 and columns % self.tw == 0 and self.th * self.tw <= THREADS

    rules: ClassVar[Mapping[str, Rule]] = {"whole": whole}

    def roomy(self) -> bool:
        """True if the staged tile fits the shared memory of any device and a thread's tile fits its registers."""
        high, wide = (n * self.m + self.p.r - 1 for n in (self.th, self.tw))
        staged = 4 * high * (wide + self.m * self.pad) * self.channels(self.p.c) if self.p.nchw else 0
        return staged <= SHARED_BYTES and (self.m + self.p.r - 1) ** 2 * self.vec <= REGISTERS

    @classmethod
    def knobs(cls, p: Conv, target: Target) -> Knobs:
        sizes, most = cls.sizes(p), PATCH[p.nchw]
        patches = [_patches(*tiles(p, m), most) for m in sizes]
        rows, columns = (sorted({n for patch in patches for n in patch[d]}) for d in (0, 1))
        lanes = [1] if p.nchw else [n for n in (2, 4, 1) if p.c % n == 0 and p.k % n == 0]
        alone = {"splits": [1], "atomic": [0], "rest": [0]}  # there are as many products as places of a tile
        engine = cls.engine(p).knobs(products(p, sizes[0]), target)
        return {"m": sizes, "tw": columns, "th": rows, "vec": lanes, **engine, **alone}

    @classmethod
    def start(cls, p: Conv, target: Target) -> Config | None:
        knobs, m = cls.knobs(p, target), cls.sizes(p)[0]
        inner = {**(cls.engine(p).start(products(p, m), target) or {}), "splits": 1, "atomic": 0}
        every = itertools.product(knobs["tw"], knobs["th"], knobs["vec"])
        tried = (cls({"m": m, "tw": tw, "th": th, "vec": vec, **inner}, p, target) for tw, th, vec in every)
        found = min((t for t in tried if t.whole() and t.roomy()), key=lambda t: t.idle, default=None)
        return None if found is None else found.config

    @property
    def idle(self) -> tuple[bool, float, int]:
        """Ranking key of a transform's block, least is best: fragmented warps, fraction of idle threads, -``tw``."""
        shape, (rows, columns), patch, used = self.p, tiles(self.p, self.m), self.th * self.tw, 1.0
        apart = (patch if self.tw == columns else self.tw) < min(LANES, rows * columns) * 3 // 4
        for n in (shape.c, shape.k):
            wide = self.channels(n) * self.vec
            if not shape.nchw:
                apart = wide < min(LANES, n)
            used *= patch * self.channels(n) / THREADS * n / (-(-n // wide) * wide)
        return apart, round(1 - used, 1), -self.tw

    @classmethod
    def where(cls, p: Conv, target: Target) -> dict[str, Legal]:
        def asked(rule: Rule) -> Legal:
            return lambda c: rule(cls(c, p, target).inner)

        return {**super().where(p, target), **{name: asked(rule) for name, rule in cls.engine(p).rules.items()}}

    @classmethod
    def expected(cls, p: Conv, target: Target) -> Callable[[Config], float] | None:
        """Cost model, configuration -> seconds: products, and transforms by memory bandwidth; None for other
        targets.
        """
        gpu = gpu_of(target)
        if gpu is None:
            return None
        times = {m: cls.engine(p).expected(products(p, m), target) for m in cls.sizes(p)}
        beside = {m: _moved_bytes(p, m) / gpu.copied for m in cls.sizes(p)}

        def time(c: Config) -> float:
            of_products = times[c["m"]]
            return math.inf if of_products is None else of_products(c) + beside[c["m"]]

        return time


def _moved_bytes(shape: Conv, m: int) -> int:
    """Bytes that the transforms read and write."""
    c, k, n = shape.c, shape.k, shape.n
    places, many = (m + shape.r - 1) ** 2, n * math.prod(tiles(shape, m))
    weights = 0 if shape.prepack else c * k * (places + shape.r**2)
    images = n * (c * shape.h * shape.w + k * shape.p * shape.q)
    return int(4 * (weights + images + places * many * (c + k)))


# --- in one kernel


class FusedTile(ConvTile):
    """Winograd F(2 x 2, 3 x 3) in one kernel: ``TILES_OF_A_BLOCK`` tiles by ``bk`` output channels per block, ``bc``
    input channels per step.

    Each step copies the transformed filter and transforms image tiles into shared memory; each warp multiplies
    ``places`` of the 16 tile elements, 8 x 8 accumulators per lane and element. At the end 16 x 32 accumulators of all
    elements at a time pass through shared memory to the output transform.
    depth: 2 to load the next step's filter and pixels during the multiplication
    """

    way, approximate = "winograd_fused", True
    # 64 channels are what the paper takes; compilers spill some registers then, by the shape
    bk, depth, bc, places = Knob(32, 64), Knob(2, 1), Knob(8, 4), Knob(2, 1)

    @classmethod
    def needs(cls, p: Conv) -> str | None:
        return "sm_70" if p.precision == "fp32" and WinogradTile.needs(p) else None

    def declare(self, s: BaseSchedule, of: ConvStages) -> None:
        s.redeclare("winograd", tile=TILE_SIDE, whole=[TILES_OF_A_BLOCK, self.bk], of=of.sums)

    def schedule(self, s: BaseSchedule, of: ConvStages) -> BaseSchedule:
        nchw = self.p.nchw
        transform_weights(s, self.p, of.other)
        block, part, mine = self._output(s, of.last(s))
        s.set_scope("M", "shared")
        s.stage_out("M", "root", "warp", layout="z, i, j -> i/4%4, j/4%8 | z, i/16, j/32, i%4, j%4")
        s.compute_at("M.out", part).compute_at("M", block)
        out, _ = s.split("M.out.z", [None, self.places])
        warp, places = s.split("M.z", [None, self.places])
        ko, ki = s.split("M.k", [None, self.bc])
        s.reorder(warp, ko, ki, places, "M.i", "M.j")
        s.bind(out, "warp.x").bind(warp, "warp.x")
        tile = self._input(s, ko, f"{of.image}_pad")
        s.stage_in("U", at=ko, scope="shared", vector=4)
        for name, axis, order in (("V", "j", "k, j") if nchw else ("V", "i", "i, k"),
                                  ("U_shared", "i", "k, i") if nchw else ("U_shared", "j", "k, j")):  # fmt: skip
            held, strip = ("i/4%4, *8", "i/16, i%4") if axis == "i" else ("*4, j/4%8", "j/32, j%4")
            s.stage_in(name, at=ki, scope="warp", layout=f"z, {order} -> {held} | z, k, {strip}")
        s.unroll(ki)
        s.bind(tile, "threads").bind(mine, "threads")
        if self.depth > 1:
            s.pipeline(ko, self.depth)
        return s

    def _output(self, s: BaseSchedule, out: str) -> tuple[Any, Any, Any]:
        """Schedule the output; return (innermost block loop, loop over parts of the accumulators, loop of a part for
        threads).
        """
        shape, nchw = self.p, self.p.nchw
        n, k, p, q = cells(s, out, shape)
        high, p = s.split(p, [None, TILE_SIDE])
        wide, q = s.split(q, [None, TILE_SIDE])
        s.reorder(n, high, wide, k, p, q)
        flat = s.fuse(n, high, wide, name="tile")
        tiles, channels = (COLUMNS, ROWS) if nchw else (ROWS, COLUMNS)
        tb, tp, t = s.split(flat, [None, TILES_OF_A_BLOCK // tiles, tiles])
        kb, kp, k = s.split(k, [None, self.bk // channels, channels])
        own = (k, t) if nchw else (t, k)
        s.reorder(tb, kb, tp, kp, *own, p, q)
        s.bind(tb, "block.x").bind(kb, "block.y").unroll(tp).unroll(kp)
        mine = s.fuse(*own, name="mine")
        way_back(s, mine, p, q, shape, TILE_SIDE)
        return kb, kp, mine

    def _input(self, s: BaseSchedule, step: Any, image: str) -> Any:
        """Transform a step's tiles into shared memory; return the loop over tiles and channels, to be bound to
        threads.
        """
        s.set_scope("V", "shared").compute_at("V", step)
        if not self.p.nchw:  # threads are at neighbouring channels, and write to other groups of four banks each
            s.layout("V", f"z, i, k -> z, k, i/4 ^ k%{self.bc}*{8 // self.bc}, i%4")
        own = ("V.c", "V.t") if self.p.nchw else ("V.t", "V.c")
        s.reorder(*own, "V.z", "V.x")
        tile = s.fuse(*own, name="tile")
        s.stage_out("V", at=tile, scope="register")
        s.compute_at("T", tile)
        written_out(s, "V", ("z", "x"))
        written_out(s, "T", ("t", "x", "c", "u", "y"))
        s.unroll("V.out.z")
        pixels = s.stage_in(image, at=tile, scope="register").name
        s.compute_inline(image)
        s.unroll(f"{pixels}.ax1").unroll(f"{pixels}.ax2")
        return tile

    @classmethod
    def expected(cls, p: Conv, target: Target) -> Callable[[Config], float] | None:
        """Cost model, configuration -> seconds: products with one block per tile element, and the filter transform;
        None for other targets.
        """
        gpu = gpu_of(target)
        if gpu is None:
            return None
        product = MatrixProduct(p.n * math.prod(tiles(p, TILE_SIDE)), p.k, p.c, PLACES, "f32", 4, 4)
        ahead = 0.0 if p.prepack else gpu.launch_s + 4 * p.c * p.k * (PLACES + p.r**2) / gpu.copied
        return lambda c: (
            ahead + seconds(product, Tiles("threads", TILES_OF_A_BLOCK, c["bk"], c["bc"], 8, 8, c["depth"], False), gpu)
        )

    rules: ClassVar[Mapping[str, Rule]] = {
        "shared": lambda t: (
            4 * PLACES * (t.depth * t.bc * (TILES_OF_A_BLOCK + t.bk) + ROWS * COLUMNS) <= t.target.shared_optin_bytes
        ),
        "sensible": lambda t: t.bk == 32 or t.bk // 2 < t.p.k,
        # fewer tiles and channels than threads: a channel a warp is kept room for
        "busy": lambda t: not t.p.nchw or TILES_OF_A_BLOCK * t.bc >= 32 * PLACES // t.places,
    }
