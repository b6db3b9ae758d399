"""What is computed: layers of well-known networks and matrix products, batch 1, float32.

Facts: ResNet-50, VGG-16 and AlexNet as torchvision defines them for 224 x 224 pixels, with how often a layer occurs;
MobileNet v1's depthwise layers; BERT-base's products at 128 tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Matmul:
    """C[m, n] = A[m, k] B[k, n]."""

    name: str
    group: str
    m: int
    n: int
    k: int
    times: int = 1

    kind = "matmul"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of A, B and C."""
        return (self.m, self.k), (self.k, self.n), (self.m, self.n)


@dataclass(frozen=True)
class Conv:
    """A square convolution of one image; shapes are said as NCHW and OIHW whatever the layout in memory."""

    name: str
    group: str
    c: int
    h: int
    o: int
    r: int
    stride: int
    pad: int
    groups: int = 1
    times: int = 1
    extra: bool = False

    kind = "conv"

    @property
    def p(self) -> int:
        """Rows (and columns) of the result."""
        return (self.h + 2 * self.pad - self.r) // self.stride + 1

    @property
    def flops(self) -> int:
        return 2 * self.o * self.p**2 * (self.c // self.groups) * self.r**2

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of the image, the weights and the result."""
        r, p = self.r, self.p
        return (1, self.c, self.h, self.h), (self.o, self.c // self.groups, r, r), (1, self.o, p, p)

    @property
    def depthwise(self) -> bool:
        return self.groups == self.c

    @property
    def winograd(self) -> bool:
        """Whether the usual Winograd algorithms apply: 3x3, stride 1, not depthwise."""
        return self.r == 3 and self.stride == 1 and self.groups == 1


Problem = Matmul | Conv


def to_json(problem: Problem) -> dict[str, Any]:
    return {"kind": problem.kind, **asdict(problem)}


def from_json(document: Mapping[str, Any]) -> Problem:
    fields = {k: v for k, v in document.items() if k != "kind"}
    return Matmul(**fields) if document["kind"] == "matmul" else Conv(**fields)


def _conv(name: str, group: str, c: int, h: int, o: int, r: int, stride: int = 1, times: int = 1, **more: Any) -> Conv:
    return Conv(name, group, c, h, o, r, stride, more.pop("pad", r // 2), times=times, **more)


# name (stage, kernel, stride, channels in and out, rows), how often
_RESNET50 = (
    ("r_stem_7x7s2_3_64_224", 1), ("r1_1x1_64_64_56", 1), ("r1_3x3_64_64_56", 3), ("r1_1x1_64_256_56", 4),
    ("r1_1x1_256_64_56", 2), ("r2_1x1_256_128_56", 1), ("r2_3x3s2_128_128_56", 1), ("r2_1x1_128_512_28", 4),
    ("r2_1x1s2_256_512_56", 1), ("r2_1x1_512_128_28", 3), ("r2_3x3_128_128_28", 3), ("r3_1x1_512_256_28", 1),
    ("r3_3x3s2_256_256_28", 1), ("r3_1x1_256_1024_14", 6), ("r3_1x1s2_512_1024_28", 1), ("r3_1x1_1024_256_14", 5),
    ("r3_3x3_256_256_14", 5), ("r4_1x1_1024_512_14", 1), ("r4_3x3s2_512_512_14", 1), ("r4_1x1_512_2048_7", 3),
    ("r4_1x1s2_1024_2048_14", 1), ("r4_1x1_2048_512_7", 2), ("r4_3x3_512_512_7", 2),
)  # fmt: skip
# channels, rows, stride
_MOBILENET = (
    (32, 112, 1), (64, 112, 2), (128, 56, 1), (128, 56, 2), (256, 28, 1), (256, 28, 2), (512, 14, 1), (512, 14, 2),
    (1024, 7, 1),
)  # fmt: skip
# the rest of VGG-16: channels in and out, rows, how often
_VGG_REST = ((3, 64, 224, 1), (64, 64, 224, 1), (64, 128, 112, 1), (128, 128, 112, 1), (128, 256, 56, 1),
             (256, 512, 28, 1), (512, 512, 14, 3))  # fmt: skip
_BERT = (("bert_qkv", 768, 768), ("bert_ff1", 3072, 768), ("bert_ff2", 768, 3072))
_SKINNY = ((3072, 768), (4096, 4096))


def _resnet(name: str, times: int) -> Conv:
    found = re.fullmatch(r"r\w+?_(\d+)x\d+(?:s(\d))?_(\d+)_(\d+)_(\d+)", name)
    assert found is not None, name
    r, stride, c, o, h = (int(g or 1) for g in found.groups())
    return _conv(name, "resnet50", c, h, o, r, stride, times)


def all_problems() -> tuple[Problem, ...]:
    """Every workload; those marked ``extra`` run only where they are asked for."""
    found: list[Problem] = [Matmul(f"square_{n}", "square", n, n, n) for n in (256, 512, 1024, 2048)]
    found += [Matmul(f"{name}_128x{n}x{k}", "bert", 128, n, k) for name, n, k in _BERT]
    found += [Matmul(f"skinny_{m}x{n}x{k}", "skinny", m, n, k) for n, k in _SKINNY for m in (1, 8, 32)]
    found += [_resnet(name, times) for name, times in _RESNET50]
    found += [_conv(f"dw_3x3s{s}_{c}_{h}", "mobilenet", c, h, c, 3, s, groups=c) for c, h, s in _MOBILENET]
    found += [
        _conv("vgg_3x3_256_256_56", "vgg+alexnet", 256, 56, 256, 3, times=2),
        _conv("vgg_3x3_512_512_28", "vgg+alexnet", 512, 28, 512, 3, times=2),
        _conv("alex1_11x11s4_3_64_224", "vgg+alexnet", 3, 224, 64, 11, 4, pad=2),
        _conv("alex2_5x5_64_192_27", "vgg+alexnet", 64, 27, 192, 5),
        _conv("alex3_3x3_192_384_13", "vgg+alexnet", 192, 13, 384, 3),
        _conv("alex4_3x3_384_256_13", "vgg+alexnet", 384, 13, 256, 3),
        _conv("alex5_3x3_256_256_13", "vgg+alexnet", 256, 13, 256, 3),
    ]
    found += [_conv(f"vgg_3x3_{c}_{o}_{h}", "vgg+alexnet", c, h, o, 3, 1, t, extra=True) for c, o, h, t in _VGG_REST]
    return tuple(found)


def chosen(only: str | None = None, extra: bool = False, among: Iterable[Problem] | None = None) -> list[Problem]:
    """The workloads whose names ``only`` (a regular expression) finds."""
    usual = [p for p in among or all_problems() if extra or not getattr(p, "extra", False)]
    return usual if only is None else [p for p in usual if re.search(only, p.name)]
