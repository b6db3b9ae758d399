"""Layer shapes of well-known networks (facts): batch 1, as torchvision defines them."""

from __future__ import annotations

from typing import Any

_CONV = ("n", "c", "h", "w", "k", "r", "s", "stride", "pad")
_ALEXNET = (
    (1, 3, 224, 224, 64, 11, 11, 4, 2),
    (1, 64, 27, 27, 192, 5, 5, 1, 2),
    (1, 192, 13, 13, 384, 3, 3, 1, 1),
    (1, 384, 13, 13, 256, 3, 3, 1, 1),
    (1, 256, 13, 13, 256, 3, 3, 1, 1),
)
_RESNET50 = (
    (1, 3, 224, 224, 64, 7, 7, 2, 3),
    (1, 64, 56, 56, 64, 1, 1, 1, 0),
    (1, 64, 56, 56, 64, 3, 3, 1, 1),
    (1, 64, 56, 56, 256, 1, 1, 1, 0),
    (1, 256, 56, 56, 64, 1, 1, 1, 0),
    (1, 256, 56, 56, 128, 1, 1, 1, 0),
    (1, 128, 56, 56, 128, 3, 3, 2, 1),
    (1, 128, 28, 28, 512, 1, 1, 1, 0),
    (1, 256, 56, 56, 512, 1, 1, 2, 0),
    (1, 512, 28, 28, 128, 1, 1, 1, 0),
    (1, 128, 28, 28, 128, 3, 3, 1, 1),
    (1, 512, 28, 28, 256, 1, 1, 1, 0),
    (1, 256, 28, 28, 256, 3, 3, 2, 1),
    (1, 256, 14, 14, 1024, 1, 1, 1, 0),
    (1, 512, 28, 28, 1024, 1, 1, 2, 0),
    (1, 1024, 14, 14, 256, 1, 1, 1, 0),
    (1, 256, 14, 14, 256, 3, 3, 1, 1),
    (1, 1024, 14, 14, 512, 1, 1, 1, 0),
    (1, 512, 14, 14, 512, 3, 3, 2, 1),
    (1, 512, 7, 7, 2048, 1, 1, 1, 0),
    (1, 1024, 14, 14, 2048, 1, 1, 2, 0),
    (1, 2048, 7, 7, 512, 1, 1, 1, 0),
    (1, 512, 7, 7, 512, 3, 3, 1, 1),
)


def _params(rows: tuple[tuple[int, ...], ...]) -> tuple[dict[str, Any], ...]:
    return tuple(dict(zip(_CONV, row, strict=True)) for row in rows)


ALEXNET, RESNET50 = _params(_ALEXNET), _params(_RESNET50)

SETS: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "alexnet": ("conv2d", ALEXNET),
    "resnet50": ("conv2d", RESNET50),
}
"""Named sets: the operator and the parameters of each layer."""
