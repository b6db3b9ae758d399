"""The element types: sizes, kinds and NumPy's promotion (NEP 50), without importing NumPy."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tensorir.errors import DeclarationError, refuse


@dataclass(frozen=True)
class DType:
    """kind: "f" float, "i" signed, "u" unsigned, "b" bool."""

    name: str
    kind: str
    bits: int

    @property
    def low(self) -> int:
        """Smallest value of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def high(self) -> int:
        """Largest value of an integer type."""
        return (1 << (self.bits - (self.kind == "i"))) - 1


DTYPES = {
    d.name: d
    for d in (
        *(DType(f"float{n}", "f", n) for n in (64, 32, 16)),
        DType("bfloat16", "f", 16),
        *(DType(f"int{n}", "i", n) for n in (8, 16, 32, 64)),
        *(DType(f"uint{n}", "u", n) for n in (8, 32)),
        DType("bool", "b", 8),
        # Axes and plain Python integers: takes the type of whatever it meets, int32 when it meets nothing.
        DType("index", "i", 32),
    )
}


def dtype_of(name: object) -> DType:
    """The DType called ``name`` (a string, or anything NumPy-like with a ``name``)."""
    text = name if isinstance(name, str) else str(getattr(name, "name", None) or getattr(name, "__name__", name))
    found = DTYPES.get(text)
    if found is None or text == "index":
        legal = ", ".join(n for n in DTYPES if n != "index")
        raise refuse(DeclarationError, "declare.dtype", f"dtype {text!r} is not known", hint=f"one of {legal}")
    return found


def is_float(name: str) -> bool:
    """Whether the dtype holds fractions."""
    return DTYPES[name].kind == "f"


@functools.cache
def promote(a: str, b: str) -> str:
    """The type of ``a op b``, as NumPy's result_type; ``index`` is weak."""
    if a == b:
        return a
    x, y = DTYPES[a], DTYPES[b]
    if a == "index" or b == "index":
        other = y if a == "index" else x
        return "index" if other.kind == "b" else other.name
    if x.kind == "b" or y.kind == "b":
        return y.name if x.kind == "b" else x.name
    if x.kind == "f" and y.kind == "f":
        if x.bits == y.bits:
            return "float32"  # float16 with bfloat16
        return x.name if x.bits > y.bits else y.name
    if x.kind == "f" or y.kind == "f":
        f, i = (x, y) if x.kind == "f" else (y, x)
        if f.name == "bfloat16":
            return "bfloat16"  # as ml_dtypes
        needed = 16 if i.bits <= 8 else 32 if i.bits <= 16 else 64
        return f.name if f.bits >= needed else f"float{needed}"
    if x.kind == y.kind:
        return x.name if x.bits > y.bits else y.name
    u, i = (x, y) if x.kind == "u" else (y, x)
    return i.name if i.bits > u.bits else f"int{min(64, u.bits * 2)}"
