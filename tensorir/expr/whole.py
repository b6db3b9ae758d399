"""Whole-tensor operations with NumPy semantics (operators, functions, methods), each as a compute.

Results have the shapes and types of NumPy's; they are declarations like any other, inlined or scheduled by their names
("add", "matmul", "sum" …). Positions (argmax) are int32, as in ``tir.argmax``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_bool, need_int, need_slice, shown, wrong
from tensorir.expr import reducers
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import cast, no_constant
from tensorir.ir.dims import dims_in, same_extent
from tensorir.ir.dtypes import DTYPES, dtype_of, is_float
from tensorir.ir.elements import ELEMENTS, element
from tensorir.ir.operators import no_function, too_many
from tensorir.ir.text import show
from tensorir.ir.tree import Expr, Var
from tensorir.ir.visit import find

Index = tuple[Expr, ...]


def made(name: str, args: tuple[object, ...], options: dict[str, object]) -> Any:
    """Result of NumPy's or torch's function ``name`` for these arguments, at least one of which is a tensor.

    Raises DeclarationError (``declare.function`` for a function without counterpart here, ``declare.broadcast``,
    ``matmul.shape``).
    """
    of_arrays = WHOLE_FUNCTIONS.get(name)
    if of_arrays is not None and not (name in ELEMENTS and len(args) > 1 and isinstance(args[1], Tensor)):
        try:
            return of_arrays(*args, **options)
        except TypeError as e:
            if isinstance(e, DeclarationError) or e.__traceback__ is None or e.__traceback__.tb_next is not None:
                raise
            raise too_many(name, args, options) from None
    if name not in ELEMENTS:
        raise no_function(name, "function", name)
    return elementwise(lambda *given: element(name, given, options), args, name)


Tensor._of_whole = answers()(made)


def elementwise(function: Callable[..., object], args: Sequence[object], name: str) -> Any:
    """A computed tensor: ``function`` applied to elements, over the broadcast shape of the tensors among ``args``.

    Next to an element (an expression of axes) tensors of rank 0 are read, and the result is an expression; others raise
    DeclarationError ``declare.whole``. Shapes that do not fit raise ``declare.broadcast``.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    shape = broadcast([t.shape for t in tensors])
    for a in args:
        if isinstance(a, Expr) and (axes := [v.name for v in find(a, Var) if not v.order]):
            t = max(tensors, key=lambda t: t.ndim)
            if not t.ndim:  # one number, next to an element
                return function(*(b[()] if isinstance(b, Tensor) else b for b in args))
            message = f"{t.name} is a whole tensor of shape {t.shape} next to an element that is read at {axes[0]}"
            raise refuse(DeclarationError, "declare.whole", message, hint=f"{t.name}[{_letters(t.ndim)}]")

    def value(*index: Expr) -> Any:
        return function(*(_read(a, index) if isinstance(a, Tensor) else a for a in args))

    return compute(shape, value, name=name, axes=_names(tensors, len(shape)))


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape to which arrays of ``shapes`` are broadcast, as in NumPy. Raises DeclarationError
    ``declare.broadcast``.
    """
    rank = max(map(len, shapes))
    sides = list(zip(*[(1,) * (rank - len(s)) + s for s in shapes], strict=True))
    out: list[Any] = []
    for side in sides:
        n, *others = [n for n in side if not same_extent(n, 1)] or [1]
        if not all(same_extent(n, other) for other in others):
            message = f"shapes {' and '.join(map(_said, shapes))} cannot be broadcast together"
            raise refuse(
                DeclarationError, "declare.broadcast", message, hint="B[:, None] for a column, B[None, :] for a row"
            )
        out.append(n)
    return tuple(out)


def _said(shape: tuple[Any, ...]) -> str:
    sides = [show(n) if isinstance(n, Expr) else str(n) for n in shape]
    return f"({', '.join(sides)}{',' * (len(sides) == 1)})"


def _read(t: Tensor, index: Index) -> Expr:
    own = index[len(index) - t.ndim :]
    return t[tuple(0 if same_extent(n, 1) else i for n, i in zip(t.shape, own, strict=True))]


def _letters(rank: int) -> str:
    return ", ".join(_names([], rank))


def _names(tensors: Sequence[Tensor], rank: int) -> list[str]:
    """``rank`` axis names: those of a computed tensor of that rank if there is one, else i, j, k …"""
    for t in tensors:
        if t.ndim == rank and t.op is not None:
            return [a.name for a in t.op.axes]
    return list("ijklmn"[:rank]) if rank <= 6 else [f"i{n}" for n in range(rank)]


def view(t: Tensor, shape: Sequence[int], place: Callable[..., Sequence[object]], name: str) -> Tensor:
    """A computed tensor of ``shape`` whose element at index i is ``t[place(*i)]``."""
    return compute(tuple(shape), lambda *i: t[tuple(place(*i))], name=name, axes=_names([], len(shape)))


def take(t: Tensor, index: tuple[object, ...]) -> Tensor:
    """``t[index]`` for an index of ints, slices, ``...`` and None, as in NumPy.

    Raises DeclarationError: ``declare.rank`` for too many indices, ``declare.out-of-range``, ``dim.constant`` for a
    slice of a dimension that depends on dims, except ``:``.
    """
    dots = sum(1 for x in index if x is Ellipsis)
    used = sum(1 for x in index if x is not None and x is not Ellipsis)
    if dots > 1 or used > t.ndim:
        raise refuse(
            DeclarationError, "declare.rank", f"{t.name} has {t.ndim} dimensions but is read with {used} indices"
        )
    rest = (slice(None),) * (t.ndim - used)
    at = index.index(Ellipsis) if dots else len(index)
    full = (*index[:at], *rest, *index[at + dots :])
    shape: list[Any] = []
    places: list[tuple[int | None, int, int]] = []  # axis of the result, first, step
    sides = iter(t.shape)
    for x in full:
        if x is None:
            shape.append(1)
            continue
        n = next(sides)
        if isinstance(x, slice) and isinstance(n, Expr):
            if x != slice(None):
                raise no_constant(n)
            places.append((len(shape), 0, 1))
            shape.append(n)
        elif isinstance(x, slice):
            steps = need_slice(x, n)
            places.append((len(shape), steps.start, steps.step))
            shape.append(len(steps))
        else:
            i = need_int("an index", x)
            places.append((None, i + n if i < 0 else i, 0))

    def place(*i: Expr) -> list[Any]:
        return [first if a is None else i[a] * step + first for a, first, step in places]

    return view(t, shape, place, f"{t.name}_part")


def transpose(t: Tensor, *axes: object) -> Tensor:
    """``t`` with its dimensions in another order, by default reversed."""
    given = axes[0] if len(axes) == 1 and (isinstance(axes[0], list | tuple) or axes[0] is None) else axes
    order = [_axis(t, a) for a in given] if given else list(range(t.ndim))[::-1]
    if sorted(order) != list(range(t.ndim)):
        raise refuse(DeclarationError, "argument.value", f"axes={shown(given)} is no order of {t.ndim} dimensions",
                     hint="each dimension once, such as A.transpose(1, 0)")  # fmt: skip
    return view(t, [t.shape[a] for a in order], lambda *i: [i[order.index(a)] for a in range(t.ndim)], f"{t.name}_t")


def reshape(t: Tensor, *shape: object) -> Tensor:
    """``t`` in another shape of as many elements, ints, or a tuple of them; one may be -1, to be inferred. Raises
    DeclarationError: ``declare.reshape``, ``dim.constant`` if the shape of ``t`` depends on dims.
    """
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    if dims := dims_in(*given, *t.shape):
        raise no_constant(dims[0])
    sides = [need_int("an extent", n, -1) for n in given]
    known = math.prod(n for n in sides if n >= 0)
    if sides.count(-1) == 1 and known and t.size % known == 0:
        sides[sides.index(-1)] = t.size // known
    if -1 in sides or math.prod(sides) != t.size:
        message = f"{t.name} has {t.size} elements, the shape {tuple(given)} has not as many"
        raise refuse(
            DeclarationError, "declare.reshape", message, hint=f"{t.name}.reshape({t.shape[0] if t.shape else 1}, -1)"
        )

    def place(*i: Expr) -> list[Any]:
        flat: Any = 0
        for n, x in zip(sides, i, strict=True):
            flat = flat * n + x
        out: list[Any] = []
        for n in t.shape[:0:-1]:
            out.append(flat % n)
            flat = flat // n
        return [flat, *out[::-1]] if t.shape else []

    return view(t, sides, place, f"{t.name}_shaped")


def squeeze(t: Tensor, axis: object = None) -> Tensor:
    """``t`` without the dimensions ``axis``, which must have extent 1; None: without all of extent 1. Raises
    DeclarationError ``declare.reshape``.
    """
    gone = {d for d in range(t.ndim) if same_extent(t.shape[d], 1)} if axis is None else set(_axes(t, axis))
    if not all(same_extent(t.shape[d], 1) for d in gone):
        message = f"axis={shown(axis)} of {t.name} {t.shape} is not of extent 1"
        raise refuse(DeclarationError, "declare.reshape", message, hint=f"{t.name}.squeeze()")
    kept = [d for d in range(t.ndim) if d not in gone]
    places = {d: n for n, d in enumerate(kept)}
    return view(t, [t.shape[d] for d in kept], lambda *i: [i[places[d]] if d in places else 0 for d in range(t.ndim)],
                f"{t.name}_shaped")  # fmt: skip


def expand_dims(t: Tensor, axis: object) -> Tensor:
    """``t`` with a new dimension of extent 1 at position ``axis`` of the result."""
    at = need_int("axis", axis, -t.ndim - 1, t.ndim) % (t.ndim + 1)
    return view(t, [*t.shape[:at], 1, *t.shape[at:]], lambda *i: [*i[:at], *i[at + 1 :]], f"{t.name}_shaped")


def swapaxes(t: Tensor, axis1: object, axis2: object) -> Tensor:
    """``t`` with two dimensions exchanged."""
    order = list(range(t.ndim))
    a, b = _axis(t, axis1), _axis(t, axis2)
    order[a], order[b] = order[b], order[a]
    return transpose(t, order)


def _axis(t: Tensor, axis: Any) -> int:
    if t.ndim == 0:
        raise wrong("axis", axis, f"None: {t.name} has no dimension")
    return need_int("axis", axis, -t.ndim, t.ndim - 1) % t.ndim


def _axes(t: Tensor, axis: Any) -> list[int]:
    """Sorted numbers of the dimensions that ``axis`` names; all for None. Raises DeclarationError."""
    if axis is None:
        return list(range(t.ndim))
    given = axis if isinstance(axis, list | tuple) else (axis,)
    if any(isinstance(a, Var) for a in given):
        raise refuse(DeclarationError, "declare.whole", f"{t.name} is whole: it is reduced over its dimensions",
                     hint=f"axis=0, or tir.sum({t.name}[{_letters(t.ndim)}], axis=k) in a compute")  # fmt: skip
    if t.ndim == 0 and len(given) < 2:  # one number, which NumPy reduces over 0 and -1 as well
        return [need_int("axis", a, -1, 0) for a in given][:0]
    found = sorted(_axis(t, a) for a in given)
    if len(set(found)) < len(found):
        raise refuse(DeclarationError, "reduce.axis", f"axis={shown(axis)} names a dimension twice", hint="each once")
    return found


def reduced(name: str, t: Tensor, axis: object = None, keepdims: bool = False) -> Tensor:
    """``t`` reduced over the dimensions ``axis``, None for all, by the reduction ``name``. Sums and products of
    integers have 64 bits; argmax and argmin over all dimensions give positions in the flattened array.
    """
    over, keepdims = _axes(t, axis), need_bool("keepdims", keepdims)
    if name in ("argmax", "argmin") and (axis is None or not t.ndim) and t.ndim != 1:
        found = reduced(name, reshape(t, (t.size,)), 0)
        return reshape(found, (1,) * t.ndim) if keepdims and t.ndim else found
    loops = {d: reduce_axis(t.shape[d], name="k" if len(over) == 1 else f"k{d}") for d in over}
    if name in ("argmax", "argmin") and len(over) != 1:
        raise refuse(DeclarationError, "reduce.axis", f"{name} of {t.name} is over one dimension, not {len(over)}",
                     hint="axis=0, or None for all of them")  # fmt: skip
    kept = [d for d in range(t.ndim) if d not in loops]
    shape = [1 if d in loops else t.shape[d] for d in range(t.ndim)] if keepdims else [t.shape[d] for d in kept]

    def value(*i: Expr) -> Expr:
        own = dict(zip(kept, (i[d] for d in kept) if keepdims else i, strict=True))
        x = t[tuple(loops[d] if d in loops else own[d] for d in range(t.ndim))]
        if not loops:
            return _wide(x) if name in ("sum", "prod") else cast(x, "bool") if name in ("any", "all") else x
        wide = _wide(x) if name in ("sum", "prod") else x
        return getattr(reducers, name)(wide, axis=tuple(loops.values()))  # type: ignore[no-any-return]

    return compute(tuple(shape), value, name=name, axes=_names([], len(shape)))


def _wide(x: Expr) -> Expr:
    """``x`` converted to the type in which NumPy sums it: int64 or uint64 for integers and booleans; floats stay."""
    kind = DTYPES[x.dtype].kind
    return x if kind == "f" else cast(x, "uint64" if kind == "u" else "int64")


def mean(t: Tensor, axis: object = None, keepdims: bool = False) -> Tensor:
    """The mean over the dimensions ``axis``, None for all; integers give float64, and narrow floats (float16, …) are
    summed in float32.
    """
    kind = t.dtype if is_float(t.dtype) else "float64"
    count = math.prod(t.shape[d] for d in _axes(t, axis))
    wide = "float32" if DTYPES[kind].widened else kind
    many = cast(count, wide) if isinstance(count, Expr) else float(count)
    total = reduced("sum", t if t.dtype == wide else made("astype", (t, wide), {}), axis, keepdims)
    out = made("divide", (total, many), {})
    return out if kind == wide else made("astype", (out, kind), {})  # type: ignore[no-any-return]


def matmul(a: object, b: Any) -> Tensor:
    """``a @ b`` as in NumPy: vectors, matrices, and stacks of them whose other dimensions are broadcast.

    Raises DeclarationError: ``matmul.shape``, ``declare.broadcast``, ``argument.type`` for other operands than tensors.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        x, other = (a, b) if isinstance(a, Tensor) else (b, a)
        raise wrong(
            "an operand of @", other, f"a tensor as {x.name} is", hint="tir.placeholder(shape), tir.constant(array)"
        )
    row, column = a.ndim == 1, b.ndim == 1
    inner = b.shape[0] if column else b.shape[-2] if b.ndim > 1 else -1
    if not a.ndim or not b.ndim or not same_extent(a.shape[-1], inner):
        message = f"{a.name} {a.shape} and {b.name} {b.shape} do not multiply"
        raise refuse(
            DeclarationError, "matmul.shape", message, hint=f"{a.name} @ {b.name}.T, or tir.nn.matmul(a, b, tb=True)"
        )
    batch = broadcast([a.shape[:-2], b.shape[:-2]])
    k = reduce_axis(inner, name="k")
    m, n = () if row else (a.shape[-2],), () if column else (b.shape[-1],)

    def value(*i: Expr) -> Expr:
        lead, own = i[: len(batch)], list(i[len(batch) :])
        left: Index = (k,) if row else (own.pop(0), k)
        right: Index = (k,) if column else (k, own.pop(0))
        x, y = (_read(t, (*lead[len(batch) - max(0, t.ndim - 2) :], *at)) for t, at in ((a, left), (b, right)))
        return reducers.sum(x * y, axis=k)

    names = _names([], len(batch) + len(m) + len(n))
    return compute((*batch, *m, *n), value, name="matmul", axes=["z" + x if x == "k" else x for x in names])


def dot(a: object, b: object) -> Any:
    """``np.dot``: a product with a number, else ``a @ b``. Raises DeclarationError if NumPy's ``dot`` and ``@``
    differ.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or not a.ndim or not b.ndim:
        return made("multiply", (a, b), {})
    if b.ndim > 2:
        raise no_function(f"dot of {a.ndim} and {b.ndim} dimensions", "function", "dot")
    return matmul(a, b)


def astype(t: Tensor, dtype: object) -> Tensor:
    """``t`` in another element type, elementwise."""
    kind = dtype_of(dtype).name
    return elementwise(lambda x: element("astype", (x, kind), {}), (t,), "cast")  # type: ignore[no-any-return]


def _reduction(name: str) -> Callable[..., Tensor]:
    def function(a: Tensor, axis: Any = None, keepdims: bool = False, **options: Any) -> Tensor:
        dim, keep = options.pop("dim", axis), options.pop("keepdim", keepdims)  # torch's names
        if any(v is not None for v in options.values()):
            raise too_many(name, (a,), options)
        return mean(a, dim, keep) if name == "mean" else reduced(name, a, dim, keep)

    return function


WHOLE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "[]": take,
    **{name: _reduction(name) for name in (*reducers.BUILT_IN, "mean")},
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "matmul": matmul,
    "dot": dot,
    "mm": matmul,
    "bmm": matmul,
    "transpose": transpose,
    "permute": transpose,
    "reshape": reshape,
    "ravel": lambda a: reshape(a, -1),
    "flatten": lambda a: reshape(a, -1),
    "squeeze": squeeze,
    "expand_dims": expand_dims,
    "unsqueeze": expand_dims,
    "swapaxes": swapaxes,
    "astype": astype,
    "shape": lambda a: a.shape,
    "ndim": lambda a: a.ndim,
    "size": lambda a: a.size,
}
"""Functions of whole arrays by NumPy's names (and torch's); what ELEMENTS has is done element by element."""
