"""Libraries to compare with, as plain callables on NumPy arrays; what is not installed is left out."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorir.ops.problems import Conv, Gemm

Baseline = Callable[..., Any]
FLOATS = ("float32", "float64")


def conv2d_baselines(shape: Conv) -> dict[str, Baseline]:
    """Name -> call. torch where installed, else NumPy im2col + matmul and SciPy."""
    if shape.dtype not in FLOATS or shape.bias or shape.act:
        return {}
    if importlib.util.find_spec("torch") is not None:
        return {"torch": _torch_conv2d(shape)}
    out: dict[str, Baseline] = {"numpy im2col": _im2col(shape)}
    small = shape.n * shape.k * shape.cg <= 64
    if (
        importlib.util.find_spec("scipy") is not None
        and small
        and shape.stride == 1
        and shape.dilation == 1
        and shape.groups == 1
    ):
        out["scipy"] = _scipy(shape)
    return out


def matmul_baselines(shape: Gemm) -> dict[str, Baseline]:
    """NumPy's matmul (its BLAS)."""
    if shape.dtype not in FLOATS or shape.bias or shape.act or shape.alpha or shape.beta:
        return {}

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x = np.swapaxes(a, -1, -2) if shape.ta else a
        y = np.swapaxes(b, -1, -2) if shape.tb else b
        return np.asarray(x @ y)

    return {"numpy": run}


def _im2col(shape: Conv) -> Baseline:
    """Patches as a matrix, then one BLAS call a group; the weights' matrix is a view."""
    n, g, k, cg, r, s, p, q = shape.n, shape.groups, shape.k, shape.cg, shape.r, shape.s, shape.p, shape.q
    st, d, pad, nchw = shape.stride, shape.dilation, shape.pad, shape.nchw

    def run(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        a = x if nchw else x.transpose(0, 3, 1, 2)
        f = w if nchw else np.ascontiguousarray(w.transpose(0, 3, 1, 2))
        if pad:
            a = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(a, ((r - 1) * d + 1, (s - 1) * d + 1), axis=(2, 3))
        patches = windows[:, :, ::st, ::st, ::d, ::d].transpose(0, 1, 4, 5, 2, 3)
        columns = np.ascontiguousarray(patches).reshape(n, g, cg * r * s, p * q)
        y = np.matmul(f.reshape(g, k // g, cg * r * s), columns).reshape(n, k, p, q)
        return y if nchw else np.ascontiguousarray(y.transpose(0, 2, 3, 1))

    return run


def _scipy(shape: Conv) -> Baseline:
    pad, nchw = shape.pad, shape.nchw

    def run(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        from scipy.signal import correlate

        a = x if nchw else x.transpose(0, 3, 1, 2)
        f = w if nchw else w.transpose(0, 3, 1, 2)
        a = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        y = np.stack([np.stack([correlate(one, taps, mode="valid")[0] for taps in f]) for one in a])
        return y if nchw else y.transpose(0, 2, 3, 1)

    return run


def _torch_conv2d(shape: Conv) -> Baseline:
    nchw = shape.nchw

    def run(x: np.ndarray, w: np.ndarray) -> Any:
        import torch

        a, f = torch.from_numpy(x), torch.from_numpy(w)
        if not nchw:
            a, f = a.permute(0, 3, 1, 2), f.permute(0, 3, 1, 2)
        with torch.no_grad():
            y = torch.nn.functional.conv2d(
                a, f, stride=shape.stride, padding=shape.pad, dilation=shape.dilation, groups=shape.groups
            )
        return y if nchw else y.permute(0, 2, 3, 1)

    return run
