"""What is computed: tensors and the declarations behind them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from tensorir.errors import DeclarationError, DeclarationTypeError, refuse
from tensorir.ir.build import as_expr, cast, converted
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.text import brief
from tensorir.ir.tree import Buffer, Expr, Load, PadLoad, Reduce, Scope, Var
from tensorir.ir.visit import find
from tensorir.shown import Shown, few_lines

_order = itertools.count(1)


def next_order() -> int:
    """Declarations are numbered: arguments come in this order."""
    return next(_order)


@dataclass(eq=False, repr=False)
class Compute(Shown):
    """One ``compute`` call: ``bodies[n]`` defines output n over ``axes``; a body may be a Reduce."""

    name: str
    axes: tuple[Var, ...]
    extents: tuple[int, ...]
    bodies: tuple[Expr, ...]
    outputs: tuple[Tensor, ...] = field(default=())

    def __repr__(self) -> str:
        return few_lines(f"<Compute {'; '.join(t.definition for t in self.outputs)}>")

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors that the bodies read, each once, in order of appearance."""
        found: dict[Tensor, None] = {}
        for body in self.bodies:
            for n in find(body, Expr):
                if isinstance(n, Load | PadLoad):
                    found[n.buffer.origin] = None
        return list(found)


class Tensor(Shown):
    """An array that is given (placeholder, constant) or computed; index it inside ``compute``.

    shape: ints;  dtype: a name such as "float32";  op: the Compute behind it, None when given
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, op: Compute | None = None,
                 data: tuple[Any, ...] | None = None) -> None:  # fmt: skip
        self.name, self.shape, self.dtype, self.op = name, shape, dtype, op
        self.order = next_order()
        scope = Scope.AUTO if op is not None else Scope.CONSTANT if data is not None else Scope.GLOBAL
        sides = tuple(as_expr(n) for n in shape)
        self.buffer = Buffer(name, sides, dtype, scope, data=data, origin=self)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        means = f": {self.definition}" if self.op is not None else ""
        return few_lines(f"Tensor({self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]){means}")

    @property
    def definition(self) -> str:
        """``C[i, j] = sum(A[i, k] * B[k, j], axis=k)``; of what is given, only its name."""
        if self.op is None:
            return self.name
        axes = ", ".join(a.name for a in self.op.axes)
        return f"{self.name}[{axes}] = {brief(self.op.bodies[self.op.outputs.index(self)])}"

    def __getitem__(self, index: Any) -> Expr:
        # what is read from memory may be narrow; the arithmetic of addresses is that of indices
        return Load(self.buffer, tuple(cast(i, "index") for i in self._index(index)), self.dtype)

    def __iter__(self) -> Any:
        raise refuse(DeclarationTypeError, "declare.iterated", f"{self.name} is symbolic: it cannot be iterated",
                     hint="index it with the axes of a compute")  # fmt: skip

    def get(self, *index: Any, fill: Any = 0) -> Expr:
        """The element at ``index``, or ``fill`` where the index lies outside: a padded read."""
        return PadLoad(self.buffer, self._index(index), converted(fill, self.dtype), self.dtype)

    def _index(self, index: Any) -> tuple[Expr, ...]:
        given = index if isinstance(index, tuple) else (index,)
        if len(given) != len(self.shape):
            raise refuse(
                DeclarationError, "declare.rank",
                f"{self.name} has {len(self.shape)} dimensions but is read with {len(given)} indices",
            )  # fmt: skip
        out = []
        for i in given:
            if isinstance(i, slice):
                raise refuse(DeclarationError, "declare.slice", f"{self.name} is read with a slice",
                             hint="index one element with axes; a whole row is a compute over that axis")  # fmt: skip
            e = as_expr(i)
            if DTYPES[e.dtype].kind not in "iu":
                raise refuse(DeclarationError, "declare.index-type", f"{self.name} is indexed with a {e.dtype}",
                             hint="tir.cast(…, 'int32')")  # fmt: skip
            out.append(e)
        return tuple(out)


def has_reduce(e: Expr) -> bool:
    """Whether a reduction occurs anywhere in ``e``."""
    return bool(find(e, Reduce))
