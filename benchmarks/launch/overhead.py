"""What a launch costs: tensorir's bound launch and call against bare pyopencl, and compiling cold and cached.

python benchmarks/launch/overhead.py [DEVICE]
"""

import atexit
import os
import shutil
import sys
import tempfile
import time

import numpy as np

from tensorir.codegen.source import KernelLaunch, Param, Source
from tensorir.runtime.arguments import aligned_empty
from tensorir.runtime.device import open_device
from tensorir.runtime.launch import CompiledProgram
from tensorir.runtime.timing import interleaved

TEXT = """__kernel void one(__global const float* A, __global const float* B, __global float* C) {
  C[get_global_id(0)] = A[get_global_id(0)] + B[get_global_id(0)];
}
"""
SOURCE = Source(
    "one",
    "opencl",
    TEXT,
    tuple(Param(n, "float32", (16,), r) for n, r in (("A", "input"), ("B", "input"), ("C", "output"))),
    (KernelLaunch("one", ("A", "B", "C"), (1, 1, 1), (16, 1, 1)),),
)


def main() -> None:
    for variable in ("TENSORIR_CACHE_DIR", "POCL_CACHE_DIR"):  # empty, so that the first compile is a cold one
        os.environ[variable] = tempfile.mkdtemp(prefix="tensorir-bench-")
        atexit.register(shutil.rmtree, os.environ[variable], ignore_errors=True)
    device = open_device(sys.argv[1] if len(sys.argv) > 1 else "opencl")
    print(device)
    a, b, c = (aligned_empty((16,), "float32") for _ in range(3))
    a[:], b[:] = 1, 2
    started = time.perf_counter()
    program = CompiledProgram(SOURCE, device)
    built = time.perf_counter()
    program(a, b, out=c)
    first = time.perf_counter()
    again = CompiledProgram(SOURCE, device)
    loaded = time.perf_counter()
    again(a, b, out=c)
    ran = time.perf_counter()
    print(f"cold:   compile {(built - started) * 1e3:.1f} ms, first call and store {(first - built) * 1e3:.1f} ms")
    print(f"cached: load {(loaded - first) * 1e3:.2f} ms ({again.cached}), first call {(ran - loaded) * 1e3:.2f} ms")

    import pyopencl as cl

    bound = program.bind(a, b, out=c)
    queue, kernel = device.queue, bound._steps[0].args[1]

    class Bare:
        def __call__(self) -> None:
            cl.enqueue_nd_range_kernel(queue, kernel, (16, 1, 1), (16, 1, 1))

        finish = staticmethod(queue.finish)

    def bare_wait() -> None:
        cl.enqueue_nd_range_kernel(queue, kernel, (16, 1, 1), (16, 1, 1))
        queue.finish()

    def bound_wait() -> None:
        bound()
        bound.wait()

    def bound_finish() -> None:
        bound()
        bound.finish()

    x, y = (np.array(v) for v in (a, b))
    cases = {
        "queued: bare clEnqueueNDRangeKernel": Bare(),
        "queued: bound()": bound,
        "waited: bare + finish": bare_wait,
        "waited: bound() + finish()": bound_finish,
        "waited: bound() + wait()": bound_wait,
        "waited: program(a, b, out=c), in place": lambda: program(a, b, out=c),
        "waited: program(a, b)": lambda: program(x, y),
    }
    for name, timing in zip(cases, interleaved(list(cases.values()), rounds=60), strict=True):
        print(f"{name:40s} {timing}")
    for name, call in (("bare", Bare()), ("bound()", bound)):
        best = min(_enqueue_time(call) for _ in range(50))
        print(f"time to enqueue, {name:24s} {best * 1e6:.2f} us")


def _enqueue_time(call) -> float:  # type: ignore[no-untyped-def]
    started = time.perf_counter()
    for _ in range(500):
        call()
    seconds = (time.perf_counter() - started) / 500
    call.finish()
    return seconds


if __name__ == "__main__":
    main()
