"""Convolutions, and gradients of their images, on tensor cores: implicit GEMM over images (CUDA from sm_80 on).

Sixteen pixels of a row are the rows of an instruction's operand: with the channel last, each of them is a run of
channels in shared memory, wherever the filter's tap moves it. So the image is staged once with its halo and read at
every tap; nothing is gathered. Images in NCHW are turned on the way to shared memory: a thread reads the channels of
a pixel, neighbours of a row at a time, and writes them at once.

The gradient with stride 1 is a convolution of dy with the filter turned by half a turn. With a stride, every stride-th
pixel of the result meets the same taps, so that it falls into stride * stride convolutions, each with its part of the
filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from tensorir.automatic.part import Config
from tensorir.automatic.rules.conv_part import ConvStages, ConvTile
from tensorir.engines.blocks import bind_grid, joint
from tensorir.engines.gemm_tensor import (
    instructions,
    kind_of,
    load_rows,
    modelled_kind,
    result_kind,
    swizzled,
    vector_of,
)
from tensorir.engines.problems import Conv
from tensorir.engines.steps import out_stage
from tensorir.engines.tiles import Knob, Knobs, Rule, Tile, cheapest
from tensorir.intrin.cuda import MULTIPLICATIONS, Multiplication
from tensorir.schedule.analysis import packed_names
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.gpu_model import MatrixProduct, Tiles, seconds

PIXELS = 16
"""Pixels of a row that one instruction takes."""
SHARED_BYTES = 80 * 1024
"""Shared memory of a block that leaves room for a second one on the multiprocessors of sm_80."""
NEXT_COPY_BYTES = 256
"""Bytes of the next copies that a thread may hold in its registers."""
LEAST_CHANNELS = 16
"""Channels that the narrowest warp computes; those of a group must be whole tiles of warps."""


def conv_multiplication(shape: Conv) -> Multiplication | None:
    """The instructions for a convolution, None where they do not fit it: groups narrower than a fragment, say."""
    name = kind_of(shape)
    if name is None:
        return None
    m = MULTIPLICATIONS[name]
    return m if shape.groups == 1 or (shape.cg >= m.k // 2 and shape.kg % LEAST_CHANNELS == 0) else None


# --- views


def view(s: BaseSchedule, shape: Conv, of: ConvStages) -> str:
    """Walk the sums in the order of the instructions, whose tiles are the last dimensions of what they multiply;
    returns what holds the image.

    The image is stored as (n, [g,] [h%stride, w%stride,] h, w, c), filters as ([g,] r, s, k, c) and the sums as
    (n, [g,] p, q, k), for NCHW (n, [g,] p, k, q); k and c count channels of one group. Neighbouring outputs read every
    stride-th pixel. Sorted by what is left of their row and column, these are neighbours, and rows and columns that no
    tap reads (a 1x1 filter's) belong to parts that are not staged.
    """
    image = image_stage(s, of) if of.moved or is_rearranged(shape) else of.image
    if shape.nchw or shape.groups > 1 or shape.stride > 1:
        if not of.moved:
            s.set_scope(image, "auto")  # it is computed where it is read, and then nowhere
        sort_pixels(s, image, shape, shape.stride)
    kg = shape.kg
    sort_sums(s, of, {"g": f"{{k}}/{kg}", "k": f"{{k}}%{kg}"} if shape.groups > 1 else {}, shape)
    return image


def image_stage(s: BaseSchedule, of: ConvStages) -> str:
    """The stage that holds what the taps read: the one that moves it there, or a copy."""
    return of.image if of.moved else s.stage_in(of.image, at="root", scope="global").name


def sort_pixels(s: BaseSchedule, image: str, shape: Conv, stride: int, pad: Mapping[str, int] | None = None
                ) -> None:  # fmt: skip
    """Keep an image as (n, [g,] [a, b,] h, w, c), where a and b are what a stride leaves of rows and columns."""
    new = {"n": "n", **({"g": f"c/{shape.cg}"} if shape.groups > 1 else {})}
    if stride > 1:
        new |= {"a": f"h%{stride}", "b": f"w%{stride}"}
    new |= {v: f"{v}/{stride}" if stride > 1 else v for v in "hw"}
    new |= {"c": f"c%{shape.cg}" if shape.groups > 1 else "c"}
    own = [str(loop).removeprefix(f"{image}.") for loop in s.loops(image)]  # a copy's axes are numbered
    called = dict(zip("nchw" if shape.nchw else "nhwc", own, strict=True))
    said = [f"{axis} = {called[of[0]]}{of[1:]}" for axis, of in new.items()]
    s.reindex(image, f"{', '.join(own)} -> {', '.join(said)}", pad, writes=", ".join(new))


def sort_sums(s: BaseSchedule, of: ConvStages, more: Mapping[str, str], shape: Conv) -> None:
    """Walk sums as (n, [g,] [u, v,] p, q, k), for NCHW (n, [g,] [u, v,] p, k, q), and filters as
    ([g,] [a, b,] r, s, k, c).

    more: what axes are made of that are not those of the sums
    """
    own, said = leading_names(shape), of.said(more)
    sums = ["n", *own, *("pkq" if shape.nchw else "pqk")]
    parts = ["a", "b"] if "u" in own else []
    axes = ", ".join(f"{v} = {said[v]}" if v in said else v for v in [*sums, *parts, *"rsc"])
    filters = ", ".join([*(["g"] if "g" in own else []), *parts, *"rskc"])
    s.reindex(of.sums, f"{of.walk} -> {axes}", reads={of.other: filters}, writes=", ".join(sums))


def forward_shape(shape: Conv) -> Conv | None:
    """The gradient as convolutions of stride 1: their parameters. None for a stride with dilated taps, which meet
    pixels in another order.
    """
    stride = shape.stride
    if stride > 1 and shape.dilation > 1:
        return None
    r, s, p, q = (-(-v // stride) for v in (shape.r, shape.s, shape.h, shape.w))
    return replace(shape, c=shape.k, k=shape.c, h=shape.p, w=shape.q, r=r, s=s, p=p, q=q, stride=1, back=shape)


def gradient_view(s: BaseSchedule, f: Conv, shape: Conv, of: ConvStages) -> str:
    """Walk the gradient of ``shape`` as ``f``, convolutions of the spread gradient of results with taps that are
    counted backwards.

    Pixel h = stride * p + u of the image meets those taps alone that read an element of dy, no zero between two. They
    are every stride-th one, from a on, and rows of dy are those of what is spread with one remainder.
    """
    stride, pad, cg, image, dx = shape.stride, shape.pad, shape.cg, image_stage(s, of), of.sums
    rest = {"c": "{k}", **({"g": f"{{c}}/{cg}", "k": f"{{c}}%{cg}"} if shape.groups > 1 else {"k": "{c}"})}
    if not of.moved:
        s.set_scope(image, "auto")
    if stride == 1:
        sort_pixels(s, image, f, stride)
        sort_sums(s, of, {"p": "{h}", "q": "{w}", **rest}, f)
        return image
    sort_pixels(s, image, f, stride, {"h": f.p + f.r, "w": f.q + f.s})
    said = {v: f"{{{x}}}%{stride}" for v, x in zip("uvab", "hwrs", strict=True)}
    said |= {v: f"{{{x}}}/{stride}" for v, x in zip("pqrs", "hwrs", strict=True)}
    sort_sums(s, of, {**said, **rest}, f)
    for part, pixel, taps in (("a", "u", shape.r), ("b", "v", shape.s)):
        nearest = (taps - 1 - pad) % stride  # what is left of rows, or columns, that hold dy
        s.keep_term(f"{dx}.{part}", f"{stride - 1} - ({dx}.{pixel} + {stride - 1 - nearest}) % {stride}")
    return image


def leading_names(shape: Conv) -> list[str]:
    """Dimensions by which filter and sums fall into independent pieces."""
    return [*(["g"] if shape.groups > 1 else []), *(["u", "v"] if shape.parts > 1 else [])]


def is_rearranged(shape: Conv) -> bool:
    """True when the taps read anything else than an image as it is stored."""
    return bool(shape.stride > 1 or shape.groups > 1 or is_packed(shape))


# --- the engine


class ImageTile(ConvTile):
    """``wp`` x ``wk`` warps of a block, each with ``rp`` rows of sixteen pixels by ``rk`` channels; ``bc`` input
    channels at a time, ``depth`` of the pipeline of copies; ``staged``: results leave by way of shared memory

    The rows of an instruction's sums are what is further apart in the result: pixels, or the channels of NCHW.
    """

    way = "tensor"
    wp, wk, rp, rk = Knob(2, 4, 1), Knob(2, 4, 1), Knob(4, 2, 1), Knob(32, 64, 16)
    bc, depth, staged = Knob(16, 32, 64), Knob(3, 2, 4, 1), Knob(1, 0)

    @classmethod
    def needs(cls, p: Conv) -> str | None:
        m = conv_multiplication(p)
        return None if m is None else m.needs

    @classmethod
    def knobs(cls, p: Conv, target: Target) -> Knobs:
        steps = [n // p.element_bytes for n in (32, 64, 128)]
        return {**super().knobs(p, target), "bc": steps, "staged": [1, 0] if result_row(p) else [0]}

    @property
    def tall(self) -> int:
        """Rows of a block's pixels."""
        return self.wp * self.rp

    @property
    def channels(self) -> int:
        """Channels of a block."""
        return self.wk * self.rk

    def schedule(self, s: BaseSchedule, of: ConvStages) -> BaseSchedule:
        shape, m, grouped, nchw = self.p, instructions(self.p), self.p.groups > 1, self.p.nchw
        of = of.leaving(s, "warp")
        (filters,), y = packed_names([of.other], s.index.names()), of.sums
        image = view(s, shape, of) if shape.back is None else gradient_view(s, shape, shape.back, of)
        out, own = out_stage(s, y, "warp", of.out), leading_names(shape)
        if is_packed(shape):
            turn_filters(s, filters)
        n, *pixels = s.loops(out)
        outputs = pixels.pop(0 if nchw else -1)
        image_of, (rows, columns) = [n], pixels
        if "u" in own:
            (rows, u), (columns, v) = (s.split(axis, [None, shape.parts]) for axis in (rows, columns))
            image_of += [u, v]
        pb, wp, p = s.split(rows, [None, self.wp, self.rp])
        qb, q = s.split(columns, [None, PIXELS])
        group, channel = s.split(outputs, [None, shape.kg]) if grouped else (None, outputs)
        kb, wk, k = s.split(channel, [None, self.wk, self.rk])
        channels = [group, kb] if group is not None else [kb]
        s.reorder(*image_of, *channels, pb, qb, wp, wk, *((p, k, q) if nchw else (p, q, k)))
        block = bind_grid(s, image_of, channels, [s.fuse(pb, qb)])
        s.bind(wp, "warp.y").bind(wk, "warp.x")
        if self.staged:
            self._stage_result(s, out, block)
        s.compute_at(y, wk)
        co, ci, cc = s.split(f"{y}.c", [None, self.bc // m.k, m.k])
        k0, k1 = s.split(f"{y}.k", [None, 16 if nchw else 8])
        q0, q1 = s.split(f"{y}.q", [None, 8 if nchw else PIXELS])
        inner = (k0, q0, k1, q1) if nchw else (q0, k0, q1, k1)
        s.reorder(f"{y}.n", *(f"{y}.{v}" for v in own), co, f"{y}.r", f"{y}.s", ci, f"{y}.p", *inner, cc)
        copies = [(_stage(s, image, "w", co, self.bc, shape, computed=image != of.image or of.moved), "w"),
                  (_stage(s, filters, "k", co, self.bc, shape, computed=not is_packed(shape)), "k")]  # fmt: skip
        for (shared, row), fragment, order in zip(copies[::-1] if nchw else copies, "ab", "nt", strict=True):
            copy = s.stage_in(shared, at=ci, scope="warp").name
            load_rows(s, copy, len(_leading(row, shape).split(",")) - 1, m, fragment, order)
        s.tensorize(k1 if nchw else q1, f"mma.m16n8k{m.k}.{m.name}.nt")
        s.unroll(f"{y}.s").unroll(ci)
        if self.depth > 1:
            s.pipeline(co, self.depth, async_=not nchw)
        return s

    def _stage_result(self, s: BaseSchedule, out: str, at: Any) -> None:
        """Store the results of a block by way of shared memory: rows of channels, in NCHW of pixels.

        Pieces of 16 bytes are permuted so that neither what the lanes of a fragment write nor the vectors that are read
        meet bank conflicts: eight of them make up rows of 128 bytes.
        """
        rows = min(self.tall, 4)  # of two pieces each, by as many channels as fill eight
        row = {1: "p", 2: "p ^ k/4%2", 4: "p ^ k/2%4"}[rows]
        layout = f"n, k, p, q -> n, k, {row}, q/8 ^ k/{4 // rows}%2, q%8"
        if not self.p.nchw:
            stored = swizzled(self.channels, MULTIPLICATIONS[result_kind(self.p.dtype)], "q").replace("x", "k")
            layout = f"n, p, q, k -> n, p, q, {stored}"
        s.stage_out(out, at=at, scope="shared", vector=result_row(self.p), layout=layout)

    @property
    def operand_bytes(self) -> int:
        image = staged_pixels(self.p, self.p.r, self.tall) * staged_pixels(self.p, self.p.s, PIXELS)
        return self.p.element_bytes * self.depth * self.bc * (image + self.p.taps * self.channels)

    @property
    def result_bytes(self) -> int:
        return 2 * self.tall * PIXELS * self.channels if self.staged else 0

    @property
    def sides(self) -> tuple[tuple[int, int, int], ...]:
        return (self.tall, 4, self.p.p), (self.channels, 32, self.p.kg)

    def ahead(self) -> bool:
        """True when the next copies have room in registers, where they are turned there."""
        if not self.p.nchw or self.depth == 1:
            return True
        return self.depth == 2 and self.operand_bytes // 2 <= NEXT_COPY_BYTES * 32 * self.wp * self.wk

    rules: ClassVar[Mapping[str, Rule]] = {
        "warps": lambda t: 2 <= t.wp * t.wk <= 8,
        "groups": lambda t: t.p.groups == 1 or t.p.kg % t.channels == 0,
        "shared": Tile.shared,
        "registers": lambda t: t.rp * PIXELS * t.rk <= 64 * 64,
        "ahead": ahead,
        "sensible": Tile.sensible,
    }

    @classmethod
    def expected(cls, p: Conv, target: Target) -> Callable[[Config], float] | None:
        """Expected seconds by the model of products, of one whose rows are the pixels of whole boxes."""
        gpu = gpu_of(target)
        return (lambda c: seconds(*cls(c, p, target).model, gpu)) if gpu else None

    @property
    def model(self) -> tuple[MatrixProduct, Tiles]:
        """This configuration as the model of kernels knows it: a step is all taps of ``bc`` channels."""
        p = self.p
        pixels = p.n * max(1, p.parts) ** 2 * -(-p.p // self.tall) * self.tall * -(-p.q // PIXELS) * PIXELS
        staged = staged_pixels(p, p.r, self.tall) * staged_pixels(p, p.s, PIXELS)
        product = MatrixProduct(
            pixels, p.kg, p.taps * p.cg, p.groups, modelled_kind(p), p.element_bytes, 2 if p.leaves_in_halves else 4,
            apart=(min(1.0, p.n * p.c * p.h * p.w / (pixels * p.groups * p.taps * p.cg)), 1.0),
            taps=max(1.0, p.taps * self.tall * PIXELS / staged),
        )  # fmt: skip
        tiles = Tiles("mma", self.tall * PIXELS, self.channels, self.bc * p.taps, self.rp * PIXELS, self.rk,
                      self.depth, not p.nchw)  # fmt: skip
        return product, tiles

    @classmethod
    def start(cls, p: Conv, target: Target) -> Config | None:
        """A block to start from: four warps, 64 channels where there are as many, and a pipeline of copies that leaves
        room for a second block.
        """
        rows, knobs = 8 if p.p > 8 else 4, cls.knobs(p, target)

        def rank(c: Config) -> tuple[float, ...]:
            t = cls(c, p, target)
            return (
                abs(math.log2(t.channels / 64)), t.wp * t.wk != 4, abs(math.log2(t.tall / rows)),
                t.operand_bytes + t.result_bytes > SHARED_BYTES, -t.staged, t.bc != 32 // p.element_bytes,
                -t.depth if t.depth <= 3 else 0, t.rk != 32,
            )  # fmt: skip

        return cheapest(knobs, cls.where(p, target), rank)


def result_row(shape: Conv) -> int | None:
    """Lanes with which a result that passes through shared memory is written along its rows; None where it does not.

    Those of 16 bits do, of which a fragment holds half a sector in each row; not every second pixel of a tile
    (``parts``), since what leaves shared memory is a box.
    """
    if not shape.leaves_in_halves or shape.parts > 1:
        return None
    m = MULTIPLICATIONS[result_kind(shape.dtype)]
    if not shape.nchw:
        return vector_of(LEAST_CHANNELS, shape.k, m)
    return vector_of(PIXELS, shape.back.w if shape.back else shape.q, m)


def is_packed(shape: Conv) -> bool:
    """True when the filter is turned by a kernel of its own."""
    return bool(shape.nchw or shape.parts)


def _stage(s: BaseSchedule, operand: str, row: str, at: Any, channels: int, shape: Conv, computed: bool) -> str:
    """Stage a block's reads of an operand for so many channels in shared memory: rows of channels; returns the copy.

    row: "w" of the image, "k" of filters;  computed: what is copied is computed where that happens
    """
    m, packed = instructions(shape), row == "k" and is_packed(shape)
    lanes, lead = vector_of(channels, shape.cg, m), _leading(row, shape)
    stored = swizzled(channels, m, row).replace("x", "c")
    copy = s.stage_in(operand, at=at, scope="shared", vector=lanes, layout=f"{lead}{row}, c -> {lead}{row}, {stored}")
    if shape.nchw and not packed:  # neighbouring threads read neighbours of a row, several channels each
        last = len(lead.split(","))
        s.reorder(
            f"{copy.name}.ax{last}" + (".0" if lanes else ""), f"{copy.name}.ax{last - 2}", f"{copy.name}.ax{last - 1}"
        )
    if computed:
        s.compute_inline(operand)
    return copy.name


def turn_filters(s: BaseSchedule, filters: str) -> None:
    """The turned filters by a kernel of their own: as they are stored, a row of channels may be in as many pieces as
    there are taps, which every block would gather again.
    """
    loops = list(s.loops(filters))
    rows, lane = s.split(joint(s, loops[-2:]), [None, 128])
    s.reorder(rows, lane, *loops[:-2])
    s.bind(rows, "block.x").bind(lane, "thread.x")


def _leading(row: str, shape: Conv) -> str:
    """The dimensions of a copy before its rows, as a layout names them."""
    if row == "k":
        return ", ".join([*leading_names(shape), "r, s, "])
    group = "g, " if shape.groups > 1 else ""
    return f"n, {group}{'a, b, ' if max(shape.stride, shape.parts) > 1 else ''}h, "


def staged_pixels(shape: Conv, taps: int, outputs: int) -> int:
    """Rows or columns of the image that so many outputs of so many taps need: those of each part."""
    stride, last = shape.stride, (taps - 1) * shape.dilation
    parts = min(stride, last + 1)
    return int(parts * (outputs + last // stride))
