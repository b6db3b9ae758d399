"""At which extents an exported kernel is tested where each call decides them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from math import prod

from tensorir.check.different import values_apart
from tensorir.codegen.source import Source
from tensorir.expr.program import computes_of, dims_of, inputs_of
from tensorir.expr.tensor import Tensor
from tensorir.ir.dims import at
from tensorir.ir.tree import Var

MOST_WORK = 1 << 21
"""Terms and elements that a reference computes for one case of a self-test, unless the least extents need more."""
VECTOR = 16
"""What is divided where no grid says by how much: lanes of a vector."""
PRIMES = (7, 13, 5, 11)


def points(outputs: Sequence[Tensor], sources: Sequence[Source]) -> list[dict[str, int]]:
    """Return values of dims that are awkward for the kernels: the least ones, primes, multiples of tiles and their
    neighbours, and the largest ones, or what of them a reference does in a moment; one empty point without dims. Dims
    are different in both orders where their ranges allow it.
    """
    dims = dims_of(outputs)
    most = largest(outputs)
    made = []
    for n in range(5):
        wanted = {}
        for k, v in enumerate(dims):
            low, high = v.bounds or (1, 1)
            tile = tile_of(v.name, sources)
            around = tile - 1 if (n + k) % 2 else tile + 1
            wanted[v] = (low, PRIMES[k % len(PRIMES)], around, tile * 2 + 1 - k % 3, high)[n]
        made.append({v.name: min(x, most[v]) for v, x in values_apart(dims, wanted).items()})
    return [dict(p) for p in dict.fromkeys(tuple(point.items()) for point in made)]


def largest(outputs: Sequence[Tensor]) -> dict[Var, int]:
    """Return the largest extents at which a reference computes no more than ``MOST_WORK``, halved one after another."""
    dims = {v: v.bounds[1] for v in dims_of(outputs) if v.bounds is not None}
    lows = {v: v.bounds[0] for v in dims if v.bounds is not None}
    while work(outputs, dims) > MOST_WORK and (free := [v for v in dims if dims[v] > lows[v]]):
        v = max(free, key=lambda v: dims[v])
        dims[v] = max(lows[v], (dims[v] + 1) // 2)
    return dims


def work(outputs: Sequence[Tensor], dims: Mapping[Var, int]) -> int:
    """Return how many terms and elements the declarations have where dims have these values."""
    total = sum(prod(at(e, dims) for e in t.shape) for t in inputs_of(outputs))
    for op in computes_of(outputs):
        axes = {v for b in op.bodies for v in getattr(b, "axes", ())}
        total += prod(at(e, dims) for e in op.extents) * prod(at(v.extent, dims) for v in axes)
    return total


def tile_of(dim: str, sources: Sequence[Source]) -> int:
    """Return the largest number of a dim's rows that a block has, as the grids of kernels say."""
    texts = {e for s in sources for k in s.kernels for e in k.grid if isinstance(e, str)}
    found = [
        node.right.value
        for text in texts
        for node in ast.walk(ast.parse(text, mode="eval"))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and isinstance(node.right, ast.Constant)
        and isinstance(node.right.value, int)
        and any(isinstance(x, ast.Name) and x.id == dim for x in ast.walk(node.left))
    ]  # fmt: skip
    return max(found, default=VECTOR)
