"""Full-precision random inputs with expected results, and the tolerance for a right kernel on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorir.check.tolerance import tolerance
from tensorir.codegen.source import Source
from tensorir.errors import TensorIRError
from tensorir.interp.reference import results_of

if TYPE_CHECKING:
    from tensorir.api.work import Work

ORDER_FACTOR = 32.0
"""Error allowed for sums in another order, as a multiple of ``moved_by_digits``."""


@dataclass(frozen=True)
class Floats:
    """Random float inputs with the reference's results.

    expected: None if not compared
    moved:    lazy ``moved_by_digits``, for results that seem wrong
    """

    arrays: Sequence[Any]
    expected: Sequence[Any] | None
    moved: Callable[[], float]

    @classmethod
    def of(cls, work: Work, seed: int) -> Floats:
        """Draw inputs and evaluate the reference of a local workload."""
        arrays = work.random_inputs(seed)
        expected = results_of(work.reference(*arrays))
        return cls(arrays, expected, partial(moved_by_digits, work.reference, arrays, expected))

    def allowed(self, source: Source, most: float | None, close: bool) -> float | None:
        """Largest allowed difference from the expected results, relative to the largest of them; None: rounding of the
        type.

        most:  tolerance on whole numbers, None if exact
        close: False allows for ill-conditioned sums as well: how results change when inputs change in the last bit

        tf32 tensor cores keep 11 significand bits of an operand, as float16; whole numbers lose none.
        """
        cut = any(".tf32." in name for name in source.instructions)
        usual = max(most or 0.0, tolerance("float16")) if cut else most
        return usual if close else max(usual or 0.0, ORDER_FACTOR * self.moved())


def moved_by_digits(make: Callable[..., object], arrays: Sequence[object], expected: Sequence[object]) -> float:
    """Condition of the definition at ``arrays``: largest change of a result, relative to its largest element, when each
    float32 and float64 input moves by one unit in the last place (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, section 1.6). 0.0 if ``make``, the reference, raises TensorIRError.
    """
    rng = np.random.default_rng(0)
    try:
        given = make(*(_neighbours(a, rng) for a in arrays))
    except TensorIRError:
        return 0.0
    shares = [0.0]
    for found, right in zip(results_of(given), expected, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            a, b = (np.asarray(x).astype(np.float64).reshape(-1) for x in (found, right))
            both = np.isfinite(a) & np.isfinite(b)
            shares.append(float(np.abs(a - b)[both].max(initial=0.0) / np.abs(b)[both].max(initial=1e-30)))
    return max(share for share in shares if math.isfinite(share))


def _neighbours(array: Any, rng: np.random.Generator) -> Any:
    kind = np.asarray(array).dtype
    if kind not in (np.float32, np.float64):
        return array
    ways = np.where(rng.random(np.shape(array)) < 0.5, -np.inf, np.inf).astype(kind)
    return np.nextafter(array, ways)
