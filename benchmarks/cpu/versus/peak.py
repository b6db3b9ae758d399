"""The machine's peak of multiply-adds: a kernel that stays in registers. python -m versus.peak

In vectors of 16 floats where the processor has registers of 64 bytes, told as generated kernels are: an older compiler
would not use them. A core that does such an instruction in two halves runs it at the same rate with less to decode.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tensorir.codegen.dialect import WIDE_MACRO, wide_preamble
from tensorir.runtime.host import has_avx512
from versus.opencl import Device
from versus.protocol import Array, Ready, serve
from versus.shapes import Problem

ACCUMULATORS, STEPS, GROUPS = 12, 20_000, 8
LANES = 16 if has_avx512() else 8
FLOPS = 2 * LANES * ACCUMULATORS * STEPS * GROUPS


def text() -> str:
    """Twelve independent chains: more than latency times units need, fewer than there are registers."""
    names = [f"c{i}" for i in range(ACCUMULATORS)]
    declared = ", ".join(f"{c} = x * {i}.0f" for i, c in enumerate(names))
    body = " ".join(f"{c} = {c} * m + x;" for c in names)
    total = " + ".join(f"s.s{i:x}" for i in range(LANES))
    head = f"#define {WIDE_MACRO}\n{wide_preamble(True)}" if LANES == 16 else "#define WIDE"
    return f"""{head}
WIDE void chains(__global float* y, float f) {{
  float{LANES} x = (float{LANES})(f), m = (float{LANES})(0.999f), {declared};
  for (int k = 0; k < {STEPS}; k++) {{ {body} }}
  float{LANES} s = {" + ".join(names)};
  *y = {total};
}}
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void peak(__global float* y, float f) {{
  chains(y + get_global_id(0), f);
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
