"""What is asked of an automatic schedule of a drawn definition: that it can be made, is right, and when built too."""

from __future__ import annotations

import time
from typing import Any

from drawing import drawn

import tensorir as tir
from tensorir.check.resize import dim_values
from tensorir.check.verdict import compare_results
from tensorir.errors import TensorIRError
from tensorir.expr.reread import with_dims
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.runtime.host import target_here

TARGETS = ("opencl", "cuda -arch=sm_80", "cuda -arch=sm_90a")
SLOW_S = 0.2
"""Seconds after which it is measured again how long a schedule takes to make."""


def judged(seed: int, target: str, build: bool = False, emulate: bool = False, fast: bool = True) -> dict[str, Any]:
    """What became of a drawn definition: "right", "refused" (by an error of ours), "wrong" or "crashed", and why."""
    d = drawn(seed)
    row = {"seed": seed, "target": target, "stages": d.told}
    return row | judged_of(d.outputs, target, build, emulate, seed, fast)


def judged_of(
    outputs: Any, target: str, build: bool = False, emulate: bool = False, seed: int = 0, fast: bool = True
) -> dict[str, Any]:
    """Likewise of any definition; a seed draws what it is built and run with.

    fast: whether it is interpreted; running its text on the same shapes shows as much
    """
    row: dict[str, Any] = {}
    try:
        seconds, name, space, s = _made(outputs, target)
    except TensorIRError as e:
        return row | {"found": "refused", "why": str(e)}
    except Exception as e:
        return row | {"found": "crashed", "why": f"{type(e).__name__}: {e}"}
    row |= {"seconds": seconds, "template": name}
    try:
        row["space"] = len(space.legal)
        for level in (*(("fast",) if fast else ()), *(("emulate",) if emulate else ())):
            verdict = s.check(level)
            if not verdict:
                return row | {"found": "wrong", "why": str(verdict)}
        if build:
            _built(s, seed)
    except AssertionError as e:
        return row | {"found": "wrong", "why": str(e)[:400]}
    except TensorIRError as e:
        return row | {"found": "refused", "why": str(e)}
    except Exception as e:
        return row | {"found": "crashed", "why": f"{type(e).__name__}: {e}"}
    return row | {"found": "right", "steps": len(s.trace)}


def _made(outputs: Any, target: str) -> tuple[float, str, Any, Any]:
    """Seconds of the processor to make a schedule, its template's name and space, and the schedule, which is that of
    ``tir.auto_schedule``; the least of three where the first were many, because what runs on the same core makes them
    more.
    """
    times = []
    while not times or (max(times) > SLOW_S and len(times) < 3):
        start = time.process_time()
        s = tir.Schedule(outputs, target_here(target))
        name, template = next(iter(tir.auto(outputs, s.target).items()))
        space = template.space_for(s.target)
        template.function(s, space.default)
        times.append(time.process_time() - start)
    return min(times), name, space, s


def _built(s: Any, seed: int) -> None:
    """Build, run, and compare with the reference on small whole numbers."""
    outputs = with_dims(s.outputs, dim_values(s.outputs, {}))
    given = random_arguments(outputs, seed)
    got = s.build()(*given)
    verdict = compare_results(outputs, got if isinstance(got, tuple) else (got,), evaluate(outputs, given))
    assert verdict, str(verdict)
