"""The gradient of conv2d's filter on tensor cores: one product for each tap, summed over the pixels of all results.

A block multiplies what one tap meets. The pixels of an image under a tap are never stored as a matrix: a block copies
those of its tile to shared memory from the image. Few filters keep few blocks busy, so the pixels are cut into
parts, which a second kernel adds up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorir.api.workload import Template
from tensorir.intrin.cuda import MULTIPLICATIONS, Multiplication, loads_rows
from tensorir.ops.blocks import bind_grid, joint
from tensorir.ops.common import Config, out_stage
from tensorir.ops.conv_tensor import LEAST
from tensorir.ops.gemm_tensor import KINDS, load_rows, swizzled, vector_of
from tensorir.ops.problems import Conv
from tensorir.ops.views import image_of, weight_axes

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

PARTS = (1, 2, 4, 8, 16, 32, 64)
"""That the pixels may be cut into."""
MANY = 512
"""Blocks that keep the largest devices busy."""


def weight_templates(shape: Conv) -> dict[str, Template]:
    """The template for tensor cores, where these fit the gradient."""
    if _multiplication(shape) is None:
        return {}
    return {
        "gpu_tensor": Template(
            lambda s, c: gpu_tensor(s, c, shape), lambda t: _space(shape, t), ("gpu",), needs="sm_80"
        )
    }


def _orders(shape: Conv) -> tuple[str, str]:
    """How the operands are stored: NCHW has neighbouring pixels, along which is summed, side by side."""
    return ("n", "t") if shape.nchw else ("t", "n")


def _multiplication(shape: Conv) -> Multiplication | None:
    """The instructions, None where they do not fit: groups narrower than a fragment, types that cannot be turned."""
    name = KINDS.get((shape.dtype, shape.precision if shape.dtype == "float32" else ""))
    if name is None:
        return None
    m, groups = MULTIPLICATIONS[name], shape.groups
    turned = all(loads_rows(m, operand, order) for operand, order in zip("ab", _orders(shape), strict=True))
    whole = groups == 1 or (shape.k // groups % LEAST == 0 and shape.cg >= 8)
    return m if turned and whole else None


def as_products(s: Schedule, shape: Conv, parts: int) -> str:
    """Walk the sums as products over the pixels t of ``parts`` parts; returns the stage that adds up the products.

    Operands: dy_packed ([z,] [g,] t, k), what is under each tap ([z,] [g,] r, s, t, c), for NCHW with t last; sums of
    ([z,] [g,] r, s, k, c), where k and c count channels of one group.
    """
    old, terms, kg = weight_axes(shape), "t = (n, p, q)", shape.kg
    if parts > 1:
        s.reindex("dw", f"{old} -> k, r, s, c, {terms}", writes="k, r, s, c")
        length = part_length(shape, parts)
        old, terms = "k, r, s, c | t", f"z = t/{length}, t = t%{length}"
    z, g = "z, " if parts > 1 else "", "g, " if shape.groups > 1 else ""
    new = f"g = k/{kg}, r, s, k = k%{kg}, c" if g else "r, s, k, c"
    k, c = ("k, t", "c, t") if shape.nchw else ("t, k", "t, c")
    reads = {"dy": f"{z}{g}{k}", image_of(shape): f"{z}{g}r, s, {c}"}
    s.reindex("dw", f"{old} -> {new}, {terms}", reads=reads, writes=f"{g}r, s, k, c")
    return s.rfactor("dw", "dw.z").name if parts > 1 else "dw"


def _channels(shape: Conv) -> tuple[int, int, int]:
    """Groups, and the channels of one: of the result and of the image."""
    return shape.groups, shape.kg, shape.cg


def part_length(shape: Conv, parts: int) -> int:
    """Pixels of each part."""
    return int(-(-shape.n * shape.p * shape.q // parts))


def gpu_tensor(s: Schedule, c: Config, shape: Conv) -> Schedule:
    """c: ``bk`` x ``bc`` channels of a block and ``wk`` x ``wc`` of a warp, ``bt`` pixels at a time, ``depth`` of the
    pipeline of copies, ``parts`` that the pixels are cut into; ``staged``: results leave by way of shared memory
    """
    m, nchw, grouped = _multiplication(shape), shape.nchw, shape.groups > 1
    assert m is not None
    dw, image = as_products(s, shape, c["parts"]), image_of(shape)
    pixels = f"{image}_packed"
    if c["parts"] > 1:
        out = s.stage_out(dw, at="root", scope="warp").name
        _add_up(s)
        lead, channel = [f"{out}.rf", *([f"{out}.g"] if grouped else [])], f"{out}.k"
    else:
        out = out_stage(s, dw, "warp")
        group, channel = s.split(f"{out}.k", [None, shape.kg]) if grouped else (None, f"{out}.k")
        lead = [group] if group else []
    kb, wk, k = s.split(channel, [None, c["bk"] // c["wk"], c["wk"]])
    cb, wc, cl = s.split(f"{out}.c", [None, c["bc"] // c["wc"], c["wc"]])
    taps = [f"{out}.r", f"{out}.s"]
    s.reorder(*lead, *taps, kb, cb, wk, wc, k, cl)
    cb = bind_grid(s, [*lead, *taps], [kb], [cb])
    s.bind(wk, "warp.y").bind(wc, "warp.x")
    if staged_out(c, shape):
        layout = f"k, r, s, c -> r, s, k, {swizzled(c['bc'], m, 'k').replace('x', 'c')}"
        s.stage_out(out, at=cb, scope="shared", vector=vector_of(c["bc"], shape.cg, m), layout=layout)
    s.compute_at(dw, wc)
    to, ti, tt = s.split(f"{dw}.t", [None, c["bt"] // m.k, m.k])
    k0, k1 = s.split(f"{dw}.k", [None, 16])
    c0, c1 = s.split(f"{dw}.c", [None, 8])
    own = [f"{dw}.{v}" for v in (*(["rf"] if c["parts"] > 1 else []), *(["g"] if grouped else []), "r", "s")]
    s.reorder(*own, to, ti, k0, c0, k1, c1, tt)
    for operand, of_channels, tile in (("dy_packed", "k", c["bk"]), (pixels, "c", c["bc"])):
        _stage(s, operand, of_channels, tile, to, c, shape, m)
    if shape.pad:
        s.compute_inline(image)
    names = (("dy_packed", "a", len(own) - 2), (pixels, "b", len(own)))
    for (operand, fragment, dim), order in zip(names, _orders(shape), strict=True):
        load_rows(s, s.stage_in(f"{operand}_shared", at=ti, scope="warp").name, dim, m, fragment, order)
    s.tensorize(k1, f"mma.m16n8k{m.k}.{m.name}.{''.join(_orders(shape))}")
    s.unroll(ti)
    if c["depth"] > 1:
        s.pipeline(to, c["depth"], async_=not nchw)
    return s


def staged_out(c: Mapping[str, Any], shape: Conv) -> bool:
    """Whether results leave by way of shared memory: those of 16 bits, of which a fragment holds half a sector in each
    row, where the channels of a tap are contiguous.
    """
    m = _multiplication(shape)
    assert m is not None
    rows = not shape.nchw and vector_of(LEAST, shape.cg, m)
    return bool(c["staged"] and c["parts"] == 1 and rows and shape.leaves_in_halves)


def _stage(s: Schedule, operand: str, channel: str, tile: int, at: Any, c: Config, shape: Conv,
           m: Multiplication) -> None:  # fmt: skip
    """A tile of an operand in shared memory, straight from where its elements are stored."""
    lead = [v for v, used in (("z", c["parts"] > 1), ("g", shape.groups > 1)) if used]
    lead += ["r", "s"] if channel == "c" else []
    nchw = shape.nchw
    row, run = (channel, "t") if nchw else ("t", channel)
    width = c["bt"] if nchw else tile
    _, kg, cg = _channels(shape)
    lanes = vector_of(width, c["bt"] if nchw else kg if channel == "k" else cg, m)
    stored = swizzled(width, m, row).replace("x", run)
    dims = "".join(f"{v}, " for v in lead)
    s.stage_in(operand, at=at, scope="shared", vector=lanes, layout=f"{dims}{row}, {run} -> {dims}{row}, {stored}")
    s.compute_inline(operand)


def _add_up(s: Schedule) -> None:
    """The kernel that adds up the parts: a thread for each element of the filter."""
    final = out_stage(s, "dw")
    block, thread = s.split(joint(s, list(s.loops(final))), [None, 128])
    s.bind(block, "block.x").bind(thread, "thread.x").compute_at("dw", thread)


def _space(shape: Conv, target: Target) -> Space:
    """The tiles that fit: registers of a thread, shared memory of a block, whole warps, whole groups."""
    from tensorir.tune.space import Space

    m = _multiplication(shape)
    assert m is not None
    size, (groups, kg, cg) = 4 // m.word, _channels(shape)

    def warps(c: Mapping[str, Any]) -> bool:
        whole = c["bk"] % c["wk"] == 0 and c["bc"] % c["wc"] == 0
        return bool(whole and 2 <= c["bk"] // c["wk"] * (c["bc"] // c["wc"]) <= 8)

    def whole_groups(c: Mapping[str, Any]) -> bool:
        return bool(groups == 1 or kg % c["bk"] == 0)

    def shared(c: Mapping[str, Any]) -> bool:
        results = 2 * c["bk"] * c["bc"] if staged_out(c, shape) else 0
        return bool(size * c["depth"] * c["bt"] * (c["bk"] + c["bc"]) + results <= target.shared_optin_bytes)

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["wk"] * c["wc"] <= 64 * 64)

    def sensible(c: Mapping[str, Any]) -> bool:
        long = c["parts"] == 1 or part_length(shape, c["parts"]) >= 4 * c["bt"]
        return bool((c["bk"] <= 32 or c["bk"] // 2 < kg) and (c["bc"] <= 32 or c["bc"] // 2 < cg) and long)

    def ahead(c: Mapping[str, Any]) -> bool:
        return bool(not shape.nchw or c["depth"] <= 2)

    where = dict(warps=warps, groups=whole_groups, shared=shared, registers=registers, sensible=sensible, ahead=ahead)
    knobs = dict(
        bk=[64, 128, 32, 16], bc=[64, 128, 32, 16], wk=[32, 64, 16], wc=[32, 64, 16],
        bt=[n // size for n in (64, 128, 32)], depth=[4, 3, 2, 1], parts=list(PARTS),
        staged=[1, 0] if staged_out(dict(staged=1, parts=1), shape) else [0],
    )  # fmt: skip
    default = _default(shape, m)
    default["staged"] = knobs["staged"][0]
    space = Space(where=where, default=default if all(test(default) for test in where.values()) else None, **knobs)
    return space.since({"staged": 0})


def _default(shape: Conv, m: Multiplication) -> dict[str, int]:
    """64 x 64 channels where there are as many, and as many parts as keep the largest devices busy."""
    groups, kg, cg = _channels(shape)
    bk = next((n for n in (64, 32) if (n <= 32 or n // 2 < kg) and (groups == 1 or kg % n == 0)), 16)
    bc, bt = 64 if cg > 32 else 32, 16 * m.word
    blocks = groups * shape.taps * -(-kg // bk) * -(-cg // bc)
    parts = [n for n in PARTS if n == 1 or (blocks * n <= MANY and part_length(shape, n) >= 16 * bt)]
    return dict(bk=bk, bc=bc, wk=min(32, bk), wc=16 if 16 in (bk, bc // 2) else 32, bt=bt,
                depth=4 if not shape.nchw else 2, parts=parts[-1])  # fmt: skip
