"""The sorts of stages that a definition is drawn from, in awkward shapes."""

from __future__ import annotations

import math
import random
from typing import Any

import tensorir as tir
from tensorir.ir.build import as_expr
from tensorir.ir.dims import most

EXTENTS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 31, 32, 33, 64, 67)
DTYPES = ("float32", "float32", "float32", "int32", "float16", "bfloat16", "int8")
MOST = 1 << 14
"""Elements of the largest tensor."""
WORK = 1 << 19
"""Terms of the largest sum of all cells."""


def size(shape: Any) -> int:
    """How many elements a shape has at most."""
    return math.prod(most(as_expr(n)) for n in shape)


class Draw:
    """Draws stages, each of which reads tensors that are there or new inputs.

    dtypes: of inputs and casts;  sorts: the names of the methods that draw a stage, the likelier ones more than once
    """

    dtypes: tuple[str, ...] = DTYPES
    sorts: tuple[str, ...] = (
        "map", "map", "cast", "transpose", "broadcast", "spread", "reduction", "reduction", "product", "product",
        "scan", "window", "pad", "softmax", "scatter",
    )  # fmt: skip

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tensors: list[Any] = []
        self.used: set[int] = set()
        self.count = 0
        self.told: list[str] = []
        high = self.rng.choice((5, 17, 40))
        self.dim = tir.dim("n", low=self.rng.choice((1, 2, high)), high=high) if self.rng.random() < 0.2 else None

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def shape(self, rank: int) -> tuple[int, ...]:
        while True:
            found: list[Any] = [self.rng.choice(EXTENTS) for _ in range(rank)]
            if self.dim is not None and found:
                found[self.rng.randrange(rank)] = self.dim
            if size(found) <= MOST:
                return tuple(found)

    def input(self, shape: tuple[int, ...], dtype: str) -> Any:
        return tir.placeholder(shape, dtype, name=self.name("A"))

    def tensor(self, least: int = 1) -> Any:
        """A tensor of at least so many axes: the last made, another one, or a new input."""
        fitting = [t for t in self.tensors if t.ndim >= least]
        if fitting and self.rng.random() < 0.9:
            made = fitting[-1] if self.rng.random() < 0.7 else self.rng.choice(fitting)
            self.used.add(id(made))
            return made
        rank = self.rng.randint(least, max(least, 3))
        return self.input(self.shape(rank), self.rng.choice(self.dtypes))

    # -- sorts of stages

    def map(self) -> Any:
        x = self.tensor()
        how = self.rng.choice(("double", "max", "exp", "other", "self"))
        other = self.input(tuple(x.shape), x.dtype) if how == "other" else None

        def cell(*i: Any) -> Any:
            if how == "double":
                return x[i] * 2 + 1
            if how == "max":
                return tir.maximum(x[i], 0)
            if how == "exp" and x.dtype == "float32":
                return tir.exp(tir.minimum(x[i], 1.0))
            if other is not None:
                return x[i] + other[i]
            return x[i] - x[i] * x[i]

        return self.computed(x.shape, cell, f"map {how}")

    def computed(self, shape: Any, cell: Any, told: str) -> Any:
        names = ("i", "j", "k", "l")[: len(shape)]
        call = eval(f"lambda {', '.join(names)}: cell({', '.join(names)})", {"cell": cell})  # axes need names
        self.told.append(f"{told} {tuple(shape)}")
        return tir.compute(tuple(shape), call, name=self.name("T"))

    def cast(self) -> Any:
        x = self.tensor()
        to = self.rng.choice(self.dtypes)
        return self.computed(x.shape, lambda *i: tir.cast(x[i], to), f"cast {x.dtype} to {to}")

    def transpose(self) -> Any:
        x = self.tensor(2)
        order = list(range(x.ndim))
        self.rng.shuffle(order)
        shape = [x.shape[k] for k in order]
        return self.computed(shape, lambda *i: x[tuple(i[order.index(k)] for k in range(x.ndim))], f"transpose {order}")

    def broadcast(self) -> Any:
        x = self.tensor()
        kept = self.rng.randrange(x.ndim)
        v = self.input((x.shape[kept],), x.dtype)
        return self.computed(x.shape, lambda *i: x[i] + v[i[kept]], f"broadcast along {kept}")

    def spread(self) -> Any:
        """One more axis."""
        x = self.tensor()
        extent = self.rng.choice(EXTENTS)
        if x.ndim > 3 or size(x.shape) * extent > MOST:
            return self.map()
        return self.computed((extent, *x.shape), lambda *i: x[i[1:]] * 2, "spread")

    def reduction(self) -> Any:
        x = self.tensor()
        axes = [k for k in range(x.ndim) if self.rng.random() < 0.5] or [self.rng.randrange(x.ndim)]
        op = self.rng.choice((tir.sum, tir.sum, tir.max, tir.min))
        left = [k for k in range(x.ndim) if k not in axes]
        over = {k: tir.reduce_axis(x.shape[k], name=f"r{k}") for k in axes}

        def cell(*i: Any) -> Any:
            own = dict(zip(left, i, strict=True))
            return op(x[tuple(over.get(k, own.get(k)) for k in range(x.ndim))], axis=tuple(over.values()))

        return self.computed([x.shape[k] for k in left], cell, f"{op.__name__} over {axes}")

    def product(self) -> Any:
        x = self.tensor(2)
        *rows, m, k = x.shape
        n = self.rng.choice(EXTENTS)
        if size((*rows, m, n)) > MOST or size((*rows, m, n, k)) > WORK:
            return self.map()
        w = self.input((k, n), x.dtype)
        r = tir.reduce_axis(k, name="r")
        return self.computed((*rows, m, n), lambda *i: tir.sum(x[(*i[:-1], r)] * w[r, i[-1]], axis=r), "product")

    def scan(self) -> Any:
        x = self.tensor()
        axis, op = self.rng.randrange(x.ndim), self.rng.choice(("sum", "max"))
        exclusive, reverse = self.rng.random() < 0.3, self.rng.random() < 0.3
        if op == "max" and exclusive:
            op = "sum"
        self.told.append(f"scan {op} along {axis} of {tuple(x.shape)}")
        return tir.scan(x, axis=axis, op=op, exclusive=exclusive, reverse=reverse, name=self.name("T"))

    def window(self) -> Any:
        """Of a padded tensor, or of the places where it is whole."""
        x = self.tensor()
        axis = self.rng.randrange(x.ndim)
        r = tir.reduce_axis(min(3, most(as_expr(x.shape[axis]))), name="r")
        op = self.rng.choice((tir.sum, tir.max))
        step = self.rng.choice((1, 2))
        shape = list(x.shape)
        shape[axis] = -(-shape[axis] // step)

        def cell(*i: Any) -> Any:
            at = list(i)
            at[axis] = at[axis] * step + r - 1
            return op(x.get(*at, fill=0), axis=r)

        return self.computed(shape, cell, f"window of {op.__name__} along {axis}, step {step}")

    def pad(self) -> Any:
        x = self.tensor()
        shape = [n + 2 for n in x.shape]
        return self.computed(shape, lambda *i: x.get(*(v - 1 for v in i), fill=0), "pad")

    def softmax(self) -> Any:
        """Of rows; the stages of one."""
        x = self.tensor(2)
        if x.dtype != "float32":
            return self.reduction()
        n = x.shape[-1]
        r, q = tir.reduce_axis(n, name="r"), tir.reduce_axis(n, name="q")
        top = self.computed(x.shape[:-1], lambda *i: tir.max(x[(*i, r)], axis=r), "max of rows")
        e = self.computed(x.shape, lambda *i: tir.exp(x[i] - top[i[:-1]]), "exp")
        total = self.computed(x.shape[:-1], lambda *i: tir.sum(e[(*i, q)], axis=q), "sum of rows")
        return self.computed(x.shape, lambda *i: e[i] / total[i[:-1]], "softmax")

    def scatter(self) -> Any:
        """Rows added where a table of indices says."""
        x = self.tensor(2)
        if x.ndim != 2 or not all(isinstance(n, int) for n in x.shape):
            return self.map()
        rows = self.rng.choice(EXTENTS)
        where = self.input((x.shape[0],), "int32")
        self.told.append(f"scatter of {tuple(x.shape)} to {rows} rows")
        op, name = self.rng.choice(("sum", "max")), self.name("T")
        return tir.scatter((rows, x.shape[1]), x.shape, lambda i, j: (where[i], j), lambda i, j: x[i, j], op, 0, name)
