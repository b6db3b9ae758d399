"""What NumPy and PyTorch say of the operators on rows, by their names."""

import numpy as np

EPSILON = 1e-5


def inputs(name, rows, columns, seed=0):
    """Arrays for an operator; numbers of both signs, and means that are not 0."""
    draw = np.random.default_rng(seed).standard_normal
    x = draw((rows // 64, 64, columns) if name == "sum_middle" else (rows, columns), "float32") + np.float32(0.5)
    more = {"layer_norm": 2, "rms_norm": 1}.get(name, 0)
    return (x, *(draw(columns, "float32") for _ in range(more)))


def by_numpy(name, x, *more):
    """In float64, if the arrays are."""
    if name.startswith("sum_"):
        return x.sum({"sum_first": 0, "sum_middle": 1, "sum_last": -1}[name])
    if name == "rms_norm":
        return x / np.sqrt((x * x).mean(1, keepdims=True) + EPSILON) * more[0]
    if name == "layer_norm":
        away = x - x.mean(1, keepdims=True)
        return away / np.sqrt((away * away).mean(1, keepdims=True) + EPSILON) * more[0] + more[1]
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True) if name == "softmax" else np.log(e / e.sum(1, keepdims=True))


def by_torch(name, x, *more):
    """As PyTorch computes it."""
    from torch.nn import functional

    if name.startswith("sum_"):
        return x.sum({"sum_first": 0, "sum_middle": 1, "sum_last": -1}[name])
    if name == "rms_norm":
        return functional.rms_norm(x, x.shape[-1:], more[0], EPSILON)
    if name == "layer_norm":
        return functional.layer_norm(x, x.shape[-1:], *more, EPSILON)
    return (functional.softmax if name == "softmax" else functional.log_softmax)(x, 1)
