"""What a call of an exported kernel costs from JAX and from TVM-FFI, next to what their own calls cost.

python benchmarks/frameworks/jax_and_tvm_ffi.py [CALLS]

Exports products of 32x32x32 and 1024x1024x64, and a kernel that copies one element. Each way is called in turn, so that
whatever else the machine does meets all of them alike: minimum and median in microseconds, 10,000 calls each if nothing
else is said. Next to the one that copies, which is what a call costs: jax.jit of the identity and of an addition, and
TVM-FFI's echo of an object. What is not installed is left out, and said.
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


def least_of_jax(folder: Path, x: np.ndarray) -> dict[str, Callable[[], object]]:
    """A kernel that does next to nothing, and the least of JAX's own."""
    import jax

    sys.path.insert(0, str(folder.parent))
    package = importlib.import_module(folder.name)
    sys.path.pop(0)
    given = jax.device_put(x)
    ours, same, more = jax.jit(package.call), jax.jit(lambda x: x), jax.jit(lambda x: x + 1)
    assert np.array_equal(ours(given), x)
    return {
        "jax.jit of the kernel": lambda: ours(given).block_until_ready(),
        "jax.jit of the identity": lambda: same(given).block_until_ready(),
        "jax.jit of x + 1": lambda: more(given).block_until_ready(),
    }


def least_of_tvm_ffi(folder: Path, x: np.ndarray) -> dict[str, Callable[[], object]]:
    """As ``least_of_jax``."""
    import tvm_ffi

    f = tvm_ffi.load_module(str(folder / "libcopy.so")).copy
    echo = tvm_ffi.get_global_func("testing.echo")
    one, two = tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(np.empty_like(x))
    return {"tvm_ffi, the kernel": lambda: f(one, two), "tvm_ffi, its echo of a tensor": lambda: echo(one)}


def bare(folder: Path, a: np.ndarray, b: np.ndarray) -> dict[str, Callable[[], object]]:
    """The C function by ctypes, with nothing prepared in a call."""
    kernel = ctypes.CDLL(str(folder / "libmm.so")).mm
    kernel.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    buffers = (ctypes.c_void_p * 3)(*(array.ctypes.data for array in (a, b, out)))
    return {"ctypes, pointers kept": lambda: kernel(None, buffers), "numpy.matmul": lambda: np.matmul(a, b, out=out)}


def printed(title: str, calls: int, ways: Mapping[str, Callable[[], object]]) -> None:
    print(f"\n{f'{title}, {calls} calls each in turn':48}{'min us':>10}{'median us':>12}")
    for name, (least, median) in measured(ways, calls).items():
        print(f"{name:48}{least:10.2f}{median:12.2f}")


def installed() -> list[str]:
    found = []
    for name in ("jax", "tvm_ffi"):
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed")
        else:
            found.append(name)
    return found


def main(calls: int) -> None:
    rng, there = np.random.default_rng(0), installed()
    with tempfile.TemporaryDirectory() as place:
        x = tir.placeholder((1,), name="x")
        s = tir.Schedule(tir.compute((1,), lambda i: x[i], name="y"), "c")
        folder = s.export(Path(place) / "copy_1", ["jax", "tvm_ffi"], name="copy")
        data, ways = tir.empty((1,), "float32"), {}
        data[:] = 1
        for name, make in (("jax", least_of_jax), ("tvm_ffi", least_of_tvm_ffi)):
            ways |= make(folder, data) if name in there else {}
        printed("one element", calls, ways)
        for m, n, k in SHAPES:
            folder = Path(place) / f"mm_{m}"
            tir.ops.matmul(m=m, n=n, k=k).schedule(target="c").export(folder, to=["jax", "tvm_ffi"], name="mm")
            a, b = (tir.empty(shape, "float32") for shape in ((m, k), (k, n)))
            a[:], b[:] = rng.standard_normal(a.shape), rng.standard_normal(b.shape)
            ways = bare(folder, a, b)
            for name, make in (("jax", of_jax), ("tvm_ffi", of_tvm_ffi)):
                ways |= make(folder, a, b) if name in there else {}
            printed(f"{m}x{n}x{k}", max(1, min(calls, calls * 32**3 * 20 // (m * n * k))), ways)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
