"""``ImageTile``, an engine of ``tile_gpu``: convolutions and their image gradients on tensor cores (CUDA, sm_80 on).

Sixteen adjacent pixels of a row are the rows of an instruction's operand: with channels last, each is a run of channels
in shared memory, at an offset given by the tap. The image is staged once with its halo and read for every tap, without
im2col. NCHW images are transposed on the way to shared memory: a thread loads the channels of one pixel, adjacent
threads adjacent pixels, and stores them as vectors.

The image gradient with stride 1 is a convolution of dy with the filter rotated by 180 degrees. With stride s, pixels
that are equal modulo s use the same taps, so that it splits into s * s convolutions, each with a part of the filter.
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
from tensorir.gpu_devices import gpu_of
from tensorir.intrin.cuda import MULTIPLICATIONS, Multiplication
from tensorir.schedule.analysis import packed_names
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_model import MatrixProduct, Tiles, seconds

PIXELS = 16
"""Pixels of a row in one instruction."""
SHARED_BYTES = 80 * 1024
"""Bytes of shared memory per block that leave room for a second block on a multiprocessor of sm_80."""
NEXT_COPY_BYTES = 256
"""Bytes per thread of the next tile that may be held in registers."""
LEAST_CHANNELS = 16
"""Output channels of the narrowest warp tile; a group's channels must be a multiple."""


def conv_multiplication(shape: Conv) -> Multiplication | None:
    """Tensor-core instruction for a convolution; None if there is none for its type, or a group is narrower than a
    fragment.
    """
    name = kind_of(shape)
    if name is None:
        return None
    m = MULTIPLICATIONS[name]
    return m if shape.groups == 1 or (shape.cg >= m.k // 2 and shape.kg % LEAST_CHANNELS == 0) else None


# --- views


def view(s: BaseSchedule, shape: Conv, of: ConvStages) -> str:
    """Reindex the sums in the order of the tensor-core instructions; return the name of the stage that holds the image.

    Image (n, [g,] [h%stride, w%stride,] h, w, c), filters ([g,] r, s, k, c), sums (n, [g,] p, q, k), for NCHW (n, [g,]
    p, k, q); k and c count channels of one group. Adjacent outputs read every stride-th pixel; sorted by remainder
    these are adjacent in memory, and remainders that no tap reads (of a 1x1 filter) are not staged.
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
    """Name of the stage that holds the image under the taps: the one that pads it, or a new copy."""
    return of.image if of.moved else s.stage_in(of.image, at="root", scope="global").name


def sort_pixels(s: BaseSchedule, image: str, shape: Conv, stride: int, pad: Mapping[str, int] | None = None
                ) -> None:  # fmt: skip
    """Reindex the stored image as (n, [g,] [a, b,] h, w, c); a and b are remainders of row and column modulo the
    stride.

    pad: new axis -> multiple that its extent is rounded up to
    """
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
    """Reindex sums as (n, [g,] [u, v,] p, q, k), for NCHW (n, [g,] [u, v,] p, k, q), and filters as ([g,] [a, b,] r, s,
    k, c).

    more: new axis -> its definition, for axes that are not axes of the sums
    """
    own, said = leading_names(shape), of.said(more)
    sums = ["n", *own, *("pkq" if shape.nchw else "pqk")]
    parts = ["a", "b"] if "u" in own else []
    axes = ", ".join(f"{v} = {said[v]}" if v in said else v for v in [*sums, *parts, *"rsc"])
    filters = ", ".join([*(["g"] if "g" in own else []), *parts, *"rskc"])
    s.reindex(of.sums, f"{of.walk} -> {axes}", reads={of.other: filters}, writes=", ".join(sums))


def forward_shape(shape: Conv) -> Conv | None:
    """Parameters of the stride-1 convolutions that compute the image gradient of ``shape``; None for a stride combined
    with dilated taps.
    """
    stride = shape.stride
    if stride > 1 and shape.dilation > 1:
        return None
    r, s, p, q = (-(-v // stride) for v in (shape.r, shape.s, shape.h, shape.w))
    return replace(shape, c=shape.k, k=shape.c, h=shape.p, w=shape.q, r=r, s=s, p=p, q=q, stride=1, back=shape)


def gradient_view(s: BaseSchedule, f: Conv, shape: Conv, of: ConvStages) -> str:
    """Reindex the image gradient of ``shape`` as the convolutions ``f`` of dy with rotated taps; return the name of the
    stage that holds dy.

    Pixel h = stride * p + u of the image uses only taps r = a + stride * i, those for which the spread dy holds an
    element and no inserted zero; ``keep_term`` selects a for each u.
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
    """Axes that split filter and sums into independent convolutions: "g" for groups, "u" and "v" for remainders of
    pixels.
    """
    return [*(["g"] if shape.groups > 1 else []), *(["u", "v"] if shape.parts > 1 else [])]


def is_rearranged(shape: Conv) -> bool:
    """True if the taps do not read the image as stored: with a stride, groups, NCHW, or interleaved results
    (``parts``).
    """
    return bool(shape.stride > 1 or shape.groups > 1 or is_packed(shape))


# --- the engine


class ImageTile(ConvTile):
    """Tile of a convolution: ``wp`` x ``wk`` warps per block, each with ``rp`` rows of sixteen pixels by ``rk``
    channels; ``bc`` input channels per step, ``depth`` pipeline stages; ``staged``: results are stored through shared
    memory.

    Rows of the accumulator fragment are the axis with the larger stride in the result: pixels, for NCHW channels.
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
        """Rows of pixels per block."""
        return self.wp * self.rp

    @property
    def channels(self) -> int:
        """Output channels per block."""
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
        """Store the block's results through shared memory, in rows of channels, for NCHW in rows of pixels.

        Pieces of 16 bytes are swizzled so that neither the fragments' stores nor the vector loads have bank conflicts:
        eight pieces form a row of 128 bytes.
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
        """True if the next tile fits in registers; needed for NCHW only, whose copies are transposed there."""
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
        """Cost model of matrix products, configuration -> seconds, with pixels rounded up to whole boxes as rows; None
        for other targets.
        """
        gpu = gpu_of(target)
        return (lambda c: seconds(*cls(c, p, target).model, gpu)) if gpu else None

    @property
    def model(self) -> tuple[MatrixProduct, Tiles]:
        """Inputs of the cost model of matrix products; one step is all taps of ``bc`` channels."""
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
        """Default configuration: four warps, 64 channels if there are as many, and pipeline stages that leave room for
        a second block; None if none is legal.
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
    """Vector lanes of the stores of results staged in shared memory; None if results are stored directly.

    Staged are 16-bit results, since a row of a fragment covers only half a sector; not with interleaved pixels
    (``parts``), since only a contiguous box can leave shared memory.
    """
    if not shape.leaves_in_halves or shape.parts > 1:
        return None
    m = MULTIPLICATIONS[result_kind(shape.dtype)]
    if not shape.nchw:
        return vector_of(LEAST_CHANNELS, shape.k, m)
    return vector_of(PIXELS, shape.back.w if shape.back else shape.q, m)


def is_packed(shape: Conv) -> bool:
    """True if a separate kernel transposes the filter."""
    return bool(shape.nchw or shape.parts)


def _stage(s: BaseSchedule, operand: str, row: str, at: Any, channels: int, shape: Conv, computed: bool) -> str:
    """Stage ``channels`` channels of an operand's tile in shared memory, in rows of channels; return the copy's name.

    row: "w" for the image, "k" for filters;  computed: True to inline the operand's expression in the copy
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
    """Schedule the separate kernel that transposes the filters; otherwise every block would gather a row of channels
    from as many places as there are taps.
    """
    loops = list(s.loops(filters))
    rows, lane = s.split(joint(s, loops[-2:]), [None, 128])
    s.reorder(rows, lane, *loops[:-2])
    s.bind(rows, "block.x").bind(lane, "thread.x")


def _leading(row: str, shape: Conv) -> str:
    """Dimensions of a copy before its rows, as text of a layout: "n, h, " and the like."""
    if row == "k":
        return ", ".join([*leading_names(shape), "r, s, "])
    group = "g, " if shape.groups > 1 else ""
    return f"n, {group}{'a, b, ' if max(shape.stride, shape.parts) > 1 else ''}h, "


def staged_pixels(shape: Conv, taps: int, outputs: int) -> int:
    """Rows (or columns) of the image staged for ``outputs`` outputs of ``taps`` taps: the sum over the remainders
    modulo the stride that taps read, each staged apart with the same length.
    """
    stride, last = shape.stride, (taps - 1) * shape.dilation
    parts = min(stride, last + 1)
    return int(parts * (outputs + last // stride))
