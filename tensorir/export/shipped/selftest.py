"""Tests the program of this folder, or all of them, on this machine: ``python selftest.py [TARGET ...]``.

Inputs are made by a fixed generator of integers; what must come out was computed by a reference that knows
nothing of the kernel, and ships here as arrays or digests. Buffers are put between canaries where the loader can do so.
Without a TARGET every target runs whose framework is installed, and the others are named. Exit status 0 and a line
"selftest ok TARGET ..." when everything is right, else 1 and the error: also where a named TARGET cannot run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
EDGE = 4096  # bytes of canary on each side; a multiple of what devices require of the start of a part
CANARY, NAN = 0xA5, 0xFF


class WrongError(Exception):
    """The program gives wrong results."""


def load(name: str = "loader") -> ModuleType:
    """Import a module of this folder by path, writing no bytecode."""
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location(f"exported_{name}", HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise WrongError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def integers(count: int, low: int, high: int, seed: int) -> np.ndarray:
    """``count`` pseudo-random integers in ``low ... high`` from a hashed counter, equal on every machine."""
    x = np.arange(1, count + 1, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = (x ^ (x >> np.uint64(31))) >> np.uint64(1)
    return (x % np.uint64(high - low + 1)).astype(np.int64) + low


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Integers in the storage format of a dtype (bit patterns for narrow floats)."""
    if dtype.startswith("float8_"):
        every = as_double(np.arange(0x7C, dtype=np.uint8), dtype)
        return np.asarray(np.searchsorted(every, np.abs(values)) + 0x80 * (values < 0), np.uint8)
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def as_double(array: np.ndarray, dtype: str) -> np.ndarray:
    """Stored values as float64, for comparisons."""
    if dtype.startswith("float8_"):
        return of_8_bits(array, 3 if dtype == "float8_e4m3" else 2)
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def of_8_bits(array: np.ndarray, mantissa: int) -> np.ndarray:
    """Values of 8-bit floats: e4m3 (3 mantissa bits, no infinities) or e5m2."""
    size, bias = array.astype(np.int64) & 0x7F, 7 if mantissa == 3 else 15
    exponent, rest = size >> mantissa, size & ((1 << mantissa) - 1)
    value = np.ldexp(
        (rest + ((exponent > 0) << mantissa)).astype(np.float64), np.maximum(exponent, 1) - bias - mantissa
    )
    if mantissa == 3:
        value[size == 0x7F] = np.nan
    else:
        value[size >= 0x7C] = np.where(rest[size >= 0x7C] > 0, np.nan, np.inf)
    return np.asarray(np.where(array >= 0x80, -value, value))


def run_guarded(program: Any, inputs: dict[str, np.ndarray], poison: int) -> dict[str, np.ndarray]:
    """Outputs of a run with guard bytes around buffers; WrongError if those or an input changed."""
    memories: dict[str, Any] = {}
    wholes: dict[str, Any] = {}
    hosts: dict[str, Any] = {}
    for p in (*program.inputs, *program.outputs):
        name, output = p["name"], p["role"] == "output"
        if p["role"] == "scalar":
            memories[name] = scalar(inputs[name], p)
            continue
        nbytes = prod(p["shape"]) * stored(np.zeros(1), p["dtype"]).itemsize
        content = np.full(nbytes, poison, np.uint8) if output else inputs[name].reshape(-1).view(np.uint8)
        edge = np.full(EDGE, CANARY if output else NAN, np.uint8)  # reads beyond an input find NaN
        hosts[name] = np.concatenate([edge, content, edge])
        wholes[name] = program.filled(hosts[name])
        memories[name] = program.inside(wholes[name], EDGE, nbytes)
    program.run(memories)
    results = {}
    for p in (*program.inputs, *program.outputs):
        if p["role"] == "scalar":
            continue
        name, before = p["name"], hosts[p["name"]]
        after = np.empty_like(before)
        program.read(wholes[name], after)
        same = before == after
        if p["role"] == "output":
            results[name] = after[EDGE:-EDGE].view(stored(np.zeros(1), p["dtype"]).dtype).reshape(p["shape"])
            same[EDGE:-EDGE] = True
        if not same.all():
            raise WrongError(f"{name}: byte {int(np.argmin(same)) - EDGE} of its {before.size - 2 * EDGE} was written")
    return results


def compare(manifest: dict[str, Any], case: dict[str, Any], p: dict[str, Any], got: Any) -> None:
    """Compare one output with what is stored: bits where results are exact, else within the tolerance."""
    name, want = p["name"], case["expected"][p["name"]]
    exact = manifest["selftest"]["exact"]
    if "sha256" in want:
        plain = got + got.dtype.type(0) if got.dtype.kind == "f" else got  # no negative zeros
        if "float" in p["dtype"] and plain is got:  # bits, the sign first
            plain = got * (got != 1 << 8 * got.itemsize - 1)
        if hashlib.sha256(np.ascontiguousarray(plain).tobytes()).hexdigest() != want["sha256"]:
            raise WrongError(f"{name} is wrong: its digest is not that of the reference (seed {case['seed']})")
        return
    expected = np.load(HERE / want["file"], allow_pickle=False).reshape(got.shape)
    with np.errstate(invalid="ignore"):
        a, b = as_double(got, p["dtype"]), as_double(expected, p["dtype"])
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    allowed = 0.0 if exact else manifest["selftest"]["tolerance"].get(name, 0.0) * scale
    with np.errstate(invalid="ignore"):
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed))
    if "int" in p["dtype"]:  # beyond 2^53, different whole numbers are the same double
        a, b, wrong = got, expected, got != expected
    if wrong.any():
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape)) if wrong.shape else ()
        text = f"{name}{list(at)} is {a[at]}, should be {b[at]}; {int(wrong.sum())} of {wrong.size} elements are wrong"
        raise WrongError(f"{text} (seed {case['seed']})")


def test(targets: Sequence[str]) -> str:
    """Run every case of every program by each target; lines about what was tested, and what could not be."""
    manifest = load("common").read_manifest()
    legal = list(manifest["targets"])
    for name in targets:
        if name not in legal:
            raise WrongError(f"there is no target {name} in this folder, only {', '.join(legal)}")
    tested: dict[str, str] = {}
    skipped: dict[str, str] = {}
    done: dict[str, str] = {}  # by runner
    for name in targets or legal:
        runner = manifest["runners"][name]
        module, reason = runnable(runner)
        if reason and targets:
            raise WrongError(f"{name} cannot run: {reason}")
        if reason:
            skipped[name] = reason
            continue
        if runner not in done:
            try:
                done[runner] = run_all(module, manifest)
            except Exception as error:
                raise WrongError(f"{name}: {type(error).__name__}: {error}") from error
        tested[name] = done[runner]
    inner = {f"gradient of {of}": about for of, about in manifest.get("backward", {}).items()}
    inner |= {f"batch of {about['items']}": about for about in manifest.get("batched", ())}
    for what, about in inner.items():
        needed = [name for name in tested if name in about["targets"]]
        try:
            said_of_it = load(f"{about['folder']}/selftest").test(needed) if needed else ""
        except Exception as error:
            raise WrongError(f"the {what}: {error}") from error
        tested |= {name: f"{tested[name]}; {what}: {said_of_it.rpartition(': ')[2]}" for name in needed}
    if not tested:
        raise WrongError("nothing was tested: " + "; ".join(f"{name}: {why}" for name, why in skipped.items()))
    said = [f"selftest ok {' '.join(tested)}: {next(iter(tested.values()))}"]
    return "\n".join([*said, *(f"skipped {name}: {why}" for name, why in skipped.items())])


def runnable(runner: str) -> tuple[Any, str]:
    """(module that runs a target, reason why it cannot run here or "")."""
    try:
        module = load(runner)
    except ModuleNotFoundError as error:
        return None, f"{error.name} is not installed"
    except ImportError as error:
        return None, f"it cannot be imported: {error}"
    return module, module.missing()


def run_all(module: ModuleType, manifest: dict[str, Any]) -> str:
    """Run every case of every program by one loader; returns a summary."""
    if "programs" in manifest:
        programs = load("dispatch").Programs()
        tested = [chosen(programs, n).manifest["selftest"] for n in range(len(manifest["programs"]))]
        name = f"{manifest['name']}, {len(tested)} shapes"
    else:
        whole = module.Program(manifest=manifest)
        run_cases(whole)
        tested, name = [whole.manifest["selftest"]], manifest["name"]
    how = "exact" if all(t["exact"] for t in tested) else "within rounding"
    return f"{name}, {sum(len(t['cases']) for t in tested)} cases, {how}"


def chosen(programs: Any, number: int) -> Any:
    """The program that dispatch selects for shape ``number``; WrongError if it is the wrong one."""
    about = programs.manifest["programs"][number]
    said = " ".join(f"{name}={value}" for name, value in about["parameters"].items())
    kernel = programs.choose(**about["parameters"])
    if kernel != {"template": about["template"], "config": about["config"]}:
        raise WrongError(f"{said}: choose.py says {kernel}, the manifest kernel {about['kernel']}")
    program = programs(**about["parameters"])
    if program.manifest != about:
        raise WrongError(f"{said}: the program of {program.manifest['parameters']} was chosen")
    try:
        run_cases(program)
    except WrongError as error:
        raise WrongError(f"{said}: {error}") from None
    return program


def run_cases(whole: Any) -> None:
    """Run every case of a program and compare."""
    for number, case in enumerate(whole.manifest["selftest"]["cases"]):
        run_case(whole, case, (0xFF, 0x5A) if number == 0 else (0xFF,))


def run_case(whole: Any, case: dict[str, Any], poisons: Sequence[int]) -> None:
    """Run one case and compare; outputs are prefilled with ``poisons``."""
    manifest, inputs = whole.manifest, dict[str, Any]()
    arguments = shaped(manifest["arguments"], case.get("dims"))
    for n, about in enumerate(case.get("inputs", manifest["selftest"]["inputs"])):
        p = next(p for p in arguments if p["name"] == about["name"])
        values = integers(prod(p["shape"]), about["low"], about["high"], case["seed"] * 1000 + n)
        if steps := about.get("steps"):  # (step, inner, extent): so much more for each place along a dimension
            values = values + np.arange(len(values)) // steps[1] % steps[2] * steps[0]
        inputs[p["name"]] = stored(values, p["dtype"]).reshape(p["shape"])
    constants = [p["name"] for p in arguments if p["role"] == "constant"]
    fixed = {name: inputs[name] for name in constants if name in inputs}
    program = whole.prepack(**fixed) if fixed and hasattr(whole, "prepack") else whole
    there = program.at(case["dims"]) if "dims" in case and hasattr(program, "inside") else program
    for poison in poisons if hasattr(there, "inside") else ():
        results = run_guarded(there, inputs, poison)
        for p in program.outputs:
            compare(manifest, case, p, results[p["name"]])
    made = program(
        *(scalar(inputs[p["name"]], p).item() if p["role"] == "scalar" else inputs[p["name"]] for p in program.inputs)
    )
    for p, got in zip(program.outputs, made if isinstance(made, tuple) else (made,), strict=True):
        if tuple(got.shape) != tuple(next(q["shape"] for q in arguments if q["name"] == p["name"])):
            raise WrongError(f"{p['name']} has the shape {tuple(got.shape)}")
        compare(manifest, case, p, got)


def shaped(arguments: list[dict[str, Any]], dims: dict[str, int] | None) -> list[dict[str, Any]]:
    """Arguments with shapes evaluated at given dims."""
    if dims is None:
        return arguments
    values = load("extents").values
    return [{**p, "shape": list(values(tuple(p["shape"]), dims))} for p in arguments]


def scalar(array: np.ndarray, p: dict[str, Any]) -> Any:
    """A scalar argument as kernels take it, narrow floats as float32."""
    narrow = "float" in p["dtype"] and array.itemsize < 4
    return (as_double(array.reshape(1), p["dtype"]).astype(np.float32)[0]) if narrow else array[()]


def main(targets: Sequence[str] = ()) -> int:
    """Run the self-test; returns the exit status."""
    try:
        print(test(targets))
    except Exception as error:
        print(f"selftest failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
