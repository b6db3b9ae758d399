"""Errors of the functions that texts for CPUs bring along, over all float32, and the coefficients of their polynomials.

    python benchmarks/vector_math.py                         every 61st float32, on PoCL and the C compiler's device
    python benchmarks/vector_math.py --stride 1 --functions exp,log --devices c:0
    python benchmarks/vector_math.py --plain                 as C for any x86-64 or aarch64: no FMA
    python benchmarks/vector_math.py --fit                   fit the coefficients again (needs mpmath)

A result's error is its distance from NumPy's (erf: Python's) of float64, in steps between floats there.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.interp.ulps import VECTOR_ULPS

SIZE = 1 << 20
"""Arguments of one call."""
EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip


def schedule(names: list[str], lanes: int, target: str, size: int = SIZE, block: int = 4096) -> tir.Schedule:
    """The functions of one array, each a stage of its own in vectors of ``lanes``; blocks on cores."""
    x = tir.placeholder((size,), name="x")
    functions = {n: getattr(tir, n) for n in names}
    made = [tir.compute((size,), lambda i, f=f: f(x[i]), name=f"y_{n}") for n, f in functions.items()]
    s = tir.Schedule(made, target)
    for stage in s.stages():
        outer, inner = s.split(s.loops(stage.name)[0], [None, block])
        s.bind(outer, "block.x")
        if lanes > 1:
            s.vectorize(s.split(inner, [None, lanes])[1])
    return s


@np.errstate(all="ignore")
def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """How far float32 results are from the exact ones, in steps between floats there; infinite where the kind differs.

    An infinity is as far as 2^128 is, and a zero of the other sign is infinitely far.
    """
    rounded = exact.astype(np.float32)
    step = 2.0 ** np.clip(np.frexp(exact)[1] - 24, -149, 104)
    top = 2.0**128
    finite = np.clip(np.where(np.isinf(got), np.copysign(top, got), got.astype(np.float64)), -top, top)
    error = np.abs(finite - np.clip(exact, -top, top)) / step
    same = (got == rounded) & ((got != 0) | (exact != 0) | (np.signbit(got) == np.signbit(exact)))
    error = np.where(same | (np.isnan(got) & np.isnan(exact)), np.where(np.isfinite(got) & same, error, 0.0), error)
    wrong = (np.isnan(got) != np.isnan(exact)) | (np.isinf(exact) & (got != exact)) | ((exact == 0) & ~same)
    return np.where(wrong, np.inf, error)


def arguments(stride: int, low: float, high: float) -> Iterator[np.ndarray]:
    """Every ``stride``-th float32 of a size from ``low`` to ``high`` (inf: NaN too), of both signs, ``SIZE`` at a time;
    the last ones are filled up with the first.
    """
    first, last = (int(np.float32(x).view(np.uint32)) for x in (low, high))
    last = 0x7FFFFFFF if high == math.inf else last
    for sign in (0, 1 << 31):
        for start in range(sign + first, sign + last + 1, SIZE * stride):
            bits = np.arange(start, min(start + SIZE * stride, sign + last + 1), stride, dtype=np.uint64)
            yield np.resize(bits.astype(np.uint32), SIZE).view(np.float32)


def worst(name: str, f: Callable[[np.ndarray], Any], drawn: Iterator[np.ndarray]) -> tuple[float, float]:
    """The largest error of ``f`` and the argument that has it."""
    most = (0.0, 0.0)
    for x in drawn:
        with np.errstate(all="ignore"):
            errors = ulps(np.asarray(f(x)), np.asarray(EXACT[name](x.astype(np.float64))))
        k = int(np.argmax(errors))
        most = max(most, (float(errors[k]), float(x[k])))
    return most


def plain(name: str, lanes: int, folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    """The function as the C compiler makes it for any processor of this kind: for x86-64 without FMA."""
    s = schedule([name], lanes, "c -vector_bytes=16", block=SIZE)
    source, library = folder / f"{name}{lanes}.c", folder / f"{name}{lanes}.so"
    source.write_text(s.source(), encoding="utf-8")
    subprocess.run(["gcc", "-std=c11", "-O2", "-w", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
    run = getattr(ctypes.CDLL(str(library)), f"y_{name}_kernel_run")

    def call(x: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        run((ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data), (ctypes.c_int64 * 4)())
        return y

    return call


def fit(target: Any, weight: Any, low: float, high: float, count: int) -> list[float]:
    """Coefficients of the polynomial whose weighted distance from ``target`` is least at most, by Lawson's algorithm.

    That of the lowest power is rounded to float32 and held before the others are fitted again, and so on.
    """
    import mpmath

    mpmath.mp.dps = 40
    points = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)
    y, w = (np.array([float(f(mpmath.mpf(float(p)))) for p in points]) for f in (target, weight))
    powers, held = np.vander(points, count, increasing=True), list[float]()
    for m in range(count):
        rest, free = y - powers[:, :m] @ np.array(held), powers[:, m:]
        share, best = np.full(len(points), 1 / len(points)), (np.inf, 0.0)
        for _ in range(60):
            root = np.sqrt(share) * w
            found = np.linalg.lstsq(free * root[:, None], rest * root, rcond=None)[0]
            errors = np.abs(w * (free @ found - rest))
            best = min(best, (float(errors.max()), float(found[0])))
            share = share * errors / (share * errors).sum()
        held.append(float(np.float32(best[1])))
    return held


def fitted() -> dict[str, list[float]]:
    """The coefficients of ``codegen.vector_math`` by their names there."""
    import mpmath as mp

    half, root = math.log(2) / 2 * 1.001, mp.sqrt

    def odd(f: Any) -> tuple[Any, Any]:
        """(f(x) / x - 1) / z of z = x^2, and its weight."""
        return (lambda z: (f(root(z)) / root(z) - 1) / z), (lambda z: z * root(z) / f(root(z)))

    return {
        "EXP": fit(lambda r: (mp.exp(r) - 1 - r) / r**2, lambda r: r * r / mp.exp(r), -half, half, 6),
        "EXP2": fit(lambda r: (mp.mpf(2) ** r - 1) / r, lambda r: r / mp.mpf(2) ** r, -0.5005, 0.5005, 6),
        "LOG": fit(lambda f: (mp.log1p(f) - f + f * f / 2) / f**3, lambda f: f**3 / mp.log1p(f),
                   math.sqrt(0.5) - 1.0001, math.sqrt(2) - 0.9999, 9),
        "TANH": fit(*odd(mp.tanh), 1e-9, 0.625**2, 6),
        "ERF": fit(lambda z: mp.erf(root(z)) / root(z) - 1, lambda z: root(z) / mp.erf(root(z)), 1e-9, 0.93**2, 7),
        "LOG_ERFC": fit(lambda x: mp.log(mp.erfc(x)), lambda x: mp.erfc(x) / mp.erf(x), 0.92, 4.0, 8),
        "SIN": fit(*odd(mp.sin), 1e-9, 0.79**2, 4),
        "COS": fit(lambda z: (mp.cos(root(z)) - 1 + z / 2) / z**2, lambda z: z * z / mp.cos(root(z)), 1e-9, 0.79**2, 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=61)
    parser.add_argument("--low", type=float, default=0.0, help="the least size of an argument")
    parser.add_argument("--high", type=float, default=math.inf, help="the largest")
    parser.add_argument("--functions", default=",".join(VECTOR_ULPS))
    parser.add_argument("--devices", default="opencl:pocl,c:0")
    parser.add_argument("--lanes", default="16")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    if given.fit:
        for name, coefficients in fitted().items():
            print(f"{name} = {', '.join(np.format_float_positional(np.float32(c), unique=True) for c in coefficients)}")
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in given.functions.split(","):
            for lanes in map(int, given.lanes.split(",")):
                for device in ["gcc"] if given.plain else given.devices.split(","):
                    if given.plain:
                        f: Any = plain(name, lanes, Path(folder))
                    else:
                        f = schedule([name], lanes, device.partition(":")[0]).build(device)
                    error, at = worst(name, f, arguments(given.stride, given.low, given.high))
                    print(f"{name:6} {lanes:2} lanes  {device:12} {error:.3f} ulp at {at!r} (bound "
                          f"{VECTOR_ULPS[name]:g})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
