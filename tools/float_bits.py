"""Bits of float operations on every executor against NumPy's, of the newest and of other versions.

``python tools/float_bits.py [--reference PYTHON]``: single operations, folds by known numbers, conversions, ``//``,
``%``, min, max and comparisons of every float type have the bits of NumPy (any NaN is NaN) on the reference evaluator,
the interpreter, PoCL, C and emulated CUDA; compounds are within ``ULPS``. A case is one kernel, of pairs of special
operands and random ones; ``--elements`` is the sum over the cases of a target. ``--state FILE`` keeps what is done.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2")
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
TARGETS = ("reference", "interpreter", "opencl", "c", "cuda")
SPECIAL = (0.0, 1.0, 0.5, 1.5, 2.5, 0.1, 3.0, 7.0, 5.5, np.inf)
"""Both signs of each, NaN, and what types end with."""
ULPS = {"multiply-add": 2, "quotient of sums": 3, "weighted sum": 3}
"""Of compounds of positive operands: a product joined with a sum is rounded once or twice, and narrow floats are
computed in float32 and rounded where they are stored."""
LANES = 8
Operation = tuple[str, Callable[..., Any], Callable[..., Any]]


@dataclass(frozen=True)
class Case:
    """An operation of x and y of one type; declared: with tensorir's functions ``t`` and ``x`` and ``y``; numpys: with
    NumPy's. lanes: in vectors;  ulps: how far results may be from the reference's in float64.
    """

    name: str
    dtype: str
    declared: Callable[[Any, Any, Any], Any]
    numpys: Callable[[Any, Any, Any], Any]
    ulps: float = 0
    lanes: int = 1

    @property
    def key(self) -> str:
        return f"{self.dtype} {self.name}{' in vectors' if self.lanes > 1 else ''}"


def kind_of(dtype: str) -> np.dtype[Any]:
    """NumPy's type of that name."""
    if dtype.startswith(("bfloat", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)))
    return np.dtype(dtype)


def smaller(x: Any, y: Any) -> Any:
    """NumPy's minimum, of two zeros the negative one; which one NumPy gives depends on type and processor."""
    return np.where((x == 0) & (y == 0), -(-x + -y), np.minimum(x, y)).astype(x.dtype)


def larger(x: Any, y: Any) -> Any:
    """NumPy's maximum, of two zeros the positive one."""
    return np.where((x == 0) & (y == 0), x + y, np.maximum(x, y)).astype(x.dtype)


def nearest(x: np.ndarray, dtype: str) -> np.ndarray:
    """``x`` rounded once, to the nearest of all numbers of a type: ml_dtypes rounds some twice, by way of float32."""
    kind = kind_of(dtype)
    if kind.itemsize > 2 or x.dtype.itemsize < 4 or x.dtype == np.float32:
        return x.astype(kind)
    every = np.arange(1 << (8 * kind.itemsize - 1), dtype=f"uint{8 * kind.itemsize}").view(kind)
    numbers = every.astype(np.float64)
    every, numbers = every[np.isfinite(numbers)], numbers[np.isfinite(numbers)]
    ends = np.append(numbers, 2 * numbers[-1] - numbers[-2])  # what would be the next one
    over = np.append(every, np.array(np.inf).astype(kind))
    size = [abs(v) if v == v else v for v in x.tolist()]  # exact, integers too
    middles = (ends[1:] + ends[:-1]) / 2
    at = np.searchsorted(middles, [0.0 if v != v else float(v) for v in size])
    out = np.empty(len(size), kind)
    for n, (v, k) in enumerate(zip(size, at.tolist(), strict=True)):
        if v != v:
            out[n] = np.nan
            continue
        best = max(0, k - 1)
        while best + 1 < len(ends):
            if v > middles[best] or (v == middles[best] and (best + 1) % 2 == 0):
                best += 1
            else:
                break
        out[n] = over[best]
    return np.where(np.signbit(x) if x.dtype.kind == "f" else x < 0, -out, out).astype(kind)


OPERATIONS: tuple[Operation, ...] = (
    ("x + y", lambda t, x, y: x + y, lambda x, y, c: x + y),
    ("x - y", lambda t, x, y: x - y, lambda x, y, c: x - y),
    ("x * y", lambda t, x, y: x * y, lambda x, y, c: x * y),
    ("x / y", lambda t, x, y: x / y, lambda x, y, c: x / y),
    ("x // y", lambda t, x, y: x // y, lambda x, y, c: np.floor_divide(x, y)),
    ("x % y", lambda t, x, y: x % y, lambda x, y, c: np.remainder(x, y)),
    ("min", lambda t, x, y: t.minimum(x, y), lambda x, y, c: smaller(x, y)),
    ("max", lambda t, x, y: t.maximum(x, y), lambda x, y, c: larger(x, y)),
    ("x < y", lambda t, x, y: x < y, lambda x, y, c: x < y),
    ("x <= y", lambda t, x, y: x <= y, lambda x, y, c: x <= y),
    ("x == y", lambda t, x, y: t.equal(x, y), lambda x, y, c: x == y),
    ("x != y", lambda t, x, y: t.not_equal(x, y), lambda x, y, c: x != y),
    ("where", lambda t, x, y: t.where(x < y, x, y), lambda x, y, c: np.where(x < y, x, y)),
    ("-x", lambda t, x, y: -x, lambda x, y, c: -x),
    ("abs", lambda t, x, y: t.abs(x), lambda x, y, c: np.abs(x)),
    ("sign", lambda t, x, y: np.sign(x), lambda x, y, c: np.where(x == 0, x * x, np.sign(x))),
    ("floor", lambda t, x, y: t.floor(x), lambda x, y, c: np.floor(x)),
    ("ceil", lambda t, x, y: t.ceil(x), lambda x, y, c: np.ceil(x)),
    ("rint", lambda t, x, y: t.round(x), lambda x, y, c: np.rint(x)),
    ("trunc", lambda t, x, y: np.trunc(x), lambda x, y, c: np.trunc(x)),
    ("sqrt", lambda t, x, y: t.sqrt(x), lambda x, y, c: np.sqrt(x)),
    ("clip", lambda t, x, y: np.clip(x, -1.5, 2.5), lambda x, y, c: smaller(larger(x, c(-1.5)), c(2.5))),
    ("x * 1", lambda t, x, y: x * 1, lambda x, y, c: x * c(1)),
    ("1.0 * x", lambda t, x, y: 1.0 * x, lambda x, y, c: c(1) * x),
    ("x / 1", lambda t, x, y: x / 1, lambda x, y, c: x / c(1)),
    ("x // 1.0", lambda t, x, y: x // 1.0, lambda x, y, c: np.floor_divide(x, c(1))),
    ("x % 1", lambda t, x, y: x % 1, lambda x, y, c: np.remainder(x, c(1))),
    ("x // 0.1", lambda t, x, y: x // 0.1, lambda x, y, c: np.floor_divide(x, c(0.1))),
    ("x % -0.1", lambda t, x, y: x % -0.1, lambda x, y, c: np.remainder(x, c(-0.1))),
    ("x % inf", lambda t, x, y: x % np.inf, lambda x, y, c: np.remainder(x, c(np.inf))),
    ("x // 0.0", lambda t, x, y: x // 0.0, lambda x, y, c: np.floor_divide(x, c(0))),
    ("x + 0", lambda t, x, y: x + 0, lambda x, y, c: x + c(0)),
    ("0 + x", lambda t, x, y: 0.0 + x, lambda x, y, c: c(0) + x),
    ("x - 0", lambda t, x, y: x - 0, lambda x, y, c: x - c(0)),
    ("0 - x", lambda t, x, y: 0 - x, lambda x, y, c: c(0) - x),
    ("x + -0.0", lambda t, x, y: x + -0.0, lambda x, y, c: x + c(-0.0)),
    ("x * 0", lambda t, x, y: x * 0, lambda x, y, c: x * c(0)),
    ("0.0 * x", lambda t, x, y: 0.0 * x, lambda x, y, c: c(0) * x),
    ("x * -1", lambda t, x, y: x * -1, lambda x, y, c: x * c(-1)),
    ("x - x", lambda t, x, y: x - x, lambda x, y, c: x - x),
    ("x / x", lambda t, x, y: x / x, lambda x, y, c: x / x),
    ("x == x", lambda t, x, y: t.equal(x, x), lambda x, y, c: x == x),
    ("not x < y", lambda t, x, y: ~(x < y), lambda x, y, c: ~(x < y)),
    ("where of one", lambda t, x, y: t.where(x < y, x, x), lambda x, y, c: x),
    ("max 0", lambda t, x, y: t.maximum(x, 0), lambda x, y, c: larger(x, c(0))),
    ("-0.0 max", lambda t, x, y: t.maximum(-0.0, x), lambda x, y, c: larger(c(-0.0), x)),
    ("min 0", lambda t, x, y: t.minimum(0, x), lambda x, y, c: smaller(c(0), x)),
    ("min -0.0", lambda t, x, y: t.minimum(x, -0.0), lambda x, y, c: smaller(x, c(-0.0))),
    ("x ** 0", lambda t, x, y: x**0, lambda x, y, c: np.ones_like(x)),
    ("x ** 1", lambda t, x, y: x**1, lambda x, y, c: x),
    ("x * 0.1", lambda t, x, y: x * 0.1, lambda x, y, c: x * c(0.1)),
    ("x < 0.1", lambda t, x, y: x < 0.1, lambda x, y, c: x < c(0.1)),
)
"""Name, declared with tensorir's functions ``t`` of x and y, and NumPy's, with ``c`` of a number in their type."""
IN_VECTORS = 30
"""How many of them are tried in vectors too."""


def cases() -> Iterator[Case]:
    """Every operation of every type; float32 and float64 in vectors too."""
    for dtype in FLOATS:
        kind = kind_of(dtype)
        for lanes in (1, LANES) if kind.itemsize >= 4 else (1,):
            for name, declared, numpys in OPERATIONS[: len(OPERATIONS) if lanes == 1 else IN_VECTORS]:
                if "inf" in name and dtype == "float8_e4m3":
                    continue  # which has none
                yield Case(name, dtype, declared, numpys, 0, lanes)
        for other in (*FLOATS, "bool", *WHOLE):
            if other != dtype:
                yield Case(f"cast to {other}", dtype, _cast(other), _casted(other))
        for name, declared, numpys in (
            ("multiply-add", lambda t, x, y: x * y + y, lambda x, y, c: x * y + y),
            ("quotient of sums", lambda t, x, y: (x + y) / (x + 1), lambda x, y, c: (x + y) / (x + 1)),
            ("weighted sum", lambda t, x, y: x * 0.25 + y * 0.75 + x, lambda x, y, c: x * 0.25 + y * 0.75 + x),
        ):
            yield Case(name, dtype, declared, numpys, ULPS[name])
    for whole in WHOLE[-4:]:
        for other in FLOATS:
            yield Case(f"cast to {other}", whole, _cast(other), _casted(other))


def _cast(other: str) -> Callable[..., Any]:
    return lambda t, x, y: t.cast(x, other)


def _casted(other: str) -> Callable[..., Any]:
    return lambda x, y, c: (x != 0) if other == "bool" else nearest(x, other) if other in FLOATS else x.astype(other)


def operands(case: Case, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """x and y: pairs of special numbers, any bits, and numbers of any size; of compounds positive ones near 1."""
    kind = kind_of(case.dtype)
    if case.dtype in WHOLE:
        ends = np.iinfo(kind)
        bits = [int(v) >> int(k) for v, k in zip(rng.integers(0, ends.max, count, kind, endpoint=True),
                                                 rng.integers(0, ends.bits, count), strict=True)]  # fmt: skip
        x = np.array([0, 1, ends.max, ends.min, *bits], kind)[:count]
        x = np.where(rng.random(len(x)) < 0.5, x, x if ends.min == 0 else -x).astype(kind)
        return x, x[::-1].copy()
    if case.ulps:
        x, y = (rng.uniform(0.4, 2.7, count).astype(kind) for _ in "xy")
        return x, y
    unsigned = np.dtype(f"uint{8 * kind.itemsize}")
    info = _ends(kind)
    special = np.array([s * v for v in (*SPECIAL, *info) for s in (1.0, -1.0)] + [np.nan]).astype(kind)
    pairs = np.array(list(itertools.product(range(len(special)), repeat=2)))
    pairs = pairs[rng.permutation(len(pairs))[: count // 2]]
    rest = count - len(pairs)
    any_bits = [rng.integers(0, 2 ** (8 * kind.itemsize), rest, np.uint64, endpoint=False).astype(unsigned).view(kind)
                if kind.itemsize < 8 else rng.integers(0, 2**64 - 1, rest, np.uint64).view(kind)
                for _ in "xy"]  # fmt: skip
    sized = [(rng.standard_normal(rest) * 2.0 ** rng.integers(-13, 14, rest)).astype(kind) for _ in "xy"]
    which = rng.random(rest) < 0.5
    x, y = (np.concatenate([special[pairs[:, n]], np.where(which, any_bits[n], sized[n])]).astype(kind) for n in (0, 1))
    whole = case.name.removeprefix("cast to ")
    if whole in WHOLE:  # what is out of range has no one answer
        low, high = np.iinfo(whole).min, np.iinfo(whole).max
        with np.errstate(invalid="ignore"):
            wide = np.trunc(x.astype(np.float64))
        inside = np.isfinite(wide) & (wide >= low) & ((wide < high) | ((wide == high) & (high < 2**52)))
        x = np.where(inside, x, kind.type(1.5)).astype(kind)
    return x, y


def _ends(kind: np.dtype[Any]) -> tuple[float, ...]:
    """The largest number, the least normal one and the least of a float type."""
    unsigned = f"uint{8 * kind.itemsize}"
    if kind.itemsize > 2:
        info = np.finfo(kind)
        return float(info.max), float(info.tiny), float(np.array(1, unsigned).view(kind))
    import ml_dtypes

    with np.errstate(invalid="ignore"):
        every = np.arange(1 << (8 * kind.itemsize - 1), dtype=unsigned).view(kind).astype(np.float64)
    return float(every[np.isfinite(every)].max()), float(ml_dtypes.finfo(kind).tiny), float(every[1])


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of an array, one pattern for all NaNs."""
    if x.dtype.kind in "iub":
        return x
    whole = x.view(f"uint{8 * x.dtype.itemsize}")
    return np.where(x != x, np.array(~whole.dtype.type(0)), whole)


def answer(case: Case, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """NumPy's."""
    with np.errstate(all="ignore"):
        if case.ulps:
            wide = np.longdouble if case.dtype == "float64" else np.float64
            return np.asarray(case.numpys(x.astype(wide), y.astype(wide), wide).astype(np.float64))
        return np.asarray(case.numpys(x, y, x.dtype.type))


def apart(case: Case, got: np.ndarray, want: np.ndarray) -> tuple[int, float]:
    """Results that are wrong, and the largest error in ulps."""
    if not case.ulps:
        return int((bits(got) != bits(want.astype(got.dtype))).sum()), 0.0
    import ml_dtypes

    digits = int(ml_dtypes.finfo(got.dtype).nmant) if got.dtype.itemsize <= 2 else int(np.finfo(got.dtype).nmant)
    step = 2.0 ** (np.floor(np.log2(np.abs(want))) - digits)
    error = np.abs(got.astype(np.float64) - want) / step
    return int((error > case.ulps).sum()), float(error.max(initial=0))


def on(target: str, group: list[Case], arrays: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
    """The results of cases of one type on a target, each a kernel."""
    import tensorir as tir
    from tensorir.check.emulate import emulate
    from tensorir.interp.numbers import Numbers
    from tensorir.interp.reference import evaluate
    from tensorir.interp.run import run
    from tensorir.lower.pipeline import lower

    x, y = arrays
    dtype, n = group[0].dtype, len(x)
    X, Y = (tir.placeholder((n,), dtype, name=name) for name in "XY")

    def declared(case: Case) -> Callable[[Any], Any]:
        return lambda i: case.declared(tir, X[i], Y[i])

    outputs = [tir.compute((n,), declared(c), name=f"c{k}") for k, c in enumerate(group)]
    given = [a for a, t in zip((x, y), (X, Y), strict=True) if t in inputs_of(outputs)]
    if target == "reference":
        return list(evaluate(outputs, given))
    s = tir.Schedule(outputs, target="cuda" if target == "interpreter" else target)
    for k, c in enumerate(group):
        if target in ("interpreter", "cuda"):
            s.bind(s.split(f"c{k}.i", [None, 64])[0], "block.x").bind(f"c{k}.i.1", "thread.x")
        elif c.lanes > 1:
            s.vectorize(s.split(f"c{k}.i", [None, c.lanes])[1])
    if target == "cuda":
        return list(emulate(s.emitted(), given).outputs)
    if target == "interpreter":
        numbers, module = Numbers(), lower(s.program, s.target)
        names = [b.name for b in module.inputs]
        found = run(module, {m: numbers.inputs(a, dtype).ravel() for m, a in zip(names, given, strict=True)}, numbers)
        return [found[b.name].astype(kind_of(b.dtype)) for b in module.outputs]
    got = s.build()(*given)
    return list(got if isinstance(got, tuple) else (got,))


def inputs_of(outputs: Any) -> Any:
    """The placeholders that outputs read."""
    from tensorir.expr.program import inputs_of as found

    return set(found(outputs))


def groups(every: list[Case]) -> Iterator[list[Case]]:
    """Cases that read the same numbers: of one type, those whose operands are restricted alone."""
    alone = [c for c in every if c.ulps or c.name.removeprefix("cast to ") in WHOLE or c.dtype in WHOLE]
    left = [c for c in every if c not in alone]
    for dtype in dict.fromkeys(c.dtype for c in left):
        same = [c for c in left if c.dtype == dtype]
        for n in range(0, len(same), 16):
            yield same[n : n + 16]
    keys: dict[tuple[str, str], list[Case]] = {}
    for c in alone:
        keys.setdefault((c.dtype, "ulps" if c.ulps else c.name if c.dtype in FLOATS else ""), []).append(c)
    yield from keys.values()


def references(python: str, elements: int, seed: int) -> dict[str, np.ndarray]:
    """What another Python's NumPy answers, by case."""
    with tempfile.TemporaryDirectory(prefix="float-bits-") as folder:
        path = Path(folder) / "answers.npz"
        subprocess.run([python, __file__, "--answers", str(path), "--elements", str(elements), "--seed", str(seed)],
                       check=True)  # fmt: skip
        with np.load(path) as found:
            return {name: found[name] for name in found.files}


def numbered(elements: int, seed: int) -> Iterator[tuple[list[Case], tuple[np.ndarray, np.ndarray]]]:
    """Groups of cases with their operands: the same for every Python."""
    every = list(cases())
    each = -(-elements // len(every))
    for n, group in enumerate(groups(every)):
        yield group, operands(group[0], each, np.random.default_rng([seed, n]))


def plain(x: np.ndarray) -> np.ndarray:
    """An array as files hold it."""
    return x if x.dtype.isbuiltin == 1 else x.view(f"uint{8 * x.dtype.itemsize}")


def versions() -> dict[str, str]:
    """What ran."""
    import ml_dtypes

    return {"python": platform.python_version(), "numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__,
            "machine": platform.machine()}  # fmt: skip


def compare(
    targets: list[str], elements: int, seed: int, others: dict[str, dict[str, np.ndarray]], state: Path | None = None
) -> dict[str, Any]:
    """The differences of each target, by case; others: answers of other versions of NumPy, by their names."""
    done: dict[str, Any] = json.loads(state.read_text()) if state and state.exists() else {}
    for n, (group, arrays) in enumerate(numbered(elements, seed)):
        want = [answer(c, *arrays) for c in group]
        for target in ("numpy", *targets):
            key = f"{target}:{n}"
            if key in done:
                continue
            got = want if target == "numpy" else on(target, group, arrays)
            row: dict[str, Any] = {
                "kernels": len(group),
                "elements": len(arrays[0]) * len(group),
                "wrong": {},
                "ulps": {},
            }
            for c, g, w in zip(group, got, want, strict=True):
                for name, answers in {"": {c.key: w}, **others}.items():
                    theirs = answers[c.key]
                    theirs = theirs if theirs.dtype == w.dtype else theirs.view(w.dtype)
                    if target == "numpy" and not name:
                        continue
                    wrong, ulps = apart(c, g, theirs) if target != "numpy" or not c.ulps else (0, 0.0)
                    if wrong:
                        row["wrong"][f"{c.key}{f' ({name})' if name else ''}"] = wrong
                    if c.ulps:
                        row["ulps"][c.key] = ulps
            done[key] = row
            print(target, group[0].dtype, f"{len(group)} cases", row["wrong"] or "equal", flush=True)
            if state:
                state.write_text(json.dumps(done))
    out: dict[str, Any] = {}
    for key, row in done.items():
        at = out.setdefault(key.partition(":")[0], {"kernels": 0, "elements": 0, "wrong": {}, "ulps": {}})
        at["kernels"] += row["kernels"]
        at["elements"] += row["elements"]
        at["wrong"] |= row["wrong"]
        at["ulps"] |= row["ulps"]
    return out


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reference", action="append", default=[], help="another Python, with NumPy and ml_dtypes")
    parser.add_argument("--elements", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    if options.answers:
        made = {c.key: plain(answer(c, *arrays)) for group, arrays in numbered(options.elements, seed) for c in group}
        np.savez(options.answers, **made, version=np.array(np.__version__))
        return 0
    print(f"seed {seed}", flush=True)
    others = {}
    for python in options.reference:
        found = references(python, options.elements, seed)
        others[f"numpy {found.pop('version')}"] = found
    started = time.perf_counter()
    result = compare(options.target or list(TARGETS), options.elements, seed, others, options.state)
    wrong = {t: r["wrong"] for t, r in result.items() if r["wrong"]}
    record = {"date": date.today().isoformat(), "seed": seed, **versions(), "references": sorted(others),
              "seconds": round(time.perf_counter() - started), "targets": result}  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({t: (r["kernels"], r["elements"], sum(r["wrong"].values())) for t, r in result.items()}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
