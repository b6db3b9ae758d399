"""Exports a C program as ``NAME.h`` and ``NAME.c``, with variants per vector width selected at run time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorir.codegen.dialect import C
from tensorir.codegen.names import identifier
from tensorir.codegen.pool import PROLOGUE, pool_text
from tensorir.codegen.source import KernelLaunch, Param, Source, itemsize
from tensorir.errors import refuse
from tensorir.export.c_checks import checks_of
from tensorir.export.c_dims import dims_text, from_buffers, out_of_range
from tensorir.export.c_extents import helpers, times, variable
from tensorir.export.c_header import SPACE_ALIGN, each_time, given, header, in_c, spaces
from tensorir.export.program import ExportError, ExportProgram
from tensorir.ir.dtypes import WIDENED

OF_ALL = "_all"
"""Suffix of names that the texts of all widths share."""


@dataclass(frozen=True)
class Width:
    """A width of vector registers: bytes of a register, number of registers, and the CPU features that compilers and
    the run-time choice of a text need.
    """

    nbytes: int
    registers: int
    features: tuple[str, ...]


WIDTHS = (
    Width(64, 32, ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c")),
    Width(32, 16, ("avx2", "fma", "f16c")),
    Width(16, 16, ()),
)
"""The widest first; the last one is every processor's."""
_CPU_FEATURES = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma")
"""Features that ``__builtin_cpu_supports`` knows in all compilers; processors with avx2 have f16c."""

KNOWN_CALL_TEXT = """\
/* The call with 0 for the fields that are not there; NULL where not even its size is. */
static const tir_call *tir_known(const tir_call *call, tir_call *known) {
  if (call->size >= sizeof *known) return call;
  if (call->size < sizeof call->size) return NULL;
  memset(known, 0, sizeof *known);
  memcpy(known, call, call->size);
  return known;
}
"""


def c_files(part: ExportProgram, called: str) -> dict[str, bytes]:
    """{"NAME.c": content, "NAME.h": content} of a C program.

    called: NAME
    Raises ExportError ``export.language`` for a program without its schedule, such as edited text, which exists for one
    register width only; and errors of lowering.
    """
    texts = by_width(part)
    source = part.source
    return {
        f"{called}.c": _unit(source, texts, called).encode("utf-8"),
        f"{called}.h": header(source, called).encode("utf-8"),
    }


def by_width(part: ExportProgram) -> dict[Width, Source]:
    """{register width: C source of the computation lowered for it}. Raises ExportError ``export.language`` for a
    program without its schedule.
    """
    if part.again is None:
        message = "a C program has a text for each width of registers, and this program came without its schedule"
        raise refuse(ExportError, "export.language", message, hint='s.export(path, to=["c"])')
    found = {}
    for width in WIDTHS:
        made = part.again(f"c -vector_bytes={width.nbytes} -registers={width.registers}").source
        inputs = {p.name for p in made.inputs}
        held = {p.name: p.data or b"" for p in part.source.params if p.role == "constant" and p.name in inputs}
        found[width] = each_time(made.fixed(held))
    return found


def core(source: Source, called: str) -> str:
    """Text of ``NAME.c`` without kernels and contents of constants, to call separately compiled kernels.

    The loader stores addresses of ``KERNEL_run`` in ``tir_kernels``, in launch order without empty ones (``launched``),
    and of constants in ``NAME_constants``.
    """
    kernels, held = max(1, len(launched(source))), len(_held(source))
    parts = [PROLOGUE + "#include <string.h>", header(source, called), pool_text()]
    parts += ["static int tir_text(void) { return 0; }"]
    parts += [f"void (*tir_kernels[1][{kernels}])(void *const *, const int64_t *);"]
    parts += [f"const void *{called}_constants[{held}];"] if held else []
    return "\n".join([*parts, *_after(source, called)])


def _after(source: Source, called: str) -> list[str]:
    """C texts that follow the kernels: the function that runs them, and definitions of the header's functions."""
    text = [_run(source, called), _doors(source, called)]
    return [*helpers("".join(text)), *text]


def _unit(source: Source, texts: Mapping[Width, Source], called: str) -> str:
    """Text of the complete ``NAME.c``."""
    notes = [line for line in source.text.splitlines() if line.startswith("//") and not line.startswith("// s.")]
    texts, shared = _without_shared(texts)
    several = _of_several(texts)
    parts = [*notes]
    parts += ["#ifdef TIR_BYTES", f"/* --- registers of TIR_BYTES bytes */\n{several}", "#else"] if several else []
    parts += [PROLOGUE + C.header, f'#include "{called}.h"', pool_text(), shared, _PASTE if several else ""]
    for width, text in texts.items():
        own = _named(_body(text), lambda name, width=width: f"{name}_{width.nbytes}")  # type: ignore[misc]
        parts += [_section(width, _again(width, called) if several and _is_shared(text, texts) else own)]
    parts += [
        _choice(),
        _table(source, texts),
        constants(source, called),
        *_after(source, called),
    ]
    parts += ["#endif\n"] if several else []
    return "\n".join(x for x in parts if x)


_PASTE = """\
/* This file includes itself for widths of registers that have the same text, with their bytes appended to each name. */
#define TIR_PASTED(name, nbytes) name##_##nbytes
#define TIR_BEHIND(name, nbytes) TIR_PASTED(name, nbytes)
#define TIR(name) TIR_BEHIND(name, TIR_BYTES)"""


def _again(width: Width, called: str) -> str:
    return f'#define TIR_BYTES {width.nbytes}\n#include "{called}.c"\n#undef TIR_BYTES'


def _of_several(texts: Mapping[Width, Source]) -> str:
    """The text that several widths have in common, its identifiers wrapped in the macro ``TIR()``; "" if all texts
    differ.
    """
    shared = next((text for text in texts.values() if _is_shared(text, texts)), None)
    return "" if shared is None else _named(_body(shared), lambda name: f"TIR({name})")


def _is_shared(text: Source, texts: Mapping[Width, Source]) -> bool:
    """True if ``text`` is the one that several widths have in common."""
    bodies = [_body(x) for x in texts.values()]
    shared = next((x for x in bodies if bodies.count(x) > 1), None)
    return _body(text) == shared


def _without_shared(texts: Mapping[Width, Source]) -> tuple[dict[Width, Source], str]:
    """({width: source without the common definitions}, text of those definitions): types, macros, tables and
    small-vector functions that any CPU supports.
    """
    found = [_for_all(text.text.replace(C.header, "", 1)) for text in texts.values()]
    same = _closed([x for x in found[0] if all(x in others for others in found)])
    own = _defined(same)

    def renamed(text: str) -> str:
        return re.sub(r"\b\w+\b", lambda m: f"{m[0]}{OF_ALL}" if m[0] in own else m[0], text) if own else text

    def left(text: str) -> str:
        for x in same:
            text = text.replace(x, "", 1)
        return renamed(text)

    return {w: replace(t, text=left(t.text)) for w, t in texts.items()}, renamed("".join(same)).strip()


def _defined(parts: Sequence[str]) -> set[str]:
    """Names of tables and functions defined in ``parts``."""
    return {name for x in parts for name in re.findall(r"^static [^\n=]*?\b(\w+)[\[(](?!\()", x)}


def _closed(parts: list[str]) -> list[str]:
    """Subset of ``parts`` that calls only functions defined within the subset."""
    own = _defined(parts)
    kept = [x for x in parts if set(re.findall(r"\btir_\w+(?=\()", x)) <= own]
    return kept if len(kept) == len(parts) else _closed(kept)


def _for_all(text: str) -> list[str]:
    """Definitions in a text that any CPU supports: types, macros, tables and functions on vectors of up to 16 bytes."""
    functions = [f for f in _FUNCTION.findall(text) if set(_VECTOR.findall(f)) <= _SIXTEEN_BYTE_VECTORS]
    return [*_FOR_ALL.findall(text), *functions]


_FOR_ALL = re.compile(
    r"^(?:typedef [^{}\n]*;\n|static const \w+ \w+\[[^\n]*\};\n|#if defined\(__has_builtin\)\n(?:#.*\n)*)", re.MULTILINE
)
_FUNCTION = re.compile(
    r"^static inline __attribute__\(\((?:always_inline|unused)\)\) .*(?:\}\n|(?:\{\n|\n\{\n)(?: .*\n)+\}\n)",
    re.MULTILINE,
)
_VECTOR = re.compile(r"\b(?:float|double|int|uint|long|ulong|short|ushort|char|uchar|half)\d+u?\b")
_SIZES = {"float": 4, "int": 4, "double": 8, "long": 8}
_SIXTEEN_BYTE_VECTORS = {f"{kind}{16 // size}{u}" for kind, size in _SIZES.items() for u in ("", "u")}
"""Vectors of 16 bytes, which every processor has."""


def _body(source: Source) -> str:
    """The C text of one width, without comments at line starts and the common header."""
    lines = [x for x in source.text.replace(C.header, "", 1).splitlines() if not x.startswith("//")]
    return "\n".join(lines).strip()


def _named(body: str, renamed: Callable[[str], str]) -> str:
    """``body`` with the identifiers that it defines globally replaced by ``renamed(identifier)``, kernels made
    static.
    """
    runs = re.findall(r"^void (\w+)_run\(", body, re.MULTILINE)
    own = {name for k in runs for name in (k, f"{k}_run")}
    own |= set(re.findall(r"^static const \w+ (\w+)\[", body, re.MULTILINE))
    own |= {name for name in re.findall(r"\btir_\w+\b", body) if not name.endswith(OF_ALL)}
    body = re.sub(r"^void (\w+_run\()", r"static void \1", body, flags=re.MULTILINE)
    names = re.compile(rf"\b(?:{'|'.join(sorted(own))})\b")
    return names.sub(lambda m: renamed(m[0]), body) if own else body


def _section(width: Width, body: str) -> str:
    """``body`` between pragmas that select a CPU with the register width."""
    begin, end = [f"/* --- registers of {width.nbytes} bytes */"], []
    if width.features:
        target = ",".join(width.features)
        begin += ["#if defined(__x86_64__)", "#if defined(__clang__)"]
        begin += [f'#pragma clang attribute push(__attribute__((target("{target}"))), apply_to = function)']
        begin += ["#else", "#pragma GCC push_options", f'#pragma GCC target("{target}")', "#endif"]
        end = ["#if defined(__clang__)", "#pragma clang attribute pop", "#else", "#pragma GCC pop_options", "#endif"]
        end += ["#endif"]
    return "\n".join([*begin, body, *end])


def _choice() -> str:
    lines = ["/* Which of the texts the processor runs, the widest first. */", "static int tir_text(void) {"]
    lines += ["#if defined(__x86_64__)", "  __builtin_cpu_init();"]
    for n, width in enumerate(w for w in WIDTHS if w.features):
        asked = " && ".join(f'__builtin_cpu_supports("{f}")' for f in width.features if f in _CPU_FEATURES)
        lines.append(f"  if ({asked}) return {n};")
    return "\n".join([*lines, "#endif", f"  return {len(WIDTHS) - 1};", "}"])


def _table(source: Source, texts: Mapping[Width, Source]) -> str:
    launches = launched(source)
    if not launches:
        return ""
    kind = f"static void (*const tir_kernels[{len(texts)}][{len(launches)}])(void *const *, const int64_t *) = {{"
    lines = [kind]
    for width, text in texts.items():
        names = ", ".join(f"{k.name}_run_{width.nbytes}" for k in launched(text))
        none = ", ".join("0" for _ in launches)
        row = f"  {{{names}}},"
        lines += ["#if defined(__x86_64__)", row, "#else", f"  {{{none}}},", "#endif"] if width.features else [row]
    return "\n".join([*lines, "};"])


def launched(source: Source) -> list[KernelLaunch]:
    """Kernels whose grid is not empty, at least for some extents; in launch order."""
    return [k for k in source.kernels if times(k.grid)]


def constants(source: Source, called: str) -> str:
    """C arrays with the contents of constants, and the table of pointers by which kernels find them (tests replace
    those); "" without constants.
    """
    lines = []
    for n, p in enumerate(_held(source)):
        data = p.data or b""
        words = np.frombuffer(data + b"\0" * (-len(data) % 4), "<u4")
        text = ", ".join(f"{w}u" for w in words.tolist()) or "0u"
        lines += [f"/* {identifier(p.name)} */"]
        lines += [f"static const uint32_t tir_constant_{n}[] __attribute__((aligned(64))) = {{{text}}};"]
    if lines:
        names = ", ".join(f"tir_constant_{n}" for n, _ in enumerate(_held(source)))
        lines.append(f"const void *{called}_constants[] = {{{names}}};")
    return "\n".join(lines)


def _held(source: Source) -> list[Param]:
    return [p for p in source.params if p.role == "constant"]


def _run(source: Source, called: str) -> str:
    """Text of the C function ``tir_all``, which runs every kernel on the given array pointers."""
    place, said, launches = _places(source, called), in_c(source), launched(source)
    lines = [_GO, "/* The text in use, by its place in tir_kernels; tests put others there. */"]
    lines += [f"_Atomic int {called}_text = -1;"]
    lines += ["/* packed: what kernels that run once write; which: 1 for those, 2 for the others */"]
    lines += ["static int tir_all(const tir_call *call, void *const *buffers, char *space, char *packed, int which) {"]
    lines += [f"  static _Atomic uint64_t took[{max(1, len(launches))}];"]
    lines += [f"  int text = atomic_load_explicit(&{called}_text, memory_order_relaxed), failed = 0;"]
    lines += [f"  if (text < 0) atomic_store_explicit(&{called}_text, text = tir_text(), memory_order_relaxed);"]
    lines += [f"  {line}" for line in from_buffers(source, "which & 2")]
    lines += [f"  int32_t {_passed(d.name)} = (int32_t){variable(d.name)};" for d in source.dims]
    lines += [f"  (void){_passed(d.name)};" for d in source.dims]
    for n, k in enumerate(launches):
        args = ", ".join(place[a] for a in k.args) or "0"
        grid, blocks = ", ".join(map(said, k.grid)), said(times(k.grid))
        some = f" && {blocks} > 0" if isinstance(times(k.grid), str) else ""
        lines += [f"  if (!failed && which & {1 if k.once else 2}{some}) {{", f"    void *const args[] = {{{args}}};"]
        lines += [f"    tir_launch launch = {{tir_kernels[text][{n}], args, {{{grid}}}, {k.local_bytes}, 0}};"]
        lines += [f"    failed = tir_go(call, &launch, (size_t){blocks}, &took[{n}]);", "  }"]
    unused = "  (void)call, (void)buffers, (void)space, (void)packed, (void)which, (void)took, (void)text;"
    return "\n".join([*lines, unused, "  return failed;", "}"])


def _passed(dim: str) -> str:
    """Name of the C variable with a dim as int32, whose address kernels receive."""
    return f"int_{dim}"


def _places(source: Source, called: str) -> dict[str, str]:
    """{parameter: C expression of its address}, as used in ``tir_all``."""
    at, said = spaces(source), in_c(source)
    place = {p.name: f"buffers[{n}]" for n, p in enumerate(given(source))}
    place |= {d.name: f"&{_passed(d.name)}" for d in source.dims}
    place |= {name: f"space + {said(start)}" for name, start in at.own.items()}
    place |= {name: f"packed + {start}" for name, start in at.packed.items()}
    return place | {p.name: f"(void *)(uintptr_t){called}_constants[{n}]" for n, p in enumerate(_held(source))}


_GO = """\
/* 1: parallel_for failed, 2: a thread has no memory */
static int tir_go(const tir_call *call, tir_launch *launch, size_t blocks, _Atomic uint64_t *took) {
  static _Atomic int here;
  int threads = call ? call->threads : 0;
  if (threads <= 0) {
    threads = atomic_load_explicit(&here, memory_order_relaxed);
    if (!threads) atomic_store_explicit(&here, threads = tir_processors(), memory_order_relaxed);
  }
  if (call && call->parallel_for && threads > 1 && blocks > 1) {
    if (call->parallel_for(call->pool, blocks, tir_block, launch)) return 1;
  } else {
    tir_run(tir_block, launch, blocks, threads, took);
  }
  return atomic_load(&launch->failed) ? 2 : 0;
}
"""


def _doors(source: Source, called: str) -> str:
    """C definitions of the functions that ``NAME.h`` declares."""
    upper, at, said = called.upper(), spaces(source), in_c(source)
    arrays, held, total = given(source), at.packed_bytes, said(at.nbytes)
    early = source.used_once
    lines = [KNOWN_CALL_TEXT, *([_SPARE_TEXT] if at.nbytes else [])]
    lines += ["static int tir_given(const tir_call *call, void *const *buffers, char *packed, int which) {"]
    lines += [f"  static const unsigned char sizes[] = {{{', '.join(str(_checked(p)) for p in arrays)}}};"]
    lines += [f"  static const unsigned char early[] = {{{', '.join(str(int(p.name in early)) for p in arrays)}}};"]
    lines += ["  tir_call known;", f"  if (call && !(call = tir_known(call, &known))) return {upper}_SIZE;"]
    if at.nbytes:
        lines += [f"  if (call && (uintptr_t)call->workspace % {SPACE_ALIGN}) return {upper}_ALIGNMENT;"]
    if held:
        lines += [f"  if ((uintptr_t)packed % {SPACE_ALIGN}) return {upper}_ALIGNMENT;"]
    lines += [f"  if (!buffers) return {upper}_NULL;", f"  for (int n = 0; n < {len(arrays)}; ++n) {{"]
    lines += ["    if (which == 1 && !early[n]) continue;"]
    lines += [f"    if (sizes[n] && !buffers[n]) return {upper}_NULL;"]
    lines += [f"    if (sizes[n] > 1 && (uintptr_t)buffers[n] % sizes[n]) return {upper}_ALIGNMENT;", "  }"]
    lines += [f"  {line}" for line in from_buffers(source, "which & 2")]
    lines += [f"  if ({wrong}) return {upper}_DIM_RANGE;" for wrong, _ in out_of_range(source)]
    if checks := list(checks_of(source, given(source), upper)):
        lines += ["  if (which & 2) {", *(f"  {line}" for line in checks), "  }"]
    if at.nbytes:
        lines += ["  char *space = call ? call->workspace : NULL, *own = NULL;"]
        lines += [f"  if (!space && which != 1 && !(space = own = tir_space((size_t){total}))) return {upper}_MEMORY;"]
        lines += [f"  if (!packed) packed = space + {said(at.own_bytes)};"] if held else []
        lines += ["  const int failed = tir_all(call, buffers, space, packed, which);", "  tir_keep(own);"]
    else:
        lines += ["  const int failed = tir_all(call, buffers, NULL, packed, which);"]
    lines += [f"  return failed == 2 ? {upper}_MEMORY : failed ? {upper}_THREADS : {upper}_OK;", "}", ""]
    lines += [f"int {called}(const tir_call *call, void *const *buffers) {{"]
    lines += ["  return tir_given(call, buffers, NULL, 3);", "}", "", dims_text(source, called)]
    if held:
        lines += [f"int {called}_pack(const tir_call *call, void *const *buffers, void *packed) {{"]
        lines += [f"  return packed ? tir_given(call, buffers, packed, 1) : {upper}_NULL;", "}", ""]
        lines += [f"int {called}_packed(const tir_call *call, void *const *buffers, const void *packed) {{"]
        lines += [f"  return packed ? tir_given(call, buffers, (char *)(uintptr_t)packed, 2) : {upper}_NULL;", "}", ""]
    return "\n".join(lines)


_SPARE_TEXT = """\
/* Memory that a call leaves to the next one, which takes it where it is large enough: its bytes, then the memory. */
static _Atomic(void *) tir_spare;

static char *tir_space(size_t nbytes) {
  size_t *found = atomic_exchange(&tir_spare, NULL);
  if (found && *found < nbytes) free(found), found = NULL;
  if (!found && (found = aligned_alloc(64, 64 + nbytes))) *found = nbytes;
  return found ? (char *)found + 64 : NULL;
}

static void tir_keep(char *space) {
  if (space) free(atomic_exchange(&tir_spare, (void *)(space - 64)));
}
"""


def _checked(p: Param) -> int:
    """Bytes per element for the alignment check of an array's address; 0 for an empty array, which is not checked."""
    size = 4 if p.role == "scalar" and p.dtype in WIDENED else itemsize(p.dtype)
    return size if times(p.shape) else 0
