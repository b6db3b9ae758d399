"""Prints expressions as C text."""

from __future__ import annotations

import math

from tensorir.arith.affine import Arith
from tensorir.codegen.c_text import shuffle
from tensorir.codegen.dialect import Dialect
from tensorir.codegen.helpers import helper_text
from tensorir.codegen.literals import literal
from tensorir.codegen.masks import bits_of, choice
from tensorir.codegen.names import Names
from tensorir.codegen.shuffles import Picked, picked, shuffled
from tensorir.codegen.source import TensorMap
from tensorir.codegen.vector_math import VECTOR_FUNCTIONS, Spelling, vector_function
from tensorir.codegen.whole import (
    absolute_helper,
    extreme_helper,
    narrow,
    narrow_bits,
    power_helper,
    quotient_helper,
    shift_helper,
    upper_half,
)
from tensorir.codegen.wrapping import adds_the_least, may_overflow, wrapped
from tensorir.errors import LoweringError, Problem
from tensorir.ir.build import BITS, COMPARE, SHIFTS, as_int, const
from tensorir.ir.dtypes import DTYPES, WIDENED, rounded
from tensorir.ir.lanes import lanes_of
from tensorir.ir.structure import place
from tensorir.ir.tree import (
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Pack,
    Ramp,
    Scope,
    Select,
    Shuffle,
    Store,
    Unary,
    Var,
)  # fmt: skip
from tensorir.target import Target

_PREC = {
    "?": 1, "or": 2, "and": 3, "|": 4, "^": 5, "&": 6, "==": 7, "!=": 7, "<": 8, "<=": 8, "<<": 9, ">>": 9, "+": 10,
    "-": 10, "*": 11, "/": 11, "//": 11, "%": 11,
}  # fmt: skip
_C = {"//": "/", "and": "&&", "or": "||"}
_WRAPPING = ("+", "-", "*", "/", "<<")
_BIT_OPERATORS = ("&", "|", "<<", ">>")
_CHOICE, _EQUAL, SUM, _PRODUCT, UNARY = 2, 7, 10, 11, 12
"""Precedence of operators; at ``_CHOICE`` all but ``?`` stands as it is."""
HALF_BYTES = 32
"""Bytes of half an AVX-512 register: how wider vectors are passed depends on what a function is compiled for."""
_WORDS = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
"""CUDA types for so many bytes that are moved, not computed with."""


def c_type(dtype: str, dialect: Dialect) -> str:
    """C type of a ``dtype`` value inside expressions (narrow floats compute as float)."""
    return dialect.types["float32" if dtype in WIDENED else dtype]


class Expressions:
    """Printer of one kernel's expressions, ``Expressions(…)(e, outer)``; collects the helpers, alignments and vector
    widths used.

    may_widen: True if the kernel may be compiled for 64-byte registers when it has such vectors
    raw:       register arrays of narrow floats that hold unconverted bits
    """

    def __init__(
        self,
        dialect: Dialect,
        target: Target,
        names: Names,
        arith: Arith,
        *,
        may_widen: bool = False,
        raw: frozenset[Buffer] = frozenset(),
    ) -> None:
        self.d, self.target, self.names, self.arith = dialect, target, names, arith
        self.helpers: dict[str, str] = {}
        self.aligned: dict[Buffer, int] = {}
        self.maps: dict[tuple[Buffer, tuple[tuple[int, ...], ...], int, str], TensorMap] = {}
        self.rounded_tiles: frozenset[Buffer] = frozenset()  # tiles whose elements are rounded as they are copied
        self.may_widen, self.wide, self.raw = may_widen, False, raw
        self.whole = False  # more than the bits of what is printed matters

    def __call__(self, e: Expr, outer: int = 0) -> str:
        if e.INNER and self.wraps(e) and (self.whole or self.d.wraps or adds_the_least(e)):
            return wrapped(self, e)
        match e:
            case Const():
                return literal(e, self.d)
            case Var():
                return self.names.variable(e)
            case Load():
                return self.load(e)
            case Binary():
                return self.binary(e, outer)
            case Select() if lanes_of(e.cond) > 1:
                return f"({choice(e, self)})" if outer > 0 else choice(e, self)
            case Select() if self.d.family == "c" and lanes_of(e) > 1:
                kind = self.vector_type(e.dtype, lanes_of(e))  # C chooses between values of one type
                a, b = (f"({kind}){self.number_of(x, UNARY)}" for x in (e.a, e.b))
                return f"({self(e.cond, _CHOICE)} ? {a} : {b})"
            case Select():
                text = f"{self(e.cond, _CHOICE)} ? {self.number_of(e.a, _CHOICE)} : {self.number_of(e.b, 1)}"
                return f"({text})" if outer > 0 else text
            case Cast():
                return self.cast(e, outer)
            case Unary():
                return self.unary(e)
            case Call() if e.fn == "abs" and DTYPES[e.dtype].kind in "iu":
                return self.absolute(e, outer)
            case Call(fn="bitcast"):
                return self.bitcast(e)
            case Call(fn="mulhi"):
                return self.upper_half(e)
            case Call(fn="power"):
                name, self.helpers[name] = power_helper(e.dtype, self.d)
                return f"{name}({', '.join(self.number_of(a) for a in e.args)})"
            case Call() if self.has_own(e):
                return self.own_function(e)
            case Call():
                return self.narrowed(e, self.call(self.function(e.fn, e.dtype), e, [self(a) for a in e.args]))
            case Broadcast() if word := self.word(e.dtype, e.lanes):
                return "0u" if word.startswith("unsigned") else f"make_{word}({', '.join(['0u'] * int(word[-1]))})"
            case Broadcast() if self.d.has_vectors:
                return self.splat(e.dtype, e.lanes, self(e.value))
            case Broadcast():
                return self.pack(e.dtype, e.lanes, [self(e.value)] * e.lanes)
            case Pack() if self.d.family == "cuda" and e.dtype in WIDENED:
                return self.words(e)
            case Pack():
                return self.picked(e) or self.pack(e.dtype, len(e.items), [self(i) for i in e.items])
            case Shuffle():
                return shuffled(self, e)
        raise LoweringError(Problem("codegen.node", f"{type(e).__name__} cannot be printed as {self.d.name}"))

    def wraps(self, e: Expr) -> bool:
        """True if ``e`` may overflow and is printed as a C operator; shifts by arbitrary counts are printed as helper
        calls.
        """
        if isinstance(e, Binary) and self.shifts_by_any(e):
            return False
        return may_overflow(e, self.d.wraps)

    def need(self, helper: str) -> None:
        """Record that the text uses a helper function or type, so that its definition is emitted."""
        self.helpers[helper] = helper_text(helper, self.d)

    def spelled(self, template: str, **parts: str) -> str:
        """``template`` formatted with ``parts``; records the helper that it calls."""
        text = template.format(**parts)
        if template.startswith("tir_"):
            self.need(text.partition("(")[0])
        return text

    def function(self, name: str, dtype: str) -> str:
        """Name of a math function for float64, else float32 (fast unless ``precise_math``); records helpers."""
        one, two = self.d.functions[name]
        fast = one if self.target.precise_math else self.d.fast.get(name, one)
        found = two if dtype == "float64" else fast
        if found.startswith("tir_"):
            self.need(found)
        return found

    def unary(self, e: Unary) -> str:
        """C text of ``-``, ``~`` or ``!``, keeping two minus signs apart."""
        inner = self.number_of(e.a, UNARY) if e.op == "~" else self(e.a, UNARY)
        sign = "!" if e.op == "not" else e.op
        return self.narrowed(e, f"{sign}({inner})" if inner.startswith(sign) else f"{sign}{inner}")

    def binary(self, e: Binary, outer: int) -> str:
        """C text of a binary operation, as an operator or a function call.

        outer: precedence of the enclosing operator; text that binds less tightly gets parentheses
        """
        if e.op in ("min", "max"):
            return self.minmax(e)
        kind = DTYPES[e.a.dtype].kind
        if e.op in ("//", "%") and e.dtype != "index":
            return self.floor_divide(e, kind)
        if self.shifts_by_any(e):
            return self.shift(e)
        p = _PREC[e.op]
        a, b = e.a, e.b
        vector = self.d.has_vectors and (lanes_of(a) > 1) != isinstance(a, Broadcast)
        left = (
            self.scalar_beside_vector(a, p)
            if isinstance(a, Broadcast) and not isinstance(b, Broadcast) and self.d.has_vectors
            and e.op not in SHIFTS  # whose left side is not widened
            else self.operand(e, a, p)
        )  # fmt: skip
        right = (
            self.scalar_beside_vector(b, p + 1) if isinstance(b, Broadcast) and vector else self.operand(e, b, p + 1)
        )
        text = f"{left} {_C.get(e.op, e.op)} {right}"
        if e.op in _WRAPPING and DTYPES[e.dtype].kind in "iu" and DTYPES[e.dtype].bits < 32 and lanes_of(e) == 1:
            if (e.op == "*" and e.dtype == "uint16") or (e.op == "<<" and self.d.wraps):
                # a product of int may be too large, and what is negative is not shifted
                text = f"({c_type('uint32', self.d)}){self(a, UNARY)} {e.op} {right}"
            return f"({c_type(e.dtype, self.d)})({text})"  # C computes in int: wrap as the narrow type does
        return f"({text})" if p < outer else text

    def operand(self, e: Binary, x: Expr, outer: int) -> str:
        """C text of the operand ``x`` of ``e``, in parentheses also where precedence is commonly misread."""
        if isinstance(x, Binary) and x.op in self.d.warned.get(e.op, ()):
            outer = UNARY
        if e.op in COMPARE or e.op == ">>" or (e.op == "<<" and x is e.b) or e.op == "/":
            return self.number_of(x, outer)
        if e.op in BITS and DTYPES[x.dtype].bits >= 32 and x.dtype != "index":
            return self.number_of(x, UNARY if isinstance(x, Binary) and x.op != e.op else outer)
        mixed = (
            isinstance(x, Binary)
            and x.op != e.op
            and (x.op in _BIT_OPERATORS or (e.op in _BIT_OPERATORS and e.op != "^"))
        )
        return self(x, UNARY if mixed else outer)

    def number_of(self, e: Expr, outer: int = 0) -> str:
        """C text of ``e`` as the exact value of its type; other contexts need its low bits only, with any upper
        bits.
        """
        before, self.whole = self.whole, True
        try:
            return self(e, outer)
        finally:
            self.whole = before

    def shifts_by_any(self, e: Binary) -> bool:
        """True if ``e`` shifts by a count that may be negative or exceed the type's width, as no vector does."""
        return e.op in SHIFTS and lanes_of(e) == 1 and not self.arith.shifts_plainly(e)

    def shift(self, e: Binary) -> str:
        """C text, a helper call, of a shift by a count that may be negative or exceed the type's width."""
        name, self.helpers[name] = shift_helper(e.op, e.dtype, self.d)
        return f"{name}({self.number_of(e.a)}, {self.number_of(e.b)})"

    def bitcast(self, e: Call) -> str:
        """C text that reinterprets a value's bits as another type."""
        x, lanes = e.args[0], lanes_of(e)
        if e.dtype in WIDENED or x.dtype in WIDENED:
            helper, call = narrow_bits(x.dtype, e.dtype, self.d)
            self.need(helper)
            return call.format(self(x))
        if lanes == 1 and self.d.casts:
            return self.spelled(self.d.casts[x.dtype, e.dtype], x=self.number_of(x))
        return self._vector(self.d.reinterpret, e.dtype, lanes, x=self.number_of(x))

    def upper_half(self, e: Call) -> str:
        """C text of the upper half of an integer product's bits."""
        if lanes_of(e) > 1 and self.d.family == "opencl" and DTYPES[e.dtype].bits == 16:  # PoCL's mul_hi is slow
            wide = e.dtype.replace("16", "32")
            product = Binary("*", Cast(e.args[0], wide), Cast(e.args[1], wide), wide)
            return self(
                Cast(Binary(">>", product, Broadcast(const(16, wide), lanes_of(e), wide), wide), e.dtype), UNARY
            )
        if lanes_of(e) > 1:
            name = self.d.upper.get(e.dtype, "mul_hi")
            return self.call(name, e, [self(a) for a in e.args])
        a, b = (self.number_of(x, UNARY) for x in e.args)
        return self.spelled(upper_half(e.dtype, self.d), a=a, b=b)

    def scalar_beside_vector(self, e: Broadcast, outer: int) -> str:
        """C text of a scalar operand that OpenCL broadcasts implicitly, cast if C's int would outrank narrow vector
        elements.
        """
        narrow = DTYPES[e.dtype].kind in "iu" and DTYPES[e.dtype].bits < 32
        if narrow and not isinstance(e.value, Load):
            return f"({c_type(e.dtype, self.d)}){self(e.value, UNARY)}"
        return self(e.value, outer)

    def narrowed(self, e: Expr, text: str) -> str:
        """``text`` cast to the type of ``e`` if that is an integer narrower than 32 bits, as C computes in int; else
        unchanged.
        """
        if DTYPES[e.dtype].kind in "iu" and DTYPES[e.dtype].bits < 32 and lanes_of(e) == 1:
            return f"({c_type(e.dtype, self.d)})({text})"
        return text

    def minmax(self, e: Binary) -> str:
        """C text of a min or max: NaN if either float is NaN (as NumPy); integers by ``? :`` or a function."""
        if DTYPES[e.dtype].kind == "f":
            return self.extreme(e)
        if e.dtype == "index" and self.d.types["index"] == "int":
            return f"{e.op}({self(e.a)}, {self(e.b)})"
        if self.d.family == "opencl" or lanes_of(e) > 1:
            kind = self.vector_type(e.dtype, lanes_of(e))
            return self.call(e.op, e, [f"({kind})({self.number_of(x)})" for x in (e.a, e.b)])
        sign = "<" if e.op == "min" else ">"
        sides = f"{self.number_of(e.a, SUM)} {sign} {self.number_of(e.b, SUM)}"
        return f"({sides} ? {self.number_of(e.a, _CHOICE)} : {self.number_of(e.b, _CHOICE)})"

    def extreme(self, e: Binary) -> str:
        """C text of a min or max of floats: a helper call, of a cheaper helper if an operand is constant."""
        a, b = (e.b, e.a) if _number(e.a) is not None else (e.a, e.b)
        lanes = lanes_of(e)
        size = lanes * bits_of(e.dtype) // 8
        # vectors of 64 bytes: compiled as its callers are
        inline = "" if lanes == 1 else "WIDE_INLINE" if self.may_widen and size > HALF_BYTES else self.d.lane_inline
        name, text = extreme_helper(e.op, self.vector_type(e.dtype, lanes), lanes, _number(b), inline, self.d)
        self.helpers[name] = text
        return f"{name}({self(a)}, {self(b)})"

    def floor_divide(self, e: Binary, kind: str) -> str:
        """C text of ``//`` or ``%`` of data, not indices, rounding toward minus infinity as NumPy.

        kind: "f", "i" or "u"
        """
        if kind != "f" and self.arith.nonzero(e.b) and self.arith.divides_plainly(e):
            return f"({self.number_of(e.a, _PRODUCT)} {_C.get(e.op, e.op)} {self.number_of(e.b, UNARY)})"
        of = "int" if kind == "i" and narrow(e.dtype) else "float32" if e.dtype in WIDENED else e.dtype
        name = f"tir_{'floordiv' if e.op == '//' else 'mod'}_{of}"
        if kind == "f" or self.arith.nonzero(e.b):
            self.need(name)
        else:
            name, self.helpers[name] = quotient_helper(e.op, e.dtype, self.d)
        text = f"{name}({self.number_of(e.a)}, {self.number_of(e.b)})"
        return text if e.op == "%" or isinstance(e.b, Const) else self.narrowed(e, text)  # the least number by -1

    def cast(self, e: Cast, outer: int) -> str:
        """C text of a type conversion: to integers toward zero, to bool by ``!= 0``."""
        lanes = lanes_of(e.a)
        if e.dtype == "bool":
            text = f"{self.number_of(e.a, _EQUAL + 1)} != 0"
            return f"({text})" if outer > _EQUAL else text
        if e.a.dtype == "bool" and lanes == 1 and DTYPES[e.dtype].kind in "iu" and DTYPES[e.dtype].bits <= 32:
            return self(e.a, outer)  # an int in C
        if c_type(e.dtype, self.d) == c_type(e.a.dtype, self.d):
            return self.rounded(e, outer)
        if lanes > 1:
            return self.converted(lanes, e.dtype, e.a.dtype, self(e.a))
        if e.dtype not in WIDENED:
            return f"({c_type(e.dtype, self.d)}){self.number_of(e.a, UNARY)}"
        text = self.in_float(e.a, e.dtype)
        exact = e.a.dtype == "bool" or (DTYPES[e.a.dtype].bits == 8 and DTYPES[e.dtype].bits == 16)
        return text if exact else self.round(e.dtype, text)

    def in_float(self, x: Expr, dtype: str) -> str:
        """C text of ``x`` as a float32 that, rounded to the narrow float type ``dtype``, gives the same as rounding
        ``x`` once.
        """
        kind = DTYPES[x.dtype]
        if kind.kind == "f" and x.dtype != "float64":
            return self(x)
        odd = "float64" if kind.kind == "f" else "uint64" if x.dtype == "uint64" else "int64"
        if kind.kind == "f" or (kind.bits > 16 and dtype == "bfloat16"):
            self.need(f"tir_odd_{odd}")
            return f"tir_odd_{odd}({self.number_of(x)})"
        return f"(float){self.number_of(x, UNARY)}"

    def call(self, function: str, e: Expr, args: list[str]) -> str:
        """C text that calls a library function on scalars or vectors.

        On CPUs, vectors of 64 bytes go in halves: they are passed in one register or in two, depending on what caller
        and callee are compiled for, and a library may be compiled for another processor than the kernel.
        """
        if self.d.family == "c" and lanes_of(e) > 1:
            function = f"tir_each{len(args)}_{function}_{self.vector_type(e.dtype, lanes_of(e))}"
            self.need(function)
        name = self._for_vectors(function, lanes_of(e), e.dtype, [e.dtype] * len(args))
        return f"{name}({', '.join(args)})"

    def has_own(self, e: Call) -> bool:
        """True if the emitted text defines the function of ``e`` itself instead of calling a library."""
        t = self.target
        return e.fn in VECTOR_FUNCTIONS and e.dtype != "float64" and t.kind == "cpu" and not t.precise_math

    def own_function(self, e: Call) -> str:
        """C text that calls a math function whose definition is emitted too."""
        lanes = lanes_of(e)
        self.vector_type("float32", lanes)
        wide = self.may_widen and 4 * lanes > HALF_BYTES  # vectors of 64 bytes: compiled as its callers are
        s = Spelling(self.d, lanes, *(("WIDE_INLINE", "tir_wide") if wide else (self.d.lane_inline, "tir")))
        self.helpers |= vector_function(e.fn, s)
        return f"{s.function(e.fn)}({self(e.args[0])})"

    def absolute(self, e: Call, outer: int) -> str:
        """C text of ``abs`` of integers with ``abs(INT_MIN) == INT_MIN`` as NumPy; OpenCL's returns unsigned."""
        x, kind = e.args[0], DTYPES[e.dtype]
        if kind.kind == "u":
            return self(x, outer)
        if lanes_of(e) > 1:
            return self.call("max", e, [self(x), f"-{self(x, UNARY)}"])
        if kind.bits < 32:
            return self.narrowed(e, f"abs({self(x)})")
        name, self.helpers[name] = absolute_helper(e.dtype, self.d)
        return f"{name}({self.number_of(x)})"

    def converted(self, lanes: int, new: str, old: str, text: str) -> str:
        """C text of the vector ``text`` converted from element type ``old`` to ``new``."""
        name = self._for_vectors("convert", lanes, new, [old])
        return f"{name}({text})" if name.startswith("tir_") else self._vector(self.d.convert, new, lanes, x=text)

    def splat(self, dtype: str, lanes: int, text: str) -> str:
        """C text of a vector with the scalar ``text`` in all lanes."""
        return self._vector(self.d.splat, dtype, lanes, x=text)

    def chosen(self, dtype: str, lanes: int, mask: str, a: str, b: str) -> str:
        """C text of ``mask ? a : b`` per lane, for vectors of element type ``dtype``."""
        return self._vector(self.d.choose, dtype, lanes, mask=mask, a=a, b=b)

    def _vector(self, template: str, dtype: str, lanes: int, **parts: str) -> str:
        kind = self.vector_type(dtype, lanes)
        stem, many = (kind.removesuffix(str(lanes)), str(lanes)) if lanes > 1 else (kind, "")
        return self.spelled(template, type=stem, lanes=many, **parts)

    def _for_vectors(self, function: str, lanes: int, result: str, given: list[str]) -> str:
        """Name of the vector variant of ``function``; that of a helper which calls it on both halves, for vectors of 64
        bytes.
        """
        kinds = [self.vector_type(t, lanes) for t in (result, *given)]
        name = f"convert_{kinds[0]}" if function == "convert" else function
        sizes = [lanes * bits_of(t) // 8 for t in (result, *given)]
        if lanes == 1 or self.d.family != "opencl" or self.target.kind != "cpu" or max(sizes) <= HALF_BYTES:
            return name
        half, args = self._for_vectors(function, lanes // 2, result, given), "abc"[: len(given)]
        low, high = (f"{half}({', '.join(f'{a}.{part}' for a in args)})" for part in ("lo", "hi"))
        taken = ", ".join(f"{kind} {a}" for kind, a in zip(kinds[1:], args, strict=True))
        # compiled as its callers are, or it would have to take its own arguments in halves
        start, inline = ("tir_wide", "WIDE_INLINE") if self.may_widen else ("tir", self.d.lane_inline)
        name = f"{start}_{name}_{kinds[1]}"
        self.helpers[name] = f"{inline} {kinds[0]} {name}({taken}) {{ return ({kinds[0]})({low}, {high}); }}"
        return name

    def rounded(self, e: Cast, outer: int) -> str:
        """C text of the cast ``e`` to a storage-only type such as bfloat16: the value is rounded, the C type stays
        float.

        outer: precedence of the operator around the cast, for parentheses
        """
        if e.dtype in WIDENED and e.dtype != e.a.dtype:
            return self.round(e.dtype, self(e.a))
        return self(e.a, outer)

    def round(self, dtype: str, value: str) -> str:
        """C text of the float ``value`` rounded to ``dtype``, as a float."""
        helpers = [f"tir_round_{dtype}"] if DTYPES[dtype].bits == 16 else [f"tir_to_{dtype}", f"tir_from_{dtype}"]
        for name in helpers:
            self.need(name)
            value = f"{name}({value})"
        return value

    # --- memory

    def held_in_float(self, b: Buffer) -> bool:
        """True if ``b`` is a register array whose elements, of a narrow float type, are declared as float; they are
        rounded before stores.
        """
        return b.dtype in WIDENED and b.scope is Scope.REGISTER and b not in self.raw

    def word(self, dtype: str, lanes: int) -> str:
        """Integer vector type as which CUDA moves a vector that has no native type; "" for vectors with one, and other
        languages.
        """
        if self.d.family != "cuda" or lanes == 1 or (lanes <= 4 and dtype not in WIDENED):
            return ""
        return _WORDS[lanes * DTYPES[dtype].bits // 8]

    def vector_type(self, dtype: str, lanes: int) -> str:
        """C type of a vector, such as ``float4``; the scalar type for 1 lane. CUDA gets an integer type of the same
        size if it has no such vector. Sets ``wide`` for vectors of 64 bytes, if ``may_widen``.
        """
        if word := self.word(dtype, lanes):
            return word
        kind = c_type(dtype, self.d)
        if lanes == 1:
            return kind
        self.wide |= self.may_widen and lanes * bits_of(dtype) // 8 > HALF_BYTES
        name = f"{self.d.vector_names.get(kind, kind)}{lanes}"
        if self.d.family == "c":
            self.need(name)
        return name

    def pack(self, dtype: str, lanes: int, items: list[str]) -> str:
        """C text of a vector built from the scalar texts ``items``."""
        self.vector_type(dtype, lanes)
        kind = c_type(dtype, self.d)
        return self.d.pack.format(type=self.d.vector_names.get(kind, kind), lanes=lanes, items=", ".join(items))

    def load(self, e: Load) -> str:
        """C text of a load of one element or vector, as a value for arithmetic (narrow floats widened to float)."""
        b, i = e.buffer, e.index[0]
        name = self.names.buffer(b)
        if isinstance(i, Ramp):
            if converts := self.halves("load", b, i.lanes):
                return f"{converts}({self.address(name, i.base)})"
            return self.vector_access(b, i, const=True)
        text = f"{name}[{self(i)}]"
        if self.held_in_float(b):
            return text
        if b.dtype == "float16" and b.lanes == 1:
            return self.half_load(b, i)
        if b.dtype in WIDENED and b.lanes == 1:
            self.need(f"tir_from_{b.dtype}")
            return f"tir_from_{b.dtype}({text})"
        return f"({text} != 0)" if b.dtype == "bool" else text

    def rounded_for(self, b: Buffer, value: Expr) -> str:
        """C text of ``value`` as ``store`` takes it for ``b``: an exact float that the store rounds for memory of a
        narrow float type, already rounded for registers that hold it as float.
        """
        if b.dtype not in WIDENED:
            return self(value)
        if not self.held_in_float(b):
            if not isinstance(value, Cast) or value.dtype != b.dtype:
                return self(value)
            return self.in_float(value.a, b.dtype)
        if isinstance(value, Load | Cast | Const | Select):
            return self(value)
        return self.round(b.dtype, self(value))

    def half_load(self, b: Buffer, i: Expr) -> str:
        """C text of a load of one float16, widened to float."""
        name, space = self.names.buffer(b), self.d.space[b.scope]
        return self.spelled(self.d.half_load, name=name, i=self(i), space=space)

    def store(self, b: Buffer, i: Expr, value: str) -> str:
        """C text of a store of one element or vector, without the semicolon."""
        name = self.names.buffer(b)
        if isinstance(i, Ramp):
            return self.vector_store(b, i, value)
        if self.held_in_float(b):
            return f"{name}[{self(i)}] = {value}"
        if b.dtype == "float16" and b.lanes == 1:
            value = self.spelled(self.d.half, x=value)
            return self.d.half_store.format(name=name, i=self(i), space=self.d.space[b.scope], value=value)
        if b.dtype in WIDENED and b.lanes == 1:
            self.need(f"tir_to_{b.dtype}")
            return f"{name}[{self(i)}] = tir_to_{b.dtype}({value})"
        return f"{name}[{self(i)}] = {value}"

    def words(self, e: Pack) -> str:
        """C text of narrow floats, rounded and packed into 32-bit words: two of 16 bits or four of 8 each."""
        each = 32 // DTYPES[e.dtype].bits
        given = [i.a if isinstance(i, Cast) and i.dtype == e.dtype else i for i in e.items]
        plain = [self.in_float(x, e.dtype) for x in given]
        pack = f"tir_pack_{e.dtype if each == 2 else 'bytes'}"
        self.need(pack)
        if each == 4:
            self.need(f"tir_to_{e.dtype}")
            plain = [f"tir_to_{e.dtype}({item})" for item in plain]
        words = [f"{pack}({', '.join(plain[n : n + each])})" for n in range(0, len(plain), each)]
        return words[0] if len(words) == 1 else f"make_{self.word(e.dtype, len(plain))}({', '.join(words)})"

    def as_it_is(self, b: Buffer, i: Expr, value: Load) -> str:
        """C text of an assignment that copies the bits of one narrow float; "" if either array is declared as float, or
        for vectors.
        """
        if b.dtype not in WIDENED or isinstance(i, Ramp) or b.lanes > 1 or value.buffer.lanes > 1:
            return ""
        if self.held_in_float(b) or self.held_in_float(value.buffer):
            return ""
        return f"{self.names.buffer(b)}[{self(i)}] = {self.names.buffer(value.buffer)}[{self(value.index[0])}]"

    def copy_async(self, s: Store) -> str:
        """C text of an asynchronous copy (cp.async) from global to shared memory; it stores 0 if the Store's condition
        is false.
        """
        source, cond = (s.value.a, s.value.cond) if isinstance(s.value, Select) else (s.value, None)
        assert isinstance(source, Load)
        lanes = s.index[0].lanes if isinstance(s.index[0], Ramp) else 1
        size = lanes * DTYPES[s.buffer.dtype].bits // 8
        ends = []
        for b, i in ((s.buffer, s.index[0]), (source.buffer, source.index[0])):
            self.aligned[b] = max(self.aligned.get(b, 0), size)
            ends.append(self.address(self.names.buffer(b), i.base if isinstance(i, Ramp) else i))
        name = f"tir_copy_async_{size}"
        self.need(name)
        there = "" if cond is None else f", {self(cond)}"
        return f"{name}({', '.join(ends)}{there})"

    def vector_access(self, b: Buffer, i: Ramp, *, const: bool) -> str:
        """C text of a vector in memory, an lvalue in CUDA and for CPUs: through an aligned pointer if alignment is
        proved, else through an unaligned type or ``vloadN(…)``.

        Raises LoweringError: ``codegen.vector-storage`` for types without vector loads, ``codegen.unaligned-vector`` if
        CUDA would need an unaligned access. const: the pointer is to const
        """
        if (b.dtype in WIDENED and self.d.family != "cuda") or b.dtype == "bool":
            raise LoweringError(Problem("codegen.vector-storage", f"{b.name} is {b.dtype}: it has no vector loads yet",
                                        hint="do not vectorize accesses to floats of 16 or 8 bits"))  # fmt: skip
        kind, name, space = self.vector_type(b.dtype, i.lanes), self.names.buffer(b), self.d.space[b.scope]
        space = "" if self.d.family == "cuda" else space
        qualifier = "const " if const and b.scope in (Scope.GLOBAL, Scope.CONSTANT) else ""
        size = i.lanes * DTYPES[b.dtype].bits // 8
        anywhere = self.d.any_address and b.scope in (Scope.GLOBAL, Scope.CONSTANT)
        if not anywhere and self.arith.is_multiple(i.base, i.lanes):
            self.aligned[b] = max(self.aligned.get(b, 0), size)
            return f"*({space}{qualifier}{kind} *)({self.address(name, i.base)})"
        if self.d.family == "cuda":
            raise LoweringError(
                Problem("codegen.unaligned-vector", f"a vector access to {b.name} is not proved aligned")
            )
        if self.target.kind == "cpu":
            # one unaligned vector instruction; vloadN of this runtime is three times slower
            self.need(f"{kind}u")
            return f"*({space}{qualifier}{kind}u *)({self.address(name, i.base)})"
        return f"vload{i.lanes}(0, {self.address(name, i.base)})"

    def picked(self, e: Pack) -> str | None:
        """C text of a vector whose lanes come from one or two vector loads and zeros (``picked``); else None."""
        if not self.d.has_vectors or self.target.kind != "cpu":
            return None
        if len(e.items) == 16:
            halves = [self.picked(Pack(part, e.dtype)) for part in (e.items[:8], e.items[8:])]
            return self.joined(e.dtype, 16, [h for h in halves if h]) if all(halves) else None
        if (found := picked(e, self.arith)) is None:
            return None
        if self.d.family == "c":
            return self.shuffled(found, len(e.items))
        items = ["0.0f"] * found.before
        for part in found.parts:
            vector = self.vector_access(found.buffer, Ramp(part.base, part.width, "index"), const=True)
            whole = part.elements == tuple(range(part.width))
            items.append(vector if whole else f"({vector}).s{''.join(map(str, part.elements))}")
        return self.pack(e.dtype, len(e.items), items + ["0.0f"] * found.after)

    def joined(self, dtype: str, lanes: int, halves: list[str]) -> str:
        """C text of a vector concatenated from two halves."""
        if self.d.family != "c":
            return self.pack(dtype, lanes, halves)
        self.vector_type(dtype, lanes)
        return f"__builtin_shufflevector({', '.join([*halves, *map(str, range(lanes))])})"

    def shuffled(self, found: Picked, lanes: int) -> str:
        """C text of a ``Picked`` vector in gcc's and clang's extensions: shuffles of vector loads, then of zeros."""
        widths = {p.width for p in found.parts}
        bases = list(dict.fromkeys(p.base for p in found.parts))
        width = widths.pop()
        vectors = [self.vector_access(found.buffer, Ramp(b, width, "index"), const=True) for b in bases]
        picks = [k + width * place(p.base, bases) for p in found.parts for k in p.elements]
        zeros = found.before + found.after
        if len(vectors) == 2 and zeros:
            vectors = [shuffle(vectors, [*picks, *([picks[-1]] * (lanes - len(picks)))])]
            picks, width = list(range(len(picks))), lanes
        if len(vectors) == 1:
            vectors.append(self.splat(found.buffer.dtype, width, "0.0f"))
        picks = [width] * found.before + picks + [width] * found.after
        return shuffle(vectors, picks)

    def halves(self, verb: str, b: Buffer, lanes: int) -> str:
        """Helper that converts vectors of 16-bit floats between memory and float32 on CPUs; "" for other arrays."""
        if self.target.kind != "cpu" or b.dtype not in ("float16", "bfloat16") or b.scope is not Scope.GLOBAL:
            return ""
        name = f"tir_{verb}_{b.dtype}_{lanes}"
        self.vector_type(b.dtype, lanes)
        self.need(name)
        return name

    def vector_store(self, b: Buffer, i: Ramp, value: str) -> str:
        """C text of a store of a whole vector, without the semicolon."""
        if converts := self.halves("store", b, i.lanes):
            return f"{converts}({self.address(self.names.buffer(b), i.base)}, {value})"
        if self.d.family == "opencl" and self.target.kind != "cpu" and not self.arith.is_multiple(i.base, i.lanes):
            return f"vstore{i.lanes}({value}, 0, {self.address(self.names.buffer(b), i.base)})"
        return f"{self.vector_access(b, i, const=False)} = {value}"

    def address(self, name: str, base: Expr) -> str:
        """C text of a pointer to element ``base`` of the array ``name``."""
        return name if isinstance(base, Const) and as_int(base) == 0 else f"{name} + {self(base, SUM)}"


def _number(e: Expr) -> float | None:
    """The constant value, the same in all lanes, of ``e``; None if ``e`` is not constant, or NaN."""
    e = e.value if isinstance(e, Broadcast) else e
    value = rounded(e.value, e.dtype) if isinstance(e, Const) else math.nan
    return None if math.isnan(value) else value
