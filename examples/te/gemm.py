"""Matrix multiplication, from three plain loops to blocked, vectorized, packed and parallel, one step at a time.

The steps are those of the classic tutorial on optimising a GEMM with a tensor-expression language, in tensorir's own
words. Every function returns ``(schedule, what the step does)`` and starts from the step before it, so two steps can be
compared with ``s.diff(other)``. Run the file to see the trees change and the times on the first OpenCL device:

    python examples/te/gemm.py
"""

from __future__ import annotations

from typing import Any

import tensorir as tir

M, N, K = 128, 128, 64
BLOCK = 32
"""Rows and columns of one block of C: a block, and the strips of A and B that it needs, stay in a small cache."""

Step = tuple[tir.Schedule, str]


def define(packed: bool = False) -> Any:
    """C[i, j] = sum over k of A[i, k] * B[k, j]; ``packed`` reads B from a copy stored block column by block column."""
    A = tir.placeholder((M, K), name="A")
    B = tir.placeholder((K, N), name="B")
    k = tir.reduce_axis(K, name="k")
    if not packed:
        return tir.compute((M, N), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    P = tir.compute((N // BLOCK, K, BLOCK), lambda b, r, c: B[r, b * BLOCK + c], name="P")
    return tir.compute((M, N), lambda i, j: tir.sum(A[i, k] * P[j // BLOCK, k, j % BLOCK], axis=k), name="C")


def plain(target: Any = "opencl") -> Step:
    """Three loops in the order of the definition."""
    return tir.Schedule(define(), target), "one work-item walks i, j and k as declared"


def blocked(target: Any = "opencl", packed: bool = False) -> Step:
    """Tile i and j, split k, and walk the block's cells innermost."""
    s = tir.Schedule(define(packed), target)
    _block(s)
    return s, f"C in blocks of {BLOCK} x {BLOCK}, four values of k at a time: what is read again is still in cache"


def _block(s: tir.Schedule) -> None:
    io, jo, ii, ji = s.tile("C.i", "C.j", factors=[BLOCK, BLOCK])
    ko, ki = s.split("C.k", [None, 4])
    s.reorder(io, jo, ko, ki, ii, ji)


def vectorized(target: Any = "opencl", packed: bool = False) -> Step:
    """Eight neighbouring columns of C in one vector."""
    s, _ = blocked(target, packed)
    _, lanes = s.split("C.j.1", [None, 8])
    s.vectorize(lanes)
    return s, "eight columns of a row at once: B and C are read and written as vectors, A's element is broadcast"


def permuted(target: Any = "opencl", packed: bool = False) -> Step:
    """Walk A along its rows in the inner loops."""
    s, _ = vectorized(target, packed)
    s.reorder("C.i.1", "C.k.1")
    return s, "the row loop outside the four values of k: A is read along its rows instead of down its columns"


def packed(target: Any = "opencl") -> Step:
    """Store B block column by block column, in a kernel of its own."""
    s, _ = permuted(target, packed=True)
    s.vectorize(s.split("P.c", [None, 8])[1])
    return s, f"a first kernel copies B into panels of {BLOCK} columns, which the second one reads from end to end"


def accumulated(target: Any = "opencl") -> Step:
    """Accumulate a strip of C in registers and write it once."""
    s, _ = packed(target)
    s.reorder("C.i.1", "C.k.0", "C.k.1", "C.j.1.0")
    out = s.stage_out("C", at="C.i.1", scope="register")
    strip, lanes = s.split(f"{out.name}.j", [None, 8])
    s.vectorize(lanes).unroll(strip).unroll("C.k.1").unroll("C.j.1.0")
    return s, "one row of the block is summed in registers over all of k and stored once"


def parallel(target: Any = "opencl") -> Step:
    """One work-group per block row and column, one work-item per row."""
    s, _ = accumulated(target)
    s.bind("C.i.0", "block.y").bind("C.j.0", "block.x").bind("C.i.1", "thread.x")
    s.bind("P.b", "block.x").bind("P.r", "thread.x")
    return s, "blocks of C and panels of B on the device's work-groups, their rows on its work-items"


STEPS = (plain, blocked, vectorized, permuted, packed, accumulated, parallel)


def main() -> None:
    """Print each step's tree and time, and check its result."""
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype("float32") for shape in ((M, K), (K, N)))
    for step in STEPS:
        s, what = step()
        f = s.build()
        assert (f(a, b) == a @ b).all()  # small integers: every order of summation gives the same floats
        print(f"\n== {step.__name__}: {what}\n{s}\n   {f.time(a, b).median_s * 1e6:.0f} us on {f.device.name}")


if __name__ == "__main__":
    main()
