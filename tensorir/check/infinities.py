"""Tests with infinite and NaN inputs: a result is affected exactly where the declaration reads them."""

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
    """Yield copies of ``arrays`` with infinities at the start of each float array's last row, then NaNs in its second
    and third rows (rows: entries along the first dimension).

    They expose kernels that read past a row, group or image and multiply by 0. Nothing without floats, or where
    infinities become integers.
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
    """A Problem if a result in ``got`` is finite where the declaration reads an infinity or NaN of ``arrays``, or not
    finite where it reads none; else None.
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
    """The reference results ``want`` for a kernel under ``s.skip``: where NaNs in ``arrays`` are only multiplied by 0,
    ``want`` is replaced by the finite value without the term, if ``got`` is not NaN there.
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
    """True if the declaration has no padding and no selects, so that 0 * inf is NaN everywhere and no kernel may skip
    zero factors; else False. None with reductions other than sum and prod.
    """
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    if any(r.combiner.name not in ("sum", "prod") for b in bodies for r in find(b, Reduce)):
        return None
    return not any(True for b in bodies for kind in (PadLoad, Select) for _ in find(b, kind))


def far_inputs(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> list[bool]:
    """One boolean per input: true for float arrays of several elements."""
    return [np.size(x) > 1 and DTYPES[a.dtype].kind == "f" for x, a in zip(arrays, arguments_of(outputs), strict=True)]


def _with(value: float, far: Sequence[bool], arrays: Sequence[np.ndarray], places: Sequence[int]) -> list[np.ndarray]:
    """Copies of ``arrays``, float ones with ``value`` at ``[p, 0]`` for each p of ``places``; half of their other
    elements are 0.
    """
    rng = np.random.default_rng(0)
    out = [np.where(rng.random(x.shape) < 0.5, x, np.zeros_like(x)) if f else np.array(x)
           for x, f in zip(arrays, far, strict=True)]  # fmt: skip
    for x, f in zip(out, far, strict=True):
        if f:
            for part in places:
                x[(min(part, len(x) - 1), 0)[: x.ndim]] = value
    return out


def _instead(value: float, far: Sequence[bool], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Copies of ``arrays`` with infinities and NaNs of float arrays replaced by ``value``."""
    return [
        np.where(np.isfinite(x), x, np.asarray(value, x.dtype)) if f else x for x, f in zip(arrays, far, strict=True)
    ]
