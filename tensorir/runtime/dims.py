"""What a launch reads from the shapes of its arguments: the extents that a Source leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tensorir.codegen.extents import value
from tensorir.codegen.source import DimRange, Param, Source
from tensorir.errors import LaunchError, Problem

Told = dict[str, tuple[int, str]]
"""A dim's extent, and the place in a shape that told it, by name."""


def dims_of_call(source: Source, arrays: Sequence[object], out: object = None) -> dict[str, int]:
    """Return the extents that arguments (or, where those leave one open, outputs) have for the dims of ``source``.

    Arguments without a shape, and too few of them, are left to the checks that follow. Raises LaunchError
    ``launch.shape``, ``launch.dim-disagree``, ``launch.dim-range``.
    """
    outs = out if isinstance(out, tuple | list) else () if out is None else (out,)
    pairs = [(p, tuple(a.shape)) for p, a in (*zip(source.inputs, arrays, strict=False),
             *zip(source.outputs, outs, strict=False)) if isinstance(getattr(a, "shape", None), tuple)]  # fmt: skip
    problems = [p for p in (_shape(param, shape) for param, shape in pairs) if p is not None]
    told: Told = {}
    for param, shape in pairs if not problems else ():
        problems += _plain(param, shape, told)
    for dim in source.dims if not problems else ():
        problems += _range(dim, told, pairs)
    if problems:
        raise LaunchError(problems)
    return {d.name: told[d.name][0] if d.name in told else d.low for d in source.dims}


def _shape(param: Param, shape: tuple[int, ...]) -> Problem | None:
    """A rank, or a constant extent, that is not the declared one."""
    same = len(shape) == len(param.shape) and all(
        n == m for n, m in zip(shape, param.shape, strict=True) if isinstance(m, int)
    )
    return None if same else _wrong(param, shape)


def _wrong(param: Param, shape: tuple[int, ...]) -> Problem:
    wanted = ", ".join(map(str, param.shape)) + ("," if len(param.shape) == 1 else "")
    return Problem("launch.shape", f"{param.name}: expected shape ({wanted}), got {shape}")


def _plain(param: Param, shape: tuple[int, ...], told: Told) -> Iterator[Problem]:
    """Take the dims that are extents of their own; yield those that another argument tells otherwise."""
    for d, (n, extent) in enumerate(zip(shape, param.shape, strict=True)):
        if not isinstance(extent, str) or not extent.isidentifier():
            continue
        before, where = told.setdefault(extent, (n, f"{param.name}.shape[{d}]"))
        if before != n:
            message = f"{extent} is {before} in {where} and {n} in {param.name}.shape[{d}]: it is one extent"
            yield Problem("launch.dim-disagree", message)


def _range(dim: DimRange, told: Told, pairs: Sequence[tuple[Param, tuple[int, ...]]]) -> Iterator[Problem]:
    """Yield what is wrong with one dim: out of its range, or told by no extent of its own nor by an expression."""
    if dim.name not in told and (found := _solved(dim, told, pairs)) is not None:
        told[dim.name] = found
    n, where = told.get(dim.name, (dim.low, ""))
    if not dim.low <= n <= dim.high:
        message = f"{where}: {dim.name} is {dim.low} to {dim.high}, got {n}"
        yield Problem("launch.dim-range", message, hint=f"a build of tir.dim({dim.name!r}, low=…, high=…) with room")


def _solved(dim: DimRange, told: Told, pairs: Sequence[tuple[Param, tuple[int, ...]]]) -> tuple[int, str] | None:
    """The extent of a dim that only an expression such as ``2 * n + 1`` tells, by bisection."""
    known: dict[str, Any] = {name: n for name, (n, _) in told.items()}
    for param, shape in pairs:
        for d, (n, extent) in enumerate(zip(shape, param.shape, strict=True)):
            if isinstance(extent, str) and _names(extent) - known.keys() == {dim.name}:
                low, high = dim.low, dim.high
                while low < high:
                    middle = (low + high) // 2
                    low, high = (low, middle) if value(extent, {**known, dim.name: middle}) >= n else (middle + 1, high)
                return low, f"{param.name}.shape[{d}]"
    return None


def _names(extent: str) -> set[str]:
    word, found = "", set[str]()
    for c in f"{extent} ":
        if c.isalnum() or c == "_":
            word += c
        elif word:
            found, word = found | {word}, ""
    return {w for w in found if not w.isdigit() and w not in ("min", "max")}
