"""Evaluates declarations in NumPy by their definition, without a schedule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tensorir.errors import CheckError, Problem
from tensorir.expr.program import computes_of, dims_of, inputs_of, scalars_of
from tensorir.expr.reducers import BUILT_IN
from tensorir.expr.reread import with_dims
from tensorir.expr.tensor import Compute, Tensor
from tensorir.interp.distinct import scalar, table
from tensorir.interp.numbers import Numbers, numpy_dtype
from tensorir.interp.uses import (
    bitcast_floats,
    column_limits,
    divisors,
    gather_limits,
    masked_gathers,
    masked_range,
    pointer_steps,
    reads_bits,
    shift_amounts,
)
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.extents import told
from tensorir.ir.node import STEP, Node
from tensorir.ir.shared import children_first, steps
from tensorir.ir.structure import place
from tensorir.ir.text import said
from tensorir.ir.tree import (
    Binary,
    Buffer,
    Call,
    Cast,
    Combiner,
    Const,
    Expr,
    Load,
    PadLoad,
    Placed,
    Prefix,
    Reduce,
    Select,
    Unary,
    Var,
)  # fmt: skip
from tensorir.ir.visit import find

SLAB_ELEMENTS = 1 << 21
"""Elements of one temporary: large declarations are evaluated in slabs of their first axis."""


def arguments_of(outputs: Sequence[Tensor]) -> list[Tensor | Var]:
    """Placeholders and scalar parameters that ``outputs`` depend on, in order of declaration."""
    found: list[Tensor | Var] = [*inputs_of(outputs), *scalars_of(outputs)]
    return sorted(found, key=lambda a: a.order)


@np.errstate(all="ignore")
def evaluate(
    outputs: Sequence[Tensor], arrays: Sequence[object], numbers: Numbers | None = None
) -> tuple[np.ndarray, ...]:
    """Values of the outputs for ``arrays`` (inputs and scalars in order of declaration), evaluated by definition in
    NumPy: one array per output. Symbolic dims are read from the shapes of ``arrays``.

    numbers: the arithmetic, whose storage dtypes the results have; None: the device's, with results in the outputs' own
             dtypes
    """
    with_ = numbers or Numbers()
    if dims_of(outputs):
        outputs = with_dims(outputs, _dims_told(outputs, arrays))
    given = arguments_of(outputs)
    values: dict[Any, np.ndarray] = {}
    for a, x in zip(given, arrays, strict=True):
        values[a if isinstance(a, Var) else a.buffer] = with_.inputs(x, a.dtype)
    for op in computes_of(outputs):
        for t in op.inputs:
            if t.buffer.data is not None and t.buffer not in values:
                values[t.buffer] = constant_values(t.buffer, with_)
        values.update(zip((t.buffer for t in op.outputs), _compute(op, values, with_), strict=True))
    if numbers is not None:
        return tuple(values[t.buffer] for t in outputs)
    return tuple(values[t.buffer].astype(numpy_dtype(t.dtype)) for t in outputs)


def _dims_told(outputs: Sequence[Tensor], arrays: Sequence[object]) -> dict[Var, int]:
    """{dim: value} read from the shapes of ``arrays``; for dims that they do not determine, the least allowed value."""
    pairs = [(a, x) for a, x in zip(arguments_of(outputs), arrays, strict=True) if not isinstance(a, Var)]
    found, _ = told((a.name, tuple(map(said, a.shape)), np.asarray(x).shape) for a, x in pairs)
    return {v: found.get(v.name, v.bounds)[0] for v in dims_of(outputs) if v.bounds is not None}


def constant_values(b: Buffer, numbers: Numbers) -> np.ndarray:
    """Array with the contents of a constant in the given arithmetic."""
    flat = np.array([numbers.const(v, b.dtype) for v in b.data or ()], numbers.storage(b.dtype))
    return flat.reshape(b.dims)


def _compute(op: Compute, values: Mapping[Any, np.ndarray], numbers: Numbers) -> list[np.ndarray]:
    if isinstance(op.bodies[0], Reduce) and isinstance(op.bodies[0].part, Prefix):
        return [_scan(op, body, values, numbers) for body in op.bodies]
    if isinstance(op.bodies[0], Reduce) and isinstance(op.bodies[0].part, Placed):
        domain = [int(v.extent or 0) for v in op.bodies[0].axes]
        grid = dict(zip(op.axes, np.ix_(*map(np.arange, op.extents)), strict=True))
        grid |= dict(zip(op.bodies[0].axes, np.ix_(*map(np.arange, domain)), strict=True))
        return [scattered(op.bodies[0], Evaluator(grid, values, numbers), op.extents)]
    reduces = next((b.axes for b in op.bodies if isinstance(b, Reduce)), ())
    inner = math.prod([*op.extents[1:], *(v.extent for v in reduces)])
    rows = op.extents[0] if op.extents else 1
    step = max(1, min(rows, SLAB_ELEMENTS // max(inner, 1)))
    out = [np.zeros(op.extents, numbers.storage(b.dtype)) for b in op.bodies]
    for first in range(0, rows, step):
        part = slice(first, min(rows, first + step))
        grid = _grid(op, reduces, part)
        for target, body in zip(out, op.bodies, strict=True):
            whole = np.broadcast_shapes(*(g.shape for g in grid.values()))
            result = value_of(body, Evaluator(grid, values, numbers), whole, len(op.axes))
            shape = (part.stop - part.start, *op.extents[1:]) if op.extents else ()
            if op.extents:
                target[part] = np.broadcast_to(result, shape)
            else:
                target[...] = result
    return out


def _scan(op: Compute, body: Expr, values: Mapping[Any, np.ndarray], numbers: Numbers) -> np.ndarray:
    assert isinstance(body, Reduce)
    assert isinstance(body.part, Prefix)
    along = place(body.part.at, op.axes)
    axes = [(v, n) for v, n in zip(op.axes, op.extents, strict=True) if v is not body.part.at]
    axes.append((body.axes[0], op.extents[along]))
    out = np.zeros([n for _, n in axes], numbers.storage(body.dtype))
    rows = axes[0][1]
    step = max(1, SLAB_ELEMENTS // max(1, math.prod(out.shape[1:]))) if len(axes) > 1 else max(1, rows)
    for first in range(0, rows, step):
        part = slice(first, min(rows, first + step))
        sides = [np.arange(n)[part] if d == 0 else np.arange(n) for d, (_, n) in enumerate(axes)]
        grid = dict(zip((v for v, _ in axes), np.ix_(*sides), strict=True))
        out[part] = scanned(body, Evaluator(grid, values, numbers), tuple(map(len, sides)))
    return np.moveaxis(out, -1, along)


def scanned(body: Reduce, ev: Evaluator, shape: tuple[int, ...]) -> Any:
    """Return the result array of a scan along the last axis.

    ev: evaluates terms;  shape: extents of all axes in ``ev``
    """
    assert isinstance(body.part, Prefix)
    step = -1 if body.part.reverse else 1
    states = [np.broadcast_to(np.asarray(ev(v)), shape)[..., ::step] for v in body.values]
    first = [np.full((*shape[:-1], 1), ev.n.const(i.value, i.dtype), s.dtype)
             for i, s in zip(body.combiner.identity, states, strict=True)]  # fmt: skip
    states = [np.concatenate([i, s], axis=-1) for i, s in zip(first, states, strict=True)]
    summed = ev.n.running_sums(states[0], body.dtype) if body.combiner.name == "sum" else None
    found = _prefixes(body.combiner, states, ev.n)[body.which] if summed is None else summed
    found = found[..., :-1] if body.part.exclusive else found[..., 1:]
    return ev.n.to_memory(found[..., ::step], body.dtype)


def _prefixes(c: Combiner, states: list[np.ndarray], numbers: Numbers) -> list[np.ndarray]:
    """Inclusive prefix combinations of ``states`` along the last axis: one array per component, in logarithmic
    depth.
    """
    n = states[0].shape[-1]
    if n < 2:
        return states
    pairs = _joined(c, [s[..., 0 : n - 1 : 2] for s in states], [s[..., 1::2] for s in states], numbers)
    odd = _prefixes(c, pairs, numbers)
    even = _joined(c, [s[..., : (n - 1) // 2] for s in odd], [s[..., 2::2] for s in states], numbers)
    out = [np.empty_like(s, dtype=o.dtype) for s, o in zip(states, odd, strict=True)]
    for made, s, o, e in zip(out, states, odd, even, strict=True):
        made[..., :1], made[..., 1::2], made[..., 2::2] = s[..., :1], o, e
    return out


def scattered(body: Reduce, ev: Evaluator, shape: tuple[int, ...]) -> np.ndarray:
    """Return the result array, of ``shape``, of a scatter declaration; targets beyond ``shape`` are clamped into it.

    ev: evaluates targets, terms and initial values over the domain
    """
    assert isinstance(body.part, Placed)
    c, numbers, domain = body.combiner, ev.n, tuple(int(v.extent or 0) for v in body.axes)
    out = np.broadcast_to(np.asarray(ev(body.part.fill)), shape).astype(numbers.storage(body.dtype)).reshape(-1)
    if 0 in domain or not out.size:
        return out.reshape(shape)
    places = [np.clip(np.broadcast_to(np.asarray(ev(i)), domain).reshape(-1), 0, n - 1).astype(np.int64)
              for i, n in zip(body.part.index, shape, strict=True)]  # fmt: skip
    cells = np.ravel_multi_index(tuple(places), shape) if shape else np.zeros(math.prod(domain), np.int64)
    order = np.argsort(cells, kind="stable")
    cells, state = cells[order], np.broadcast_to(np.asarray(ev(body.values[0])), domain).reshape(-1)[order]
    summed = numbers.added_at(out, cells, state, body.dtype) if c.name == "sum" else None
    if summed is not None:
        return np.asarray(numbers.to_memory(summed, body.dtype)).reshape(shape)
    while (again := cells[1:] == cells[:-1]).any():  # neighbours of one cell are joined, in order
        starts = np.flatnonzero(np.concatenate([[True], ~again]))
        rank = np.arange(len(cells)) - np.repeat(starts, np.diff([*starts, len(cells)]))
        first = np.flatnonzero((rank[:-1] % 2 == 0) & again)
        state = np.array(state)
        state[first] = _joined(c, [state[first]], [state[first + 1]], numbers)[0]
        cells, state = cells[rank % 2 == 0], state[rank % 2 == 0]
    out[cells] = _joined(c, [out[cells]], [state], numbers)[0]
    return np.asarray(numbers.to_memory(out, body.dtype)).reshape(shape)


def _joined(c: Combiner, old: Sequence[np.ndarray], new: Sequence[np.ndarray], numbers: Numbers) -> list[np.ndarray]:
    """Components of ``old`` and ``new``, two states, combined elementwise."""
    ev = Evaluator({**dict(zip(c.old, old, strict=True)), **dict(zip(c.new, new, strict=True))}, {}, numbers)
    return [np.broadcast_to(np.asarray(ev(r)), x.shape) for r, x in zip(c.result, old, strict=True)]


def _grid(op: Compute, reduces: Sequence[Var], part: slice) -> dict[Var, np.ndarray]:
    axes = [*op.axes, *reduces]
    sides = [np.arange(n) for n in (*op.extents, *(v.extent for v in reduces))]
    if op.axes:
        sides[0] = sides[0][part]
    rank = len(axes)
    return {
        v: s.reshape([-1 if d == n else 1 for d in range(rank)])
        for n, (v, s) in enumerate(zip(axes, sides, strict=True))
    }


def value_of(body: Expr, ev: Evaluator, shape: tuple[int, ...], rank: int) -> Any:
    """Return the array that ``body`` defines over axes of extents ``shape``; the first ``rank`` axes remain, others are
    reduced.
    """
    numbers = ev.n
    if not isinstance(body, Reduce):
        return numbers.to_memory(ev(body), body.dtype)
    states = [np.broadcast_to(np.asarray(ev(v)), shape) for v in body.values]
    axis = tuple(range(rank, len(shape)))
    if any(shape[a] == 0 for a in axis):
        return np.full(shape[:rank], numbers.const(body.combiner.identity[body.which].value, body.dtype))
    if body.combiner.name == "sum":
        return numbers.to_memory(numbers.sum(states[0], axis, body.dtype), body.dtype)
    terms = math.prod(shape[rank:])
    flat = [s.reshape(*shape[:rank], terms) for s in states]
    if (
        body.combiner.name not in BUILT_IN
    ):  # an identity such as -1e30 is neutral for the data that is meant only: it counts once
        first = [np.full((*shape[:rank], 1), numbers.const(i.value, i.dtype), s.dtype)
                 for i, s in zip(body.combiner.identity, flat, strict=True)]  # fmt: skip
        flat = [np.concatenate([i, s], axis=-1) for i, s in zip(first, flat, strict=True)]
    return numbers.to_memory(_fold(body.combiner, flat, numbers)[body.which], body.dtype)


def _fold(c: Combiner, states: list[np.ndarray], numbers: Numbers) -> list[np.ndarray]:
    """Components of the states combined along the last axis: by halves, or neighbours if ``c`` is not commutative."""
    while states[0].shape[-1] > 1:
        n = states[0].shape[-1]
        half = n // 2
        first, second = (slice(half), slice(half, 2 * half)) if c.commutative else (slice(0, 2 * half, 2),
                                                                                   slice(1, 2 * half, 2))  # fmt: skip
        joined = _joined(c, [s[..., first] for s in states], [s[..., second] for s in states], numbers)
        states = [
            np.concatenate([j, s[..., 2 * half :]], axis=-1) if n % 2 else j
            for j, s in zip(joined, states, strict=True)
        ]
    return [s[..., 0] for s in states]


class Evaluator:
    """Evaluates expressions as whole arrays over the values of axes; common subexpressions are computed once."""

    def __init__(self, env: Mapping[Var, Any], values: Mapping[object, np.ndarray], numbers: Numbers) -> None:
        self.env, self.values, self.n = env, values, numbers
        self.readers: Counter[Node] | None = None  # of the expression that is evaluated, so far
        self.kept: dict[Expr, Any] = {}

    def __call__(self, e: Expr) -> Any:
        if self.readers is None:
            order = children_first([e], lambda n: n.children())
            self.readers = Counter(c for n in order for c in n.children() if c.INNER)
            try:
                for x in steps(e, lambda n: False) if e.height > STEP else ():
                    self.readers[x] += 1
                    self(x)  # type: ignore[arg-type]
                return self._of(e)
            finally:
                self.readers, self.kept = None, {}
        left = self.readers[e] if e.INNER else 1
        if left <= 1:  # an array that nobody asks for again may be large
            return self.kept.pop(e) if e in self.kept else self._of(e)
        self.readers[e] -= 1
        if e not in self.kept:
            self.kept[e] = self._of(e)
        return self.kept[e]

    def _of(self, e: Expr) -> Any:
        match e:
            case Const():
                return self.n.const(e.value, e.dtype)
            case Var():
                return self.env[e] if e in self.env else self.values[e]
            case Binary():
                return self.n.binary(e.op, self(e.a), self(e.b), e.a.dtype)
            case Load():
                return self.read(e.buffer, [self(i) for i in e.index])
            case PadLoad():
                return self._padded(e)
            case Select():
                return np.where(self(e.cond), self(e.a), self(e.b)).astype(self.n.storage(e.dtype), copy=False)
            case Cast():
                return self.n.cast(self(e.a), e.a.dtype, e.dtype)
            case Unary():
                return self.n.unary(e.op, self(e.a), e.dtype)
            case Call():
                return self.n.call(e.fn, [self(a) for a in e.args], e.dtype, e.args[0].dtype)
        raise TypeError(type(e).__name__)

    def read(self, b: Buffer, index: list[Any]) -> Any:
        """Return buffer elements at ``index``, one array per dimension, clamped to the bounds."""
        array = self.values[b]
        # the side of a select that is not taken may be out of range
        at = tuple(np.clip(i, 0, n - 1) for i, n in zip(index, array.shape, strict=True))
        return array[at] if at else array

    def _padded(self, e: PadLoad) -> Any:
        index = [self(i) for i in e.index]
        inside: Any = True
        for i, n in zip(index, e.buffer.dims, strict=True):
            inside = inside & (np.asarray(i) >= 0) & (np.asarray(i) < n)
        if math.prod(e.buffer.dims) == 0:
            return self(e.fill)
        return np.where(inside, self.read(e.buffer, index), self(e.fill))


def random_arguments(
    outputs: Sequence[Tensor],
    seed: int = 0,
    numbers: Numbers | None = None,
    conditions: Iterable[Expr] = (),
    scalar_bits: int = 0,
    count: int | None = None,
) -> list[np.ndarray]:
    """Random inputs for ``outputs``, whose extents are constant, in order of declaration: small whole numbers (or
    elements of ``numbers``), divisors not 0, gather indices in range.

    Indices of padded reads may be -1 and the extent, masked ones may be beyond both. With bit operations, about half of
    all elements of integer inputs have arbitrary bits. Scalars and gather indices are drawn without replacement
    (``interp/distinct.py``); consecutive seeds give different ones.

    conditions:  of the schedule's versions: constants that they compare elements with occur, and their neighbours, so
                 that each version runs
    scalar_bits: significand bits of scalars, at most as many as their types have; 0 for small ones
    count:       number of values for each argument that is no scalar, in place of an array of its shape
    """
    rng = np.random.default_rng(seed)
    with_ = numbers or Numbers()
    limits, strict = gather_limits(outputs), gather_limits(outputs, padded=False)
    divide, masked, pointers = divisors(outputs), masked_gathers(outputs), pointer_steps(outputs)
    bits, amounts, patterned = reads_bits(outputs), shift_amounts(outputs), bitcast_floats(outputs)
    columns = column_limits(outputs)
    compared = _compared(conditions)
    made: list[np.ndarray] = []
    scalars = 0
    for a in arguments_of(outputs):
        shape = () if isinstance(a, Var) else a.shape if count is None else (count,)
        near = compared.get(a, [])
        if not isinstance(a, Var) and a in pointers and count is None:
            x = rng.integers(0, pointers[a].jitter, shape, endpoint=True) + pointers[a].added(shape)
            constants = np.array([], x.dtype)
        elif not isinstance(a, Var) and a in masked:
            x = np.clip(rng.integers(*masked_range(limits[a]), shape), DTYPES[a.dtype].low, DTYPES[a.dtype].high)
            constants = np.array([], x.dtype)
        elif not isinstance(a, Var) and a in limits:  # -1 and the limit: what padded reads find beyond both ends
            x = table(rng, shape, min(limits[a], DTYPES[a.dtype].high + 1), a not in strict, seed)
            for part, limit in columns.get(a, ()) if count is None else ():
                x[part] = table(rng, x[part].shape, min(limit, DTYPES[a.dtype].high + 1), False, seed)
            constants = np.array([n for n in near if 0 <= n < limits[a]], x.dtype)
        else:
            x = with_.random(rng, shape, a.dtype)
            if isinstance(a, Var) and (numbers is None or DTYPES[a.dtype].kind != "f"):
                x = np.asarray(scalar(scalars, a.dtype, seed, scalar_bits), x.dtype)
                scalars += 1
            if bits and a not in divide and DTYPES[a.dtype].kind in "iu":
                x = _with_any_bits(rng, x, a.dtype)
            if a in amounts and DTYPES[a.dtype].kind in "iu":
                some = _amounts(rng, amounts[a], shape, DTYPES[a.dtype].low < 0)
                x = np.where(rng.random(shape) < 0.8, some.astype(x.dtype), x)
            if a in patterned and numbers is None:
                x = np.where(rng.random(shape) < 0.5, rng.standard_normal(shape).astype(x.dtype), x)
            constants = np.array([with_.const(n, a.dtype) for n in near], x.dtype)
        if len(constants):
            x = np.where(rng.random(shape) < 0.7, constants[rng.integers(0, len(constants), shape)], x)
        if a in divide:
            x = np.where(x == 0, 1, x)
        made.append(x.astype(numpy_dtype(a.dtype)) if numbers is None else np.asarray(x))
    return made


def _with_any_bits(rng: np.random.Generator, x: Any, dtype: str) -> Any:
    """Copy of ``x`` with half of its elements, at random, replaced by integers from the whole range of ``dtype``."""
    kind = DTYPES[dtype]
    shape = np.shape(x)
    wild = rng.integers(kind.low, kind.high, shape, np.dtype(dtype), endpoint=True)
    return np.where(rng.random(shape) * 2 < 1, wild, x)


def _amounts(rng: np.random.Generator, bits: int, shape: tuple[int, ...], signed: bool) -> np.ndarray:
    """Random shift counts for types of ``bits`` bits: half arbitrary, half at the limits of the width."""
    ends = np.array([0, 1, bits - 1, bits, bits + 1, *([-1] if signed else [])])
    return np.where(rng.random(shape) < 0.5, ends[rng.integers(0, len(ends), shape)], rng.integers(0, bits, shape))


def _compared(conditions: Iterable[Expr]) -> dict[Tensor | Var, list[int]]:
    """{input: constants with which conditions compare its elements, and the neighbours of these constants}."""
    found: dict[Tensor | Var, list[int]] = {}
    for c in (c for cond in conditions for c in find(cond, Binary)):
        for a, b in ((c.a, c.b), (c.b, c.a)):
            if isinstance(a, Load) and isinstance(b, Const) and a.buffer.origin is not None:
                kind, n = DTYPES[a.dtype], int(b.value)
                near = [x for x in (n - 1, n, n + 1) if kind.kind == "f" or kind.low <= x <= kind.high]
                found.setdefault(a.buffer.origin, []).extend(near)
    return found


class OutputLike(Protocol):
    """Interface of a declared output: name, dtype, shape."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def as_declared(outputs: Sequence[OutputLike], given: object) -> list[Any]:
    """Results of a reference, as new contiguous arrays with the declared types.

    Raises CheckError ``workload.reference`` if shapes differ, ValueError for another number of results.
    """
    made = []
    for t, array in zip(outputs, results_of(given), strict=True):
        kept = np.asarray(array).astype(numpy_dtype(t.dtype), order="C")  # (ascontiguousarray gives a number an axis)
        if kept.shape != t.shape:
            text = f"the reference gives {t.name} the shape {kept.shape}, the declaration {t.shape}"
            raise CheckError(Problem("workload.reference", text))
        made.append(kept)
    return made


def results_of(given: object) -> list[Any]:
    """Results of a call as a list: the items of a tuple or list, else the single result."""
    return list(given) if isinstance(given, tuple | list) else [given]
