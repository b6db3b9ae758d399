"""A stand-in for CuPy whose memory is the host's, for programs of CUDA folders: kernels are Python."""

import ctypes
import importlib.util
from types import SimpleNamespace

import fake_cuda
import numpy as np


class OnPointer(fake_cuda.Array):
    """cupy.ndarray((n,), dtype, pointer)."""

    def __init__(self, shape, dtype=None, memory=None):
        if isinstance(shape, np.ndarray):
            super().__init__(shape)
            return
        memory = memory or fake_cuda.alloc(shape[0])
        host = np.frombuffer((ctypes.c_uint8 * max(shape[0], 1)).from_address(memory.ptr), np.uint8)[: shape[0]]
        super().__init__(host, memory)

    def __getitem__(self, key):
        return OnPointer(self.host[key])


CURRENT = [0]


class Stream:
    """cupy.cuda.ExternalStream; the streams on which something is enqueued are kept."""

    def __init__(self, address):
        self.address = address

    def __enter__(self):
        CURRENT.append(self.address)

    def __exit__(self, *_):
        CURRENT.pop()


class Kernel:
    """A kernel of the stand-in: ``compute`` on the arguments, with the stream that is current."""

    shared_size_bytes = 0

    def __init__(self, compute):
        self.compute, self.streams = compute, []

    def __call__(self, grid, block, values, shared_mem=0):
        self.streams.append(CURRENT[-1])
        self.compute(*values)


def cupy_of(kernel):
    made = fake_cuda.cupy()
    made.ndarray, made.empty = OnPointer, lambda shape, dtype: OnPointer((shape,) if isinstance(shape, int) else shape)
    made.asarray = OnPointer
    made.RawModule = lambda **_: SimpleNamespace(get_function=lambda name: kernel)
    made.cuda.ExternalStream = Stream
    made.cuda.UnownedMemory = lambda address, nbytes, owner: SimpleNamespace(ptr=address)
    made.cuda.MemoryPointer = lambda memory, offset: fake_cuda.Memory(memory, memory.ptr + offset)
    made.cuda.Device = lambda *_: SimpleNamespace(id=0, compute_capability="90")
    return made


def loaded(folder, name):
    spec = importlib.util.spec_from_file_location(f"tested_{name}", folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
