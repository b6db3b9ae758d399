"""Baselines of products and convolutions: NumPy, SciPy and torch as callables on NumPy arrays, as far as installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorir.engines.problems import Conv, Gemm

Baseline = Callable[..., Any]
FLOATS = ("float32", "float64")


def conv2d_baselines(shape: Conv) -> dict[str, Baseline]:
    """Name -> callable (x, w) of the libraries' convolutions; {} for other types than float32 and float64, bias,
    residual or activation.

    torch if installed; else NumPy im2col with matmul, and SciPy for small shapes.
    """
    if shape.dtype not in FLOATS or shape.bias or shape.act or shape.residual:
        return {}
    if importlib.util.find_spec("torch") is not None:
        return {"torch": _torch_conv2d(shape)}
    small = (
        shape.n * shape.k * shape.cg <= 64 and shape.stride == shape.dilation == shape.groups == 1 and not shape.uneven
    )
    slow = {"scipy": _scipy(shape)} if small and importlib.util.find_spec("scipy") is not None else {}
    return {"numpy im2col": _im2col(shape), **slow}


def matmul_baselines(shape: Gemm) -> dict[str, Baseline]:
    """{"numpy": callable (a, b)}, NumPy's matmul (its BLAS); {} for other types than float32 and float64, or an
    epilogue.
    """
    if shape.dtype not in FLOATS or shape.bias or shape.act or shape.alpha or shape.beta:
        return {}

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x = np.swapaxes(a, -1, -2) if shape.ta else a
        y = np.swapaxes(b, -1, -2) if shape.tb else b
        return np.asarray(x @ y)

    return {"numpy": run}


def _in_nchw(shape: Conv, run: Baseline) -> Baseline:
    """``run``, a function on NCHW arrays, as one on arrays in the layout of ``shape``."""
    if shape.nchw:
        return run
    return lambda x, w: np.ascontiguousarray(run(*(v.transpose(0, 3, 1, 2) for v in (x, w))).transpose(0, 2, 3, 1))


def _im2col(shape: Conv) -> Baseline:
    """NumPy convolution: im2col matrix, then one BLAS call per group; the weights' matrix is a view."""
    n, g, k, r, s, p, q = shape.n, shape.groups, shape.k, shape.r, shape.s, shape.p, shape.q
    (rows, columns), terms = shape.sides, shape.cg * shape.taps
    pads = [(side.before, side.after) for side in shape.sides]
    spans = (r - 1) * rows.dilation + 1, (s - 1) * columns.dilation + 1

    def run(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        a = np.pad(x, ((0, 0), (0, 0), *pads)) if rows.padded or columns.padded else x
        windows = np.lib.stride_tricks.sliding_window_view(a, spans, axis=(2, 3))
        some = windows[:, :, :: rows.stride, :: columns.stride, :: rows.dilation, :: columns.dilation]
        patches = some.transpose(0, 1, 4, 5, 2, 3)
        matrix = np.ascontiguousarray(patches).reshape(n, g, terms, p * q)
        y: np.ndarray = np.matmul(np.ascontiguousarray(w).reshape(g, k // g, terms), matrix)
        return y.reshape(n, k, p, q)

    return _in_nchw(shape, run)


def _scipy(shape: Conv) -> Baseline:
    pad = shape.pad

    def run(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        from scipy.signal import correlate

        a = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        return np.stack([np.stack([correlate(one, taps, mode="valid")[0] for taps in w]) for one in a])

    return _in_nchw(shape, run)


def _torch_conv2d(shape: Conv) -> Baseline:
    rows, columns = shape.sides
    even = all(side.before == side.after for side in shape.sides)
    how = {"stride": (rows.stride, columns.stride), "dilation": (rows.dilation, columns.dilation)}
    pad = (rows.before, columns.before) if even else (0, 0)

    def run(x: np.ndarray, w: np.ndarray) -> Any:
        import torch

        a, f = torch.from_numpy(x), torch.from_numpy(w)
        if not shape.nchw:
            a, f = a.permute(0, 3, 1, 2), f.permute(0, 3, 1, 2)
        with torch.no_grad():
            if not even:
                a = torch.nn.functional.pad(a, (columns.before, columns.after, rows.before, rows.after))
            y = torch.nn.functional.conv2d(a, f, padding=pad, groups=shape.groups, **how)
        return y if shape.nchw else y.permute(0, 2, 3, 1)

    return run
