"""conv2d on GPUs: by shared tiles on any, and the templates for CUDA, where these suit the convolution."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tensorir.api.workload import Template
from tensorir.ops import winograd_fused, winograd_gpu
from tensorir.ops.common import Config
from tensorir.ops.conv_backward_tensor import data_templates
from tensorir.ops.conv_hopper import hopper_template
from tensorir.ops.conv_nest import tile_template
from tensorir.ops.conv_tensor import conv_multiplication, conv_space, gpu_tensor, view
from tensorir.ops.conv_warp import warp_template
from tensorir.ops.conv_weight_hopper import is_narrow, weight_warpgroups
from tensorir.ops.conv_weight_tensor import weight_templates
from tensorir.ops.depthwise_gpu import depthwise_template
from tensorir.ops.problems import Conv
from tensorir.ops.winograd import admissible

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule


def gpu_templates(shape: Conv, made: str) -> dict[str, Template]:
    """The templates for GPUs by name, the one that a search begins with first; of the convolution ("y"), or of its
    gradient with respect to the image ("x") or the filter ("w").
    """
    tile = {"gpu_tile": tile_template(shape, made)}
    if made == "x":
        return data_templates(shape) | tile
    if made == "w":
        first, second = weight_warpgroups(shape), weight_templates(shape)
        return ({**second, **first} if is_narrow(shape) else {**first, **second}) | tile
    return _tensor_cores(shape) | warp_template(shape) | depthwise_template(shape) | tile | _winograds(shape)


def _tensor_cores(shape: Conv) -> dict[str, Template]:
    """The templates for tensor cores, where these fit the convolution."""
    m = conv_multiplication(shape)
    if m is None:
        return {}

    def function(s: Schedule, c: Config) -> Schedule:
        return gpu_tensor(s, c, shape, view(s, shape))

    cores = {"gpu_tensor": Template(function, lambda t: conv_space(shape, t), ("gpu",), needs=m.needs)}
    return hopper_template(shape) | cores


def _winograds(shape: Conv) -> dict[str, Template]:
    """Winograd's algorithm for CUDA, where it applies and ``max_error`` allows it; never what a search starts with."""
    fits = shape.r == 3 and shape.groups == 1 and shape.precision != "tf32"
    allowed = admissible(shape) if fits else []
    sizes = [m for m in winograd_gpu.TILES if m in allowed]
    if not sizes:
        return {}
    needs = "sm_70" if shape.precision == "fp32" else "sm_80"
    space = partial(winograd_gpu.winograd_space, shape, sizes=sizes)
    found = {
        "gpu_winograd": Template(
            lambda s, c: winograd_gpu.gpu_winograd(s, c, shape), space, ("gpu",), approximate=True, needs=needs
        )
    }
    if shape.precision == "fp32":
        blocks = partial(winograd_fused.fused_space, shape)
        found["gpu_winograd_fused"] = Template(
            lambda s, c: winograd_fused.gpu_winograd_fused(s, c, shape),
            blocks,
            ("gpu",),
            approximate=True,
            needs="sm_70",
        )
    return found
