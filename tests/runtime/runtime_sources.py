"""Hand-written programs for the runtime's tests."""

import numpy as np

from tensorir.codegen.source import GatherRange, KernelLaunch, Param, Source


def f32(name, shape, role, **more):
    return Param(name, "float32", shape, role, **more)


ADD = Source(
    "add",
    "opencl",
    """__kernel void add(__global const float* restrict A, __global const float* restrict B,
                  __global float* restrict C) {
  int i = get_global_id(0);
  if (i < 50) C[i] = A[i] + 2 * B[i];
}
""",
    (f32("A", (5, 10), "input"), f32("B", (5, 10), "input"), f32("C", (5, 10), "output")),
    (KernelLaunch("add", ("A", "B", "C"), (4, 1, 1), (16, 1, 1)),),
)

# C = (A * s)^T scaled through a workspace and a constant, D = n + row number
TWO = Source(
    "two",
    "opencl",
    """__kernel void scale(__global const float* A, __global float* W, const float s) {
  W[get_global_id(1) * 6 + get_global_id(0)] = A[get_global_id(1) * 6 + get_global_id(0)] * s;
}
__kernel void turn(__global const float* W, __global const float* K, __global float* C, __global int* D, const int n) {
  int i = get_group_id(0), j = get_local_id(0);
  C[i * 4 + j] = W[j * 6 + i] + K[i];
  if (j == 0) D[i] = n + i;
}
""",
    (
        f32("A", (4, 6), "input"),
        f32("s", (), "scalar"),
        Param("n", "int32", (), "scalar"),
        f32("C", (6, 4), "output"),
        Param("D", "int32", (6,), "output"),
        f32("W", (4, 6), "workspace"),
        f32("K", (6,), "constant", data=np.arange(6, dtype="<f4").tobytes()),
    ),
    (
        KernelLaunch("scale", ("A", "W", "s"), (6, 4, 1), (1, 1, 1)),
        KernelLaunch("turn", ("W", "K", "C", "D", "n"), (6, 1, 1), (4, 1, 1)),
    ),
)

GATHER = Source(
    "gather",
    "opencl",
    """__kernel void gather(__global const float* T, __global const int* I, __global float* C) {
  int i = get_global_id(0);
  C[i] = T[I[i]];
}
""",
    (f32("T", (7,), "input"), Param("I", "int32", (2, 3), "input"), f32("C", (2, 3), "output")),
    (KernelLaunch("gather", ("T", "I", "C"), (6, 1, 1), (1, 1, 1)),),
    (GatherRange("I", 7, "T"),),
)


def one(name, body, shape=(10,), dtype="float32", ctype="float", grid=None, **more):
    """A program C = f(A), one thread per element, with ``body`` as statements about i, A, C."""
    n = int(np.prod(shape))
    text = f"__kernel void {name}(__global {ctype}* A, __global {ctype}* C) {{ int i = get_global_id(0); {body} }}\n"
    params = (Param("A", dtype, shape, "input", **more), Param("C", dtype, shape, "output", **more))
    return Source(name, "opencl", text, params, (KernelLaunch(name, ("A", "C"), grid or (n, 1, 1), (1, 1, 1)),))
