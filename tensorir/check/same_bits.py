"""Compares printed CUDA text with its lowered program bit by bit: emulator against interpreter, on arbitrary floats.

``equivalence.py`` tests that the lowered program equals the definition in a prime field, without rounding. Here the
printed text must give the lowered program's bits. Both sides compute::

    +  -  *  /             IEEE 754, each rounds (``-ffp-contract=off``); fused operations are explicit ``fma``
    exp tanh pow …         one compiled table, linked by the emulator and called by the interpreter (``functions.cpp``)
    tensor-core products   order and rounding of ``interp/tensor_cores.py``
    NaN                    any NaN equals any NaN
    zeros                  differ by their signs; in min and max -0 is less than 0
    atomic float sums      have no order: such programs are compared with their definitions instead

The bits are the emulator's. A GPU may contract, has its own functions, and adds up products in another order.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorir.check.designed_inputs import any_bits
from tensorir.check.emulate import table_library
from tensorir.check.equivalence import argument_names
from tensorir.check.exact_inputs import free_inputs, longest_sum
from tensorir.codegen.instructions import GUARD, rounded_tiles
from tensorir.codegen.source import Source
from tensorir.errors import Problem
from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.memory import Fault
from tensorir.interp.numbers import Numbers, numpy_dtype
from tensorir.interp.reference import arguments_of, random_arguments
from tensorir.interp.run import run
from tensorir.interp.sizes import tensors_read
from tensorir.interp.tensor_cores import PLAIN_PRODUCT, THREE_TF32, TensorCore, cut, nearest, nearest_even, tf32
from tensorir.interp.ulps import fast_functions
from tensorir.interp.uses import bitcast_floats, gather_limits, reads_bits
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, Call, Expr, IntrinCall, Store
from tensorir.ir.visit import find, writes
from tensorir.lower.kernel import Module
from tensorir.target import Target


@dataclass(frozen=True)
class Arbitrary:
    """Random inputs of arbitrary numbers. about: a description;  seed: of the random generator"""

    arrays: list[np.ndarray]
    about: str
    seed: int


class EmulatorNumbers(Numbers):
    """Arithmetic of the emulator, for the interpreter.

    undefined: becomes True once a float is converted to an integer type that cannot hold it: these bits are unspecified
    """

    def __init__(self, target: Target, rounded: frozenset[Buffer] = frozenset()) -> None:
        self.undefined = False
        self._fast, self._rounded = fast_functions(target), rounded

    def scalar(self, value: object, dtype: str) -> object:
        return (
            self.storage(dtype).type(np.asarray(value).item())
            if DTYPES[dtype].kind == "f"
            else super().scalar(value, dtype)
        )

    def call(self, fn: str, args: list[object], dtype: str, given: str) -> object:
        if fn in TABLE_FUNCTIONS and DTYPES[dtype].kind == "f":
            return of_table(fn, args, self._fast and fn == "exp" and dtype != "float64")
        return super().call(fn, args, dtype, given)

    def cast(self, x: object, old: str, new: str) -> object:
        if DTYPES[old].kind == "f" and DTYPES[new].kind in "iu":
            with np.errstate(invalid="ignore"):
                whole = np.trunc(np.asarray(x).astype(np.float64))
                kind = DTYPES["int32" if new == "index" else new]
                self.undefined |= not bool(np.all((whole >= kind.low) & (whole <= kind.high)))
        return super().cast(x, old, new)

    def tensor_core(self, call: IntrinCall) -> TensorCore | None:
        name, *kinds = call.intrin.name.split(".")
        own = GUARD in call.intrin.prelude.get("cuda", "")  # the emulator derives others from their meanings
        if not own or name not in ("mma", "wgmma") or DTYPES[call.intrin.outputs[0].dtype].kind != "f":
            return None
        if "3xtf32" in kinds:
            return THREE_TF32
        if "tf32" not in kinds:
            return PLAIN_PRODUCT
        if name == "mma":
            return tf32(nearest, nearest)
        copied = {t.name: r.buffer in self._rounded for t, r in zip(call.intrin.operands, call.operands, strict=True)}
        return tf32(*(nearest_even if copied[n] else cut for n in ("a", "b")))


def has_order(module: Module) -> bool:
    """True if results are deterministic: no atomic addition of floats."""
    return not any(x.adds and DTYPES[x.buffer.dtype].kind == "f" for k in module.kernels for x in find(k.body, Store))


# --- inputs


def arbitrary(outputs: tuple[Tensor, ...], conditions: Sequence[Expr], seed: int) -> Iterator[Arbitrary]:
    """Yield one or two sets of random inputs: normal numbers, denormals, zeros of both signs; then infinities and NaNs
    too.
    """
    few = random_arguments(outputs, seed, conditions=conditions)
    floats, whole = _open(outputs, few, conditions)
    yield Arbitrary(_filled(outputs, few, floats, whole, seed, 0.0), ", of any digits", seed)
    if any(floats) and not bitcast_floats(outputs) and not _bits_of_floats(outputs):
        share = min(0.02, 0.2 / longest_sum(outputs))  # a NaN hides what it is added to
        yield Arbitrary(_filled(outputs, few, floats, whole, seed, share), ", with infinities and NaNs", seed)


def tame(outputs: tuple[Tensor, ...], conditions: Sequence[Expr], seed: int) -> Arbitrary:
    """Random inputs with floats of moderate size, so that float-to-integer conversions of the declaration stay in
    range.
    """
    few = random_arguments(outputs, seed, conditions=conditions)
    floats, _ = _open(outputs, few, conditions)
    rng = np.random.default_rng(seed)
    made = [x * rng.uniform(0.5, 1.0, x.shape) if f else x for x, f in zip(few, floats, strict=True)]
    return Arbitrary([np.asarray(x, y.dtype) for x, y in zip(made, few, strict=True)], ", of a middling size", seed)


def _open(
    outputs: tuple[Tensor, ...], few: Sequence[np.ndarray], conditions: Sequence[Expr]
) -> tuple[list[bool], list[bool]]:
    """Two lists with one boolean per input: true if it may hold any floats; true if it may hold any integers.

    few: inputs of small whole numbers
    """
    asked, fixed = {t for c in conditions for t in tensors_read(c)}, {*gather_limits(outputs)}
    given = arguments_of(outputs)
    floats = [DTYPES[a.dtype].kind == "f" and a not in asked and a not in fixed for a in given]
    wide = [
        f and DTYPES[a.dtype].kind in "iu" and not reads_bits(outputs)
        for f, a in zip(free_inputs(outputs, few, conditions), given, strict=True)
    ]
    return floats, wide


def _bits_of_floats(outputs: tuple[Tensor, ...]) -> bool:
    """True if the declaration reinterprets floats as integers, where NaNs would have several values."""
    calls = (c for op in computes_of(outputs) for b in op.bodies for c in find(b, Call))
    return any(c.fn == "bitcast" and DTYPES[c.args[0].dtype].kind == "f" for c in calls)


def _filled(
    outputs: tuple[Tensor, ...], few: Sequence[np.ndarray], floats: Sequence[bool], whole: Sequence[bool], seed: int,
    share: float,
) -> list[np.ndarray]:  # fmt: skip
    rng = np.random.default_rng([seed, 40])
    made = []
    for a, x, f, w in zip(arguments_of(outputs), few, floats, whole, strict=True):
        if w:
            x = any_bits(rng, x)
        elif f:
            x = _floats(rng, np.shape(x), a.dtype, share)
        made.append(x)
    return made


def _floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, share: float) -> np.ndarray:
    """Random floats: normal numbers, some denormals and signed zeros, and a fraction ``share`` each of infinities and
    NaNs.
    """
    kind = DTYPES[dtype]
    x, which = rng.standard_normal(shape), rng.random(shape)
    x = np.where(which < 0.01, np.copysign(kind.normal * rng.random(shape), x), x)
    x = np.where((which >= 0.01) & (which < 0.04), np.copysign(0.0, x), x)
    if np.size(x) > 1 and share:
        x = np.where((which >= 0.1) & (which < 0.1 + share), np.copysign(np.inf, x), x)
        x = np.where((which >= 0.2) & (which < 0.2 + share), np.nan, x)
        x.flat[rng.integers(x.size, size=2)] = np.inf, np.nan  # one of each at least
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(numpy_dtype(dtype))


# --- comparison


def interpreted(
    module: Module, outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], target: Target
) -> tuple[list[np.ndarray], bool]:
    """(results of the lowered program on ``arrays``, in the emulator's arithmetic; False if an out-of-range conversion
    makes them undefined, else True).
    """
    rounded = frozenset(b for k in module.kernels for b in rounded_tiles(k.body))
    numbers = EmulatorNumbers(target, rounded)
    given: Mapping[str, object] = {
        name: numbers.inputs(x, a.dtype) if np.ndim(x) else x
        for name, a, x in zip(argument_names(module, outputs), arguments_of(outputs), arrays, strict=True)
    }
    made = run(module, given, numbers)
    with np.errstate(all="ignore"):
        out = [np.asarray(made[b.name]).astype(numpy_dtype(b.dtype)) for b in module.outputs]
    return out, not numbers.undefined


@dataclass(frozen=True)
class LoweredBits:
    """Inputs ``given`` and the lowered program's results ``wanted`` on them, or the Problem on which it stopped."""

    given: Arbitrary
    wanted: list[np.ndarray] | Problem


def expected(
    module: Module, outputs: tuple[Tensor, ...], conditions: Sequence[Expr], seed: int, target: Target
) -> list[LoweredBits]:
    """The lowered program's results, one entry per set of arbitrary inputs, or ``tame`` ones if results on those are
    undefined; sets with undefined results on both are left out.

    [] if bits are not determined: atomic float sums, or undefined results on all inputs.
    """
    if not has_order(module):
        return []
    found = (_defined(module, outputs, given, conditions, target) for given in arbitrary(outputs, conditions, seed))
    return [x for x in found if x is not None]


def _defined(
    module: Module, outputs: tuple[Tensor, ...], given: Arbitrary, conditions: Sequence[Expr], target: Target
) -> LoweredBits | None:
    for tried in (given, tame(outputs, conditions, given.seed)):
        try:
            wanted, defined = interpreted(module, outputs, tried.arrays, target)
        except Fault as fault:
            return LoweredBits(tried, fault.problem)
        if defined:
            return LoweredBits(tried, wanted)
    return None


def different(source: Source, module: Module, got: Sequence[np.ndarray], want: LoweredBits) -> Problem | None:
    """Problem ``check.other-bits`` for the first element of ``got`` whose bits differ from the lowered program's
    results ``want``, or the Problem on which that program stopped; None if equal.
    """
    given, wanted = want.given, want.wanted
    if isinstance(wanted, Problem):
        return wanted
    for p, b, g, w in zip(source.outputs, module.outputs, got, wanted, strict=True):
        g, w = np.asarray(g).reshape(p.shape), w.reshape(p.shape)
        other = apart(g, w)
        if other.any():
            at = tuple(int(i) for i in np.argwhere(other)[0])
            kernel = next((k.name for k in module.kernels if b in writes(k.body)), source.name)
            return Problem(
                "check.other-bits",
                f"{kernel}: {p.name}{list(at)} is {_told(g[at])} in the text and {_told(w[at])} in the lowered program "
                f"({int(other.sum())} of {w.size} elements differ; inputs of seed {given.seed}{given.about})",
            )
    return None


def apart(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Boolean mask of elements with different bits; two NaNs count as equal."""
    unlike = np.asarray(_bits(got) != _bits(want))
    if got.dtype.kind in "biu":
        return unlike
    return np.asarray(unlike & ~(np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))))


def _bits(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")).reshape(x.shape)


def _told(x: Any) -> str:
    bits = np.asarray(x)
    return f"{x} (0x{int(_bits(bits)):0{2 * bits.dtype.itemsize}x})"


# --- the emulator's table of functions


TABLE_FUNCTIONS = frozenset({"exp", "exp2", "log", "log2", "tanh", "erf", "sin", "cos", "rsqrt", "pow"})
"""Functions that no operation of C stands for."""


@functools.cache
def _loaded() -> tuple[ctypes.CDLL, object]:
    file = table_library()
    return ctypes.CDLL(str(file.path)), file


def of_table(fn: str, args: list[object], fast: bool) -> np.ndarray:
    """``fn(*args)`` elementwise in float32, or float64 for a float64 argument, by the emulator's compiled functions.

    fast: CUDA's fast float32 variant
    """
    x = np.asarray(args[0])
    kind = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    given = [np.ascontiguousarray(a) for a in np.broadcast_arrays(*(np.asarray(a, kind) for a in args))]
    out = np.empty(given[0].shape, kind)
    name = fn if kind == np.float64 else f"{'fast_' if fast else ''}{fn}f"
    library, _ = _loaded()
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (out, *given)]
    getattr(library, f"tir_each_{name}")(*pointers, ctypes.c_size_t(out.size))
    return out
