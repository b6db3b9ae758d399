"""What libraries are asked to compute: the same data, the same precision, their own choice of algorithm."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .exact import activated, as_nchw, geometry, named, operands, runs_of_groups
from .problems import Problem
from .program import Call, current_stream

Tensors = Sequence[Any]
FUSED = ("relu", "gelu")
"""Activations that cuBLASLt applies to a product with a bias."""


@dataclass(frozen=True)
class Peer:
    """``prepare(inputs, output)`` gives a call on these tensors; it returns its result where it makes one of its own.

    graph: whether its calls can be captured in a CUDA graph
    """

    name: str
    prepare: Callable[[Tensors, Any], Call]
    graph: bool = True


def peers(problem: Problem) -> list[Peer]:
    """The libraries for one problem, installed or not."""
    return _PEERS[problem.op](problem)


def torch_type(dtype: str) -> Any:
    """What torch calls one of our element types."""
    import torch

    return getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype))


def tensor_float32(on: bool) -> None:
    """Whether cuBLAS and cuDNN may round float32 to 10 bits."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer names exist; these work in all versions
        torch.backends.cuda.matmul.allow_tf32 = on
        torch.backends.cudnn.allow_tf32 = on


# --- products


def _matmul(problem: Problem) -> list[Peer]:
    p = problem.parameters
    if any(p.get(x) for x in ("bias", "act", "alpha", "beta")):
        return _with_epilogue(problem)
    if problem.kind == "e4m3":  # ours adds up as the fast one does
        return [Peer("cublas", lambda i, out: _scaled(problem, i, out, False)),
                Peer("cublas_fast", lambda i, out: _scaled(problem, i, out, True))]  # fmt: skip
    found = [Peer("cublas", lambda inputs, out: _cublas(problem, inputs, out))]
    if problem.kind in ("fp32", "fp16"):
        found.append(Peer("cupy", lambda inputs, out: _cupy(problem, inputs, out), graph=False))
    if problem.kind in ("fp16", "bf16") and p.get("batch", 1) == 1:
        found.append(Peer("triton", lambda inputs, out: _triton(problem, inputs, out)))
    return found


def _cublas(problem: Problem, inputs: Tensors, out: Any) -> Call:
    import torch

    a, b = operands(problem, named(problem, inputs))
    multiply = torch._int_mm if problem.kind == "int8" else torch.matmul

    def call() -> None:
        tensor_float32(problem.kind == "tf32")
        multiply(a, b, out=out)

    return call


def _scaled(problem: Problem, inputs: Tensors, out: Any, fast: bool) -> Call:
    import torch

    a, b = operands(problem, named(problem, inputs))
    one = torch.ones((), device=a.device)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=out.dtype, use_fast_accum=fast, out=out)


def _cupy(problem: Problem, inputs: Tensors, out: Any) -> Call:
    import cupy

    a, b = (cupy.from_dlpack(t) for t in operands(problem, named(problem, inputs)))
    c = cupy.from_dlpack(out)

    def call() -> None:
        with current_stream():
            cupy.matmul(a, b, out=c)

    return call


def _triton(problem: Problem, inputs: Tensors, out: Any) -> Call:
    multiply = importlib.import_module(".triton_matmul", __package__).matmul
    a, b = operands(problem, named(problem, inputs))
    return lambda: multiply(a, b, out)


def _with_epilogue(problem: Problem) -> list[Peer]:
    """cuBLASLt's own epilogue where it has one (its GELU is by tanh), and one operation after the other."""
    p = problem.parameters
    found = [Peer("torch", lambda inputs, out: _one_by_one(problem, inputs, out))]
    flat = p.get("batch", 1) == 1
    if flat and p.get("bias") and not p.get("beta") and not p.get("alpha") and p.get("act") in (None, *FUSED):
        found.insert(0, Peer("cublaslt", lambda inputs, out: _fused(problem, inputs, out)))
    if flat and p.get("beta") and not p.get("bias") and not p.get("act"):
        found.insert(0, Peer("cublas", lambda inputs, out: _added(problem, inputs, out)))
    return found


def _fused(problem: Problem, inputs: Tensors, out: Any) -> Call:
    import torch

    given, act = named(problem, inputs), problem.parameters.get("act")
    a, b = operands(problem, given)
    bias = given["bias"]

    def call() -> None:
        tensor_float32(problem.kind == "tf32")
        if act is None:
            torch.addmm(bias, a, b, out=out)
        else:
            torch._addmm_activation(bias, a, b, use_gelu=act == "gelu", out=out)

    return call


def _added(problem: Problem, inputs: Tensors, out: Any) -> Call:
    import torch

    given = named(problem, inputs)
    a, b = operands(problem, given)
    alpha, beta = (float(given.get(name, 1)) for name in ("alpha", "beta"))

    def call() -> None:
        tensor_float32(problem.kind == "tf32")
        torch.addmm(given["d"], a, b, beta=beta, alpha=alpha, out=out)

    return call


def _one_by_one(problem: Problem, inputs: Tensors, out: Any) -> Call:
    import torch

    given = named(problem, inputs)
    a, b = operands(problem, given)

    def call() -> Any:
        tensor_float32(problem.kind == "tf32")
        c = torch.matmul(a, b, out=out)
        c = c * float(given["alpha"]) if "alpha" in given else c
        c = c + float(given["beta"]) * given["d"] if "beta" in given else c
        return activated(c + given["bias"] if "bias" in given else c, problem.parameters.get("act"))

    return call


# --- rows in groups


def _grouped_matmul(problem: Problem) -> list[Peer]:
    found = [Peer("mm_loop", lambda inputs, out: _loop(problem, inputs, out))]
    if problem.kind == "bf16":
        found.append(Peer("grouped_mm", lambda inputs, out: _grouped_mm(problem, inputs)))
    return found


def _loop(problem: Problem, inputs: Tensors, out: Any) -> Call:
    """A product of cuBLAS for each group."""
    import torch

    a, b = operands(problem, named(problem, inputs))
    parts = [(a[rows], b[group], out[rows]) for group, rows in runs_of_groups(problem)]

    def call() -> None:
        tensor_float32(problem.kind == "tf32")
        for x, y, z in parts:
            torch.mm(x, y, out=z)

    return call


def _grouped_mm(problem: Problem, inputs: Tensors) -> Call:
    """torch's own, which takes the row where each group ends."""
    import torch

    public = getattr(torch.nn.functional, "grouped_mm", None)
    multiply = public or torch._grouped_mm
    a, b = operands(problem, named(problem, inputs))
    ends = {group: rows.stop for group, rows in runs_of_groups(problem)}
    last, each = 0, []
    for group in range(problem.parameters["groups"]):
        last = ends.get(group, last)
        each.append(last)
    offsets = torch.tensor(each, dtype=torch.int32, device=a.device)
    return lambda: multiply(a, b, offs=offsets)


# --- convolutions and their gradients


def _convolutions(problem: Problem) -> list[Peer]:
    """cuDNN in both layouts; with TF32 also without it; of types that torch has no convolutions for, in halves."""
    if problem.kind in ("int8", "uint8", "e4m3", "e5m2"):
        return [Peer("cudnn_fp16_nhwc", lambda inputs, out: _cudnn(problem, inputs, True, "float16"))]
    found = [
        Peer("cudnn", lambda inputs, out: _cudnn(problem, inputs, False)),
        Peer("cudnn_nhwc", lambda inputs, out: _cudnn(problem, inputs, True)),
    ]
    if problem.kind == "tf32":
        found.append(Peer("cudnn_fp32_nhwc", lambda inputs, out: _cudnn(problem, inputs, True, rounded=False)))
    if problem.op == "conv2d" and problem.parameters.get("act") == "relu" and problem.parameters.get("bias"):
        found.append(Peer("cudnn_fused", lambda inputs, out: _cudnn(problem, inputs, True, fused=True)))
    return found


def _cudnn(problem: Problem, inputs: Tensors, channels_last: bool, dtype: str = "", rounded: bool = True,
           fused: bool = False) -> Call:  # fmt: skip
    """rounded: whether TF32 may be used for problems of that kind; fused: what follows in the same kernel"""
    import torch

    order = torch.channels_last if channels_last else torch.contiguous_format
    given = {
        a.name: as_nchw(problem, t).to(torch_type(dtype or a.dtype)).contiguous(memory_format=order)
        if len(a.shape) == 4 else t
        for a, t in zip(problem.arguments, inputs, strict=True)
    }  # fmt: skip
    if problem.op in _GRADIENTS:  # torch asks for the operand that it does not read as well, for extents and layout
        name, size = _unread(problem)
        given[name] = torch.empty(size, dtype=given["dy"].dtype, device=given["dy"].device, memory_format=order)
    compute = _fused_convolution if fused else _gradient if problem.op in _GRADIENTS else _forward

    def call() -> Any:
        tensor_float32(rounded and problem.kind == "tf32")
        torch.backends.cudnn.benchmark = True
        return compute(problem, given)

    return call


def _unread(problem: Problem) -> tuple[str, tuple[int, ...]]:
    p = problem.parameters
    if problem.op == "conv2d_backward_data":
        return "x", (p["n"], p["c"], p["h"], p["w"])
    return "w", (p["k"], p["c"] // p.get("groups", 1), p["r"], p["s"])


def _forward(problem: Problem, given: dict[str, Any]) -> Any:
    import torch

    y = torch.nn.functional.conv2d(given["x"], given["w"], given.get("b"), *geometry(problem))
    return activated(y + given["residual"] if "residual" in given else y, problem.parameters.get("act"))


def _fused_convolution(problem: Problem, given: dict[str, Any]) -> Any:
    import torch

    stride, pad, dilation, groups = geometry(problem)
    rest = given["b"], [stride] * 2, [pad] * 2, [dilation] * 2, groups
    if "residual" in given:
        return torch.cudnn_convolution_add_relu(given["x"], given["w"], given["residual"], 1.0, *rest)
    return torch.cudnn_convolution_relu(given["x"], given["w"], *rest)


def _gradient(problem: Problem, given: dict[str, Any]) -> Any:
    import torch

    of_data = problem.op == "conv2d_backward_data"
    stride, pad, dilation, groups = geometry(problem)
    found = torch.ops.aten.convolution_backward(
        given["dy"], given["x"], given["w"], None, [stride] * 2, [pad] * 2, [dilation] * 2, False, [0, 0], groups,
        [of_data, not of_data, False],
    )  # fmt: skip
    return found[0 if of_data else 1]


_GRADIENTS = ("conv2d_backward_data", "conv2d_backward_weight")
_PEERS = {
    "matmul": _matmul,
    "grouped_matmul": _grouped_matmul,
    "conv2d": _convolutions,
    **dict.fromkeys(_GRADIENTS, _convolutions),
}
