"""PoCL's CPU device through pyopencl: for the peak, the hand-written set and CLBlast."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorir.runtime.host import name_processor
from versus.protocol import Array, Missing

_PAGE = 4096


@dataclass(frozen=True)
class Kernel:
    """arguments: held here because OpenCL does not: a buffer that Python drops is gone, bound or not"""

    handle: Any
    arguments: tuple[Any, ...]


class Device:
    """The first CPU device that is no simulator, with an in-order queue."""

    def __init__(self) -> None:
        self.cl: Any = importlib.import_module("pyopencl")
        platforms = [p for p in self.cl.get_platforms() if "oclgrind" not in p.name.lower()]
        found = [d for p in platforms for d in p.get_devices(self.cl.device_type.CPU)]
        if not found:
            raise Missing("there is no OpenCL CPU device")
        self.device = found[0]
        name_processor(self.device)
        self.platform = f"{self.device.name.strip()}, {self.device.platform.version.strip()}"
        self.context = self.cl.Context([self.device])
        self.queue = self.cl.CommandQueue(self.context)

    def array(self, values: Array) -> Array:
        """A page-aligned copy, on which a CPU device works in place."""
        raw = np.empty(values.nbytes + _PAGE, np.uint8)
        start = -raw.ctypes.data % _PAGE
        made = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
        made[...] = values
        return made

    def buffer(self, array: Array) -> Any:
        """The memory of ``array`` itself."""
        return self.cl.Buffer(self.context, self.cl.mem_flags.USE_HOST_PTR, hostbuf=array)

    def kernel(self, program: Any, name: str, *arguments: Any) -> Kernel:
        """A kernel with its arguments set, to be enqueued many times: making one costs 0.2 ms."""
        made = self.cl.Kernel(program, name)
        made.set_args(*arguments)
        return Kernel(made, arguments)

    def build(self, text: str) -> Any:
        return self.cl.Program(self.context, text).build()

    def enqueue(self, kernel: Kernel, grid: tuple[int, ...]) -> None:
        self.cl.enqueue_nd_range_kernel(self.queue, kernel.handle, grid, (1,) * len(grid))
