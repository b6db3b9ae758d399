"""What is computed in which tier: each problem is an operator of this package with its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.expr.tensor import Tensor
from tensorir.ops.shapes import RESNET50

from . import shapes

KINDS: dict[str, dict[str, Any]] = {
    "bf16": dict(dtype="bfloat16"),
    "fp16": dict(dtype="float16"),
    "tf32": dict(precision="tf32"),
    "fp32": {},
    "3xtf32": dict(precision="3xtf32"),
    "int8": dict(dtype="int8"),
    "e4m3": dict(dtype="float8_e4m3"),
}
"""Element types and precisions of matmul, by the name that tables use."""
WHOLE = {"gpu_winograd": (1, 576), "gpu_winograd_fused": (4, 4)}
TIERS = ("quick", "full", "tune")
CHECK = "odd"
"""The group whose problems are compared only, not timed."""
MOST_EMULATED = 1e9
"""Operations: what is larger is shrunk in a dry run."""
_SMALL = dict(m=72, n=72, k=40, c=8, k_out=8, h=10)


@dataclass(frozen=True)
class Problem:
    """One workload. group: the list it is from; kind: element type and precision, a key of ``KINDS``.

    template: the one to measure where it is not the workload's own choice
    """

    group: str
    kind: str
    op: str
    options: tuple[tuple[str, Any], ...]
    template: str | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.options)

    @property
    def timed(self) -> bool:
        return self.group != CHECK

    @property
    def name(self) -> str:
        """Unique: what the rows of a result are found by."""
        p = self.parameters
        if self.op == "matmul":
            order = "".join("t" if p.get(x) else "n" for x in ("ta", "tb"))
            batch = f"{p['batch']}x " if p.get("batch", 1) > 1 else ""
            return f"{self.group} {self.kind} {order} {batch}{p['m']}x{p['n']}x{p['k']}"
        image = "x".join(str(p[x]) for x in ("n", "c", "h", "w"))
        more = "".join(f" {x}{p[x]}" for x in ("stride", "pad", "dilation", "groups", "layout") if x in p)
        how = f" {self.template}" if self.template else ""
        return f"{self.group} {self.kind} {image} k{p['k']} {p['r']}x{p['s']}{more}{how}"

    @property
    def whole(self) -> tuple[int, int]:
        """The largest whole number that is drawn to compare exactly, and what filters are multiples of: Winograd's
        transform of a filter divides by 4, or by 24 twice.
        """
        return WHOLE.get(self.template or "", (4, 1))

    def workload(self) -> tir.Workload:
        made: tir.Workload = getattr(tir.ops, self.op)(**self.parameters)
        return made

    def arguments(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and element type of each input, in the order of the signature."""
        return [(tuple(a.shape), a.dtype) for a in self.workload().inputs if isinstance(a, Tensor)]

    def whole_numbers(self) -> list[np.ndarray]:
        """Inputs in NumPy whose products and sums are exact."""
        from tensorir.interp.numbers import numpy_dtype

        draw, (largest, times) = np.random.default_rng(0), self.whole
        found = [draw.integers(-largest, largest + 1, s).astype(numpy_dtype(d)) for s, d in self.arguments()]
        return [a * a.dtype.type(times) if n == 1 and times > 1 else a for n, a in enumerate(found)]

    def shrunk(self) -> Problem:
        """The same at sizes that an emulator gets through."""
        p = self.parameters
        if self.op == "matmul":
            small = {x: min(p[x], _SMALL[x]) for x in ("m", "n", "k")}
        else:
            small = dict(n=min(p["n"], 2), c=min(p["c"], _SMALL["c"]), k=min(p["k"], _SMALL["k_out"]))
            small |= {x: min(p[x], _SMALL["h"]) for x in ("h", "w")}
            if p.get("groups", 1) == p["c"]:
                small["groups"] = small["c"]
        return replace(self, options=tuple({**p, **small}.items()))


def product(group: str, kind: str, m: int, n: int, k: int, **more: Any) -> Problem:
    """C[m, n] = A B in one of ``KINDS``."""
    return Problem(group, kind, "matmul", tuple({**dict(m=m, n=n, k=k), **KINDS[kind], **more}.items()))


def convolution(group: str, kind: str = "fp32", **parameters: Any) -> Problem:
    """A 2-D convolution in one of ``KINDS``; what has its default value is left out, so that names are short."""
    usual = dict(stride=1, pad=0, groups=1, dilation=1)
    given = {**parameters, **KINDS[kind]}
    return Problem(group, kind, "conv2d", tuple((n, v) for n, v in given.items() if usual.get(n) != v))


def on_tensor_cores(p: Problem, kind: str) -> Problem:
    """A convolution with channels last, in a type of tensor cores."""
    return convolution(p.group, kind, **{**p.parameters, "layout": "NHWC"})


def _orders(group: str, kind: str, m: int, n: int, k: int) -> list[Problem]:
    """B as (k, n) and as (n, k); the latter alone of 8-bit floats, for which libraries have no other."""
    orders = (True,) if kind == "e4m3" else (False, True)
    return [product(group, kind, m, n, k, **({"tb": True} if tb else {})) for tb in orders]


# --- the lists


def odd() -> Iterator[Problem]:
    """Every kind in every order at shapes that fit no tile; compared only."""
    for kind in KINDS:
        for ta in (False, True):
            for tb in (False, True):
                yield product(CHECK, kind, *shapes.ODD[0], ta=ta, tb=tb)
        yield from (product(CHECK, kind, *s, tb=bool(at % 2)) for at, s in enumerate(shapes.ODD[1:]))
        yield product(CHECK, kind, *shapes.ODD_LARGE, tb=True)
        batch, m, n, k = shapes.ODD_BATCH
        yield product(CHECK, kind, m, n, k, batch=batch)
    yield from (convolution(CHECK, **p) for p in shapes.ODD_CONVOLUTIONS)
    for p in shapes.ODD_CONVOLUTIONS:
        yield convolution(CHECK, "bf16", **{**p, "layout": "NHWC"})
        groups = p.get("groups", 1)  # rows of whole pieces, as copies of tiles want them; of groups, whole tiles
        channels = {"c": 72, "k": 80} if groups == 1 else {"c": 64 * groups, "k": 32 * groups}
        yield convolution(CHECK, "bf16", **{**p, **channels, "layout": "NHWC"})


def resnet50(batch: int) -> list[Problem]:
    return [convolution("resnet50", **{**p, "n": batch}) for p in RESNET50]


def vgg16(batch: int) -> list[Problem]:
    return [convolution("vgg16", n=batch, c=c, h=h, w=h, k=k, r=3, s=3, pad=1) for c, k, h in shapes.VGG16]


def winograd(layers: Iterable[Problem]) -> Iterator[Problem]:
    """Those layers to which Winograd's algorithm applies, by each of its templates."""
    for p in layers:
        yield from (replace(p, template=name) for name in WHOLE if name in p.workload().templates)


def mobilenet(batch: int) -> list[Problem]:
    return [convolution("mobilenet", n=batch, c=c, h=h, w=h, k=c, r=3, s=3, stride=stride, pad=1, groups=c)
            for c, h, stride in shapes.MOBILENET]  # fmt: skip


def quick() -> Iterator[Problem]:
    """About 40 problems, one of everything."""
    for kind in KINDS:
        yield from _orders("square", kind, 4096, 4096, 4096)
    yield from (product("square", kind, 1024, 1024, 1024, tb=True) for kind in KINDS if kind != "e4m3")
    yield from _orders("square", "bf16", 8192, 8192, 8192)
    for k, n in (shapes.LLAMA2_7B[0], shapes.LLAMA2_7B[3]):
        yield from (product("llama2-7b", "bf16", m, n, k, tb=True) for m in (16, 2048))
    yield from (product("deepbench", "fp16", *shapes.DEEPBENCH[at]) for at in (1, 8))
    yield product("deepbench", "fp32", *shapes.DEEPBENCH[7])
    yield from (product("bert-large", "fp16", *s, tb=True) for s in shapes.BERT_LARGE)
    layers = resnet50(16)
    yield from (layers[at] for at in (0, 2, 6, 13, 16, 22))
    yield from (on_tensor_cores(layers[at], "bf16") for at in (1, 2, 6, 13, 16, 22))
    yield vgg16(16)[5]
    yield from winograd([vgg16(16)[5]])
    yield on_tensor_cores(vgg16(16)[5], "fp16")
    yield from (mobilenet(16)[at] for at in (2, 6))


def full() -> Iterator[Problem]:
    """Everything, what is compared most first."""
    yield from quick()
    for size in shapes.SQUARE:
        for kind in KINDS:
            yield from _orders("square", kind, size, size, size)
    for k, n in shapes.LLAMA2_7B:
        for m in shapes.LLAMA2_TOKENS:
            yield from _orders("llama2-7b", "bf16", m, n, k)
            yield product("llama2-7b", "fp16", m, n, k, tb=True)
    for kind in ("fp32", "fp16"):
        yield from (product("deepbench", kind, *s) for s in shapes.DEEPBENCH)
    for kind in ("fp16", "bf16", "fp32", "tf32"):
        yield from (product("bert-large", kind, *s, tb=True) for s in shapes.BERT_LARGE)
    for batch in shapes.BATCHES:
        yield from resnet50(batch)
        yield from (on_tensor_cores(p, "bf16") for p in resnet50(batch))
        yield from winograd(resnet50(batch))
        yield from mobilenet(batch)
    for batch in shapes.VGG16_BATCHES:
        yield from vgg16(batch)
        yield from winograd(vgg16(batch))


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
    lists = {"quick": (odd, quick), "full": (odd, full), "tune": (tune,)}[tier]
    found: Iterable[Problem] = (p for make in lists for p in make())
    if dry:
        found = (p.shrunk() if p.timed or p.workload().flops > MOST_EMULATED else p for p in found)
    each = {p.name: p for p in reversed(list(found))}
    return [p for p in reversed(each.values()) if only is None or re.search(only, p.name)]
