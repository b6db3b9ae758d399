"""conv2d on CPUs: the templates that rules make of what is declared, and algorithms that are written by hand.

Each of these is a file with its schedule, its space and the configuration to start from, which comes
from a small model of a core (``model``) and of how blocks are dealt to cores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import tensorir.ops.direct as direct  # "from tensorir.ops import" asks the package for a name like it: 2 ms
import tensorir.ops.winograd as winograd
from tensorir.api.workload import Template
from tensorir.engines.problems import Conv
from tensorir.ops.common import Named, fastest, those
from tensorir.ops.conv_nest import row_templates

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule
    from tensorir.target import Target
    from tensorir.tune.space import Space


def cpu_templates(shape: Conv, made: str, by_rules: Mapping[str, Template]) -> Named:
    """The templates by name, the one that promises most first; of the convolution ("y"), or of its gradient with
    respect to the image ("x") or the filter ("w").
    """
    found, grouped = written(shape, made).items(), in_groups(shape)
    if not grouped and shape.prepack:  # rules keep no filters of other algorithms packed
        return found
    ruled = those(lambda name: "_tile" in name, by_rules)
    # rules fill vectors with pixels where channels would do
    first = made == "y" and grouped and direct.fits(shape) and not direct.fills_pixels(shape)
    return itertools.chain(*((found, ruled) if first else (ruled, found)))


def begins_with(shape: Conv, templates: Mapping[str, Template], target: Target) -> str:
    """The template of a convolution to begin with on a target: the first of rules, or that written by hand."""
    return fastest((next(iter(found.items())) for found in (templates, written(shape, "y"))), target)


def in_groups(shape: Conv) -> bool:
    """True when a convolution is one in groups, or of a single channel to a single one, which is as if it were."""
    return shape.groups > 1 or shape.c == shape.k == 1


def written(shape: Conv, made: str) -> dict[str, Template]:
    """The algorithms that no rule makes and that are legal, the one that promises most first."""
    if made != "y":
        return row_templates(shape, made) if in_groups(shape) else {}
    if in_groups(shape):
        grouped = _template(shape, direct.grouped_space, direct.cpu_direct)
        return {} if shape.groups == shape.c else {"cpu_direct": grouped}
    found = {"cpu_direct": _template(shape, direct.strip_space, direct.cpu_direct)}
    if shape.r == shape.s == 1 and not shape.pad:
        found = {"cpu_pixels": _template(shape, direct.pixel_space, direct.cpu_pixels), **found}
    if winograd.admissible(shape):
        fast = {"cpu_winograd": _template(shape, winograd.space, winograd.cpu_winograd, rounds=True)}
        # it takes several kernels: not what a call without further wishes starts with
        return {**fast, **found} if shape.prepack else {**found, **fast}
    return found


def _template(shape: Conv, space: Callable[[Conv], Space], schedule: Callable[..., BaseSchedule], rounds: bool = False
              ) -> Template:  # fmt: skip
    return Template(lambda s, c: schedule(s, shape.on(s.target), **c), lambda target: space(shape.on(target)), ("cpu",),
                    approximate=rounds)  # fmt: skip
