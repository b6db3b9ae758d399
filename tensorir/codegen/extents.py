"""Extents that launches decide, as text that runtimes evaluate; exported folders that need it have this file."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping

Extent = int | str
"""A number, or an expression of dims in the syntax of Python: ``(n + 7) // 8``."""


def value(extent: Extent, dims: Mapping[str, int]) -> int:
    """Return an extent where dims have these values."""
    return extent if isinstance(extent, int) else _parsed(extent)(dims)


def values(extents: tuple[Extent, ...], dims: Mapping[str, int]) -> tuple[int, ...]:
    """Return extents where dims have these values."""
    return tuple([value(e, dims) for e in extents])


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Callable[[Mapping[str, int]], int]:
    return _meaning(ast.parse(text, mode="eval").body)


_OPS: dict[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {"min": min, "max": max}


def _meaning(e: ast.expr) -> Callable[[Mapping[str, int]], int]:
    """What an expression of numbers, names, + - * // % min and max means; nothing else is one."""
    match e:
        case ast.Constant(value=int(n)):
            return lambda _: n
        case ast.Name(id=name):
            return lambda dims: dims[name]
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _OPS:
            return _both(_OPS[type(op)], a, b)
        case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in _FUNCTIONS:
            return _both(_FUNCTIONS[name], a, b)
    raise ValueError(f"{ast.unparse(e)} is no expression of extents")


def _both(f: Callable[[int, int], int], a: ast.expr, b: ast.expr) -> Callable[[Mapping[str, int]], int]:
    left, right = _meaning(a), _meaning(b)
    return lambda dims: f(left(dims), right(dims))
