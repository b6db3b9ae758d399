"""Matrix products: matmul, grouped matmul, linear."""

from __future__ import annotations

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_bool, need_int, plain_ints
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.dims import same_extent, same_shape
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Expr
from tensorir.nn.arguments import misfit, need_floats, need_shape, need_tensors, wide


@plain_ints
def matmul(
    a: Tensor, b: Tensor, *, ta: bool = False, tb: bool = False, accumulate: str | None = None, name: str = "C"
) -> Tensor:
    """Matrix product, 2-D or batched.

    a: ([batch,] M, K), or ([batch,] K, M) with ``ta``;  b: ([batch,] K, N), or ([batch,] N, K) with ``tb``
    returns: ([batch,] M, N), accumulated in ``accumulate`` (default: the operands' type)
    Raises DeclarationError (``matmul.shape``) when the shapes do not fit.
    """
    need_tensors(a=a, b=b)
    need_bool("ta", ta)
    need_bool("tb", tb)
    batch, flat = a.shape[:-2], a.ndim not in (2, 3) or b.ndim != a.ndim
    m, k = (0, 0) if flat else (a.shape[-1], a.shape[-2]) if ta else a.shape[-2:]
    kb, n = (0, 0) if flat else (b.shape[-1], b.shape[-2]) if tb else b.shape[-2:]
    if flat or not same_shape((*b.shape[:-2], kb), (*batch, k)):
        raise refuse(
            DeclarationError,
            "matmul.shape",
            f"a {a.shape}{' transposed' if ta else ''} and b {b.shape}{' transposed' if tb else ''} do not multiply",
        )
    kk = reduce_axis(k, name="k")

    def product(lead: tuple[Expr, ...], i: Expr, j: Expr) -> Expr:
        x = a[(*lead, kk, i)] if ta else a[(*lead, i, kk)]
        y = b[(*lead, j, kk)] if tb else b[(*lead, kk, j)]
        if accumulate:
            x, y = cast(x, accumulate), cast(y, accumulate)
        return total(x * y, axis=kk)

    if batch:
        return compute((*batch, m, n), lambda z, i, j: product((z,), i, j), name=name)
    return compute((m, n), lambda i, j: product((), i, j), name=name)


@plain_ints
def grouped_matmul(
    a: Tensor, b: Tensor, group: Tensor, *, align: int, tb: bool = False, accumulate: str | None = None, name: str = "C"
) -> Tensor:
    """Grouped product, C[i] = a[i] @ b[group[i // align]] for each row i (layers of a mixture of experts).

    a: (M, K);  b: (groups, K, N), or (groups, N, K) with ``tb``
    group: int32 (ceil(M / align),), the group of each block of ``align`` rows; numbers of no group, such as -1, give
           rows of zeros, so that a may have unused rows
    returns: (M, N), accumulated in ``accumulate`` (default: the operands' type)

    A group begins at a multiple of ``align`` rows; the padding rows of its last block are computed like others. This is
    the contiguous layout of DeepGEMM, with one entry of ``group`` per block.

    The matrix of each block is declared as a stage "b_block" (ceil(M / align), …), to be inlined or computed where it
    is read.
    Raises DeclarationError (``grouped-matmul.shape``).
    """
    need_tensors(a=a, b=b, group=group)
    need_int("align", align, 1)
    need_bool("tb", tb)
    if a.ndim != 2 or b.ndim != 3 or not same_extent(a.shape[1], b.shape[2 if tb else 1]):
        raise refuse(
            DeclarationError,
            "grouped-matmul.shape",
            f"a {a.shape} and the matrices of b {b.shape}{' transposed' if tb else ''} do not multiply",
            hint=f"a of (M, K), b of (groups, {'N, K' if tb else 'K, N'})",
        )
    (m, k), n, blocks = a.shape, b.shape[1 if tb else 2], -(-a.shape[0] // align)
    if not same_shape(group.shape, (blocks,)) or group.dtype != "int32":
        raise refuse(
            DeclarationError,
            "grouped-matmul.shape",
            f"group is {group.dtype} {group.shape}: {m} rows have {blocks} times {align}",
            hint=f'tir.placeholder(({blocks},), "int32", name="group")',
        )
    own = compute((blocks, *b.shape[1:]), lambda z, r, x: b.get(group[z], r, x, fill=0), name="b_block")
    kk = reduce_axis(k, name="k")

    def product(i: Expr, j: Expr) -> Expr:
        x, y = a[i, kk], own[i // align, j, kk] if tb else own[i // align, kk, j]
        if accumulate:
            x, y = cast(x, accumulate), cast(y, accumulate)
        return total(x * y, axis=kk)

    return compute((m, n), product, name=name)


@plain_ints
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, name: str = "linear") -> Tensor:
    """``x @ weight.T + bias``, as ``torch.nn.functional.linear``.

    x: (…, K);  weight: (N, K);  bias: (N,);  returns: (…, N), of x's type; narrower floats are added up in float32
    Raises DeclarationError ``nn.shape``, ``nn.dtype``.
    """
    need_floats(x=x, weight=weight)
    if x.ndim < 1 or weight.ndim != 2 or not same_shape(x.shape[-1:], weight.shape[1:]):
        raise misfit(f"x {x.shape} and weight {weight.shape} do not multiply", "x of (…, K), weight of (N, K)")
    n, k = weight.shape[0], reduce_axis(weight.shape[1], "k")
    if bias is not None:
        need_shape("bias", bias, (n,))
    plain = bias is None and not DTYPES[x.dtype].widened
    names = [*(f"i{d}" for d in range(x.ndim - 1)), "n"]

    def product(*i: Expr) -> Expr:
        return total(wide(x[(*i[:-1], k)]) * wide(weight[i[-1], k]), axis=k)

    sums: Tensor = compute((*x.shape[:-1], n), product, name=name if plain else f"{name}_sum", axes=names)
    if plain:
        return sums
    last = lambda *i: cast(sums[i] if bias is None else sums[i] + bias[i[-1]], x.dtype)  # noqa: E731
    return compute(sums.shape, last, name=name, axes=names)
