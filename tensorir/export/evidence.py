"""What a self-test compares with: inputs by seed, and the reference's outputs as arrays or digests."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorir.check.tolerance import tolerance
from tensorir.expr.reread import at_largest
from tensorir.expr.tensor import Tensor
from tensorir.interp.reference import as_declared, evaluate
from tensorir.ir.dtypes import WIDENED, from_numpy
from tensorir.runtime.arguments import numpy_dtype
from tensorir.tune.inputs import Argument, arguments, integer_arrays

SEEDS = (1, 2)
STORED = 4 << 20  # bytes of expected outputs; beyond it exact results ship as digests, and with one seed


@dataclass
class Evidence:
    """The ``selftest`` part of a manifest, the files that it names, and the expected outputs by seed."""

    manifest: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    arrays: dict[int, list[Any]] = field(default_factory=dict)


def gather(
    outputs: Sequence[Tensor],
    reference: Callable[..., object] | None = None,
    label: str = "",
    share: int = 1,
    max_error: float | None = None,
) -> Evidence:
    """Evaluate the reference on fixed integers.

    reference: in NumPy; the declarations themselves are evaluated when None
    label:     what the names of files begin with
    share:     how many programs share the bytes that a folder has for expected outputs
    max_error: relative to the largest output, of kernels that round where the declarations do not; None: as these
    """
    stored, outputs = STORED // share, at_largest(outputs)
    given, exact = arguments(outputs)
    size = sum(int(np.prod(t.shape, dtype=np.int64)) * numpy_dtype(t.dtype).itemsize for t in outputs)
    expected = {}
    for seed in SEEDS if size <= stored else SEEDS[:1]:
        expected[seed] = _evaluated(outputs, reference, integer_arrays(given, seed))
    exact = (
        exact
        and max_error is None
        and all(np.array_equal(a, np.rint(a)) for made in expected.values() for a in map(_double, made))
    )
    found = Evidence({"exact": exact, "inputs": [_about(a) for a in given]})
    found.arrays = expected
    found.manifest["tolerance"] = {t.name: tolerance(t.dtype) if max_error is None else max_error for t in outputs}
    found.manifest["cases"] = [
        {"seed": seed, "expected": {t.name: _kept(found, f"{label}expected_{seed}_{n}.npy", a, exact and size > stored)
                                    for n, (t, a) in enumerate(zip(outputs, made, strict=True))}}
        for seed, made in expected.items()
    ]  # fmt: skip
    return found


def _about(a: Argument) -> dict[str, Any]:
    """How a self-test makes an argument."""
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
    """Whether NumPy alone does not know the type: then the folder has, and compares, the bits."""
    return from_numpy(array.dtype.name) in WIDENED and array.dtype != np.float16


def _kept(found: Evidence, name: str, array: Any, as_digest: bool) -> dict[str, Any]:
    plain = array.view(f"u{array.itemsize}") if _by_bits(array) else array
    if as_digest:
        return {"sha256": hashlib.sha256(plain.tobytes()).hexdigest()}
    file = io.BytesIO()
    np.save(file, plain, allow_pickle=False)
    found.files[name] = file.getvalue()
    return {"file": name}
