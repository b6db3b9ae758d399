"""A folder of hand-written kernels as a competitor: python -m versus.handwritten DIR LABEL

DIR holds generators in Python: ``workloads.py`` with W (name -> sizes) and CFG (name -> label -> (style, parameters)),
and ``run.py`` with STYLE (style -> generator). A generator returns an object with ``src``, ``launches`` of (kernel,
grid, letters of the buffers), ``pack(weights)`` and ``scratch``; X is the input, W packed weights, Y the output, T
scratch.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from versus.opencl import Device
from versus.protocol import Array, Missing, Ready, Skip, serve
from versus.shapes import Conv, Matmul, Problem

LABELS = {
    "packed0": ("", "timed"),
    "packed1": ("", "ahead"),
    "nchw": ("NCHW", "direct"),
    "nchw_wino": ("NCHW", "winograd"),
    "nhwc": ("NHWC", "direct"),
    "nhwc_wino": ("NHWC", "winograd"),
}
"""Their label -> layout, and the variant of ours that it corresponds to."""


class Handwritten:
    """One label of the set: the kernels that it names for each workload."""

    def __init__(self, folder: Path, label: str) -> None:
        sys.dont_write_bytecode = True  # the folder is not ours
        sys.path.insert(0, str(folder))
        if not (folder / "workloads.py").is_file():
            raise Missing(f"{folder} holds no workloads.py")
        workloads, run = importlib.import_module("workloads"), importlib.import_module("run")
        self.label, self.sizes, self.chosen, self.styles = label, workloads.W, workloads.CFG, run.STYLE
        self.device = Device()
        self.versions = {"opencl": self.device.platform, "numpy": np.__version__}

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready:
        if self.label not in self.chosen.get(problem.name, {}):
            raise Skip(f"the set has no {self.label} of it")
        sizes = self.sizes[problem.name]
        _same(problem, sizes)
        style, parameters = self.chosen[problem.name][self.label]
        make = self.styles[style]
        if isinstance(problem, Matmul):
            generated = make(problem.m, problem.n, problem.k, **parameters)
        else:
            generated = make(sizes, **parameters)
        return self._ready(problem, generated, x, w, {"style": style, "parameters": parameters})

    def _ready(self, problem: Problem, generated: Any, x: Array, w: Array, about: dict[str, Any]) -> Ready:
        device, nhwc = self.device, self.label.startswith("nhwc")
        shape = problem.shapes[2]
        if isinstance(problem, Conv):
            x, shape = (x[0].transpose(1, 2, 0), (shape[2], shape[3], shape[1])) if nhwc else (x[0], shape[1:])
        host = {
            "X": device.array(x),
            "W": device.array(generated.pack(w)),
            "Y": device.array(np.full(shape, np.nan, np.float32)),
            "T": device.array(np.zeros(max(generated.scratch, 16), np.float32)),
        }
        buffers = {letter: device.buffer(a) for letter, a in host.items()}
        program = device.build(generated.src)
        steps = [
            (device.kernel(program, name, *(buffers[letter] for letter in letters)), grid)
            for name, grid, letters in generated.launches
        ]

        def many(n: int) -> None:
            for _ in range(n):
                for kernel, grid in steps:
                    device.enqueue(kernel, grid)
            device.queue.finish()

        def result() -> Array:
            y = host["Y"]
            if isinstance(problem, Matmul):
                return y
            return (y.transpose(2, 0, 1) if nhwc else y)[None]

        return Ready(many, result, about)


def _same(problem: Problem, sizes: dict[str, Any]) -> None:
    """Refuse a set that means other sizes by the same name."""
    if isinstance(problem, Matmul):
        wanted = {"M": problem.m, "N": problem.n, "K": problem.k}
    else:
        wanted = {"C": problem.c, "H": problem.h, "W": problem.h, "O": problem.o, "R": problem.r, "S": problem.r,
                  "s": problem.stride, "p": problem.pad, "groups": problem.groups}  # fmt: skip
    found = {k: sizes.get(k) for k in wanted}
    if found != wanted:
        raise ValueError(f"the set's {problem.name} has other sizes: {found}")


if __name__ == "__main__":
    serve(lambda: Handwritten(Path(sys.argv[1]), sys.argv[2]))
