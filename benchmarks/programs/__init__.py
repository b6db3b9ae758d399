"""Programs of peers, declared anew: a module a peer, a function a program, each next to its formulations for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensorir as tir

Array = np.ndarray
Peers = dict[str, Callable[..., Any]]
"""Formulations by name, of the arrays in the order of their declaration: "torch…" takes and gives tensors."""
PROGRAMS: dict[str, Callable[[Inputs], tuple[Any, Peers]]] = {}


class Inputs:
    """Arrays of a seed, and the placeholders that stand for them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.arrays: dict[str, Array] = {}
        self.may_differ = 0.0
        """Share of whole numbers that the last bit of a float decides."""

    def of(self, name: str, array: Array) -> Any:
        """A placeholder of an array's shape and type."""
        self.arrays[name] = np.ascontiguousarray(array)
        return tir.placeholder(array.shape, str(array.dtype), name=name)

    def normal(self, name: str, *shape: int, dtype: str = "float32") -> Any:
        return self.of(name, self.rng.standard_normal(shape, "float32").astype(dtype))

    def uniform(self, name: str, *shape: int, dtype: str = "float32") -> Any:
        """Numbers between 0 and 1."""
        return self.of(name, self.rng.random(shape, "float32").astype(dtype))

    def whole(self, name: str, *shape: int, below: int, dtype: str = "int32", least: int = 0) -> Any:
        return self.of(name, self.rng.integers(least, below, shape).astype(dtype))


def program(name: str) -> Callable[[Callable[[Inputs], tuple[Any, Peers]]], Callable[[Inputs], tuple[Any, Peers]]]:
    """Enter a function of inputs, whose results are what it declares and formulations of others."""

    def enter(f: Callable[[Inputs], tuple[Any, Peers]]) -> Callable[[Inputs], tuple[Any, Peers]]:
        PROGRAMS[name] = f
        return f

    return enter


def axes(*extents: int) -> tuple[Any, ...]:
    return tuple(tir.reduce_axis(n, name=f"r{k}") for k, n in enumerate(extents))


def softmax_by_numpy(x: Array) -> Array:
    """Of the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


PHILOX = ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85))
"""Factors of Philox 4x32 (Salmon et al. 2011), and what each round adds to the key."""


def philox(counter: Any, seed: int, rounds: int = 10) -> Any:
    """The first word of 32 bits at a position."""
    (m0, m1), (w0, w1) = PHILOX
    c0, c1, c2, c3 = counter, 0, 0, 0
    k0, k1 = seed, 0
    word = lambda x: tir.cast(x, "uint32") if isinstance(x, int) else x  # noqa: E731
    for _ in range(rounds):
        c0, c1, c2, c3 = map(word, (c0, c1, c2, c3))
        c0, c1, c2, c3 = (
            tir.mulhi(word(m1), c2) ^ c1 ^ word(k0),
            word(m1) * c2,
            tir.mulhi(word(m0), c0) ^ c3 ^ word(k1),
            word(m0) * c0,
        )
        k0, k1 = (k0 + w0) & 0xFFFFFFFF, (k1 + w1) & 0xFFFFFFFF
    return c0


def philox_by_numpy(counter: Array, seed: int, rounds: int = 10) -> Array:
    (m0, m1), (w0, w1) = (tuple(map(np.uint64, x)) for x in PHILOX)
    c0, c1, c2, c3 = counter, np.uint32(0), np.uint32(0), np.uint32(0)
    k0, k1 = seed, 0
    for _ in range(rounds):
        p0, p1 = m0 * np.asarray(c0, "uint64"), m1 * np.asarray(c2, "uint64")
        high0, low0, high1, low1 = ((p >> np.uint64(s)).astype("uint32") for p in (p0, p1) for s in (32, 0))
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint32(k0), low1, high0 ^ c3 ^ np.uint32(k1), low0
        k0, k1 = (k0 + int(w0)) & 0xFFFFFFFF, (k1 + int(w1)) & 0xFFFFFFFF
    return c0
