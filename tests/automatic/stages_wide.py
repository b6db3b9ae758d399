"""More sorts of stages: places that data say, several results, masks, windows of two axes, pieces, operators of nn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import stages
from stages import EXTENTS, MOST, WORK, Draw, size

import tensorir as tir

AXES = ("i", "j", "k", "l", "m", "n")
FLOATS = ("float32", "float16", "bfloat16", "float64")
AFFINE = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="affine", commutative=False)
MOMENTS = tir.combiner(lambda a, b: (a[0] + b[0], a[1] + b[1]), (0, 0), name="moments")
LARGEST = tir.combiner(lambda a, b: tir.where(tir.abs(a) < tir.abs(b), b, a), 0, name="largest", commutative=False)


class Wide(Draw):
    """Draws stages of all sorts."""

    dtypes = (*stages.DTYPES, "uint8", "int16", "int64", "float64")
    sorts = (
        *Draw.sorts, "gather", "gather", "picked", "position", "joined_sums", "several", "mask", "masked_sum",
        "window2", "pooled", "concat", "piece", "reshape", "repeat", "diagonal", "keepdims", "total", "distance",
        "transposed_product", "transposed_product", "wide_product", "epilogue", "ordered", "pair_scan", "bits",
        "division", "segments", "scatter_cells", "network", "network", "neighbours", "moving",
    )  # fmt: skip

    def made(self, shape: Sequence[Any], cell: Callable[..., Any], told: str) -> Any:
        """A stage of a function of places; of several values the first result, the others are there as well."""
        self.told.append(f"{told} {tuple(shape)}")
        made = tir.compute(tuple(shape), cell, name=self.name("T"), axes=AXES[: len(shape)])
        if not isinstance(made, tuple):
            return made
        self.tensors += made[1:]
        return made[0]

    def whole(self, least: int = 1, most: int = 4, *dtypes: str) -> Any:
        """A tensor of constant extents, of so many axes, of one of these types."""
        fitting = [t for t in self.tensors if least <= t.ndim <= most and t.dtype in (dtypes or (t.dtype,))]
        fitting = [t for t in fitting if all(isinstance(n, int) for n in t.shape)]
        if not fitting or self.rng.random() > 0.9:
            shape = self.constants(self.rng.randint(least, min(most, 3)))
            return self.input(tuple(shape), self.rng.choice(dtypes or self.dtypes))
        x = fitting[-1] if self.rng.random() < 0.7 else self.rng.choice(fitting)
        self.used.add(id(x))
        return x

    def constants(self, rank: int) -> list[int]:
        """Extents of a tensor that is not too large."""
        while size(found := [self.rng.choice(EXTENTS) for _ in range(rank)]) > MOST:
            pass
        return found

    def axis(self, x: Any) -> int:
        return self.rng.randrange(x.ndim)

    def table(self, shape: Sequence[int]) -> Any:
        return self.input(tuple(shape), self.rng.choice(("int32", "int32", "int64", "uint8")))

    # -- places that data say

    def gather(self) -> Any:
        """Rows, or parts of rows, where a table says, or a clamped number that other stages have made."""
        x = self.whole(1, 3)
        axis = self.axis(x)
        how = self.rng.choice(("table", "padded", "computed"))
        shape = list(x.shape)
        shape[axis] = self.rng.choice(EXTENTS)
        if size(shape) > MOST:
            return self.map()
        numbers = [t for t in self.tensors if t.ndim == 1 and t.dtype == "int32" and t.shape[0] == shape[axis]]
        where = self.rng.choice(numbers) if how == "computed" and numbers else self.table(shape[axis : axis + 1])

        def cell(*i: Any) -> Any:
            at = list(i)
            at[axis] = where[i[axis]]
            if how == "computed":
                at[axis] = tir.maximum(tir.minimum(tir.cast(at[axis], "int32"), x.shape[axis] - 1), 0)
            return x.get(*at, fill=3) if how == "padded" else x[tuple(at)]

        return self.made(shape, cell, f"gather {how} along {axis}")

    def picked(self) -> Any:
        """One element of each row."""
        x = self.whole(2, 3)
        where = self.table(x.shape[:-1])
        return self.made(x.shape[:-1], lambda *i: x[(*i, where[i])], "picked of rows")

    def segments(self) -> Any:
        """Sums of segments of rows, which data bound."""
        x = self.whole(2, 2)
        count, most = self.rng.choice((1, 3, 8, 17)), self.rng.choice((1, 4, 9))
        ends = self.input((count + 1,), "int32")
        if x.shape[0] < 2:
            return self.map()
        where = self.input((count * most + 1,), "int32")

        def cell(i: Any, j: Any) -> Any:
            k = tir.reduce_axis(ends[i + 1] - ends[i], most=most)
            return tir.sum(x[where[ends[i] + k], j], axis=k)

        return self.made((count, x.shape[1]), cell, "segments")

    def scatter_cells(self) -> Any:
        """Single cells by every operator, begun from numbers or a tensor."""
        x = self.whole(1, 2)
        op = self.rng.choice(("sum", "min", "max", "prod", "set"))
        rows = self.rng.choice(EXTENTS) if op != "set" else x.shape[0] + self.rng.choice((0, 1, 5))
        where, name = self.input((x.shape[0],), "int32"), self.name("T")
        shape = (rows, *x.shape[1:])
        fill = self.input(shape, x.dtype) if self.rng.random() < 0.4 else self.rng.choice((0, 1, 5))
        self.told.append(f"scatter {op} of {tuple(x.shape)} to {rows}")
        if x.ndim == 1:
            return tir.scatter(shape, x.shape, lambda i: (where[i],), lambda i: x[i], op, fill, name)
        return tir.scatter(shape, x.shape, lambda i, j: (where[i], j), lambda i, j: x[i, j], op, fill, name)

    # -- several values

    def position(self) -> Any:
        x = self.whole(1, 3)
        axis, op = self.axis(x), self.rng.choice((tir.argmax, tir.argmin))
        r = tir.reduce_axis(x.shape[axis], name="r")
        shape = [n for k, n in enumerate(x.shape) if k != axis]
        cell = lambda *i: op(x[(*i[:axis], r, *i[axis:])], axis=r)  # noqa: E731
        return self.made(shape, cell, f"{op.__name__} along {axis}")

    def joined_sums(self) -> Any:
        """Reductions of two values at once, commuting and not."""
        x = self.whole(1, 3)
        axis, op = self.axis(x), self.rng.choice((MOMENTS, AFFINE))
        r = tir.reduce_axis(x.shape[axis], name="r")
        shape = [n for k, n in enumerate(x.shape) if k != axis]

        def cell(*i: Any) -> Any:
            v = x[(*i[:axis], r, *i[axis:])]
            return op(
                (tir.where(v > 0, tir.cast(1, x.dtype), tir.cast(-1, x.dtype)) if op is AFFINE else v * v, v), axis=r
            )

        return self.made(shape, cell, f"{op.name} along {axis}")

    def several(self) -> Any:
        """Two results of each place, as of an optimizer's step."""
        x = self.tensor()
        g = self.input(tuple(x.shape), x.dtype)
        cell = lambda *i: (x[i] * 2 + g[i], x[i] - g[i] * g[i])  # noqa: E731
        return self.made(x.shape, cell, "two maps")

    def pair_scan(self) -> Any:
        x = self.whole(1, 3, *FLOATS, "int32")
        y = self.made(x.shape, lambda *i: tir.where(x[i] > 0, tir.cast(1, x.dtype), tir.cast(0, x.dtype)), "signs")
        self.used.add(id(y))
        axis = self.axis(x)
        self.told.append(f"scan affine along {axis} of {tuple(x.shape)}")
        a, b = tir.scan((y, x), axis=axis, op=AFFINE, reverse=self.rng.random() < 0.3, name=self.name("T"))
        self.tensors.append(a)
        return b

    def ordered(self) -> Any:
        """A reduction that does not commute."""
        x = self.whole(1, 3)
        axis = self.axis(x)
        r = tir.reduce_axis(x.shape[axis], name="r")
        shape = [n for k, n in enumerate(x.shape) if k != axis]
        return self.made(shape, lambda *i: LARGEST(x[(*i[:axis], r, *i[axis:])], axis=r), f"largest along {axis}")

    # -- masks

    def mask(self) -> Any:
        x = self.whole(1, 4)
        how, other = self.rng.choice(("triangle", "data", "parity", "border")), self.input(tuple(x.shape), x.dtype)
        conds = {
            "triangle": lambda i: i[0] <= i[-1] + 1,
            "data": lambda i: other[i] > x[i],
            "parity": lambda i: tir.equal((i[0] + i[-1]) % 2, 0),
            "border": lambda i: (i[-1] >= 1) & (i[-1] < x.shape[-1] - 1),
        }
        return self.made(x.shape, lambda *i: tir.where(conds[how](i), x[i] + 1, other[i]), f"mask {how}")

    def masked_sum(self) -> Any:
        """Of a triangle, or where data say."""
        x = self.whole(2, 3)
        how, op = self.rng.choice(("triangle", "where", "data")), self.rng.choice((tir.sum, tir.max, tir.prod))
        n = x.shape[-1]
        r = tir.reduce_axis(n, name="r")
        limit = self.input(tuple(x.shape[:-1]), "int32")

        def cell(*i: Any) -> Any:
            v = x[(*i, r)]
            if how == "triangle":
                return op(tir.where(r <= i[-1], v, 0), axis=r)
            return op(v, axis=r, where=v > 0 if how == "where" else r < limit[i])

        return self.made(x.shape[:-1], cell, f"{op.__name__} of rows by {how}")

    # -- windows and pieces

    def window2(self) -> Any:
        """Of the last two axes, with weights, steps, gaps and a border."""
        x = self.whole(2, 4)
        h, w = x.shape[-2:]
        taps, step, gap = (
            (self.rng.choice((1, 2, 3)), self.rng.choice((1, 2, 3))),
            self.rng.choice((1, 1, 2, 3)),
            self.rng.choice((1, 1, 2)),
        )
        border = self.rng.choice((0, 1, 2))
        out = [(n + 2 * border - gap * (t - 1) - 1) // step + 1 for n, t in zip((h, w), taps, strict=True)]
        if min(out) < 1 or size((*x.shape[:-2], *out)) * taps[0] * taps[1] > WORK:
            return self.map()
        r, q = (tir.reduce_axis(t, name=n) for t, n in zip(taps, ("r", "q"), strict=True))
        weights = self.input(taps, x.dtype) if self.rng.random() < 0.6 else None
        op = tir.sum if weights is not None else self.rng.choice((tir.max, tir.min, tir.sum))

        def cell(*i: Any) -> Any:
            at = (*i[:-2], i[-2] * step + r * gap - border, i[-1] * step + q * gap - border)
            v = x.get(*at, fill=0) if border else x[at]
            return op(v * weights[r, q] if weights is not None else v, axis=(r, q))

        return self.made(
            (*x.shape[:-2], *out), cell, f"window {taps} of {op.__name__}, step {step}, gap {gap}, border {border}"
        )

    def pooled(self) -> Any:
        """Means of whole windows of the first axis."""
        x = self.whole(1, 3)
        n = self.rng.choice((2, 3, 4))
        if x.shape[0] < n:
            return self.map()
        r = tir.reduce_axis(n, name="r")
        return self.made(
            (x.shape[0] // n, *x.shape[1:]), lambda *i: tir.sum(x[(i[0] * n + r, *i[1:])], axis=r), "pooled"
        )

    def neighbours(self) -> Any:
        """A stencil along one axis."""
        x = self.whole(1, 3)
        axis, fill = self.axis(x), self.rng.choice((0, 1))

        def cell(*i: Any) -> Any:
            near = [x.get(*(v + (d if k == axis else 0) for k, v in enumerate(i)), fill=fill) for d in (-1, 0, 1)]
            return near[0] + near[1] * 2 + near[2]

        return self.made(x.shape, cell, f"neighbours along {axis}")

    def concat(self) -> Any:
        x = self.whole(1, 3)
        axis, more = self.axis(x), self.rng.choice(EXTENTS[:8])
        y = self.input(tuple(more if k == axis else n for k, n in enumerate(x.shape)), x.dtype)
        shape = [n + (more if k == axis else 0) for k, n in enumerate(x.shape)]
        if size(shape) > MOST:
            return self.map()

        def cell(*i: Any) -> Any:
            n = x.shape[axis]
            beyond = tuple(v - n if k == axis else v for k, v in enumerate(i))
            return tir.where(i[axis] < n, x[i], y[beyond])

        return self.made(shape, cell, f"concat along {axis}")

    def piece(self) -> Any:
        """A slice, every second element, or all backwards."""
        x = self.whole(1, 3)
        axis, how = self.axis(x), self.rng.choice(("slice", "second", "back"))
        n = x.shape[axis]
        first = self.rng.randrange(n) if how == "slice" else 0
        count = {"slice": n - first, "second": -(-n // 2), "back": n}[how]
        place = {"slice": lambda v: v + first, "second": lambda v: 2 * v, "back": lambda v: n - 1 - v}[how]
        shape = [count if k == axis else m for k, m in enumerate(x.shape)]
        return self.made(
            shape, lambda *i: x[tuple(place(v) if k == axis else v for k, v in enumerate(i))], f"{how} of {axis}"
        )

    def reshape(self) -> Any:
        """Axes made one, or one made several."""
        x = self.whole(1, 4)
        if x.ndim > 1:
            n = x.shape[-1]
            shape = [*x.shape[:-2], x.shape[-2] * n]
            return self.made(shape, lambda *i: x[(*i[:-1], i[-1] // n, i[-1] % n)], "axes joined")
        n = next((d for d in (8, 3, 2, 1) if x.shape[0] % d == 0), 1)
        return self.made((x.shape[0] // n, n), lambda i, j: x[i * n + j] + 1, "axis split")

    def repeat(self) -> Any:
        x = self.whole(1, 3)
        axis, n = self.axis(x), self.rng.choice((2, 3))
        shape = [m * (n if k == axis else 1) for k, m in enumerate(x.shape)]
        if size(shape) > MOST:
            return self.map()
        return self.made(
            shape, lambda *i: x[tuple(v // n if k == axis else v for k, v in enumerate(i))], f"repeat along {axis}"
        )

    def diagonal(self) -> Any:
        x = self.whole(2, 3)
        n = min(x.shape[-2:])
        return self.made((*x.shape[:-2], n), lambda *i: x[(*i, i[-1])] * 3, "diagonal")

    def moving(self) -> Any:
        """Places that go round."""
        x = self.whole(2, 3)
        n = x.shape[-1]
        return self.made(x.shape, lambda *i: x[(*i[:-1], (i[-1] + i[0]) % n)], "rolled rows")

    # -- reductions

    def keepdims(self) -> Any:
        """Rows over their sums, which have axes of one place."""
        x = self.whole(2, 4)
        r = tir.reduce_axis(x.shape[-1], name="r")
        op = self.rng.choice((tir.sum, tir.max))
        top = self.made((*x.shape[:-1], 1), lambda *i: op(x[(*i[:-1], r + i[-1])], axis=r), f"{op.__name__} of rows")
        self.used.add(id(top))
        self.tensors.append(top)
        return self.made(x.shape, lambda *i: x[i] - top[(*i[:-1], 0)], "less that")

    def total(self) -> Any:
        """All elements in one number, which each of them is compared with."""
        x = self.whole(1, 3)
        over = [tir.reduce_axis(n, name=f"r{k}") for k, n in enumerate(x.shape)]
        top = self.made((), lambda: tir.max(x[tuple(over)], axis=tuple(over)), "max of all")
        self.used.add(id(top))
        self.tensors.append(top)
        return self.made(x.shape, lambda *i: x[i] - top[()], "less that")

    # -- products

    def _product(self, x: Any, told: str, cell: Callable[..., Any], rows: int, n: int, shape: Sequence[int]) -> Any:
        if size(shape) > MOST or size(shape) * n > WORK:
            return self.map()
        return self.made(shape, cell, told)

    def transposed_product(self) -> Any:
        """Operands stored either way, with or without a batch."""
        x = self.whole(2, 3)
        ta, tb = self.rng.random() < 0.6, self.rng.random() < 0.6
        *batch, m, k = x.shape
        m, k = (k, m) if ta else (m, k)
        n, own = self.rng.choice(EXTENTS), self.rng.random() < 0.5
        w = self.input((*(batch if own else ()), *((n, k) if tb else (k, n))), x.dtype)
        r = tir.reduce_axis(k, name="r")

        def cell(*i: Any) -> Any:
            *b, p, q = i
            return tir.sum(
                x[(*b, r, p) if ta else (*b, p, r)] * w[(*(b if own else ()), *((q, r) if tb else (r, q)))], axis=r
            )

        return self._product(x, f"product{' ta' * ta}{' tb' * tb}{' batched' * own}", cell, m, k, (*batch, m, n))

    def wide_product(self) -> Any:
        """Narrow operands, wider sums, and what is done with these."""
        x = self.whole(2, 2, "int8", "float16", "bfloat16", "uint8")
        wide = "int32" if "int" in x.dtype else "float32"
        (m, k), n = x.shape, self.rng.choice(EXTENTS)
        w = self.input((n, k), x.dtype)
        r = tir.reduce_axis(k, name="r")
        cell = lambda p, q: tir.sum(tir.cast(x[p, r], wide) * tir.cast(w[q, r], wide), axis=r)  # noqa: E731
        y = self._product(x, f"wide product of {x.dtype}", cell, m, k, (m, n))
        self.tensors.append(y)
        self.used.add(id(y))
        low, high = (0, 100) if self.rng.random() < 0.5 else (-50, 50)
        to = x.dtype if self.rng.random() < 0.5 else y.dtype
        cut = lambda *i: tir.cast(tir.minimum(tir.maximum(y[i], low), high), to)  # noqa: E731
        return self.made(y.shape, cut, f"cut to {to}")

    def distance(self) -> Any:
        """Squared distances of rows."""
        x = self.whole(2, 2)
        (m, k), n = x.shape, self.rng.choice(EXTENTS)
        w = self.input((n, k), x.dtype)
        r = tir.reduce_axis(k, name="r")
        cell = lambda p, q: tir.sum((x[p, r] - w[q, r]) * (x[p, r] - w[q, r]), axis=r)  # noqa: E731
        return self._product(x, "distance", cell, m, k, (m, n))

    def epilogue(self) -> Any:
        """A product, a bias and a maximum, with a border or a scale for each row."""
        x = self.product()
        if x.ndim < 2:
            return x
        self.tensors.append(x)
        self.used.add(id(x))
        b, c = self.input((x.shape[-1],), x.dtype), self.input((x.shape[-2],), x.dtype)
        return self.made(x.shape, lambda *i: tir.maximum(x[i] * c[i[-2]] + b[i[-1]], 0), "bias and relu")

    def bits(self) -> Any:
        x = self.whole(1, 3, "int32", "uint8", "int16", "int64", "int8")
        how = self.rng.choice(("and", "xor", "shift", "swapped"))
        y = self.input(tuple(x.shape), x.dtype)

        def cell(*i: Any) -> Any:
            if how == "swapped":
                return x[i] ^ (x[i] >> 1)
            return {"and": x[i] & 7, "xor": x[i] ^ y[i], "shift": (x[i] << 2) | (y[i] >> 1)}[how]

        return self.made(x.shape, cell, f"bits {how} of {x.dtype}")

    def division(self) -> Any:
        x = self.whole(1, 3, "int32", "uint8", "int16", "int8")
        y = self.input(tuple(x.shape), x.dtype)
        return self.made(
            x.shape, lambda *i: x[i] // 3 + x[i] % 5 + (y[i] // (x[i] * x[i] + 1)), f"division of {x.dtype}"
        )

    def network(self) -> Any:
        """An operator of nn."""
        how = self.rng.choice(("attention", "layer_norm", "group_norm", "log_softmax", "conv2d", "conv1d", "transpose",
                               "embedding", "cumsum", "max_pool", "avg_pool", "linear", "gelu"))  # fmt: skip
        self.told.append(how)
        return getattr(self, f"_{how}")()

    def _floats(self, rank: int, *low: int) -> Any:
        """A tensor of floats of a rank, with at least so much of each extent."""
        for t in reversed(self.tensors):
            fits = t.ndim == rank and t.dtype in FLOATS and all(isinstance(n, int) for n in t.shape)
            if fits and all(n >= m for n, m in zip(t.shape, low, strict=False)):
                self.used.add(id(t))
                return t
        found = self.constants(rank)
        while any(n < m for n, m in zip(found, low, strict=False)):
            found = self.constants(rank)
        return self.input(tuple(found), self.rng.choice(FLOATS[:3]))

    def _attention(self) -> Any:
        b, h, m, n = (
            self.rng.choice((1, 2)),
            self.rng.choice((1, 2)),
            self.rng.choice(EXTENTS),
            self.rng.choice(EXTENTS),
        )
        width, dtype = self.rng.choice((4, 7, 16)), self.rng.choice(FLOATS[:3])
        q, k, v = (self.input((b, h, s, width), dtype) for s in (m, n, n))
        return tir.nn.attention(q, k, v, causal=self.rng.random() < 0.5, name=self.name("T"))

    def _layer_norm(self) -> Any:
        x = self._floats(2)
        weight = self.input(x.shape[-1:], x.dtype)
        return tir.nn.layer_norm(x, x.shape[-1:], weight, name=self.name("T"))

    def _group_norm(self) -> Any:
        x = self._floats(3)
        return tir.nn.group_norm(x, 2 if x.shape[1] % 2 == 0 else 1, name=self.name("T"))

    def _log_softmax(self) -> Any:
        x = self._floats(2)
        return tir.nn.log_softmax(x, self.axis(x), name=self.name("T"))

    def _gelu(self) -> Any:
        return tir.nn.gelu(self._floats(self.rng.choice((1, 2, 3))), name=self.name("T"))

    def _linear(self) -> Any:
        x = self._floats(2)
        n = self.rng.choice(EXTENTS[:9])
        return tir.nn.linear(x, self.input((n, x.shape[1]), x.dtype), self.input((n,), x.dtype), name=self.name("T"))

    def _conv2d(self) -> Any:
        n, c, h, k = (
            self.rng.choice((1, 2)),
            self.rng.choice((2, 4, 6)),
            self.rng.choice((5, 8, 13)),
            self.rng.choice((2, 4, 8)),
        )
        groups, dtype = self.rng.choice((1, 1, 2)), self.rng.choice(FLOATS[:3])
        x, w = self.input((n, c, h, h), dtype), self.input((k, c // groups, 3, 3), dtype)
        how = dict(stride=self.rng.choice((1, 2)), pad=self.rng.choice((0, 1, 2)), dilation=self.rng.choice((1, 2)))
        return tir.nn.conv2d(x, w, groups=groups, name=self.name("T"), **how)

    def _conv1d(self) -> Any:
        x = self._floats(3, 1, 1, 3)
        k = self.rng.choice((1, 3, 8))
        w = self.input((k, x.shape[1], 3), x.dtype)
        if size((x.shape[0], k, x.shape[2])) * x.shape[1] * 3 > WORK:
            return self.map()
        return tir.nn.conv1d(x, w, stride=self.rng.choice((1, 2)), pad=self.rng.choice((0, 1)), name=self.name("T"))

    def _transpose(self) -> Any:
        c, k, h = self.rng.choice((1, 3, 4)), self.rng.choice((1, 2, 5)), self.rng.choice((3, 5))
        x, w = self.input((1, c, h, h), "float32"), self.input((c, k, 3, 3), "float32")
        return tir.nn.conv_transpose2d(x, w, stride=self.rng.choice((1, 2)), pad=1, name=self.name("T"))

    def _embedding(self) -> Any:
        at, rows = self.input((self.rng.choice(EXTENTS),), "int32"), self.rng.choice(EXTENTS)
        return tir.nn.embedding(at, self.input((rows, self.rng.choice(EXTENTS)), "float16"), name=self.name("T"))

    def _cumsum(self) -> Any:
        x = self._floats(self.rng.choice((1, 2, 3)))
        return tir.nn.cumsum(x, self.axis(x), name=self.name("T"))

    def _max_pool(self) -> Any:
        x = self._floats(4, 1, 1, 3, 3)
        return tir.nn.max_pool2d(x, 3, self.rng.choice((1, 2)), self.rng.choice((0, 1)), name=self.name("T"))

    def _avg_pool(self) -> Any:
        x = self._floats(4, 1, 1, 3, 3)
        return tir.nn.avg_pool2d(x, 2, self.rng.choice((1, 2)), self.rng.choice((0, 1)), name=self.name("T"))
