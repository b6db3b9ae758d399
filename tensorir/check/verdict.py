"""``check``: compares a schedule with its declarations; the Verdict says how, on which shapes, and any problems."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tensorir.check.definition import differs_as_class
from tensorir.check.designed_inputs import hard_inputs, runs
from tensorir.check.detection import not_declared, not_run, undefined
from tensorir.check.equivalence import (
    awkward_shapes,
    axes_of,
    definition_at,
    label,
    lowered_as_defined,
    need_own_extents,
    over_shapes,
    rolled_extremes,
)
from tensorir.check.exact_inputs import TextRun, exactly, free_inputs, short
from tensorir.check.outliers import infinities_spread, where_skipped
from tensorir.check.resize import AtDims, dim_values, module_at, schedule_at
from tensorir.check.same_bits import LoweredBits, different, expected
from tensorir.check.tolerance import tolerance
from tensorir.codegen.source import Source
from tensorir.errors import CheckError, CompileError, LaunchError, LoweringError, Problem, TensorIRError
from tensorir.errors.shown import Shown, few_lines
from tensorir.expr.program import dims_of, work_of
from tensorir.expr.reread import with_dims
from tensorir.expr.tensor import Tensor
from tensorir.interp.doubles import TOLERANCE, Doubles, opaque_combiners
from tensorir.interp.magnitude import narrow_sums, rounds_inside
from tensorir.interp.numbers import Field, Numbers
from tensorir.interp.reference import evaluate, random_arguments, results_of
from tensorir.interp.rounding import rounding_of
from tensorir.interp.whole import Whole, joins_by_order
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.marks import Skipped, Versions
from tensorir.ir.structure import identical
from tensorir.ir.tree import Axis, Const, Expr, Loop, Program, Stage, Stmt, Var
from tensorir.ir.visit import find
from tensorir.lower.kernel import Module
from tensorir.lower.lowered import lowered
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

if TYPE_CHECKING:
    from tensorir.check.emulate import Emulated


LEVELS = ("fast", "device", "emulate")


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """Outcome of a check; true if there are no problems (a text that could not be judged has one).

    shapes: labels of the tested shapes;  kind: method of comparison, in words
    max_error: largest error of a device's results, relative to the largest element; 0.0 for other levels
    """

    problems: tuple[Problem, ...]
    shapes: tuple[str, ...]
    kind: str
    max_error: float = 0.0

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        if self.problems:
            judged = any(p.code not in NOT_JUDGED for p in self.problems)
            return ("wrong: " if judged else "not judged: ") + "\n".join(map(str, self.problems))
        return f"ok: {self.kind}; shapes: {'; '.join(self.shapes)}"

    def __repr__(self) -> str:
        return few_lines(f"<Verdict {self}>")


EMULATED_SHAPES = 4
"""Shapes that are run as text: each costs a compilation."""

NOT_JUDGED = ("emulate.not-run", "emulate.unknown-function")
"""Problems of a text that nothing was shown of, right or wrong: parts that only a device runs."""
SAME_BITS = ", bit by bit the lowered program (in the emulator's arithmetic; a GPU's may differ)"
NO_BITS = "; its bits are undetermined (atomic sums of floats, or integers of floats beyond them) and not compared"
CANCELLED_SHARE = 1 / 64
"""Of what rounding can do at most to a sum: what it does where terms are rounded up and down."""
NO_FAULTS = "no race, no uninitialised read, no access out of bounds"


def check(s: Any, level: str = "fast", shapes: object = None, seed: int = 0, limit_s: float | None = None) -> Verdict:
    """Return a Verdict, true if the schedule ``s`` (``api.Schedule``) computes its declarations; see
    ``Schedule.check``. ``"device"`` ignores ``shapes``. Errors of lowering and compilation are problems of the Verdict,
    but for ``emulate.compile`` (CompileError), of the C++ compiler of ``"emulate"``.

    Raises CheckError ``check.level`` for a level outside ``LEVELS``, ``check.edited-text`` for ``"fast"`` on edited
    text, ``check.unknown-axis`` for an axis name in ``shapes`` that ``s`` lacks.
    """
    if level not in LEVELS:
        raise CheckError(Problem("check.level", f"there is no level {level!r}", hint=f"one of {', '.join(LEVELS)}"))
    if not identical(s.outputs, s.definition) and (why := differs_as_class(s.definition, s.outputs, s.inexact_by)):
        problem = Problem("check.definition", f"the schedule computes something other than its definition: {why}")
        return Verdict((problem,), (label(s.definition),), "sampled elements of both definitions, in exact arithmetic")
    if level == "device":
        return on_device(s, seed, limit_s=limit_s)
    if level == "emulate":
        return emulated(s, shapes, seed, limit_s)
    if s.edited is not None:
        raise CheckError(
            Problem("check.edited-text", "edited text has no loop tree to interpret", hint="s.check(level='device')")
        )
    wanted = _shapes(s, shapes)
    try:
        lowered(s)  # other extents may fit the target where its own do not
        problems, shown, numbers = over_shapes(s, wanted, seed)
    except (LoweringError, CompileError) as e:
        return Verdict(e.problems, (), _how(s, Field()))
    return Verdict(tuple(problems), tuple(shown), _how(s, numbers))


def _how(s: Any, numbers: Numbers) -> str:
    """Description of the arithmetic in which the interpreter compared ``s``."""
    if isinstance(numbers, Field):
        opaque = f"; {' and '.join(sorted(numbers.opaque))} as if random" if numbers.opaque else ""
        return f"exact over {numbers.title}, {NO_FAULTS}{opaque}"
    if isinstance(numbers, Whole):
        return f"exact over {numbers.title}, {NO_FAULTS}"
    combiners, ordered = opaque_combiners(s.began_with), rolled_extremes(s)
    if ordered:
        return (
            f"equal in double precision within {TOLERANCE:g} of the median result, not exact: the field has no order "
            f"that repairs of {' and '.join(ordered)} would keep; {NO_FAULTS}"
        )
    if not combiners and (joined := joins_by_order(s.began_with)):
        return (
            f"equal in double precision within {TOLERANCE:g} of the median result, not exact: the field has no order "
            f"that the combiner of {' and '.join(joined)} would keep; {NO_FAULTS}"
        )
    if not combiners:
        return (
            f"equal within {s.inexact_by:g} of the largest result, the bound of its algorithm; {NO_FAULTS}{untested(s)}"
        )
    names = ", ".join(f"that of {op} calls {' and '.join(calls)}" for op, calls in combiners.items())
    return (
        f"equal in double precision within {TOLERANCE:g} of the median result, not exact: functions are opaque in the "
        f"field, and no combiner that calls one is associative there ({names}); {NO_FAULTS}"
    )


def _shapes(s: Any, shapes: Any) -> list[Any]:
    """[{axis variable: extent}]: the user's ``shapes``, dicts from axis names to extents (``C.i``, or ``i`` for all
    axes of that name); awkward shapes for None.

    Raises CheckError ``check.unknown-axis``.
    """
    if shapes is None:
        return awkward_shapes(s)
    axes = axes_of(s.began_with)
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


def on_device(s: Any, seed: int = 0, device: object = None, limit_s: float | None = None) -> Verdict:
    """Verdict of building ``s`` and running it on a device, with guard bytes around arrays, in comparison with the
    declarations: on small integers, and on sparse ones with scalars of full significand; with symbolic dims, at several
    of their values. Errors become problems of the Verdict.

    limit_s: seconds for the run in a separate process, for text that has not passed before
    """
    if dims_of(s.outputs):
        return _on_device_at_dims(s, seed, device, limit_s)
    run, runs, shown = TextRun(arguments_for(s, seed)), list[Verdict](), (label(s.began_with),)
    for _ in range(2):
        found, source = _run_on_device(s, s, run, shown, device, limit_s)
        runs.append(found)
        if source is None or not found:
            break
        run = short(s.outputs, source, _conditions(s), seed + 1)
    return _worst(s, runs)


def _on_device_at_dims(s: Any, seed: int, device: object, limit_s: float | None) -> Verdict:
    """Verdict on runs of ``s`` on a device at several values of its symbolic dims, compared with the declarations;
    stops at the first problem.
    """
    runs, shown = list[Verdict](), list[str]()
    for n, extents in enumerate(awkward_shapes(s)):
        at = schedule_at(s, dim_values(s.began_with, extents))
        if label(at.outputs) in shown:
            continue
        shown.append(label(at.outputs))
        run = TextRun(random_arguments(at.outputs, seed + n, conditions=_conditions(s)))
        runs.append(_run_on_device(s, at, run, tuple(shown), device, limit_s)[0])
        if not runs[-1]:
            break
    return _worst(s, runs)


def _run_on_device(
    s: Any, at: Any, run: TextRun, shown: tuple[str, ...], device: object, limit_s: float | None
) -> tuple[Verdict, Source | None]:
    """(verdict on one run of ``s`` on a device, compared with the declarations of ``at``; its text, None if it did not
    run to its end).
    """
    try:
        source, got, problems = s._run_guarded(run.arrays, device, limit_s)
    except LaunchError as e:
        return Verdict(e.problems, shown, "on the device"), None
    except TensorIRError as e:
        return Verdict(e.problems, (), "not built"), None
    if problems:
        return Verdict(tuple(problems), shown, "on the device"), None
    if any(kind in name for name in source.instructions for kind in ("e4m3", "e5m2")):
        run = replace(run, exact=False)  # Hopper keeps some 14 bits of sums of these
    return replace(_compared(at, source, run, results_of(got)), shapes=shown), source


def _worst(s: Judged, runs: Sequence[Verdict]) -> Verdict:
    """The last of ``runs`` if it has problems, else the one of the largest error, with the shapes of all and
    ``untested`` properties.
    """
    if not runs[-1]:
        return runs[-1]
    found = max(runs, key=lambda v: v.max_error)
    return replace(found, shapes=runs[-1].shapes, kind=found.kind + untested(s))


def arguments_for(s: BaseSchedule, seed: int = 0) -> list[np.ndarray]:
    """Inputs for running ``s``, in order of declaration: small random integers, some of which satisfy each condition of
    ``specialize`` and ``skip``. Symbolic dims are small primes.
    """
    outputs = with_dims(s.outputs, dim_values(s.outputs, {}))
    return random_arguments(outputs, seed, conditions=_conditions(s))


def emulated(s: Any, shapes: object, seed: int, limit_s: float | None = None) -> Verdict:
    """Verdict on the CUDA text of ``s``, run on the CPU at up to ``EMULATED_SHAPES`` awkward shapes, edited text at its
    own shape; stops at the first problem. Errors of lowering are problems. A CompileError of the C++ compiler is
    raised, unless the text has parts that the emulator lacks.

    limit_s: seconds of processor time for each run; None: by the number of terms of the declaration
    """
    target = _cuda(s)
    try:
        lowered(s, target)
    except (LoweringError, CompileError) as e:
        return Verdict(e.problems, (), "not built")
    alone = s.edited is not None  # on the shape of ``s`` only, where each input has its turn to be the largest
    emitted = s.emitted("cuda" if s.target.language != "cuda" else None).text if alone else ""
    beside = alone and s.inexact_by is None and emitted != s.source("cuda")
    shown, undetermined = list[str](), False
    built = _on_shapes(s, shapes, target)
    for n in range(EMULATED_SHAPES):
        try:
            if (made := next(built, None)) is None:
                break
        except (LoweringError, CompileError) as e:
            return Verdict(e.problems, tuple(shown), "not built")
        one, source, module = made
        shown.append(label(one.began_with))
        if told := undefined(source.text, target):
            return Verdict(told, tuple(shown), "CUDA text, read")
        bits = [] if module is None else expected_bits(one, module, seed + n)
        undetermined |= not bits
        for run in runs(one.outputs, source, _conditions(one), seed, n, bool(bits)):
            try:
                wrong = _run_text(one, source, run, seed, limit_s)
            except CompileError as error:
                if told := not_run(source.text) or not_declared(source.text, error.log):
                    return Verdict(told, tuple(shown), "CUDA text, read")
                raise
            if wrong:
                return Verdict(wrong, tuple(shown), f"CUDA text on the CPU{run.about}")
        if told := not_run(source.text):
            return Verdict(told, tuple(shown), "CUDA text on the CPU")
        if module is not None:
            if wrong_meaning := lowered_as_defined(s, module, one.began_with, seed + n):
                return Verdict((wrong_meaning,), tuple(shown), "the lowered program of the CUDA text")
            if found := other_bits(one, source, module, bits, seed + n, limit_s):
                return Verdict(found[0], tuple(shown), f"CUDA text on the CPU{found[1]}")
        if beside and not n and (found := _beside_emitted(one, source, emitted, seed, limit_s)):
            return Verdict(found[0], tuple(shown), f"CUDA text on the CPU{found[1]}")
    compared = "" if alone else NO_BITS if undetermined else SAME_BITS
    kind = f"the CUDA text, run on the CPU: exact, no race, no access out of bounds{compared}{untested(s)}"
    return Verdict((), tuple(shown), kind)


def _cuda(s: Any) -> Target:
    """The CUDA target for the text: the schedule's own, or the default one for schedules of other languages."""
    return s.target if s.target.language == "cuda" else Target.parse("cuda")


def expected_bits(s: BaseSchedule | AtDims, module: Module, seed: int) -> list[LoweredBits]:
    """Bits of the lowered CUDA program of ``s`` on arbitrary inputs; [] if not determined."""
    return expected(module, s.outputs, _conditions(s), seed, _cuda(s))


def other_bits(
    s: BaseSchedule | AtDims,
    source: Source,
    module: Module,
    bits: Sequence[LoweredBits],
    seed: int,
    limit_s: float | None,
) -> tuple[tuple[Problem, ...], str] | None:
    """(problems, description of the inputs) for the first of ``bits`` where printed text and lowered program differ;
    None if all are equal.
    """
    limit = _emulated_s(s.outputs) if limit_s is None else limit_s
    for x in bits:
        done = _emulate(source, x.given.arrays, seed, limit_s=limit)
        if problems := done.problems or tuple(filter(None, [different(source, module, done.outputs, x)])):
            return problems, x.given.about
    return None


def _emulate(*args: Any, **options: Any) -> Emulated:
    """Outcome of ``emulate.emulate(*args, **options)``, imported on first use."""
    from tensorir.check.emulate import emulate

    return emulate(*args, **options)


def _run_text(s: Any, source: Source, run: TextRun, seed: int, limit_s: float | None) -> tuple[Problem, ...]:
    """Emulate the text of ``s`` on one test run's inputs; return its problems, () if none."""
    limit = _emulated_s(s.outputs) if limit_s is None else limit_s
    done = _emulate(source, run.arrays, seed, run.eager, limit, run.packed)
    if done.problems:
        return done.problems
    if run.spread:
        spread = infinities_spread(s.outputs, done.outputs, run.arrays)
        return (spread,) if spread else ()
    return _compared(s, source, run, done.outputs, close=True).problems


def _beside_emitted(
    s: Any, source: Source, text: str, seed: int, limit_s: float | None
) -> tuple[tuple[Problem, ...], str] | None:
    """(problems, description of the inputs) for the first inputs on which the edited text of ``source`` is wrong and
    the emitted ``text`` right; None if there are none.
    """
    emitted = replace(source, text=text)
    limit = _emulated_s(s.outputs) if limit_s is None else limit_s
    few = random_arguments(s.outputs, seed, conditions=_conditions(s))
    for arrays, about in hard_inputs(s.outputs, few, free_inputs(s.outputs, few, _conditions(s)), seed):
        with np.errstate(all="ignore"):
            want = evaluate(s.began_with, arrays)
            done, bounds = _emulate(source, arrays, seed, limit_s=limit), rounding_of(s.outputs, arrays, _cuda(s))
            numbers = all(np.isfinite(np.asarray(x, np.float64)).all() for x in arrays)
            exact = numbers and exactly(s.outputs, source, arrays, each=True)
            sure = [np.full(np.shape(w), True) for w in want] if exact else _sure(s, arrays, want)

            def right(got: Sequence[Any], want: Any, exact: bool = exact, bounds: Any = bounds) -> Verdict:
                return compare_results(s.outputs, got, want, exact, bounds)

            asked = [np.where(ok, w, g) for ok, w, g in zip(sure, want, done.outputs, strict=True)]
            if not done.problems and right(done.outputs, asked):
                continue
            other = _emulate(emitted, arrays, seed, limit_s=limit)
            if other.problems:
                continue
            if done.problems:
                return done.problems, about
            wrong = _differences(s.outputs, other.outputs, want, exact, bounds)
            asked = [np.where(off, g, w) for (_, off), w, g in zip(wrong, asked, done.outputs, strict=True)]
            if not (found := right(done.outputs, asked)):
                return found.problems, about
    return None


def _sure(s: Any, arrays: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One boolean mask per output: true where the reference ``want`` is accurate, being equal to results in double
    precision up to its type's precision. Overflow must give infinity.
    """
    out = []
    for t, w, e in zip(s.outputs, want, evaluate(s.began_with, arrays, Doubles()), strict=True):
        kind = DTYPES[t.dtype]
        digits = min(8 if kind.widened else 16, kind.digits - 1) if kind.kind == "f" else 0
        close = _apart(np.asarray(e), np.asarray(w), t.dtype) <= 2.0**-digits * _scale(w)
        if kind.kind == "f":
            beyond = np.isfinite(e) & (np.abs(np.asarray(e)) > (1 + 2.0**-digits) * kind.largest)
            close |= beyond & (np.asarray(w) == np.copysign(np.inf, e))
        out.append(close)
    return out


def _compared(s: Any, source: Source, run: TextRun, got: Sequence[Any], close: bool = False) -> Verdict:
    """Verdict on one run's results ``got`` against the definition, evaluated on the inputs as given or as instructions
    round them.

    close: True: bound the error of each element by its own rounding; False: by the largest element
    """
    outputs, error = s.outputs, s.allowed_error or 0.0
    exact = exactly(outputs, source, run.arrays) if run.exact is None else run.exact
    rounds = any(kind in name for name in source.instructions for kind in ("tf32", "e4m3", "e5m2"))
    bounds = rounding_of(outputs, run.arrays, _cuda(s)) if close and not exact and not rounds else None
    want: Sequence[np.ndarray] = evaluate(s.began_with, run.arrays)
    if any(Skipped.of(x).unless for x in find(s.program.body, Loop)):
        want = where_skipped(s.began_with, got, want, run.arrays)
    found = compare_results(outputs, got, want, exact, bounds, error)
    if found or run.read is None:
        return found
    rounded = compare_results(outputs, got, evaluate(s.began_with, run.read), exact, error=error)
    return rounded if rounded else found


def _emulated_s(outputs: tuple[Tensor, ...]) -> float:
    """Default time limit of an emulated run, in seconds: 60, plus 5 us per term of the definition (0.1 us in real
    kernels).
    """
    return 60.0 + 5e-6 * work_of(outputs)


def _conditions(s: Any) -> list[Expr]:
    """Conditions on values of inputs, from the schedule's ``specialize`` and ``skip`` steps."""
    return [c for x in find(s.program.body, Loop) for c in (*Versions.of(x).where, *Skipped.of(x).unless)]


def _on_shapes(s: Any, shapes: Any, target: Target) -> Iterator[tuple[Any, Source, Module | None]]:
    """Yield (schedule, CUDA text, lowered kernels) on the first ``EMULATED_SHAPES`` awkward shapes on which the trace
    replays; at the schedule's own shape if there are none or the text is edited. Kernels are None for edited text.
    """
    language = "cuda" if s.target.language != "cuda" else None
    made, as_it_is = 0, functools.cache(lambda: s.emitted(language))
    if s.edited is None:
        for extents in _shapes(s, shapes):
            try:
                dims, outputs = dim_values(s.began_with, extents), definition_at(s, extents)
                again = s if outputs is s.began_with else type(s)(outputs, s.target).replay(s.trace)
            except TensorIRError:
                continue
            try:
                source = as_it_is() if again is s else again.emitted(language)
                module = module_at(lowered(again, target), dims)
                if dims:
                    again = schedule_at(again, dims)
                    source = source.at({v.name: n for v, n in dims.items()})
            except LoweringError as e:
                need_own_extents(s, e)
                continue
            except CompileError:
                if again is s:
                    raise
                continue  # a target may have no room for other extents
            made += 1
            yield again, source, module
            if made == EMULATED_SHAPES:
                return
    if not made:
        source = as_it_is()
        text = source if s.edited is None else replace(source, text=s.source("cuda"))
        for dims in _values(s, shapes):
            one = schedule_at(s, dims) if dims else s
            of_text = module_at(lowered(s, target), dims) if s.edited is None else None
            yield one, text.at({v.name: n for v, n in dims.items()}) if dims else text, of_text


def _values(s: Any, shapes: object) -> list[dict[Var, int]]:
    """[{dim: value}] at which to run a text of fixed constant extents, at most ``EMULATED_SHAPES``; [{}] without
    symbolic dims.
    """
    found = [dim_values(s.began_with, extents) for extents in (_shapes(s, shapes) if dims_of(s.outputs) else [{}])]
    return [dims for n, dims in enumerate(found) if dims not in found[:n]][:EMULATED_SHAPES]


def compare_results(
    outputs: tuple[Tensor, ...], got: Any, want: Any, exact: bool = False, bounds: Sequence[Any] | None = None,
    error: float = 0.0,
) -> Verdict:  # fmt: skip
    """Compare device results with reference results: bit-equal if both are exact, else within rounding.

    exact:  floats must be bit-equal (``rounds_last``). Else a result with fewer significand bits than float32 may be
            the neighbouring number, if rounded only when stored. If intermediate results have such a type too,
            tolerance is relative to the largest element, in sums to the largest sum
    bounds: allowed difference per element, if known (``rounding_of``)
    error:  allowed error of an algorithm relative to the largest element, if larger than rounding's
    """
    problems, worst = [], 0.0
    differences = _differences(outputs, got, want, exact, bounds, error)
    for t, g, w, (apart, over) in zip(outputs, got, want, differences, strict=True):
        found = np.asarray(g)
        worst = max(worst, float(apart.max(initial=0.0)) / _scale(w))
        if np.any(over):
            bad = _first_difference(found, w, over)
            problems.append(
                Problem(
                    "check.wrong-result",
                    f"{t.name}{list(bad)} is {found[bad]}, the declaration says {w[bad]} "
                    f"(largest relative error {worst:.2g})",
                )
            )
    kind = f"on the device, largest relative error {worst:.2g}{no_numbers(outputs, want)}"
    return Verdict(tuple(problems), (label(outputs),), kind, worst)


def _differences(
    outputs: tuple[Tensor, ...], got: Any, want: Any, exact: bool, bounds: Sequence[Any] | None, error: float = 0.0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each output: (absolute differences, boolean mask of those larger than rounding explains); see
    ``compare_results``.
    """
    inside, out = rounds_inside(outputs), []
    for t, g, w, most in zip(outputs, got, want, bounds or [np.inf] * len(outputs), strict=True):
        sums, scale = narrow_sums(t), _scale(w)
        decided = bool(sums) and not exact and DTYPES[t.dtype].kind in "iu"  # a whole number by what is rounded
        apart = _apart(np.asarray(g), w, "float64" if decided else t.dtype)
        # sums may cancel: what is left of them says nothing of their digits
        lost = np.where(np.isfinite(most), most, 0.0) * (CANCELLED_SHARE if sums else 0.0)
        least = max(error, *map(tolerance, sums), 0.0) * scale + decided
        allowed = np.minimum(np.maximum(_allowed(t.dtype, w, scale, inside), np.maximum(least, lost)), most)
        out.append((apart, apart > (0.0 if exact else allowed)))
    return out


def _allowed(dtype: str, want: np.ndarray, scale: float, inside: bool) -> Any:
    """Absolute error that rounding allows for elements of ``want``.

    scale: largest absolute value;  inside: True if intermediate values have a narrow type too
    """
    kind = DTYPES[dtype]
    if inside or not kind.widened:
        return tolerance(dtype) * max(scale, kind.normal)
    size = np.nan_to_num(np.abs(np.asarray(want, np.float64)), posinf=0.0)
    return np.maximum(size, kind.normal) * 2.0 ** (1 - kind.digits) + tolerance("float32") * scale


def _scale(want: np.ndarray) -> float:
    """Largest finite absolute value of ``want``, at least 1e-30."""
    w = np.abs(np.asarray(want, np.float64))
    return max(float(w[np.isfinite(w)].max(initial=0.0)), 1e-30)


def _apart(got: np.ndarray, want: np.ndarray, dtype: str) -> np.ndarray:
    """Absolute differences of elements: infinite if just one of two floats is finite; 0 or infinite for integers; [inf]
    if shapes differ.
    """
    if got.shape != want.shape:
        return np.array([np.inf])
    if DTYPES[dtype].kind != "f":
        same = got.view(np.uint8) == want.view(np.uint8) if got.dtype == want.dtype == bool else np.equal(got, want)
        return np.where(same, 0.0, np.inf)
    g, w = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where((g == w) | (np.isnan(g) & np.isnan(w)), 0.0, np.abs(g - w))
    return np.where(np.isnan(apart), np.inf, apart)


def _first_difference(got: np.ndarray, want: np.ndarray, over: np.ndarray) -> tuple[int, ...]:
    """Index of the element with the largest error among those over tolerance; () for scalars or mismatched shapes."""
    if got.shape != want.shape or want.ndim == 0:
        return ()
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.nan_to_num(got.astype(np.float64), nan=1e300) - np.nan_to_num(want.astype(np.float64)))
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(over, apart, -1.0))), want.shape))


# What a check that found nothing wrong did not look at, in words.


class Judged(Protocol):
    """Attributes of a schedule that descriptions of verdicts read."""

    @property
    def edited(self) -> str | None: ...
    @property
    def program(self) -> Program: ...
    @property
    def inexact_by(self) -> float | None: ...


def untested(s: Judged) -> str:
    """Return a description of properties that no run of ``s`` tests, each part after a semicolon; "" if none.

    Edited text runs only at its own shape, where one-iteration loops never carry a value. An approximate algorithm
    subtracts values it has added, so it is not tested with infinities.
    """
    out = []
    if s.edited is not None and (loops := list(single_carries(s.program.body))):
        out.append(f"; loop of 1 iteration: its carry is not tested ({', '.join(loops)})")
    if s.inexact_by is not None:
        out.append(
            "; an infinity or NaN among the inputs is not tested: its algorithm may spread it over a tile as NaN"
        )
    return "".join(out)


def single_carries(body: Stmt) -> Iterator[str]:
    """Yield names of one-iteration loops of a reduction or scan: a value carried between iterations is never tested
    there.
    """
    for loop in find(body, Loop):
        if isinstance(loop.extent, Const) and loop.extent.value == 1 and _carries(loop):
            yield loop.var.name


def _carries(loop: Loop) -> bool:
    reads = (b for s in find(loop.body, Stage) for i, b in zip(s.iters, s.binds, strict=True) if i.axis is Axis.REDUCE)
    return any(v is loop.var for b in reads for v in find(b, Var))


def no_numbers(outputs: Sequence[Tensor], want: Sequence[np.ndarray]) -> str:
    """Return a note on how many float elements of the reference are infinite or NaN, and so not compared; "" if
    none.
    """
    some = [np.asarray(w, np.float64) for t, w in zip(outputs, want, strict=True) if DTYPES[t.dtype].kind == "f"]
    lost, size = sum(int((~np.isfinite(w)).sum()) for w in some), sum(w.size for w in some)
    return f"; the reference has no number at {lost} of {size} elements" if lost else ""
