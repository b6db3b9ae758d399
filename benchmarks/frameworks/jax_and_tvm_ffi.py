"""What a call of an exported kernel costs from JAX and from TVM-FFI, next to what these cost themselves.

python benchmarks/frameworks/jax_and_tvm_ffi.py [CALLS]

Exports products of 32x32x32 and 1024x1024x64, and calls each way in turn, so that whatever else the machine does meets
all of them alike: minimum and median in microseconds, 10,000 calls each if nothing else is said. What is not installed
is left out, and said.
"""

import ctypes
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import tensorir as tir

SHAPES = ((32, 32, 32), (1024, 1024, 64))


def measured(ways: Mapping[str, Callable[[], object]], calls: int) -> dict[str, tuple[float, float]]:
    """Minimum and median of each way, in microseconds; in turn, after 200 calls of each."""
    times = {name: np.empty(calls) for name in ways}
    for call in ways.values():
        for _ in range(min(200, calls)):
            call()
    clock = time.perf_counter_ns
    for n in range(calls):
        for name, call in ways.items():
            began = clock()
            call()
            times[name][n] = clock() - began
    return {name: (t.min() / 1e3, float(np.median(t)) / 1e3) for name, t in times.items()}


def of_jax(folder: Path, a: np.ndarray, b: np.ndarray) -> dict[str, Callable[[], object]]:
    """The kernel under ``jax.jit``, and JAX's own product."""
    import jax

    sys.path.insert(0, str(folder.parent))
    package = importlib.import_module(folder.name)
    sys.path.pop(0)
    x, y = jax.device_put(a), jax.device_put(b)
    ours, own = jax.jit(package.call), jax.jit(lambda a, b: a @ b)
    assert np.allclose(ours(x, y), own(x, y), rtol=1e-4, atol=1e-4)
    return {
        "jax.jit of the kernel": lambda: ours(x, y).block_until_ready(),
        "jax.jit of a @ b": lambda: own(x, y).block_until_ready(),
        "jax.jit of the kernel, NumPy in": lambda: ours(a, b).block_until_ready(),
    }


def of_tvm_ffi(folder: Path, a: np.ndarray, b: np.ndarray) -> dict[str, Callable[[], object]]:
    """The kernel as a function of a module, on its own tensors and on NumPy's."""
    import tvm_ffi

    f = tvm_ffi.load_module(str(folder / "libmm.so")).mm
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    tensors = [tvm_ffi.from_dlpack(array) for array in (a, b, out)]
    return {"tvm_ffi, its tensors": lambda: f(*tensors), "tvm_ffi, NumPy's arrays": lambda: f(a, b, out)}


def bare(folder: Path, a: np.ndarray, b: np.ndarray) -> dict[str, Callable[[], object]]:
    """The C function by ctypes, with nothing prepared in a call."""
    kernel = ctypes.CDLL(str(folder / "libmm.so")).mm
    kernel.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    buffers = (ctypes.c_void_p * 3)(*(array.ctypes.data for array in (a, b, out)))
    return {"ctypes, pointers kept": lambda: kernel(None, buffers), "numpy.matmul": lambda: np.matmul(a, b, out=out)}


def main(calls: int) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in SHAPES:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / f"mm_{m}"
            tir.ops.matmul(m=m, n=n, k=k).schedule(target="c").export(folder, to=["jax", "tvm_ffi"], name="mm")
            a, b = (tir.empty(shape, "float32") for shape in ((m, k), (k, n)))
            a[:], b[:] = rng.standard_normal(a.shape), rng.standard_normal(b.shape)
            ways = bare(folder, a, b)
            for name, make in (("jax", of_jax), ("tvm_ffi", of_tvm_ffi)):
                if importlib.util.find_spec(name) is None:
                    print(f"{name} is not installed")
                else:
                    ways |= make(folder, a, b)
            few = max(1, min(calls, calls * 32**3 * 20 // (m * n * k)))
            print(f"\n{m}x{n}x{k}, {few} calls each in turn{'':14}min us   median us")
            for name, (least, median) in measured(ways, few).items():
                print(f"{name:48}{least:10.2f}{median:12.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
