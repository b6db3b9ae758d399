"""Rewrites CUDA text for the host's C++ compiler: same line numbers, arrays at their least alignment, entry functions.

A device may put an array at any multiple of its declared alignment, while hosts tend to align better. Arrays in shared
memory, and address-taken ones of a thread, therefore begin at an odd multiple.
"""

from __future__ import annotations

import functools
import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from tensorir.check.detection import without_quotes
from tensorir.codegen.cfamily import emit
from tensorir.codegen.dialect import DIALECTS
from tensorir.codegen.expressions import c_type
from tensorir.codegen.instructions import GUARD
from tensorir.codegen.source import KernelLaunch, Source
from tensorir.errors import CheckError, refuse
from tensorir.intrin.intrin import Intrin, known
from tensorir.ir.build import as_expr, const
from tensorir.ir.layout import lane_places
from tensorir.ir.tree import Buffer, Region, Scope
from tensorir.lower.kernel import Kernel, Module
from tensorir.target import Target

SHARED_SECTION = "tir_shared"
"""Where the arrays of a kernel in shared memory are; of several kernels, followed by its name."""

_ELEMENT = r"(?:(?:un)?signed )?(?:long long|\w+)"
_SHARED_ARRAY = re.compile(
    rf"(?m)(^\s*|[;{{}}]\s*)(?:__align__\((\d+)\)\s+)?__shared__\s+(?:__align__\((\d+)\)\s+)?({_ELEMENT})\s+(\w+)"
    r"((?:\[[^\]\n]+\])*);"
)
_OWN = re.compile(rf"(?m)^(\s+)(?:__align__\((\d+)\)\s+)?({_ELEMENT})\s+(\w+)(\[\d+\]);")
_SINGLE = re.compile(r"(?m)^(\s+)(float|double)\s+(\w+);")
_HOLD_FLOATS = ("float", "double", "unsigned short", "unsigned char")
_KEPT_WORDS = ("return", "typedef", "static", "extern", "const", "else", "volatile", "struct", "auto")


def section_of(source: Source, k: KernelLaunch) -> str:
    """Name of the linker section for the shared-memory arrays of kernel ``k``: one per kernel, or one for all."""
    return f"{SHARED_SECTION}_{k.name}" if _apart(source) else SHARED_SECTION


def prepared(source: Source) -> str:
    """Return the CUDA text as C++ for the host's compiler."""
    text = re.sub(r"#include[^\n]*", "", source.text)
    text = _with_copies(text)
    text = _SHARED_ARRAY.sub(r"\1TIR_PLACED(\2\3 + 0, \4, \5, \6);", text)
    text = _OWN.sub(lambda m: _own(text, m), text)
    text = _SINGLE.sub(lambda m: m[0] if _is_member(text, m.start()) else f"{m[1]}{m[2]} {m[3]} = TIR_NAN;", text)
    if _apart(source):
        for k in source.kernels:
            if (at := head_of(text, k.name)) is not None:
                first = text.rfind("\n", 0, text.index("__global__", at.start())) + 1
                number = text.count("\n", 0, first) + 1
                lines = (
                    f'#undef TIR_SECTION\n#define TIR_SECTION "{section_of(source, k)}"\n#line {_said(text, number)}\n'
                )
                text = text[:first] + lines + text[first:]
    return marked(text, tuple(_by_warp(source)))


def entries(source: Source) -> str:
    """C++ text of two functions per kernel: ``tir_entry_NAME`` calls it with an array of its arguments' addresses,
    ``tir_told_NAME`` stores its launch bounds and the address ranges of its shared-memory sections.
    """
    lines = [_ARGUMENTS]
    for k in source.kernels:
        maps = {m.name for m in k.maps}
        scalars = {p.name: c_type(p.dtype, DIALECTS["cuda"]) for p in source.params if p.role == "scalar"}
        kinds = ["TirTensorMap" if n in maps else scalars.get(n, "") for n in k.args]
        args = [f"tir_value<{c}>{{a[{n}]}}" if c else f"tir_pointer{{a[{n}]}}" for n, c in enumerate(kinds)]
        lines.append(f'static_assert(tir_parameters({k.name}) == {len(args)}, "as many as the launch gives");')
        entry = f'extern "C" __attribute__((no_sanitize("thread"))) void tir_entry_{k.name}(void** a)'
        lines.append(f"{entry} {{ {k.name}({', '.join(args)}); }}")
        said = (*attribute_of(source.text, k.name, "__launch_bounds__"), "0", "0")
        bounds = [f"(unsigned long long)({x})" for x in said[:2]]
        lines.append(_TELLING_CODE.format(kernel=k.name, section=section_of(source, k), bounds=", ".join(bounds)))
    return "\n".join(lines)


_ARGUMENTS = """
struct tir_pointer { void *p; template <class T> operator T *() const { return (T *)p; } };
// A launch copies the bytes of an argument: it converts nothing, as a call does, and knows no defaults.
template <class T> struct tir_value {
  const void *p;
  operator const T &() const { return *(const T *)p; }
  template <class Other> operator Other() const = delete;
};
template <class... P> constexpr int tir_parameters(void (*)(P...)) { return sizeof...(P); }
"""
_TELLING_CODE = """
extern "C" {{
extern unsigned char __start_{section}[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_{section}[] __attribute__((weak, visibility("hidden")));
extern unsigned char __start_at_{section}[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_at_{section}[] __attribute__((weak, visibility("hidden")));
void tir_told_{kernel}(unsigned long long *to) {{
  const unsigned long long told[] = {{
      {bounds}, (unsigned long long)__start_{section}, (unsigned long long)__stop_{section},
      (unsigned long long)__start_at_{section}, (unsigned long long)__stop_at_{section}}};
  for (int n = 0; n < 6; ++n) to[n] = told[n];
}}
}}
"""


def _with_copies(text: str) -> str:
    """``text`` with a byte-copying member added to structs, so that copies of structs are loads and stores seen by the
    race detector.
    """
    for found in [*re.finditer(r"\b(?:struct|class)\b[^;{}()]*\{", without_quotes(text))][::-1]:
        depth, at = 1, found.end()
        while depth and at < len(text):
            depth += (text[at] == "{") - (text[at] == "}")
            at += 1
        text = f"{text[: at - 1]} [[no_unique_address]] tir_copied tir_copies; {text[at - 1 :]}"
    return text


def _by_warp(source: Source) -> Iterator[str]:
    """Yield the C function names of user-declared instructions that whole warps execute."""
    for name in source.instructions:
        if (declared := known().get(name)) is not None and declared.by_warp:
            yield from re.findall(r"^\s*(\w+)\(", declared.emit.get("cuda", ""))


def is_placed(text: str) -> bool:
    """True if every shared-memory array of a text from ``prepared`` is registered with the emulator."""
    return "__shared__" not in re.sub(r"#define[^\n]*", "", text)


def attribute_of(text: str, kernel: str, attribute: str) -> list[str]:
    """Arguments, as text, of an attribute such as ``__launch_bounds__`` before a kernel's name; [] if absent."""
    head = head_of(text, kernel)
    found = re.search(rf"\b{attribute}\s*\(", head[0]) if head else None
    if head is None or found is None:
        return []
    depth, out = 1, [""]
    for c in head[0][found.end() :]:
        depth += (c in "([{") - (c in ")]}")
        if not depth:
            break
        if c == "," and depth == 1:
            out.append("")
        else:
            out[-1] += c
    return [x.strip() for x in out]


def cluster_of(text: str, kernel: str) -> tuple[int, ...]:
    """Cluster size (x, y, z) from ``__cluster_dims__`` before a kernel's name; (1, 1, 1) without the attribute.

    Raises CheckError ``emulate.cluster`` unless its arguments are literal numbers.
    """
    found = re.search(rf"__cluster_dims__\(([\d,\s]+)\)[^;{{}}]*?\b{re.escape(kernel)}\s*\(", text)
    dims = [int(n) for n in found[1].split(",")] if found else []
    if not found and (said := attribute_of(text, kernel, "__cluster_dims__")):
        message = f"{kernel} has clusters of ({', '.join(said)}): numbers are understood here"
        raise refuse(CheckError, "emulate.cluster", message)
    return (*dims, 1, 1, 1)[:3]


def head_of(text: str, kernel: str) -> re.Match[str] | None:
    """Match of a kernel's declaration, from its attributes to its parameter list; None if ``text`` does not define
    it.
    """
    head = re.compile(rf"[^;{{}}#]*__global__[^;{{}}#]*?\b{re.escape(kernel)}\s*\([^{{}};]*\)\s*(?=\{{)")
    # sought where one may be: a search from every character takes seconds
    starts = (max(text.rfind(c, 0, at.start()) for c in ";{}#") + 1 for at in re.finditer("__global__", text))
    return next((found for at in starts if (found := head.match(text, at))), None)


def _apart(source: Source) -> bool:
    """True if the source has several kernels and declares no shared memory before the first: each kernel then has its
    own.
    """
    if len(source.kernels) < 2:
        return False
    first = min((h.start() for k in source.kernels if (h := head_of(source.text, k.name))), default=0)
    return not re.search(r"__shared__|TIR_SHARED\(", re.sub(r"#define[^\n]*", "", source.text[:first]))


def _own(text: str, m: re.Match[str]) -> str:
    """Replacement text for a thread-local array declaration matched by ``m``: misaligned if the array's address is
    used, as declared if it is only indexed.
    """
    pad, align, kind, name, size = m.groups()
    if kind.split()[0] in _KEPT_WORDS or _is_member(text, m.start()):
        return m[0]
    if not re.search(rf"\b{name}\b(?!\s*\[)", text[m.end() :]):
        return f"{m[0]} TIR_UNSET({kind}, {name});" if kind in _HOLD_FLOATS else m[0]
    return f"{pad}TIR_OWN({align or 0}, {kind}, {name}, {size});"


def _is_member(text: str, at: int) -> bool:
    """True if position ``at`` is inside a struct declaration."""
    return re.search(r"\b(?:struct|union)\b[^;{}()]*\{[^{}]*\Z", text[text.rfind("}", 0, at) + 1 : at]) is not None


def _said(text: str, number: int) -> int:
    """Original line number for line ``number`` of a text with ``#line`` directives."""
    lines = text.splitlines()[: number - 1]
    for n in range(len(lines) - 1, -1, -1):
        if at := re.match(r"#line (\d+)", lines[n]):
            return int(at[1]) + len(lines) - 1 - n
    return number


# CUDA text that tells the emulator by which conditions each thread has come to what a warp does together.
#
# Lanes that come to one instruction by different branches, or in different turns of a loop, do not run it together on a
# device. A place in compiled code does not show that: compilers copy it, and a helper function is one place for all who
# call it. So conditions of branches and loops that enclose such an instruction are handed to ``tir_took``, and so is
# the number of each place in the text that runs one, or calls a function that does. Other conditions, such as guards of
# loads, may differ.

_WARP_FUNCTIONS = r"__shfl\w*|__sync(?:warp|threads)\w*|tir_(?:mma|ldmatrix|stmatrix|wgmma|registers|sync|meet)_\w+"
"""Functions that the lanes of a warp run together."""
_OPENS = {"(": ")", "{": "}", "[": "]"}
_CONDITIONS = re.compile(r"\b(if|while|for|switch)\s*(constexpr\s*)?\(|\bdo\b|\belse\b")
_DEFINES = re.compile(r"(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\n|[^\n])*)")
_TYPE = re.compile(r"\b(?!return\b|else\b|do\b)\w+[ \t]*$")
"""Before the name of a function where it is declared."""
_BODY = re.compile(r"(?:(?:const|noexcept)\s*)*\{")
"""Matches what follows the parameters of a function where it is defined."""
_QUALIFIES = re.compile(r"(?:\w+(?:<[^<>;(){}]*>)?)?::(?:template )?$|(?:\w+|([)\]]))(?:\.|->)(?:template )?$")
"""Before the name of a function where it is called: its namespace or class, or its object, which may be an element or
what a call returns.
"""


@functools.lru_cache(maxsize=16)  # one text is run on several inputs
def marked(text: str, more: tuple[str, ...] = ()) -> str:
    """Return ``text`` with conditions and calls that the lanes of a warp execute together wrapped in calls that report
    them to the emulator; line numbers stay.

    more: names of further functions that the lanes of a warp execute together
    """
    found = _Text(text, more)
    out, done = [], 0
    for at, put in sorted(found.marks(), key=lambda m: m[0]):
        out += [text[done:at], put]
        done = at
    return "".join([*out, text[done:]])


class _Text:
    """A parsed text: positions of matching brackets and of code that a warp's lanes execute together."""

    def __init__(self, text: str, more: tuple[str, ...]) -> None:
        self.text = without_quotes(text)
        self.pairs = dict(_pairs(self.text))
        self.opened = {close: at for at, close in self.pairs.items()}
        self.bodies = list(self._functions())
        self.macros = [(m[1], m.start(2), m.end(2)) for m in _DEFINES.finditer(self.text)]
        self.calls: list[tuple[int, int]] = []
        names, before = {*more}, set[str]()
        while True:  # functions that call such functions
            pattern = "|".join([_WARP_FUNCTIONS, *map(re.escape, sorted(names))])
            self.calls = list(self._called(rf"\b(?:{pattern})\s*(?:<[^<>;(){{}}]*>\s*)?\("))
            self.places = [at for at, _ in self.calls]
            before, names = names, names | {n for n, *body in self.bodies + self.macros if self._encloses(*body)}
            if names == before:
                return

    def marks(self) -> Iterator[tuple[int, str]]:
        """Yield (position, text to insert there), unsorted."""
        for start, end in self.calls:
            yield self._begin(start), "(tir_took(__COUNTER__), "
            yield end, ")"
        handed = [m for name, *m in self.macros if self._handed(name)]  # what these are given is in their conditions
        for m in _CONDITIONS.finditer(self.text):
            if m[1] and not m[2] and (close := self.pairs.get(m.end() - 1)) is not None:
                end = self._after(m.start())
                if self._encloses(m.start(), end) or any(a <= m.start() < b for a, b in handed):
                    yield from self._condition(m[1], m.end(), close)
            elif m[0] == "do" and self._encloses(m.end(), end := self._after(m.end())):
                asked = re.compile(r"\s*while\s*\(").match(self.text, end)
                if asked and asked.end() - 1 in self.pairs:
                    yield from self._condition("while", asked.end(), self.pairs[asked.end() - 1])

    def _condition(self, word: str, first: int, last: int) -> Iterator[tuple[int, str]]:
        ends = list(self._semicolons(first, last))
        if word == "for":
            if len(ends) != 2:
                return
            first, last = ends[0] + 1, ends[1]
        elif ends:
            first = ends[-1] + 1
        inside = self.text[first:last]
        if re.match(r"\s*(?:const\s+)?\w+[\s*&]+\w+\s*(?:=(?!=)|\{)", inside):
            return  # it declares what it asks
        if not inside.strip():
            yield first, "tir_took(true)"
        else:
            yield first, "tir_took(("
            yield last, "))"

    def _encloses(self, start: int, end: int) -> bool:
        n = bisect_left(self.places, start)
        return n < len(self.places) and self.places[n] < end

    def _begin(self, at: int) -> int:
        """Start position of the call whose function name is at ``at``, with the object, class or namespace before the
        name.
        """
        while m := _QUALIFIES.search(self.text, self.text.rfind("\n", 0, at) + 1, at):
            at = m.start()
            if m[1]:  # of a call, or of an element
                opened = self.opened.get(at)
                if opened is None:
                    break
                named = re.compile(r"\w*$").search(self.text, self.text.rfind("\n", 0, opened) + 1, opened)
                at = named.start() if named and named[0] != "return" else opened
        return at

    def _handed(self, macro: str) -> bool:
        """True if an argument of ``macro`` contains code that a warp executes together."""
        used = re.finditer(rf"\b{macro}\s*\(", self.text)
        return any(self._encloses(m.end(), self.pairs.get(m.end() - 1, 0)) for m in used)

    def _called(self, pattern: str) -> Iterator[tuple[int, int]]:
        for m in re.finditer(pattern, self.text):
            close = self.pairs.get(m.end() - 1)
            before = self.text[self.text.rfind("\n", 0, m.start()) + 1 : m.start()]
            macro = re.match(r"\s*#\s*define\s+\w+(?:\([^()]*\))?\s", before)
            if close is None or (not macro and re.match(r"\s*#", before)):
                continue
            if (macro and macro.end() == len(before)) or not (
                _TYPE.search(before) or _BODY.match(self.text, self._skipped(close + 1))
            ):
                yield m.start(), close + 1

    def _functions(self) -> Iterator[tuple[str, int, int]]:
        """Yield (name, start of its body, end of its body) of functions and named lambdas."""
        for m in re.finditer(r"\b(\w+)\s*\(|\b(\w+)\s*=\s*\[[^\[\]]*\]\s*(?:\(|(?=\{))", self.text):
            at = self.pairs.get(m.end() - 1, -1) + 1 if m[0].endswith("(") else m.end()
            body = re.compile(r"\s*(?:mutable\s*|const\s*|noexcept\s*|->\s*[\w*&\s]+)*\{").match(self.text, at)
            name = m[1] or m[2]
            if at and body and body.end() - 1 in self.pairs and name not in ("if", "for", "while", "switch"):
                yield name, body.end(), self.pairs[body.end() - 1]

    def _semicolons(self, at: int, end: int) -> Iterator[int]:
        """Yield positions of semicolons between ``at`` and ``end`` that are not inside of brackets opened there."""
        found = re.compile(r"[;(\[{]")
        while m := found.search(self.text, at, end):
            if m[0] == ";":
                yield m.start()
            at = self.pairs.get(m.start(), m.start()) + 1

    def _after(self, at: int) -> int:
        """Position after the statement that begins at ``at``, its ``else`` included."""
        at = self._skipped(at)
        m = _CONDITIONS.match(self.text, at)
        if self.text[at : at + 1] == "{":
            return self.pairs.get(at, len(self.text)) + 1
        if m and m[1]:
            end = self._after(self.pairs.get(m.end() - 1, len(self.text)) + 1)
            other = re.compile(r"else\b").match(self.text, self._skipped(end)) if m[1] == "if" else None
            return self._after(other.end()) if other else end
        return next(self._semicolons(at, len(self.text)), len(self.text)) + 1

    def _skipped(self, at: int) -> int:
        """First position from ``at`` on that is no blank and not in a preprocessor line."""
        m = re.compile(r"(?:\s|\\\n|(?<=\n)[ \t]*#[^\n]*)*").match(self.text, at)
        return m.end() if m else at


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """Yield (opening position, closing position) of matching brackets ``()``, ``[]`` and ``{}``; unmatched ones are
    skipped.
    """
    open_ones: list[tuple[str, int]] = []
    for m in re.finditer(r"[(){}\[\]]", text):
        if m[0] in _OPENS:
            open_ones.append((_OPENS[m[0]], m.start()))
        elif open_ones and open_ones[-1][0] == m[0]:
            yield open_ones.pop()[1], m.start()


# --- functions of instructions that users declare
#
# The instructions of this package have emulations of their own, written after the manual. One that a user declares with
# a prelude has none, so its function is derived: the lanes' values, or what they point to, become whole tiles, the
# meaning runs on those as a kernel of one thread, and the result is distributed to the lanes. So a wrong schedule
# around the instruction is found, a wrong declaration of it is not: that takes the device.


_TYPES = DIALECTS["cuda"].types


def derived(source: Source) -> tuple[str, str]:
    """(C++ declarations, C++ definitions) of user-declared instructions with a CUDA prelude in ``source``, derived from
    their declared meaning; "" for both if there are none.

    Raises CheckError ``emulate.instruction`` unless an instruction's text is one call of a function on all operands.
    """
    needed = [known()[name] for name in source.instructions if name in known()]
    needed = [i for i in needed if "cuda" in i.prelude and GUARD not in i.prelude["cuda"]]
    made = [_function(i) for i in needed]
    return "\n".join(d for d, _ in made), "\n".join(t for _, t in made)


def _function(intrin: Intrin) -> tuple[str, str]:
    called = re.fullmatch(r"\s*(\w+)\(((?:\{\w+\}(?:, )?)+)\);\s*", intrin.emit.get("cuda", ""))
    names = re.findall(r"\{(\w+)\}", called[2]) if called else []
    operands = {b.name: b for b in intrin.operands}
    if called is None or set(names) != set(operands):
        raise refuse(
            CheckError,
            "emulate.instruction",
            f"the emulator does not know {intrin.name}, and its text is no call of one function on all its operands",
            hint=f"emit={{'cuda': 'my_function({', '.join(f'{{{n}}}' for n in operands)});'}} with a prelude",
        )
    made = {b.name for b in intrin.outputs}
    params = ", ".join(f"{'' if n in made else 'const '}void *{n}_" for n in names)
    head = f'extern "C" void {called[1]}({params})'
    meaning, kernel = _meaning(intrin)
    body = _of_one_warp(intrin) if intrin.by_warp else _by_thread(intrin)
    call = f"  {kernel}({', '.join(f'{b.name}_tile' for b in intrin.operands)});"
    lines = [meaning, f"{head} {{", *body[0], call, *body[1], "}"]
    return f"{head};", "\n".join(lines)


def _meaning(intrin: Intrin) -> tuple[str, str]:
    """(CUDA text without ``#include`` lines, kernel name) of a one-thread kernel that computes an instruction on whole
    tiles.
    """
    tiles = {b: Buffer(b.name, (as_expr(math.prod(b.dims)),), b.dtype, Scope.GLOBAL) for b in intrin.operands}

    def region(b: Buffer) -> Region:
        strides = tuple(math.prod(b.dims[d + 1 :]) for d in range(len(b.dims)))
        return Region(tiles[b], (const(0),), b.dims, strides)

    name = re.sub(r"\W", "_", f"meaning_of_{intrin.name}")
    kernel = Kernel(name, tuple(tiles.values()), (), (), intrin.inline(tuple(map(region, intrin.operands))))
    inputs = tuple(tiles[b] for b in intrin.operands if b not in intrin.outputs)
    outputs = tuple(tiles[b] for b in intrin.outputs)
    module = Module(name, inputs, outputs, (), (), (), (kernel,))
    text = emit(module, Target.parse("cuda")).text
    return re.sub(r"#include[^\n]*", "", text), name


def _by_thread(intrin: Intrin) -> tuple[list[str], list[str]]:
    """Lines before and after the computation of an instruction executed per thread: it works on the operands' own
    memory, whose accesses are reported.
    """
    lines = []
    for b in intrin.operands:
        kind, size = _TYPES[b.dtype], math.prod(b.dims)
        lines.append(f"  {kind} *{b.name}_tile = ({kind} *){b.name}_;")
        lines.append(f"  tir_touch({b.name}_, {size} * sizeof({kind}), {int(b in intrin.outputs)});")
    return lines, []


def _of_one_warp(intrin: Intrin) -> tuple[list[str], list[str]]:
    """Lines before and after the computation of a warp-wide instruction: gather tiles from the lanes' registers;
    scatter results to them.
    """
    fields, mine, tiles, back = [], [], [], []
    for b in intrin.operands:
        kind, name = _TYPES[b.dtype], b.name
        layout = intrin.held.get(b) or intrin.addressed[b]
        places = lane_places(layout, b.dims)
        count = max(r for _, r in places) + 1
        tiles += [*_table(name, "lane", [p for p, _ in places]), *_table(name, "register", [r for _, r in places])]
        tiles.append(f"  {kind} {name}_tile[{len(places)}];")
        if b in intrin.held:
            fields.append(f"{kind} {name}[{count}];")
            mine.append(f"  __builtin_memcpy(mine.{name}, {name}_, sizeof mine.{name});")
        else:
            fields.append(f"const {kind} *{name};")
            mine += [f"  mine.{name} = (const {kind} *){name}_;",
                     f"  tir_touch({name}_, {count} * sizeof({kind}), {int(b in intrin.outputs)});"]  # fmt: skip
        at = f"{name}_tile[e] = all[{name}_lane[e]].{name}[{name}_register[e]]"
        tiles.append(f"  for (int e = 0; e < {len(places)}; e++) {at};")
        if b in intrin.outputs:
            own = f"if ({name}_lane[e] == tir_lane()) (({kind} *){name}_)[{name}_register[e]] = {name}_tile[e]"
            back.append(f"  for (int e = 0; e < {len(places)}; e++) {own};")
    start = [f"  struct Held {{ {' '.join(fields)} }} mine;", *mine,
             "  const Held *all = (const Held *)tir_together(&mine, sizeof mine);", *tiles]  # fmt: skip
    return start, [*back, "  tir_part();"]


def _table(name: str, what: str, values: Sequence[int]) -> list[str]:
    return [f"  static const int {name}_{what}[] = {{{', '.join(map(str, values))}}};"]
