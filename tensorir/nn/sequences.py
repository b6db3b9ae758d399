"""Attention, embedding, cumulative sum."""

from __future__ import annotations

import math
from collections.abc import Callable

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_bool, need_function, need_number, plain_ints
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import all_, cast, equal, exp, where
from tensorir.expr.reducers import max as largest_of
from tensorir.expr.reducers import sum as total_of
from tensorir.expr.scan import scan
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import as_expr, const
from tensorir.ir.dims import same_shape
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Expr
from tensorir.nn.activations import convert
from tensorir.nn.arguments import misfit, need_dim, need_floats, need_tensors, wide


@plain_ints
def embedding(indices: Tensor, weight: Tensor, *, name: str = "embedding") -> Tensor:
    """``weight[indices]``, rows of a table, as ``torch.nn.functional.embedding``.

    indices: integers of any shape, checked at launch;  weight: (rows, D);  returns: (*indices.shape, D)
    Raises DeclarationError ``nn.shape``, ``nn.dtype``.
    """
    need_tensors(indices=indices, weight=weight)
    if weight.ndim != 2:
        raise misfit(f"weight {weight.shape} must have 2 dimensions", hint="(rows, D)")
    if DTYPES[indices.dtype].kind not in "iu":
        raise refuse(DeclarationError, "nn.dtype", f"indices are {indices.dtype}: integers are expected")
    shape = (*indices.shape, weight.shape[1])
    return compute(shape, lambda *i: weight[indices[i[:-1]], i[-1]], name=name)  # type: ignore[no-any-return]


@plain_ints
def cumsum(x: Tensor, dim: int, *, name: str = "cumsum") -> Tensor:
    """Inclusive prefix sums along ``dim``, as ``torch.cumsum``: int64 for integers and bool, else of x's type.

    Narrower floats are added up in float32. Raises DeclarationError ``nn.dim``.
    """
    need_tensors(x=x)
    along, kind = need_dim(dim, x), DTYPES[x.dtype]
    sums = "float32" if kind.widened else x.dtype if kind.kind == "f" else "int64"
    read = x if sums == x.dtype else convert(x, sums, name=f"{name}_wide")
    made: Tensor = scan(read, along, name=f"{name}_sum" if kind.widened else name)
    return convert(made, x.dtype, name=name) if kind.widened else made


Place = Callable[[Expr, Expr, Expr, Expr], object]


@plain_ints
def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
              mask: Place | None = None, score: Callable[..., object] | None = None,
              name: str = "attention") -> Tensor:  # fmt: skip
    """``softmax(score(q k^T * scale)) v`` of each head.

    q: (B, H, I, D);  k: (B, G, J, D);  v: (B, G, J, E), where G divides H: heads share keys; H, G and D are constants
    returns: (B, H, I, E), of q's type
    scale:  by default ``D ** -0.5``
    causal: query i sees the keys up to i;  mask: ``lambda b, h, i, j`` says whether it sees key j
    score:  ``lambda s, b, h, i, j`` gives what becomes of the scaled product s

    A query that sees no key has the result 0. Products of narrower floats are added up in float32; weights are rounded
    to the type of v if it has 16 bits. Stages: ``NAME_S``, ``_T`` (scores), ``_m``, ``_P`` (weights), ``_l``, ``_O``
    and NAME, in the form that ``s.rolling`` takes: ``s.rolling("NAME_m", into=("NAME_l", "NAME_O"), at=…)``.

    Raises DeclarationError ``nn.shape``, ``nn.dtype``.
    """
    share = _need_heads(q, k, v)
    need_bool("causal", causal)
    (b, h, i, d), j, kind = q.shape, k.shape[2], "float64" if q.dtype == "float64" else "float32"
    by = d**-0.5 if scale is None else need_number("scale", scale)
    for given, f in (("mask", mask), ("score", score)):
        if f is not None:
            need_function(given, f)
    lowest = const(-math.inf, kind)
    rd, r1, r2, r3 = reduce_axis(d, "d"), *(reduce_axis(j, "j") for _ in range(3))
    axes, square = ("b", "h", "i", "j"), (b, h, i, j)

    def product(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        return total_of(wide(q[b, h, i, rd]) * wide(k[b, h // share if share > 1 else h, j, rd]), axis=rd)

    s = compute(square, product, name=f"{name}_S")

    def scored(*at: Expr) -> Expr:
        value = s[at] * by
        out = as_expr(value if score is None else score(value, *at))
        seen = [at[3] <= at[2]] if causal else []
        if mask is not None:
            seen.append(mask(*at))  # type: ignore[arg-type]
        return cast(where(all_(*seen), out, lowest) if seen else out, kind)

    t = compute(square, scored, name=f"{name}_T", axes=axes)
    m = compute((b, h, i), lambda b, h, i: largest_of(t[b, h, i, r1], axis=r1), name=f"{name}_m")
    weights = v.dtype if DTYPES[v.dtype].bits == 16 else kind
    p = compute(square, lambda *at: cast(exp(t[at] - m[at[:3]]), weights), name=f"{name}_P", axes=axes)
    total = compute((b, h, i), lambda b, h, i: total_of(wide(p[b, h, i, r2]), axis=r2), name=f"{name}_l")

    def mixed(b: Expr, h: Expr, i: Expr, c: Expr) -> Expr:
        return total_of(wide(p[b, h, i, r3]) * wide(v[b, h // share if share > 1 else h, r3, c]), axis=r3)

    shape = (b, h, i, v.shape[3])
    o = compute(shape, mixed, name=f"{name}_O")

    def divided(b: Expr, h: Expr, i: Expr, c: Expr) -> Expr:
        return cast(where(equal(m[b, h, i], lowest), 0, o[b, h, i, c] / total[b, h, i]), q.dtype)

    return compute(shape, divided, name=name)


def _need_heads(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Return the number of query heads per key head; raises ``nn.shape``."""
    need_floats(q=q, k=k, v=v)
    told = f"q {q.shape}, k {k.shape} and v {v.shape} do not fit"
    hint = "(B, H, I, D), (B, G, J, D) and (B, G, J, E), G a divisor of H"
    if not q.ndim == k.ndim == v.ndim == 4 or not same_shape(k.shape[:3], v.shape[:3]):
        raise misfit(told, hint)
    heads, groups = q.shape[1], k.shape[1]
    if not same_shape((q.shape[0], q.shape[3]), (k.shape[0], k.shape[3])) or isinstance(q.shape[3], Expr):
        raise misfit(told, hint)
    if isinstance(heads, Expr) or isinstance(groups, Expr) or groups < 1 or heads % groups:
        raise misfit(told, hint)
    return int(heads // groups)
