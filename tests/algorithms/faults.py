"""Faults planted in algorithms, each by what it changes: a tap, the padding, a transform, a tile, the epilogue."""

from __future__ import annotations

from dataclasses import replace

import tensorir as tir
from tensorir.algorithms import products, stream_k, winograd
from tensorir.expr.reread import with_other

SIZE = dict(n=2, c=9, h=9, w=7, k=10, r=3, s=3, pad=1)


def convolution(**changed):
    return tir.ops.conv2d(**{**SIZE, "bias": True, "residual": True, "act": "relu", **changed})


def product(**changed):
    return tir.ops.matmul(**{"m": 21, "n": 9, "k": 17, "bias": True, "beta": True, **changed})


def _wrap(owner, name, change):
    """Plants a fault: the function or method ``name`` of ``owner`` as ``change`` of it."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, change(getattr(owner, name)))


def _entry(which, row, column, by):
    def change(real):
        def matrices(m, r):
            made = real(m, r)
            made[which][row][column] += by
            return made

        return matrices

    return _wrap(winograd, "matrices", change)


def _padding(rows, columns):
    def change(real):
        def found(op):
            conv = real(op)
            return replace(conv, pad=(conv.pad[0] + rows, conv.pad[1] + columns))

        return found

    return _wrap(winograd, "convolution_of", change)


def _tap(of):
    return _wrap(
        products.Convolution, "tap", lambda real: lambda s, k, c, i, j, inside: real(s, *of(s, k, c, i, j), inside)
    )


def _pixel(of):
    return _wrap(products.Convolution, "pixel",
                 lambda real: lambda s, n, h, w, c, inside: real(s, *of(s, n, h, w, c), inside))  # fmt: skip


def _tiles(of):
    """Pixels of another place of a tile, or of another tile."""

    def change(real):
        def pixels(self, many):
            pixel = real(self, many)
            return lambda t, y, x, c: pixel(*of(self, many, t, y, x, c))

        return pixels

    return _wrap(winograd._Tiles, "pixels", change)


def _epilogue(module, make):
    """What is made of the result, computed from another one."""

    def change(real):
        def other(outputs, old, new):
            return real(outputs, old, tir.compute(new.shape, lambda *i: make(new, i), name="other"))

        return other

    return _wrap(module, "with_other", change)


def _dropped(module):
    """Outputs without what the definition makes of the result."""
    return _wrap(module, "with_other", lambda real: lambda outputs, old, new: (new,))


WINOGRAD = {
    "a tap for another": _tap(lambda s, k, c, i, j: (k, c, j, i)),
    "taps in reverse": _tap(lambda s, k, c, i, j: (k, c, s.r - 1 - i, j)),
    "an input channel for another": _tap(lambda s, k, c, i, j: (k, s.c - 1 - c, i, j)),
    "an output channel for another": _tap(lambda s, k, c, i, j: ((k + 1) % s.k, c, i, j)),
    "padding of rows": _padding(1, 0),
    "padding of columns": _padding(0, -1),
    "an image for another": _pixel(lambda s, n, h, w, c: ((n + 1) % 2, h, w, c)),
    "a row too far": _pixel(lambda s, n, h, w, c: (n, h + 1, w, c)),
    "an entry of AT": _entry(0, 1, 1, 1),
    "a zero of AT": _entry(0, 0, -1, 1),
    "an entry of G": _entry(1, 0, 0, 1),
    "the last entry of G": _entry(1, -1, -1, -2),
    "an entry of BT": _entry(2, 1, 2, 1),
    "the last entry of BT": _entry(2, -1, -1, 1),
    "the next tile": _tiles(lambda s, many, t, y, x, c: ((t + 1) % many, y, x, c)),
    "a tile of another row": _tiles(lambda s, many, t, y, x, c: ((t + s.columns) % many, y, x, c)),
    "a tile's pixels in another order": _tiles(lambda s, many, t, y, x, c: (t, s.a - 1 - y, x, c)),
    "another sign": _epilogue(winograd, lambda y, i: -y[i]),
    "results of another image": _epilogue(winograd, lambda y, i: y[((i[0] + 1) % 2, *i[1:])]),
}  # fmt: skip
"""Faults of Winograd's algorithm that give other results."""


def _rows(of):
    """Rows of the reduction from another place."""
    return _wrap(stream_k, "_rows", lambda real: lambda op, start, end, name: real(op, *of(op, start, end), name))


STREAM_K = {
    "the first rows again": _rows(lambda op, start, end: (0, end - start)),
    "rows from one too few on": _rows(lambda op, start, end: (start - 1, end - 1) if start else (start, end)),
    "rows in reverse": _epilogue(stream_k, lambda c, i: c[(20 - i[0], *i[1:])]),
    "another sign": _epilogue(stream_k, lambda c, i: -c[i]),
}
"""Faults of stream-K that give other results."""

DROPPED = {"winograd": _dropped(winograd), "stream_k": _dropped(stream_k)}
"""The epilogue forgotten, with the arguments that it reads."""

assert with_other is winograd.with_other is stream_k.with_other
