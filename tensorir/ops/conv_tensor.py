"""conv2d on tensor cores: implicit GEMM over images (CUDA from sm_80 on).

Sixteen pixels of a row are the rows of an instruction's operand: with the channel last, each of them is a run of
channels in shared memory, wherever the filter's tap moves it. So the image is staged once with its halo and read at
every tap; nothing is gathered. Images in NCHW are turned on the way to shared memory: a thread reads the channels of
a pixel, neighbours of a row at a time, and writes them at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tensorir.intrin.cuda import MULTIPLICATIONS, Multiplication
from tensorir.ops.blocks import bind_grid
from tensorir.ops.common import Config, out_stage
from tensorir.ops.gemm_tensor import kind_of, load_rows, result_kind, swizzled, vector_of
from tensorir.ops.problems import Conv
from tensorir.ops.views import image_stage, reorder_image, sums_axes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

PIXELS = 16
"""Pixels of a row that one instruction takes."""
ROOM = 80 * 1024
"""Shared memory of a block that leaves room for a second one on the multiprocessors of sm_80."""
NEXT = 256
"""Bytes of the next copies that a thread may hold in its registers."""
LEAST = 16
"""Channels that the narrowest warp computes; those of a group must be whole tiles of warps."""


def conv_multiplication(shape: Conv) -> Multiplication | None:
    """The instructions for a convolution, None where they do not fit it: groups narrower than a fragment, say."""
    name = kind_of(shape)
    if name is None:
        return None
    m, groups = MULTIPLICATIONS[name], shape.groups
    whole = groups == 1 or (shape.cg >= m.k // 2 and shape.k // groups % LEAST == 0)
    return m if whole else None


def view(s: Schedule, shape: Conv) -> str:
    """Walk the sums "y" in the order of the instructions, whose tiles are the last dimensions of what they multiply;
    returns what holds the image.

    The image is stored as (n, [g,] [h%stride, w%stride,] h, w, c), "w_packed" as ([g,] r, s, k, c) and the sums as
    (n, [g,] p, q, k), for NCHW (n, [g,] p, k, q); k and c count channels of one group. Neighbouring outputs read every
    stride-th pixel. Sorted by what is left of their row and column, these are neighbours, and rows and columns that no
    tap reads (a 1x1 filter's) belong to parts that are not staged.
    """
    image = image_stage(s, shape) if is_rearranged(shape) else "x"
    if shape.nchw or shape.groups > 1 or shape.stride > 1:
        if not shape.pad:
            s.set_scope(image, "auto")  # it is computed where it is read, and then nowhere
        sort_pixels(s, image, shape, shape.stride)
    kg = shape.kg
    said = {"g": f"k/{kg}", "k": f"k%{kg}"} if shape.groups > 1 else {}
    sort_sums(s, "y", sums_axes(shape), said, shape)
    return image


def sort_pixels(s: Schedule, image: str, shape: Conv, stride: int, pad: Mapping[str, int] | None = None
                ) -> None:  # fmt: skip
    """Keep an image as (n, [g,] [a, b,] h, w, c), where a and b are what a stride leaves of rows and columns."""
    new = {"n": "n", **({"g": f"c/{shape.cg}"} if shape.groups > 1 else {})}
    if stride > 1:
        new |= {"a": f"h%{stride}", "b": f"w%{stride}"}
    new |= {v: f"{v}/{stride}" if stride > 1 else v for v in "hw"}
    new |= {"c": f"c%{shape.cg}" if shape.groups > 1 else "c"}
    reorder_image(s, image, shape, new, widen=False, pad=pad)


def sort_sums(s: Schedule, y: str, declared: str, said: Mapping[str, str], shape: Conv) -> None:
    """Walk sums with the axes ``declared`` as (n, [g,] [u, v,] p, q, k), for NCHW (n, [g,] [u, v,] p, k, q), and
    "w_packed" as ([g,] [a, b,] r, s, k, c).

    said: what axes are made of that are not declared by their own names
    """
    own = leading_names(shape)
    sums = ["n", *own, *("pkq" if shape.nchw else "pqk")]
    parts = ["a", "b"] if "u" in own else []
    axes = ", ".join(f"{v} = {said[v]}" if v in said else v for v in [*sums, *parts, *"rsc"])
    filters = ", ".join([*(["g"] if "g" in own else []), *parts, *"rskc"])
    s.reindex(y, f"{declared} -> {axes}", reads={"w": filters}, writes=", ".join(sums))


def leading_names(shape: Conv) -> list[str]:
    """Dimensions by which filter and sums fall into independent pieces."""
    return [*(["g"] if shape.groups > 1 else []), *(["u", "v"] if shape.parts > 1 else [])]


def is_rearranged(shape: Conv) -> bool:
    """Whether the taps read anything else than ``x`` as it is stored."""
    return bool(shape.pad or shape.stride > 1 or shape.groups > 1 or is_packed(shape))


def gpu_tensor(s: Schedule, c: Config, shape: Conv, image: str, y: str = "y") -> Schedule:
    """c: ``wp`` x ``wk`` warps of a block, each with ``rp`` rows of sixteen pixels by ``rk`` channels; ``bc`` input
    channels at a time, ``depth`` of the pipeline of copies; ``staged``: results leave by way of shared memory

    image, y: what holds it and what adds up, as a view of them has left it, such as ``view``
    The rows of an instruction's sums are what is further apart in the result: pixels, or the channels of NCHW.
    """
    m, grouped, nchw = conv_multiplication(shape), shape.groups > 1, shape.nchw
    assert m is not None
    out, own, packed = out_stage(s, y, "warp"), leading_names(shape), is_packed(shape)
    if packed:
        _pack(s, shape)
    n, *pixels = s.loops(out)
    outputs = pixels.pop(0 if nchw else -1)
    image_of, (rows, columns) = [n], pixels
    if "u" in own:
        (rows, u), (columns, v) = (s.split(axis, [None, shape.parts]) for axis in (rows, columns))
        image_of += [u, v]
    pb, wp, p = s.split(rows, [None, c["wp"], c["rp"]])
    qb, q = s.split(columns, [None, PIXELS])
    group, channel = s.split(outputs, [None, shape.kg]) if grouped else (None, outputs)
    kb, wk, k = s.split(channel, [None, c["wk"], c["rk"]])
    channels = [group, kb] if grouped else [kb]
    s.reorder(*image_of, *channels, pb, qb, wp, wk, *((p, k, q) if nchw else (p, q, k)))
    block = bind_grid(s, image_of, channels, [s.fuse(pb, qb)])
    s.bind(wp, "warp.y").bind(wk, "warp.x")
    if c["staged"]:
        stage_result(s, out, block, c, shape)
    s.compute_at(y, wk)
    co, ci, cc = s.split(f"{y}.c", [None, c["bc"] // m.k, m.k])
    k0, k1 = s.split(f"{y}.k", [None, 16 if nchw else 8])
    q0, q1 = s.split(f"{y}.q", [None, 8 if nchw else PIXELS])
    inner = (k0, q0, k1, q1) if nchw else (q0, k0, q1, k1)
    s.reorder(f"{y}.n", *(f"{y}.{v}" for v in own), co, f"{y}.r", f"{y}.s", ci, f"{y}.p", *inner, cc)
    _stage(s, image, "w", co, c, shape)
    _stage(s, "w_packed", "k", co, c, shape)
    operands = ("w_packed", image) if nchw else (image, "w_packed")
    for operand, fragment, order in zip(operands, "ab", "nt", strict=True):
        copy = s.stage_in(f"{operand}_shared", at=ci, scope="warp").name
        load_rows(s, copy, len(_leading(operand, shape).split(",")) - 1, m, fragment, order)
    s.tensorize(k1 if nchw else q1, f"mma.m16n8k{m.k}.{m.name}.nt")
    s.unroll(f"{y}.s").unroll(ci)
    if c["depth"] > 1:
        s.pipeline(co, c["depth"], async_=not nchw)
    return s


def stage_result(s: Schedule, out: str, at: Any, c: Config, shape: Conv) -> None:
    """What a block computes leaves by way of shared memory: rows of channels, in NCHW of pixels.

    Pieces of 16 bytes are permuted so that neither what the lanes of a fragment write nor the vectors that are read
    meet bank conflicts: eight of them make up rows of 128 bytes.
    """
    width, channels = result_row(shape), c["wk"] * c["rk"]
    if not shape.nchw:
        stored = swizzled(channels, MULTIPLICATIONS[result_kind(shape.dtype)], "q").replace("x", "k")
        s.stage_out(out, at=at, scope="shared", vector=width, layout=f"n, p, q, k -> n, p, q, {stored}")
        return
    rows = min(c["wp"] * c["rp"], 4)  # of two pieces each, by as many channels as fill eight
    row = {1: "p", 2: "p ^ k/4%2", 4: "p ^ k/2%4"}[rows]
    layout = f"n, k, p, q -> n, k, {row}, q/8 ^ k/{4 // rows}%2, q%8"
    s.stage_out(out, at=at, scope="shared", vector=width, layout=layout)


def result_row(shape: Conv) -> int | None:
    """Lanes with which a result that passes through shared memory is written along its rows; None where it does not.

    Those of 16 bits do, of which a fragment holds half a sector in each row; not every second pixel of a tile
    (``parts``), since what leaves shared memory is a box.
    """
    if not shape.leaves_in_halves or shape.parts > 1:
        return None
    m = MULTIPLICATIONS[result_kind(shape.dtype)]
    if not shape.nchw:
        return vector_of(LEAST, shape.k, m)
    return vector_of(PIXELS, shape.result[1] if shape.result else shape.q, m)


def is_packed(shape: Conv) -> bool:
    """Whether the filter is turned by a kernel of its own."""
    return bool(shape.nchw or shape.parts)


def _pack(s: Schedule, shape: Conv) -> None:
    """The turned filter by a kernel of its own, once where weights are prepacked: in KCRS a row of channels is in as
    many pieces as there are taps, which every block would gather again.
    """
    *taps, k, c = s.loops("w_packed")
    rows, lane = s.split(s.fuse(k, c), [None, 128])
    s.reorder(rows, lane, *taps)
    s.bind(rows, "block.x").bind(lane, "thread.x")
    if shape.prepack:
        s.run_once("w_packed")


def _stage(s: Schedule, operand: str, row: str, at: Any, c: Config, shape: Conv) -> None:
    """What a block reads of an operand for ``bc`` channels, in shared memory: rows of channels."""
    m, packed = conv_multiplication(shape), operand == "w_packed" and is_packed(shape)
    assert m is not None
    lanes, lead = vector_of(c["bc"], shape.cg, m), _leading(operand, shape)
    stored = swizzled(c["bc"], m, row).replace("x", "c")
    copy = s.stage_in(operand, at=at, scope="shared", vector=lanes, layout=f"{lead}{row}, c -> {lead}{row}, {stored}")
    if shape.nchw and not packed:  # neighbouring threads read neighbours of a row, several channels each
        last = len(lead.split(","))
        s.reorder(
            f"{copy.name}.ax{last}" + (".0" if lanes else ""), f"{copy.name}.ax{last - 2}", f"{copy.name}.ax{last - 1}"
        )
    if operand != "x" and not packed:
        s.compute_inline(operand)


def _leading(operand: str, shape: Conv) -> str:
    """The dimensions of a copy before its rows, as a layout names them."""
    if operand == "w_packed":
        return ", ".join([*leading_names(shape), "r, s, "])
    group = "g, " if shape.groups > 1 else ""
    return f"n, {group}{'a, b, ' if max(shape.stride, shape.parts) > 1 else ''}h, "


def staged_pixels(shape: Conv, taps: int, outputs: int) -> int:
    """Rows or columns of the image that so many outputs of so many taps need: those of each part."""
    stride, last = shape.stride, (taps - 1) * shape.dilation
    parts = min(stride, last + 1)
    return int(parts * (outputs + last // stride))


def conv_space(shape: Conv, target: Target) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block, whole warps."""
    from tensorir.tune.space import Space

    m = conv_multiplication(shape)
    assert m is not None
    size, per_group = 4 // m.word, shape.kg

    def warps(c: Mapping[str, Any]) -> bool:
        return bool(2 <= c["wp"] * c["wk"] <= 8)

    def groups(c: Mapping[str, Any]) -> bool:
        return bool(shape.groups == 1 or per_group % (c["wk"] * c["rk"]) == 0)

    def tiles_bytes(c: Config) -> int:
        image = staged_pixels(shape, shape.r, c["wp"] * c["rp"]) * staged_pixels(shape, shape.s, PIXELS)
        weights = shape.taps * c["wk"] * c["rk"]
        return int(size * c["depth"] * c["bc"] * (image + weights))

    def shared_bytes(c: Config) -> int:
        results = 2 * c["wp"] * c["rp"] * PIXELS * c["wk"] * c["rk"] if c["staged"] else 0
        return tiles_bytes(c) + results

    def shared(c: Config) -> bool:
        return bool(shared_bytes(c) <= target.shared_optin_bytes)

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["rp"] * PIXELS * c["rk"] <= 64 * 64)

    def ahead(c: Mapping[str, Any]) -> bool:
        if not shape.nchw or c["depth"] == 1:
            return True
        return bool(c["depth"] == 2 and tiles_bytes(c) // 2 <= NEXT * 32 * c["wp"] * c["wk"])

    def sensible(c: Mapping[str, Any]) -> bool:
        rows, channels = c["wp"] * c["rp"], c["wk"] * c["rk"]
        return bool((rows <= 4 or rows // 2 < shape.p) and (channels <= 32 or channels // 2 < per_group))

    knobs = dict(
        wp=[2, 4, 1], wk=[2, 4, 1], rp=[4, 2, 1], rk=[32, 64, 16],
        bc=[n // size for n in (32, 64, 128)], depth=[3, 2, 4, 1], staged=[1, 0] if result_row(shape) else [0],
    )  # fmt: skip
    where = {"warps": warps, "groups": groups, "shared": shared, "registers": registers, "ahead": ahead,
             "sensible": sensible}  # fmt: skip
    space = Space(where=where, default=_default(shape, knobs, where, shared_bytes), **knobs)
    return space.since({"staged": 0})


def _default(shape: Conv, knobs: Mapping[str, list[int]], where: Mapping[str, Any],
             shared_bytes: Callable[[Config], int]) -> dict[str, int] | None:  # fmt: skip
    """The first legal configuration, by what a block should be: four warps, 64 channels where there are as many, and a
    pipeline of copies that leaves room for a second block.
    """
    rows = 8 if shape.p > 8 else 4

    def rank(c: Config) -> tuple[float, ...]:
        channels, tall = c["wk"] * c["rk"], c["wp"] * c["rp"]
        deep = -c["depth"] if c["depth"] <= 3 else 0
        return (abs(math.log2(channels / 64)), c["wp"] * c["wk"] != 4, abs(math.log2(tall / rows)),
                shared_bytes(c) > ROOM, -c["staged"], c["bc"] != min(knobs["bc"]), deep, c["rk"] != 32)  # fmt: skip

    every = [dict(zip(knobs, v, strict=True)) for v in itertools.product(*knobs.values())]
    legal = [c for c in every if all(test(c) for test in where.values())]
    return min(legal, key=rank, default=None)
