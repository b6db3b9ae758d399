"""tensorir as a competitor: python -m versus.ours VARIANT LAYOUT LOG

A variant is a way to build a workload: arguments of the operator, and the templates that count as it. ``VARIANTS``
lists them; one whose arguments or templates the operators do not have takes no part and says so.
"""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tensorir
from tensorir import ops
from tensorir.api.build import Executable
from tensorir.api.candidate import trace_text
from tensorir.api.identity import describe, identity_of
from tensorir.api.load import choices, regenerate
from tensorir.api.workload import Workload
from tensorir.errors import TensorIRError
from tensorir.runtime.arguments import aligned_empty
from tensorir.runtime.device import Device, open_device
from tensorir.target import Target
from tensorir.tune.template import suiting
from versus.protocol import Array, Ready, Skip, serve
from versus.shapes import Conv, Matmul, Problem, all_problems


def _always(_: Problem) -> bool:
    return True


@dataclass(frozen=True)
class Variant:
    """One way of ours to do a workload.

    ahead:   whether weights are packed before the clock runs
    options: arguments of the operator beside the shape
    only:    which templates count as it, by name; all when None
    applies: the workloads that it is for
    """

    label: str
    ahead: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    only: Callable[[str], bool] | None = None
    applies: Callable[[Problem], bool] = _always


def _dense_conv(problem: Problem) -> bool:
    return isinstance(problem, Conv) and not problem.depthwise


def _winograd(problem: Problem) -> bool:
    return isinstance(problem, Conv) and problem.winograd


def _plain(problem: Problem) -> bool:
    return not _dense_conv(problem)


VARIANTS: dict[str, Variant] = {
    v.label: v
    for v in (
        Variant("timed", ahead=False),
        Variant("ahead", ahead=True, options={"prepack": True}, applies=_plain),
        Variant("direct", True, {"prepack": True}, lambda name: "winograd" not in name, _dense_conv),
        Variant("winograd", True, {"prepack": True}, lambda name: "winograd" in name, _winograd),
    )
}


def workload(problem: Problem, layout: str, variant: Variant) -> Workload:
    """The operator with the shape and the variant's arguments; Skip names an argument that it does not take."""
    operator: Callable[..., Workload] = ops.matmul if isinstance(problem, Matmul) else ops.conv2d
    known = inspect.signature(operator).parameters
    for name in variant.options:
        if name not in known:
            raise Skip(f"{operator.__name__} takes no {name}")
    return operator(**_shape(problem, layout), **variant.options)


def _shape(problem: Problem, layout: str) -> dict[str, Any]:
    if isinstance(problem, Matmul):
        return {"m": problem.m, "n": problem.n, "k": problem.k}
    p = problem
    sizes = {"n": 1, "c": p.c, "h": p.h, "w": p.h, "k": p.o, "r": p.r, "s": p.r, "stride": p.stride, "pad": p.pad}
    return {**sizes, "groups": p.groups, "layout": layout}


def templates(work: Workload, variant: Variant, target: Target) -> list[str]:
    """The variant's templates for this kind of target; Skip when there is none."""
    suit = (name for name, _ in suiting(work.templates, target))
    found = [name for name in suit if variant.only is None or variant.only(name)]
    if not found:
        raise Skip(f"no template of {work.name} is the variant {variant.label}")
    return found


def built(work: Workload, variant: Variant, device: Device, log: str) -> tuple[Executable, dict[str, Any]]:
    """The best record of the variant that can be regenerated, else its default schedule; and which of them it is."""
    admitted = templates(work, variant, device.target)
    for template, config, executable in _recorded(work, device, log):
        if template in admitted:
            return executable, _about("log", template, config)
    template, space = admitted[0], work.templates[admitted[0]].space_for(device.target)
    s = work.schedule(space.default, template, device.target)
    return s.build(device), _about("default", template, space.default)


def _recorded(work: Workload, device: Device, log: str) -> Iterator[tuple[str, dict[str, Any], Executable]]:
    identity = identity_of(work, describe(device))
    for choice in choices(work, identity, log):
        made = regenerate(work, choice.record, device.target)
        if made is not None:
            record = choice.record
            yield record.template, record.config, Executable(made.source, device, trace_text(made), work.outputs)


def _about(origin: str, template: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"origin": origin, "template": template, "config": dict(config)}


def algorithm(template: str) -> str:
    """What the report counts a configuration as."""
    return "winograd" if "winograd" in template else "direct"


class Ours:
    """One variant in one layout."""

    def __init__(self, variant: Variant, layout: str, log: str) -> None:
        self.variant, self.layout, self.log = variant, layout, log
        self.device = open_device("opencl")
        about = self.device.identity
        self.versions = {"tensorir": tensorir.__version__, "python": platform.python_version(),
                         "numpy": np.__version__, "pyopencl": str(about["pyopencl"]),
                         "opencl": f"{about['name']}, {about['driver']}"}  # fmt: skip

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready:
        nhwc = isinstance(problem, Conv) and self.layout == "NHWC"
        work = workload(problem, self.layout, self.variant)
        executable, about = built(work, self.variant, self.device, self.log)
        if isinstance(problem, Conv):
            about["algorithm"] = algorithm(about["template"])
        if nhwc:
            x, w = x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1)
        a, b = (_aligned(v.shape, v) for v in (x, w))
        out = _aligned(work.outputs[0].shape, np.float32(np.nan))
        bound = executable.bind(a, b, out=out)

        def many(n: int) -> None:
            for _ in range(n):
                bound()
            bound.finish()

        def result() -> Array:
            bound.wait()
            return out.transpose(0, 3, 1, 2) if nhwc else out

        return Ready(many, result, about)


def _aligned(shape: tuple[Any, ...], values: Any) -> Array:
    made: Array = aligned_empty(tuple(map(int, shape)), "float32")
    made[...] = values
    return made


def tune(problem: Problem, layout: str, label: str, log: str, budget: str) -> str:
    """Tune one variant of a workload; a line about the outcome."""
    variant = VARIANTS[label]
    try:
        work = workload(problem, layout, variant)
        wanted = templates(work, variant, Target.parse("opencl"))
        outcome = work.tune("opencl", budget=budget, log=log, templates=wanted)
    except (Skip, TensorIRError) as error:
        return f"not tuned: {' '.join(str(error).split())[:200]}"
    best = outcome.best
    if best is None or not best.time_s:
        return f"no usable configuration in {outcome.trials} trials"
    return f"{problem.flops / best.time_s / 1e9:.1f} GF/s after {outcome.trials} trials"


def unavailable(layout: str = "NCHW") -> dict[str, str]:
    """Variants that no workload can use here, and why: known before any process is started."""
    found = {}
    for label, variant in VARIANTS.items():
        example = next(p for p in all_problems() if variant.applies(p))
        try:
            templates(workload(example, layout, variant), variant, Target.parse("opencl"))
        except Skip as reason:
            found[label] = str(reason)
    return found


if __name__ == "__main__":
    _variant, _layout, _log = sys.argv[1:4]
    serve(lambda: Ours(VARIANTS[_variant], _layout, _log))
