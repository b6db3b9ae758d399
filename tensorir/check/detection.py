"""Finds what the emulator cannot judge in a CUDA text: parts that it does not execute, and tests of who compiles it.

Inline assembly runs on a device only, and code between ``#if`` and ``#endif`` may differ there (``parts``). Both are
accepted if identical to text that this package emits, as its tests pin that; all others are reported. Functions called
by the text must be defined in it and exist on the architecture, as the emulator uses its own versions of these parts.

The emulator hides host headers and macros specific to its compiler from the text. The ways that remain to tell it from
a device are in the text, and refused here: names reserved for compilers, unusual directives, redefinitions of the
emulator's names, and tokens pasted together so that a reader does not see them.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorir.codegen.dialect import DIALECTS, FETCH, SHARED_ARENA
from tensorir.codegen.helpers import HELPERS, helper_text
from tensorir.codegen.instructions import guarded
from tensorir.codegen.preamble import left_of
from tensorir.codegen.whole import cuda_extreme
from tensorir.errors import Problem
from tensorir.intrin.hopper import wgmma_of
from tensorir.intrin.intrin import intrinsic, known
from tensorir.target import Target

# --- parts that are not run

_CUDA = DIALECTS["cuda"]
_TYPE = r"(?:void|bool|char|short|int|long|float|double|unsigned|__half2?|T|auto|u?int\d+_t)"
_DEFINED = re.compile(
    rf"\b{_TYPE}\s*[*&]?\s*(tir_\w+)\s*\(|#\s*define\s+(tir_\w+|TIR_\w+)|\bstruct\b[^;{{]*?(Tir\w+)\s*\{{"
    r"|__launch_bounds__\s*\([^()]*\)\s*(tir_\w+)\s*\("  # a kernel of that name
)
_USED = re.compile(r"\b(tir_\w+)\s*(?:<[^<>;(){}]*>\s*)?\(|\b(TIR_SHARED)\s*\(|\b(TirTensorMap)\b")
_NEEDS = (
    (r"tir_(?:wgmma_\w+|registers_\w+|hold|descriptor)", "sm_90a"),
    (r"tir_(?:tma_\w+|barriers_ready|barrier_(?:expect|wait|arrive_at)|\w+_cluster|async_fence|\w+_stores)", "sm_90"),
    (r"tir_stmatrix\w*|TirTensorMap", "sm_90"),
    (r"tir_mma_\w+_(?:e4m3|e5m2)", "sm_89"),
    (r"tir_(?:copy_async_\d+|\w+_copies|barrier_(?:init|arrive)|mma_m16n8k(?:16_(?:b?f16|f16_f16)|32_[su]8|8_(?:3x)?tf32))",
     "sm_80"),
    (r"tir_(?:ldmatrix|mma_)\w+", "sm_75"),
)  # fmt: skip
"""Names of functions, and the least architecture that has what they do (PTX ISA); the first that matches."""

_HELPERS_OF = {
    "tir_tma_im2col": ("tir_tma_load_pixels",),
    "tir_tma_im2col_multicast": ("tir_tma_multicast_pixels",),
    **{f"tir_tma_{how}": tuple(f"tir_tma_{how}_{n}" for n in range(1, 6)) for how in ("load", "store", "multicast")},
}
"""Helpers that are named otherwise than the function that they define."""


@dataclass(frozen=True)
class TextPart:
    """Lines ``first`` to ``last`` of a text: an ``#if … #endif`` group or an assembly statement."""

    first: int
    last: int
    text: str

    def __str__(self) -> str:
        named = _defined(self.text)
        where = f"line {self.first}" if self.first == self.last else f"lines {self.first} to {self.last}"
        return f"{where} ({', '.join(sorted(named))})" if named else where


def not_run(text: str) -> tuple[Problem, ...]:
    """Problems of a CUDA text: ``emulate.not-run`` for device-only parts that this package does not emit and for
    compiler-dependent constructs; ``emulate.unknown-function`` for calls of functions that the emulator lacks.
    """
    lines = text.split("\n")
    for part in parts(text):
        lines[part.first - 1 : part.last] = [""] * (part.last - part.first + 1)
    anywhere = "\n".join(lines)
    unknown = [_unknown(n, name) for n, name in unknown_functions(anywhere)]
    return (*_not_known(text), *unknown, *_told_apart(anywhere))


def not_declared(text: str, log: str) -> tuple[Problem, ...]:
    """Problems ``emulate.unknown-function`` for the functions that a compiler's ``log`` reports as undeclared."""
    code, found = without_quotes(text), list[Problem]()
    for name in dict.fromkeys(re.findall(r"'(\w+)' was not declared|undeclared identifier '(\w+)'", log)):
        if called := re.search(rf"\b{name[0] or name[1]}\s*\(", code):
            found.append(_unknown(code.count("\n", 0, called.start()) + 1, name[0] or name[1]))
    return tuple(found)


def _unknown(line: int, name: str) -> Problem:
    message = f"line {line} of the text calls {name}, which the emulator does not have"
    return Problem(
        "emulate.unknown-function",
        f"{message}; nothing here tells whether it is right",
        hint="check(level='device'), or a function that the emulator has",
    )


def _told_apart(anywhere: str) -> Iterator[Problem]:
    """Yield Problems ``emulate.not-run`` for lines that the emulator and a device may interpret differently.

    anywhere: the text with its conditional parts blanked
    """
    for n, what in ways_to_tell(anywhere):
        yield Problem(
            "emulate.not-run", f"line {n} of the text has {what}", hint="what is meant, in plain words of CUDA"
        )


def _not_known(text: str) -> tuple[Problem, ...]:
    return tuple(
        Problem(
            "emulate.not-run",
            f"{part} of the text: a device runs there what the emulator does not, and it is not what tensorir emits; "
            "nothing here tells whether it is right",
            hint="check(level='device'), or the function as tensorir emits it",
        )
        for part in parts(text)
        if not _known(part.text)
    )


def undefined(text: str, target: Target) -> tuple[Problem, ...]:
    """Problems of a text that the emulator runs and a device would not: ``emulate.undefined`` for helpers that it calls
    without defining (or ``__half`` without its include), ``emulate.lacks`` for those of newer architectures.
    """
    return tuple(_undefined(text, target))


def _undefined(text: str, target: Target) -> Iterator[Problem]:
    code = without_comments(text)
    has, used = _defined(code), {next(filter(None, m)) for m in _USED.findall(code)}
    if missing := sorted(used - has):
        message = f"the text uses {', '.join(missing)} and does not define it"
        yield Problem("emulate.undefined", message, hint="keep the functions in front of the kernels")
    if re.search(r"__half2?\b|__float2half", code) and not re.search(r"#\s*include\s*<cuda_fp16\.h>", text):
        yield Problem("emulate.undefined", "the text uses __half and does not include <cuda_fp16.h>")
    for name in sorted(used & has):
        need = next((need for pattern, need in _NEEDS if re.fullmatch(pattern, name)), "")
        if need and not target.has(need):
            message = f"{name} needs {need}, and the target is {target.arch or target.text}"
            yield Problem("emulate.lacks", message, hint=f'target="cuda -arch={need}"')


def _defined(code: str) -> set[str]:
    return {next(filter(None, m)) for m in _DEFINED.findall(code)}


def parts(text: str) -> list[TextPart]:
    """The text's outermost ``#if`` groups that may differ between emulator and device, and assembly statements outside
    of ``#if`` groups.
    """
    lines, found, open_at, depth = text.splitlines(), [], 0, 0
    code = without_quotes(text)
    own = set(re.findall(r"(?m)^\s*#\s*define\s+(\w+)", code))
    for n, line in enumerate(code.splitlines(), 1):
        if re.match(r"\s*#\s*if", line):
            open_at, depth = (n if not depth else open_at), depth + 1
        elif re.match(r"\s*#\s*endif", line) and depth:
            depth -= 1
            if not depth:
                found.append(TextPart(open_at, n, "\n".join(lines[open_at - 1 : n])))
        elif not depth and re.search(r"\b(?:asm|__asm|__asm__)\b", line):
            found.append(TextPart(n, n, lines[n - 1]))
    if depth:
        found.append(TextPart(open_at, len(lines), "\n".join(lines[open_at - 1 :])))
    return [p for p in found if not _same_anywhere(p.text, own)]


def _same_anywhere(part: str, own: set[str]) -> bool:
    """True if all conditions of the ``#if`` group ``part`` test only macros that the text itself defines, and it has no
    assembly.
    """
    asked = re.findall(r"(?m)^\s*#\s*(?:el)?if(?:n?def)?\b(.*)$", without_comments(part))
    names = {name for line in asked for name in re.findall(r"[A-Za-z_]\w*", line)} - {"defined"}
    anywhere = bool(asked) and names <= own and all(map(is_anyones, names))
    return anywhere and not re.search(r"\b(?:asm|__asm|__asm__)\b", part)


def _known(part: str) -> bool:
    """True if ``part`` consists of groups that this package or registered instructions emit."""
    texts = [whole for name in sorted(_defined(part)) for whole in _texts(name)]
    if part in _inner() or any(part in _groups(whole) for whole in texts):
        return True
    intrinsic("mma.m16n8k16.f16.nn")  # the tables of all are there once one is asked for
    texts += {guarded(i.prelude["cuda"]): None for i in known().values() if "cuda" in i.prelude}
    groups = {g for whole in texts for g in _groups(whole)} | _inner()
    return part in groups or left_of(part, sorted(groups)) == ""


@functools.cache
def _inner() -> frozenset[str]:
    """Conditional parts of emitted function bodies and macros: they define no complete function."""
    texts = [helper_text(name, _CUDA) for name in HELPERS]
    extremes = map(cuda_extreme, ("min", "max"))
    return frozenset(g for whole in (*texts, *extremes, SHARED_ARENA, FETCH) for g in _groups(whole))


@functools.lru_cache(maxsize=1024)
def _groups(whole: str) -> frozenset[str]:
    return frozenset(p.text for p in parts(whole))


def _texts(name: str) -> Iterator[str]:
    """Yield emitted texts that may define the function or type ``name``; those of registered instructions are left
    out.
    """
    for helper in _HELPERS_OF.get(name, (name,)):
        with contextlib.suppress(KeyError):
            yield helper_text(helper, _CUDA)
    if (product := wgmma_of(name)) is not None:
        yield product.prelude["cuda"]


# --- who compiles the text

_FOLDER = Path(__file__).with_name("emulator")
_QUOTED = r'"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
_COMMENT = r"//(?:\\\n|[^\n])*|/\*.*?\*/"
_COMPILERS = re.compile(r"__(?:attribute|builtin|has|int128|inline|asm|volatile|extension)\w*|__[A-Z]\w*")
_ALSO = {"__restrict__", "__VA_ARGS__", "__builtin_assume_aligned", "__builtin_trap"}
_DIRECTIVES = re.compile(
    r"#\s*(?:(?:if|ifdef|ifndef|elif|else|endif|define|undef)\b|pragma unroll\b|include <cuda_fp16\.h>\s*$|$)"
)
_DEVICES = re.compile(r"(?:CUDA|CU_|NV_|cuda|va_)\w*|NULL|assert")
"""Macros that NVRTC defines for every text, besides those that compilers reserve."""


def without_comments(text: str) -> str:
    """``text`` with comments replaced by blanks; string literals and line numbers stay."""
    pattern = re.compile(f"{_QUOTED}|{_COMMENT}", re.DOTALL)
    return pattern.sub(lambda m: m[0] if m[0][0] in "\"'" else re.sub(r"[^\n]", " ", m[0]), text)


def without_quotes(text: str) -> str:
    """``text`` with comments and string literals replaced by blanks; line numbers stay."""
    return re.sub(f"{_QUOTED}|{_COMMENT}", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


def is_anyones(name: str) -> bool:
    """True if a user's text may define the macro ``name``: it is reserved neither for compilers nor for the
    emulator.
    """
    return not (name.startswith(("_", "TIR_", "tir_")) or name in _macros() or _DEVICES.fullmatch(name))


def unknown_functions(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, name) of called functions ``__name`` that CUDA may have and the emulator lacks."""
    for n, line in enumerate(without_quotes(text).split("\n"), 1):
        for name in re.findall(r"\b__[a-z]\w*(?=\s*\()", line):
            if not (name in _macros() or name in _ALSO or _COMPILERS.fullmatch(name)):
                yield n, name


def ways_to_tell(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, description) of constructs that the emulator and a device may interpret differently.

    text: a CUDA text without its ``#if`` groups
    """
    code, own = without_quotes(text), {*_macros(), *(name for _, name in unknown_functions(text))}
    lines, defines = code.split("\n"), False
    for n, line in enumerate(lines, 1):
        directive = re.match(r"\s*(#|%:|\?\?=)", line)
        continued, defines = defines, bool(re.match(r"\s*#\s*define\b", line))
        macro = re.match(r"\s*#\s*(?:define|undef)\s+(\w+)(?:\([^()]*\))?(.*)", line)
        if directive and not _DIRECTIVES.match(line.strip()):
            yield n, f"{line.strip().split()[0]}, a directive that the emulator does not follow"
        elif macro and not is_anyones(macro[1]):
            yield n, f"another meaning for {macro[1]}"
        elif "#" in (macro[2] if macro else line if continued else ""):
            yield n, "words that a macro puts together"
        elif found := next((w for w in re.findall(r"\b_[_A-Z]\w*", line) if w not in own and w not in _ALSO), ""):
            yield n, f"{found}, which the device's compiler defines in its own way"
        elif re.search(r'\bu?8?[uUL]?R"', text.split("\n")[n - 1]):
            yield n, "a raw string"
        defines = (continued or defines) and line.rstrip().endswith("\\")
        if line.endswith("\\") and not defines:
            yield n, "a line that continues in the next one"


@functools.cache
def intrinsics() -> frozenset[str]:
    """Names of CUDA functions that the emulator has for users' texts; emitted texts call none of them."""
    text = without_comments((_FOLDER / "intrinsics.h").read_text())
    made = [n + s for n in re.findall(r"\b(__\w+_)##suffix", text) for s in ("rn", "rz", "ru", "rd")]
    named = re.findall(r"inline [^(]*?\b(__\w+)\(|#define (__\w+)", text, re.IGNORECASE)
    return frozenset(w for w in (*made, *map("".join, named)) if w and not _COMPILERS.fullmatch(w))


@functools.cache
def _macros() -> frozenset[str]:
    """Names of the emulator's macros and of its ``__functions`` that CUDA also has."""
    text = without_comments("".join((_FOLDER / name).read_text() for name in ("cuda.h", "hopper.h", "intrinsics.h")))
    reserved = {w for w in re.findall(r"\b__\w+", text) if not _COMPILERS.fullmatch(w)} | intrinsics()
    return frozenset(reserved.union(re.findall(r"(?m)^\s*#\s*define\s+(\w+)", text)))
