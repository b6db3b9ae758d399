"""Table of all operators for the command line and for workloads: name, defining module, shape grammar, flags."""

from __future__ import annotations

from tensorir.api.operator import Flag, Operator

FLAGS = {
    f.name: f
    for f in (
        Flag("stride", "sides", "step of the window, 2, or 2x1 by rows and columns", least=1),
        Flag("pad", "sides", "zeros on each side, 1, or 1x2, or TOPxLEFTxBOTTOMxRIGHT"),
        Flag("dilation", "sides", "distance of the taps, 1, or 1x2", least=1),
        Flag("groups", "int", "groups of channels", least=1, apart=(("grouped_matmul", "groups of rows"),)),
        Flag("layout", "choice", "order of the dimensions", choices=("NCHW", "NHWC")),
        Flag("residual", "switch", "add a tensor of the result's shape"),
        Flag("max_error", "float", "error relative to the largest output that an algorithm may have (default 1e-4)"),
        Flag("prepack", "switch", "the weights are constants: pack them ahead, once"),
        Flag("batch", "int", "how many at once", least=1),
        Flag("align", "int", "a group begins at a multiple of so many rows", least=1),
        Flag("ta", "switch", "a is stored (k, m)"),
        Flag("tb", "switch", "b is stored (n, k)"),
        Flag("alpha", "switch", "a factor passed at each launch"),
        Flag("beta", "switch", "add beta times a third matrix"),
        Flag("bias", "switch", "add a bias"),
        Flag("act", "choice", "activation of the result", choices=("relu", "gelu", "silu", "sigmoid", "tanh")),
        Flag("axis", "int", "along which axis (default: the last)", least=-8),
        Flag("window", "sides", "rows and columns of a window, 3, or 3x2", least=1),
        Flag("size", "int", "rows and columns of the result", least=1),
        Flag("causal", "switch", "queries see no later keys"),
        Flag("dtype", "dtype", "element type (default float32)"),
        Flag("precision", "choice", "of products of float32 on GPUs", choices=("fp32", "tf32", "3xtf32")),
    )
}
"""Flag name -> flag, in the order of help texts."""

_GEOMETRY = ("stride", "pad", "dilation", "groups", "layout")
_TYPES = ("dtype", "precision")
_IMAGE = ("NxCxHxW KxCxRxS", "1x64x56x56 64x64x3x3")
_PRODUCT = ("MxNxK", "512x512x512")

_CONVOLVED = ("stride", "pad", "dilation", "groups")
_POOLED = ("window", "stride", "pad")


def _defined(name: str, example: str, *flags: str, typed: tuple[str, ...] = ("x",)) -> Operator:
    """Row of an operator of ``ops.defined``; ``typed``: its tensors with free shapes."""
    grammar = " ".join(n.upper() for n in typed)
    return Operator(name, "tensorir.ops.defined", grammar, example, flags=(*flags, "dtype"), tensors=typed)


OPERATORS = {
    o.name: o
    for o in (
        Operator("conv2d", "tensorir.ops.convolution", *_IMAGE,
                 flags=(*_GEOMETRY, "residual", "max_error", "bias", "act", "prepack", *_TYPES), shared="groups"),
        Operator("conv2d_backward_data", "tensorir.ops.convolution", *_IMAGE, flags=(*_GEOMETRY, *_TYPES),
                 shared="groups"),
        Operator("conv2d_backward_weight", "tensorir.ops.convolution", *_IMAGE, flags=(*_GEOMETRY, *_TYPES),
                 shared="groups"),
        Operator("grouped_matmul", "tensorir.ops.products", *_PRODUCT,
                 flags=("groups", "align", "tb", "act", *_TYPES), needed=("groups",)),
        Operator("matmul", "tensorir.ops.products", *_PRODUCT,
                 flags=("batch", "ta", "tb", "alpha", "beta", "bias", "act", "prepack", *_TYPES)),
        *(_defined(name, "4096x1024", "axis") for name in ("softmax", "log_softmax", "cumsum")),
        *(_defined(name, "4096x1024") for name in ("layer_norm", "rms_norm", "relu", "gelu", "silu", "sigmoid")),
        _defined("batch_norm", "1x64x56x56"),
        _defined("group_norm", "1x64x56x56", "groups"),
        *(_defined(name, "1x64x56x56", *_POOLED) for name in ("max_pool2d", "avg_pool2d")),
        _defined("adaptive_avg_pool2d", "1x64x56x56", "size"),
        _defined("linear", "128x256 512x256", typed=("x", "w")),
        _defined("conv1d", "1x64x128 64x64x3", *_CONVOLVED, typed=("x", "w")),
        _defined("conv3d", "1x16x8x14x14 16x16x3x3x3", *_CONVOLVED, typed=("x", "w")),
        _defined("conv_transpose2d", "1x64x14x14 64x32x4x4", *_CONVOLVED, typed=("x", "w")),
        _defined("embedding", "128 1000x512", typed=("indices", "weight")),
        _defined("attention", "1x8x128x64 1x8x128x64", "causal", typed=("q", "k")),
    )
}  # fmt: skip
