"""What scripts in several folders measure with: the environment of results, one call's time, arrays for kernels."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from tensorir.runtime.arguments import aligned_empty


def environment(also: tuple[str, ...] = ()) -> dict[str, Any]:
    """The interpreter, the machine and the packages that results depend on, None where one is not there."""
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
    for package in ("numpy", "scipy", "scikit-learn", "scikit-optimize", *also):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def seconds(call: Callable[[], Any], times: int = 4, clock: Callable[[], float] = time.perf_counter) -> float:
    """The least of a few times of one call, with the wait for its end: roughly, to size the slots of ``Rounds``.

    clock: ``time.process_time`` counts what all threads take of the processor
    """
    found = []
    for _ in range(times):
        began = clock()
        call()
        getattr(call, "finish", lambda: None)()
        found.append(clock() - began)
    return min(found)


def aligned(a: np.ndarray) -> np.ndarray:
    """A copy that kernels work on in place: where its pages lie is the same for all that are timed."""
    copy = aligned_empty(a.shape, str(a.dtype))
    copy[...] = a
    return copy
