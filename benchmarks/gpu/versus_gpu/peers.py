"""What libraries are asked to compute: the same data, the same precision, their own choice of algorithm."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .problems import Problem
from .program import Call, current_stream

Tensors = Sequence[Any]


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
    return _matmul(problem) if problem.op == "matmul" else _conv2d(problem)


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


def operands(problem: Problem, inputs: Tensors) -> tuple[Any, Any]:
    """A as (m, k) and B as (k, n), views of how they are stored."""
    p, (a, b) = problem.parameters, inputs
    return (a.transpose(-1, -2) if p.get("ta") else a), (b.transpose(-1, -2) if p.get("tb") else b)


def convolve(problem: Problem, x: Any, w: Any) -> Any:
    """torch's convolution of NCHW images by OIHW weights."""
    import torch

    p = problem.parameters
    return torch.nn.functional.conv2d(x, w, None, p.get("stride", 1), p.get("pad", 0), p.get("dilation", 1),
                                      p.get("groups", 1))  # fmt: skip


# --- products


def _matmul(problem: Problem) -> list[Peer]:
    found = [Peer("cublas", lambda inputs, out: _cublas(problem, inputs, out))]
    flat = problem.parameters.get("batch", 1) == 1
    if problem.kind in ("fp32", "fp16"):
        found.append(Peer("cupy", lambda inputs, out: _cupy(problem, inputs, out), graph=False))
    if problem.kind in ("fp16", "bf16") and flat:
        found.append(Peer("triton", lambda inputs, out: _triton(problem, inputs, out)))
    return found


def _cublas(problem: Problem, inputs: Tensors, out: Any) -> Call:
    import torch

    a, b = operands(problem, inputs)
    if problem.kind == "e4m3":
        one = torch.ones((), device=a.device)
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=out.dtype, out=out)
    multiply = torch._int_mm if problem.kind == "int8" else torch.matmul

    def call() -> None:
        tensor_float32(problem.kind == "tf32")
        multiply(a, b, out=out)

    return call


def _cupy(problem: Problem, inputs: Tensors, out: Any) -> Call:
    import cupy

    a, b = (cupy.from_dlpack(t) for t in operands(problem, inputs))
    c = cupy.from_dlpack(out)

    def call() -> None:
        with current_stream():
            cupy.matmul(a, b, out=c)

    return call


def _triton(problem: Problem, inputs: Tensors, out: Any) -> Call:
    multiply = importlib.import_module(".triton_matmul", __package__).matmul
    a, b = operands(problem, inputs)
    return lambda: multiply(a, b, out)


# --- convolutions


def _conv2d(problem: Problem) -> list[Peer]:
    return [
        Peer("cudnn", lambda inputs, out: _cudnn(problem, inputs, channels_last=False)),
        Peer("cudnn_nhwc", lambda inputs, out: _cudnn(problem, inputs, channels_last=True)),
    ]


def _cudnn(problem: Problem, inputs: Tensors, channels_last: bool) -> Call:
    import torch

    x, w = as_nchw(problem, inputs)
    order = torch.channels_last if channels_last else torch.contiguous_format
    x, w = x.contiguous(memory_format=order), w.contiguous(memory_format=order)

    def call() -> Any:
        tensor_float32(False)
        torch.backends.cudnn.benchmark = True
        return convolve(problem, x, w)

    return call


def as_nchw(problem: Problem, inputs: Tensors) -> tuple[Any, Any]:
    """Image and weights as torch names their axes, whatever the layout in memory."""
    x, w = inputs
    if problem.parameters.get("layout", "NCHW") == "NHWC":
        return x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
    return x, w
