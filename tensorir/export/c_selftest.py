"""``selftest.c``: a C program on inputs of a fixed generator, compared with what a reference made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.codegen.source import Param, Source, itemsize
from tensorir.export.c_program import c_type, given, packed_bytes, spaces
from tensorir.export.evidence import Evidence
from tensorir.ir.dtypes import DTYPES, WIDENED

TABLE = 1024
"""Elements of an output whose expected values are in the text, where results are not exact."""
SEGMENTS = 256
"""Stretches of such an output whose sums are in the text."""
_FORMATS = {"float16": (10, 15), "bfloat16": (7, 127), "float8_e4m3": (3, 7), "float8_e5m2": (2, 15)}
"""Bits of the mantissa, and what is added to the exponent."""

_START = """\
/* Runs the kernel of this folder on inputs of a fixed generator and compares with what a reference, which does not know
 * the kernel, made of them: exact results by a sum of their bits which a change of any element changes, others within
 * their tolerance. So it does after each way to call it (on threads of its own, on one, on threads of the caller that
 * run blocks backwards, with what is packed once) and for each text that this processor can run. Arrays lie between
 * bytes that must not change, and once at addresses that suit nobody.
 * Prints "selftest ok" and exits with 0, else with 1. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "NAME.h"

enum { EDGE = 256, MOST = 256, TEXTS = 3, WAYS = 4, THREADS = 3 };
static int wrong, holds, own = -1;
static void *held[MOST];

static void fail(const char *what, const char *name, double a, double b) {
  if (!wrong && a == b) fprintf(stderr, "selftest failed: %s: %s\\n", name, what);
  else if (!wrong) fprintf(stderr, "selftest failed: %s: %s (%.9g, should be %.9g)\\n", name, what, a, b);
  wrong = 1;
}

static uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
  return x ^ (x >> 31);
}

/* Element n of the integers from low on, span of them. */
static int64_t integer(uint64_t n, int64_t low, uint64_t span, uint64_t seed) {
  const uint64_t x = mixed(n + 1 + seed * UINT64_C(0x9E3779B97F4A7C15)) >> 1;
  return (int64_t)(x % span) + low;
}

/* The edges of an array: NaN around what is read, and bytes that a kernel must leave. */
static unsigned char *between(size_t nbytes, size_t shift, int edge) {
  unsigned char *p = malloc(nbytes + 2 * EDGE + 64);
  if (!p) {
    fprintf(stderr, "selftest failed: no memory\\n");
    exit(1);
  }
  held[holds++ % MOST] = p;
  memset(p, edge, nbytes + 2 * EDGE + 64);
  p += EDGE;
  return p + (64 - (uintptr_t)p % 64) % 64 + shift;
}

static void look(const unsigned char *p, size_t nbytes, int edge, const char *name) {
  for (size_t n = 1; n <= EDGE / 2; ++n)
    if (p[-(ptrdiff_t)n] != edge || p[nbytes + n - 1] != edge) fail("memory around it was written", name, 0, 0);
}

static uint64_t sum_of(const unsigned char *p, size_t nbytes) {
  uint64_t sum = 0;
  for (size_t n = 0; n != nbytes; ++n) sum += (mixed(n) | 1) * p[n];
  return sum;
}

/* The text in use, the processor's after the first call; programs that drivers run have none. */
extern _Atomic int NAME_text __attribute__((weak));

static int ways(size_t shift) {
  if (!&NAME_text || !shift) return WAYS;
  if (own < 0) own = NAME_text;
  return WAYS + TEXTS - 1 - own;
}

static void take_text(int how) {
  if (own >= 0) NAME_text = how < WAYS ? own : own + how - WAYS + 1;
}

typedef struct share {
  void (*body)(void *state, size_t block);
  void *state;
  size_t blocks, first;
  _Atomic int *absent;
} share;

static void *backwards(void *given) {
  const share *s = given;
  for (atomic_fetch_sub(s->absent, 1); atomic_load(s->absent);) sched_yield(); /* all of them at the same time */
  for (size_t n = s->blocks; n-- > 0;)
    if (n % THREADS == s->first) s->body(s->state, n);
  return NULL;
}

/* Each block on one of some threads, the last blocks first. */
static int in_threads(void *pool, size_t blocks, void (*body)(void *state, size_t block), void *state) {
  share shares[THREADS];
  pthread_t made[THREADS];
  _Atomic int absent = THREADS;
  for (size_t k = 0; k < THREADS; ++k) {
    shares[k] = (share){body, state, blocks, k, &absent};
    if (pthread_create(&made[k], NULL, backwards, &shares[k])) exit(1);
  }
  for (size_t k = 0; k < THREADS; ++k) pthread_join(made[k], NULL);
  return pool != NULL;
}
"""
_NARROW = """
/* A small integer as the bits of a float of few bits. */
static uint32_t narrow(int64_t v, int mantissa, int bias, int bits) {
  const uint64_t size = (uint64_t)(v < 0 ? -v : v);
  int exponent = 0;
  if (!v) return 0;
  while (size >> (exponent + 1)) ++exponent;
  const uint64_t rest = exponent > mantissa ? size >> (exponent - mantissa) : size << (mantissa - exponent);
  const uint64_t sign = (uint64_t)(v < 0) << (bits - 1), top = (uint64_t)(exponent + bias) << mantissa;
  return (uint32_t)(sign | top | (rest & ((UINT64_C(1) << mantissa) - 1)));
}
"""
_WIDE = """
/* The value of a float of few bits. */
static double wide(uint32_t x, int mantissa, int bias, int bits) {
  const uint32_t size = x & ((1u << (bits - 1)) - 1), exponent = size >> mantissa, rest = size & ((1u << mantissa) - 1);
  const uint32_t most = (1u << (bits - 1 - mantissa)) - 1;
  double y = ldexp(rest + (exponent ? ldexp(1, mantissa) : 0), (int)(exponent ? exponent : 1) - bias - mantissa);
  if (mantissa == 3 ? size == 0x7f : exponent == most) y = rest && mantissa != 3 ? NAN : mantissa == 3 ? NAN : INFINITY;
  return x >> (bits - 1) ? -y : y;
}
"""
_WITHIN = """
static void within(double got, double want, double allowed, const char *name) {
  if (isnan(want) ? !isnan(got) : isinf(want) ? got != want : !(fabs(got - want) <= allowed))
    fail("an element is wrong", name, got, want);
}
"""


def selftest(source: Source, called: str, evidence: Evidence, why: str = "") -> str:
    """The text of ``selftest.c``.

    evidence: with its arrays
    why:      the function that says what went wrong, where there is one
    """
    about = {a["name"]: (n, a["low"], a["high"]) for n, a in enumerate(evidence.manifest["inputs"])}
    exact = bool(evidence.manifest["exact"])
    parts = [_START.replace("NAME", called)]
    kinds = {p.dtype for p in source.params if p.name in about and p.role != "scalar"}
    parts += [_NARROW] if kinds & WIDENED else []
    parts += [] if exact else [_WITHIN]
    parts += [_WIDE] if not exact and any(p.dtype in WIDENED for p in source.outputs) else []
    held = [p for p in source.params if p.role == "constant" and p.name in about]
    parts += [f"extern const void *{called}_constants[];"] if held else []
    parts += [f"#define WHY {why}()" if why else '#define WHY "it returned an error code"']
    parts += [_makers([*source.inputs, *held], about)]
    for n, (seed, want) in enumerate(evidence.arrays.items()):
        parts += _case(source, called, evidence.manifest, n, seed, want, about, exact)
    calls = " ".join(f"case_{n}(shift);" for n in range(len(evidence.arrays)))
    parts += ["int main(void) {", f"  for (size_t shift = 0; shift < 2; ++shift) {{ {calls} }}"]
    parts += ["  if (wrong) return 1;", f'  puts("selftest ok {called}");', "  return 0;", "}", ""]
    return "\n".join(parts)


def _makers(inputs: Sequence[Param], about: Mapping[str, tuple[int, int, int]]) -> str:
    """A function for each input that fills it."""
    lines = []
    for n, p in enumerate(inputs):
        number, low, high = about[p.name]
        span = f"UINT64_C({high - low + 1})"
        value = f"integer(n, {_int64(low)}, {span}, seed * 1000 + {number})"
        kind = c_type(p)
        if p.dtype in _FORMATS and p.role != "scalar":
            m, bias = _FORMATS[p.dtype]
            made = f"({kind})narrow({value}, {m}, {bias}, {DTYPES[p.dtype].bits})"
        else:
            made = f"({kind}){value}"
        lines.append(f"static void make_{n}({kind} *to, uint64_t seed) {{")
        lines.append(f"  for (size_t n = 0; n != {prod(p.shape)}; ++n) to[n] = {made};\n}}")
    return "\n".join(lines)


def _int64(value: int) -> str:
    return f"INT64_C({value})" if value > -(2**63) else "INT64_MIN"


def _case(
    source: Source, called: str, manifest: Mapping[str, Any], number: int, seed: int, made: Sequence[NDArray[Any]],
    about: Mapping[str, tuple[int, int, int]], exact: bool,
) -> list[str]:  # fmt: skip
    arrays = given(source)
    tables: list[str] = []
    lines = [f"static void case_{number}(size_t shift) {{", f"  void *buffers[{len(arrays)}];"]
    for n, p in enumerate(arrays):
        size = _bytes(p)
        far = f"shift * {max(1, _element(p))}"
        edge = "0xa5" if p.role == "output" else "0xff"
        lines += [f"  unsigned char *p{n} = between({size}, {far}, {edge});", f"  buffers[{n}] = p{n};"]
        if p.role != "output":
            lines += [f"  make_{n}(buffers[{n}], {seed});", f"  const uint64_t before_{n} = sum_of(p{n}, {size});"]
    lines += _fixed(source, called, about, seed)
    lines += ["  for (int how = 0; how < ways(shift); ++how) {"]
    for n, p in enumerate(arrays):
        lines += [f"    memset(p{n}, 0xff, {_bytes(p)});"] if p.role == "output" and _bytes(p) else []
    lines += _called(source, called)
    for n, p in enumerate(arrays):
        lines += [f'  look(p{n}, {_bytes(p)}, {"0xa5" if p.role == "output" else "0xff"}, "{p.name}");']
        if p.role != "output":
            lines += [f'  if (sum_of(p{n}, {_bytes(p)}) != before_{n}) fail("it was written", "{p.name}", 0, 0);']
    for n, (p, want) in enumerate(zip(source.outputs, made, strict=True)):
        at, size = len(source.inputs) + n, prod(p.shape)
        if not size:
            continue
        if exact:
            lines += _exactly(p, at, size, want)
        else:
            name = f"want_{number}_{n}"
            allowed = manifest["tolerance"].get(p.name, 0.0)
            table, checks = _nearly(p, at, want, allowed, name)
            tables += table
            lines += checks
    return [*tables, *lines, "  }", "  while (holds) free(held[--holds]);", "}"]


def _fixed(source: Source, called: str, about: Mapping[str, Any], seed: int) -> Iterator[str]:
    """Inputs that are constants of the program, made as the others are."""
    number = len(source.inputs)
    for n, p in enumerate(p for p in source.params if p.role == "constant"):
        if p.name in about:
            yield f"  unsigned char *c{n} = between({_bytes(p)}, 0, 0xff);"
            yield f"  make_{number}((void *)c{n}, {seed});"
            yield f"  {called}_constants[{n}] = c{n};"
            number += 1


def _called(source: Source, called: str) -> Iterator[str]:
    """A call in one of the ways: as it finds itself; typed, with a workspace; on the caller's threads; packed."""
    total = spaces(source)[1]
    args = [
        f"*({c_type(p)} *)buffers[{n}]" if p.role == "scalar" else f"buffers[{n}]" for n, p in enumerate(given(source))
    ]
    yield "    tir_call call = {.size = sizeof call, .threads = how == 1 ? 1 : THREADS};"
    yield "    int code;"
    yield "    take_text(how);"
    yield "    if (how == 0) {"
    yield f"      code = {called}(NULL, buffers);"
    yield "    } else if (how == 1) {"
    if total:
        yield f"      unsigned char *space = between({called}_workspace_bytes, 0, 0xa5);"
        yield "      call.workspace = space;"
    yield f"      code = {called}_typed({', '.join([*args, '&call'])});"
    if total:
        yield f'      look(space, {called}_workspace_bytes, 0xa5, "workspace");'
    if packed_bytes(source) and source.language == "c":
        yield "    } else if (how == 2) {"
        yield f"      unsigned char *packed = between({called}_packed_bytes, 0, 0xa5);"
        yield f"      code = {called}_pack(NULL, buffers, packed);"
        yield f"      const uint64_t sum = sum_of(packed, {called}_packed_bytes);"
        yield f"      if (!code) code = {called}_packed(&call, buffers, packed);"
        yield f'      if (sum_of(packed, {called}_packed_bytes) != sum) fail("it was written", "packed", 0, 0);'
        yield f'      look(packed, {called}_packed_bytes, 0xa5, "packed");'
    yield "    } else {"
    yield "      call.parallel_for = in_threads;"
    yield f"      code = {called}(&call, buffers);"
    yield "    }"
    yield f'    if (code) fail(WHY, "{called}", code, 0);'


def _exactly(p: Param, at: int, size: int, want: NDArray[Any]) -> Iterator[str]:
    kind = f"uint{8 * itemsize(p.dtype)}_t"
    yield f"  uint64_t sum_{at} = 0;"
    yield f"  for (size_t n = 0; n < {size}; ++n) {{"
    yield f"    {kind} x;"
    yield f"    memcpy(&x, p{at} + n * sizeof x, sizeof x);"
    if DTYPES[p.dtype].kind == "f":
        yield f"    if (!({kind})(x << 1)) x = 0; /* no negative zeros */"
    yield f"    sum_{at} += (mixed(n) | 1) * x;"
    yield "  }"
    yield f"  if (sum_{at} != UINT64_C({digest(want)}))"
    yield f'    fail("its bits are not those of the reference", "{p.name}", 0, 0);'


def digest(want: NDArray[Any]) -> int:
    """A sum of the bits of elements that a change of any one of them changes: each times an odd number of its own."""
    plain = np.ascontiguousarray(want).reshape(-1)
    if plain.dtype.kind == "f" or plain.dtype.kind == "V":
        plain = np.where(plain == 0, np.zeros(1, plain.dtype), plain).astype(plain.dtype)
    bits = plain.view(f"u{plain.itemsize}").astype(np.uint64)
    x = np.arange(len(bits), dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    return int((x * bits).sum(dtype=np.uint64))


def _nearly(p: Param, at: int, want: NDArray[Any], tolerance: float, name: str) -> tuple[list[str], list[str]]:
    """Expected values: of every element where there are few, else of some, and sums of all in stretches."""
    values = want.reshape(-1).astype(np.float64)
    finite = values[np.isfinite(values)]
    scale = float(np.abs(finite).max(initial=0.0))
    allowed = 0.0 if DTYPES[p.dtype].kind in "iub" else tolerance * scale
    size = len(values)
    step = max(1, size // TABLE)
    some = values[::step]
    tables = [f"static const double {name}[] = {{{', '.join(map(_number, some))}}};"]
    value = f"(({c_type(p)} *)p{at})[n]"
    if p.dtype in _FORMATS:
        m, bias = _FORMATS[p.dtype]
        value = f"wide({value}, {m}, {bias}, {DTYPES[p.dtype].bits})"
    checks = [f"  for (size_t n = 0; n < {size}; n += {step})"]
    checks += [f'    within((double){value}, {name}[n / {step}], {allowed!r}, "{p.name}");']
    if step > 1:
        length = -(-size // SEGMENTS)
        sums = [float(values[k : k + length].sum()) for k in range(0, size, length)]
        bounds = allowed * length
        tables.append(f"static const double {name}_sums[] = {{{', '.join(map(_number, sums))}}};")
        checks += [f"  for (size_t k = 0; k * {length} < {size}; ++k) {{", "    double sum = 0;"]
        checks += [
            f"    for (size_t n = k * {length}; n < {size} && n < (k + 1) * {length}; ++n) sum += (double){value};"
        ]
        checks += [f'    if (isfinite({name}_sums[k])) within(sum, {name}_sums[k], {bounds!r}, "{p.name}");', "  }"]
    return tables, checks


def _number(value: float) -> str:
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value:.9g}"


def _bytes(p: Param) -> int:
    return prod(p.shape) * _element(p)


def _element(p: Param) -> int:
    return 4 if p.role == "scalar" and p.dtype in WIDENED else itemsize(p.dtype)


CMAKE = """\
cmake_minimum_required(VERSION 3.13)
project(NAME C)
set(CMAKE_C_STANDARD 11)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
add_library(NAME NAME.c)
target_include_directories(NAME PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(NAME PUBLIC Threads::Threads m ${CMAKE_DL_LIBS})
add_executable(NAME_selftest selftest.c)
target_link_libraries(NAME_selftest PRIVATE NAME)
enable_testing()
add_test(NAME selftest COMMAND NAME_selftest)
"""


def cmake(called: str) -> str:
    """The text of ``CMakeLists.txt``."""
    return CMAKE.replace("NAME", called).replace(f"add_test({called}", "add_test(NAME")
