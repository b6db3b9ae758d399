"""Lanes of a warp come to what they run together by the same branches and in the same turns of loops, or it is told."""

from __future__ import annotations

import functools
import shutil

import numpy as np
import pytest

from tensorir.check.emulate import emulate
from tensorir.check.translation import marked
from tensorir.codegen.source import KernelLaunch, Param, Source

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
FRONT = """
#define EACH(x) if (lane < 16) x; else x;
#define GUARDED(x) if (lane < 16) x;
#define TURN(v) __shfl_xor_sync(~0u, v, 1)
static __device__ float other(float v) { return __shfl_xor_sync(0xffffffffu, v, 1); }
template <int n> static __device__ float twice(float v) { return other(v) + n; }
template <int n> static __device__ float some(float v) { if constexpr (n > 1) return other(v); else return v; }
namespace far { static __device__ float off(float v) { return other(v); } }
template <int n> struct Held {
  float v;
  __device__ float sum() { return other(v); }
  __device__ float own() { return this->sum() * 2; }
  __device__ float outside() const;
  static __device__ float all(float v) { return other(v); }
};
template <int n> __device__ float Held<n>::outside() const { return other(v); }
"""
DIVERGENT = {
    "both branches on one line": "if (lane < 16) x = TURN(x); else x = TURN(x);",
    "a helper": "if (lane < 16) x = other(x); else x = other(x);",
    "a helper, on several lines": "if (lane < 16)\n    x = other(x);\n  else\n    x = other(x);",
    "instances of a template": "if (lane < 16) x = twice<1>(x); else x = twice<1>(x);",
    "a lambda": "auto f = [&] { x = TURN(x); }; if (lane < 16) f(); else f();",
    "a macro with both branches": "EACH(x = __shfl_xor_sync(~0u, x, 1))",
    "conditional expressions": "x = lane < 16 ? TURN(x) : TURN(x);",
    "conditional expressions of a helper": "x = lane < 16 ? other(x) : other(x);",
    "turns of a loop": "for (int i = 0; i < 2; ++i) if ((lane < 16) == (i == 0)) x = TURN(x);",
    "turns of a loop, by an expression": "for (int i = 0; i < 2; ++i) (lane < 16) == (i == 0) && (x = TURN(x), true);",
    "turns of a loop that goes on": "for (int i = 0; i < 2; ++i) { if (lane < 16 == !i) continue; x = TURN(x); }",
    "turns of while": "int i = 0; while (i < 2) { if ((lane < 16) == (i++ == 0)) __syncwarp(); }",
    "turns of do": "int i = 0; do { if ((lane < 16) == (i == 0)) __syncwarp(); } while (++i < 2);",
    "turns of an endless loop": "for (int i = 0;; ++i) { if (i == 2) break; if (lane < 16 == !i) __syncwarp(); }",
    "cases": "switch (lane & 1) { case 0: __syncwarp(); break; default: __syncwarp(); }",
    "barriers on one line": "if (lane < 16) __syncthreads(); else __syncthreads();",
    "a function of a class": "Held<1> h{x}; if (lane < 16) x = h.sum(); else x = h.sum();",
    "a function of a namespace": "if (lane < 16) x = far::off(x); else x = far::off(x);",
    "a condition of two": "int n = 0; if (n += 1, lane < 16) x = other(x); else x = other(x);",
    "barriers by a helper": "auto f = [] { __syncthreads(); }; if (lane < 16) f(); else f();",
}  # fmt: skip
CONVERGED = {
    "straight on": "x = TURN(x) + other(x); __syncwarp(); x += twice<3>(x);",
    "one place by two branches": "if (lane < 16) x += 1; else goto here; here: x = TURN(x);",
    "loops": "for (int i = 0; i < 3; ++i) for (int j = 0; j < i; ++j) { if (lane > i) x += 1; x = other(x) * 2; }",
    "loops with other ends": "for (int i = 0;; ++i) { if (i == 3) break; if (i == 1) continue; x = TURN(x); }",
    "guards before": "if (lane < 16) x += 1; for (int i = 0; i < lane; ++i) x += i; x = TURN(x); __syncthreads();",
    "branches of all": "int n = 3; if (n > 2) x = TURN(x); else x = other(x); do { __syncwarp(); } while (--n);",
    "conditions that declare": "if (int n = 3) x = TURN(x) + n; int two[] = {1, 2}; for (int v : two) x = TURN(x) + v;",
    "conditions behind others": "int n = 0; if (n += 1, n) x = other(x); if (int m = 3; m > n) x = other(x);",
    "what the compiler decides": "x = some<1>(x) + some<2>(x); if constexpr (sizeof(x) == 4) x = other(x);",
    "functions of objects": "Held<1> h[] = {{x}, {x}}, *p = h; x = h[1].sum() + p->own() + (*p).sum() + p->outside();",
    "functions of what is returned": "auto f = [](float v) { return Held<2>{other(v)}; }; x = f(x).sum();",
    "functions of names": "x = far::off(x) + ::other(x) + Held<2>::all(x);",
    "macros": "if (blockDim.x > 3) { GUARDED(x += 1) } x = 2 * TURN(x) * __shfl_sync(~0u, x, 1);",
    "a product behind a product": "x = x * __shfl_sync(~0u, x, 1) > __shfl_sync(~0u, x, 1) ? x : -x;",
}  # fmt: skip


BODIES = {**DIVERGENT, **CONVERGED}


@functools.cache
def source() -> Source:
    """One text with all of them: warps do with ``x`` what ``which`` says."""
    cases = "\n".join(f"  if (which == {n}) {{ {body} }}" for n, body in enumerate(BODIES.values()))
    text = f"""{FRONT}
extern "C" __global__ void __launch_bounds__(64)
k(const float *__restrict__ A, float *__restrict__ B, const int which)
{{
  const int lane = threadIdx.x % 32;
  float x = A[threadIdx.x];
{cases}
  B[threadIdx.x] = x;
}}
"""
    params = (
        Param("A", "float32", (64,), "input"),
        Param("B", "float32", (64,), "output"),
        Param("which", "int32", (), "scalar"),
    )
    return Source("k", "cuda", text, params, (KernelLaunch("k", ("A", "B", "which"), (1, 1, 1), (64, 1, 1)),))


def codes(name: str) -> set[str]:
    """What the emulator says of one of them."""
    which = np.asarray(list(BODIES).index(name), np.int32)
    return {p.code for p in emulate(source(), [np.arange(64, dtype=np.float32), which]).problems}


@pytest.mark.parametrize("name", DIVERGENT)
def test_ways_apart_are_told(name: str) -> None:
    assert codes(name) == {"warp.divergent"}


@pytest.mark.parametrize("name", CONVERGED)
def test_one_way_is_right(name: str) -> None:
    assert not codes(name)


def test_a_text_may_end_with_a_call() -> None:
    assert marked("#define NEXT(x) 1 + __shfl_xor_sync(~0u, x, 1)").endswith("__shfl_xor_sync(~0u, x, 1))")


def test_lines_stay_and_guards_are_left_alone() -> None:
    text = f'{FRONT}void k() {{ if (a) b(); // if (__syncwarp())\n  for (;;)\n    x = "if (" + c;\n}}\n'
    assert marked(text)[marked(text).index("void k") :] == text[text.index("void k") :]
    assert marked(text).count("\n") == text.count("\n")
