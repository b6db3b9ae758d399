"""conv2d on GPUs: the templates that rules make of what is declared, and those for CUDA that no rule makes."""

from __future__ import annotations

from tensorir.api.workload import Template
from tensorir.automatic.facts import Wishes
from tensorir.engines.problems import Conv
from tensorir.expr.tensor import Tensor
from tensorir.ops.common import Named, Written, by_rules, those
from tensorir.ops.conv_tensor import ImageTile, forward_shape
from tensorir.ops.conv_weight import FilterTile

WARPGROUPS = "gpu_tile_wgmma"
"""The template of products by warpgroups, which comes before those that are written by hand."""


def gpu_templates(shape: Conv, made: str, outputs: Tensor) -> Named:
    """The templates for GPUs by name, the one that a search begins with first; of the convolution ("y"), or of its
    gradient with respect to the image ("x") or the filter ("w").
    """
    (before, after), ruled = written(shape, made), iter(_ruled(shape, outputs))
    waiting = list[tuple[str, Template]]()
    for name, t in ruled:
        if name == WARPGROUPS and (made != "x" or shape.stride == 1):  # of such images rules multiply zeros
            yield name, t
            break
        waiting.append((name, t))
        if name.startswith("gpu_tile"):  # warpgroups would have been the first of these
            break
    yield from before.items()
    yield from waiting
    yield from ruled
    yield from after.items()


def written(shape: Conv, made: str) -> tuple[dict[str, Template], dict[str, Template]]:
    """Those of them that no rule makes: what a search begins with rather than with those of rules in threads or by
    warps, and other ones.
    """
    if made == "x":
        f = forward_shape(shape)
        return _fitting(f, gpu_tensor=ImageTile) if f else {}, {}
    return _fitting(shape, gpu_tensor=FilterTile if made == "w" else ImageTile), {}


def _ruled(shape: Conv, outputs: Tensor) -> Named:
    """The templates of ``tir.auto``: for products of matrices and windows, and for streams where groups may be too
    narrow.
    """
    found = by_rules(
        outputs, "gpu", Wishes(shape.precision, ("w",) if shape.prepack else (), max_error=shape.max_error)
    )
    few = 1 < shape.groups < shape.c
    return those(lambda name: few or name.startswith(("gpu_tile", "gpu_winograd")), found)


def _fitting(shape: Conv, **tiles: type[Written[Conv]]) -> dict[str, Template]:
    """The templates of those tiles that fit."""
    return {name: tile.template(shape) for name, tile in tiles.items() if tile.needs(shape) is not None}
