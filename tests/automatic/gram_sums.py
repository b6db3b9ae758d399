"""Sums that the tests of products on several targets share."""

import tensorir as tir


def gram(n, k, dtype="float32", ta=False, value=lambda a, b: a * b):
    """Sums over pairs of rows, or columns, of one matrix."""
    A, c = tir.placeholder((n, k), dtype, name="A"), tir.reduce_axis(n if ta else k, name="c")
    at = (lambda i: A[c, i]) if ta else (lambda i: A[i, c])
    wide = dtype if dtype == "float32" else "int32"
    many = k if ta else n
    return tir.compute(
        (many, many), lambda i, j: tir.sum(value(at(i).astype(wide), at(j).astype(wide)), axis=c), name="G"
    )
