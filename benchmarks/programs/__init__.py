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
