"""A program as C: ``NAME.h`` and ``NAME.c``, with a text for each width of registers, picked when it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tensorir.codegen.dialect import C
from tensorir.codegen.names import identifier
from tensorir.codegen.pool import PROLOGUE, pool_text
from tensorir.codegen.source import KernelLaunch, Param, Source, itemsize
from tensorir.errors import refuse
from tensorir.export.c_checks import checks_of
from tensorir.export.part import ExportError, Part
from tensorir.ir.dtypes import WIDENED

SPACE_ALIGN = 64
OF_ALL = "_all"
"""What ends the names of what the texts of all widths use."""


@dataclass(frozen=True)
class Width:
    """Registers of so many bytes: what they need of the compiler, and of the processor."""

    nbytes: int
    registers: int
    features: tuple[str, ...]


WIDTHS = (
    Width(64, 32, ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c")),
    Width(32, 16, ("avx2", "fma", "f16c")),
    Width(16, 16, ()),
)
"""The widest first; the last one is every processor's."""
_ASKED = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma")
"""Features that ``__builtin_cpu_supports`` knows in all compilers; processors with avx2 have f16c."""

ERRORS = {
    "NULL": "an address is NULL",
    "ALIGNMENT": "an address is no multiple of its elements' size, or of 64 where it has to be",
    "MEMORY": "there is no memory for the workspace, or for what a block keeps",
    "INDEX": "an element that is used as an index is out of range, out of order or there twice",
    "THREADS": "parallel_for failed",
    "SIZE": "tir_call.size is not set",
}
"""What can go wrong, the codes from 1 on."""

_CALL = """\
#ifndef TIR_CALL
#define TIR_CALL
/* How to run a kernel; NULL in place of its address: with what the kernel finds itself. */
typedef struct tir_call {
  size_t size;      /* sizeof(tir_call); less: the fields after that are not there, and count as 0 */
  void *stream;     /* not used on processors */
  int (*parallel_for)(void *pool, size_t blocks, void (*body)(void *state, size_t block), void *state); /* 0: it ran */
  void *pool;       /* its first argument; without parallel_for the kernel has threads that sleep between calls */
  void *workspace;  /* 64-byte aligned, NAME_workspace_bytes that nobody else uses meanwhile; NULL: memory of its own */
  int threads;      /* at most so many; 0: as many as the process may use */
} tir_call;
#endif"""


KNOWN = """\
/* The call with 0 for the fields that are not there; NULL where not even its size is. */
static const tir_call *tir_known(const tir_call *call, tir_call *known) {
  if (call->size >= sizeof *known) return call;
  if (call->size < sizeof call->size) return NULL;
  memset(known, 0, sizeof *known);
  memcpy(known, call, call->size);
  return known;
}
"""


def c_files(part: Part, called: str) -> dict[str, bytes]:
    """``NAME.c`` and ``NAME.h`` of a program in C; called: NAME.

    Raises ExportError ``export.language`` where the text was edited, which says nothing of other registers.
    """
    texts = by_width(part)
    source = part.source
    return {
        f"{called}.c": _unit(source, texts, called).encode("utf-8"),
        f"{called}.h": header(source, called).encode("utf-8"),
    }


def by_width(part: Part) -> dict[Width, Source]:
    """The same computation for registers of each width."""
    if part.again is None:
        message = "a C program has a text for each width of registers, and this program came without its schedule"
        raise refuse(ExportError, "export.language", message, hint='s.export(path, to=["c"])')
    found = {}
    for width in WIDTHS:
        made = part.again(f"c -vector_bytes={width.nbytes} -registers={width.registers}").source
        inputs = {p.name for p in made.inputs}
        held = {p.name: p.data or b"" for p in part.source.params if p.role == "constant" and p.name in inputs}
        found[width] = made.fixed(held)
    return found


def header(source: Source, called: str, errors: Mapping[str, str] = ERRORS, more: Sequence[str] = ()) -> str:
    """``NAME.h``.

    errors: names and meanings of what it returns, from 1 on;  more: what it declares next to the function
    """
    upper = called.upper()
    lines = [f"/* {_signature(source)} */", f"#ifndef {upper}_H", f"#define {upper}_H"]
    lines += ["#include <stddef.h>", "#include <stdint.h>", "#ifdef __cplusplus", 'extern "C" {', "#endif", _CALL, ""]
    codes = [f"{upper}_{name} = {n}" for n, name in enumerate(errors, 1)]
    lines += ["enum {", f"  {upper}_OK = 0,"]
    lines += [f"  {code}, /* {why} */" for code, why in zip(codes, errors.values(), strict=True)]
    lines += [
        "};",
        "",
        "/* Bytes of tir_call.workspace. */",
        f"#define {called}_workspace_bytes ((size_t){spaces(source)[1]})",
    ]
    lines += ["", "/* Run on arrays, row-major and contiguous, and numbers by their addresses:"]
    lines += [f"   buffers[{n}]: {_said(p)}" for n, p in enumerate(given(source))]
    lines += ["   0, or an error code. Outputs overlap nothing else. */"]
    lines += [f"int {called}(const tir_call *call, void *const *buffers);"]
    words = [f"(void *)(uintptr_t){'&' * (p.role == 'scalar')}{_argument(p, called)}" for p in given(source)]
    lines += [f"static inline int {called}_typed({', '.join(_typed(source, called))}) {{"]
    lines += [f"  void *const buffers[] = {{{', '.join(words)}}};", f"  return {called}(call, buffers);", "}", *more]
    lines += [*_packing(source, called), "#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def _packing(source: Source, called: str) -> list[str]:
    """What the header says of kernels that run once."""
    if not packed_bytes(source):
        return []
    names = ", ".join(identifier(p.name) for p in source.inputs if p.name in source.used_once) or "constants"
    return [
        f"/* What is made of {names} alone can be made once: {called}_pack leaves it in packed, 64-byte aligned and",
        f"   {called}_packed_bytes long, and of buffers needs what it reads; {called}_packed runs the rest with it. */",
        f"#define {called}_packed_bytes ((size_t){packed_bytes(source)})",
        f"int {called}_pack(const tir_call *call, void *const *buffers, void *packed);",
        f"int {called}_packed(const tir_call *call, void *const *buffers, const void *packed);",
    ]


def given(source: Source) -> tuple[Param, ...]:
    """What the caller gives, in the order of ``buffers``."""
    return (*source.inputs, *source.outputs)


def c_type(p: Param) -> str:
    """The C type of an element; floats of 16 and 8 bits are their bits, and numbers of these types are float."""
    if p.dtype in WIDENED:
        return "float" if p.role == "scalar" else f"uint{8 * itemsize(p.dtype)}_t"
    return {"float32": "float", "float64": "double", "bool": "uint8_t"}.get(p.dtype, f"{p.dtype}_t")


def spaces(source: Source) -> tuple[dict[str, int], int]:
    """Where in the workspace each array begins, what is packed once last, and the bytes of all."""
    packed = source.used_once
    at, end = {}, 0
    for p in sorted((p for p in source.params if p.role == "workspace"), key=lambda p: p.name in packed):
        at[p.name] = end
        end += -(-prod(p.shape) * itemsize(p.dtype) // SPACE_ALIGN) * SPACE_ALIGN
    return at, end


def packed_bytes(source: Source) -> int:
    """Bytes at the workspace's end that kernels which run once write, and nobody else."""
    at, end = spaces(source)
    return end - min((start for name, start in at.items() if name in source.used_once), default=end)


def _signature(source: Source) -> str:
    def shape(p: Param) -> str:
        return f"{identifier(p.name)} {p.dtype}" + (f"[{', '.join(map(str, p.shape))}]" if p.role != "scalar" else "")

    inputs = ", ".join(map(shape, source.inputs)) or "nothing"
    return f"{', '.join(map(shape, source.outputs))} from {inputs}"


def _said(p: Param) -> str:
    if p.role == "scalar":
        return f"{identifier(p.name)}, the address of a {c_type(p)}"
    bits = " (its bits)" if p.dtype in WIDENED else ""
    shape = "".join(f"[{n}]" for n in p.shape) or "[1]"
    return f"{identifier(p.name)}, {c_type(p)} {shape}{bits}{', written' if p.role == 'output' else ''}"


def _typed(source: Source, called: str) -> list[str]:
    words = []
    for p in given(source):
        name, const = _argument(p, called), "" if p.role == "output" else "const "
        words.append(f"{c_type(p)} {name}" if p.role == "scalar" else f"{const}{c_type(p)} *{name}")
    return [*words, "const tir_call *call"]


def _argument(p: Param, called: str) -> str:
    name = identifier(p.name)
    return f"{name}_" if name in ("call", "buffers", called) else name


def core(source: Source, called: str) -> str:
    """What calls kernels that are compiled already: ``NAME.c`` without them and without the content of constants.

    Whoever loads it puts the addresses of ``KERNEL_run`` into ``tir_kernels``, in launch order without empty ones
    (``launched``), and those of constants into ``NAME_constants``.
    """
    kernels, held = max(1, len(launched(source))), len(_held(source))
    parts = [PROLOGUE + "#include <string.h>", header(source, called), pool_text()]
    parts += ["static int tir_text(void) { return 0; }"]
    parts += [f"void (*tir_kernels[1][{kernels}])(void *const *, const int64_t *);"]
    parts += [f"const void *{called}_constants[{held}];"] if held else []
    return "\n".join([*parts, _run(source, called), _doors(source, called)])


def _unit(source: Source, texts: Mapping[Width, Source], called: str) -> str:
    """``NAME.c``."""
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
        _run(source, called),
        _doors(source, called),
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
    """The text that two widths or more have, its own names in ``TIR()``; none where all are different."""
    shared = next((text for text in texts.values() if _is_shared(text, texts)), None)
    return "" if shared is None else _named(_body(shared), lambda name: f"TIR({name})")


def _is_shared(text: Source, texts: Mapping[Width, Source]) -> bool:
    """Whether the text is one that several have, of which a file holds one."""
    bodies = [_body(x) for x in texts.values()]
    shared = next((x for x in bodies if bodies.count(x) > 1), None)
    return _body(text) == shared


def _without_shared(texts: Mapping[Width, Source]) -> tuple[dict[Width, Source], str]:
    """The texts without the types, macros, tables and functions of small vectors that all have, and those: they are the
    same for any processor.
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
    """The tables and functions that parts of a text define."""
    return {name for x in parts for name in re.findall(r"^static [^\n=]*?\b(\w+)[\[(](?!\()", x)}


def _closed(parts: list[str]) -> list[str]:
    """Those parts of a text that call no function of ours but each other's."""
    own = _defined(parts)
    kept = [x for x in parts if set(re.findall(r"\btir_\w+(?=\()", x)) <= own]
    return kept if len(kept) == len(parts) else _closed(kept)


def _for_all(text: str) -> list[str]:
    """What of a text may stand once for all widths: of functions those of vectors that every processor has."""
    functions = [f for f in _FUNCTION.findall(text) if set(_VECTOR.findall(f)) <= _SMALL]
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
_SMALL = {f"{kind}{16 // size}{u}" for kind, size in _SIZES.items() for u in ("", "u")}
"""Vectors of 16 bytes, which every processor has."""


def _body(source: Source) -> str:
    """The text of a width, without comments in front of it and what all have."""
    lines = [x for x in source.text.replace(C.header, "", 1).splitlines() if not x.startswith("//")]
    return "\n".join(lines).strip()


def _named(body: str, renamed: Callable[[str], str]) -> str:
    """A text whose own names are ``renamed``, and which are nobody else's."""
    runs = re.findall(r"^void (\w+)_run\(", body, re.MULTILINE)
    own = {name for k in runs for name in (k, f"{k}_run")}
    own |= set(re.findall(r"^static const \w+ (\w+)\[", body, re.MULTILINE))
    own |= {name for name in re.findall(r"\btir_\w+\b", body) if not name.endswith(OF_ALL)}
    body = re.sub(r"^void (\w+_run\()", r"static void \1", body, flags=re.MULTILINE)
    names = re.compile(rf"\b(?:{'|'.join(sorted(own))})\b")
    return names.sub(lambda m: renamed(m[0]), body) if own else body


def _section(width: Width, body: str) -> str:
    """The text for one width, compiled for processors that have it."""
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
        asked = " && ".join(f'__builtin_cpu_supports("{f}")' for f in width.features if f in _ASKED)
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
    """The kernels that have something to do."""
    return [k for k in source.kernels if prod(k.grid)]


def constants(source: Source, called: str) -> str:
    """Arrays that ship with the program, as words, and where kernels find them: tests put others there."""
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
    """``tir_kernels_run``: every kernel on the pointers of all arrays."""
    at, end = spaces(source)
    first = end - packed_bytes(source)
    names = [p.name for p in given(source)]
    place = {name: f"given[{n}]" for n, name in enumerate(names)}
    place |= {name: f"space + {start}" if start < first else f"packed + {start - first}" for name, start in at.items()}
    place |= {p.name: f"(void *)(uintptr_t){called}_constants[{n}]" for n, p in enumerate(_held(source))}
    launches = launched(source)
    lines = [_GO, "/* The text in use, by its place in tir_kernels; tests put others there. */"]
    lines += [f"_Atomic int {called}_text = -1;"]
    lines += ["/* packed: what kernels that run once write; which: 1 for those, 2 for the others */"]
    lines += ["static int tir_all(const tir_call *call, void *const *given, char *space, char *packed, int which) {"]
    lines += [f"  static _Atomic uint64_t took[{max(1, len(launches))}];"]
    lines += [f"  int text = atomic_load_explicit(&{called}_text, memory_order_relaxed), failed = 0;"]
    lines += [f"  if (text < 0) atomic_store_explicit(&{called}_text, text = tir_text(), memory_order_relaxed);"]
    for n, k in enumerate(launches):
        args = ", ".join(place[a] for a in k.args) or "0"
        x, y, z = k.grid
        lines += [f"  if (!failed && which & {1 if k.once else 2}) {{", f"    void *const args[] = {{{args}}};"]
        lines += [f"    tir_launch launch = {{tir_kernels[text][{n}], args, {{{x}, {y}, {z}}}, {k.local_bytes}, 0}};"]
        lines += [f"    failed = tir_go(call, &launch, {prod(k.grid)}, &took[{n}]);", "  }"]
    return "\n".join(
        [
            *lines,
            "  (void)call, (void)given, (void)space, (void)packed, (void)which, (void)took, (void)text;",
            "  return failed;",
            "}",
        ]
    )


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
    """The functions of the header."""
    upper = called.upper()
    arrays, held = given(source), packed_bytes(source)
    early = source.used_once
    total = spaces(source)[1]
    lines = [KNOWN, "static int tir_given(const tir_call *call, void *const *buffers, char *packed, int which) {"]
    lines += [f"  static const unsigned char sizes[] = {{{', '.join(str(_checked(p)) for p in arrays)}}};"]
    lines += [f"  static const unsigned char early[] = {{{', '.join(str(int(p.name in early)) for p in arrays)}}};"]
    lines += ["  tir_call known;", f"  if (call && !(call = tir_known(call, &known))) return {upper}_SIZE;"]
    if total:
        lines += [f"  if (call && (uintptr_t)call->workspace % {SPACE_ALIGN}) return {upper}_ALIGNMENT;"]
    if held:
        lines += [f"  if ((uintptr_t)packed % {SPACE_ALIGN}) return {upper}_ALIGNMENT;"]
    lines += [f"  if (!buffers) return {upper}_NULL;", f"  for (int n = 0; n < {len(arrays)}; ++n) {{"]
    lines += ["    if (which == 1 && !early[n]) continue;"]
    lines += [f"    if (sizes[n] && !buffers[n]) return {upper}_NULL;"]
    lines += [f"    if (sizes[n] > 1 && (uintptr_t)buffers[n] % sizes[n]) return {upper}_ALIGNMENT;", "  }"]
    if checks := list(checks_of(source, given(source), upper)):
        lines += ["  if (which & 2) {", *(f"  {line}" for line in checks), "  }"]
    if total:
        lines += [
            "  static _Atomic(void *) spare;  /* between calls */",
            "  void *space = call ? call->workspace : NULL, *own = NULL;",
        ]
        lines += ["  if (!space && which != 1) {", "    own = atomic_exchange(&spare, NULL);"]
        lines += [f"    if (!own && !(own = aligned_alloc({SPACE_ALIGN}, {total}))) return {upper}_MEMORY;"]
        lines += ["    space = own;", "  }"]
        lines += [f"  if (!packed) packed = (char *)space + {total - held};"] if held else []
        lines += ["  const int failed = tir_all(call, buffers, space, packed, which);"]
        lines += ["  if (own && (own = atomic_exchange(&spare, own))) free(own);"]
    else:
        lines += ["  const int failed = tir_all(call, buffers, NULL, packed, which);"]
    lines += [f"  return failed == 2 ? {upper}_MEMORY : failed ? {upper}_THREADS : {upper}_OK;", "}", ""]
    lines += [f"int {called}(const tir_call *call, void *const *buffers) {{"]
    lines += ["  return tir_given(call, buffers, NULL, 3);", "}", ""]
    if held:
        lines += [f"int {called}_pack(const tir_call *call, void *const *buffers, void *packed) {{"]
        lines += [f"  return packed ? tir_given(call, buffers, packed, 1) : {upper}_NULL;", "}", ""]
        lines += [f"int {called}_packed(const tir_call *call, void *const *buffers, const void *packed) {{"]
        lines += [f"  return packed ? tir_given(call, buffers, (char *)(uintptr_t)packed, 2) : {upper}_NULL;", "}", ""]
    return "\n".join(lines)


def _checked(p: Param) -> int:
    """Bytes of an element; 0 for an array of none, whose address may be anything."""
    size = 4 if p.role == "scalar" and p.dtype in WIDENED else itemsize(p.dtype)
    return size if prod(p.shape) else 0
