"""Inputs and expected outputs of a workload, and the comparison of results with them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorir.api.floats import Floats, moved_by_digits
from tensorir.api.questions import Output
from tensorir.check.tolerance import tolerance
from tensorir.codegen.source import Param, Source
from tensorir.interp.reference import as_declared
from tensorir.ir.dtypes import DTYPES
from tensorir.runtime.arguments import numpy_dtype
from tensorir.runtime.scratch import Scratch
from tensorir.tune.inputs import ArgumentRange, dealt_arrays, random_arrays

SEED = 1
FLOATS_S = 5.0  # a reference that takes longer is not asked a second time, about numbers with every digit in use


class Data:
    """Small-integer inputs and the reference's results, checksummed and remade if a kernel corrupts them.

    draw: function (arguments, seed) -> inputs;  name: of files in ``folder`` with expected outputs
    continuous: true if results on full-precision floats are comparable (``is_continuous``)
    """

    def __init__(
        self,
        arguments: Sequence[ArgumentRange],
        exact: bool,
        outputs: Sequence[Output],
        folder: str,
        make: Callable[..., Any],
        draw: Callable[[Sequence[ArgumentRange], int], list[np.ndarray]] = dealt_arrays,
        name: str = "expected",
        continuous: bool = True,
    ) -> None:
        self._arguments, self.outputs, self._make = arguments, tuple(outputs), make
        self._draw, self._name, self.continuous = draw, name, continuous
        self._floats: Data | None = None
        self._own = None if os.path.isdir(folder) else Scratch()
        self._folder = Path(folder) if self._own is None else self._own.path
        self.exact = exact
        self.inputs: list[np.ndarray] = []
        self.expected: list[np.ndarray] = []
        self._sum = -1

    def fresh(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """(inputs, expected outputs): the same arrays at each call, made again if a kernel has changed them.

        Expected outputs come from the folder if they are there, else from the reference, and are stored.
        """
        if self._sum != self._checksum() or not self.expected:
            self.inputs = self._draw(self._arguments, SEED)
            self.expected = self._stored() or self._computed()
            self.exact = self.exact and all(np.array_equal(e, np.rint(e)) for e in map(_as_double, self.expected))
            self._sum = self._checksum()
        return self.inputs, self.expected

    def floats(self, left_s: float) -> Data | None:
        """Data with full-precision floats; None if no argument is a float, right results may differ on them, or the
        reference took longer than a quarter of ``left_s``, or than 5 s. Once made, it is kept.

        left_s: seconds until all must be done, of which the reference may take a quarter
        """
        if not self.continuous or not any(DTYPES[a.dtype].kind == "f" for a in self._arguments):
            return None
        if self._floats is None and self.reference_s < min(FLOATS_S, left_s / 4):
            given = self._arguments, False, self.outputs, str(self._folder), self._make
            self._floats = Data(*given, random_arrays, "floats")
        return self._floats

    def as_floats(self) -> Floats:
        """These inputs and expected results, with the tolerance's condition number computed on demand."""
        return Floats(*self.fresh(), self.moved)

    def moved(self) -> float:
        """Largest relative change of a result when each float input moves by one unit in the last place; computed once
        and shared between workers by a file.
        """
        path = self._folder / f"{self._name}_moved"
        with contextlib.suppress(OSError, ValueError):
            return float(path.read_text())
        found = moved_by_digits(self._make, *self.fresh())
        _write(path, lambda file: file.write(repr(found).encode("ascii")))
        return found

    def remove(self) -> None:
        """Delete the folder if this object created it."""
        if self._own is not None:
            self._own.close()

    def _checksum(self) -> int:
        total = 0
        for a in (*self.inputs, *self.expected):
            total = zlib.crc32(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data, total)
        return total

    def _stored(self) -> list[Any]:
        found = []
        for n, o in enumerate(self.outputs):
            try:
                array = np.load(self._folder / f"{self._name}_{n}.npy", allow_pickle=False)
            except (OSError, ValueError):
                return []
            found.append(array.view(numpy_dtype(o.dtype)).reshape(o.shape))
        return found

    @property
    def reference_s(self) -> float:
        """Seconds that the reference took; inf if unknown."""
        try:
            return float((self._folder / "seconds").read_text())
        except (OSError, ValueError):
            return math.inf

    def _computed(self) -> list[Any]:
        began = time.perf_counter()
        given = self._make(*self.inputs)
        took = f"{time.perf_counter() - began}".encode("ascii")
        _write(self._folder / "seconds", lambda file: file.write(took))
        found = as_declared(self.outputs, given)
        for n, kept in enumerate(found):
            _save(self._folder / f"{self._name}_{n}.npy", kept.reshape(-1).view(f"u{kept.itemsize}"))
        return found


def each(results: object) -> list[Any]:
    """Results of a call as a list: one array, or a tuple's items."""
    return list(results) if isinstance(results, tuple) else [results]


def _as_double(array: Any) -> Any:
    return np.asarray(array).astype(np.float64)


def _save(path: Path, array: Any) -> None:
    _write(path, lambda file: np.save(file, array, allow_pickle=False))


def save_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file atomically."""
    _write(path, lambda file: file.write(json.dumps(value).encode("ascii")))


def _write(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file atomically, as workers may be killed at any time."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("wb") as file:
        write(file)
    scratch.replace(path)


@dataclass(frozen=True)
class Comparison:
    """Largest absolute error of results up to the first wrong output; infinite for a wrong size or an unexpected NaN.

    where: the worst wrong element in words, "" if all are right
    """

    max_err: float
    where: str = ""


def compare(
    outputs: Sequence[Output | Param], got: Sequence[Any], want: Sequence[Any], exact: bool, most: float | None = None
) -> Comparison:
    """Comparison of results with expected ones: integers equal; floats bit-equal if ``exact``, else within ``most``
    relative to the largest, or the type's rounding if None.

    A result needs only the number of elements of the expected one; it is compared in that one's shape. The comparison
    ends at the first wrong output.
    """
    worst = 0.0
    for p, g, w in zip(outputs, got, want, strict=True):
        if np.array_equal(g, w):
            continue
        a, b = _as_double(g), _as_double(w)
        if a.size != b.size:
            return Comparison(math.inf, f"{p.name} has {a.size} elements, should have {b.size}")
        g, a = np.reshape(g, b.shape), a.reshape(b.shape)
        whole = tolerance(p.dtype) == 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        apart = np.where(np.isnan(apart), np.inf, apart)
        if whole:  # beyond 2^53, different whole numbers are the same double
            apart = np.where(np.equal(g, w), 0.0, np.maximum(apart, 1.0))
        finite = np.abs(b[np.isfinite(b)])
        share = 0.0 if whole or (exact and most is None) else tolerance(p.dtype) if most is None else most
        allowed = share * float(finite.max(initial=1e-30))
        error = float(apart.max(initial=0.0))
        worst = max(worst, error)
        if error > allowed:
            at = np.unravel_index(int(np.argmax(apart)), apart.shape) if apart.shape else ()
            place = ", ".join(str(int(i)) for i in at)
            wrong = int((apart > allowed).sum())
            found, right = np.asarray(g)[at], np.asarray(w)[at]
            text = f"{p.name}[{place}] is {found!s}, should be {right!s}; {wrong} of {a.size} elements differ"
            return Comparison(error, text)
    return Comparison(worst)


def compare_floats(source: Source, got: Sequence[object], floats: Floats, most: float | None) -> Comparison:
    """Comparison of results on full-precision inputs with expected ones, first within the close tolerance, then within
    the one for ill-conditioned sums.

    most: tolerance on whole numbers, None if exact
    """
    assert floats.expected is not None
    found = compare(source.outputs, got, floats.expected, False, floats.allowed(source, most, close=True))
    if not found.where:
        return found
    return compare(source.outputs, got, floats.expected, False, floats.allowed(source, most, close=False))
