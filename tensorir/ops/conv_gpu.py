"""conv2d on GPUs: the templates that rules make of what is declared, and those for CUDA that no rule makes."""

from __future__ import annotations

from tensorir.api.workload import Template
from tensorir.automatic.plan import EVERYTHING, auto
from tensorir.engines.problems import Conv
from tensorir.engines.tiles import Tile
from tensorir.expr.tensor import Tensor
from tensorir.ops.common import packed_once
from tensorir.ops.conv_tensor import ImageTile, forward_shape
from tensorir.ops.conv_weight import FilterTile
from tensorir.ops.winograd_gpu import FusedTile, WinogradTile

WARPGROUPS = "gpu_tile_wgmma"
"""The template of products by warpgroups, which comes before those that are written by hand."""


def gpu_templates(shape: Conv, made: str, outputs: Tensor) -> dict[str, Template]:
    """The templates for GPUs by name, the one that a search begins with first; of the convolution ("y"), or of its
    gradient with respect to the image ("x") or the filter ("w").
    """
    (before, after), ruled = written(shape, made), by_rules(shape, outputs)
    zeros = made == "x" and shape.stride > 1  # that rules multiply
    first = {name: t for name, t in ruled.items() if name == WARPGROUPS and not zeros}
    return first | before | ruled | after


def written(shape: Conv, made: str) -> tuple[dict[str, Template], dict[str, Template]]:
    """Those of them that no rule makes: what a search begins with rather than with those of rules in threads or by
    warps, and other ones.
    """
    if made == "x":
        f = forward_shape(shape)
        return _fitting(f, gpu_tensor=ImageTile) if f else {}, {}
    if made == "w":
        return _fitting(shape, gpu_tensor=FilterTile), {}
    fitting = _fitting(shape, gpu_tensor=ImageTile)
    # Winograd's algorithm is never what a search starts with
    return fitting, _fitting(shape, gpu_winograd=WinogradTile, gpu_winograd_fused=FusedTile)


def by_rules(shape: Conv, outputs: Tensor) -> dict[str, Template]:
    """The templates of ``tir.auto``: for products of matrices and windows, and for streams where groups may be too
    narrow.
    """
    found = auto(outputs, EVERYTHING["gpu"], shape.precision)
    of_tiles = {name: t for name, t in found.items() if name.startswith("gpu_tile") or 1 < shape.groups < shape.c}
    return packed_once(shape, of_tiles or found)


def _fitting(shape: Conv, **tiles: type[Tile[Conv]]) -> dict[str, Template]:
    """The templates of those tiles that fit."""
    return {name: tile.template(shape) for name, tile in tiles.items() if tile.needs(shape) is not None}
