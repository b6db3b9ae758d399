"""C text for vector types and operations in the extensions of gcc and clang: typedefs, inline functions, masks.

Vectors are only local variables and arguments of inlined functions: passing them to real calls would depend on both
sides' compiler flags. Selects use masks, since C has ``? :`` for scalars only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

_ELEMENTS = {
    "float": ("float", 4), "double": ("double", 8),
    **{f"{u}{stem}": (f"{u}int{8 * size}_t", size) for u in ("", "u")
       for stem, size in (("char", 1), ("short", 2), ("int", 4), ("long", 8))},
}  # fmt: skip
"""Stem of a vector type -> type and bytes of an element."""
_STEMS = "|".join(sorted(_ELEMENTS, key=len, reverse=True))
_VECTOR = re.compile(rf"({_STEMS})(2|4|8|16|32|64)(u?)")
_NAMED_HELPER = re.compile(rf"\b(tir_\w+(?=\()|(?:{_STEMS})(?:2|4|8|16|32|64)u?)\b")
_LANES = "static inline __attribute__((always_inline))"
_MASKS = {1: "char", 2: "short", 4: "int", 8: "long"}


def shuffle(two: Iterable[str], picks: Iterable[int]) -> str:
    """C expression that selects lanes ``picks`` of two vectors; lanes of the second are numbered after the first's."""
    return f"__builtin_shufflevector({', '.join([*two, *map(str, picks)])})"


def helper(name: str) -> str | None:
    """Definition of the vector type or function ``name`` of this module; None for unknown names."""
    if found := _VECTOR.fullmatch(name):
        return _typedef(found[1], int(found[2]), found[3])
    for pattern, text in _PATTERNS:
        if parts := re.fullmatch(pattern, name):
            return text(name, *parts.groups())
    return _SCALARS.get(name)


def closed(helpers: Mapping[str, str], more: Callable[[str], str]) -> list[str]:
    """Texts of ``helpers`` and of everything they use, each after those that it uses.

    more: function from the name of a helper that is missing in ``helpers`` to its text
    """
    texts, done = dict(helpers), dict[str, str]()

    def place(name: str) -> None:
        if name in done:
            return
        text = texts[name] if name in texts else more(name)
        done[name] = ""
        for used in dict.fromkeys(_NAMED_HELPER.findall(text)):
            if used != name and (used in texts or not _VECTOR.fullmatch(used) or f"typedef {used}" not in text):
                place(used)
        del done[name]
        done[name] = text

    for name in sorted(texts, key=lambda n: (not _VECTOR.fullmatch(n), n)):
        place(name)
    return list(done.values())


def _typedef(stem: str, lanes: int, loose: str) -> str:
    kind, size = _ELEMENTS[stem]
    where = f", aligned({size})" if loose else ""
    return f"typedef {kind} {stem}{lanes}{loose} __attribute__((vector_size({size * lanes}){where}, may_alias));"


def _splat(name: str, kind: str) -> str:
    stem, lanes = _parts(kind)
    items = ", ".join(["x"] * lanes)
    return f"{_LANES} {kind} {name}({_ELEMENTS[stem][0]} x) {{ return ({kind}){{{items}}}; }}"


def _choose(name: str, kind: str) -> str:
    mask = _mask(kind)
    return (
        f"{_LANES} {kind} {name}({mask} m, {kind} a, {kind} b) "
        f"{{ return ({kind})((m & ({mask})a) | (~m & ({mask})b)); }}"
    )


def _upper_lanes(name: str, kind: str) -> str:
    """C function ``name``: upper halves of the products of two vectors of 16-bit integers ``kind``; gcc finds x86's
    instruction for them in no expression.
    """
    stem, lanes = _parts(kind)
    wide = "uint32_t" if stem[0] == "u" else "int32_t"
    builtin = f"__builtin_ia32_pmulh{'u' * (stem[0] == 'u')}w256"
    return f"""\
{_LANES} {kind} {name}({kind} a, {kind} b) {{
#if {lanes} % 16 == 0 && defined(__AVX2__) && defined(__GNUC__) && !defined(__clang__)
  typedef short half __attribute__((vector_size(32), may_alias));
  {kind} y;
  for (int k = 0; k < {lanes // 16}; ++k) ((half *)&y)[k] = {builtin}(((half *)&a)[k], ((half *)&b)[k]);
  return y;
#else
  typedef {wide} wide __attribute__((vector_size({4 * lanes})));
  return __builtin_convertvector(__builtin_convertvector(a, wide) * __builtin_convertvector(b, wide) >> 16, {kind});
#endif
}}"""


def _each(name: str, count: str, function: str, kind: str) -> str:
    """C function ``name`` of vectors of type ``kind`` that applies the scalar C function ``function`` to every lane.

    count: number of arguments, as text
    """
    _, lanes = _parts(kind)
    given = "abc"[: int(count)]
    items = ", ".join(f"{g}[k]" for g in given)
    call = f"{function}({items})"
    if function in ("max", "min"):
        call = f"a[k] {'>' if function == 'max' else '<'} b[k] ? a[k] : b[k]"
    taken = ", ".join(f"{kind} {g}" for g in given)
    return (
        f"{_LANES} {kind} {name}({taken}) {{\n  {kind} y = {{0}};\n"
        f"  for (int k = 0; k < {lanes}; ++k) y[k] = {call};\n  return y;\n}}"
    )


def signed(fn: str, chosen: str, b: str, rest: str) -> str:
    """C expression that corrects the sign bit of ``chosen``, the bits of a min or max: a maximum clears it, a minimum
    sets it, as ``b`` demands where both operands are zeros. An empty ``b`` stands for a constant zero.

    rest: mask without the sign bit. b is shifted, or compilers see through both and lose the instruction.
    """
    if b:
        b = f"{b} >> {31 if rest == '0x7fffffff' else 63}"
    if fn == "max":
        return f"{chosen} & ({b} | {rest})" if b else f"{chosen} & {rest}"
    return f"{chosen} | ({b} & ~{rest})" if b else f"{chosen} | ~{rest}"


_X86 = {"float4": ("__SSE__", "ps"), "float8": ("__AVX__", "ps256"), "double2": ("__SSE2__", "pd"),
        "double4": ("__AVX__", "pd256")}  # fmt: skip
"""Vector type -> (macro, ending of gcc's functions) of x86's minimum and maximum, which gcc finds in no expression."""


def extreme_lanes(name: str, kind: str, sign: str, case: str) -> str:
    """C function ``name``: larger (``>``) or smaller (``<``) of two float vectors per lane; NaN if either is, -0 < 0.

    case: "_const" for ``b`` a nonzero constant, "_zero" for a zero constant
    """
    mask, fn = _mask(kind), "max" if sign == ">" else "min"
    rest = "0x7fffffff" if "float" in kind else "INT64_C(0x7fffffffffffffff)"
    chosen = f"((m & ({mask})b) | (~m & ({mask})a))"
    if case != "_const":
        chosen = signed(fn, chosen, "" if case else f"(({mask})b)", rest)
    missing = "" if case else f"({chosen}) | (b != b)"
    text = f"  const {mask} m = b {sign} a;\n  return ({kind})({missing or chosen});\n"
    if kind in _X86:  # the second operand where one is NaN or both are equal
        macro, end = _X86[kind]
        most, other = f"__builtin_ia32_{fn}{end}(b, a)", f"({mask})__builtin_ia32_{fn}{end}(a, b)"
        unordered = f"__builtin_ia32_cmp{end}(a, b, 3)" if macro == "__AVX__" else "(a != a) | (b != b)"
        unordered = f"({mask}){unordered}" if macro == "__AVX__" else unordered
        both = f"({kind})((({mask}){most} {'&' if fn == 'max' else '|'} {other}) | ({unordered}))"
        short = {"": both, "_const": most, "_zero": f"({kind})({signed(fn, f'({mask}){most}', '', rest)})"}[case]
        text = f"#if defined({macro}) && !defined(__clang__)\n  return {short};\n#else\n{text}#endif\n"
    return f"{_LANES} {kind} {name}({kind} a, {kind} b) {{\n{text}}}"


def _bits(name: str, new: str, old: str) -> str:
    types = {"float32": "float", "float64": "double"}
    a, b = (types.get(t, f"{t}_t") for t in (new, old))
    start = "static inline __attribute__((unused))"  # where the compiler has halves they are converted without
    return f"{start} {a} {name}({b} x) {{ {a} y; memcpy(&y, &x, sizeof y); return y; }}"


def _upper(name: str, dtype: str) -> str:
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    kind = f"{dtype}_t"
    if bits < 64:
        wide = f"{'u' if dtype[0] == 'u' else ''}int64_t"
        return f"static inline {kind} {name}({kind} a, {kind} b) {{ return ({kind})(({wide})a * b >> {bits}); }}"
    if dtype[0] == "u":
        return (
            f"static inline uint64_t {name}(uint64_t a, uint64_t b) {{\n"
            "  const uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;\n"
            "  const uint64_t m = ah * bl + (al * bl >> 32), n = al * bh + (uint32_t)m;\n"
            "  return ah * bh + (m >> 32) + (n >> 32);\n}"
        )
    return (
        f"static inline int64_t {name}(int64_t a, int64_t b) {{\n"
        "  const uint64_t u = tir_mulhi_uint64((uint64_t)a, (uint64_t)b);\n"
        "  return (int64_t)(u - (a < 0 ? (uint64_t)b : 0) - (b < 0 ? (uint64_t)a : 0));\n}"
    )


def _atomic(name: str, dtype: str) -> str:
    types = {"float32": "float", "float64": "double"}
    if dtype not in types:
        kind = f"{dtype}_t"
        return f"static inline void {name}({kind} *p, {kind} x) {{ (void)__atomic_fetch_add(p, x, __ATOMIC_RELAXED); }}"
    kind = types[dtype]
    return (
        f"static inline void {name}({kind} *p, {kind} x) {{\n"
        f"  {kind} old, made;\n  __atomic_load(p, &old, __ATOMIC_RELAXED);\n"
        "  do made = old + x;\n"
        "  while (!__atomic_compare_exchange(p, &old, &made, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));\n}"
    )


def _parts(kind: str) -> tuple[str, int]:
    found = _VECTOR.fullmatch(kind)
    assert found is not None, kind
    return found[1], int(found[2])


def _mask(kind: str) -> str:
    """Signed integer vector type as wide as the lanes of vector type ``kind``."""
    stem, lanes = _parts(kind)
    return f"{_MASKS[_ELEMENTS[stem][1]]}{lanes}"


def _load_halves(name: str, dtype: str, count: str) -> str:
    """C function ``name`` that reads ``count`` floats of 16 bits as float32."""
    lanes = int(count)
    head = f"{_LANES} float{lanes} {name}(const uint16_t *p) {{\n"
    if dtype == "bfloat16":
        return (
            f"{head}  ushort{lanes} h;\n  memcpy(&h, p, sizeof h);\n"
            f"  return (float{lanes})(__builtin_convertvector(h, uint{lanes}) << 16);\n}}"
        )
    alone = f"  for (int k = 0; k < {lanes}; ++k) y[k] = tir_from_float16(p[k]);\n"
    if lanes < 8:
        return f"{head}  float{lanes} y = {{0}};\n{alone}  return y;\n}}"
    return (
        f"{head}  float{lanes} y = {{0}};\n#ifdef __F16C__\n  for (int k = 0; k < {lanes}; k += 8) {{\n"
        "    short8 h;\n    memcpy(&h, p + k, sizeof h);\n"
        "    const float8 x = (float8)__builtin_ia32_vcvtph2ps256(h);\n"
        "    memcpy((float *)&y + k, &x, sizeof x);\n  }\n#else\n"
        f"{alone}#endif\n  return y;\n}}"
    )


def _store_halves(name: str, dtype: str, count: str) -> str:
    """C function ``name`` that rounds ``count`` float32 to floats of 16 bits and writes them."""
    lanes = int(count)
    head = f"{_LANES} void {name}(uint16_t *p, float{lanes} x) {{\n"
    if dtype == "bfloat16":
        return (
            f"{head}  const uint{lanes} u = (uint{lanes})x, m = (uint{lanes})(x != x);\n"
            f"  const uint{lanes} y = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;\n"
            f"  const ushort{lanes} h = __builtin_convertvector((y & ~m) | (((u >> 16) | 0x40u) & m), ushort{lanes});\n"
            "  memcpy(p, &h, sizeof h);\n}"
        )
    alone = f"  for (int k = 0; k < {lanes}; ++k) p[k] = tir_to_float16(x[k]);\n"
    if lanes < 8:
        return f"{head}{alone}}}"
    return (
        f"{head}#ifdef __F16C__\n  for (int k = 0; k < {lanes}; k += 8) {{\n"
        "    float8 y;\n    memcpy(&y, (const float *)&x + k, sizeof y);\n"
        "    const short8 h = (short8)__builtin_ia32_vcvtps2ph256(y, 0);\n"
        "    memcpy(p + k, &h, sizeof h);\n  }\n#else\n"
        f"{alone}#endif\n}}"
    )


_PATTERNS: list[tuple[str, Callable[..., str]]] = [
    (r"tir_splat_(\w+)", _splat),
    (r"tir_choose_(\w+)", _choose),
    (r"tir_each2_tir_mulhi_u?int16_(u?short\d+)", _upper_lanes),
    (r"tir_each(\d)_(\w+)_([a-z]+\d+)", _each),
    (r"tir_(\w+)_of_(\w+)", _bits),
    (r"tir_mulhi_(u?int\d+)", _upper),
    (r"tir_atomic_add_(\w+)", _atomic),
    (r"tir_load_(b?float16)_(\d+)", _load_halves),
    (r"tir_store_(b?float16)_(\d+)", _store_halves),
]

_SCALARS = {
    "tir_rsqrt_float32": "static inline float tir_rsqrt_float32(float x) { return 1.0f / sqrtf(x); }",
    "tir_rsqrt_float64": "static inline double tir_rsqrt_float64(double x) { return 1.0 / sqrt(x); }",
    "tir_from_float16": """\
static inline float tir_from_float16(uint16_t h) {
#ifdef __FLT16_MANT_DIG__
  __extension__ _Float16 x;
  memcpy(&x, &h, sizeof x);
  return (float)x;
#else
  const uint32_t size = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
  uint32_t u = size >= 0x7c00u ? (size << 13) + 0x70000000u : (size << 13) + 0x38000000u;
  if (size < 0x400u) u = tir_uint32_of_float32((float)size * 5.9604644775390625e-08f);
  return tir_float32_of_uint32(u | sign);
#endif
}""",
    "tir_to_float16": """\
static inline uint16_t tir_to_float16(float x) {
#ifdef __FLT16_MANT_DIG__
  __extension__ const _Float16 y = x;
  uint16_t h;
  memcpy(&h, &y, sizeof h);
  return h;
#else
  const uint32_t u = tir_uint32_of_float32(x), size = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
  if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (size < 0x38800000u)
    return (uint16_t)(sign | (tir_uint32_of_float32(tir_float32_of_uint32(size) + 0.5f) - 0x3f000000u));
  return (uint16_t)(sign | ((size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13));
#endif
}""",
    "tir_bits_float16": "static inline uint16_t tir_bits_float16(float x) { return tir_to_float16(x); }",
    "tir_of_bits_float16": "static inline float tir_of_bits_float16(uint16_t h) { return tir_from_float16(h); }",
    "tir_round_float16": (
        "static inline float tir_round_float16(float x) { return tir_from_float16(tir_to_float16(x)); }"
    ),
}
