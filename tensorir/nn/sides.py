"""Stride, padding and dilation of sliding windows, parsed from all usual notations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.errors.needs import plain_int, shown, spelt, text_of
from tensorir.expr.compute import Extent
from tensorir.ir.tree import Expr

MAX_STRIDE = 2**31 - 1
"""Largest accepted stride, padding or dilation, in elements."""


@dataclass(frozen=True)
class WindowAxis:
    """Windows along one dimension.

    stride: distance of neighbouring windows;  before, after: padding at the ends;  dilation: distance of taps; all in
    elements
    """

    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1

    @overload
    def results(self, size: int, taps: int) -> int: ...
    @overload
    def results(self, size: Extent, taps: Extent) -> Extent: ...
    def results(self, size: Extent, taps: Extent) -> Extent:
        """Number of windows of ``taps`` on ``size`` elements; may be below 1."""
        return (size + self.before + self.after - self.dilation * (taps - 1) - 1) // self.stride + 1

    @property
    def padded(self) -> bool:
        """True if there is any padding."""
        return bool(self.before or self.after)


def sides_of(rank: int, stride: object = 1, pad: object = 0, dilation: object = 1) -> tuple[WindowAxis, ...]:
    """WindowAxis of each of ``rank`` dimensions, from the arguments of ``conv2d.stride``, ``conv2d.pad``,
    ``conv2d.dilation``.

    stride, dilation: an int, or one for each dimension
    pad: as well, for both ends; or a pair (before, after) for each dimension; or, in ONNX's order, all before and then
         all after: (top, left, bottom, right)
    Texts such as "2x1" are read as those ints. Raises DeclarationError ``conv2d.stride``, ``conv2d.pad``,
    ``conv2d.dilation``.
    """
    steps, apart = (each(n, v, rank, 1) for n, v in (("stride", stride), ("dilation", dilation)))
    zeros = pads_of("pad", pad, rank)
    return tuple(WindowAxis(s, *ends, d) for s, ends, d in zip(steps, zeros, apart, strict=True))


def each(name: str, value: object, rank: int, low: int, code: str = "") -> tuple[int, ...]:
    """Tuple of ``rank`` ints from ``low`` to ``MAX_STRIDE``, from one int, a list or text such as "2x1".

    Raises DeclarationError ``code`` (default "conv2d.NAME").
    """
    value = spelt(value)
    given = tuple(map(plain_int, value)) if isinstance(value, list | tuple) else (plain_int(value),) * rank
    if len(given) != rank or not all(_whole(n, low) for n in given):
        raise _refuse(code, name, value, low, f"or {rank} of them" if rank > 1 else "or a list of one")
    return given


def pads_of(name: str, value: object, rank: int, code: str = "") -> tuple[tuple[int, int], ...]:
    """(before, after) zeros per dimension, from any notation of ``pad``; raises ``code`` (default "conv2d.NAME")."""
    value = spelt(value)
    given = tuple(map(plain_int, value)) if isinstance(value, list | tuple) else ()
    if len(given) == rank and all(isinstance(p, list | tuple) and len(p) == 2 for p in given):
        pairs = [(plain_int(a), plain_int(b)) for a, b in given]
    elif len(given) == 2 * rank:
        pairs = list(zip(given[:rank], given[rank:], strict=True))
    else:
        given = given if isinstance(value, list | tuple) else (plain_int(value),) * rank
        pairs = [(n, n) for n in given] if len(given) == rank else [(-1, -1)]
    if not all(_whole(n, 0) for pair in pairs for n in pair):
        several = f"{rank} of them, {rank} pairs (before, after), or {2 * rank}: all before, all after"
        raise _refuse(code, name, value, 0, several)
    return tuple(pairs)


def texts_of(sides: Sequence[WindowAxis]) -> dict[str, int | str]:
    """{"stride": …, "pad": …, "dilation": …}: an int if all values are equal, else text such as "2x1".

    "pad" has one value per dimension, or all before and then all after if the ends differ.
    """
    before, after = [side.before for side in sides], [side.after for side in sides]
    return {
        "stride": text_of([side.stride for side in sides]),
        "pad": text_of(before if before == after else [*before, *after]),
        "dilation": text_of([side.dilation for side in sides]),
    }


def no_output(
    sizes: tuple[Extent, ...], taps: tuple[Extent, ...], sides: tuple[WindowAxis, ...]
) -> TensorIRError | None:
    """The ``conv2d.extent`` error, to be raised, for windows larger than the padded input; None if all fit.

    Symbolic extents are taken to fit. Up to three dimensions.
    """
    for n, (size, f, side) in enumerate(zip(sizes, taps, sides, strict=True)):
        results = side.results(size, f)
        if not isinstance(results, Expr) and results < 1:
            axis, tap = "dhw"[-len(sides) :][n], "trs"[-len(sides) :][n]
            pad = side.before if side.before == side.after else (side.before, side.after)
            message = f"{axis}={size} with pad={pad} is smaller than the kernel {tap}={f} (dilation={side.dilation})"
            return refuse(DeclarationError, "conv2d.extent", f"{message}: no output")
    return None


def _whole(n: object, low: int) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and low <= n <= MAX_STRIDE


def _refuse(code: str, name: str, value: object, low: int, more: str) -> TensorIRError:
    message = f"{name}={shown(value)} must be an int >= {low}, {more}"
    return refuse(DeclarationError, code, message) if code else refuse(DeclarationError, f"conv2d.{name}", message)
