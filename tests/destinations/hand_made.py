"""Folders with a C program written by hand, for the doors by which frameworks call one."""

import json
import shutil

import numpy as np

import tensorir as tir
from tensorir.codegen.source import GatherRange, KernelLaunch, Param, Source
from tensorir.export import bodies
from tensorir.export.folder import export

COMPILERS = [c for c in ("gcc", "clang-19", "clang") if shutil.which(c)]
HEADER = """#ifndef {name}_H
#define {name}_H
#include <stddef.h>
#ifndef TIR_CALL
#define TIR_CALL
typedef struct tir_call {{
  size_t size;
  void *stream;
  int (*parallel_for)(void *pool, size_t blocks, void (*body)(void *state, size_t block), void *state);
  void *pool;
  void *workspace;
  int threads;
}} tir_call;
#endif
int {name}(const tir_call *call, void *const *buffers);
#endif
"""
START = """#include <stdint.h>
#include <string.h>
#include "{name}.h"
static int skewed(void *const *buffers, int count, size_t align) {{
  for (int p = 0; p < count; ++p) if ((uintptr_t)buffers[p] % align) return 1;
  return 0;
}}
"""
MATMUL = """
static void row(void *state, size_t n) {{
  void *const *buffers = (void *const *)state;
  const float *a = (const float *)buffers[0] + n * {k}, *b = (const float *)buffers[1];
  float *y = (float *)buffers[2] + n * {n};
  for (int j = 0; j < {n}; ++j) {{
    float sum = 0;
    for (int t = 0; t < {k}; ++t) sum += a[t] * b[t * {n} + j];
    y[j] = sum;
  }}
}}
int {name}(const tir_call *call, void *const *buffers) {{
  if (skewed(buffers, 3, 64)) return 7;
  if (call && call->parallel_for) return call->parallel_for(call->pool, {m}, row, (void *)(uintptr_t)buffers);
  for (size_t n = 0; n < {m}; ++n) row((void *)(uintptr_t)buffers, n);
  return 0;
}}
"""
SEVERAL = """
int {name}(const tir_call *call, void *const *b) {{
  (void)call;
  if (skewed(b, 0, 1)) return 7;
  const int32_t *x = (const int32_t *)b[0];
  const float half = *(const float *)b[1];
  const int64_t shift = *(const int64_t *)b[2];
  const uint8_t on = *(const uint8_t *)b[3];
  if (shift == 77) return 5;
  for (int n = 0; n < 6; ++n) {{
    ((double *)b[4])[n] = x[n] * (double)half;
    ((int64_t *)b[5])[n] = on ? x[n] + shift : -1;
  }}
  return 0;
}}
"""
GATHER = """
int {name}(const tir_call *call, void *const *b) {{
  (void)call;
  if (skewed(b, 0, 1)) return 7;
  for (int n = 0; n < 4; ++n) memcpy((float *)b[2] + 3 * n, (const float *)b[0] + 3 * ((const int32_t *)b[1])[n], 12);
  return 0;
}}
"""


def written(monkeypatch, path, name, text, params, outputs, to, gathers=(), **values):
    """Export a program written by hand to ``path``."""

    def files(part, called):
        return {f"{called}.c": part.source.text.encode(), f"{called}.h": HEADER.format(name=called).encode()}

    row = bodies.Body(".c", ("-std=c11",), "loader_pyopencl.py", (), "C", files)
    monkeypatch.setitem(bodies.BODIES, "c", row)
    filled = (START + text).format(name=name, **values)
    each = tuple(p.name for p in params)
    source = Source(name, "c", filled, params, (KernelLaunch(name, each, (1, 1, 1), (1, 1, 1)),), gathers)
    path.parent.mkdir(parents=True, exist_ok=True)
    return export(source, path, to, outputs=outputs, kind="cpu", name=name)


def product(monkeypatch, path, to, *, m=33, n=20, k=17, name="mm"):
    """The folder of y = a @ b."""
    a, b = tir.placeholder((m, k), name="a"), tir.placeholder((k, n), name="b")
    shapes = (("a", (m, k), "input"), ("b", (k, n), "input"), ("y", (m, n), "output"))
    params = tuple(Param(p, "float32", shape, role, 64) for p, shape, role in shapes)
    return written(monkeypatch, path, name, MATMUL, params, (tir.nn.matmul(a, b, name="y"),), to, m=m, n=n, k=k)


def several(monkeypatch, path, to):
    """Two outputs of an array and three numbers: "half", a float of 16 bits, "shift" and "on"."""
    x = tir.placeholder((2, 3), "int32", name="x")
    half, shift = tir.scalar("half", "float16"), tir.scalar("shift", "int64")
    on = tir.scalar("on", "bool")
    u = tir.compute((2, 3), lambda i, j: x[i, j].astype("float64") * half.astype("float64"), name="u")
    v = tir.compute((2, 3), lambda i, j: tir.where(on, x[i, j].astype("int64") + shift, -1), name="v")
    params = (
        Param("x", "int32", (2, 3), "input", 4), Param("half", "float16", (), "scalar", 2),
        Param("shift", "int64", (), "scalar", 8), Param("on", "bool", (), "scalar", 1),
        Param("u", "float64", (2, 3), "output", 8), Param("v", "int64", (2, 3), "output", 8),
    )  # fmt: skip
    return written(monkeypatch, path, "several", SEVERAL, params, (u, v), to)


def gather(monkeypatch, path, to):
    """Rows of an array: y[i] = x[at[i]]."""
    x, at = tir.placeholder((5, 3), name="x"), tir.placeholder((4,), "int32", name="at")
    y = tir.compute((4, 3), lambda i, j: x[at[i], j], name="y")
    params = (
        Param("x", "float32", (5, 3), "input", 4), Param("at", "int32", (4,), "input", 4),
        Param("y", "float32", (4, 3), "output", 4),
    )  # fmt: skip
    return written(monkeypatch, path, "rows", GATHER, params, (y,), to, (GatherRange("at", 5, "x"),))


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def ints(*shape, seed=1):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype("float32")
