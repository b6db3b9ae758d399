"""check: what was shown, on which shapes, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorir.check.equivalence import awkward_shapes, axes_of, compare, label, need_own_extents, over_shapes
from tensorir.codegen.source import Source
from tensorir.errors import CheckError, CompileError, LoweringError, Problem, TensorIRError
from tensorir.expr.program import computes_of
from tensorir.expr.resize import resize
from tensorir.expr.tensor import Tensor
from tensorir.interp.numbers import Field
from tensorir.interp.reference import arguments_of, evaluate, random_arguments
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Cast, Expr, Loop
from tensorir.ir.visit import find

LEVELS = ("fast", "device", "emulate")


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check; true when nothing is wrong.

    shapes: what was tried, in words;  kind: how equality was shown
    """

    problems: tuple[Problem, ...]
    shapes: tuple[str, ...]
    kind: str
    max_error: float = 0.0

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        if self.problems:
            return "wrong: " + "\n".join(map(str, self.problems))
        return f"ok: {self.kind}; shapes: {'; '.join(self.shapes)}"


EMULATED = 4
"""Shapes that are run as text: each costs a compilation."""

EXACT = "exact over the field of 2^31 - 1, no race, no uninitialised read, no access out of bounds"


def check(s: Any, level: str = "fast", shapes: Any = None, seed: int = 0) -> Verdict:
    """Whether the schedule ``s`` (``api.Schedule``) computes what its tensors declare; see ``Schedule.check``."""
    if level not in LEVELS:
        raise CheckError(Problem("check.level", f"there is no level {level!r}", hint=f"one of {', '.join(LEVELS)}"))
    if level == "device":
        return on_device(s, seed)
    if level == "emulate":
        return emulated(s, shapes, seed)
    if s.edited is not None:
        raise CheckError(
            Problem("check.edited-text", "edited text has no loop tree to interpret", hint="s.check(level='device')")
        )
    wanted = _shapes(s, shapes)
    try:
        problems, shown = over_shapes(s, wanted, seed)
        if not shown:  # the trace fits no other shape: the declared one it is
            problem = compare(s, Field(), seed)
            problems, shown = ([problem] if problem else []), [label(s.outputs)]
    except LoweringError as e:
        problems, shown = list(e.problems), []
    return Verdict(tuple(problems), tuple(shown), EXACT)


def _shapes(s: Any, shapes: Any) -> list[Any]:
    """Awkward shapes, or the user's: dicts from axis names (``C.i`` or ``i``) to extents."""
    if shapes is None:
        return awkward_shapes(s)
    axes = axes_of(s.outputs)
    out = []
    for one in shapes:
        extents = {}
        for name, n in one.items():
            full = [a for a in axes if a == name or a.rsplit(".", 1)[-1] == name]
            if not full:
                raise CheckError(
                    Problem("check.unknown-axis", f"there is no axis {name}", hint=f"one of {', '.join(axes)}")
                )
            extents.update({axes[a][0]: int(n) for a in full})
        out.append(extents)
    return out


def on_device(s: Any, seed: int = 0, device: Any = None) -> Verdict:
    """Build and run ``s`` on a device, between canaries, on small whole numbers, against the declarations."""
    from tensorir.runtime.device import open_device

    try:
        program = s.build(open_device(device if device is not None else s.target)).program
    except TensorIRError as e:
        return Verdict(e.problems, (), "not built")
    arrays = random_arguments(s.outputs, seed, conditions=_conditions(s))
    got, problems = program.run_guarded(*arrays)
    if problems:
        return Verdict(tuple(problems), (label(s.outputs),), "on the device")
    results = got if isinstance(got, tuple | list) else (got,)
    return compare_results(s.outputs, results, evaluate(s.outputs, arrays))


def emulated(s: Any, shapes: Any, seed: int) -> Verdict:
    """The CUDA text of ``s`` on the CPU: on awkward shapes, or as it stands when the user edited it."""
    from tensorir.check.emulate import emulate

    if too_much := _beyond_limits(s):
        return Verdict(too_much, (), "not built")
    shown: list[str] = []
    for one, source in _on_shapes(s, shapes):
        arrays = random_arguments(one.outputs, seed, conditions=_conditions(one))
        want = evaluate(one.outputs, arrays)
        shown.append(label(one.outputs))
        # where tiles are copied by themselves, they land as late as they may, and once more at any time
        for eager in (False, True) if any(k.maps for k in source.kernels) else (False,):
            run = emulate(source, arrays, seed, eager)
            if wrong := run.problems or compare_results(one.outputs, run.outputs, want).problems:
                return Verdict(wrong, tuple(shown), "CUDA text on the CPU")
        for far in with_infinities(one.outputs, arrays):
            run = emulate(source, far, seed)
            spread = infinities_spread(one.outputs, run.outputs, far)
            if told := run.problems or ((spread,) if spread else ()):
                return Verdict(told, tuple(shown), "CUDA text on the CPU, with infinities among its inputs")
    return Verdict((), tuple(shown), "the CUDA text, run on the CPU: exact, no race, no access out of bounds")


def _beyond_limits(s: Any) -> tuple[Problem, ...]:
    """Why the target would not launch the kernels of ``s``: threads, shared memory, blocks of a grid."""
    from tensorir.runtime.limits import check_source

    if s.target.language != "cuda":
        return ()
    try:
        check_source(s.emitted(), s.target)
    except CompileError as e:
        return e.problems
    return ()


def with_infinities(outputs: tuple[Tensor, ...], arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The inputs with infinities at the beginning of the last part of each array, and then of the second one: what
    kernels read beyond the end of a row, of a group or of an image, perhaps the first one's, in the belief that it will
    be multiplied by 0. Nothing where this shows nothing: without floats, and where infinities become whole numbers.
    """
    bodies = [b for op in computes_of(outputs) for b in op.bodies]
    if any(DTYPES[e.dtype].kind != "f" and DTYPES[e.a.dtype].kind == "f" for b in bodies for e in find(b, Cast)):
        return
    far = _far(outputs, arrays)
    if any(DTYPES[t.dtype].kind != "f" for t in outputs) or not any(far):
        return
    yield _with(np.inf, far, arrays, -1)
    if any(f and len(x) > 2 for x, f in zip(arrays, far, strict=True)):
        yield _with(np.inf, far, arrays, 1)


def _far(outputs: tuple[Tensor, ...], arrays: Sequence[np.ndarray]) -> list[bool]:
    return [np.size(x) > 1 and DTYPES[a.dtype].kind == "f" for x, a in zip(arrays, arguments_of(outputs), strict=True)]


def _with(value: float, far: Sequence[bool], arrays: Sequence[np.ndarray], part: int) -> list[np.ndarray]:
    """The inputs with ``value`` at the beginning of a part of each that has floats."""
    out = [np.array(x) for x in arrays]
    for x, f in zip(out, far, strict=True):
        if f:
            x[(min(part, len(x) - 1), 0)[: x.ndim]] = value
    return out


def _instead(value: float, far: Sequence[bool], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The inputs with ``value`` where they are infinite."""
    return [
        np.where(np.isfinite(x), x, np.asarray(value, x.dtype)) if f else x for x, f in zip(arrays, far, strict=True)
    ]


def infinities_spread(
    outputs: tuple[Tensor, ...], got: Sequence[np.ndarray], arrays: Sequence[np.ndarray]
) -> Problem | None:
    """Where a result is no number although the declaration makes it without the infinities in ``arrays``: it is the
    same whatever stands in their place.
    """
    far = _far(outputs, arrays)
    with np.errstate(all="ignore"):  # 256: of every type, and more than sums of small numbers that a relu hides
        tried = [evaluate(outputs, _instead(x, far, arrays)) for x in (0.0, 256.0, -256.0, np.inf)]
    for n, (t, g) in enumerate(zip(outputs, got, strict=True)):
        want, *others = (np.asarray(w[n], np.float64) for w in tried)
        apart = np.isfinite(want) & np.all([want == w for w in others], axis=0)
        wrong = apart & ~np.isfinite(np.asarray(g, np.float64))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return Problem(
                "check.infinity-spreads",
                f"{t.name}{list(at)} is {np.asarray(g)[at]}, the declaration says {want[at]:g}: it depends on an "
                f"infinite element of an input that the declaration does not read there ({int(wrong.sum())} of "
                f"{want.size} do)",
            )
    return None


def _conditions(s: Any) -> list[Expr]:
    """What ``specialize`` asks in the kernels."""
    return [c for x in find(s.program.body, Loop) for c in x.cases]


def _on_shapes(s: Any, shapes: Any) -> Iterator[tuple[Any, Source]]:
    """The schedule and its CUDA text on a few awkward shapes that both fit; edited text fits only its own."""
    language = "cuda" if s.target.language != "cuda" else None
    made = 0
    if s.edited is None:
        for extents in _shapes(s, shapes):
            try:
                again = type(s)(resize(s.outputs, extents), s.target).replay(s.trace)
            except TensorIRError:
                continue
            try:
                source = again.emitted(language)
            except LoweringError as e:
                need_own_extents(s, e)
                continue
            made += 1
            yield again, source
            if made == EMULATED:
                return
    if not made:
        source = s.emitted(language)
        yield s, source if s.edited is None else replace(source, text=s.source("cuda"))


def compare_results(outputs: tuple[Tensor, ...], got: Any, want: Any) -> Verdict:
    """Device results against reference results: equal where whole numbers make both exact, else within rounding."""
    problems, worst = [], 0.0
    for t, g, w in zip(outputs, got, want, strict=True):
        error = _error(np.asarray(g), w, t.dtype)
        worst = max(worst, error)
        if error > tolerance(t.dtype) or not np.isfinite(error):
            bad = _first_difference(np.asarray(g), w)
            problems.append(
                Problem(
                    "check.wrong-result",
                    f"{t.name}{list(bad)} is {np.asarray(g)[bad]}, the declaration says {w[bad]} "
                    f"(largest relative error {error:.2g})",
                )
            )
    return Verdict(tuple(problems), (label(outputs),), f"on the device, largest relative error {worst:.2g}", worst)


def tolerance(dtype: str) -> float:
    """Relative error (to the largest element) that rounding explains."""
    known = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
    return known.get(dtype, 0.0 if DTYPES[dtype].kind != "f" else 2.0 ** (1 - DTYPES[dtype].digits))


def _error(got: np.ndarray, want: np.ndarray, dtype: str) -> float:
    if got.shape != want.shape:
        return float("inf")
    if DTYPES[dtype].kind != "f":
        return 0.0 if np.array_equal(got, want) else float("inf")
    if got.size == 0:
        return 0.0
    g, w = got.astype(np.float64), want.astype(np.float64)
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    if same.all():
        return 0.0
    finite = w[np.isfinite(w)]
    scale = max(float(np.abs(finite).max(initial=0.0)), 1e-30)
    apart = np.abs(g - w)[~same]
    return float("inf") if not np.isfinite(apart).all() else float(apart.max()) / scale


def _first_difference(got: np.ndarray, want: np.ndarray) -> tuple[int, ...]:
    if got.shape != want.shape or want.ndim == 0:
        return ()
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.nan_to_num(got.astype(np.float64), nan=1e300) - want.astype(np.float64))
    if not apart.any():  # beyond 2^53, different whole numbers are the same double
        apart = got != want
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), want.shape))
