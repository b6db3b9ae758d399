"""Which problems are in which tier."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tensorir.ops.shapes import RESNET50

from . import shapes
from .checks import checks
from .problems import (
    MOST_EMULATED,
    TIMED,
    WHOLE,
    Problem,
    convolution,
    gradients,
    in_groups,
    on_tensor_cores,
    product,
)

TIERS = ("check", "quick", "full", "tune")
WINOGRAD = dict(r=3, s=3, stride=1)
"""Of the convolutions to which Winograd's algorithm applies."""


def _orders(group: str, kind: str, m: int, n: int, k: int) -> list[Problem]:
    """B as (k, n) and as (n, k); the latter alone of 8-bit floats, for which libraries have no other."""
    orders = (True,) if kind == "e4m3" else (False, True)
    return [product(group, kind, m, n, k, **({"tb": True} if tb else {})) for tb in orders]


def resnet50(batch: int) -> list[Problem]:
    return [convolution("resnet50", **{**p, "n": batch}) for p in RESNET50]


def vgg16(batch: int) -> list[Problem]:
    return [convolution("vgg16", n=batch, c=c, h=h, w=h, k=k, r=3, s=3, pad=1) for c, k, h in shapes.VGG16]


def winograd(layers: Iterable[Problem]) -> Iterator[Problem]:
    """Those layers to which Winograd's algorithm applies, by each of its templates."""
    for p in (p for p in layers if all(p.parameters.get(v, 1) == n for v, n in WINOGRAD.items())):
        yield from (replace(p, template=name) for name in WHOLE if _offered(_of_small_images(p), name))


@functools.cache
def _offered(layer: Problem, name: str) -> bool:
    """Whether a layer has a template; asked once of all images, as rules make kernels to see that they can."""
    return name in layer.workload().templates


def _of_small_images(p: Problem) -> Problem:
    return replace(p, group="", options=tuple({**p.parameters, "n": 1, "h": 14, "w": 14}.items()))


def mobilenet(batch: int) -> list[Problem]:
    return [convolution("mobilenet", n=batch, c=c, h=h, w=h, k=c, r=3, s=3, stride=stride, pad=1, groups=c)
            for c, h, stride in shapes.MOBILENET]  # fmt: skip


def grouped() -> list[Problem]:
    return [in_groups("experts", "bf16", *s) for s in shapes.GROUPED]


def batched() -> list[Problem]:
    return [product("batched", "fp16", m, n, k, batch=z, **({"tb": True} if tb else {}))
            for z, m, n, k, tb in shapes.BATCHED]  # fmt: skip


def skinny(kind: str) -> list[Problem]:
    return [product("skinny", kind, *s, tb=True) for s in shapes.SKINNY]


def waves(kind: str) -> list[Problem]:
    return [product("waves", kind, *s, tb=True) for s in shapes.WAVES]


def epilogues() -> list[Problem]:
    return [product("epilogue", kind, *s, tb=True, **more) for kind, s, more in shapes.EPILOGUES]


def with_epilogue(layers: Iterable[Problem]) -> Iterator[Problem]:
    """Convolutions with bias and ReLU, and with a residual before that."""
    for p in layers:
        for more in (dict(bias=True, act="relu"), dict(bias=True, residual=True, act="relu")):
            yield replace(p, group=f"{p.group} epilogue", options=(*p.options, *more.items()))


def quick() -> Iterator[Problem]:
    """One of everything first, then more of what is compared most."""
    layers, vgg = resnet50(16), vgg16(16)
    yield from (product("square", kind, 4096, 4096, 4096, tb=True) for kind in TIMED)
    yield from (on_tensor_cores(layers[2], kind) for kind in ("bf16", "tf32", "int8"))
    yield layers[2]
    yield from gradients(on_tensor_cores(layers[2], "bf16"))
    yield grouped()[0]
    yield product("llama2-7b", "bf16", 16, *reversed(shapes.LLAMA2_7B[0]), tb=True)
    yield skinny("bf16")[0]
    yield waves("bf16")[0]
    yield epilogues()[0]
    yield batched()[0]
    yield mobilenet(16)[2]
    yield from winograd([vgg[5]])
    yield from (product("square", kind, 4096, 4096, 4096) for kind in TIMED if kind != "e4m3")
    yield from _orders("square", "bf16", 8192, 8192, 8192)
    yield from (product("square", kind, 1024, 1024, 1024, tb=True) for kind in TIMED if kind != "e4m3")
    for k, n in (shapes.LLAMA2_7B[0], shapes.LLAMA2_7B[3]):
        yield from (product("llama2-7b", "bf16", m, n, k, tb=True) for m in (16, 2048))
    yield from (product("deepbench", "fp16", *shapes.DEEPBENCH[at]) for at in (1, 8))
    yield product("deepbench", "fp32", *shapes.DEEPBENCH[7])
    yield from (product("bert-large", "fp16", *s, tb=True) for s in shapes.BERT_LARGE)
    yield from (layers[at] for at in (0, 6, 13, 16, 22))
    yield from (on_tensor_cores(layers[at], "bf16") for at in (1, 6, 13, 16, 22))
    for at, kind in ((2, "tf32"), (13, "bf16"), (2, "fp32")):
        yield from gradients(on_tensor_cores(layers[at], kind))
    yield vgg[5]
    yield on_tensor_cores(vgg[5], "fp16")
    yield mobilenet(16)[6]
    yield from (*epilogues()[1:], *with_epilogue([on_tensor_cores(layers[2], "bf16")]))
    yield from (*grouped()[1:], *batched()[1:], *skinny("bf16")[1:])


def full() -> Iterator[Problem]:
    """Everything, what is compared most first."""
    yield from quick()
    for size in shapes.SQUARE:
        for kind in TIMED:
            yield from _orders("square", kind, size, size, size)
    for k, n in shapes.LLAMA2_7B:
        for m in shapes.LLAMA2_TOKENS:
            yield from _orders("llama2-7b", "bf16", m, n, k)
            yield product("llama2-7b", "fp16", m, n, k, tb=True)
    yield from (*skinny("fp16"), *skinny("fp32"), *waves("bf16"), *waves("fp16"), *waves("fp32"))
    for kind in ("fp32", "fp16"):
        yield from (product("deepbench", kind, *s) for s in shapes.DEEPBENCH)
    for kind in ("fp16", "bf16", "fp32", "tf32"):
        yield from (product("bert-large", kind, *s, tb=True) for s in shapes.BERT_LARGE)
    for batch in shapes.BATCHES:
        yield from resnet50(batch)
        yield from (on_tensor_cores(p, "bf16") for p in resnet50(batch))
        yield from winograd(resnet50(batch))
        yield from mobilenet(batch)
    for p in resnet50(16):
        yield from gradients(on_tensor_cores(p, "bf16"))
        yield from (on_tensor_cores(p, kind) for kind in ("tf32", "int8"))
    for batch in shapes.VGG16_BATCHES:
        yield from vgg16(batch)
        yield from winograd(vgg16(batch))
    for p in vgg16(16):
        yield from gradients(on_tensor_cores(p, "bf16"))


def tune() -> Iterator[Problem]:
    """A few shapes that a search is worth it for."""
    yield product("square", "bf16", 4096, 4096, 4096, tb=True)
    yield product("square", "fp16", 4096, 4096, 4096)
    yield product("square", "fp32", 4096, 4096, 4096)
    yield product("square", "int8", 4096, 4096, 4096, tb=True)
    yield product("square", "3xtf32", 4096, 4096, 4096)
    yield product("llama2-7b", "bf16", 16, 12288, 4096, tb=True)
    yield resnet50(16)[2]
    yield resnet50(16)[13]
    yield on_tensor_cores(resnet50(16)[2], "bf16")


def problems(tier: str, only: str | None = None, dry: bool = False) -> list[Problem]:
    """The problems of a tier, each once; only: a regular expression that finds names; dry: at tiny sizes."""
    lists = {"check": (checks,), "quick": (checks, quick), "full": (checks, full), "tune": (tune,)}[tier]
    found: Iterable[Problem] = (p for make in lists for p in make())
    if dry:
        found = (p.shrunk() if p.timed or p.workload().flops > MOST_EMULATED else p for p in found)
    each = {p.name: p for p in reversed(list(found))}
    return [p for p in reversed(each.values()) if only is None or re.search(only, p.name)]
