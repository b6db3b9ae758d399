"""conv2d on GPUs: by shared tiles on any, and the templates for CUDA, where these suit the convolution."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tensorir.api.workload import Template
from tensorir.ops import winograd_fused, winograd_gpu
from tensorir.ops.conv_hopper import PanelTile, PixelTile
from tensorir.ops.conv_nest import tile_template
from tensorir.ops.conv_tensor import ImageTile, forward_shape
from tensorir.ops.conv_warp import FilterPixelTile
from tensorir.ops.conv_weight import FilterHopperTile, FilterTile, is_narrow
from tensorir.ops.depthwise_gpu import depthwise_template
from tensorir.ops.problems import Conv
from tensorir.ops.tiles import Tile
from tensorir.ops.winograd import admissible

if TYPE_CHECKING:
    pass


def gpu_templates(shape: Conv, made: str) -> dict[str, Template]:
    """The templates for GPUs by name, the one that a search begins with first; of the convolution ("y"), or of its
    gradient with respect to the image ("x") or the filter ("w").
    """
    tile = {"gpu_tile": tile_template(shape, made)}
    if made == "x":
        f = forward_shape(shape)
        return (_fitting(f, gpu_hopper=PanelTile, gpu_tensor=ImageTile) if f else {}) | tile
    if made == "w":
        first, second = _fitting(shape, gpu_hopper=FilterHopperTile), _fitting(shape, gpu_tensor=FilterTile)
        return (second | first if is_narrow(shape) else first | second) | tile
    fitting = _fitting(shape, gpu_hopper=PixelTile, gpu_tensor=ImageTile, gpu_warp=FilterPixelTile)
    return fitting | depthwise_template(shape) | tile | _winograds(shape)


def _fitting(shape: Conv, **tiles: type[Tile[Conv]]) -> dict[str, Template]:
    """The templates of those tiles that fit."""
    return {name: tile.template(shape) for name, tile in tiles.items() if tile.needs(shape) is not None}


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
