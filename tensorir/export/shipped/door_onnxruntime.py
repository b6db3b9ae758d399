"""The kernel of this folder as an operator of ONNX Runtime, on processors; needs numpy and onnxruntime 1.16 or newer.

options = onnxruntime.SessionOptions()
register(options)               # or options.register_custom_ops_library(...) with the library that manifest.json names
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

A model calls it by a node of the domain and the operator that manifest.json names. ``Program`` is a session with one.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime

HERE = Path(__file__).resolve().parent
TYPES = {"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
         "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16, "float8_e4m3": 17, "float8_e5m2": 19}  # fmt: skip
"""dtype -> ONNX's TensorProto.DataType."""


def sibling(name: str) -> ModuleType:
    """Import a module of this folder by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common, build = sibling("common"), sibling("build")


def missing() -> str:
    """Reason why the kernel cannot run here; "" if it can."""
    if tuple(int(word) for word in onnxruntime.__version__.split(".")[:2]) < (1, 16):
        return f"onnxruntime 1.16 or newer is needed, this is {onnxruntime.__version__}"
    try:
        build.library()
    except ImportError as error:
        return str(error)
    return ""


def register(options: onnxruntime.SessionOptions) -> None:
    """Add the operator to a session's options; the library is made first where this folder has none for this machine.

    Once for each options: ONNX Runtime refuses a domain that it knows already.
    """
    options.register_custom_ops_library(str(build.library(common.read_manifest())))


class Program:
    """An ONNX Runtime session with a single node; scalars are 0-d inputs."""

    def __init__(self, threads: int = 0, manifest: dict[str, Any] | None = None) -> None:
        self.manifest = common.program_in("c", manifest)
        self.inputs = [p for p in self.manifest["arguments"] if p["role"] in ("input", "scalar")]
        self.outputs = [p for p in self.manifest["arguments"] if p["role"] == "output"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        register(options)
        about = (manifest or common.read_manifest())["onnxruntime"]
        text = model(about["domain"], about["op"], self.inputs, self.outputs)
        self.session = onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])

    def __call__(self, *arrays: object) -> Any:
        """Run on NumPy arrays and numbers in the order of ``inputs``; narrow floats are their bits."""
        if len(arrays) != len(self.inputs):
            names = ", ".join(p["name"] for p in self.inputs)
            raise TypeError(f"expected {len(self.inputs)} arguments ({names}), got {len(arrays)}")
        given = {f"in{n}": fed(p, a) for n, (p, a) in enumerate(zip(self.inputs, arrays, strict=True))}
        made = self.session.run([f"out{n}" for n in range(len(self.outputs))], given)
        results = tuple(bits(p, a) for p, a in zip(self.outputs, made, strict=True))
        return results[0] if len(results) == 1 else results


def outside(p: dict[str, Any]) -> str:
    """Type name at the NumPy boundary: float32 for types that NumPy lacks."""
    narrow = p["dtype"] in common.NARROW and (p["dtype"] != "float16" or p["role"] == "scalar")
    return "float32" if narrow else p["dtype"]


def fed(p: dict[str, Any], a: Any) -> np.ndarray:
    """An argument converted for ONNX Runtime."""
    if p["role"] == "scalar":
        return np.asarray(common.scalar(p, a))
    kind = np.dtype(outside(p))
    if outside(p) == p["dtype"]:
        return np.ascontiguousarray(a if a.dtype == kind else a.view(kind)).reshape(a.shape)
    return np.asarray(values(p["dtype"])[a])


def bits(p: dict[str, Any], a: np.ndarray) -> np.ndarray:
    """A result with narrow floats as bit patterns."""
    if outside(p) == p["dtype"]:
        return np.asarray(a)
    if p["dtype"] == "bfloat16":
        return (np.asarray(a).view(np.uint32) >> 16).astype(np.uint16)
    finite = values(p["dtype"])[:0x80]
    finite = finite[np.isfinite(finite)]
    found = np.searchsorted(finite, np.where(np.isfinite(a), np.abs(a), 0))
    found = np.where(np.isnan(a), 0x7F, np.where(np.isinf(a), 0x7C, found))
    return np.asarray(found + 0x80 * np.signbit(a), np.uint8)


def values(dtype: str) -> np.ndarray:
    """Float32 values of all bit patterns of a narrow dtype."""
    mantissa, least, _ = common.NARROW[dtype]
    if dtype == "bfloat16":
        return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    size = np.arange(0x80)
    exponent, rest = size >> mantissa, size & ((1 << mantissa) - 1)
    made = np.ldexp(
        (rest + ((exponent > 0) << mantissa)).astype(np.float32), np.maximum(exponent, 1) - 1 + least - mantissa
    )
    if mantissa == 3:
        made[0x7F] = np.nan
    else:
        made[0x7C:] = np.where(rest[0x7C:] > 0, np.nan, np.inf)
    return np.concatenate([made, -made])


def model(domain: str, op: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> bytes:
    """Serialized one-node ONNX model, with Casts for types that NumPy lacks."""
    before, after, ends, node = list[bytes](), list[bytes](), b"", b""
    for n, p in enumerate(inputs):
        name, kind = f"in{n}", outside(p)
        stored = kind if p["role"] == "scalar" else p["dtype"]
        ends += said(11, value(name, kind, p["shape"]))
        before += [cast(name, f"narrow_{name}", stored)] if stored != kind else []
        node += said(1, f"narrow_{name}" if stored != kind else name)
    for n, p in enumerate(outputs):
        name, kind = f"out{n}", outside(p)
        ends += said(12, value(name, kind, p["shape"]))
        after += [cast(f"narrow_{name}", name, kind)] if p["dtype"] != kind else []
        node += said(2, f"narrow_{name}" if p["dtype"] != kind else name)
    nodes = [*before, node + said(4, op) + said(7, domain), *after]
    graph = b"".join(said(1, x) for x in nodes) + said(2, "kernel") + ends
    opsets = said(8, said(1, "") + said(2, 19)) + said(8, said(1, domain) + said(2, 1))
    return said(1, 9) + said(7, graph) + opsets


def value(name: str, dtype: str, shape: list[int | str]) -> bytes:
    """Serialized input or output of a model; launch-time extents are named (``dim_param``)."""
    dims = b"".join(said(1, said(2 if isinstance(extent, str) else 1, extent)) for extent in shape)
    return said(1, name) + said(2, said(1, said(1, TYPES[dtype]) + said(2, dims)))


def cast(given: str, made: str, dtype: str) -> bytes:
    """Serialized Cast node without saturation."""
    facts = {"to": TYPES[dtype], **({"saturate": 0} if dtype.startswith("float8_") else {})}
    attributes = b"".join(said(5, said(1, name) + said(3, number) + said(20, 2)) for name, number in facts.items())
    return said(1, given) + said(2, made) + said(4, "Cast") + attributes


def said(field: int, value: int | str | bytes) -> bytes:
    """Serialized protobuf field."""
    if isinstance(value, int):
        return number(field << 3) + number(value)
    data = value.encode("utf-8") if isinstance(value, str) else value
    return number(field << 3 | 2) + number(len(data)) + data


def number(value: int) -> bytes:
    """Protobuf varint of an integer."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
