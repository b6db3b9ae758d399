"""OpenCL C vector instructions on float32.

Each has two texts. CPUs read and write vectors through pointers to vector types, which is one instruction; on PoCL
``vloadn`` is three times slower. GPUs, whose unaligned vector accesses may be illegal, use ``vloadn`` and ``vstoren``.
``c += a * b`` is written as such, for the compiler to contract: calling ``fma()`` is ten times slower on PoCL.
"""

from __future__ import annotations

import functools

from tensorir.expr.compute import compute, placeholder, reduce_axis
from tensorir.expr.reducers import sum as sum_
from tensorir.expr.tensor import Tensor
from tensorir.intrin.declare import Intrin, meaning, ship

LANES = (4, 8, 16)
_MEMORY = "OpenCL C 3.0, 6.15.7 (vector data load and store functions)"


def _vector(lanes: int, name: str) -> Tensor:
    return placeholder((lanes,), "float32", name=name)


def _portable(lanes: int, value: str, to: str) -> str:
    """OpenCL text that stores ``value`` by vstoren at pointer ``to``; ``load(x)`` in ``value`` becomes a vector load.

    Sixteen elements go in two halves: ``vload16`` of PoCL 3.0 gives eight right elements and eight wrong ones, and its
    compiler does not survive ``vstore16``.
    """
    n = min(lanes, 8)
    return "\n".join(
        f"vstore{n}({value.replace('load(', f'vload{n}({half}, ')}, {half}, {to});" for half in range(lanes // n)
    )


def copy(lanes: int) -> Intrin:
    """The vector copy ``y[n] = x[n]`` of ``lanes`` elements."""
    x = _vector(lanes, "x")
    y = compute((lanes,), lambda n: x[n], name="y")
    return Intrin(
        name=f"opencl.copy.f32x{lanes}",
        semantics=meaning(y),
        emit={"opencl": _portable(lanes, "load({x})", "{y}"), "opencl.cpu": "{y_vector} = {x_vector};"},
        source=_MEMORY,
    )


def fma(lanes: int) -> Intrin:
    """The vector multiply-add ``c[n] += a[0] * b[n]`` of ``lanes`` elements."""
    a, b = _vector(1, "a"), _vector(lanes, "b")
    c = compute((lanes,), lambda n: a[0] * b[n], name="c")
    return Intrin(
        name=f"opencl.fma.f32x{lanes}",
        semantics=meaning(c, accumulate=True),
        emit={
            "opencl": _portable(lanes, "load({c}) + {a_value} * load({b})", "{c}"),
            "opencl.cpu": "{c_vector} += {a_value} * {b_vector};",
        },
        source=f"OpenCL C 3.0, 6.5 (operators); {_MEMORY}",
    )


def elementwise(name: str, op: str, lanes: int) -> Intrin:
    """The vector operation ``c[n] = a[n] op b[n]`` of ``lanes`` elements.

    name: "add", "sub" or "mul", part of the instruction's name;  op: "+", "-" or "*"
    """
    a, b = _vector(lanes, "a"), _vector(lanes, "b")
    values = {"+": lambda n: a[n] + b[n], "-": lambda n: a[n] - b[n], "*": lambda n: a[n] * b[n]}
    c = compute((lanes,), values[op], name="c", axes=("n",))
    return Intrin(
        name=f"opencl.{name}.f32x{lanes}",
        semantics=meaning(c),
        emit={
            "opencl": _portable(lanes, f"load({{a}}) {op} load({{b}})", "{c}"),
            "opencl.cpu": f"{{c_vector}} = {{a_vector}} {op} {{b_vector}};",
        },
        source=f"OpenCL C 3.0, 6.5 (operators); {_MEMORY}",
    )


def dot() -> Intrin:
    """The dot product ``c[0] += sum over k of a[k] * b[k]`` of four elements."""
    a, b, k = _vector(4, "a"), _vector(4, "b"), reduce_axis(4, "k")
    c = compute((1,), lambda _: sum_(a[k] * b[k], axis=k), name="c")
    return Intrin(
        name="opencl.dot.f32x4",
        semantics=meaning(c, accumulate=True),
        emit={
            "opencl": "{c_value} += dot(vload4(0, {a}), vload4(0, {b}));",
            "opencl.cpu": "{c_value} += dot({a_vector}, {b_vector});",
        },
        source=f"OpenCL C 3.0, 6.15.5 (geometric functions); {_MEMORY}",
    )


@functools.cache
def ship_all() -> None:
    """Register all instructions of this module by their names."""
    for lanes in LANES:
        ship(copy(lanes))
        ship(fma(lanes))
        for name, op in (("add", "+"), ("sub", "-"), ("mul", "*")):
            ship(elementwise(name, op, lanes))
    ship(dot())
