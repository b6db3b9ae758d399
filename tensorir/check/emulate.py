"""Run emitted CUDA text with no GPU: the system's C++ compiler, one CPU thread per CUDA thread, real barriers.

A floor under the text itself: what is printed computes what the loop tree means. Blocks run one after another, so
races between blocks are the interpreter's to find; memory orders and asynchronous copies are not modelled.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tensorir.codegen.source import Param, Source
from tensorir.errors import CheckError, CompileError, Problem, refuse
from tensorir.interp.numbers import numpy_dtype

THREADS = 1024  # CPU threads at once
POISON = 0xFF  # every byte of what the kernel has yet to write: NaN, -1

_SHIM = r"""
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
using std::min; using std::max;
struct tir_dim3 { unsigned x, y, z; };
static thread_local tir_dim3 threadIdx, blockIdx;
static tir_dim3 blockDim, gridDim;
static std::barrier<>* tir_barrier;
template <class T, int N> struct alignas(sizeof(T) * N) tir_vector;
template <class T> struct alignas(sizeof(T) * 2) tir_vector<T, 2> { T x, y; };
template <class T> struct alignas(sizeof(T) * 4) tir_vector<T, 4> { T x, y, z, w; };
typedef tir_vector<float, 2> float2; typedef tir_vector<float, 4> float4;
typedef tir_vector<double, 2> double2; typedef tir_vector<int, 2> int2; typedef tir_vector<int, 4> int4;
static inline float2 make_float2(float a, float b) { return {a, b}; }
static inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
static inline double2 make_double2(double a, double b) { return {a, b}; }
static inline int2 make_int2(int a, int b) { return {a, b}; }
static inline int4 make_int4(int a, int b, int c, int d) { return {a, b, c, d}; }
static inline float __int_as_float(int i) { float f; std::memcpy(&f, &i, 4); return f; }
static inline float __uint_as_float(unsigned i) { float f; std::memcpy(&f, &i, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned i; std::memcpy(&i, &f, 4); return i; }
static inline double __longlong_as_double(long long i) { double f; std::memcpy(&f, &i, 8); return f; }
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
#define __global__
#define __device__
#define __constant__ static
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __syncthreads() tir_barrier->arrive_and_wait()
"""

_DRIVER = r"""
extern "C" void tir_run_{name}(void** a, const unsigned* g, const unsigned* b) {{
  gridDim = {{g[0], g[1], g[2]}}; blockDim = {{b[0], b[1], b[2]}};
  for (unsigned z = 0; z < g[2]; z++) for (unsigned y = 0; y < g[1]; y++) for (unsigned x = 0; x < g[0]; x++) {{
    std::barrier<> barrier(b[0] * b[1] * b[2]); tir_barrier = &barrier; std::vector<std::thread> threads;
    for (unsigned k = 0; k < b[2]; k++) for (unsigned j = 0; j < b[1]; j++) for (unsigned i = 0; i < b[0]; i++)
      threads.emplace_back([=] {{ threadIdx = {{i, j, k}}; blockIdx = {{x, y, z}}; {name}({args});
        tir_barrier->arrive_and_drop(); }});
    for (auto& t : threads) t.join();
  }}
}}
"""

_C_TYPES = {
    "float64": "double", "float32": "float", "bfloat16": "unsigned short", "int8": "signed char", "int16": "short",
    "int32": "int", "int64": "long long", "uint8": "unsigned char", "uint32": "unsigned", "bool": "unsigned char",
}  # fmt: skip


def run_text(source: Source, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compile ``source`` (CUDA) for the CPU and run all its kernels on ``arrays`` (the inputs in signature order).

    Raises CheckError ``emulate.no-compiler`` or ``emulate.type``, CompileError ``emulate.compile``.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise refuse(
            CheckError, "emulate.no-compiler", "running CUDA text on the CPU needs a C++ compiler", hint="install g++"
        )
    for p in source.params:
        if p.dtype not in _C_TYPES:
            raise refuse(CheckError, "emulate.type", f"{p.name} is {p.dtype}: the emulator has no such type yet")
    memory = _memory(source, arrays)
    with tempfile.TemporaryDirectory(prefix="tensorir-emulate-") as folder:
        library = _compile(compiler, source, Path(folder))
        for k in source.kernels:
            if k.block[0] * k.block[1] * k.block[2] > THREADS:
                raise refuse(CheckError, "emulate.threads", f"{k.name} has more than {THREADS} threads a block")
            pointers = (ctypes.c_void_p * len(k.args))(*(memory[a].ctypes.data for a in k.args))
            run = getattr(library, f"tir_run_{k.name}")
            run(pointers, (ctypes.c_uint * 3)(*k.grid), (ctypes.c_uint * 3)(*k.block))
    return [memory[p.name].reshape(p.shape) for p in source.outputs]


def _memory(source: Source, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {}
    for p, a in zip(source.inputs, arrays, strict=True):
        out[p.name] = _aligned(np.asarray(a).astype(numpy_dtype(p.dtype)))
    for p in source.params:
        if p.role in ("output", "workspace"):
            out[p.name] = _aligned(np.zeros(p.shape, numpy_dtype(p.dtype)))
            out[p.name].view(np.uint8)[...] = POISON
    return out


def _aligned(a: np.ndarray) -> np.ndarray:
    """A contiguous copy at a multiple of 64 bytes."""
    raw = np.zeros(a.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    new = raw[start : start + a.nbytes].view(a.dtype)
    new[...] = a.ravel()
    return new


def _compile(compiler: str, source: Source, folder: Path) -> ctypes.CDLL:
    params: dict[str, Param] = {p.name: p for p in source.params}
    drivers = []
    for k in source.kernels:
        args = []
        for n, name in enumerate(k.args):
            kind = _C_TYPES[params[name].dtype]
            args.append(f"*({kind}*)a[{n}]" if params[name].role == "scalar" else f"({kind}*)a[{n}]")
        drivers.append(_DRIVER.format(name=k.name, args=", ".join(args)))
    text = re.sub(r"#include[^\n]*", "", source.text)
    (folder / "k.cpp").write_text(_SHIM + text + "".join(drivers))
    command = [
        compiler,
        "-std=c++20",
        "-O1",
        "-w",
        "-shared",
        "-fPIC",
        "-pthread",
        "-o",
        str(folder / "k.so"),
        str(folder / "k.cpp"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        raise CompileError(
            Problem("emulate.compile", f"the C++ compiler refused the CUDA text: {done.stderr[:300]}"),
            done.stderr[:4096],
        )
    return ctypes.CDLL(str(folder / "k.so"))
