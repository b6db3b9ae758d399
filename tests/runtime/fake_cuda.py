"""CuPy and the CUDA driver as far as launches with tensor maps need them, in host memory: kernels are Python."""

import ctypes
from types import SimpleNamespace

import numpy as np

from tensorir.codegen.source import KernelLaunch, Param, Source, TensorMap

SHAPE = (16, 32)
ROWS = {"dtype": "float32", "shape": SHAPE, "box": (8, 32)}
TEXT = """struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void pack(const __grid_constant__ Map B_map, const __grid_constant__ Map W_store) {
  ((float*)W_store.words[0])[threadIdx.x] = B_map.words[1];
}
extern "C" __global__ void add(const __grid_constant__ Map A_map, float* C, const __grid_constant__ Map W_map) {
  extern __shared__ float s[];
  s[threadIdx.x] = A_map.words[0];
  C[0] = s[threadIdx.x ^ 1] + W_map.words[1];
}
"""
# W = B (once), C = A + W; all but C are known by maps only
SOURCE = Source(
    "mapped",
    "cuda",
    TEXT,
    (
        Param("A", "float32", SHAPE, "input", 16),
        Param("B", "float32", SHAPE, "input", 16),
        Param("C", "float32", SHAPE, "output", 16),
        Param("W", "float32", SHAPE, "workspace", 16),
    ),
    (
        KernelLaunch(
            "pack",
            ("B_map", "W_store"),
            (1, 1, 1),
            (32, 1, 1),
            once=True,
            maps=(TensorMap("B_map", "B", **ROWS, swizzle=0), TensorMap("W_store", "W", **ROWS)),
        ),
        KernelLaunch(
            "add",
            ("A_map", "C", "W_map"),
            (1, 1, 1),
            (32, 1, 1),
            65536,
            maps=(TensorMap("A_map", "A", **ROWS), TensorMap("W_map", "W", **ROWS)),
        ),
    ),
)


class Entry:
    """A function of a library: ctypes lets callers set its ``restype``."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        return self.function(*args)


class Driver:
    """libcuda: writes the address and then ones into a map, and keeps what it was asked."""

    def __init__(self, version=13000, status=0):
        self.version, self.status, self.asked = version, status, []
        self.cuTensorMapEncodeTiled = Entry(lambda *args: self._encode(*args[:6], {"box": list(args[6])}, *args[7:]))
        self.cuTensorMapEncodeIm2col = Entry(self._encode_pixels)
        self.cuDriverGetVersion = Entry(self._version)

    def _version(self, pointer):
        pointer._obj.value = self.version
        return 0

    def _encode_pixels(self, *args):
        lower, upper, channels, pixels = args[6:10]
        tile = {"lower": list(lower), "upper": list(upper), "channels": channels.value, "pixels": pixels.value}
        return self._encode(*args[:6], tile, *args[10:])

    def _encode(self, place, kind, rank, address, extents, strides, tile, steps, interleave, swizzle, promotion, fill):
        assert place.value % 64 == 0
        words = (ctypes.c_uint64 * 16).from_address(place.value)
        words[:] = [address.value] + [2**64 - 1] * 15
        numbers = {"extents": extents, "strides": strides, "steps": steps}
        self.asked.append(
            {"kind": kind, "rank": rank, "address": address.value, "interleave": interleave, "swizzle": swizzle}
            | {"promotion": promotion, "fill": fill, **tile}
            | {name: list(values) for name, values in numbers.items()}
        )
        return self.status

    def install(self, monkeypatch):
        """Be what ctypes loads as the driver."""
        load = ctypes.CDLL
        names = ("libcuda.so.1", "nvcuda.dll")
        monkeypatch.setattr(ctypes, "CDLL", lambda name, *a, **k: self if name in names else load(name, *a, **k))
        return self

    @property
    def addresses(self):
        return [a["address"] for a in self.asked]


class Memory:
    """A pointer of CuPy, into host memory."""

    def __init__(self, raw, ptr):
        self.raw, self.ptr = raw, ptr

    def __add__(self, offset):
        return Memory(self.raw, self.ptr + offset)

    def copy_from_host(self, pointer, nbytes):
        ctypes.memmove(self.ptr, pointer, nbytes)

    def copy_to_host(self, pointer, nbytes):
        ctypes.memmove(pointer, self.ptr, nbytes)


def alloc(nbytes):
    raw = np.zeros(nbytes + 256, np.uint8)
    return Memory(raw, raw.ctypes.data + -raw.ctypes.data % 256)


class Array:
    """cupy.ndarray."""

    def __init__(self, host, memory=None):
        self.host, self.data = host, memory or Memory(host, host.ctypes.data)

    dtype = property(lambda self: self.host.dtype)
    shape = property(lambda self: self.host.shape)
    flags = property(lambda self: self.host.flags)
    nbytes = property(lambda self: self.host.nbytes)

    def __getitem__(self, key):
        return Array(self.host[key])

    def __setitem__(self, key, value):
        self.host[key] = value.host

    def get(self):
        return self.host.copy()


def empty(shape, dtype):
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = alloc(nbytes)
    start = memory.ptr - memory.raw.ctypes.data
    return Array(memory.raw[start : start + nbytes].view(dtype).reshape(shape))


def address_of(value):
    """Where the data of an argument lies: of a map, the address in it."""
    if isinstance(value, np.ndarray):
        assert value.size == 1 and value.nbytes == 128 and value.ctypes.data % 64 == 0, "what CuPy passes by value"
        return int(value.view(np.uint64)[0])
    return value.data.ptr if isinstance(value, Array) else int(value)


def array_at(value):
    return np.frombuffer((ctypes.c_float * 512).from_address(address_of(value)), np.float32)


def pack(b, w):
    array_at(w)[:] = array_at(b)


def add(a, c, w):
    array_at(c)[:] = array_at(a) + array_at(w)


class Function:
    """A kernel on the device; keeps how it was launched. shared_size_bytes: what it declares."""

    ptr, shared_size_bytes = 77, 0

    def __init__(self, name):
        self.run, self.launches = {"pack": pack, "add": add}[name], []

    def __call__(self, grid, block, values, shared_mem=0):
        self.launches.append((grid, block, values, shared_mem))
        self.run(*values)


class Module:
    """A loaded cubin, or a compiled text; ``options`` of the last one are kept by ``cupy``."""

    def __init__(self):
        self.functions = {}

    def load(self, data):
        assert data[:4] == b"\x7fELF"

    def get_function(self, name):
        return self.functions.setdefault(name, Function(name))


class Handle:
    """cupy.cuda.Device"""

    def __init__(self, capability):
        self.compute_capability = capability

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def cupy(capability="90", nvrtc=(13, 0)):
    """The module: what the runtime uses, and what exported loaders use."""
    made = SimpleNamespace(__version__="0", ndarray=Array, empty=empty, uint8=np.uint8, asarray=Array, modules=[])

    def raw_module(code=None, options=(), backend="nvrtc", path=None):
        if path is not None and path.endswith(made.refused):
            raise RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
        made.modules.append(SimpleNamespace(code=code, options=options, backend=backend, path=path, get=Module()))
        return made.modules[-1].get

    made.RawModule, made.arrived, made.refused = raw_module, [], ()
    made.cuda = SimpleNamespace(
        Device=lambda *_: Handle(capability),
        alloc=alloc,
        function=SimpleNamespace(Module=Module),
        runtime=SimpleNamespace(getDeviceCount=lambda: 1),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
        Stream=SimpleNamespace(null=SimpleNamespace(synchronize=lambda: made.arrived.append(True))),
        nvrtc=SimpleNamespace(getVersion=lambda: nvrtc),
    )
    return made
