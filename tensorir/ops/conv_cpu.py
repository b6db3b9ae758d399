"""The CPU algorithms of conv2d, each a file with its schedule, its space and the configuration to start from.

The starting configurations come from a small model of a core (``model``) and of how blocks are dealt to cores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorir.ops.direct as direct  # "from tensorir.ops import" asks the package for a name like it: 2 ms
import tensorir.ops.winograd as winograd
from tensorir.api.workload import Template
from tensorir.engines.problems import Conv
from tensorir.expr.tensor import Tensor
from tensorir.ops.common import Named, packed_once, those

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.tune.space import Space


def cpu_templates(shape: Conv) -> dict[str, Template]:
    """The algorithms that are legal for this convolution, the one that promises most first; none of one in groups."""
    if in_groups(shape):
        return {}
    found = {"cpu_direct": _template(shape, direct.strip_space, direct.cpu_direct)}
    if shape.r == shape.s == 1 and not shape.pad:
        found = {"cpu_pixels": _template(shape, direct.pixel_space, direct.cpu_pixels), **found}
    if winograd.admissible(shape):
        fast = {"cpu_winograd": _template(shape, winograd.space, winograd.cpu_winograd, rounds=True)}
        # it takes several kernels: not what a call without further wishes starts with
        return {**fast, **found} if shape.prepack else {**found, **fast}
    return found


def in_groups(shape: Conv) -> bool:
    """Whether a convolution is one in groups, or of a single channel to a single one, which is as if it were."""
    return shape.groups > 1 or shape.c == shape.k == 1


def grouped_templates(shape: Conv, outputs: Tensor) -> Named:
    """The templates of a convolution in groups: those of rules, and that which is written for several channels."""
    from tensorir.automatic.plan import EVERYTHING, auto  # all rules, which loading a kernel has no use for

    found = written_in_groups(shape).items()
    ruled = packed_once(shape, those(lambda name: "_tile" in name, auto(outputs, EVERYTHING["cpu"])))
    return itertools.chain(
        *((found, ruled) if direct.fits(shape) and not direct.fills_pixels(shape) else (ruled, found))
    )


def written_in_groups(shape: Conv) -> dict[str, Template]:
    """Those of them that no rule makes."""
    if shape.groups == shape.c:
        return {}
    return {"cpu_direct": _template(shape, direct.grouped_space, direct.cpu_direct)}


def _template(shape: Conv, space: Callable[[Conv], Space], schedule: Callable[..., Schedule], rounds: bool = False
              ) -> Template:  # fmt: skip
    return Template(lambda s, c: schedule(s, shape.on(s.target), **c), lambda target: space(shape.on(target)), ("cpu",),
                    approximate=rounds)  # fmt: skip
