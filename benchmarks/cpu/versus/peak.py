"""The machine's peak of multiply-adds: a kernel that stays in registers. python -m versus.peak

Shares of it are shares of what PoCL's compiler reaches with vectors of eight floats, the width that it generates for
x86; a peer may use wider vectors and, where the core runs those at full rate, exceed it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from versus.opencl import Device
from versus.protocol import Array, Ready, serve
from versus.shapes import Problem

ACCUMULATORS, STEPS, GROUPS, LANES = 12, 20_000, 8, 8
FLOPS = 2 * LANES * ACCUMULATORS * STEPS * GROUPS


def text() -> str:
    """Twelve independent chains: more than latency times units need, fewer than there are registers."""
    names = [f"c{i}" for i in range(ACCUMULATORS)]
    declared = ", ".join(f"{c} = x * {i}.0f" for i, c in enumerate(names))
    body = " ".join(f"{c} = {c} * m + x;" for c in names)
    total = " + ".join(f"s.s{i}" for i in range(LANES))
    return f"""__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void peak(__global float* y, float f) {{
  float8 x = (float8)(f), m = (float8)(0.999f), {declared};
  for (int k = 0; k < {STEPS}; k++) {{ {body} }}
  float8 s = {" + ".join(names)};
  y[get_global_id(0)] = {total};
}}
"""


def nothing(file: Path) -> None:
    """An input for a kernel that reads none."""
    np.save(file, np.zeros(1, np.float32))


class Peak:
    """Serves the kernel like a workload; which one is asked for does not matter."""

    def __init__(self) -> None:
        self.device = Device()
        self.versions = {"opencl": self.device.platform}

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready:
        out = self.device.array(np.zeros(GROUPS, np.float32))
        kernel = self.device.kernel(self.device.build(text()), "peak", self.device.buffer(out), np.float32(1e-3))

        def many(n: int) -> None:
            for _ in range(n):
                self.device.enqueue(kernel, (GROUPS,))
            self.device.queue.finish()

        return Ready(many, lambda: out)


if __name__ == "__main__":
    serve(Peak)
