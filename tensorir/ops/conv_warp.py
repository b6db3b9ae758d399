"""conv2d in threads, by warp tiles (CUDA): a product of filters with the pixels under their taps, which are never
stored as a matrix (implicit GEMM; Chetlur et al., "cuDNN", arXiv 1410.0759). A block copies those of its tile to shared
memory from where they lie.

The reduction goes tap by tap and through all channels under each: a step of ``bk`` terms stays under one tap, whose
place is then the same for all threads, and channels are made up to whole steps. Fewer channels than a step has, those
of a picture, follow each other without a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir.api.workload import Template
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import where
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.tree import Expr
from tensorir.ops.blocks import element_bytes
from tensorir.ops.common import Config
from tensorir.ops.gemm_blocks import Operand, sums_of
from tensorir.ops.gemm_warp import DTYPES, product_in_threads, warp_block, warp_space
from tensorir.ops.images import Shape, declaring, result
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.legal import Predicate

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

LANES, PACKED = 32, 256
"""Filters that a block turns, and its threads, each of which takes one channel of one."""
LEAST = 16
"""Rows, and columns, of the smallest tile of a warp; channels of a group must be whole tiles."""
TILE = ("li", "ri", "rj", "wi", "wj", "bk")
TILES = ((8, 8, 8, 2, 4, 8), (8, 8, 8, 1, 4, 8), (4, 8, 8, 4, 1, 8), (4, 8, 16, 4, 2, 8), (8, 4, 8, 1, 4, 8),
         (4, 4, 8, 1, 4, 16), (8, 4, 4, 2, 2, 16), (4, 4, 4, 1, 2, 16),
         (8, 4, 4, 2, 1, 16))  # fmt: skip
"""Tiles to start with: the first whose expected time is NEAR the least."""
NEAR = 1.15


def warp_template(operands: Mapping[str, Tensor | None], shape: Shape) -> dict[str, Template]:
    """The template, where a convolution is a product of matrices that warps can share."""
    if shape["dtype"] not in DTYPES or (shape["groups"] > 1 and _per_group(shape) % LEAST):
        return {}
    function = declaring(operands, shape, conv2d, gpu_warp)
    return {"gpu_warp": Template(function, lambda t: conv_space(shape, t), ("gpu",), needs="sm_70")}


def conv2d(x: Tensor, w: Tensor, shape: Shape) -> Tensor:
    """``nn.conv2d`` as a product; k counts terms, i channels of the result and j its pixels.

    Intermediates, z, the group, in front of all where there are several: taps (k, i), of 1x1 filters (i, k), columns
    (k, j), sums (i, j); for NHWC, whose channels lie side by side, taps (i, k), columns (j, k), sums (j, i)
    """
    groups, kg, nchw, p, q = shape["groups"], _per_group(shape), shape["layout"] == "NCHW", shape["p"], shape["q"]
    many, depth, packed = shape["n"] * p * q, _channels(shape), is_packed(shape)
    terms, lead = depth * shape["r"] * shape["s"], ((groups,) if groups > 1 else ())

    def tap(k: Expr) -> tuple[Expr, Expr, Expr]:
        """Row and column of a term's tap, and its channel."""
        return k // (depth * shape["s"]), k // depth % shape["s"], k % depth

    def pixel(z: Sequence[Expr], k: Expr, j: Expr) -> Expr:
        r, s, c = tap(k)
        channel = z[0] * shape["cg"] + c if z else c
        h = j // q % p * shape["stride"] + r * shape["dilation"] - shape["pad"]
        v = j % q * shape["stride"] + s * shape["dilation"] - shape["pad"]
        at = (j // (p * q), channel, h, v) if nchw else (j // (p * q), h, v, channel)
        if depth > shape["cg"]:
            return where(c < shape["cg"], x.get(*at, fill=0), 0)
        return x.get(*at, fill=0) if shape["pad"] else x[at]

    def weight(z: Sequence[Expr], k: Expr, i: Expr) -> Expr:
        r, s, c = tap(k)
        out = z[0] * kg + i if z else i
        at = (out, c, r, s) if nchw else (out, r, s, c)
        return w[at] if depth == shape["cg"] else w.get(*at, fill=0)

    def array(value: Callable[..., Expr], rows: int, across: int, turned: bool, name: str, axes: str) -> Tensor:
        """What ``value`` makes of z, a row and a column, or stored the other way round."""
        size, names = ((across, rows), axes[::-1]) if turned else ((rows, across), axes)
        made: Tensor = compute(
            (*lead, *size),
            lambda *at: value(at[:-2], *(at[:-3:-1] if turned else at[-2:])),
            name,
            axes=(*(["z"] if lead else []), *names),
        )
        return made

    columns = array(pixel, terms, many, not nchw, "columns", "kj")
    taps = array(weight, terms, kg, not packed, "taps", "ki")
    t = reduce_axis(terms, "k")

    def value(z: Sequence[Expr], i: Expr, j: Expr) -> Expr:
        weight = taps[(*z, t, i) if packed else (*z, i, t)]
        return total(weight * columns[(*z, t, j)] if nchw else columns[(*z, j, t)] * weight, axis=t)

    sums = array(value, kg, many, not nchw, "sums", "ij" if nchw else "ji")

    def out(n: Expr, k: Expr, row: Expr, column: Expr) -> Expr:
        z, i = ((k // kg,), k % kg) if groups > 1 else ((), k)
        j = (n * p + row) * q + column
        at: Expr = sums[(*z, i, j) if nchw else (*z, j, i)]
        return at

    return result(shape, out)


def is_packed(shape: Shape) -> bool:
    """Whether a kernel of its own turns the filters: in KCRS channels under a tap are as far apart as it has taps."""
    return bool(shape["packed"] and _apart(shape))


def _apart(shape: Shape) -> bool:
    """Whether channels under a tap do not lie side by side."""
    return bool(shape["layout"] == "NCHW" and shape["r"] * shape["s"] > 1)


def _per_group(shape: Shape) -> int:
    """Channels of the result in a group."""
    return int(shape["k"] // shape["groups"])


def _channels(shape: Shape) -> int:
    """Channels under a tap, made up to whole steps of ``bk``; one tap follows the other."""
    c, step = shape["cg"], shape["bk"]
    return int(c if c < step else -(-c // step) * step)


def product(shape: Shape) -> dict[str, Any]:
    """The product as one matmul is described."""
    kg, many, nchw = _per_group(shape), shape["n"] * shape["p"] * shape["q"], shape["layout"] == "NCHW"
    m, n = (kg, many) if nchw else (many, kg)
    return dict(m=m, n=n, k=_channels(shape) * shape["r"] * shape["s"], batch=shape["groups"], ta=is_packed(shape),
                tb=not nchw, bias=False, act=None, alpha=False, beta=False, dtype=shape["dtype"],
                precision="fp32")  # fmt: skip


def gpu_warp(s: Schedule, c: Config, shape: Shape) -> Schedule:
    """c: those of ``gemm_warp.gpu_warp``; ``packed``: filters are turned by a kernel of their own"""
    shape = {**shape, **c}
    nchw, p = shape["layout"] == "NCHW", product(shape)
    lead, taps, pixels = "z, " if shape["groups"] > 1 else "", *_neighbours(shape)
    first, second = Operand("taps", lead, taps), Operand("columns", lead, pixels)
    given = {"a": first, "b": second} if nchw else {"a": second, "b": first}
    sums = sums_of(s, c, p, c["bk"], "warp", "sums", lambda out: _as_matrix(s, out, shape))
    product_in_threads(s, c, p, sums, given)
    if is_packed(shape):
        _pack(s, shape)
    else:
        s.compute_inline("taps")
    return s.compute_inline("columns")


def _as_matrix(s: Schedule, out: str, shape: Shape) -> None:
    """The loops over a result as those over rows and columns of the product: [z,] i, j."""
    nchw, groups = shape["layout"] == "NCHW", shape["groups"]
    names = (["z"] if groups > 1 else []) + ["i" if nchw else "j"]
    channels = s.split(f"{out}.k", [groups, _per_group(shape)][-len(names) :], names=names)
    images = [f"{out}.{x}" for x in "npq"]
    s.reorder(*channels, *images) if nchw else s.reorder(*channels[:-1], *images, channels[-1])
    s.fuse(images[0], s.fuse(*images[1:]), name=f"{out}.{'j' if nchw else 'i'}")


def _neighbours(shape: Shape) -> tuple[int, int]:
    """How many taps, and pixels under them, lie side by side in a row of the product's operands."""
    plain = shape["r"] * shape["s"] == shape["stride"] == 1 and not shape["pad"]
    pixels = (shape["p"] * shape["q"] if plain else 1) if shape["layout"] == "NCHW" else shape["cg"]
    return _per_group(shape) if is_packed(shape) else 1 if _apart(shape) else shape["cg"], pixels


def _pack(s: Schedule, shape: Shape) -> None:
    """The filters by a kernel of their own, once where they are constants; a block turns those that it reads in shared
    memory.
    """
    z = ["taps.z"] if shape["groups"] > 1 else []
    taps, c = s.split("taps.k", [None, _channels(shape)])
    cb, cl = s.split(c, [None, PACKED // LANES])
    ib, il = s.split("taps.i", [None, LANES])
    s.reorder(*z, ib, cb, cl, il, taps)
    block = s.fuse(*z, ib, cb, name="filters")
    s.bind(block, "block.x").bind(cl, "thread.y").bind(il, "thread.x")
    s.stage_in("w", at=block, scope="shared", layout="k, c, r, s -> c, r, s, k", pad=1)
    if shape["prepack"]:
        s.run_once("taps")


def packed_bytes(shape: Shape) -> int:
    """Shared memory in which ``_pack`` turns filters: the channels of a step under all taps, or all channels where
    steps end at others than whole taps.
    """
    step, depth, r, s = PACKED // LANES, _channels(shape), shape["r"], shape["s"]
    last = (r * s - 1) * depth + -(-depth // step) * step - 1
    cells = step * r * s if depth % step == 0 else (last // (depth * s) + 1) * s * depth
    return int(element_bytes(shape) * (LANES + 1) * cells)


def conv_space(shape: Shape, target: Target) -> Space:
    """That of the product, where ``bk`` says what channels are made up to."""
    from tensorir.tune.space import Space

    nchw, steps = shape["layout"] == "NCHW", (8, 16, 32)
    of = {step: warp_space(product({**shape, "bk": step, "packed": 0}), target) for step in steps}
    first = of[steps[0]]

    def told(name: str) -> Predicate:
        return lambda c: of[c["bk"]].where[name](c)

    def groups(c: Config) -> bool:
        return bool(shape["groups"] == 1 or _per_group(shape) % warp_block(c)[0 if nchw else 1] == 0)

    def turned(c: Config) -> bool:
        return not c["packed"] or packed_bytes({**shape, "bk": c["bk"]}) <= target.shared_optin_bytes

    knobs: dict[str, Sequence[int]] = dict(zip(first.names, first.values, strict=True))
    knobs |= {"bk": steps, "packed": (0, 1) if _apart(shape) else (0,)}
    knobs |= {"atomic": (0,), "rest": (0,)}  # results are no rows of sums
    where: dict[str, Predicate] = {"groups": groups, **({"turned": turned} if _apart(shape) else {})}
    where |= {name: told(name) for name in first.where}

    def expected(c: Config) -> float:
        seconds = of[c["bk"]].expected_s
        return math.inf if seconds is None else seconds(c)

    # one kernel to start with: a second one, which turns filters or adds up parts, is the search's to find
    known, packed = gpu_of(target) is not None, int(_apart(shape) and shape["prepack"])
    start = {**first.default, "splits": 1, "packed": packed}
    tried = [*({**start, **dict(zip(TILE, tile, strict=True)), "raster": 1} for tile in TILES), start]
    tried += [{**c, "packed": 0} for c in tried if packed and not turned(c)]
    legal = [c for c in tried if all(test(c) for test in where.values())]
    least = min(map(expected, legal), default=0.0)
    space = Space(where=where, default=next((c for c in legal if expected(c) <= NEAR * least), None), **knobs)
    return space.since({"atomic": 0, "rest": 0, "packed": 0}).expecting(expected if known else None)
