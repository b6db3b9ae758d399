"""The measuring side of a worker: runs a candidate kernel, compares its results, times it against a reference
kernel.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorir.api.candidate import Candidate, Progress, failure
from tensorir.api.floats import Floats
from tensorir.api.outputs import SEED, Data, compare, compare_floats, each
from tensorir.check.equivalence import awkward_shapes, definition_at, label
from tensorir.check.resize import dim_values
from tensorir.codec import Json
from tensorir.codegen.source import Source
from tensorir.errors import TensorIRError
from tensorir.expr.reread import with_dims
from tensorir.interp.reference import evaluate
from tensorir.runtime.estimate import Estimate, ReferenceLaunch, look
from tensorir.runtime.guard import LONG_SECONDS
from tensorir.runtime.launch import CompiledProgram
from tensorir.runtime.timing import batch
from tensorir.tune.inputs import arguments, integer_arrays
from tensorir.tune.record import ESTIMATOR, MAX_DRIFT
from tensorir.tune.trial import Outcome

if TYPE_CHECKING:
    from tensorir.api.schedule import Schedule
    from tensorir.expr.tensor import Tensor
    from tensorir.runtime.device import Device

CUTOFF_RATIO = 5.0  # times the best, by some blocks or by launches alone: cut short,
WORTH_S = 0.003  # where what they take tells
SLOW_RATIO = 2.0  # so many times by launches that alternate with the reference's,
BRIEF_S = 0.0003  # which are long against the 30-80 us of one finish,
NOISE_SLOTS = 5  # turns, or slots, that show how noisy the machine is
WHOLE_PHASE = "whole"  # the phase in which all blocks run of what has run in part: it takes no longer than others did
REFERENCE_FILE = "reference.json"  # in the folder of expected outputs: the source of the reference kernel
REFERENCE_PHASE = "beside"  # the phase in which the reference kernel is made
LONG_S = 0.1  # a default that takes so long is no reference
STEADY_RATIO = 1.02  # changes of the reference up to this factor are noise of its own
FIRST_BLOCKS_SHARE = 0.5  # the first blocks may have more to do than the others
TURN_PHASE = "turn"  # the phase in which another process times on the device; its id and what it times follow
SAY_S = 0.5  # between two signs of life: each of them wakes the supervisor, which disturbs
MOST_SAMPLES = 200  # of a time that a record has
UNSTABLE_WIDTH = 0.25  # width of the interval over the median from which a time is flagged


@dataclass(frozen=True)
class ReferenceKernel:
    """The run's reference kernel, timed interleaved with every candidate to measure the machine's drift.

    bound:   its bound launch
    seconds: per call, in its own trial
    """

    bound: Any
    seconds: float

    @property
    def paired(self) -> ReferenceLaunch:
        """Bound launch and seconds per call of the reference, in the form that the estimator takes."""
        return ReferenceLaunch(self.bound, self.seconds)

    def pace(self, length_s: float) -> float:
        """Slowdown factor of the machine since the reference's own trial, measured over calls lasting ``length_s``
        together.
        """
        return batch(self.bound, round(length_s / self.seconds)) / self.seconds

    def shows_slower(self, best_s: float, own: Sequence[float], others: Sequence[float]) -> bool:
        """True if interleaved samples rule out that the candidate reaches ``best_s`` (drift-corrected seconds), with a
        generous margin; False with fewer than ``NOISE_SLOTS`` samples of either.

        Assumptions in favour of the candidate: its fastest sample counts, at the machine's slowest pace among the
        reference's samples; and it may improve on its fastest sample by the ratio of its slowest to its fastest.
        """
        if min(len(own), len(others)) < NOISE_SLOTS:
            return False
        return min(own) ** 2 / max(own) > best_s * max(1.0, max(others) / self.seconds)


def told_pace(drift: float) -> float | None:
    """``drift`` (slowdown factor) if it is worth recording; None within ``STEADY_RATIO`` of 1 (noise) or beyond
    ``MAX_DRIFT`` (implausible), either way.
    """
    changed = abs(math.log(drift)) > math.log(STEADY_RATIO) and 1 / MAX_DRIFT <= drift <= MAX_DRIFT
    return drift if changed else None


class Runner:
    """A candidate compiled for one device: verification, timing, early rejection."""

    def __init__(
        self, device: Device, candidate: Candidate, data: Data, cache: bool, program: CompiledProgram | None = None
    ) -> None:
        self.candidate, self.source, self.data = candidate, candidate.source, data
        self.schedule, self.max_error = candidate.schedule, candidate.max_error
        self.inputs, self.expected = data.fresh()
        self.rounded = False  # whether the inputs are such that sums are
        self.bound: Any = None  # a prebound launch
        self._whole = "run"  # the phase in which all blocks run: WHOLE once nothing is put off to the first launch
        try:
            self.program = program or CompiledProgram(self.source, device, cache=cache)
            candidate.learn(resources=self._resources())
        except TensorIRError as error:
            raise self.candidate.ended(failure(error, "compile")) from None

    def _resources(self) -> Json:
        found = dict(self.program.resources or {})
        return found | {"compile_s": self.program.compile_s, "workspace_bytes": self.source.workspace_bytes}

    def warm(self, progress: Progress) -> None:
        """Trigger lazy work of the runtime by a first launch; raises Refused."""
        progress("run")
        try:
            self.program.warm(*self.inputs)
        except TensorIRError as error:
            raise self.candidate.ended(failure(error, "run")) from None

    def probe(self, best_s: float | None, pace: float, progress: Progress) -> None:
        """Run only some blocks first, and raise Refused (``skipped_slow``) if they show the kernel to be far slower
        than ``best_s``; does nothing if that is None.
        """
        if best_s is None:
            return
        progress("run")
        slow = max(CUTOFF_RATIO * best_s * max(1.0, pace), WORTH_S)
        try:
            probed, warm = self.program.probe(*self.inputs, enough_s=slow / FIRST_BLOCKS_SHARE)
        except TensorIRError as error:
            raise self.candidate.ended(failure(error, "run")) from None
        if FIRST_BLOCKS_SHARE * probed > slow:
            self._refuse_slow(FIRST_BLOCKS_SHARE * probed, best_s, pace)
        self._whole = WHOLE_PHASE if warm else "run"

    def _refuse_slow(self, least: float, best_s: float, pace: float) -> None:
        """Raise Refused with status ``skipped_slow``: the kernel takes at least ``least`` seconds, far more than
        ``best_s``.

        pace: drift factor used for that, noted in the record unless 1
        """
        detail = {"at_least_s": least, "best_s": best_s}
        raise self.candidate.ended(Outcome("skipped_slow", detail, drift=None if pace == 1.0 else pace))

    def verify(self, progress: Progress) -> None:
        """Run with guard bytes around arrays and compare with the reference; raises Refused on any fault."""
        progress(self._whole)
        self.first = self._guarded()
        found = compare(self.source.outputs, self.first, self.expected, self.data.exact, self.max_error)
        if found.where:
            progress(self._whole)
            again = self._guarded()
            status = "wrong_result" if _same(again, self.first) else "nondeterministic"
            self._refuse(status, found.max_err, found.where)
        self.candidate.checked(True, found.max_err, self._shape())

    def _guarded(self) -> list[Any]:
        try:
            got, problems = self.program.run_guarded(*self.inputs)
        except TensorIRError as error:
            raise self.candidate.ended(failure(error, "run")) from None
        if problems:
            self._refuse("wrong_result", None, f"[{problems[0].code}] {problems[0].message}")
        return each(got)

    def _refuse(self, status: str, max_err: float | None, where: str) -> None:
        self.candidate.checked(False, max_err, self._shape())
        detail = {"max_err": max_err, "where": where[:500], "phase": "run"}
        raise self.candidate.ended(Outcome(status, detail))

    def _passed(self, shape: str) -> None:
        """Note a passed comparison on ``shape``."""
        check = self.candidate.known.check
        assert check is not None
        self.candidate.checked(True, check.max_err, shape)

    def _shape(self) -> str:
        return "device " + ", ".join(f"{p.name}{list(p.shape)}" for p in self.source.outputs)

    def at_awkward_shape(self, device: Device, progress: Progress) -> None:
        """Verify the schedule applied to a small shape with remainders, if one can be found; raises Refused if results
        differ.
        """
        found = None if self.schedule is None or self.schedule.edited is not None else _awkward(self.schedule)
        if found is None:
            return
        shape, outputs, source = found
        progress("compile")
        try:
            program = CompiledProgram(source, device, cache=False)
            progress("run")
            given, exact = arguments(outputs)
            inputs = integer_arrays(given, SEED)
            got, problems = program.run_guarded(*inputs)
        except TensorIRError as error:
            raise self.candidate.ended(failure(error, "run")) from None
        results = each(got)
        apart = compare(source.outputs, results, evaluate(outputs, inputs), exact, self.max_error)
        where = f"[{problems[0].code}] {problems[0].message}" if problems else apart.where
        if where:
            self._refuse("wrong_result", apart.max_err, f"for {shape}: {where}")
        self._passed(f"device {shape}")

    def try_floats(self, left_s: float, progress: Progress) -> None:
        """Verify on normal random floats; does nothing if the inputs cannot be random floats. Raises Refused if results
        differ.
        """
        if (floats := self.data.floats(left_s)) is not None:
            progress("reference")
            made = floats.as_floats()
            progress("run")
            self.on_floats(made, f"normal floats {SEED}")

    def on_floats(self, floats: Floats, words: str) -> None:
        """Bind full-precision inputs in place of small integers and run once; raises Refused unless results are the
        expected ones, if there are any, as far as rounding explains.

        words: description of the inputs, noted as a passed shape
        """
        self.bound = None  # its arrays make room
        try:
            self.bound = self.program.bind(*floats.arrays)
            self.once()
            got = self.bound.wait()
        except TensorIRError as error:
            raise self.candidate.ended(failure(error, "run")) from None
        self.first = [np.array(x) for x in each(got)]
        self.rounded = True
        if floats.expected is None:
            return
        found = compare_floats(self.source, self.first, floats, self.max_error)
        if found.where:
            self._refuse("wrong_result", found.max_err, f"on {words}: {found.where}")
        self._passed(f"{self._shape()} {words}")

    def bind(self) -> Any:
        """Launch bound to the device's inputs, run once; raises Refused if its result differs from the guarded
        run's.
        """
        try:
            self.bound = self.program.bind(*self.inputs)
            self.took = self.once()
        except TensorIRError as error:
            raise self.candidate.ended(failure(error, "run")) from None
        self.compare_again()
        return self.bound

    def once(self) -> float:
        """Seconds of one launch of ``bound`` and of waiting for its end, measured now."""
        started = time.perf_counter()
        self.bound()
        self.bound.finish()
        return time.perf_counter() - started

    def compare_again(self) -> None:
        """Raise Refused if results differ from run to run (for floats: by more than rounding)."""
        got = self.bound.wait()
        results = each(got)
        if not _same(results, self.first):
            found = compare(self.source.outputs, results, self.first, not self.rounded, self.max_error)
            if self.rounded and not found.where:
                return  # whose terms come in any order
            self._refuse("nondeterministic", found.max_err, f"two runs differ: {found.where}")

    def compare_over(self) -> None:
        """Raise Refused for a kernel that relies on outputs already holding its result.

        About half of the output elements are overwritten before one more launch.
        """
        self.compare_again()
        try:
            self.bound.refill([_spoilt(x) for x in self.first])
            self.once()
            got = each(self.bound.wait())
        except TensorIRError as error:
            raise self.candidate.ended(failure(error, "run")) from None
        if _same(got, self.first):
            return
        found = compare(self.source.outputs, got, self.first, not self.rounded, self.max_error)
        if found.where:
            self._refuse("wrong_result", found.max_err, f"where outputs held other values before: {found.where}")

    def refuse_slow(
        self, best_s: float | None, pace: float, progress: Progress, kernel: ReferenceKernel | None = None
    ) -> None:
        """Raise Refused if launches show the kernel to be slower than the best: interleaved with the reference, or
        alone by a large factor. Does nothing if ``best_s`` is None.

        best_s: seconds of the best kernel so far, on a machine as fast as in the reference's own trial
        pace:   how many times slower the machine was when last compared
        """
        if best_s is None:
            return
        progress(self._whole)
        now_s = best_s * max(1.0, pace)
        once = self.took if self.took > LONG_SECONDS else min(self.once() for _ in range(4))
        if kernel is not None:
            self._refuse_slower(best_s, once, kernel)
        elif once > max(CUTOFF_RATIO * now_s, WORTH_S):
            self._refuse_slow(0.8 * once, best_s, pace)

    def _refuse_slower(self, best_s: float, once: float, kernel: ReferenceKernel) -> None:
        """Raise Refused if the fastest launch takes more than ``SLOW_RATIO`` times ``best_s`` even at the slowest pace
        of the reference seen meanwhile.

        once: seconds of a launch already measured
        """
        turns, own, pace = 0, once, 0.0
        while once > BRIEF_S:
            own, pace, turns = min(own, self.once()), max(pace, kernel.pace(once)), turns + 1
            times = own / (best_s * max(1.0, pace))
            if times <= SLOW_RATIO:
                return
            far = times > CUTOFF_RATIO and (turns > 1 or once > LONG_SECONDS)
            if far or turns == NOISE_SLOTS:
                self._refuse_slow(0.8 * own, best_s, told_pace(pace) or 1.0)

    def time(self, progress: Progress, best_s: float | None = None, kernel: ReferenceKernel | None = None) -> Outcome:
        """Outcome ``ok`` with the kernel's time (``runtime.estimate``), interleaved with the reference if ``kernel`` is
        given, and with the facts known. Raises Refused as ``compare_over``, which follows the timing.

        best_s: seconds of the best kernel so far; timing ends early once this one is shown to be slower
        """
        said = time.perf_counter()

        def enough(own: Sequence[float], others: Sequence[float]) -> bool:
            nonlocal said
            if time.perf_counter() > said + SAY_S:
                progress("time")
                said = time.perf_counter()
            return best_s is not None and kernel is not None and kernel.shows_slower(best_s, own, others)

        progress("time")
        once = min(self.once(), self.once())
        found = look(self.bound, once, None if kernel is None else kernel.paired, enough=enough)
        self.compare_over()
        return timed(found, None if kernel is None else told_pace(found.pace)).knowing(self.candidate.known)


def _awkward(s: Schedule) -> tuple[str, tuple[Tensor, ...], Source] | None:
    """(label, outputs, source) of a small shape with as many remainders as possible on which the trace replays; None if
    there is none.
    """
    shapes = awkward_shapes(s)
    for extents in sorted((*shapes[1:], *shapes[:1]), key=lambda w: -len(set(w.values()))):  # one dim is no other
        try:
            dims, outputs = dim_values(s.began_with, extents), definition_at(s, extents)
            source = type(s)(outputs, s.target).replay(s.trace).emitted().at({v.name: n for v, n in dims.items()})
            outputs = with_dims(outputs, dims)
        except TensorIRError:
            continue  # the trace does not fit that shape
        return label(outputs), outputs, source
    return None


def timed(found: Estimate, drift: float | None = None) -> Outcome:
    """Outcome ``ok`` with an estimate's seconds, interval and first 200 samples; flagged ``unstable_timing`` if the
    interval is wider than a quarter of the time.
    """
    flags = ("unstable_timing",) if found.high_s - found.low_s > UNSTABLE_WIDTH * found.seconds else None
    times = found.seconds, found.low_s, found.high_s, found.samples[:MOST_SAMPLES]
    return Outcome("ok", None, *times, ESTIMATOR, drift, flags=flags)


def _spoilt(array: Any) -> Any:
    """A copy of ``array`` with about half of its elements altered, evenly spread."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    half = np.random.default_rng(SEED).random(4099) < 0.5
    other = raw ^ np.resize(np.repeat(np.where(half, 0x1C, 0).astype(np.uint8), array.itemsize), raw.size)
    return other.view(array.dtype).reshape(array.shape)


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """True if all arrays are bit-equal."""
    return all(
        np.array_equal(
            np.ascontiguousarray(x).reshape(-1).view(np.uint8), np.ascontiguousarray(y).reshape(-1).view(np.uint8)
        )
        for x, y in zip(a, b, strict=True)
    )
