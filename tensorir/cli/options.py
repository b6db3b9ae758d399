"""Options that verbs share, what they may be given, and the arguments that say which workload is meant."""

from __future__ import annotations

from typing import Any

import click

from tensorir.cli.common import did_you_mean
from tensorir.errors import DeclarationError
from tensorir.errors.needs import seconds_of

ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh")
PRECISIONS = ("fp32", "tf32", "3xtf32")


class Names(click.Choice[str]):
    """One of a few names, in capitals or not; a name that is spelt like one of them is asked about."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        found = next((c for c in self.choices if c.lower() == str(value).lower()), None)
        if found is None:
            asked = did_you_mean(str(value), self.choices)
            self.fail(f"{str(value)[:60]!r} is not one of {', '.join(map(repr, self.choices))}.{asked}", param, ctx)
        return found


class Duration(click.ParamType[Any]):
    """Seconds, as "90s", "5m", "1h", "250ms" or "12"."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = seconds_of(value)
        if seconds is None:
            self.fail(f"{value!r} is not a time; try 90s, 5m or 1h", param, ctx)
        return seconds


class ElementType(click.ParamType[Any]):
    """A dtype as ``tir.placeholder`` takes it, by the name that we give it."""

    name = "dtype"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from tensorir.ir.dtypes import dtype_of  # help does not need it

        try:
            return dtype_of(value).name
        except DeclarationError as e:
            self.fail(f"{e.problems[0].message}; {e.problems[0].hint}", param, ctx)


def argument(name: str, **given: Any) -> click.Argument:
    """An argument of a verb, with the settings of ``click.Argument``."""
    return click.Argument([name], **given)


def option(*names: str, **given: Any) -> click.Option:
    """An option of a verb, with the settings of ``click.Option``."""
    return click.Option(names, **given)


def at_least(least: int) -> click.IntRange:
    """An integer from ``least`` on."""
    return click.IntRange(min=least)


JSON = option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
LOG = option("--log", default="tuning_logs", show_default=True, metavar="DIR", help="Where the logs are.")
DEVICE = option("--device", metavar="DEV", help="cuda:0, opencl:0:0, opencl:pocl (default: the first usable).")

FLAGS = (
    option("--stride", type=at_least(1), help="conv2d: step of the window."),
    option("--pad", type=at_least(0), help="conv2d: zeros on each side."),
    option("--dilation", type=at_least(1), help="conv2d: distance of the taps."),
    option("--groups", type=at_least(1), help="conv2d: groups of channels. grouped_matmul: groups of rows."),
    option("--layout", type=Names(["NCHW", "NHWC"]), help="conv2d: order of the dimensions."),
    option("--residual", is_flag=True, default=None, help="conv2d: add a tensor of the result's shape."),
    option(
        "--max-error",
        type=click.FloatRange(min=0),
        help="conv2d: error relative to the largest output that an algorithm may have (default 1e-4).",
    ),
    option("--prepack", is_flag=True, default=None, help="The weights are constants: pack them ahead, once."),
    option("--batch", type=at_least(1), help="matmul: how many at once."),
    option("--align", type=at_least(1), help="grouped_matmul: a group begins at a multiple of so many rows."),
    option("--ta", is_flag=True, default=None, help="matmul: a is stored (k, m)."),
    option("--tb", is_flag=True, default=None, help="matmul: b is stored (n, k)."),
    option("--alpha", is_flag=True, default=None, help="matmul: a factor passed at each launch."),
    option("--beta", is_flag=True, default=None, help="matmul: add beta times a third matrix."),
    option("--bias", is_flag=True, default=None, help="Add a bias."),
    option("--act", type=Names(ACTIVATIONS), help="Activation of the result."),
    option("--dtype", type=ElementType(), help="Element type (default float32)."),
    option("--precision", type=Names(PRECISIONS), help="Of products of float32 on GPUs."),
)
"""The operators' parameters that are no extents."""

_SHAPES = option(
    "--shapes",
    metavar="NAME|FILE",
    help="A set of shapes: alexnet, bert, mobilenet, resnet50, vgg16, or a file of them.",
)
_ARG = option("--arg", multiple=True, metavar="K=V", help="FILE.py:FUNCTION: an argument of the function.")
_OP, _SHAPE = argument("op", metavar="OP"), argument("shape", nargs=-1, metavar="[SHAPE]...")
WORKLOAD: tuple[click.Parameter, ...] = (_OP, _SHAPE, _SHAPES, *FLAGS, _ARG)
"""OP [SHAPE…] and the operators' parameters; the same for every verb that takes a workload."""

NAMES = tuple(str(p.name) for p in (_SHAPES, *FLAGS, _ARG))


def split(given: dict[str, Any]) -> dict[str, Any]:
    """Take the workload's parameters out of a verb's keyword arguments."""
    return {name: given.pop(name) for name in NAMES}
