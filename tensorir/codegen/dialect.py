"""Tables of language spellings (``Dialect``) for C, OpenCL, CUDA and HIP: no logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tensorir.codegen.source import AVX512, WIDE_MACRO
from tensorir.ir.tree import Kind, Scope

CUDA_PROBE = 'extern "C" __global__ void f(float *x) { x[0] = 1.0f; }\n'
"""The smallest kernel, compiled to find out if a compiler works at all."""

_AVX512 = f'target("{",".join(AVX512)}"), min_vector_width(512)'
"""Attributes of functions with such registers: for many processors of Intel the compiler takes halves of them if not
told how wide vectors are at least (LLVM's ``prefer-256-bit``).
"""


def wide_preamble(inlined: bool) -> str:
    """Text of the macros that mark functions compiled for 64-byte vector registers; compilers that do not know these
    get empty macros.

    inlined: add the macro ``WIDE_INLINE`` for functions that they call
    """
    there = [f"#define WIDE __attribute__((noinline, {_AVX512}))"]
    otherwise = ["#define WIDE"]
    if inlined:
        there.append(f"#define WIDE_INLINE __attribute__((always_inline, {_AVX512})) inline")
        otherwise.append("#define WIDE_INLINE inline")
    comment = "// an older compiler may not know that the processor has 32 registers of 64 bytes"
    return "\n".join([comment, f"#ifdef {WIDE_MACRO}", *there, "#else", *otherwise, "#endif"])


FETCH = """#if defined(__has_builtin)
#if __has_builtin(__builtin_prefetch)
#define FETCH(p) __builtin_prefetch(p)
#endif
#endif
#ifndef FETCH
#define FETCH(p)
#endif"""
"""The request for a cache line: OpenCL's own ``prefetch`` does nothing in compilers for CPUs."""

ATOMIC_ADD = """inline void tir_atomic_add(volatile __global float *p, float x) {
  volatile __global int *cell = (volatile __global int *)p;
  for (int old = *cell, seen; (seen = atomic_cmpxchg(cell, old, as_int(as_float(old) + x))) != old;) old = seen;
}"""
"""Function that adds to a float atomically, by compare-and-exchange; OpenCL C 1.2 has none."""

SHARED_ARENA = """#ifndef TIR_EMULATED
#define TIR_SHARED(name, bytes) extern __shared__ __align__(1024) unsigned char name[]
#endif"""
"""Block memory that comes at launch: CUDA kernels declare no more than 48 KiB of it."""


@dataclass(frozen=True)
class Dialect:
    """Spellings of one target language, as format strings.

    entry:    kernel's head: {name} {params} {x} {y} {z} {threads}
    param:    how a global array is declared: {const} {type} {name}
    space:    scope -> qualifier of arrays and of pointers into them
    barrier:  for shared memory; barrier_global for shared and global memory
    vector:   {type} {lanes}; pack makes one from scalars
    functions: math name -> (float32 spelling, float64 spelling)
    fast:     math name -> another spelling for float32, unless precise_math is asked for; ``interp.ulps`` bounds its
              error
    inline:   qualifiers of functions on scalars, lane_inline of those on vectors
    unroll:   pragma before a loop that is unrolled fully, {n} iterations; unroll_by before one unrolled {n} times
    whole:    literals of 64 bits: {value} {unsigned}
    held:     dtype -> element type of arrays inside of kernels, if it differs from that of global memory
    has_vectors: arithmetic on vectors, where a scalar operand means all lanes
    splat, convert, reinterpret, choose: of vectors of {type}{lanes}; names that begin with tir_ are helpers
    half_load, half_store: of float16 at {name}[{i}], in {space}; half: {x} as it is stored
    casts:    (old, new) of 32 or 64 bits -> the bits as another type
    upper:    dtype -> function of the upper half of a product
    atomics:  dtype -> call that adds {x} to memory {at}
    wraps:    signed overflow is undefined in the language: signed arithmetic is printed unsigned everywhere
    any_address: vectors in arrays of the caller may be unaligned
    one_thread: blocks have one thread; runner: function printed after each kernel to call it; its argument ``block`` is
                the block's index and, if the kernel's arrays are too large for a stack, the address of memory for them
    warned:   operator -> operators next to it that compilers want to see in parentheses
    """

    name: str
    family: str  # "hip" is "cuda" under other headers
    suffix: str
    entry: str
    param: str
    scalar: str
    space: Mapping[Scope, str]
    constant: str
    index: Mapping[Kind, str]
    barrier: str
    barrier_global: str
    types: Mapping[str, str]
    vector_names: Mapping[str, str]  # scalar type -> stem of its vector types, where they differ
    pack: str
    align: str
    aligned_param: str  # after the parameter, and a line at the kernel's top: to what it is assumed to be aligned
    aligned_line: str
    infinity: Mapping[str, str]
    functions: Mapping[str, tuple[str, str]]
    inline: str
    lane_inline: str
    unroll: str
    unroll_by: str
    whole: str
    splat: str
    choose: str
    convert: str
    reinterpret: str
    half_load: str
    half: str
    half_store: str
    upper: Mapping[str, str]
    atomics: Mapping[str, str]
    fast: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[tuple[str, str], str] = field(default_factory=dict)
    has_vectors: bool = True
    wraps: bool = False
    any_address: bool = False
    one_thread: bool = False
    runner: str = ""
    warned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    header: str = ""  # in front of everything
    half_header: str = ""  # where halves are used
    double_header: str = ""  # where float64 is used


_COMPARE = ("==", "!=", "<", "<=", ">", ">=")
_NAMES = ["exp", "log", "sqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "exp2", "log2", "pow"]

OPENCL = Dialect(
    name="opencl",
    family="opencl",
    suffix="cl",
    entry="__kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))\nvoid {name}({params})",
    param="__global {const}{type} *restrict {name}",
    scalar="const {type} {name}",
    space={Scope.GLOBAL: "__global ", Scope.SHARED: "__local ", Scope.REGISTER: "", Scope.CONSTANT: "__constant "},
    constant="__constant {type} {name}[{size}] = {{{values}}};",
    index={
        **{k: f"get_group_id({n})" for n, k in enumerate((Kind.BLOCK_X, Kind.BLOCK_Y, Kind.BLOCK_Z))},
        **{k: f"get_local_id({n})" for n, k in enumerate((Kind.THREAD_X, Kind.THREAD_Y, Kind.THREAD_Z))},
    },
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    barrier_global="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    types={
        "float64": "double", "float32": "float", "float16": "half", "bfloat16": "ushort", "float8_e4m3": "uchar",
        "float8_e5m2": "uchar", "int8": "char",
        "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar", "uint16": "ushort",
        "uint32": "uint", "uint64": "ulong", "bool": "uchar", "index": "int",
    },
    vector_names={},
    pack="({type}{lanes})({items})",
    align=" __attribute__((aligned({bytes})))",
    aligned_param=" __attribute__((align_value({bytes})))",
    aligned_line="",
    infinity={"float32": "INFINITY", "float64": "(double)INFINITY"},
    functions={
        **{n: (n, n) for n in _NAMES},
        "rsqrt": ("rsqrt", "rsqrt"), "abs": ("fabs", "fabs"), "round": ("rint", "rint"),
    },
    inline="inline",
    lane_inline="__attribute__((always_inline)) inline",
    unroll="#pragma unroll",
    unroll_by="#pragma unroll {n}",
    whole="{value}{unsigned}L",
    splat="({type}{lanes})({x})",
    choose="{mask} ? {a} : {b}",
    convert="convert_{type}{lanes}({x})",
    reinterpret="as_{type}{lanes}({x})",
    half_load="vload_half({i}, (const {space}half *){name})",
    half="{x}",
    half_store="vstore_half({value}, {i}, ({space}half *){name})",
    upper=dict.fromkeys(("int32", "uint32", "int64", "uint64"), "mul_hi"),
    atomics={"float32": "tir_atomic_add({at}, {x})", **dict.fromkeys(("int32", "uint32"), "atomic_add({at}, {x})")},
    held={"float16": "ushort"},
    double_header="#pragma OPENCL EXTENSION cl_khr_fp64 : enable",
)  # fmt: skip

CUDA = Dialect(
    name="cuda",
    family="cuda",
    suffix="cu",
    entry='extern "C" __global__ void __launch_bounds__({threads})\n{name}({params})',
    param="{const}{type} *__restrict__ {name}",
    scalar="const {type} {name}",
    space={
        Scope.GLOBAL: "", Scope.SHARED: "__shared__ ", Scope.BARRIER: "__shared__ ", Scope.WARP: "", Scope.REGISTER: "",
        Scope.CONSTANT: "",
    },
    constant="__constant__ {type} {name}[{size}] = {{{values}}};",
    index={
        Kind.CLUSTER: "blockIdx.x % {cluster}",
        **{k: f"blockIdx.{c}" for c, k in zip("xyz", (Kind.BLOCK_X, Kind.BLOCK_Y, Kind.BLOCK_Z), strict=True)},
        **{k: f"threadIdx.{c}" for c, k in zip("xyz", (Kind.THREAD_X, Kind.THREAD_Y, Kind.THREAD_Z), strict=True)},
    },
    barrier="__syncthreads();",
    barrier_global="__syncthreads();",
    types={
        "float64": "double", "float32": "float", "float16": "__half", "bfloat16": "unsigned short",
        "float8_e4m3": "unsigned char", "float8_e5m2": "unsigned char",
        "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
        "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
        "uint64": "unsigned long long", "bool": "unsigned char", "index": "int",
    },
    vector_names={
        "signed char": "char", "unsigned char": "uchar", "unsigned short": "ushort", "unsigned int": "uint",
        "long long": "longlong", "unsigned long long": "ulonglong",
    },
    pack="make_{type}{lanes}({items})",
    align=" __align__({bytes})",
    aligned_param="",
    aligned_line="{name} = ({const}{type} *)__builtin_assume_aligned({name}, {bytes});",
    infinity={"float32": "__int_as_float(0x7f800000)", "float64": "__longlong_as_double(0x7ff0000000000000LL)"},
    functions={
        **{n: (f"{n}f", n) for n in _NAMES},
        "rsqrt": ("rsqrtf", "rsqrt"), "abs": ("fabsf", "fabs"), "round": ("rintf", "rint"),
    },
    fast={"exp": "__expf"},
    inline="__device__ __forceinline__",
    lane_inline="__device__ __forceinline__",
    unroll="#pragma unroll",
    unroll_by="#pragma unroll {n}",
    whole="{value}{unsigned}LL",
    splat="",  # there is no arithmetic on vectors
    choose="",
    convert="",
    reinterpret="",
    half_load="__half2float({name}[{i}])",
    half="__float2half_rn({x})",
    half_store="{name}[{i}] = {value}",
    upper={"int32": "__mulhi", "uint32": "__umulhi", "int64": "__mul64hi", "uint64": "__umul64hi"},
    atomics=dict.fromkeys(("float32", "int32", "uint32"), "atomicAdd({at}, {x})"),
    casts={
        ("float32", "uint32"): "__float_as_uint({x})", ("float32", "int32"): "__float_as_int({x})",
        ("uint32", "float32"): "__uint_as_float({x})", ("int32", "float32"): "__int_as_float({x})",
        ("float64", "int64"): "__double_as_longlong({x})", ("int64", "float64"): "__longlong_as_double({x})",
        ("float64", "uint64"): "(unsigned long long)__double_as_longlong({x})",
        ("uint64", "float64"): "__longlong_as_double((long long)({x}))",
    },
    has_vectors=False,
    half_header="#include <cuda_fp16.h>",
)  # fmt: skip

HIP = replace(
    CUDA,
    name="hip",
    fast={},  # whose bounds AMD does not state
    suffix="hip",
    align=" __attribute__((aligned({bytes})))",
    header="#include <hip/hip_runtime.h>",
    half_header="#include <hip/hip_fp16.h>",
)

C_HEADER = """#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#pragma GCC diagnostic ignored "-Wtype-limits"  // what a computation asks may be certain for its types
#pragma GCC diagnostic ignored "-Wtautological-compare"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast", "no-predictive-commoning")  // registers are for sums, not for loads kept
#pragma GCC optimize("no-tree-loop-if-convert")  // gcc 12 loads all copies of an unrolled select under the first's mask
#endif"""
"""clang contracts in ISO C as well; of gcc's predictive commoning sums of convolutions lose their registers."""

C = replace(
    OPENCL,
    name="c",
    family="c",
    suffix="c",
    entry="static void {name}({params})",
    param="{const}{type} *restrict {name}",
    space={Scope.GLOBAL: "", Scope.SHARED: "", Scope.REGISTER: "", Scope.CONSTANT: ""},
    constant="static const {type} {name}[{size}] = {{{values}}};",
    index={k: f"block[{n}]" for n, k in enumerate((Kind.BLOCK_X, Kind.BLOCK_Y, Kind.BLOCK_Z))},
    barrier="",
    barrier_global="",
    types={
        "float64": "double", "float32": "float", "float16": "uint16_t", "bfloat16": "uint16_t",
        "float8_e4m3": "uint8_t", "float8_e5m2": "uint8_t", "bool": "uint8_t", "index": "int64_t",
        **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
    },
    vector_names={
        f"{u}int{n}_t": f"{u}{stem}"
        for u in ("", "u") for n, stem in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
    },
    pack="({type}{lanes}){{{items}}}",
    aligned_param="",
    functions={
        **{n: (f"{n}f", n) for n in _NAMES},
        "rsqrt": ("tir_rsqrt_float32", "tir_rsqrt_float64"), "abs": ("fabsf", "fabs"), "round": ("rintf", "rint"),
    },
    inline="static inline",
    lane_inline="static inline __attribute__((always_inline))",
    unroll="#pragma GCC unroll {n}",
    unroll_by="#pragma GCC unroll {n}",
    whole="{UNSIGNED}INT64_C({value})",
    splat="tir_splat_{type}{lanes}({x})",
    choose="tir_choose_{type}{lanes}({mask}, {a}, {b})",
    convert="__builtin_convertvector({x}, {type}{lanes})",
    reinterpret="({type}{lanes})({x})",
    half_load="tir_from_float16({name}[{i}])",
    half="tir_to_float16({x})",
    half_store="{name}[{i}] = {value}",
    upper={f"{u}int{n}": f"tir_mulhi_{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
    atomics={t: f"tir_atomic_add_{t}({{at}}, {{x}})" for t in ("float32", "int32", "uint32")},
    held={},
    casts={
        (old, new): f"tir_{new}_of_{old}({{x}})"
        for n in (32, 64) for old, new in (
            (f"float{n}", f"int{n}"), (f"float{n}", f"uint{n}"), (f"int{n}", f"float{n}"), (f"uint{n}", f"float{n}"),
        )
    },
    wraps=True,
    any_address=True,
    one_thread=True,
    warned={
        "or": ("and",),
        **dict.fromkeys(("^", "<<", ">>"), ("+", "-", *_COMPARE)),
        **dict.fromkeys(_COMPARE, _COMPARE),
    },
    runner="void {name}_run(void *const *args, const int64_t *block) {{ {unused}{call}; }}",
    header=C_HEADER,
    double_header="",
)  # fmt: skip
"""C11 with the vector extensions that gcc and clang share; a kernel is a function that gets the index of its block."""

DIALECTS = {"opencl": OPENCL, "cuda": CUDA, "hip": HIP, "c": C}
