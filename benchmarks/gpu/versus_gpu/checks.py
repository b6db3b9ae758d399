"""Every template at shapes that fit no tile, compared only: what is simple first, what it is built upon next.

A kernel that never ran is wrong most likely where its instructions are new. The stages follow each other so that the
first failure names the part: threads, tensor cores of a warp, those of warpgroups, then clusters, resident blocks,
parts of sums and turns, then rows in groups, convolutions and their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import shapes
from .problems import CHECK, Problem, convolution, in_groups, product

ORDERS = tuple((ta, tb) for ta in (False, True) for tb in (False, True))
ALONE = dict(cluster=1, resident=0, splits=1, rest=0, pingpong=0)
"""A tile a block: warpgroups without what else they can do."""


def checks() -> Iterator[Problem]:
    """All stages in turn."""
    for stage in (threads, tensor_cores, warpgroups, clusters, groups, convolutions, gradients):
        yield from stage()


def _orders(group: str, kind: str, shape: tuple[int, int, int], template: str, **more: Any) -> Iterator[Problem]:
    for ta, tb in ORDERS:
        yield product(group, kind, *shape, ta=ta, tb=tb, template=template, **more)


def threads() -> Iterator[Problem]:
    group = f"{CHECK} threads"
    yield product(group, "fp32", *shapes.ODD[0], template="gpu_tile")
    yield from _orders(group, "fp32", shapes.ODD[0], "gpu_tile_warp")
    yield from (product(group, "fp32", *s, tb=True, template="gpu_tile_warp") for s in shapes.ODD[1:])
    yield product(group, "fp32", *shapes.ODD[3], ta=True, tb=True, template="gpu_tile")
    yield from (product(group, kind, *shapes.ODD[0], template="gpu_tile") for kind in ("fp16", "bf16", "int8", "e4m3"))
    yield product(group, "fp32", *shapes.ODD[3], template="gpu_tile_warp", arch="sm_70")
    batch, m, n, k = shapes.ODD_BATCH
    yield product(group, "fp32", m, n, k, batch=batch, template="gpu_tile_warp")
    yield product(group, "fp32", *shapes.ODD[3], bias=True, act="relu", alpha=True, beta=True, template="gpu_tile_warp")
    yield from _in_parts(group, "fp32", "gpu_tile_warp")


def _in_parts(group: str, kind: str, template: str) -> Iterator[Problem]:
    """Sums in parts, which meet by a kernel of their own or by atomic additions; what whole waves leave in parts."""
    for atomic in (0, 1) if kind not in ("fp16", "bf16") else (0,):  # of 16 bits there are no atomic additions
        knobs = dict(splits=3, atomic=atomic, rest=0)
        yield product(group, kind, *shapes.DEEP, tb=True, template=template, knobs=knobs)
    yield product(group, kind, *shapes.ODD_LARGE, tb=True, template=template, knobs=dict(rest=1))


def tensor_cores() -> Iterator[Problem]:
    group = f"{CHECK} mma.sync"
    for kind in ("fp16", "bf16", "tf32", "3xtf32", "int8"):
        yield from _orders(group, kind, shapes.ODD[0], "gpu_tile_mma")
    for kind in ("uint8", "e4m3", "e5m2"):
        yield from (product(group, kind, *shapes.ODD[0], tb=tb, template="gpu_tile_mma") for tb in (False, True))
    for kind in ("fp16", "tf32", "int8", "e4m3"):  # rows of whole pieces of 16 bytes
        yield product(group, kind, *shapes.PIECES[1], tb=True, template="gpu_tile_mma")
    yield product(group, "bf16", *shapes.ODD[1], template="gpu_tile_mma")
    for kind in ("fp16", "int8"):
        yield from (product(group, kind, *s, tb=True, template="gpu_tile_mma", arch="sm_75") for s in shapes.PIECES[:2])
    yield product(group, "fp16", *shapes.ODD[0], template="gpu_tile_mma", arch="sm_75")
    batch, m, n, k = shapes.ODD_BATCH
    yield product(group, "bf16", m, n, k, batch=batch, template="gpu_tile_mma")
    yield from _epilogues(group, "gpu_tile_mma")
    yield product(group, "int8", *shapes.PIECES[0], tb=True, bias=True, act="relu", template="gpu_tile_mma")
    yield from _in_parts(group, "bf16", "gpu_tile_mma")
    yield from _in_parts(group, "3xtf32", "gpu_tile_mma")


def _epilogues(group: str, template: str, **more: Any) -> Iterator[Problem]:
    shape = shapes.PIECES[0]
    yield product(group, "bf16", *shape, tb=True, bias=True, act="relu", template=template, **more)
    yield product(group, "fp16", *shape, tb=True, bias=True, act="gelu", template=template, **more)
    yield product(group, "bf16", *shape, tb=True, act="silu", template=template, **more)
    yield product(group, "bf16", *shape, tb=True, bias=True, alpha=True, beta=True, template=template, **more)


def warpgroups() -> Iterator[Problem]:
    group, how = f"{CHECK} wgmma", dict(template="gpu_tile_wgmma", knobs=ALONE)
    for kind in ("bf16", "tf32", "int8", "e4m3"):
        yield product(group, kind, *shapes.PIECES[0], tb=True, **how)
    yield from (product(group, "bf16", *shapes.PIECES[3], ta=ta, tb=tb, **how) for ta, tb in ORDERS)
    for kind in ("fp16", "uint8", "e5m2"):
        yield product(group, kind, *shapes.PIECES[0], tb=True, **how)
    for kind in ("bf16", "tf32", "int8", "e4m3"):
        yield from (product(group, kind, *s, tb=True, **how) for s in shapes.PIECES[1:3])
    yield from _epilogues(group, "gpu_tile_wgmma", knobs=ALONE)
    yield product(group, "bf16", *shapes.PIECES[0], tb=True, batch=3, **how)


def clusters() -> Iterator[Problem]:
    large = shapes.ODD_LARGE

    def of(what: str, kind: str, shape: tuple[int, int, int], **knobs: Any) -> Problem:
        return product(f"{CHECK} wgmma {what}", kind, *shape, tb=True, template="gpu_tile_wgmma", knobs=knobs)

    for kind in ("bf16", "e4m3"):
        yield of("resident", kind, large, cluster=1, resident=1, splits=1, rest=0, pingpong=0)
    for kind in ("bf16", "e4m3", "tf32"):
        yield of("multicast", kind, shapes.PIECES[2], **{**ALONE, "cluster": 2})
    yield of("multicast", "bf16", large, cluster=2, resident=1, splits=1, rest=0, pingpong=0)
    for kind in ("bf16", "int8"):
        yield of("ping-pong", kind, large, cluster=1, pingpong=1)
    yield of("ping-pong", "bf16", large, cluster=2, pingpong=1)
    for kind, atomic in (("bf16", 0), ("tf32", 0), ("tf32", 1)):
        yield of("in parts", kind, shapes.DEEP, splits=3, atomic=atomic, rest=0)
    yield of("stream-K", "bf16", large, rest=1)


def groups() -> Iterator[Problem]:
    for kind, template in (("fp32", "gpu_tile"), ("fp32", "gpu_tile_warp"), ("bf16", "gpu_tile_mma"),
                           ("tf32", "gpu_tile_mma"), ("int8", "gpu_tile_mma"), ("bf16", "gpu_tile_wgmma"),
                           ("e4m3", "gpu_tile_wgmma")):  # fmt: skip
        m, n, k, count, align = shapes.ODD_GROUPS
        yield in_groups(f"{CHECK} groups", kind, m, n, k, count, align, template=template)


def convolutions() -> Iterator[Problem]:
    group, odd, pieces = f"{CHECK} convolution", shapes.ODD_CONVOLUTIONS, shapes.CONVOLUTIONS_OF_PIECES
    added = dict(bias=True, residual=True, act="relu")
    for p in odd:
        if p.get("groups", 1) < p["c"]:  # else there is nothing to share, and no tile
            yield convolution(group, **p, template="gpu_tile")
    for p in (odd[0], odd[3], odd[6]):
        yield convolution(group, **p, template="gpu_tile_warp")
    yield convolution(group, **odd[0], **added, template="gpu_tile_warp")
    for kind, layout in (("fp32", "NCHW"), ("fp32", "NHWC"), ("fp16", "NHWC")):
        yield convolution(f"{CHECK} depthwise", kind, **{**odd[4], "layout": layout}, template="gpu_tile_windows")
    for layout in ("NHWC", "NCHW"):
        for template in ("gpu_winograd", "gpu_winograd_fused"):
            more = added if template == "gpu_winograd" else {}
            yield convolution(f"{CHECK} Winograd", **shapes.ODD_WINOGRAD, layout=layout, **more, template=template)
    yield convolution(f"{CHECK} Winograd", "3xtf32", **shapes.ODD_WINOGRAD, layout="NHWC", template="gpu_winograd")
    group = f"{CHECK} convolution mma.sync"
    for kind, layout in (("bf16", "NHWC"), ("fp16", "NCHW"), ("tf32", "NHWC"), ("3xtf32", "NCHW"), ("int8", "NHWC"),
                         ("e4m3", "NHWC")):  # fmt: skip
        yield from (convolution(group, kind, **{**odd[at], "layout": layout}, template="gpu_tensor") for at in (0, 3))
    for p in pieces:
        yield convolution(group, "fp16", **p, template="gpu_tensor")
    yield convolution(group, "bf16", **pieces[0], **added, template="gpu_tensor")
    group = f"{CHECK} convolution wgmma"
    for p in pieces:
        yield convolution(group, "bf16", **p, template="gpu_tile_wgmma")
    yield from (convolution(group, kind, **pieces[0], template="gpu_tile_wgmma") for kind in ("int8", "e4m3", "tf32"))
    yield convolution(group, "bf16", **pieces[0], **added, template="gpu_tile_wgmma")


def gradients() -> Iterator[Problem]:
    odd, pieces = shapes.ODD_CONVOLUTIONS, shapes.CONVOLUTIONS_OF_PIECES
    for op, name in (("conv2d_backward_data", "data"), ("conv2d_backward_weight", "weight")):
        group = f"{CHECK} gradient of {name}"
        for at in (0, 1, 3, 5, 6):
            if (name, at) != ("data", 5):  # groups of three channels are streamed
                yield convolution(group, "fp32", op, **odd[at], template="gpu_tile")
        for kind, layout in (("bf16", "NHWC"), ("fp16", "NCHW"), ("tf32", "NCHW" if name == "weight" else "NHWC")):
            yield convolution(group, kind, op, **{**odd[0], "layout": layout}, template="gpu_tensor")
        yield from (convolution(group, "bf16", op, **p, template="gpu_tensor") for p in pieces)
        alike = [p for p in pieces if name == "weight" or "stride" not in p]
        yield from (convolution(f"{group} wgmma", "bf16", op, **p, template="gpu_tile_wgmma") for p in alike)
    many, group = shapes.MANY_PIXELS, f"{CHECK} gradient of weight"
    for what, template, knobs in (("", "gpu_tensor", dict(parts=4)), (" wgmma", "gpu_tile_wgmma", dict(splits=4))):
        how = dict(template=template, knobs=knobs)
        yield convolution(group + what, "bf16", "conv2d_backward_weight", **many, **how)
