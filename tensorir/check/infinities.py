"""Infinities and NaNs among inputs: they stay where the declaration reads them, and are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tensorir.errors import Problem
from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.reference import arguments_of, evaluate
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Cast, PadLoad, Reduce, Select
from tensorir.ir.visit import find


def with_infinities(outputs: tuple[Tensor, ...], arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The inputs with infinities at the beginning of the last part of each array, and then NaNs of the second one: what
    kernels read beyond the end of a row, of a group or of an image, perhaps the first one's, in the belief that it will
    be multiplied by 0. Nothing where this shows nothing: without floats, and where infinities become whole numbers.
    """
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    if any(DTYPES[e.dtype].kind != "f" and DTYPES[e.a.dtype].kind == "f" for b in bodies for e in find(b, Cast)):
        return
    far = far_inputs(outputs, arrays)
    if any(DTYPES[t.dtype].kind != "f" for t in outputs) or not any(far):
        return
    yield _with(np.inf, far, arrays, (-1,))
    if any(f and len(x) > 2 for x, f in zip(arrays, far, strict=True)):
        yield _with(np.nan, far, arrays, (1, 2))  # an odd and an even one: pipeline stages alternate


def infinities_spread(
    outputs: tuple[Tensor, ...], got: Sequence[np.ndarray], arrays: Sequence[np.ndarray]
) -> Problem | None:
    """Where a result is no number although the declaration makes it without the infinities in ``arrays``: it is the
    same whatever stands in their place. And where it is a number although the declaration says none.
    """
    far = far_inputs(outputs, arrays)
    with np.errstate(all="ignore"):  # 256: of every type, and more than sums of small numbers that a relu hides
        tried = [evaluate(outputs, _instead(x, far, arrays)) for x in (0.0, 256.0, -256.0, np.inf)]
        made = [np.asarray(w, np.float64) for w in evaluate(outputs, arrays)]
    everywhere = reads_all_as_is(outputs)
    for n, (t, g) in enumerate(zip(outputs, got, strict=True)):
        want, *others = (np.asarray(w[n], np.float64) for w in tried)
        apart = np.isfinite(want) & np.all([want == w for w in others], axis=0)
        # what is clipped is the same for all of these, and NaN where infinities meet: the declaration says so then
        wrong = apart & np.isfinite(made[n]) & ~np.isfinite(np.asarray(g, np.float64))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return Problem(
                "check.infinity-spreads",
                f"{t.name}{list(at)} is {np.asarray(g)[at]}, the declaration says {want[at]:g}: it depends on an "
                f"infinite element of an input that the declaration does not read there ({int(wrong.sum())} of "
                f"{want.size} do)",
            )
        depends = ~np.all([want == w for w in others[:2]], axis=0)
        lost = (depends | bool(everywhere)) & ~np.isfinite(made[n]) & np.isfinite(np.asarray(g, np.float64))
        if everywhere is not None and lost.any():
            at = tuple(int(i) for i in np.argwhere(lost)[0])
            return Problem(
                "check.wrong-result",
                f"{t.name}{list(at)} is {np.asarray(g)[at]}, the declaration says {made[n][at]:g}, for it reads an "
                f"infinity or a NaN of an input there ({int(lost.sum())} of {want.size} are numbers)",
            )
    return None


def where_skipped(
    outputs: tuple[Tensor, ...], got: Sequence[np.ndarray], want: Sequence[np.ndarray], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Wanted results of a kernel that runs no iteration without a term (``s.skip``): where the NaNs in ``arrays`` that
    the declaration reads are multiplied by 0 alone, so that any numbers in their place make the same result, that
    number if the kernel has one there, which has not read them.
    """
    far = far_inputs(outputs, arrays)
    if not any(f and np.isnan(np.asarray(x, np.float64)).any() for x, f in zip(arrays, far, strict=True)):
        return list(want)
    with np.errstate(all="ignore"):
        tried = [evaluate(outputs, _instead(x, far, arrays)) for x in (0.0, 256.0, -256.0)]
    out = []
    for n, (g, w) in enumerate(zip(got, want, strict=True)):
        same = np.all([np.equal(tried[0][n], other[n]) for other in tried[1:]], axis=0)
        kept = same & np.isnan(np.asarray(w, np.float64)) & ~np.isnan(np.asarray(g, np.float64))
        out.append(np.where(kept, tried[0][n], w))
    return out


def reads_all_as_is(outputs: Sequence[Tensor]) -> bool | None:
    """True when 0 times an infinity is NaN wherever it is declared: nothing is padded or chosen, so no kernel skips
    factors of 0. None where states are joined by the user's combiner, or elements are picked by their size.
    """
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    if any(r.combiner.name not in ("sum", "prod") for b in bodies for r in find(b, Reduce)):
        return None
    return not any(True for b in bodies for kind in (PadLoad, Select) for _ in find(b, kind))


def far_inputs(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> list[bool]:
    """Which inputs are arrays of floats."""
    return [np.size(x) > 1 and DTYPES[a.dtype].kind == "f" for x, a in zip(arrays, arguments_of(outputs), strict=True)]


def _with(value: float, far: Sequence[bool], arrays: Sequence[np.ndarray], places: Sequence[int]) -> list[np.ndarray]:
    """The inputs with ``value`` at the beginning of parts of each that has floats, whose others are often 0."""
    rng = np.random.default_rng(0)
    out = [np.where(rng.random(x.shape) < 0.5, x, np.zeros_like(x)) if f else np.array(x)
           for x, f in zip(arrays, far, strict=True)]  # fmt: skip
    for x, f in zip(out, far, strict=True):
        if f:
            for part in places:
                x[(min(part, len(x) - 1), 0)[: x.ndim]] = value
    return out


def _instead(value: float, far: Sequence[bool], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The inputs with ``value`` where they are infinite."""
    return [
        np.where(np.isfinite(x), x, np.asarray(value, x.dtype)) if f else x for x, f in zip(arrays, far, strict=True)
    ]
