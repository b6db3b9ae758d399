"""Shapes of every operator, drawn: small and awkward ones for CPUs, all that GPUs are asked for."""

from __future__ import annotations

import random
from typing import Any

from tensorir.ops import OPERATORS

EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 48, 63, 64, 65)
LARGE = (96, 100, 127, 128, 129, 192, 200, 255, 256, 257, 320, 384, 500, 512, 513, 768, 1000, 1024, 2048, 4096)
SHORT = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2", "int8", "uint8")
ACTS = ("relu", "silu", "gelu", "sigmoid", "tanh")
TAPS = ((1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (2, 2), (1, 3), (3, 1), (4, 3), (5, 2), (11, 11))

Drawn = tuple[str, dict[str, Any]]


def drawn(seed: int, number: int, gpu: bool = False, most: int = 2_000_000) -> Drawn:
    """An operator and its parameters: those of ``number``, whichever others were asked for.

    most: multiply-adds, of shapes for CPUs
    """
    rng = random.Random(f"{seed}/{number}")
    op = rng.choices(("conv2d", "conv2d_backward_data", "conv2d_backward_weight", "matmul", "grouped_matmul"),
                     (8, 3, 3, 5, 2))[0]  # fmt: skip
    while True:
        given = _matmul(rng, op, gpu) if "matmul" in op else _convolution(rng, op, gpu)
        if given is not None and (gpu or _products(op, given) <= most):
            return op, given


def _size(rng: random.Random, gpu: bool) -> int:
    """An extent, often next to those of tiles."""
    if gpu and rng.random() < 0.6:
        return rng.choice(LARGE)
    return rng.choice(EDGES) if rng.random() < 0.7 else rng.randint(1, 300 if gpu else 70)


def _dtype(rng: random.Random, gpu: bool) -> dict[str, Any]:
    if rng.random() < (0.3 if gpu else 0.6):
        return {"precision": rng.choice(("tf32", "3xtf32"))} if gpu and rng.random() < 0.5 else {}
    return {"dtype": rng.choice((*SHORT, "float16", "bfloat16", "float64", "int32"))}


def _matmul(rng: random.Random, op: str, gpu: bool) -> dict[str, Any] | None:
    given: dict[str, Any] = {v: _size(rng, gpu) for v in "mnk"} | _dtype(rng, gpu)
    given |= {v: True for v in ("tb",) if rng.random() < 0.5}
    whole = given.get("dtype", "float32").startswith(("int", "uint"))
    if rng.random() < 0.3:
        given["act"] = "relu" if whole else rng.choice(ACTS)
    if op == "grouped_matmul":
        return {**given, "groups": rng.choice((1, 2, 3, 5, 8)), "align": rng.choice((16, 32, 48, 64, 128))}
    if rng.random() < 0.4:
        given["batch"] = rng.choice((2, 3, 5) if not gpu else (2, 3, 12, 64, 70_000))
    return given | {v: True for v in ("ta", "bias", "alpha", "beta", "prepack") if rng.random() < 0.3}


def _convolution(rng: random.Random, op: str, gpu: bool) -> dict[str, Any] | None:
    """None where nothing is left of the image."""
    taps = rng.choice(
        ((1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (2, 2), (1, 3), (3, 1), (4, 3), (5, 2), (11, 11))
    )
    images = (7, 8, 13, 14, 28, 56, 57, 112, 224) if gpu else (5, 7, 8, 10, 12, 13, 14, 16, 28)
    image = [rng.choice(images) if rng.random() < 0.6 else rng.randint(1, 90 if gpu else 30) for _ in "hw"]
    if rng.random() < 0.5:
        image[1] = image[0]
    given: dict[str, Any] = {"n": rng.choice((1, 1, 2, 3, 5)), "c": _size(rng, gpu), "h": image[0], "w": image[1]}
    given |= {"k": _size(rng, gpu), "r": taps[0], "s": taps[1]}
    if gpu and rng.random() < 0.25:
        given["n"] = rng.choice((16, 32, 64, 128, 256, 70_000))
    given |= {"stride": rng.choices((1, 2, 3), (6, 3, 1))[0], "pad": rng.choice((0, 0, 1, max(taps) // 2, 3))}
    given |= {"dilation": rng.choices((1, 2, 3), (8, 2, 1))[0], "layout": rng.choice(("NCHW", "NHWC"))} | _dtype(
        rng, gpu
    )
    _in_groups(rng, given)
    if min(x + 2 * given["pad"] - given["dilation"] * (t - 1) for x, t in zip(image, taps, strict=True)) < 1:
        return None
    if op != "conv2d":
        return given
    whole = given.get("dtype", "float32").startswith(("int", "uint"))
    if rng.random() < 0.3:
        given["act"] = "relu" if whole else rng.choice(ACTS)
    given |= {v: True for v in ("bias", "residual", "prepack") if rng.random() < 0.3}
    return given


def _in_groups(rng: random.Random, given: dict[str, Any]) -> None:
    """A third of all convolutions is in groups, a part of them depthwise."""
    kind = rng.random()
    if kind < 0.12:
        given |= {"groups": given["c"], "k": given["c"] * rng.choice((1, 1, 2, 3))}
    elif kind < 0.35:
        groups = rng.choice((2, 3, 4, 8, 16, 32))
        given |= {"groups": groups, **{v: -(-given[v] // groups) * groups for v in "ck"}}


def _products(op: str, given: dict[str, Any]) -> int:
    """About how many multiply-adds a shape takes."""
    if "matmul" in op:
        return int(given["m"] * given["n"] * given["k"] * given.get("batch", 1))
    pixels = (given["h"] + 2 * given["pad"]) * (given["w"] + 2 * given["pad"]) // given["stride"] ** 2
    return int(given["n"] * given["k"] * pixels * given["c"] // given.get("groups", 1) * given["r"] * given["s"])


def title(drawing: Drawn) -> str:
    """``conv2d(n=1, c=8, …)``, what makes the workload."""
    op, given = drawing
    assert op in OPERATORS
    return f"{op}({', '.join(f'{k}={v!r}' for k, v in given.items())})"
