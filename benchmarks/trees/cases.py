"""The workloads that two trees are compared on: together they have every template of every operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """cpu, gpu: what the shape is there, instead of or besides ``given``; None where it is not compared there
    of: the class whose mean it counts to, of a set of networks' layers

    Shapes for processors take a millisecond or so; those for GPUs are small enough to be emulated.
    """

    op: str
    given: Mapping[str, Any] = field(default_factory=dict)
    cpu: Mapping[str, Any] | None = field(default_factory=dict)
    gpu: Mapping[str, Any] | None = field(default_factory=dict)
    of: str = ""

    def parameters(self, kind: str) -> dict[str, Any] | None:
        """Of the workload for a kind of target."""
        own = self.cpu if kind == "cpu" else self.gpu
        return None if own is None else {**self.given, **own}

    @property
    def title(self) -> str:
        """For options and reports; sizes left out where kinds have their own."""
        return " ".join([self.op, *(f"{k}={v}" for k, v in self.given.items())])


def _matmul(m: int = 384, n: int = 512, k: int = 500, **given: Any) -> Case:
    """A product; on GPUs of tiles, and of rows of 16 bytes."""
    return Case("matmul", given, dict(m=m, n=n, k=k), dict(m=256, n=256, k=128))


def _conv(op: str = "conv2d", c: int = 64, k: int = 64, size: int = 28, **given: Any) -> Case:
    """A convolution, padded."""
    return Case(op, {"c": c, "k": k, "pad": 1, **given}, dict(n=1, h=size, w=size), dict(n=2, h=12, w=14))


def _tensor(op: str = "conv2d", dtype: str = "float16", **given: Any) -> Case:
    """A convolution for tensor cores."""
    shape = dict(n=2, c=64, h=12, w=14, k=64, pad=1, layout="NHWC", dtype=dtype)
    return Case(op, {**shape, **given}, cpu=None)


CASES = (
    _matmul(),
    _matmul(ta=True, prepack=True, alpha=True, beta=True),
    _matmul(16, 1024, 1000, tb=True),
    _matmul(1024, 1024, 1024, tb=True, bias=True, act="relu"),
    _matmul(batch=3, dtype="float64"),
    _matmul(dtype="float16", bias=True),
    _matmul(dtype="bfloat16", tb=True, act="gelu"),
    _matmul(dtype="int8", tb=True),
    _matmul(1, 4096, 1024, prepack=True),
    _matmul(precision="tf32"),
    _matmul(precision="3xtf32", tb=True),
    _matmul(dtype="float8_e4m3", tb=True),
    Case("grouped_matmul", dict(m=256, n=256, k=128, groups=4)),
    Case("grouped_matmul", dict(m=256, n=256, k=128, groups=4, dtype="bfloat16", tb=True)),
    _conv(r=3, s=3, bias=True, act="relu"),
    _conv(r=3, s=3, layout="NHWC", prepack=True, residual=True),
    _conv(r=1, s=1, pad=0),
    _conv(r=1, s=1, pad=0, layout="NHWC", stride=2),
    _conv(c=3, r=7, s=7, stride=2, size=112),
    _conv(r=5, s=5, layout="NHWC"),
    _conv(c=64, k=64, groups=64, r=3, s=3),
    _conv(c=64, k=128, groups=64, r=5, s=5, stride=2, layout="NHWC"),
    _conv(r=3, s=3, dilation=2),
    _conv(groups=4, r=3, s=3),
    _conv(groups=16, r=3, s=3, dilation=2, layout="NHWC"),
    Case("conv2d", dict(n=1, c=2048, h=4, w=64, k=8, r=3, s=3, pad=1, groups=2, layout="NHWC"), gpu=None),
    _conv(r=3, s=3, dtype="float16", layout="NHWC"),
    _conv(r=3, s=3, dtype="int8", prepack=True),
    _tensor(r=3, s=3, bias=True),
    _tensor(dtype="bfloat16", r=3, s=3, stride=2),
    _tensor(dtype="int8", r=1, s=1, pad=0),
    *(_conv(op, r=3, s=3, layout=layout) for op in ("conv2d_backward_data", "conv2d_backward_weight")
      for layout in ("NCHW", "NHWC")),
    _conv("conv2d_backward_data", r=3, s=3, stride=2),
    _conv("conv2d_backward_weight", groups=64, r=3, s=3),
    _tensor("conv2d_backward_data", "bfloat16", r=3, s=3),
    _tensor("conv2d_backward_weight", "bfloat16", r=3, s=3),
)  # fmt: skip


SQUARES = (256, 384, 512, 768, 1024)


def layers(name: str) -> list[Case]:
    """The layers of a network, or products of matrices: both layouts, and with weights that are packed ahead."""
    from tensorir.ops.shapes import SETS

    if name == "matmul":
        shapes = [dict(m=n, n=n, k=n) for n in SQUARES] + [*SETS["bert"][1]]
        return [Case("matmul", {**x, **ahead}, of=f"matmul{_said(ahead)}") for ahead in _AHEAD for x in shapes]
    found = list[Case]()
    for layout in ("NCHW", "NHWC"):
        for ahead in _AHEAD:
            for x in SETS[name][1]:
                grouped = x.get("groups", 1) > 1
                if not (grouped and ahead):  # nothing of those filters is packed
                    kind = "depthwise" if grouped else name
                    found.append(Case("conv2d", {**x, "layout": layout, **ahead}, of=f"{kind} {layout}{_said(ahead)}"))
    return found


_AHEAD: tuple[dict[str, bool], ...] = ({}, {"prepack": True})


def _said(ahead: Mapping[str, bool]) -> str:
    return " packed ahead" if ahead else ""
