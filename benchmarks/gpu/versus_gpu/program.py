"""A compiled program on the GPU: loaded and launched by CuPy on memory and the stream of torch."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tensorir.codegen.source import KernelLaunch, Param, itemsize
from tensorir.runtime.cuda_device import encoded_map

from .building import Built

Call = Callable[[], Any]
STATIC_SHARED = 48 * 1024
"""Bytes of shared memory above which a kernel has to ask."""


def current_stream() -> Any:
    """torch's current stream as CuPy's."""
    import torch

    return _external(torch.cuda.current_stream().cuda_stream)


@cache
def _external(pointer: int) -> Any:
    import cupy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy 14 prefers a protocol that not every torch has
        return cupy.cuda.ExternalStream(pointer)


class Program:
    """The kernels of one ``Built``, with its workspace and constants on the device."""

    def __init__(self, built: Built) -> None:
        import cupy

        self.source, self.static_bytes = built.source, built.static_bytes
        self._module = cupy.cuda.function.Module()
        self._module.load(built.cubin)
        self._functions = [(k, self._function(k)) for k in self.source.kernels]
        self._own = {p.name: _allocated(p) for p in self.source.params if p.role in ("workspace", "constant")}

    def _dynamic(self, kernel: KernelLaunch) -> int:
        """Bytes of shared memory to pass at launch: what the kernel does not declare itself."""
        return max(0, kernel.shared_bytes - self.static_bytes.get(kernel.name, 0))

    def _function(self, kernel: KernelLaunch) -> Any:
        function, dynamic = self._module.get_function(kernel.name), self._dynamic(kernel)
        if dynamic and kernel.shared_bytes > STATIC_SHARED:
            driver = importlib.import_module("cupy_backends.cuda.api.driver")
            driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic)
        return function

    def bound(self, inputs: Sequence[Any], output: Any) -> Call:
        """A call that launches all kernels on these tensors, which have to live as long."""
        memory: Mapping[str, Any] = {
            **self._own,
            **{p.name: t for p, t in zip(self.source.inputs, inputs, strict=True)},  # numbers as the kernels take them
            **{p.name: t for p, t in zip(self.source.outputs, [output], strict=True)},
        }
        launches = [
            (function, k.grid, k.block, arguments(k, memory), self._dynamic(k)) for k, function in self._functions
        ]

        def call() -> None:
            stream = current_stream()
            for function, grid, block, pointers, shared in launches:
                function(grid, block, pointers, shared_mem=shared, stream=stream)

        return call


def arguments(kernel: KernelLaunch, memory: Mapping[str, Any]) -> tuple[Any, ...]:
    """Addresses of tensors, the tensor maps of those that the kernel copies by tiles, and scalars as they are."""
    maps = {m.name: m for m in kernel.maps}

    def value(argument: str, name: str) -> Any:
        given = memory[name]
        if isinstance(given, np.generic):
            return given
        return encoded_map(maps[argument], given.data_ptr()) if argument in maps else np.uint64(given.data_ptr())

    return tuple(map(value, kernel.args, kernel.params))


def _allocated(p: Param) -> Any:
    import torch

    if p.data is not None:
        return torch.frombuffer(bytearray(p.data), dtype=torch.uint8).to("cuda")
    size = max(16, itemsize(p.dtype) * math.prod(p.shape))
    return torch.full((size,), 255, dtype=torch.uint8, device="cuda")  # no numbers, where nobody wrote any
