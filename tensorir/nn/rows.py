"""Row-wise functions: softmax, log-softmax, and layer, RMS, batch and group norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorir.errors.needs import need_int, need_number, plain_ints
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import cast, exp, log, rsqrt
from tensorir.expr.reducers import max as largest_of
from tensorir.expr.reducers import sum as total_of
from tensorir.expr.tensor import Tensor
from tensorir.ir.dims import same_shape
from tensorir.ir.tree import Expr
from tensorir.nn.arguments import Index, axis_names, misfit, need_dim, need_floats, need_shape, wide

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-23, "bfloat16": 2.0**-23}
"""dtype -> default ``eps`` of ``rms_norm``: distance from 1 to the next float of the type of the sums."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """A tensor viewed as rows with statistics per row.

    cells, over: (axis names, extents) across rows, and within a row
    place: function (row index, index in row) -> tensor index;  row: function tensor index -> row index
    """

    x: Tensor
    cells: tuple[tuple[str, Any], ...]
    over: tuple[tuple[str, Any], ...]
    place: Callable[[Index, Index], Index]
    row: Callable[[Index], Index]

    def reduced(self, reducer: Callable[..., Expr], term: Callable[[Index], Expr], name: str) -> Tensor:
        """Return a tensor with ``reducer`` over each row's terms."""
        axes = tuple(reduce_axis(n, name) for name, n in self.over)

        def value(*cell: Expr) -> Expr:
            return reducer(term(self.place(cell, axes)), axis=axes)

        return compute([n for _, n in self.cells], value, name=name, axes=[a for a, _ in self.cells])

    def each(self, value: Callable[[Index], Expr], name: str, dtype: str = "") -> Tensor:
        """Return a tensor shaped like ``x`` with ``value(index)`` as elements, converted to ``dtype`` if given."""
        made = lambda *i: cast(value(i), dtype) if dtype else value(i)  # noqa: E731
        return compute(self.x.shape, made, name=name, axes=axis_names(self.x))

    def count(self, kind: str) -> Any:
        """Number of elements per row: a float, or an expression of type ``kind`` if it depends on dims."""
        out: Any = 1
        for _, n in self.over:
            out = out * n
        return cast(out, kind) if isinstance(out, Expr) else float(out)


def _along(x: Tensor, dims: Sequence[int]) -> _Rows:
    """_Rows of ``x`` along dimensions ``dims``."""
    named = list(zip(axis_names(x), x.shape, strict=True))
    kept = [d for d in range(x.ndim) if d not in dims]

    def place(cell: Index, own: Index) -> Index:
        at = dict(zip([*kept, *dims], [*cell, *own], strict=True))
        return tuple(at[d] for d in range(x.ndim))

    return _Rows(
        x, tuple(named[d] for d in kept), tuple(named[d] for d in dims), place, lambda i: tuple(i[d] for d in kept)
    )


def _shifted(x: Tensor, dim: int, name: str) -> tuple[_Rows, Callable[[Index], Expr]]:
    """(rows, function index -> element minus its row's maximum), so that ``exp`` cannot overflow."""
    need_floats(x=x)
    rows = _along(x, (need_dim(dim, x),))
    m = rows.reduced(largest_of, lambda i: wide(x[i]), f"{name}_max")
    return rows, lambda i: wide(x[i]) - m[rows.row(i)]


@plain_ints
def softmax(x: Tensor, dim: int, *, name: str = "softmax") -> Tensor:
    """``exp(x)`` over its sum along ``dim``, as ``torch.nn.functional.softmax``.

    The largest element of a row is subtracted first. Stages: ``NAME_max``, ``NAME_exp``, ``NAME_sum``, ``NAME``. Raises
    DeclarationError ``nn.dim``, ``nn.dtype``.
    """
    rows, shifted = _shifted(x, dim, name)
    e = rows.each(lambda i: exp(shifted(i)), f"{name}_exp")
    total = rows.reduced(total_of, lambda i: e[i], f"{name}_sum")
    return rows.each(lambda i: e[i] / total[rows.row(i)], name, x.dtype)


@plain_ints
def log_softmax(x: Tensor, dim: int, *, name: str = "log_softmax") -> Tensor:
    """The logarithm of ``softmax``, without its underflow, as ``torch.nn.functional.log_softmax``.

    Raises DeclarationError ``nn.dim``, ``nn.dtype``.
    """
    rows, shifted = _shifted(x, dim, name)
    total = rows.reduced(total_of, lambda i: exp(shifted(i)), f"{name}_sum")
    return rows.each(lambda i: shifted(i) - log(total[rows.row(i)]), name, x.dtype)


def _affine(value: Expr, at: Index, weight: Tensor | None, bias: Tensor | None) -> Expr:
    if weight is not None:
        value = value * weight[at]
    return value if bias is None else value + bias[at]


def _need_affine(shape: Sequence[Any], **given: Tensor | None) -> None:
    for name, t in given.items():
        if t is not None:
            need_shape(name, t, shape)
            need_floats(**{name: t})


def _normal(rows: _Rows, eps: float, name: str, centred: bool, affine: Callable[[Expr, Index], Expr]) -> Tensor:
    """Rows divided by their deviation, after subtracting the mean if ``centred``, then ``affine``."""
    x, count = rows.x, rows.count("float64" if rows.x.dtype == "float64" else "float32")
    total = rows.reduced(total_of, lambda i: wide(x[i]), f"{name}_sum") if centred else None

    def away(i: Index) -> Expr:
        value: Expr = wide(x[i])
        return value if total is None else value - total[rows.row(i)] / count

    squares = rows.reduced(total_of, lambda i: away(i) * away(i), f"{name}_squares")
    return rows.each(lambda i: affine(away(i) * rsqrt(squares[rows.row(i)] / count + eps), i), name, x.dtype)


def _last(x: Tensor, shape: object) -> int:
    """Return the rank of ``shape``, an extent or a list of them; raises ``nn.shape`` unless ``x`` ends with it."""
    given = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
    fits = all(isinstance(n, int | Expr) and not isinstance(n, bool) for n in given) and 0 < len(given) <= x.ndim
    if not fits or not same_shape(x.shape[x.ndim - len(given) :], given):
        raise misfit(f"normalized_shape={given} is not that of the last dimensions of {x.name} {x.shape}",
                     hint=f"({x.shape[-1]},)" if x.ndim else "a tensor with dimensions")  # fmt: skip
    return len(given)


@plain_ints
def layer_norm(x: Tensor, normalized_shape: object, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5, *, name: str = "layer_norm") -> Tensor:  # fmt: skip
    """Rows with mean 0 and variance 1 over the last dimensions, times ``weight``, plus ``bias``, as
    ``torch.nn.functional.layer_norm``.

    normalized_shape: the extents of these dimensions, and the shape of weight and bias
    Raises DeclarationError ``nn.shape``, ``nn.dtype``.
    """
    need_floats(x=x)
    last = _last(x, normalized_shape)
    _need_affine(x.shape[x.ndim - last :], weight=weight, bias=bias)
    rows = _along(x, range(x.ndim - last, x.ndim))
    return _normal(rows, need_number("eps", eps, 0), name, True, lambda v, i: _affine(v, i[-last:], weight, bias))


@plain_ints
def rms_norm(x: Tensor, normalized_shape: object, weight: Tensor | None = None, eps: float | None = None, *,
             name: str = "rms_norm") -> Tensor:  # fmt: skip
    """``x / sqrt(mean(x ** 2) + eps) * weight`` by rows, as ``torch.nn.functional.rms_norm``; parameters as of
    ``layer_norm``.

    eps: by default the distance from 1 to the next float, in float32 for narrower types
    Raises DeclarationError ``nn.shape``, ``nn.dtype``.
    """
    need_floats(x=x)
    last = _last(x, normalized_shape)
    _need_affine(x.shape[x.ndim - last :], weight=weight)
    small = EPSILON.get(x.dtype, 2.0**-23) if eps is None else need_number("eps", eps, 0)
    rows = _along(x, range(x.ndim - last, x.ndim))
    return _normal(rows, small, name, False, lambda v, i: _affine(v, i[-last:], weight, None))


def _channels(x: Tensor) -> Any:
    need_floats(x=x)
    if x.ndim < 2:
        raise misfit(f"{x.name} {x.shape} has no dimension of channels", hint="(N, C, …)")
    return x.shape[1]


@plain_ints
def batch_norm(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5, *, name: str = "batch_norm") -> Tensor:  # fmt: skip
    """``(x - mean) / sqrt(var + eps) * weight + bias`` per channel, as torch's ``batch_norm`` in evaluation.

    x: (N, C, …);  mean, var, weight, bias: (C,)
    Raises DeclarationError ``nn.shape``, ``nn.dtype``.
    """
    _need_affine((_channels(x),), mean=mean, var=var, weight=weight, bias=bias)
    small = need_number("eps", eps, 0)

    def value(i: Index) -> Expr:
        c = i[1:2]
        return _affine((wide(x[i]) - wide(mean[c])) * rsqrt(wide(var[c]) + small), c, weight, bias)

    return _along(x, ()).each(value, name, x.dtype)


@plain_ints
def group_norm(x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5, *, name: str = "group_norm") -> Tensor:  # fmt: skip
    """Groups of channels with mean 0 and variance 1, as ``torch.nn.functional.group_norm``.

    x: (N, C, …), constant C;  num_groups: a divisor of C;  weight, bias: (C,), of each channel
    Raises DeclarationError ``nn.shape``, ``nn.dtype``.
    """
    c, groups = _channels(x), need_int("num_groups", num_groups, 1)
    if isinstance(c, Expr) or c % groups:
        raise misfit(f"num_groups={groups} does not divide the {c} channels of {x.name}")
    _need_affine((c,), weight=weight, bias=bias)
    names, each = axis_names(x), c // groups
    over = ((names[1], each), *zip(names[2:], x.shape[2:], strict=True))
    rows = _Rows(
        x, ((names[0], x.shape[0]), ("group", groups)), over,
        lambda cell, own: (cell[0], cell[1] * each + own[0], *own[1:]), lambda i: (i[0], i[1] // each),
    )  # fmt: skip
    return _normal(rows, need_number("eps", eps, 0), name, True, lambda v, i: _affine(v, i[1:2], weight, bias))
