"""Functions that emitted text brings along where it needs them."""

from __future__ import annotations

import re
from typing import Any

from tensorir.codegen.dialect import Dialect
from tensorir.codegen.hopper_text import hopper_text

_COPY_ASYNC = """\
#ifndef TIR_EMULATED
static __device__ __forceinline__ void tir_copy_async_SIZE(void *to, const void *from, bool there = true) {
  asm volatile("cp.async.KEPT.shared.global [%0], [%1], SIZE, %2;"
               :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? SIZE : 0) : "memory");
}
#endif"""

HELPERS: dict[str, Any] = {
    "tir_commit_copies": (
        "#ifndef TIR_EMULATED\nstatic __device__ __forceinline__ void tir_commit_copies() {{\n"
        '  asm volatile("cp.async.commit_group;" ::: "memory");\n}}\n#endif'
    ),
    "tir_wait_copies": (
        "#ifndef TIR_EMULATED\ntemplate <int pending> static __device__ __forceinline__ void tir_wait_copies() {{\n"
        '  asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");\n}}\n#endif'
    ),
    "tir_floordiv_int": (
        "{i}int tir_floordiv_int(int a, int b) {{ int q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }}"
    ),
    "tir_mod_int": (
        "{i}int tir_mod_int(int a, int b) {{ int r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }}"
    ),
    "tir_floordiv_int64": (
        "{i}{l} tir_floordiv_int64({l} a, {l} b) {{ {l} q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }}"
    ),
    "tir_mod_int64": (
        "{i}{l} tir_mod_int64({l} a, {l} b) {{ {l} r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }}"
    ),
    "tir_floordiv_float32": "{i}float tir_floordiv_float32(float a, float b) {{ return floor(a / b); }}",
    "tir_mod_float32": "{i}float tir_mod_float32(float a, float b) {{ return a - floor(a / b) * b; }}",
    "tir_floordiv_float64": "{i}double tir_floordiv_float64(double a, double b) {{ return floor(a / b); }}",
    "tir_mod_float64": "{i}double tir_mod_float64(double a, double b) {{ return a - floor(a / b) * b; }}",
    "tir_floordiv_float16": "{i}float tir_floordiv_float16(float a, float b) {{ return floor(a / b); }}",
    "tir_mod_float16": "{i}float tir_mod_float16(float a, float b) {{ return a - floor(a / b) * b; }}",
    "tir_from_bfloat16": "{i}float tir_from_bfloat16({us} x) {{ return {as_float}((unsigned int)x << 16); }}",
    "tir_to_bfloat16": (
        "{i}{us} tir_to_bfloat16(float x) {{ unsigned int u = {as_uint}(x); "
        "return ({us})(x != x ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16); }}"
    ),
    "tir_pack_float16": (
        "{i}unsigned int tir_pack_float16(float a, float b) "
        "{{ __half2 pair = __floats2half2_rn(a, b); return *(unsigned int *)&pair; }}"
    ),
    "tir_pack_bfloat16": (
        "{i}unsigned int tir_pack_bfloat16(float a, float b) {{\n"
        "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800\n"
        '  unsigned int pair;\n  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));\n  return pair;\n'
        "#else\n"
        "  unsigned int u = __float_as_uint(a), v = __float_as_uint(b);\n"
        "  u = a != a ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;\n"
        "  return (b != b ? 0x7fc00000u : (v + 0x7fffu + ((v >> 16) & 1u)) & 0xffff0000u) | u;\n"
        "#endif\n}}"
    ),
    "tir_round_bfloat16": (
        "{i}float tir_round_bfloat16(float x) {{ unsigned int u = {as_uint}(x); "
        "return x != x ? x : {as_float}((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u); }}"
    ),
    "tir_round_float16": {
        "opencl": (
            "{i}float tir_round_float16(float x) "
            "{{ ushort h; vstore_half(x, 0, (half *)&h); return vload_half(0, (const half *)&h); }}"
        ),
        "cuda": "{i}float tir_round_float16(float x) {{ return __half2float(__float2half_rn(x)); }}",
    },
}
"""Helper functions, emitted only where used."""


def helper_text(name: str, dialect: Dialect) -> str:
    """The definition of a helper function or type."""
    if name.endswith("u") and name[:-1][-1].isdigit():
        scalar = name[:-1].rstrip("0123456789")
        size = {"char": 1, "uchar": 1, "short": 2, "double": 8, "long": 8}.get(scalar, 4)
        return f"typedef {name[:-1]} __attribute__((aligned({size}))) {name};"
    if copied := re.fullmatch(r"tir_copy_async_(\d+)", name):
        return _COPY_ASYNC.replace("SIZE", copied[1]).replace("KEPT", "cg" if copied[1] == "16" else "ca")
    if (found := hopper_text(name)) is not None:
        return found
    text = HELPERS[name]
    text = text[dialect.family] if isinstance(text, dict) else text
    cuda = dialect.family == "cuda"
    return str(text.format(
        i="__device__ __forceinline__ " if cuda else "inline ", l="long long" if cuda else "long",
        us="unsigned short" if cuda else "ushort", as_float="__uint_as_float" if cuda else "as_float",
        as_uint="__float_as_uint" if cuda else "as_uint",
    ))  # fmt: skip
