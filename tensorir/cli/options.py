"""Options shared by commands, their value types, and a workload's parameters."""

from __future__ import annotations

from typing import Any

import click

from tensorir.api.operator import Flag
from tensorir.cli.common import did_you_mean
from tensorir.errors import DeclarationError
from tensorir.errors.needs import seconds_of, spelt, text_of
from tensorir.ir.dtypes import dtype_of
from tensorir.ops.operators import FLAGS as OPERATOR_FLAGS
from tensorir.ops.operators import OPERATORS

COMMON_SHARE = 0.75
"""Share of all operators; the help of a flag that at least so many have does not name them."""


class NameChoice(click.Choice[str]):
    """Type of an option that takes one of several names, in any case; an error suggests similar names."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        found = next((c for c in self.choices if c.lower() == str(value).lower()), None)
        if found is None:
            asked = did_you_mean(str(value), self.choices)
            self.fail(f"{str(value)[:60]!r} is not one of {', '.join(map(repr, self.choices))}.{asked}", param, ctx)
        return found


class Duration(click.ParamType[Any]):
    """Type of an option that takes a time > 0, as "90s", "5m", "1h", "250ms" or "12"; its value is in seconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = seconds_of(value)
        if seconds is None:
            self.fail(f"{value!r} is not a time; try 90s, 5m or 1h", param, ctx)
        return seconds


class ElementType(click.ParamType[Any]):
    """Type of an option that takes a dtype, as ``tir.placeholder`` does; its value is the dtype's name."""

    name = "dtype"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return dtype_of(value).name
        except DeclarationError as e:
            self.fail(f"{e.problems[0].message}; {e.problems[0].hint}", param, ctx)


class Sides(click.ParamType[Any]):
    """Type of an option that takes one int, or several as in ``nn.conv2d``: "2x1"."""

    name = "n|nxn"

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        found = spelt(value)
        several = found if isinstance(found, tuple) else (found,)
        if not all(isinstance(n, int) and n >= self.least for n in several):
            self.fail(f"{value!r:.60} is neither an integer from {self.least} on nor several: 2x1", param, ctx)
        return text_of(several)


def argument(name: str, **given: Any) -> click.Argument:
    """A ``click.Argument`` of a command."""
    return click.Argument([name], **given)


def option(*names: str, **given: Any) -> click.Option:
    """New ``click.Option`` with option ``names`` and click's keyword arguments ``given``."""
    return click.Option(names, **given)


def at_least(least: int) -> click.IntRange:
    """Type of an option that takes an integer >= ``least``."""
    return click.IntRange(min=least)


JSON = option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
LOG = option("--log", default="tuning_logs", show_default=True, metavar="DIR", help="Where the logs are.")
DEVICE = option("--device", metavar="DEV", help="cuda:0, opencl:0:0, opencl:pocl (default: the first usable).")


def _flag(flag: Flag) -> click.Option:
    """click option for an operator's flag; its help begins with the names of operators that have it, unless most have
    it.
    """
    owners = [o.name for o in OPERATORS.values() if flag.name in o.flags]
    apart = dict(flag.apart)
    mine = [name for name in owners if name not in apart]
    about = f"{flag.about[0].upper()}{flag.about[1:]}"
    if len(owners) < COMMON_SHARE * len(OPERATORS):
        family = all(name.startswith(mine[0]) for name in mine)
        about = f"{mine[0] + '*' if family and mine[1:] else ', '.join(mine)}: {flag.about}"
    told = [about, *(f"{name}: {what}" for name, what in apart.items())]
    if flag.kind == "switch":
        return option(flag.option, is_flag=True, default=None, help=f"{'. '.join(told)}.")
    kinds = {
        "int": at_least(flag.least),
        "sides": Sides(flag.least),
        "float": click.FloatRange(min=0),
        "dtype": ElementType(),
    }
    kind = NameChoice(flag.choices) if flag.kind == "choice" else kinds[flag.kind]
    return option(flag.option, type=kind, help=f"{'. '.join(told)}.")


def operators_text() -> str:
    """Help text: operators with their shapes, grouped by grammar."""
    alike: dict[str, list[str]] = {}
    for o in OPERATORS.values():
        alike.setdefault(o.grammar, []).append(o.name)
    told = [f"{', '.join(names[:-1])}{' or ' if names[1:] else ''}{names[-1]} ({grammar})"
            for grammar, names in alike.items()]  # fmt: skip
    return ", ".join(told)


FLAGS = tuple(map(_flag, OPERATOR_FLAGS.values()))
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

WORKLOAD_OPTIONS = tuple(str(p.name) for p in (_SHAPES, *FLAGS, _ARG))


def split(given: dict[str, object]) -> dict[str, Any]:
    """Remove the options that describe a workload (all operators' parameters, --shapes, --arg …) from ``given``; return
    them.
    """
    return {name: given.pop(name) for name in WORKLOAD_OPTIONS}
