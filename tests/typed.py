"""What a type checker sees of declarations. mypy reads this file; nothing runs it.

Where an axis of a lambda has no type, pyright takes the first signature, mypy says Any: both leave ``compute`` useful.
"""

from typing import assert_type

import tensorir as tir
from tensorir.api.schedule import Schedule
from tensorir.expr.tensor import Tensor
from tensorir.ir.tree import Expr

A, B = tir.placeholder((4,)), tir.placeholder((4, 4))
k = tir.reduce_axis(4)
sums = tir.combiner(lambda a, b: a + b, 0)


def element(i: Expr) -> Expr:
    """An element."""
    return A[i] * 2


assert_type(tir.compute((4,), element), Tensor)
assert_type(tir.compute((4,), lambda i: A[i] * 2), Tensor)
assert_type(tir.compute((4, 4), lambda i, j: B[i, j] * 2, name="D"), Tensor)
assert_type(tir.compute((4,), lambda i: tir.sum(B[i, k], axis=k)), Tensor)
assert_type(tir.compute((4,), lambda i: 0), Tensor)
assert_type(tir.compute((4, 4), lambda i, j: (B[i, j], 0)), tuple[Tensor, ...])
assert_type(tir.scan(A), Tensor)
assert_type(tir.scan((A, A), op=sums), tuple[Tensor, ...])
assert_type(sums(A[0], axis=k), Expr)
assert_type(sums((A[0], 1), axis=k), tuple[Expr, ...])

assert_type(B[0, k], Expr)
assert_type(B[1:, None], Tensor)
assert_type(tir.exp(A), Tensor)
assert_type(tir.exp(x=A[0]), Expr)
assert_type(tir.minimum(1, A), Tensor)
assert_type(tir.maximum(A[0], 1), Expr)
assert_type(tir.cast(A, dtype="int32"), Tensor)
assert_type(tir.where(A > 0, A, 0), Tensor)
assert_type(tir.where(A[0] > 0, A[0], 0), Expr)
assert_type(tir.any_(A > 0, A < 1), Tensor)
assert_type(tir.max(B, axis=1, keepdims=True), Tensor)
assert_type(tir.max(A[k], axis=k, where=k > 1), Expr)

assert_type(tir.nn.relu(A), Tensor)
assert_type(tir.ops.softmax(), tir.Workload)
assert_type(tir.auto_schedule(A), Schedule)
tir.comptue  # type: ignore[attr-defined]  # a name that is not there is found
tir.nn.rleu  # type: ignore[attr-defined]
