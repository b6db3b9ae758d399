"""The arguments that say which workload is meant; the same for every verb that takes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tensorir.cli.common import Names

Function = Callable[..., Any]

_ACTS = ("relu", "gelu", "silu", "sigmoid", "tanh")
_PRECISIONS = ("fp32", "tf32", "3xtf32")


class ElementType(click.ParamType[Any]):
    """A dtype as ``tir.placeholder`` takes it, by the name that we give it."""

    name = "dtype"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from tensorir.errors import DeclarationError
        from tensorir.ir.dtypes import dtype_of

        try:
            return dtype_of(value).name
        except DeclarationError as e:
            self.fail(f"{e.problems[0].message}; {e.problems[0].hint}", param, ctx)


def workload_options(function: Function) -> Function:
    """OP [SHAPE…] and the operators' parameters, collected in ``parameters``."""
    at_least_1 = click.IntRange(min=1)
    decorators = [
        click.argument("op", metavar="OP"),
        click.argument("shape", nargs=-1, metavar="[SHAPE]..."),
        click.option(
            "--shapes",
            metavar="NAME|FILE",
            help="A set of shapes: alexnet, bert, mobilenet, resnet50, vgg16, or a file of them.",
        ),
        click.option("--stride", type=at_least_1, help="conv2d: step of the window."),
        click.option("--pad", type=click.IntRange(min=0), help="conv2d: zeros on each side."),
        click.option("--dilation", type=at_least_1, help="conv2d: distance of the taps."),
        click.option("--groups", type=at_least_1, help="conv2d: groups of channels. grouped_matmul: groups of rows."),
        click.option("--layout", type=Names(["NCHW", "NHWC"]), help="conv2d: order of the dimensions."),
        click.option("--residual", is_flag=True, default=None, help="conv2d: add a tensor of the result's shape."),
        click.option(
            "--max-error",
            type=click.FloatRange(min=0),
            help="conv2d: error relative to the largest output that an algorithm may have (default 1e-4).",
        ),
        click.option("--prepack", is_flag=True, default=None, help="The weights are constants: pack them ahead, once."),
        click.option("--batch", type=at_least_1, help="matmul: how many at once."),
        click.option("--align", type=at_least_1, help="grouped_matmul: a group begins at a multiple of so many rows."),
        click.option("--ta", is_flag=True, default=None, help="matmul: a is stored (k, m)."),
        click.option("--tb", is_flag=True, default=None, help="matmul: b is stored (n, k)."),
        click.option("--alpha", is_flag=True, default=None, help="matmul: a factor passed at each launch."),
        click.option("--beta", is_flag=True, default=None, help="matmul: add beta times a third matrix."),
        click.option("--bias", is_flag=True, default=None, help="Add a bias."),
        click.option("--act", type=Names(_ACTS), help="Activation of the result."),
        click.option("--dtype", type=ElementType(), help="Element type (default float32)."),
        click.option("--precision", type=Names(_PRECISIONS), help="Of products of float32 on GPUs."),
        click.option("--arg", multiple=True, metavar="K=V", help="FILE.py:FUNCTION: an argument of the function."),
    ]
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


NAMES = (
    *("shapes", "stride", "pad", "dilation", "groups", "layout", "residual", "max_error", "prepack"),
    *("batch", "align", "ta", "tb", "alpha", "beta", "bias", "act", "dtype", "precision", "arg"),
)


def split(given: dict[str, Any]) -> dict[str, Any]:
    """Take the workload's parameters out of a verb's keyword arguments."""
    return {name: given.pop(name) for name in NAMES}
