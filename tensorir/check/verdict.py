"""check: what was shown, on which shapes, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tensorir.check.definition import differs_as_class
from tensorir.check.equivalence import (
    awkward_shapes,
    axes_of,
    label,
    need_own_extents,
    over_shapes,
)
from tensorir.codegen.source import Source
from tensorir.errors import CheckError, CompileError, LaunchError, LoweringError, Problem, TensorIRError
from tensorir.expr.program import computes_of
from tensorir.expr.resize import resize
from tensorir.expr.tensor import Tensor
from tensorir.interp.doubles import TOLERANCE, Doubles, opaque_combiners
from tensorir.interp.magnitude import EXACT_CALLS, rounds_inside, rounds_last
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import arguments_of, evaluate, random_arguments, results_of
from tensorir.interp.uses import bitcast_floats, divisors, gather_limits, reads_bits, shift_amounts
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Call, Cast, Expr, Loop, Reduce
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

SOUND = "no race, no uninitialised read, no access out of bounds"
EXACT = f"exact over the field of 2^31 - 1, {SOUND}"


def check(s: Any, level: str = "fast", shapes: Any = None, seed: int = 0, limit_s: float | None = None) -> Verdict:
    """Whether the schedule ``s`` (``api.Schedule``) computes what its tensors declare; see ``Schedule.check``."""
    if level not in LEVELS:
        raise CheckError(Problem("check.level", f"there is no level {level!r}", hint=f"one of {', '.join(LEVELS)}"))
    if s.outputs != s.definition and (why := differs_as_class(s.definition, s.outputs, s.allowed_error)):
        problem = Problem("check.definition", f"what the schedule computes is another definition: {why}")
        return Verdict((problem,), (label(s.definition),), "sampled elements of both definitions, in exact arithmetic")
    if level == "device":
        return on_device(s, seed, limit_s=limit_s)
    if level == "emulate":
        return emulated(s, shapes, seed)
    if s.edited is not None:
        raise CheckError(
            Problem("check.edited-text", "edited text has no loop tree to interpret", hint="s.check(level='device')")
        )
    wanted = _shapes(s, shapes)
    try:
        problems, shown, numbers = over_shapes(s, wanted, seed)
    except LoweringError as e:
        return Verdict(e.problems, (), EXACT)
    return Verdict(tuple(problems), tuple(shown), _how(s.outputs, numbers))


def _how(outputs: Sequence[Tensor], numbers: Numbers) -> str:
    """How the interpreter showed equality, in words."""
    if not isinstance(numbers, Doubles):
        return EXACT
    names = ", ".join(f"that of {op} calls {' and '.join(calls)}" for op, calls in opaque_combiners(outputs).items())
    return (
        f"equal in double precision within {TOLERANCE:g} of the largest result, not exact: functions are opaque in the "
        f"field of 2^31 - 1, where exp(a) exp(b) is not exp(a + b) and no combiner that calls one is associative "
        f"({names}); {SOUND}"
    )


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


def on_device(s: Any, seed: int = 0, device: Any = None, limit_s: float | None = None) -> Verdict:
    """Build and run ``s`` on a device, between canaries, on small whole numbers, against the declarations.

    limit_s: seconds for text that has not passed before, which runs in another process
    """
    arrays = arguments_for(s, seed)
    try:
        source, got, problems = s._run_guarded(arrays, device, limit_s)
    except LaunchError as e:
        return Verdict(e.problems, (label(s.outputs),), "on the device")
    except TensorIRError as e:
        return Verdict(e.problems, (), "not built")
    if problems:
        return Verdict(tuple(problems), (label(s.outputs),), "on the device")
    results = results_of(got)
    short = any(kind in name for name in source.instructions for kind in ("e4m3", "e5m2"))
    exact = not short and exactly(s.outputs, source, arrays)  # Hopper keeps some 14 bits of sums of these
    return compare_results(s.outputs, results, evaluate(s.outputs, arrays), exact)


def arguments_for(s: Any, seed: int = 0) -> list[np.ndarray]:
    """Inputs for a run of ``s``: small whole numbers, and what its ``specialize`` asks for."""
    return random_arguments(s.outputs, seed, conditions=_conditions(s))


def emulated(s: Any, shapes: Any, seed: int) -> Verdict:
    """The CUDA text of ``s`` on the CPU: on awkward shapes, or as it stands when the user edited it."""
    from tensorir.check.emulate import emulate

    if too_much := _beyond_limits(s):
        return Verdict(too_much, (), "not built")
    alone = s.edited is not None  # on its own shape only, where each input has its turn to be the largest
    shown: list[str] = []
    for n, (one, source) in enumerate(_on_shapes(s, shapes)):
        few = random_arguments(one.outputs, seed, conditions=_conditions(one))
        shown.append(label(one.outputs))
        # where tiles are copied by themselves, they land as late as they may, and once more at any time
        for turn, eager in enumerate((False, True) if any(k.maps for k in source.kernels) else (False,) * (1 + alone)):
            arrays = few if _conditions(one) else larger(one.outputs, source, few, seed, n + turn)
            if wrong := _run_text(one, source, arrays, seed, eager):
                return Verdict(wrong, tuple(shown), "CUDA text on the CPU")
        for other in with_other_sizes(one.outputs, few):
            if wrong := _run_text(one, source, other, seed):
                return Verdict(wrong, tuple(shown), "CUDA text on the CPU, with small or large numbers")
        for far in with_infinities(one.outputs, few):
            run = emulate(source, far, seed, limit_s=_emulated_s(one.outputs))
            spread = infinities_spread(one.outputs, run.outputs, far)
            if told := run.problems or ((spread,) if spread else ()):
                return Verdict(told, tuple(shown), "CUDA text on the CPU, with infinities among its inputs")
    return Verdict((), tuple(shown), "the CUDA text, run on the CPU: exact, no race, no access out of bounds")


def _run_text(s: Any, source: Source, arrays: list[np.ndarray], seed: int, eager: bool = False) -> tuple[Problem, ...]:
    """What is wrong with one run of the text."""
    from tensorir.check.emulate import emulate

    run = emulate(source, arrays, seed, eager, _emulated_s(s.outputs))
    exact = exactly(s.outputs, source, arrays)
    return run.problems or compare_results(s.outputs, run.outputs, evaluate(s.outputs, arrays), exact).problems


def _emulated_s(outputs: tuple[Tensor, ...]) -> float:
    """Seconds of processor time for a run of the text: a minute, and 5 us for each term of the definition, which takes
    0.1 us in the kernels of the operators.
    """
    terms = 0
    for op in computes_of(outputs):
        reduced = [e for b in op.bodies for e in find(b, Reduce)]
        terms += prod(op.extents) * (1 + sum(prod(v.extent for v in e.axes) for e in reduced))
    return 60.0 + 5e-6 * terms


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


def with_other_sizes(outputs: tuple[Tensor, ...], arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The inputs with floats of another size, where whole numbers of a middling size do not show what becomes of them:
    sixteenths for functions such as ``erf`` and ``exp``, which are 0, 1 or their argument of most sums; for types of
    few exponents what is too small for normal numbers, and too large for any.
    """
    calls = any(c.fn not in EXACT_CALLS for op in computes_of(outputs) for b in op.bodies for c in find(b, Call))
    given = arguments_of(outputs)
    narrow = [_few_exponents(t.dtype) for t in outputs]
    far = _far(outputs, arrays)

    def scaled(factors: Sequence[float]) -> list[np.ndarray]:
        return [np.asarray(x * k, x.dtype) if f else x for x, f, k in zip(arrays, far, factors, strict=True)]

    if calls:
        yield scaled([1 / 16] * len(arrays))
    if any(narrow):
        most = [64.0 if DTYPES[a.dtype].bits == 8 else 1024.0 for a in given]
        yield scaled([1 / m for m in most])
        if rounds_last(outputs, scaled(most)):  # else what is nearly too large may be so or not
            yield scaled(most)


def _few_exponents(dtype: str) -> bool:
    kind = DTYPES[dtype]
    return kind.kind == "f" and kind.bits - kind.digits < DTYPES["float32"].bits - DTYPES["float32"].digits


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


def compare_results(outputs: tuple[Tensor, ...], got: Any, want: Any, exact: bool = False) -> Verdict:
    """Device results against reference results: equal where whole numbers make both exact, else within rounding.

    exact: floats are equal to the last bit too (``rounds_last``). Else one of fewer digits than float32 has may be the
           next one to what it should be, for what is rounded as it is stored; where such are made on the way to results
           as well, only the largest one's digits count
    """
    problems, worst = [], 0.0
    inside = rounds_inside(outputs)
    for t, g, w in zip(outputs, got, want, strict=True):
        found = np.asarray(g)
        apart, scale = _apart(found, w, t.dtype), _scale(w)
        worst = max(worst, float(apart.max(initial=0.0)) / scale)
        if np.any(apart > (0.0 if exact else _allowed(t.dtype, w, scale, inside))):
            bad = _first_difference(found, w)
            problems.append(
                Problem(
                    "check.wrong-result",
                    f"{t.name}{list(bad)} is {found[bad]}, the declaration says {w[bad]} "
                    f"(largest relative error {worst:.2g})",
                )
            )
    return Verdict(tuple(problems), (label(outputs),), f"on the device, largest relative error {worst:.2g}", worst)


def exactly(outputs: tuple[Tensor, ...], source: Source, arrays: Sequence[Any]) -> bool:
    """Whether a right kernel gives the reference's results to the last bit: its instructions do not round terms."""
    cut = any("tf32" in name for name in source.instructions)
    return rounds_last(outputs, arrays, 11 if cut else 24)


def tolerance(dtype: str) -> float:
    """Relative error (to the largest element) that rounding explains."""
    known = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
    return known.get(dtype, 0.0 if DTYPES[dtype].kind != "f" else 2.0 ** (1 - DTYPES[dtype].digits))


def larger(
    outputs: tuple[Tensor, ...], source: Source, arrays: list[np.ndarray], seed: int = 0, turn: int = 0
) -> list[np.ndarray]:
    """Inputs of whole numbers, in one as large as they can be with results that are rounded once and finite: what is
    rounded on the way, or another way, is seen. ``arrays`` where there are none.

    turn: which input it is
    """
    rng = np.random.default_rng(seed)
    fixed = {*gather_limits(outputs), *divisors(outputs), *shift_amounts(outputs), *bitcast_floats(outputs)}
    free = [n for n, (x, a) in enumerate(zip(arrays, arguments_of(outputs), strict=True))
            if np.size(x) > 1 and a not in fixed and DTYPES[a.dtype].kind in "fiu"]  # fmt: skip
    whole = all(DTYPES[a.dtype].kind != "f" for a in (*arguments_of(outputs), *outputs))  # these wrap around
    if whole and reads_bits(outputs):
        return arrays  # all bits are there
    for most in (1 << n for n in range(10 if whole else 15, 3, -1)) if free else ():
        tried = list(arrays)
        for n in free:
            tried[n] = _whole(rng, arrays[n], most if n == free[turn % len(free)] else 8)
        if whole or (exactly(outputs, source, tried) and _finite(evaluate(outputs, tried))):
            return tried
    return arrays


def _finite(results: Sequence[np.ndarray]) -> bool:
    return all(np.isfinite(np.asarray(w, np.float64)).all() for w in results)


def _whole(rng: np.random.Generator, like: np.ndarray, most: int) -> np.ndarray:
    """Whole numbers up to ``most`` of the type of ``like``, as many; some as they are where they may be lengths."""
    kind = np.dtype(like.dtype)
    if kind.kind in "iu":
        most = min(most, int(np.iinfo(kind).max))
    made = rng.integers(0 if kind.kind == "u" else -most, most + 1, like.shape).astype(kind)
    return np.where(rng.random(like.shape) < 0.5, like, made) if kind.kind in "iu" and kind.itemsize > 1 else made


def _allowed(dtype: str, want: np.ndarray, scale: float, inside: bool) -> Any:
    """How far each element may be from ``want`` by rounding. inside: not only of what is stored"""
    kind = DTYPES[dtype]
    if inside or not kind.widened:
        return tolerance(dtype) * scale
    least = 2.0 ** (2 - 2 ** (kind.bits - kind.digits - 1))  # normal number
    size = np.nan_to_num(np.abs(np.asarray(want, np.float64)), posinf=0.0)
    return np.maximum(size, least) * 2.0 ** (1 - kind.digits) + tolerance("float32") * scale


def _scale(want: np.ndarray) -> float:
    """The largest number of ``want``."""
    w = np.abs(np.asarray(want, np.float64))
    return max(float(w[np.isfinite(w)].max(initial=0.0)), 1e-30)


def _apart(got: np.ndarray, want: np.ndarray, dtype: str) -> np.ndarray:
    """How far each element is off: infinitely where only one is a number, and where whole numbers differ."""
    if got.shape != want.shape:
        return np.array([np.inf])
    if DTYPES[dtype].kind != "f":
        return np.where(np.equal(got, want), 0.0, np.inf)
    g, w = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where((g == w) | (np.isnan(g) & np.isnan(w)), 0.0, np.abs(g - w))
    return np.where(np.isnan(apart), np.inf, apart)


def _first_difference(got: np.ndarray, want: np.ndarray) -> tuple[int, ...]:
    if got.shape != want.shape or want.ndim == 0:
        return ()
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.nan_to_num(got.astype(np.float64), nan=1e300) - want.astype(np.float64))
    if not apart.any():  # beyond 2^53, different whole numbers are the same double
        apart = got != want
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), want.shape))
