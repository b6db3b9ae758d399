"""What is computed: each problem is an operator of this package with its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.expr.tensor import Tensor
from tensorir.interp.numbers import numpy_dtype
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.tune.template import suiting

KINDS: dict[str, dict[str, Any]] = {
    "bf16": dict(dtype="bfloat16"),
    "fp16": dict(dtype="float16"),
    "tf32": dict(precision="tf32"),
    "fp32": {},
    "3xtf32": dict(precision="3xtf32"),
    "int8": dict(dtype="int8"),
    "e4m3": dict(dtype="float8_e4m3"),
    "uint8": dict(dtype="uint8"),
    "e5m2": dict(dtype="float8_e5m2"),
}
"""Element types and precisions, by the name that tables use."""
TIMED = ("bf16", "fp16", "tf32", "fp32", "3xtf32", "int8", "e4m3")
"""Those that are timed; the others are made of the same instructions."""
WHOLE = {"gpu_winograd": (1, 576), "gpu_winograd_fused": (4, 4)}
CHECK = "check"
"""What the names of groups begin with whose problems are compared only, not timed."""
MOST_EMULATED = 1e9
"""Operations: what is larger is shrunk in a dry run."""
SCALARS = {"alpha": (2, 0.75), "beta": (-3, -1.25)}
"""Of whole numbers, and of normal ones."""
_SMALL = dict(m=72, n=72, k=40, c=8, k_out=8, h=10)
_WAVES = dict(m=392, n=136, k=592)
"""Some waves of small tiles on the few multiprocessors of a dry run."""


@dataclass(frozen=True)
class Argument:
    """One argument of the kernels. role: "tensor", "scalar", or "table", the group of each so many rows"""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str = "tensor"

    @property
    def signed(self) -> bool:
        return is_float(self.dtype) or bool(DTYPES[self.dtype].low)


@lru_cache(maxsize=256)
def _workload(op: str, options: tuple[tuple[str, Any], ...]) -> tir.Workload:
    """The same one for each template and knob that a problem is listed with: what its templates are takes a second."""
    made: tir.Workload = getattr(tir.ops, op)(**dict(options))
    return made


@dataclass(frozen=True)
class Problem:
    """One workload. group: the list it is from; kind: element type and precision, a key of ``KINDS``.

    template: the one to measure where it is not the workload's own choice
    knobs: values that its configurations must have
    arch: the architecture whose instructions its kernels may use, where that is not the device's ("sm_75")
    """

    group: str
    kind: str
    op: str
    options: tuple[tuple[str, Any], ...]
    template: str | None = None
    knobs: tuple[tuple[str, Any], ...] = ()
    arch: str = ""

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.options)

    @property
    def timed(self) -> bool:
        return not self.group.startswith(CHECK)

    @property
    def exact(self) -> bool:
        """Whether results on whole numbers are whole numbers."""
        return self.parameters.get("act") in (None, "relu")

    @property
    def family(self) -> str:
        """What fails together: kernels of one template that do the same kind of thing."""
        return self.group if not self.timed else f"{self.op} {self.kind} {self.template or ''}".strip()

    @property
    def name(self) -> str:
        """Unique: what the rows of a result are found by."""
        p = self.parameters
        if self.op in ("matmul", "grouped_matmul"):
            order = "".join("t" if p.get(x) else "n" for x in ("ta", "tb"))
            batch = f"{p['batch']}x " if p.get("batch", 1) > 1 else ""
            shape = f"{order} {batch}{p['m']}x{p['n']}x{p['k']}"
            shape += f" in {p['groups']} groups of {p['align']}" if self.op == "grouped_matmul" else ""
        else:
            image = "x".join(str(p[x]) for x in ("n", "c", "h", "w"))
            more = "".join(f" {x}{p[x]}" for x in ("stride", "pad", "dilation", "groups", "layout") if x in p)
            shape = f"{image} k{p['k']} {p['r']}x{p['s']}{more}"
        added = [*(x for x in ("alpha", "beta", "bias", "residual") if p.get(x)), *([p["act"]] if p.get("act") else [])]
        how = [self.template or "", *(f"{k}={v}" for k, v in self.knobs), self.arch and f"of {self.arch}"]
        return " ".join(x for x in (self.group, self.kind, shape, "+".join(added), *how) if x)

    @property
    def whole(self) -> tuple[int, int]:
        """The largest whole number that is drawn to compare exactly, and what filters are multiples of: Winograd's
        transform of a filter divides by 4, or by 24 twice.
        """
        return WHOLE.get(self.template or "", (4, 1))

    @property
    def terms(self) -> int:
        """Products that are added up for one element of the result."""
        p = self.parameters
        if self.op in ("matmul", "grouped_matmul"):
            return int(p["k"])
        taps, groups = p["r"] * p["s"], p.get("groups", 1)
        if self.op == "conv2d":
            return int(taps * p["c"] // groups)
        if self.op == "conv2d_backward_data":
            return int(taps * p["k"] // groups)
        return int(p["n"] * p["h"] * p["w"])

    def target(self, device: str) -> str:
        """What kernels are made for, on a device of this target."""
        return f"cuda -arch={self.arch}" if self.arch else device

    def unsuited(self, target: str) -> str:
        """Why the template cannot be used on a device; empty where it can."""
        templates, wanted = self.workload().templates, tir.Target.parse(target)
        if self.template is None:
            return "" if any(suiting(templates, wanted)) else "there is no template for this device"
        if self.template not in templates:
            return f"there is no template {self.template} for this shape"
        suits = templates[self.template].suits(wanted)
        return "" if suits else f"needs {templates[self.template].needs or templates[self.template].kinds}"

    def workload(self) -> tir.Workload:
        return _workload(self.op, self.options)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """In the order of the signature."""
        return tuple(_argument(a, self.op) for a in self.workload().inputs)

    def table(self) -> np.ndarray:
        """The groups of rows: as many of each, or where nothing is timed any, none and what is no group."""
        (shape,) = (a.shape for a in self.arguments if a.role == "table")
        groups = self.parameters["groups"]
        if self.timed:
            return (np.arange(shape[0]) * groups // shape[0]).astype(np.int32)
        return np.random.default_rng(0).integers(-1, groups, shape).astype(np.int32)

    def drawn(self, whole: bool) -> list[Any]:
        """Inputs in NumPy: whole numbers whose products and sums are exact, or normal ones."""
        draw = np.random.default_rng(0)
        found = [self._drawn(a, whole, draw) for a in self.arguments]
        times = self.whole[1] if whole else 1
        return [a * a.dtype.type(times) if n == 1 and times > 1 else a for n, a in enumerate(found)]

    def _drawn(self, a: Argument, whole: bool, draw: np.random.Generator) -> Any:
        if a.role == "table":
            return self.table()
        kind = numpy_dtype(a.dtype)
        if a.role == "scalar":
            return kind.type(SCALARS[a.name][0 if whole or not is_float(a.dtype) else 1])
        if not whole and is_float(a.dtype):
            return draw.standard_normal(a.shape).astype(kind)
        largest = self.whole[0] if whole else 127
        return draw.integers(-largest if a.signed else 0, largest + 1, a.shape).astype(kind)

    def shrunk(self) -> Problem:
        """The same at sizes that an emulator gets through."""
        p = self.parameters
        if self.op == "matmul":
            most = {**(_SMALL if self.timed else _WAVES), "batch": 2}
            small = {x: min(p[x], most[x]) for x in ("m", "n", "k", "batch") if x in p}
        elif self.op == "grouped_matmul":
            small = dict(m=min(p["m"], 2 * p["align"]), n=min(p["n"], 72), k=min(p["k"], 40), groups=2)
        else:
            small = dict(n=min(p["n"], 2), c=min(p["c"], _SMALL["c"]), k=min(p["k"], _SMALL["k_out"]))
            small |= {x: min(p[x], _SMALL["h"]) for x in ("h", "w")}
            if p.get("groups", 1) == p["c"]:
                small["groups"] = small["c"]
        return replace(self, options=tuple({**p, **small}.items()))


def _argument(a: Any, op: str) -> Argument:
    if not isinstance(a, Tensor):
        return Argument(a.name, (), a.dtype, "scalar")
    role = "table" if op == "grouped_matmul" and a.name == "group" else "tensor"
    return Argument(a.name, tuple(a.shape), a.dtype, role)


def product(group: str, kind: str, m: int, n: int, k: int, **more: Any) -> Problem:
    """C[m, n] = A B in one of ``KINDS``; more: parameters of ``matmul``, and fields of ``Problem``."""
    options, about = _apart(more)
    return Problem(group, kind, "matmul", tuple({**dict(m=m, n=n, k=k), **KINDS[kind], **options}.items()), **about)


def in_groups(group: str, kind: str, m: int, n: int, k: int, groups: int, align: int = 128, **more: Any) -> Problem:
    """A product of rows in groups, B as (n, k)."""
    options, about = _apart(more)
    given = {**dict(m=m, n=n, k=k, groups=groups, align=align, tb=True), **KINDS[kind], **options}
    return Problem(group, kind, "grouped_matmul", tuple(given.items()), **about)


def convolution(group: str, kind: str = "fp32", op: str = "conv2d", **parameters: Any) -> Problem:
    """A 2-D convolution, or a gradient of it, in one of ``KINDS``; what has its default value is left out, so that
    names are short.
    """
    usual = dict(stride=1, pad=0, groups=1, dilation=1)
    options, about = _apart(parameters)
    given = {**options, **KINDS[kind]}
    return Problem(group, kind, op, tuple((n, v) for n, v in given.items() if usual.get(n) != v), **about)


def _apart(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of an operator, and fields of ``Problem``."""
    own = ("template", "knobs", "arch")
    about = {n: v for n, v in given.items() if n in own}
    if "knobs" in about:
        about["knobs"] = tuple(dict(about["knobs"]).items())
    return {n: v for n, v in given.items() if n not in own}, about


def on_tensor_cores(p: Problem, kind: str) -> Problem:
    """A convolution with channels last, in a type of tensor cores."""
    return convolution(p.group, kind, **{**p.parameters, "layout": "NHWC"})


def gradients(p: Problem) -> list[Problem]:
    """Those of a convolution, with respect to its image and to its filter."""
    return [replace(p, op=f"conv2d_backward_{of}", group=f"{p.group} {of}") for of in ("data", "weight")]
