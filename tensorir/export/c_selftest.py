"""Generates ``selftest.c``, which runs an exported C function on generated inputs and compares with stored results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.codegen.names import identifier
from tensorir.codegen.source import Param, Source, itemsize
from tensorir.export.c_extents import helpers, times, variable
from tensorir.export.c_header import BY_ADDRESS, c_type, given, in_c, spaces
from tensorir.export.evidence import Evidence
from tensorir.ir.dtypes import DTYPES, WIDENED
from tensorir.ir.extents import Extent

TABLE_ELEMENTS = 1024
"""Elements of an output whose expected values are in the text, where results are not exact: each seed has its share."""
SUM_SEGMENTS = 256
"""Stretches of such an output whose sums are in the text."""
_FORMATS = {"float16": (10, 15), "bfloat16": (7, 127), "float8_e4m3": (3, 7), "float8_e5m2": (2, 15)}
"""Bits of the mantissa, and what is added to the exponent."""

_START_TEXT = """\
/* Runs the kernel of this folder on inputs of a fixed generator and compares with what a reference, which does not know
 * the kernel, made of them: exact results by a sum of their bits which a change of any element changes, others within
 * their tolerance. So it does after each way to call it (on threads of its own, on one, on threads of the caller that
 * run blocks backwards, with what is packed once) and for each text that this processor can run. Arrays are between
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
_NARROW_TEXT = """
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
_WIDE_TEXT = """
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
    """Text of ``selftest.c``, which runs the program on generated inputs and compares with the reference's results.

    evidence: with ``arrays``
    why:      C name of the function that explains an error code in words; "" if there is no such function
    """
    names = [a["name"] for a in evidence.manifest["inputs"]]
    exact = bool(evidence.manifest["exact"])
    parts = [_START_TEXT.replace("NAME", called)]
    kinds = {p.dtype for p in source.params if p.name in names and p.role != "scalar"}
    parts += [_NARROW_TEXT] if kinds & WIDENED else []
    case = _case(source, called, evidence, exact)
    used = "\n".join(case)
    parts += helpers(used)
    parts += [
        text for name, text in (("decoded", DECODE), ("within", _WITHIN), ("wide", _WIDE_TEXT)) if f"{name}(" in used
    ]
    held = [p for p in source.params if p.role == "constant" and p.name in names]
    parts += [f"extern const void *{called}_constants[];"] if held else []
    parts += [f"#define WHY {why}()" if why else '#define WHY "it returned an error code"']
    parts += [_makers([*source.inputs, *held], evidence)]
    parts += case
    calls = [
        f"run({', '.join(['shift', str(n), str(seed), *(str(c.dims[d.name]) for d in source.dims)])});"
        for n, (seed, c) in enumerate(evidence.cases.items())
    ]
    outside = _outside(source, called, evidence)
    parts += [*outside, "int main(void) {", f"  for (size_t shift = 0; shift < 2; ++shift) {{ {' '.join(calls)} }}"]
    parts += ["  outside();"] if outside else []
    parts += ["  if (wrong) return 1;", f'  puts("selftest ok {called}");', "  return 0;", "}", ""]
    return "\n".join(parts)


def _by_case(name: str, values: Sequence[Any], kind: str, said: Callable[[Any], str] = str) -> tuple[list[str], str]:
    """(C lines, C expression) of a value per test case: the constant if equal in all cases, else a lookup in the table
    ``name``.

    kind: C type of the values;  said: function from a value to its C literal
    """
    if len(set(values)) == 1:
        return [], said(values[0])
    return [f"static const {kind} {name}[] = {{{', '.join(map(said, values))}}};"], f"{name}[number]"


def _makers(inputs: Sequence[Param], evidence: Evidence) -> str:
    """C functions ``make_N``, one per input, that fill input number N with generated values."""
    order = [a["name"] for a in evidence.manifest["inputs"]]
    lines = []
    for n, p in enumerate(inputs):
        number = order.index(p.name)
        about = [c.given[number] for c in evidence.cases.values()]
        tables, low = _by_case(f"low_{n}", [a.low for a in about], "int64_t", _int64)
        more, span = _by_case(f"span_{n}", [a.high - a.low + 1 for a in about], "uint64_t", "UINT64_C({})".format)
        value, tables = f"integer(n, {low}, {span}, seed * 1000 + {number})", tables + more
        if any(a.steps for a in about):
            step, inner, extent = (
                _by_case(f"{word}_{n}", [(a.steps or (0, 1, 1))[k] for a in about], "size_t")
                for k, word in enumerate(("step", "inner", "extent"))
            )
            tables += [*step[0], *inner[0], *extent[0]]
            value = f"({value} + (int64_t)(n / {inner[1]} % {extent[1]} * {step[1]}))"
        kind = c_type(p)
        if p.dtype in _FORMATS and p.role != "scalar":
            m, bias = _FORMATS[p.dtype]
            made = f"({kind})narrow({value}, {m}, {bias}, {DTYPES[p.dtype].bits})"
        else:
            made = f"({kind}){value}"
        lines += [*tables, f"static void make_{n}({kind} *to, size_t count, int number, uint64_t seed) {{"]
        lines += ["  (void)number;", f"  for (size_t n = 0; n != count; ++n) to[n] = {made};\n}}"]
    return "\n".join(lines)


def _int64(value: int) -> str:
    return f"INT64_C({value})" if value > -(2**63) else "INT64_MIN"


def _case(source: Source, called: str, evidence: Evidence, exact: bool) -> list[str]:
    """Lines of the C function that runs the program on one test case and compares outputs."""
    arrays, said = given(source), in_c(source)
    dims = "".join(f", int64_t {variable(d.name)}" for d in source.dims)
    tables: list[str] = []
    lines = [f"static void run(size_t shift, int number, uint64_t seed{dims}) {{", f"  void *buffers[{len(arrays)}];"]
    for n, p in enumerate(arrays):
        if p.role == "dim":
            lines += [f"  buffers[{n}] = &{variable(p.name)};"]
            continue
        size = said(_bytes(p))
        far = f"shift * {max(1, _element(p))}"
        edge = "0xa5" if p.role == "output" else "0xff"
        lines += [f"  unsigned char *p{n} = between({size}, {far}, {edge});", f"  buffers[{n}] = p{n};"]
        if p.role != "output":
            lines += [f"  make_{n}(buffers[{n}], {said(times(p.shape))}, number, seed);"]
            lines += [f"  const uint64_t before_{n} = sum_of(p{n}, {size});"]
    lines += _fixed(source, called, evidence)
    lines += ["  for (int how = 0; how < ways(shift); ++how) {"]
    for n, p in enumerate(arrays):
        lines += [f"    memset(p{n}, 0xff, {said(_bytes(p))});"] if p.role == "output" and _bytes(p) else []
    lines += _called(source, called)
    for n, p in enumerate(arrays):
        if p.role != "dim":
            lines += [
                f'  look(p{n}, {said(_bytes(p))}, {"0xa5" if p.role == "output" else "0xff"}, "{identifier(p.name)}");'
            ]
        if p.role not in ("output", "dim"):
            changed = f"sum_of(p{n}, {said(_bytes(p))}) != before_{n}"
            lines += [f'  if ({changed}) fail("it was written", "{identifier(p.name)}", 0, 0);']
    for n, p in enumerate(source.outputs):
        at, wanted = len(source.inputs) + n, [made[n] for made in evidence.arrays.values()]
        allowed = [_allowed(p, want, evidence.manifest["tolerance"].get(p.name, 0.0)) for want in wanted]
        if not times(p.shape):
            continue
        if exact or not any(allowed):
            table, checks = _exactly(p, at, wanted, said(times(p.shape)))
        else:
            table, checks = _nearly(p, at, wanted, allowed)
        tables += table
        lines += checks
    return [*tables, *lines, "  }", "  (void)number, (void)seed;", "  while (holds) free(held[--holds]);", "}"]


def _outside(source: Source, called: str, evidence: Evidence) -> list[str]:
    """Lines of a C function that passes out-of-range extents and expects an error and untouched outputs; [] if extents
    are constant.
    """
    if not source.dims:
        return []
    arrays, first = given(source), len(given(source)) - len(source.dims)
    point = next(iter(evidence.cases.values())).dims
    lines = [
        "/* Extents out of their ranges are refused before an array is looked at. */",
        "static void outside(void) {",
    ]
    lines += ["  static int64_t nothing; /* that nobody reads or writes */"]
    lines += [f"  int64_t dims[] = {{{', '.join(str(point[d.name]) for d in source.dims)}}};"]
    words = [f"&dims[{n - first}]" if n >= first else "&nothing" for n in range(len(arrays))]
    lines += [f"  void *buffers[] = {{{', '.join(words)}}};"]
    for n, d in enumerate(source.dims):
        for wrong in (d.low - 1, d.high + 1):
            lines += [f"  dims[{n}] = INT64_C({wrong});"]
            lines += [f"  if ({called}(NULL, buffers) != {called.upper()}_DIM_RANGE || nothing)"]
            lines += [f'    fail("{wrong} was taken for {d.name}", "{called}", 0, 0);']
        lines += [f"  dims[{n}] = {point[d.name]};"]
    return [*lines, "}"]


def _allowed(p: Param, want: NDArray[Any], tolerance: float) -> float:
    """Absolute tolerance for the elements of an output; 0 for integers and booleans."""
    values = want.astype(np.float64)
    finite = values[np.isfinite(values)]
    return 0.0 if DTYPES[p.dtype].kind in "iub" else tolerance * float(np.abs(finite).max(initial=0.0))


def _fixed(source: Source, called: str, evidence: Evidence) -> Iterator[str]:
    """Yield C lines that generate those inputs that are constants of the program."""
    number, said = len(source.inputs), in_c(source)
    for n, p in enumerate(p for p in source.params if p.role == "constant"):
        if p.name in [a["name"] for a in evidence.manifest["inputs"]]:
            yield f"  unsigned char *c{n} = between({said(_bytes(p))}, 0, 0xff);"
            yield f"  make_{number}((void *)c{n}, {said(times(p.shape))}, number, seed);"
            yield f"  {called}_constants[{n}] = c{n};"
            number += 1


def _called(source: Source, called: str) -> Iterator[str]:
    """Yield C lines that call the function in one of its ways, by the C variable ``how``: plainly; with workspace; on
    the caller's threads; with packed arrays.
    """
    room, held, dims = spaces(source), f"{called}_workspace_bytes", [variable(d.name) for d in source.dims]
    args = [
        f"*({c_type(p)} *)buffers[{n}]" if p.role in BY_ADDRESS else f"buffers[{n}]"
        for n, p in enumerate(given(source))
    ]
    held += f"({', '.join(dims)})" if dims else ""
    yield "    tir_call call = {.size = sizeof call, .threads = how == 1 ? 1 : THREADS};"
    yield "    int code;"
    yield "    take_text(how);"
    yield "    if (how == 0) {"
    yield f"      code = {called}(NULL, buffers);"
    yield "    } else if (how == 1) {"
    if room.nbytes:
        yield f"      unsigned char *space = between({held}, 0, 0xa5);"
        yield "      call.workspace = space;"
    yield f"      code = {called}_typed({', '.join([*args, '&call'])});"
    if room.nbytes:
        yield f'      look(space, {held}, 0xa5, "workspace");'
    if room.packed_bytes and source.language == "c":
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


def _exactly(p: Param, at: int, wanted: Sequence[NDArray[Any]], count: str) -> tuple[list[str], list[str]]:
    """(tables, comparison lines) in C for an output compared bit by bit, through a checksum.

    at: number of the output's buffer;  wanted: expected values by test case;  count: C text of its number of elements
    """
    kind, digests = f"uint{8 * itemsize(p.dtype)}_t", ", ".join(f"UINT64_C({digest(want)})" for want in wanted)
    lines = [f"  uint64_t sum_{at} = 0;", f"  for (size_t n = 0; n < (size_t){count}; ++n) {{", f"    {kind} x;"]
    lines += [f"    memcpy(&x, p{at} + n * sizeof x, sizeof x);"]
    if DTYPES[p.dtype].kind == "f":
        lines += [f"    if (!({kind})(x << 1)) x = 0; /* no negative zeros */"]
    lines += [f"    sum_{at} += (mixed(n) | 1) * x;", "  }", f"  if (sum_{at} != bits_{at}[number])"]
    lines += [f'    fail("its bits are not those of the reference", "{identifier(p.name)}", 0, 0);']
    return [f"static const uint64_t bits_{at}[] = {{{digests}}};"], lines


def digest(want: np.ndarray) -> int:
    """64-bit checksum of an array: the sum of its elements' bits times distinct odd numbers, modulo 2**64.

    A change of one element changes it, except between 0.0 and -0.0, as in the generated C.
    """
    plain = np.ascontiguousarray(want).reshape(-1)
    if plain.dtype.kind == "f" or plain.dtype.kind == "V":
        plain = np.where(plain == 0, np.zeros(1, plain.dtype), plain).astype(plain.dtype)
    bits = plain.view(f"u{plain.itemsize}").astype(np.uint64)
    x = np.arange(len(bits), dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    return int((x * bits).sum(dtype=np.uint64))


def _nearly(p: Param, at: int, wanted: Sequence[NDArray[Any]], allowed: Sequence[float]) -> tuple[list[str], list[str]]:
    """(tables, comparison lines) in C for an output compared within tolerance: all elements if few, else samples and
    partial sums.

    at: number of the output's buffer;  wanted: expected values by test case;  allowed: absolute tolerance by test case
    """
    rows = [want.reshape(-1).astype(np.float64) for want in wanted]
    sizes = [len(row) for row in rows]
    steps, lengths = [max(1, s * len(rows) // TABLE_ELEMENTS) for s in sizes], [-(-s // SUM_SEGMENTS) for s in sizes]
    value = f"(({c_type(p)} *)p{at})[n]"
    if p.dtype in _FORMATS:
        m, bias = _FORMATS[p.dtype]
        value = f"wide({value}, {m}, {bias}, {DTYPES[p.dtype].bits})"
    name = f"want_{at}"
    first = [k * step // len(rows) for k, step in enumerate(steps)]
    tables, taken = _table(name, [row[k::step] for k, step, row in zip(first, steps, rows, strict=True)], allowed)
    tables += [f"static const double allowed_{at}[] = {{{', '.join(map(repr, allowed))}}};"]
    tables += [f"static const size_t first_{at}[] = {{{', '.join(map(str, first))}}};"]
    (sized, size), (stepped, step), (long, length) = (
        _by_case(f"{word}_{at}", values, "size_t")
        for word, values in (("size", sizes), ("every", steps), ("stretch", lengths))
    )
    tables += [*sized, *stepped, *long]
    lines = [f"  for (size_t n = first_{at}[number]; n < {size}; n += {step})"]
    lines += [f'    within((double){value}, {taken(f"n / {step}")}, allowed_{at}[number], "{identifier(p.name)}");']
    if max(steps) > 1:
        sums = [
            np.array([row[k : k + most].sum() for k in range(0, len(row), most)])
            for row, most in zip(rows, lengths, strict=True)
        ]
        more, taken = _table(f"{name}_sums", sums, [a * most for a, most in zip(allowed, lengths, strict=True)])
        tables += more
        lines += [f"  for (size_t k = 0; k * {length} < {size}; ++k) {{"]
        lines += [f"    double sum = 0, should = {taken('k')};"]
        lines += [
            f"    for (size_t n = k * {length}; n < {size} && n < (k + 1) * {length}; ++n) sum += (double){value};"
        ]
        lines += [
            f'    if (isfinite(should)) within(sum, should, allowed_{at}[number] * {length}, "{identifier(p.name)}");',
            "  }",
        ]
    return tables, lines


def _table(
    name: str, rows: Sequence[NDArray[np.float64]], allowed: Sequence[float]
) -> tuple[list[str], Callable[[str], str]]:
    """(lines of a C table with ``rows``, function from an index in C to the lookup expression).

    rows: one array of numbers per test case;  allowed: their tolerances
    """
    made = NumberRows.of(rows, allowed)
    texts = ",\n".join(made.literal(n) for n in range(len(rows)))
    tables = [f"static const char *const {name}[] = {{\n{texts}}};"]
    tables += [f"static const double {name}_units[] = {{{', '.join(map(repr, made.units))}}};"]
    return tables, lambda place: f"decoded({name}[number], {place}, {made.digits}, {name}_units[number])"


def _bytes(p: Param) -> Extent:
    return times([*p.shape, _element(p)])


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
    """Text of ``CMakeLists.txt`` for the self-test."""
    return CMAKE.replace("NAME", called).replace(f"add_test({called}", "add_test(NAME")


# Expected values in a C text: numbers in a few characters each, as fine as their tolerance needs.

CHARACTERS = "".join(chr(c) for c in range(35, 127) if chr(c) not in "?\\")
"""Digits: what a C string holds as it is, without a quotation mark and trigraphs."""
TOLERANCE_STEPS = 16
"""Steps from one number to the next in a tolerance, at least."""
MAX_DIGITS = 8
"""Digits of a number, which a double still holds."""
_SPECIAL = 3
_LINE = 114

DECODE = """
/* Number n of a text: a multiple of the unit in base 90, from half of its range on; 0 to 2 are no finite numbers. */
static double decoded(const char *text, size_t n, size_t digits, double unit) {
  double code = 0, half = 0.5;
  for (size_t k = 0; k < digits; ++k, half *= 90) {
    const int c = text[n * digits + k];
    code = 90 * code + (c - 35 - (c > 63) - (c > 92));
  }
  if (code < 3) return code < 1 ? NAN : code < 2 ? -INFINITY : INFINITY;
  return (code - half) * unit;
}
"""


@dataclass(frozen=True)
class NumberRows:
    """Rows of numbers encoded as strings: ``digits`` characters per number, an integer multiple of the row's entry in
    ``units``.
    """

    digits: int
    units: tuple[float, ...]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, rows: Sequence[NDArray[np.float64]], allowed: Sequence[float]) -> NumberRows:
        """Encode ``rows``, with units of at most 1 / ``TOLERANCE_STEPS`` of the row's entry in ``allowed``, its
        tolerance; coarser ones if that needs more than ``MAX_DIGITS`` characters per number.
        """
        most = [float(np.abs(r[np.isfinite(r)]).max(initial=0.0)) for r in rows]
        steps = max(
            (TOLERANCE_STEPS * m / a if a else float(np.inf) for m, a in zip(most, allowed, strict=True) if m),
            default=1,
        )
        base = len(CHARACTERS)
        digits = next((d for d in range(1, MAX_DIGITS) if base**d // 2 - _SPECIAL - 1 >= steps), MAX_DIGITS)
        half = base**digits // 2
        units = tuple(m / (half - _SPECIAL - 1) if m else 1.0 for m in most)
        return cls(digits, units, tuple(_text(r, u, half, digits) for r, u in zip(rows, units, strict=True)))

    def literal(self, row: int) -> str:
        """C string literal of row number ``row``, over several lines."""
        text = self.texts[row]
        lines = [text[k : k + _LINE] for k in range(0, len(text), _LINE)] or [""]
        return "\n".join(f'  "{line}"' for line in lines)


def _text(row: NDArray[np.float64], unit: float, half: int, digits: int) -> str:
    finite = np.isfinite(row)
    codes = np.where(finite, half + np.rint(np.where(finite, row, 0.0) / unit), 0).astype(np.int64)
    codes[np.isneginf(row)], codes[np.isposinf(row)] = 1, 2
    return "".join("".join(CHARACTERS[code // 90**k % 90] for k in reversed(range(digits))) for code in codes.tolist())
