"""What a launch reads from the shapes of its arguments: the extents that a Source leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from tensorir.codegen.source import DimRange, Param, Source
from tensorir.errors import LaunchError, Problem
from tensorir.errors.habits import answers
from tensorir.ir.extents import Told, line, told


@answers(LaunchError)
def dims_of_call(source: Source, arrays: Sequence[object], out: object = None) -> dict[str, int]:
    """Return the extents that arguments (or, where those leave one open, outputs) have for the dims of ``source``.

    Arguments without a shape, and too few of them, are left to the checks that follow. Raises LaunchError
    ``launch.shape``, ``launch.dim-disagree``, ``launch.dim-range``.
    """
    outs = out if isinstance(out, tuple | list) else () if out is None else (out,)
    given = (*zip(source.inputs, arrays, strict=False), *zip(source.outputs, outs, strict=False))
    pairs = [(p, tuple(shape)) for p, a in given if _is_shape(shape := getattr(a, "shape", None))]
    problems = [p for p in (_shape(param, shape) for param, shape in pairs) if p is not None]
    found, faults = told((param.name, param.shape, shape) for param, shape in pairs) if not problems else ({}, [])
    problems += [Problem("launch.dim-disagree", fault) for fault in faults]
    for dim in source.dims if not problems else ():
        problems += _range(dim, found, pairs)
    if problems:
        raise LaunchError(problems)
    return {d.name: found[d.name][0] if d.name in found else d.low for d in source.dims}


def _is_shape(shape: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(shape, tuple) and all(isinstance(n, int) for n in shape)


def _shape(param: Param, shape: tuple[int, ...]) -> Problem | None:
    """A rank, or a constant extent, that is not the declared one."""
    same = len(shape) == len(param.shape) and all(
        n == m for n, m in zip(shape, param.shape, strict=True) if isinstance(m, int)
    )
    return None if same else _wrong(param, shape)


def _wrong(param: Param, shape: tuple[int, ...]) -> Problem:
    wanted = ", ".join(map(str, param.shape)) + ("," if len(param.shape) == 1 else "")
    return Problem("launch.shape", f"{param.name}: expected shape ({wanted}), got {shape}")


def _range(dim: DimRange, found: Told, pairs: Sequence[tuple[Param, tuple[int, ...]]]) -> Iterator[Problem]:
    """Yield what is wrong with one dim: out of its range, or of no value that gives a shape in ``pairs``."""
    if dim.name not in found:
        for param, shape in pairs:
            if dim.name in [solved[0] for e in param.shape if (solved := line(e)) is not None]:
                yield _wrong(param, shape)
        return
    n, where = found[dim.name]
    if not dim.low <= n <= dim.high:
        message = f"{where}: {dim.name} is {dim.low} to {dim.high}, got {n}"
        yield Problem("launch.dim-range", message, hint=f"a build of tir.dim({dim.name!r}, low=…, high=…) with room")
