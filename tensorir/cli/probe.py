"""A tiny workload by which doctor sees whether a device compiles and computes."""

from __future__ import annotations

from typing import Any

from tensorir.api.workload import Workload
from tensorir.expr.compute import compute, placeholder
from tensorir.tune.space import Space


def probe() -> Workload:
    """Twice each element plus one."""
    A = placeholder((37,), name="A")
    B = compute((37,), lambda i: A[i] * 2 + 1, name="B")
    return Workload("probe", B, {"only": (_split, Space())})


def _split(s: Any, config: Any) -> None:
    s.split("B.i", [None, 8])
