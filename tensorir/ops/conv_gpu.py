"""conv2d on GPUs: by shared tiles on any, and the templates for CUDA, where these suit the convolution."""

from __future__ import annotations

from tensorir.api.workload import Template
from tensorir.engines.problems import Conv
from tensorir.engines.tiles import Tile
from tensorir.ops.conv_hopper import PanelTile, PixelTile
from tensorir.ops.conv_nest import tile_template
from tensorir.ops.conv_tensor import ImageTile, forward_shape
from tensorir.ops.conv_warp import FilterPixelTile
from tensorir.ops.conv_weight import FilterHopperTile, FilterTile, is_narrow
from tensorir.ops.depthwise_gpu import ChannelTile
from tensorir.ops.winograd_gpu import FusedTile, WinogradTile


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
    fitting = _fitting(shape, gpu_hopper=PixelTile, gpu_tensor=ImageTile, gpu_warp=FilterPixelTile,
                       gpu_depthwise=ChannelTile)  # fmt: skip
    # Winograd's algorithm is never what a search starts with
    return fitting | tile | _fitting(shape, gpu_winograd=WinogradTile, gpu_winograd_fused=FusedTile)


def _fitting(shape: Conv, **tiles: type[Tile[Conv]]) -> dict[str, Template]:
    """The templates of those tiles that fit."""
    return {name: tile.template(shape) for name, tile in tiles.items() if tile.needs(shape) is not None}
