"""Self-test data of an export: generated inputs by seed, and the reference's outputs as arrays or digests."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tensorir.check.tolerance import tolerance
from tensorir.expr.program import dims_of
from tensorir.expr.reread import with_dims
from tensorir.expr.tensor import Tensor
from tensorir.interp.reference import as_declared, evaluate
from tensorir.ir.dtypes import WIDENED, from_numpy
from tensorir.runtime.arguments import numpy_dtype
from tensorir.tune.inputs import ArgumentRange, arguments, integer_arrays

SEEDS = (1, 2)
MAX_STORED_BYTES = 4 << 20  # bytes of expected outputs; beyond it exact results ship as digests, and with one seed


class Case(NamedTuple):
    """One self-test case: seed of the inputs, values of dims, the declarations at these, and ranges of the
    arguments.
    """

    seed: int
    dims: Mapping[str, int]
    outputs: tuple[Tensor, ...]
    given: tuple[ArgumentRange, ...]


@dataclass
class Evidence:
    """Test data of an export: the manifest's ``selftest`` entry, files, and by seed the expected outputs and the
    cases.
    """

    manifest: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    arrays: dict[int, list[Any]] = field(default_factory=dict)
    cases: dict[int, Case] = field(default_factory=dict)


def gather(
    outputs: Sequence[Tensor],
    reference: Callable[..., object] | None = None,
    label: str = "",
    share: int = 1,
    max_error: float | None = None,
    points: Sequence[Mapping[str, int]] = ({},),
) -> Evidence:
    """Evaluate the reference on generated integers; return test data of an export.

    reference: NumPy function of the inputs; None: the declarations themselves are evaluated
    label:     prefix of file names
    share:     number of programs that share the space of a folder for expected outputs
    max_error: allowed error relative to the largest output, for kernels that round where the declarations do not; None:
               none
    points:    values of dims by name, one test case for each, at least two in all; a single one if there is one point
               and the outputs exceed the space

    Raises CheckError ``workload.reference`` if the reference's shapes are not the declared ones.
    """
    stored, (cases, exact) = MAX_STORED_BYTES // share, _cases(outputs, points)
    size = sum(_nbytes(t) for c in cases[: len(points)] for t in c.outputs)
    if len(points) == 1 and size > stored:
        cases = cases[:1]
    expected = {c.seed: _evaluated(c.outputs, reference, integer_arrays(c.given, c.seed)) for c in cases}
    exact = (
        exact
        and max_error is None
        and all(np.array_equal(a, np.rint(a)) for made in expected.values() for a in map(_double, made))
    )
    found = Evidence({"exact": exact, "inputs": [_about(a) for a in cases[0].given]})
    found.arrays, found.cases = expected, {c.seed: c for c in cases}
    found.manifest["tolerance"] = {t.name: tolerance(t.dtype) if max_error is None else max_error for t in outputs}
    found.manifest["cases"] = [
        {"seed": c.seed, **({"dims": dict(c.dims), "inputs": [_about(a) for a in c.given]} if c.dims else {}),
         "expected": {t.name: _kept(found, f"{label}expected_{c.seed}_{n}.npy", a, exact and size > stored)
                      for n, (t, a) in enumerate(zip(outputs, expected[c.seed], strict=True))}}
        for c in cases
    ]  # fmt: skip
    return found


def _cases(outputs: Sequence[Tensor], points: Sequence[Mapping[str, int]]) -> tuple[list[Case], bool]:
    """(test cases, one per seed, cycling through ``points``; True if all results are exact)."""
    dims, made, exact = dims_of(outputs), list[Case](), True
    for n in range(max(len(points), len(SEEDS))):
        point = points[n % len(points)]
        there = with_dims(outputs, {v: point[v.name] for v in dims})
        given, whole = arguments(there)
        made.append(Case(n + 1, point, there, given))
        exact &= whole
    return made, exact


def _nbytes(t: Tensor) -> int:
    return int(np.prod(t.shape, dtype=np.int64)) * numpy_dtype(t.dtype).itemsize


def _about(a: ArgumentRange) -> dict[str, Any]:
    """Manifest entry from which the self-test generates an argument again."""
    return {"name": a.name, "low": a.low, "high": a.high, **({"steps": list(a.steps)} if a.steps else {})}


def _double(array: Any) -> Any:
    return np.asarray(array).astype(np.float64)


def _evaluated(outputs: Sequence[Tensor], reference: Callable[..., Any] | None, inputs: list[Any]) -> list[Any]:
    given = evaluate(outputs, inputs) if reference is None else reference(*inputs)
    found = as_declared(outputs, given)
    for kept in found:
        if kept.dtype.kind == "f" or _by_bits(kept):
            kept[kept == 0] = 0  # no negative zeros
    return found


def _by_bits(array: Any) -> bool:
    """True if NumPy lacks the array's dtype (bfloat16, 8-bit floats): files and comparisons use its bits."""
    return from_numpy(array.dtype.name) in WIDENED and array.dtype != np.float16


def _kept(found: Evidence, name: str, array: Any, as_digest: bool) -> dict[str, Any]:
    plain = array.view(f"u{array.itemsize}") if _by_bits(array) else array
    if as_digest:
        return {"sha256": hashlib.sha256(plain.tobytes()).hexdigest()}
    file = io.BytesIO()
    np.save(file, plain, allow_pickle=False)
    found.files[name] = file.getvalue()
    return {"file": name}
