"""The CPU algorithms of conv2d, each a file with its schedule, its space and the configuration to start from.

The starting configurations come from a small model of a core (``model``) and of how blocks are dealt to cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorir.ops.depthwise as depthwise  # "from tensorir.ops import" asks the package for a name like it: 2 ms
import tensorir.ops.direct as direct
import tensorir.ops.winograd as winograd
from tensorir.api.workload import Template
from tensorir.engines.problems import Conv

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.tune.space import Space


def cpu_templates(shape: Conv) -> dict[str, Template]:
    """The algorithms that are legal for this convolution, the one that promises most first."""
    if depthwise.applies(shape):
        return {"cpu_depthwise": _template(shape, depthwise.space, depthwise.cpu_depthwise)}
    if shape.groups > 1:
        found = {"cpu_direct": _template(shape, direct.grouped_space, direct.cpu_direct)}
        if depthwise.takes_groups(shape):
            found["cpu_grouped"] = _template(shape, depthwise.space, depthwise.cpu_depthwise)
        return dict(reversed(found.items())) if direct.fills_pixels(shape) or not direct.fits(shape) else found
    found = {"cpu_direct": _template(shape, direct.strip_space, direct.cpu_direct)}
    if shape.r == shape.s == 1 and not shape.pad:
        found = {"cpu_pixels": _template(shape, direct.pixel_space, direct.cpu_pixels), **found}
    if winograd.admissible(shape):
        fast = {"cpu_winograd": _template(shape, winograd.space, winograd.cpu_winograd, rounds=True)}
        # it takes several kernels: not what a call without further wishes starts with
        return {**fast, **found} if shape.prepack else {**found, **fast}
    return found


def _template(shape: Conv, space: Callable[[Conv], Space], schedule: Callable[..., Schedule], rounds: bool = False
              ) -> Template:  # fmt: skip
    return Template(lambda s, c: schedule(s, shape.on(s.target), **c), lambda target: space(shape.on(target)), ("cpu",),
                    approximate=rounds)  # fmt: skip
