"""Results in float64 by torch, on whatever device the data is, and how far those of a kernel may be off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .problems import Problem

Tensors = Sequence[Any]
ROUNDED = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Twice what rounding to a type changes, over the number."""
LEAST = 2.0**-23
"""What more may be off: subnormal numbers of float16."""
SPREAD = 1.2
"""How much an activation enlarges an error, at most (GELU 1.13, SiLU 1.1)."""
AT_ONCE = 8
"""Images whose convolution in float64 is made together."""


def of_products(kind: str, terms: int) -> float:
    """Error of a sum of products over the sum of their absolute values, at most.

    Sums in float32 have one rounding for each term, tensor cores cut off instead. Rounding operands to TF32, or cutting
    them off, costs 2^-10 each; three such products leave out those of the rests. Hopper adds products of 8-bit floats,
    32 at a time, up in about 14 bits.
    """
    if kind in ("e4m3", "e5m2"):
        return (terms / 32 + 1) * 2.0**-12
    if kind == "fp32":
        return (terms + 8) * 2.0**-24
    return {"tf32": 2.0**-9, "3xtf32": 2.0**-20}.get(kind, 0.0) + (terms + 8) * 2.0**-23


def bound(problem: Problem, expected: Any, magnitude: Any) -> Any:
    """How far each element may be off; magnitude: the same made of absolute values, without an activation.

    Arrays of NumPy or of torch. Algorithms with rounding of their own may be off by the workload's ``max_error``.
    """
    work = problem.workload()
    allowed = work.allowed_error(problem.template) if problem.template else None
    rounded = ROUNDED.get(work.outputs[0].dtype, 0.0) * abs(expected)
    if allowed is not None:
        return rounded + allowed * float(abs(expected).max())
    spread = SPREAD if problem.parameters.get("act") else 1.0
    return rounded + spread * of_products(problem.kind, problem.terms) * magnitude + LEAST


def linear(problem: Problem) -> Problem:
    """The same without an activation."""
    return replace(problem, options=tuple((n, v) for n, v in problem.options if n != "act"))


def magnitude(problem: Problem, inputs: Tensors) -> Any:
    """What ``bound`` asks for."""
    of = [abs(t) if a.role == "scalar" else t if a.role == "table" else t.double().abs()
          for a, t in zip(problem.arguments, inputs, strict=True)]  # fmt: skip
    return exact(linear(problem), of)


def exact(problem: Problem, inputs: Tensors) -> Any:
    """The result in float64, with the axes of ours."""
    import torch

    torch.backends.cudnn.benchmark = False
    given = named(problem, inputs)
    c = _PRODUCTS[problem.op](problem, given)
    if "alpha" in given:
        c = c * float(given["alpha"])
    if "beta" in given:
        c = c + float(given["beta"]) * given["d"].double()
    if "bias" in given:
        c = c + given["bias"].double()
    if problem.op == "conv2d":
        if "b" in given:
            c = c + given["b"].double()[:, None, None]
        if "residual" in given:
            c = c + as_nchw(problem, given["residual"]).double()
    c = from_nchw(problem, c)
    return activated(c, problem.parameters.get("act"))


def named(problem: Problem, inputs: Tensors) -> dict[str, Any]:
    """Inputs by the names of their arguments."""
    return {a.name: t for a, t in zip(problem.arguments, inputs, strict=True)}


def activated(c: Any, act: str | None) -> Any:
    """An activation."""
    import torch

    return c if act is None else getattr(torch.nn.functional, act)(c)


def as_nchw(problem: Problem, t: Any) -> Any:
    """An image or weights as torch names their axes, whatever the layout in memory."""
    return t.permute(0, 3, 1, 2) if problem.parameters.get("layout", "NCHW") == "NHWC" else t


def from_nchw(problem: Problem, t: Any) -> Any:
    """Back from there; products are left as they are."""
    return t.permute(0, 2, 3, 1) if problem.parameters.get("layout", "NCHW") == "NHWC" else t


def geometry(problem: Problem) -> tuple[int, int, int, int]:
    """Stride, padding, dilation and groups."""
    p = problem.parameters
    return p.get("stride", 1), p.get("pad", 0), p.get("dilation", 1), p.get("groups", 1)


def operands(problem: Problem, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """A as (m, k) and B as (k, n), views of how they are stored."""
    p, a, b = problem.parameters, given["a"], given["b"]
    return (a.transpose(-1, -2) if p.get("ta") else a), (b.transpose(-1, -2) if p.get("tb") else b)


def runs_of_groups(problem: Problem) -> list[tuple[int, slice]]:
    """Groups with the rows that are theirs, neighbouring blocks of a group together."""
    align, m = problem.parameters["align"], problem.parameters["m"]
    found: list[tuple[int, slice]] = []
    for block, group in enumerate(problem.table().tolist()):
        start, end = block * align, min((block + 1) * align, m)
        if found and found[-1][0] == group and found[-1][1].stop == start:
            start = found.pop()[1].start
        found.append((group, slice(start, end)))
    return [(group, rows) for group, rows in found if group >= 0]


# --- the sums of products of each operator


def _matmul(problem: Problem, given: Mapping[str, Any]) -> Any:
    a, b = operands(problem, given)
    return a.double() @ b.double()


def _grouped_matmul(problem: Problem, given: Mapping[str, Any]) -> Any:
    import torch

    a, b = operands(problem, given)
    c = torch.zeros(a.shape[0], b.shape[-1], dtype=torch.float64, device=a.device)
    for group, rows in runs_of_groups(problem):
        c[rows] = a[rows].double() @ b[group].double()
    return c


def _conv2d(problem: Problem, given: Mapping[str, Any]) -> Any:
    import torch

    x, w = (as_nchw(problem, given[v]) for v in "xw")
    weights = w.double()
    parts = [torch.nn.functional.conv2d(part.double(), weights, None, *geometry(problem)) for part in x.split(AT_ONCE)]
    return torch.cat(parts)


def _data(problem: Problem, given: Mapping[str, Any]) -> Any:
    import torch

    p = problem.parameters
    dy, w = (as_nchw(problem, given[v]) for v in ("dy", "w"))
    weights, size = w.double(), (p["c"], p["h"], p["w"])
    parts = [
        torch.nn.grad.conv2d_input((len(part), *size), weights, part.double(), *geometry(problem))
        for part in dy.split(AT_ONCE)
    ]
    return torch.cat(parts)


def _weight(problem: Problem, given: Mapping[str, Any]) -> Any:
    import torch

    p = problem.parameters
    x, dy = (as_nchw(problem, given[v]) for v in ("x", "dy"))
    size = (p["k"], p["c"] // p.get("groups", 1), p["r"], p["s"])
    parts = [
        torch.nn.grad.conv2d_weight(a.double(), size, b.double(), *geometry(problem))
        for a, b in zip(x.split(AT_ONCE), dy.split(AT_ONCE), strict=True)
    ]
    return sum(parts)


_PRODUCTS = {
    "matmul": _matmul,
    "grouped_matmul": _grouped_matmul,
    "conv2d": _conv2d,
    "conv2d_backward_data": _data,
    "conv2d_backward_weight": _weight,
}
