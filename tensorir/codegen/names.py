"""Deterministic, legal C identifiers for the names of a program."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from tensorir.ir.node import Node
from tensorir.ir.tree import Alloc, Buffer, Let, Loop, Role, Seq, Stmt, Var

_WORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while typeof bool
alignas alignof and and_eq asm bitand bitor catch char8_t char16_t char32_t class compl concept const_cast consteval
constexpr constinit co_await co_return co_yield decltype delete dynamic_cast explicit export false friend mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast requires
static_assert static_cast template this thread_local throw true try typeid typename using virtual wchar_t xor xor_eq
half uchar ushort uint ulong kernel global local constant generic pipe main event_t sampler_t queue_t select dot cross
any all barrier printf assert errno isnan isinf isfinite signbit abs clamp mad fma fmaf fmin fmax threadIdx blockIdx
blockDim gridDim warpSize linux unix i386 stdin stdout stderr EOF NULL NAN INFINITY memcpy MAXFLOAT HUGE_VAL HUGE_VALF
HUGE_VALL complex imaginary near far fortran noreturn typeof_unqual block args
"""
_RESERVED = frozenset(_WORDS.split())
_FAMILIES = re.compile(
    r"(float|double|half|int|uint|char|uchar|short|ushort|long|ulong|bool)\d+"  # vectors
    r"|(u?int\d+|u?intptr|size|ptrdiff|image\w+)_t"
    r"|(exp|exp2|log|log2|sqrt|rsqrt|tanh|erf|sin|cos|floor|ceil|round|rint|pow|fabs|min|max)f?"
    r"|(get|convert|as|vload|vstore|native|half|atomic|async)_\w+|(vload|vstore)\w*|mem_fence"
    # macros of limits and constants: M_PI, INT_MAX, CL_VERSION, cl_khr_fp64, CUDART_INF
    r"|(M|CL|CLK|FP|FLT|DBL|LDBL|HALF|S?CHAR|UCHAR|U?SHRT|U?INT\d*|U?L?LONG|SIZE|PTRDIFF|U?INTPTR|U?INTMAX|WCHAR|RAND"
    r"|ATOMIC|CUDA|CUDART|NV)_[A-Z0-9_]+|cl_\w+"
    r"|WIDE|WIDE_INLINE|TENSORIR_\w+|tir_\w+"  # our own
)
"""Names that the dialects take besides the reserved words; a macro under a parameter's name is replaced unseen."""
_COMPILERS_OWN = re.compile("_[A-Z_]")
"""Names that C leaves to compilers and headers: keywords such as _Bool and _Float16, macros such as __LINE__."""


@functools.lru_cache(4096)
def identifier(name: str) -> str:
    """C identifier for ``name``: other characters become ``_`` or their code, reserved words end with an added ``_``.

    Over 60 characters it is cut to 48 and a hash of ``name``. Different names may give one identifier (``Names``).
    """
    out = "".join(
        c if c.isascii() and (c.isalnum() or c == "_") else "_" if c.isascii() else f"_u{ord(c):x}" for c in name
    )
    if not out or out[0].isdigit():
        out = f"_{out}"
    if _COMPILERS_OWN.match(out):
        out = f"x{out}"
    if len(out) > 60:
        import hashlib

        out = f"{out[:48]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    if out in _RESERVED or _FAMILIES.fullmatch(out):
        out += "_"
    return out


def names_of_constants(constants: Iterable[Buffer]) -> dict[Buffer, str]:
    """{constant buffer: C name}, with a suffix that sets it apart from names of functions and kernels."""
    found: dict[Buffer, str] = {}
    for b in constants:
        base, n = identifier(f"{identifier(b.name)[:54]}_const"), 1  # of "_" no keyword __const
        name = base
        while name in found.values():
            name, n = f"{base}_{n}", n + 1
        found[b] = name
    return found


class Names:
    """C identifiers of one kernel, unique in each scope.

    given: names already assigned to buffers
    """

    def __init__(self, taken: list[str], given: Mapping[Buffer, str]) -> None:
        self._of: dict[Node, str] = dict[Node, str](given.items())
        self._inner: set[str] = set()  # of loops: free outside their nest, but not for what is named later
        self._taken = set(taken)

    def buffer(self, b: Buffer) -> str:
        """C name of an array, claimed when first asked for."""
        if b not in self._of:
            self._of[b] = self.claim(identifier(b.name))
        return self._of[b]

    def variable(self, v: Var) -> str:
        """C name of a loop or Let variable, claimed when first asked for; the part of its name after the first dot."""
        if v not in self._of:
            self._of[v] = self._claim(self._short(v), self._taken)
        return self._of[v]

    def nest(self, s: Stmt, above: frozenset[str]) -> None:
        """Assign names to all loops and Lets under ``s``; variables in disjoint scopes may share one.

        above: names used in scopes that enclose ``s``
        """
        if isinstance(s, Loop | Let):
            busy, inside = set(self._taken | above), set(above)
            bound = [s]
            while isinstance(bound[-1], Let) and isinstance(below := bound[-1].body, Let):  # there may be many
                bound.append(below)
            for x in bound:
                if x.var not in self._of:
                    short = self._short(x.var)
                    self._of[x.var] = short if short not in busy else self._claim(identifier(x.var.name), busy)
                self._inner.add(self._of[x.var])
                busy.add(self._of[x.var])
                inside.add(self._of[x.var])
            s, above = bound[-1], frozenset(inside)
        if isinstance(s, Role):
            above = above | {self.variable(v) for v in s.numbers}
        for c in s.children():
            if isinstance(c, Stmt):
                self.nest(c, above)
                above = above | {self._of[v] for v in _declared(c)}  # in the block around it: its siblings see it

    def claim(self, name: str) -> str:
        """Reserve an unused name derived from ``name``, and return it."""
        made = self._claim(name, self._taken | self._inner)
        self._taken.add(made)
        return made

    def _short(self, v: Var) -> str:
        return identifier(v.name.split(".", 1)[-1])

    def _claim(self, name: str, taken: set[str]) -> str:
        base, n = name, 1
        while name in taken:
            name, n = f"{base}_{n}", n + 1
        taken.add(name)
        return name


def _declared(s: Stmt) -> list[Var]:
    """Let variables declared in the same C block as ``s``."""
    found: list[Var] = []
    while isinstance(s, Let | Alloc):
        found += [s.var] if isinstance(s, Let) else []
        s = s.body
    return found + [v for x in s.stmts for v in _declared(x)] if isinstance(s, Seq) else found
