"""Base class and helpers of this folder's loaders; needs numpy only."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.util
import json
import math
import threading
from collections.abc import Sequence
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np

HERE = Path(__file__).resolve().parent
KEPT = 16
"""Extents for which a program keeps what it has prepared."""
NARROW = {"float16": (10, -14, 65504.0), "bfloat16": (7, -126, 255 * 2.0**120),
          "float8_e4m3": (3, -6, 448.0), "float8_e5m2": (2, -14, 57344.0)}  # fmt: skip
"""Narrow floats: bits of mantissa, least exponent, largest number."""


def read_manifest() -> dict[str, Any]:
    """The manifest, after verifying every file's digest."""
    manifest: dict[str, Any] = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
    for name, about in manifest["files"].items():
        if Path(name).name != name:
            raise ValueError(f"manifest.json names the file {name!r}, which is not in this folder")
        digest = hashlib.sha256((HERE / name).read_bytes()).hexdigest()
        if digest != about["sha256"]:
            raise ValueError(f"{name} was changed: its SHA-256 is {digest}, the manifest says {about['sha256']}")
    return manifest


def program_in(language: str, manifest: dict[str, Any] | None = None) -> dict[str, Any]:
    """Manifest entry of the program in ``language``."""
    whole = manifest or read_manifest()
    return whole if whole["language"] == language else {**whole, **whole["bodies"][language]}


def dtype_of(name: str) -> np.dtype:
    """Storage dtype: unsigned integers for bfloat16 and 8-bit floats."""
    return np.dtype({"bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}.get(name, name))


def arrays_of(kernel: dict[str, Any]) -> set[str]:
    """Names of a kernel's arrays, a tensor map counting as its array."""
    arrays = {m["name"]: m["array"] for m in kernel["maps"]}
    return {arrays.get(name, name) for name in kernel["args"]}


@functools.cache
def extents() -> ModuleType:
    """This folder's module that evaluates extents."""
    spec = importlib.util.spec_from_file_location("tensorir_folder_extents", HERE / "extents.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check_segments(about: dict[str, Any], pointers: np.ndarray) -> None:
    """ValueError unless segment pointers increase by 0 to ``most``."""
    steps = np.moveaxis(pointers, about["along"], 0).astype(object)
    sizes = steps[1:] - steps[:-1]
    wrong = (sizes < 0) | (sizes > about["most"])
    if wrong.any():
        at = int(np.argwhere(wrong)[0][0])
        have = sizes[tuple(np.argwhere(wrong)[0])]
        raise ValueError(
            f"{about['param']}: neighbours {at} and {at + 1} differ by {have}, not by 0 to {about['most']}"
        )


def check_indices(gathers: Sequence[dict[str, Any]], name: str, values: Any) -> None:
    """Raise for elements of index argument ``name`` out of range."""
    for g in gathers:
        if g["param"] == name:
            part = tuple(slice(*p) if p else slice(None) for p in g.get("part", ()))
            seen = values[part] if part else values
            if seen.size and not (seen.min() >= 0 and seen.max() < g["limit"]):
                inside = ", ".join(f"{s.start}:{s.stop}:{s.step}" if s.step else ":" for s in part)
                shown = f"{name}[{inside}]" if part else name
                raise ValueError(f"{shown}: an index is not in 0 ... {g['limit'] - 1}")


def _check_unique(about: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Raise if two terms of a scatter have the same target."""
    domain = tuple(about["domain"])
    axes, columns = np.ix_(*map(np.arange, domain)), []
    for name, at in about["index"]:
        fixed = not name and at[0] < 0
        there = tuple(axes[n] if n >= 0 else -1 - n for n in at)
        found = arrays[name][there] if name else np.array(at[1]) if fixed else axes[at[0]]
        columns.append(np.broadcast_to(found, domain).reshape(-1))
    cells = np.stack(columns, axis=1) if columns else np.zeros((prod(domain), 0))
    places, counts = np.unique(cells, axis=0, return_counts=True)
    if (counts > 1).any():
        cell = [int(i) for i in places[int(np.argmax(counts > 1))]]
        raise ValueError(f"{about['into']}: more than one term goes to cell {cell}")


class Base:
    """A loaded program: checks arguments, runs kernels marked "once" once, returns results in the arguments' array
    type.

    Subclasses implement memory (``buffer``, ``filled``, ``inside``, ``read``, ``run``) and their framework's arrays
    (``memory``, ``place``, ``shared``, ``new``, ``ready``), set ``kernels`` and call ``_begin``.
    """

    array: Any = ()
    """The type of the framework's own arrays."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.kernels: list[tuple[dict[str, Any], Any]] = []
        self.manifest = manifest
        self.lock = threading.Lock()
        self._take(manifest["arguments"])
        self.fixed: dict[str, Any] = {}
        self.made: dict[tuple[int, ...], Any] = {}  # by extents

    def _take(self, arguments: list[dict[str, Any]]) -> None:
        self.inputs = [p for p in arguments if p["role"] in ("input", "scalar")]
        self.outputs = [p for p in arguments if p["role"] == "output"]

    def at(self, dims: dict[str, int]) -> Self:
        """This program at given dims; kernels are shared."""
        key = tuple(dims.values())
        if key not in self.made:
            while len(self.made) >= KEPT:
                del self.made[next(iter(self.made))]
            made, values = copy.copy(self), extents().values
            arguments = [{**p, "shape": list(values(tuple(p["shape"]), dims))} for p in self.manifest["arguments"]]
            kernels = [{**k, "grid": list(values(tuple(k["grid"]), dims))} for k in self.manifest["kernels"]]
            gathers = [{**g, "limit": values((g["limit"],), dims)[0]} for g in self.manifest["gathers"]]
            unique = [{**u, **{side: values(tuple(u[side]), dims) for side in ("domain", "shape")}}
                      for u in self.manifest.get("unique", ())]  # fmt: skip
            made.manifest = {
                **self.manifest,
                "dims": [],
                "arguments": arguments,
                "kernels": kernels,
                "gathers": gathers,
                "unique": unique,
            }
            made._take(arguments)
            by_name = {k["name"]: k for k in kernels}
            made.kernels = [(by_name[k["name"]], kernel) for k, kernel in self.kernels]
            made.inputs = [p for p in made.inputs if p["name"] not in self.fixed]
            made.fixed, made.made = self.fixed | {name: np.int32(n) for name, n in dims.items()}, {}
            made._begin()
            self.made[key] = made
        found: Self = self.made[key]
        return found

    def told(self, arrays: Sequence[object]) -> dict[str, int]:
        """{dim: value} from array shapes; ValueError if inconsistent or out of range."""
        pairs = zip(self.inputs, arrays, strict=True)
        told, faults = extents().told([(p["name"], p["shape"], getattr(a, "shape", ())) for p, a in pairs])
        if faults:
            raise ValueError(faults[0])
        found = {d["name"]: told.get(d["name"], (d["low"], ""))[0] for d in self.manifest["dims"]}
        for d in self.manifest["dims"]:
            if not d["low"] <= found[d["name"]] <= d["high"]:
                raise ValueError(f"{d['name']} is {d['low']} to {d['high']}, got {found[d['name']]}")
        return found

    def _begin(self) -> None:
        if self.manifest.get("dims"):
            return
        for p in self.manifest["arguments"]:
            if p["role"] == "workspace":
                self.fixed[p["name"]] = self.buffer(prod(p["shape"]) * dtype_of(p["dtype"]).itemsize)
            elif p["role"] == "constant" and p["name"] not in self.fixed:
                self.fixed[p["name"]] = self.filled(np.frombuffer((HERE / p["file"]).read_bytes(), np.uint8))
        self._run_early()

    def prepack(self, **arrays: object) -> Self:
        """This program with inputs fixed that only kernels marked "once" read: those run here, not in every call."""
        legal = {p["name"]: p for p in self.manifest["arguments"] if p["name"] in self.manifest["prepack"]}
        if not arrays or set(arrays) - set(legal):
            raise TypeError(f"prepack takes one or more of {list(legal)} by name, got {list(arrays)}")
        made = copy.copy(self)
        made.inputs = [p for p in self.inputs if p["name"] not in arrays]
        made.fixed = self.fixed | {name: self._in(legal[name], a, True) for name, a in arrays.items()}
        if self.manifest.get("dims"):  # they run where the extents are known
            made.made = {}
        else:
            made._run_early()
        return made

    def _run_early(self) -> None:
        """Run the kernels marked "once" that need no array of the caller, into memory of this program's own."""
        late = {p["name"] for p in self.inputs}
        spaces = {p["name"]: p for p in self.manifest["arguments"] if p["role"] == "workspace"}
        once = [arrays_of(k) for k, _ in self.kernels if k["once"]]
        for _ in once:  # what a late one may write is late as well
            late |= {name for args in once if args & late for name in args & spaces.keys()}
        for name in set().union(*once) & spaces.keys():
            self.fixed[name] = self.buffer(prod(spaces[name]["shape"]) * dtype_of(spaces[name]["dtype"]).itemsize)
        self.launches = [x for x in self.kernels if x[0]["once"] and not late & arrays_of(x[0])]
        early = [k["name"] for k, _ in self.launches]
        self.run({})
        self.launches = [x for x in self.kernels if x[0]["name"] not in early]

    def __call__(self, *arrays: object, out: object = None) -> Any:
        """Run on arrays in the order of ``inputs``; an array, or a tuple when there are several outputs."""
        if len(arrays) != len(self.inputs):
            names = ", ".join(p["name"] for p in self.inputs)
            raise TypeError(f"expected {len(self.inputs)} arguments ({names}), got {len(arrays)}")
        if self.manifest.get("dims"):
            return self.at(self.told(arrays))(*arrays, out=out)
        given = out if isinstance(out, tuple | list) else () if out is None else (out,)
        if given and len(given) != len(self.outputs):
            raise TypeError(f"expected {len(self.outputs)} arrays in out, got {len(given)}")
        self._places({p["name"]: a for p, a in zip(self.inputs, arrays, strict=True) if p["role"] == "input"})
        self.ready([a for a in (*arrays, *given) if isinstance(a, self.array)])
        native = any(isinstance(a, self.array) for a in arrays)
        memories: dict[str, Any] = {}
        results: list[Any] = []
        for p, a in zip(self.inputs, arrays, strict=True):
            memories[p["name"]] = scalar(p, a) if p["role"] == "scalar" else self._in(p, a)
        for n, p in enumerate(self.outputs):
            empty = self.new if native else np.empty
            result = given[n] if given else empty(tuple(p["shape"]), dtype_of(p["dtype"]))
            self.check(p, result)
            for q, other in (*zip(self.inputs, arrays, strict=True), *zip(self.outputs, results, strict=False)):
                if self.overlap(result, other, q["role"] == "output"):
                    raise ValueError(f"{p['name']}: expected memory of its own, got memory that overlaps {q['name']}")
            results.append(result)
            memories[p["name"]] = self.memory(result) if isinstance(result, self.array) else self.buffer(result.nbytes)
        self.run(memories)
        for p, result in zip(self.outputs, results, strict=True):
            if not isinstance(result, self.array):
                self.read(memories[p["name"]], result)
        return out if out is not None else results[0] if len(results) == 1 else tuple(results)

    def _in(self, p: dict[str, Any], a: Any, keep: bool = False) -> Any:
        """Device memory of an input; a private copy if ``keep``."""
        self.check(p, a)
        native = isinstance(a, self.array)
        if any(g["param"] == p["name"] for g in self.manifest["gathers"]):
            check_indices(self.manifest["gathers"], p["name"], self.values(a) if native else a)
        if native:
            return self.filled(a.get()) if keep else self.memory(a)
        return self.filled(a)

    def _places(self, arrays: dict[str, Any]) -> None:
        """Raise for unordered segment pointers and colliding scatter targets."""
        asked = {s["param"] for s in self.manifest.get("segments", ())}
        asked |= {name for u in self.manifest.get("unique", ()) for name, _ in u["index"] if name}
        here = {n: self.values(a) if isinstance(a, self.array) else np.asarray(a)
                for n, a in arrays.items() if n in asked}  # fmt: skip
        for s in self.manifest.get("segments", ()):
            if s["param"] in here:
                _check_segments(s, here[s["param"]])
        for u in self.manifest.get("unique", ()):
            if {name for name, _ in u["index"] if name} <= here.keys():
                _check_unique(u, here)

    def check(self, p: dict[str, Any], a: Any) -> None:
        """Raise unless array ``a`` fits argument ``p``."""
        kind = dtype_of(p["dtype"])
        if not hasattr(a, "dtype") or hasattr(a, "mask"):
            raise TypeError(f"{p['name']}: expected an array of {p['dtype']}, got {type(a).__name__}")
        if a.dtype != kind and str(a.dtype) != p["dtype"].replace("e4m3", "e4m3fn"):
            raise TypeError(f"{p['name']}: expected {p['dtype']}, got {a.dtype}")
        if tuple(a.shape) != tuple(p["shape"]):
            raise ValueError(f"{p['name']}: expected shape {tuple(p['shape'])}, got {tuple(a.shape)}")
        if (p["role"] == "output" or not isinstance(a, np.ndarray)) and not a.flags.c_contiguous:
            raise ValueError(f"{p['name']}: expected a C-contiguous array")
        if not isinstance(a, np.ndarray) and self.place(a) % p["align"]:
            raise ValueError(f"{p['name']}: expected an array aligned to {p['align']} bytes")

    def overlap(self, result: object, other: object, written: bool) -> bool:
        """True if writing an output would alter another argument; read-only host arrays are copied instead."""
        if isinstance(result, self.array) and isinstance(other, self.array):
            return self.shared(result, other)
        both = isinstance(result, np.ndarray) and isinstance(other, np.ndarray)
        return written and both and np.may_share_memory(result, other)

    def run(self, memories: dict[str, object]) -> None:
        """Launch all kernels on memory (and NumPy scalars) by argument name, and wait."""
        raise NotImplementedError

    def buffer(self, nbytes: int) -> object:
        """Allocate memory."""
        raise NotImplementedError

    def filled(self, data: object) -> object:
        """Allocate memory initialized with ``data``."""
        raise NotImplementedError

    def inside(self, memory: object, offset: int, nbytes: int) -> object:
        """A slice of memory, in bytes."""
        raise NotImplementedError

    def read(self, memory: object, array: object) -> None:
        """Copy memory into a NumPy array."""
        raise NotImplementedError

    def memory(self, a: object) -> object:
        """Memory of a framework array."""
        raise NotImplementedError

    def place(self, a: object) -> int:
        """Start address of a framework array in bytes, for alignment checks."""
        raise NotImplementedError

    def shared(self, a: object, b: object) -> bool:
        """True if two framework arrays overlap in memory."""
        raise NotImplementedError

    def values(self, a: Any) -> Any:
        """A framework array usable by NumPy's min and max."""
        return a.get()

    def new(self, shape: tuple[int, ...], dtype: object) -> Any:
        """A new framework array."""
        raise NotImplementedError

    def ready(self, arrays: list[object]) -> None:
        """Raise for arrays of another device, and wait for pending writes to them."""


def scalar(p: dict[str, Any], value: Any) -> np.generic:
    """A scalar argument as kernels take it, narrow floats as float32; TypeError if not a number."""
    given = value[()] if isinstance(value, np.ndarray) and value.shape == () else value
    kind = np.dtype(np.float32) if p["dtype"] in NARROW else dtype_of(p["dtype"])
    if isinstance(given, np.generic):
        legal = str(given.dtype).replace("e4m3fn", "e4m3") == p["dtype"]
    else:
        legal = isinstance(given, int if kind.kind in "iub" else int | float)
    if not legal or (kind.kind in "iub" and int(np.array(given).astype(kind)) != given):
        raise TypeError(f"{p['name']}: expected a {p['dtype']} number, got {given!r:.40}")
    return kind.type(narrowed(p["dtype"], float(given)) if p["dtype"] in NARROW else given)


def narrowed(dtype: str, value: float) -> float:
    """``value`` rounded to nearest even in a narrow float type."""
    mantissa, least, most = NARROW[dtype]
    if math.isfinite(value):
        step = math.ldexp(1.0, max(math.frexp(value)[1] - 1, least) - mantissa)
        value = math.copysign(round(value / step) * step, value)
    if abs(value) <= most:
        return value
    return math.nan if dtype == "float8_e4m3" else math.copysign(math.inf, value) if value == value else value
