"""Launch-time extents as text, evaluated by runtimes; this file is copied into exported folders."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

Extent = int | str
"""A number, or an expression of dims in the syntax of Python: ``(n + 7) // 8``."""


def value(extent: Extent, dims: Mapping[str, int]) -> int:
    """Return an extent's value at given dims; KeyError for a missing dim, ValueError for text of another syntax."""
    return extent if isinstance(extent, int) else _parsed(extent)(dims)


def values(extents: tuple[Extent, ...], dims: Mapping[str, int]) -> tuple[int, ...]:
    """Values of several extents at given dims, in order."""
    return tuple([value(e, dims) for e in extents])


def line(extent: Extent) -> tuple[str, int, int] | None:
    """Return (dim, a, b) if an extent is ``a * dim + b`` with a != 0, so that it determines the dim; else None."""
    terms = _terms(_tree(extent)) if isinstance(extent, str) else None
    sloped = [(name, a) for name, a in (terms or {}).items() if name and a]
    return None if terms is None or len(sloped) != 1 else (*sloped[0], terms.get("", 0))


Told = dict[str, tuple[int, str]]
"""{dim: (extent, place in an argument's shape from which it was read)}."""


def told(shapes: Iterable[tuple[str, Sequence[Extent], Sequence[int]]]) -> tuple[Told, list[str]]:
    """Return ({dim: (value, where found)}, contradictions as text) from shapes (name, declared shape, actual shape).

    A dim is read from an extent equal to it, else from the first ``line`` of it with an integer solution. Other extents
    are left for the caller to compare.
    """
    places = [(e, n, f"{name}.shape[{d}]") for name, declared, shape in shapes
              for d, (e, n) in enumerate(zip(declared, shape, strict=False)) if isinstance(e, str)]  # fmt: skip
    found: Told = {}
    faults = []
    for e, n, where in places:
        if e.isidentifier():
            before, at = found.setdefault(e, (n, where))
            if before != n:
                faults.append(f"{e} is {before} in {at} and {n} in {where}: it is one extent")
    for e, n, where in places:
        if (solved := line(e)) is not None:
            dim, a, b = solved
            if dim not in found and (n - b) % a == 0:
                found[dim] = (n - b) // a, where
    return found, faults


@functools.lru_cache(maxsize=1024)
def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Callable[[Mapping[str, int]], int]:
    return _meaning(_tree(text))


def _terms(e: ast.expr) -> dict[str, int] | None:
    """{dim: coefficient, "": constant} of a sum; None for other expressions."""
    match e:
        case ast.Constant(value=int(n)):
            return {"": n}
        case ast.Name(id=name):
            return {name: 1}
        case ast.UnaryOp(op=ast.USub(), operand=left) if (a := _terms(left)) is not None:
            return {name: -n for name, n in a.items()}
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
            a, b = _terms(left), _terms(right)
            if a is None or b is None:
                return None
            if not isinstance(op, ast.Mult):
                sign = 1 if isinstance(op, ast.Add) else -1
                return {name: a.get(name, 0) + sign * b.get(name, 0) for name in {**a, **b}}
            if b.keys() != {""}:
                a, b = b, a
            return {name: n * b[""] for name, n in a.items()} if b.keys() == {""} else None
    return None


_OPS: dict[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {"min": min, "max": max}


def _meaning(e: ast.expr) -> Callable[[Mapping[str, int]], int]:
    """Function from dims to the value of an expression of numbers, names, + - * // % min max; ValueError for others."""
    match e:
        case ast.Constant(value=int(n)):
            return lambda _: n
        case ast.Name(id=name):
            return lambda dims: dims[name]
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return _both(_OPS[ast.Sub], ast.Constant(0), a)
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _OPS:
            return _both(_OPS[type(op)], a, b)
        case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in _FUNCTIONS:
            return _both(_FUNCTIONS[name], a, b)
    raise ValueError(f"{ast.unparse(e)} is no expression of extents")


def _both(f: Callable[[int, int], int], a: ast.expr, b: ast.expr) -> Callable[[Mapping[str, int]], int]:
    left, right = _meaning(a), _meaning(b)
    return lambda dims: f(left(dims), right(dims))
