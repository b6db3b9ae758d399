"""Text of helper functions that emitted kernels may use (rounding, conversions, atomics, …), by name."""

from __future__ import annotations

import re
from typing import Any

from tensorir.codegen import c_text
from tensorir.codegen.dialect import ATOMIC_ADD, Dialect

_COPY_ASYNC = """\
#ifndef TIR_EMULATED
static __device__ __forceinline__ void tir_copy_async_SIZE(void *to, const void *from, bool there = true) {
  asm volatile("cp.async.KEPT.shared.global [%0], [%1], SIZE, %2;"
               :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? SIZE : 0) : "memory");
}
#endif"""

# By the formats' definitions (OCP 8-bit floating point specification): exponents are shifted to where float32 has them,
# and half of the last place is added before what follows is cut off; what is below the normal numbers is a multiple of
# the smallest one, which an addition rounds. Nothing saturates, as in NumPy: what is too large becomes a NaN, or an
# infinity where there is one. The instructions have no infinity in their results, which is mended.
_FROM_FLOAT8 = """\
{i}float tir_from_float8_KIND({uc} x) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  float y;
  asm("{{.reg .b16 low, high;\\n.reg .b32 pair;\\ncvt.rn.f16x2.KINDx2 pair, %1;\\nmov.b32 {{low, high}}, pair;\\n"
      "cvt.f32.f16 %0, low;}}" : "=f"(y) : "h"((unsigned short)x));
  return y;
#else
  unsigned int size = x & 0x7fu, sign = (unsigned int)(x & 0x80u) << 24;
  unsigned int u = size < NORMALu ? {as_uint}((float)size * SMALLESTf)
                   : size >= NANu ? SPECIAL : (size << CUT) + SHIFTu;
  return {as_float}(u | sign);
#endif
}}"""
_TO_FLOAT8 = """\
{i}{uc} tir_to_float8_KIND(float x) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.KINDx2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return ({uc})(fabsf(x) >= HUGEf ? OVERu | (pair & 0x80u) : pair);
#else
  unsigned int u = {as_uint}(x), size = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
  if (size > 0x7f800000u) return ({uc})(sign | NANNUMBERu);
  if (size >= {as_uint}(HUGEf)) return ({uc})(sign | OVERu);
  if (size < {as_uint}(LEASTf)) return ({uc})(sign | ({as_uint}({as_float}(size) + ADDEDf) - {as_uint}(ADDEDf)));
  return ({uc})(sign | ((size + HALFu + ((size >> CUT) & 1u) - SHIFTu) >> CUT));
#endif
}}"""
_FLOAT8 = {
    "e4m3": dict(
        # the largest is 448, and 464 is half way to what would be the next: it rounds to even, which is 448
        NANNUMBER="0x7f", NAN="0x7f", SPECIAL="0x7fc00000u", NORMAL="8", SMALLEST="0.001953125", CUT="20",
        SHIFT="0x3c000000", HUGE="464.000031", OVER="0x7f", LEAST="0.015625", ADDED="16384.0", HALF="0x7ffff",
    ),
    "e5m2": dict(
        NANNUMBER="0x7e", NAN="0x7c", SPECIAL="0x7f800000u | (size & 3u) << 21", NORMAL="4",
        SMALLEST="1.52587890625e-05", CUT="21", SHIFT="0x38000000", HUGE="61440.0", OVER="0x7c",
        LEAST="6.103515625e-05", ADDED="128.0", HALF="0xfffff",
    ),
}  # fmt: skip
"""SMALLEST is the smallest number, LEAST the smallest normal one; from HUGE on numbers are too large."""


def _float8(text: str, kind: str) -> dict[str, str]:
    """{language family: text of a float8 helper}; CUDA's uses its conversion instructions.

    text: template;  kind: "e4m3" or "e5m2" format
    """
    whole = re.sub(r"[A-Z]{3,}", lambda word: {"KIND": kind, **_FLOAT8[kind]}.get(word[0], word[0]), text)
    return {"cuda": whole, "opencl": re.sub(r"#if.*?#else\n|#endif\n", "", whole, flags=re.DOTALL)}


_WHOLE_QUOTIENTS = {
    "floordiv": "if (b == -1) return (TYPE)-(UNSIGNED)a; "
    "TYPE q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0));",
    "mod": "if (b == -1) return 0; TYPE r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r;",
}
"""Bodies of ``//`` and ``%`` of signed integers; the least one over -1 is itself, as NumPy's, and not C's."""


def _whole_quotient(name: str, what: str, kind: str, positive: str) -> str:
    text = f"{{i}}TYPE {name}(TYPE a, TYPE b) {{{{ {_WHOLE_QUOTIENTS[what]} }}}}"
    return text.replace("TYPE", kind).replace("UNSIGNED", positive)


# NumPy's: fmod, which is exact, then what of it and of the quotient has to have the divisor's sign. The quotient is
# nearly whole, and is rounded to the nearest whole number: floor(a / b) is one too many where a / b rounds up to one.
_FLOAT_QUOTIENTS = {
    "floordiv": """\
  if (b == 0) return a / b;
  const TYPE r = fmodF(a, b), q = (a - r) / b - (r != 0 && (r < 0) != (b < 0) ? 1 : 0), whole = floorF(q);
  return q == 0 ? copysignF(q, a / b) : q - whole > HALF ? whole + 1 : whole;""",
    "mod": """\
  const TYPE r = fmodF(a, b);
  return r == 0 ? copysignF(r, b) : (r < 0) != (b < 0) ? r + b : r;""",
}


def _float_quotient(stem: str, bits: int) -> dict[str, str]:
    """{language family: text of the helper for float ``//`` or ``%``}."""
    kind, f, half = ("float", "f", "0.5f") if bits == 32 else ("double", "", "0.5")
    text = f"{{i}}{kind} tir_{stem}_float{bits}({kind} a, {kind} b) {{{{\n{_FLOAT_QUOTIENTS[stem]}\n}}}}"
    text = text.replace("TYPE", kind).replace("HALF", half)
    return {"opencl": re.sub(r"F\(", "(", text), "c": re.sub(r"F\(", f"{f}(", text),
            "cuda": re.sub(r"F\(", f"{f}(", text)}  # fmt: skip


# What is converted to a float of 16 or 8 bits by way of float32 is rounded to odd there: the last digit is odd where
# some were cut off, so that the second rounding has the answer of one alone.
def _odd_whole(name: str, kind: str, end: str, most: str) -> str:
    """Text of a helper that converts a 64-bit integer to float32 with round-to-odd, to avoid double rounding.

    end: first float beyond the integer type;  most: the type's largest integer
    """
    far = "back > x" if kind == "{ul}" else "(x < 0 ? back < x : back > x)"
    return (
        f"{{i}}float {name}({kind} x) {{{{\n  const float y = (float)x;\n"
        f"  const {kind} back = y < {end} ? ({kind})y : ({kind}){most};\n  if (back == x) return y;\n"
        f"  return {{as_float}}(({{as_uint}}(y) - ({far} ? 1u : 0u)) | 1u);\n}}}}"
    )


HELPERS: dict[str, Any] = {
    **{f"tir_from_float8_{kind}": _float8(_FROM_FLOAT8, kind) for kind in _FLOAT8},
    **{f"tir_to_float8_{kind}": _float8(_TO_FLOAT8, kind) for kind in _FLOAT8},
    "tir_commit_copies": (
        "#ifndef TIR_EMULATED\nstatic __device__ __forceinline__ void tir_commit_copies() {{\n"
        '  asm volatile("cp.async.commit_group;" ::: "memory");\n}}\n#endif'
    ),
    "tir_wait_copies": (
        "#ifndef TIR_EMULATED\ntemplate <int pending> static __device__ __forceinline__ void tir_wait_copies() {{\n"
        '  asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");\n}}\n#endif'
    ),
    "tir_floordiv_int": _whole_quotient("tir_floordiv_int", "floordiv", "int", "unsigned int"),
    "tir_mod_int": _whole_quotient("tir_mod_int", "mod", "int", ""),
    "tir_floordiv_int64": _whole_quotient("tir_floordiv_int64", "floordiv", "{l}", "{ul}"),
    "tir_mod_int64": _whole_quotient("tir_mod_int64", "mod", "{l}", ""),
    **{f"tir_{stem}_float{n}": _float_quotient(stem, n) for stem in ("floordiv", "mod") for n in (32, 64)},
    "tir_odd_float64": (
        "{i}float tir_odd_float64(double x) {{\n  const float y = (float)x;\n  if ((double)y == x) return y;\n"
        "  return {as_float}(({as_uint}(y) - (fabs((double)y) > fabs(x) ? 1u : 0u)) | 1u);\n}}"
    ),
    "tir_odd_int64": _odd_whole("tir_odd_int64", "{l}", "9223372036854775808.0f", "0x7fffffffffffffff"),
    "tir_odd_uint64": _odd_whole("tir_odd_uint64", "{ul}", "18446744073709551616.0f", "0xffffffffffffffff"),
    "tir_from_bfloat16": "{i}float tir_from_bfloat16({us} x) {{ return {as_float}((unsigned int)x << 16); }}",
    "tir_to_bfloat16": (
        "{i}{us} tir_to_bfloat16(float x) {{ unsigned int u = {as_uint}(x); "
        "return ({us})(x != x ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16); }}"
    ),
    "tir_pack_bytes": (
        "{i}unsigned int tir_pack_bytes({uc} a, {uc} b, {uc} c, {uc} d) "
        "{{ return a | b << 8 | c << 16 | (unsigned int)d << 24; }}"
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
    "tir_bits_float16": {
        "opencl": "{i}ushort tir_bits_float16(float x) {{ ushort h; vstore_half(x, 0, (half *)&h); return h; }}",
        "cuda": "{i}{us} tir_bits_float16(float x) {{ return __half_as_ushort(__float2half_rn(x)); }}",
    },
    "tir_of_bits_float16": {
        "opencl": "{i}float tir_of_bits_float16(ushort h) {{ return vload_half(0, (const half *)&h); }}",
        "cuda": "{i}float tir_of_bits_float16({us} h) {{ return __half2float(__ushort_as_half(h)); }}",
    },
    "tir_round_float16": {
        "opencl": (
            "{i}float tir_round_float16(float x) "
            "{{ ushort h; vstore_half(x, 0, (half *)&h); return vload_half(0, (const half *)&h); }}"
        ),
        "cuda": "{i}float tir_round_float16(float x) {{ return __half2float(__float2half_rn(x)); }}",
    },
}
"""Helper function -> its text, or {language family: text}, as a template of ``helper_text``."""


def helper_text(name: str, dialect: Dialect) -> str:
    """The definition of the helper function or type ``name`` in a language; raises KeyError for unknown names."""
    if dialect.family == "c" and (found := c_text.helper(name)) is not None:
        return found
    if name.endswith("u") and name[:-1][-1].isdigit():
        scalar = name[:-1].rstrip("0123456789")
        size = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "double": 8, "long": 8, "ulong": 8}.get(scalar, 4)
        return f"typedef {name[:-1]} __attribute__((aligned({size}))) {name};"
    if copied := re.fullmatch(r"tir_copy_async_(\d+)", name):
        return _COPY_ASYNC.replace("SIZE", copied[1]).replace("KEPT", "cg" if copied[1] == "16" else "ca")
    if (found := hopper_text(name)) is not None:
        return found
    if moved := re.fullmatch(r"tir_(load|store)_(b?float16)_(\d+)", name):
        return _halves_text(name, moved[1], moved[2], moved[3], dialect)
    if name == "tir_atomic_add":
        return ATOMIC_ADD
    known: Any = HELPERS[name]
    text = str(known.get(dialect.family, known["opencl"]) if isinstance(known, dict) else known)
    types, casts = dialect.types, dialect.casts
    return text.format(
        i=f"{dialect.inline} ", l=types["int64"], ul=types["uint64"], us=types["uint16"], uc=types["uint8"],
        as_float=casts.get(("uint32", "float32"), "as_float").removesuffix("({x})"),
        as_uint=casts.get(("float32", "uint32"), "as_uint").removesuffix("({x})"),
    )  # fmt: skip


def _halves_text(name: str, verb: str, dtype: str, lanes: str, dialect: Dialect) -> str:
    """OpenCL function ``name`` between ``lanes`` floats of 16 bits in memory and a vector of float32."""
    if dtype == "float16":
        if verb == "load":
            return f"inline float{lanes} {name}(__global const half *p) {{ return vload_half{lanes}(0, p); }}"
        return f"inline void {name}(__global half *p, float{lanes} x) {{ vstore_half{lanes}(x, 0, p); }}"
    bits = f"as_uint{lanes}(x)"
    if verb == "load":
        wide = f"convert_uint{lanes}(vload{lanes}(0, p)) << 16"
        return f"inline float{lanes} {name}(__global const ushort *p) {{ return as_float{lanes}({wide}); }}"
    rounded = f"x != x ? {bits} >> 16 | 0x40u : ({bits} + 0x7fffu + ({bits} >> 16 & 1u)) >> 16"
    return (
        f"inline void {name}(__global ushort *p, float{lanes} x) "
        f"{{ vstore{lanes}(convert_ushort{lanes}({rounded}), 0, p); }}"
    )


# --- texts of Hopper's asynchronous units


_CVTA = "(unsigned)__cvta_generic_to_shared"
_FUNCTION = "#ifndef TIR_EMULATED\n{template}static __device__ __forceinline__ {head} {{\n{body}\n}}\n#endif"


def _void(head: str, asm: str, operands: str = "", template: str = "", memory: bool = True) -> str:
    clobbered = ' : "memory"' if memory else ""
    body = f'  asm volatile("{asm}" :: {operands}{clobbered});'
    return _FUNCTION.format(template=template, head=f"void {head}", body=body)


_PENDING = "template <int pending> "
_N = "template <int n> "
_BAR = f'"r"({_CVTA}(barrier))'

TEXTS = {
    "TirTensorMap": (
        "#ifndef TIR_EMULATED\nstruct __align__(64) TirTensorMap { unsigned long long words[16]; };\n#endif"
    ),
    "tir_barrier_init": _void(
        "tir_barrier_init(unsigned long long *barrier, int arrivals)",
        "mbarrier.init.shared::cta.b64 [%0], %1;", f'{_BAR}, "r"(arrivals)',
    ),
    "tir_barriers_ready": _void("tir_barriers_ready()", "fence.mbarrier_init.release.cluster;"),
    "tir_barrier_expect": _void(
        "tir_barrier_expect(unsigned long long *barrier, int bytes)",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", f'{_BAR}, "r"(bytes)',
    ),
    "tir_barrier_arrive": _void(
        "tir_barrier_arrive(unsigned long long *barrier)", "mbarrier.arrive.shared::cta.b64 _, [%0];", _BAR
    ),
    "tir_barrier_wait": _void(
        "tir_barrier_wait(unsigned long long *barrier, int parity)",
        '{\\n.reg .pred p;\\nWAIT_%=:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"\n'
        '               "@p bra DONE_%=;\\nbra WAIT_%=;\\nDONE_%=:\\n}', f'{_BAR}, "r"(parity)',
    ),
    "tir_barrier_arrive_at": _void(
        "tir_barrier_arrive_at(unsigned long long *barrier, int rank)",
        '{\\n.reg .b32 there;\\nmapa.shared::cluster.u32 there, %0, %1;\\n"\n'
        '               "mbarrier.arrive.shared::cluster.b64 _, [there];\\n}', f'{_BAR}, "r"(rank)',
    ),
    "tir_sync_cluster": _void(
        "tir_sync_cluster()", "barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire;"
    ),
    # orders no memory but what tir_barriers_ready did before: a release makes each thread wait for its stores (MEMBAR)
    "tir_meet_cluster": _void(
        "tir_meet_cluster()", "barrier.cluster.arrive.relaxed;\\nbarrier.cluster.wait.acquire;"
    ),
    "tir_async_fence": _void("tir_async_fence()", "fence.proxy.async.shared::cta;"),
    "tir_wgmma_fence": _void("tir_wgmma_fence()", "wgmma.fence.sync.aligned;"),
    "tir_wgmma_commit": _void("tir_wgmma_commit()", "wgmma.commit_group.sync.aligned;"),
    "tir_wgmma_wait": _void("tir_wgmma_wait()", "wgmma.wait_group.sync.aligned %0;", '"n"(pending)', _PENDING),
    "tir_hold": (
        "#ifndef TIR_EMULATED  // accesses of these registers stay on their side of it\n"
        "template <class T, int n> static __device__ __forceinline__ void tir_hold(T (&r)[n]) {\n"
        "#pragma unroll\n"
        "  for (int i = 0; i < n * (int)sizeof(T) / 4; ++i)\n"
        '    asm volatile("" : "+r"(((unsigned *)r)[i]) :: "memory");\n'
        "}\n"
        "template <int n> static __device__ __forceinline__ void tir_hold(float (&r)[n]) {\n"
        "#pragma unroll\n"
        '  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(r[i]) :: "memory");\n'
        "}\n#endif"
    ),
    "tir_commit_stores": _void("tir_commit_stores()", "cp.async.bulk.commit_group;"),
    "tir_wait_stores": _void("tir_wait_stores()", "cp.async.bulk.wait_group.read %0;", '"n"(pending)', _PENDING),
    "tir_registers_up": _void(
        "tir_registers_up()", "setmaxnreg.inc.sync.aligned.u32 %0;", '"n"(n)', _N, memory=False
    ),
    "tir_registers_down": _void(
        "tir_registers_down()", "setmaxnreg.dec.sync.aligned.u32 %0;", '"n"(n)', _N, memory=False
    ),
    "tir_sync_some": _void("tir_sync_some(int id, int threads)", "bar.sync %0, %1;", '"r"(id), "r"(threads)'),
    # start >> 4 in bits 0 to 13, then the byte offsets >> 4 at 16 and 32, and the swizzling mode at 62: 1 is 128 bytes
    "tir_descriptor": (
        "#ifndef TIR_EMULATED\n"
        "static __device__ __forceinline__\n"
        "unsigned long long tir_descriptor(const void *p, int leading, int stride) {\n"
        f"  return (unsigned long long)(({_CVTA}(p) & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |\n"
        "         (unsigned long long)(stride >> 4) << 32 | 1ull << 62;\n"
        "}\n#endif"
    ),
}  # fmt: skip
"""Function or type -> its CUDA text, which the emulator replaces by its own."""


def hopper_text(name: str) -> str | None:
    """Definition of the Hopper helper ``name`` (mbarriers, TMA, wgmma); None for other names."""
    if name in ("tir_tma_load_pixels", "tir_tma_multicast_pixels"):
        return _pixels_text(several=name == "tir_tma_multicast_pixels")
    if (copies := re.fullmatch(r"tir_tma_(load|store|multicast)_(\d)", name)) is None:
        return TEXTS.get(name)
    places = range(int(copies[2]))
    parameters = "".join(f", int c{n}" for n in places)
    given = "".join(f', "r"(c{n})' for n in places)
    if copies[1] == "store":
        at = ", ".join(f"%{n + 2}" for n in places)
        return _void(
            f"tir_tma_store(const TirTensorMap *map, const void *from{parameters})",
            f"cp.async.bulk.tensor.{len(places)}d.global.shared::cta.tile.bulk_group [%0, {{{at}}}], [%1];",
            f'"l"((unsigned long long)map), "r"({_CVTA}(from)){given}',
        )
    if copies[1] == "multicast":
        at = ", ".join(f"%{n + 4}" for n in places)
        return _void(
            f"tir_tma_multicast(void *to, const TirTensorMap *map, unsigned long long *barrier, int mask{parameters})",
            f'cp.async.bulk.tensor.{len(places)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"\n'
            f'               ".multicast::cluster [%0], [%1, {{{at}}}], [%2], %3;',
            f'"r"({_CVTA}(to)), "l"((unsigned long long)map), {_BAR}, "h"((unsigned short)mask){given}',
        )
    at = ", ".join(f"%{n + 3}" for n in places)
    head = f"tir_tma_load(void *to, const TirTensorMap *map, unsigned long long *barrier{parameters})"
    return _void(
        head,
        f'cp.async.bulk.tensor.{len(places)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"\n'
        f'               " [%0], [%1, {{{at}}}], [%2];',
        f'"r"({_CVTA}(to)), "l"((unsigned long long)map), {_BAR}{given}',
    )


def _pixels_text(several: bool) -> str:
    """Text of the helper for TMA im2col copies, to one block or (``several``) multicast to a cluster."""
    mask, first = (", int mask", 4) if several else ("", 3)
    name = "tir_tma_im2col_multicast" if several else "tir_tma_im2col"
    at = ", ".join(f"%{first + n}" for n in range(4))
    offset = ", ".join(f"%{first + 4 + n}" for n in range(2))
    to_all, given = ("", "") if not several else (".multicast::cluster", ', "h"((unsigned short)mask)')
    return _void(
        f"{name}(void *to, const TirTensorMap *map, unsigned long long *barrier{mask}, int c, int w, int h, int n,\n"
        "    int along_w, int along_h)",
        'cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"\n'
        f'               "{to_all} [%0], [%1, {{{at}}}], [%2], {{{offset}}}{", %3" if several else ""};',
        f'"r"({_CVTA}(to)), "l"((unsigned long long)map), {_BAR}{given}, "r"(c), "r"(w), "r"(h), "r"(n),\n'
        '               "h"((unsigned short)along_w), "h"((unsigned short)along_h)',
    )
