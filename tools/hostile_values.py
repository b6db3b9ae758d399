"""Values that nobody should pass, and those that calls are meant for, by the names of parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np

import tensorir as tir

Maker = Callable[[], object]
Named = tuple[str, Maker]

SPECIAL = (
    "__index__",
    "__eq__",
    "__repr__",
    "__len__",
    "__iter__",
    "__hash__",
    "__bool__",
    "__float__",
    "__int__",
    "__str__",
    "__getattr__",
    "__call__",
    "__fspath__",
    "__getitem__",
    "__contains__",
    "__array__",
)


def raising(*names: str) -> object:
    """An object of which these special methods raise."""

    def fail(self: object, *_: object, **__: object) -> object:
        raise RuntimeError("hostile")

    return type("Hostile", (), dict.fromkeys(names, fail))()


def nested(kind: type, depth: int = 10_000) -> object:
    """Tuples or lists in each other."""
    value: object = kind()
    for _ in range(depth):
        value = kind([value])
    return value


def cyclic() -> list[object]:
    """A list that holds itself."""
    value: list[object] = []
    value.append(value)
    return value


def deep_expression(depth: int = 3000) -> object:
    """An element of very many operations in each other."""
    A = tir.placeholder((4,), name="deep")
    e = A[0]
    for n in range(depth):
        e = e * 1.5 + n
    return e


def _boom(*_: object) -> object:
    raise KeyError("the caller's own")


class _Int(int):
    """An int of another class."""


class _Text(str):
    """A text of another class."""


HOSTILE: dict[str, Maker] = {
    "None": lambda: None,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "10**30": lambda: 10**30,
    "-1": lambda: -1,
    "0": lambda: 0,
    "2.5": lambda: 2.5,
    "True": lambda: True,
    "2**31": lambda: 2**31,
    "2**62": lambda: 2**62,
    "-2**63": lambda: -(2**63),
    "1e308": lambda: 1e308,
    "10**5000": lambda: 10**5000,
    "-10**5000": lambda: -(10**5000),
    "''": lambda: "",
    "nul": lambda: "a\0b",
    "surrogate": lambda: "\ud800",
    "long text": lambda: "a" * 5000,
    "lines": lambda: "a\nb" * 100,
    "digits": lambda: "9" * 5000,
    "word": lambda: "int",
    "micro": lambda: "µ",
    "newline": lambda: "\n",
    "count()": itertools.count,
    "repeat()": lambda: itertools.repeat(1),
    "generator": lambda: (i for i in (1, 2)),
    "deep tuple": lambda: nested(tuple),
    "deep list": lambda: nested(list),
    "cyclic": cyclic,
    "set": lambda: {1, "a"},
    "frozenset": lambda: frozenset((1, 2)),
    "{}": dict,
    "{1: 2}": lambda: {1: 2},
    "{'a': …}": lambda: {"a": cyclic()},
    "{surrogate}": lambda: {"\ud800": 1},
    "{deep}": lambda: {"x": nested(tuple)},
    "()": tuple,
    "[]": list,
    "(None,)": lambda: (None,),
    "('a', 1)": lambda: ("a", 1),
    "[[1], [2, 3]]": lambda: [[1], [2, 3]],
    "range": lambda: range(10**12),
    "huge range": lambda: range(10**30),
    "array 0-d": lambda: np.array(3),
    "array": lambda: np.ones((2, 2)),
    "array of objects": lambda: np.array([None, object()], object),
    "array of text": lambda: np.array(["a", "b"]),
    "empty array": lambda: np.ones((0, 3)),
    "huge array": lambda: np.broadcast_to(np.float32(1), (1 << 20, 1 << 20)),
    "array of 20 axes": lambda: np.ones((1,) * 20),
    "structured": lambda: np.zeros(2, [("a", "i4"), ("b", "f8")]),
    "np.float32(nan)": lambda: np.float32("nan"),
    "np.int8": lambda: np.int8(3),
    "datetime": lambda: np.datetime64("NaT"),
    "complex": lambda: 1 + 2j,
    "bytes": lambda: b"x",
    "bytearray": lambda: bytearray(b"xy"),
    "memoryview": lambda: memoryview(b"x"),
    "type": lambda: str,  # called back it takes anything
    "module": lambda: math,
    "lambda": lambda: lambda *a: 1,
    "lambda raises": lambda: _boom,
    "lambda None": lambda: lambda *a: None,
    "lambda deep": lambda: lambda *a: nested(tuple),
    "lambda tensor": lambda: lambda *a: tir.placeholder((2,)),
    "builtin": lambda: print,
    "object": object,
    "Path": lambda: Path("a" * 5000),
    "Path surrogate": lambda: Path("\udcff"),
    "Fraction": lambda: Fraction(1, 3),
    "Decimal": lambda: Decimal("NaN"),
    "Ellipsis": lambda: ...,
    "slice": lambda: slice(1, 2, 0),
    "slice text": lambda: slice("a", None),
    "NotImplemented": lambda: NotImplemented,
    "exception": lambda: ValueError("x"),
    "int subclass": lambda: _Int(4),
    "str subclass": lambda: _Text("C.i"),
    "deep expression": deep_expression,
    "raises all": lambda: raising(*SPECIAL),
    **{f"raises {n}": (lambda n=n: raising(n)) for n in SPECIAL},
    "huge tensor": lambda: tir.placeholder((2**40, 2**20), name="huge"),
    "empty tensor": lambda: tir.placeholder((0,), name="empty"),
}
"""Makers of hostile values, by a word for each."""


def _of(*values: object) -> list[Named]:
    return [(repr(v), lambda v=v: v) for v in values]


def good_values(name: str, specimens: dict[str, Maker]) -> list[Named]:
    """What a parameter of this name is meant for, as far as that is known."""
    known = {
        "shape": (4, (8, 8), (), (2, 3, 4)),
        "dtype": ("float32", "int8", "float16", "bool", np.float64),
        "name": ("T", "C", "Q"),
        "names": (("a", "b"), None),
        "axis": ("C.i.0", "C.j", "C.k", 0, -1, None),
        "stage": ("C", "P", "D"),
        "at": ("C.k", "C.j", "D.j", "root"),
        "factors": ([None, 4], [2, 4]),
        "tail": ("guard", "cut"),
        "scope": ("register", "shared"),
        "thread": ("block.x", "thread.x"),
        "intrin": ("fma.f32x4",),
        "factor": (2, 4),
        "level": ("fast",),
        "seed": (0, 7),
        "target": ("opencl", "c", "cuda -arch=sm_80", None),
        "text": ("cuda", "opencl", "x = 1"),
        "trace": ("[]",),
        "into": ("C", ("C",)),
        "low": (0, 1),
        "high": (8, 64),
        "extent": (8, 12),
        "fill": (0, 1.5),
        "where": (None, True),
        "op": ("sum", "max"),
        "dim": (0, -1, 1),
        "stride": (1, 2, (1, 2)),
        "pad": (0, 1, (1, 0), ((1, 0), (0, 1))),
        "padding": (0, 1),
        "dilation": (1, 2),
        "groups": (1, 2),
        "layout": ("NCHW", "NHWC"),
        "kernel_size": (2, (2, 3)),
        "act": ("relu", None),
        "config": ({"tile": 1, "mode": "a"}, None),
        "condition": ("tile < 4",),
        "template": ("t", None),
        "log": ("tuning_logs",),
        "path": ("out",),
        "to": ("source", ["source"]),
        "device": (None,),
        "trials": (1,),
        "budget": (0.2,),
        "repeat": (2,),
        "rounds": (1,),
        "measure": (False,),
        "weights": (None,),
        "order": (1,),
        "step": (0, 1),
        "n": (1, 2, 8),
        "m": (8,),
        "k": (8,),
        "c": (4,),
        "h": (8,),
        "w": (8,),
        "r": (3,),
        "s": (3,),
        "factor_": (2,),
        "outputs": (),
        "code": ("split.covers-extent",),
        "message": ("m",),
        "exact": (True,),
        "regret": (0.05,),
        "limit_s": (1.0,),
        "shapes": (None, {"i": 8}),
        "eps": (1e-5,),
        "approximate": ("none", "tanh"),
        "output_size": (2,),
        "row": (0,),
        "factors_": (2,),
        "normalized_shape": ((8,),),
        "identity": (0,),
        "over": ((8,),),
        "index": ((0, 0), 0),
    }.get(name, ())
    found = _of(*known)
    tensors: list[Named] = [(label, specimens[label]) for label in ("Tensor", "placeholder", "element")]
    if name in (
        "x",
        "y",
        "a",
        "b",
        "A",
        "B",
        "w",
        "q",
        "k",
        "v",
        "value",
        "self",
        "o",
        "weight",
        "mean",
        "var",
        "bias",
        "cond",
        "arrays",
    ):
        found += tensors
    if name in ("outputs", "works", "work"):
        found += [(label, specimens[label]) for label in ("Tensor", "Workload", "operator")]
    if name in ("axis", "k", "axes"):
        found.append(("axis", specimens["axis"]))
    if name in ("fn", "result", "function", "f", "features", "value"):
        found += [("lambda i", lambda: lambda *i: 1.0), ("lambda a, b", lambda: lambda a, b: a + b)]
    if name == "arrays":
        found += [("a", lambda: np.ones((16, 12), "float32")), ("b", lambda: np.ones((12, 8), "float32"))]
    if name in ("launches", "launch"):
        found += [("[bound]", lambda: [specimens["BoundLaunch"]()])]
    if name in ("x", "w"):
        found += [
            ("X4", lambda: tir.placeholder((1, 4, 8, 8), name="X4")),
            ("W4", lambda: tir.placeholder((4, 4, 3, 3), name="W4")),
        ]
    return found
