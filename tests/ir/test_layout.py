"""Layouts as index maps: every element has a cell of its own, where NumPy's reshape and transpose put it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorir.ir.layout import cells, chain, permuted, scattered, whole_blocks, written
from tensorir.ir.tree import Buffer, Const, Layout, Scope


@st.composite
def layouts(draw):
    """A shape and a layout of its dimensions in up to three pieces each, in any order."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    pieces = []
    for d in range(len(shape)):
        inner, step = draw(st.lists(st.integers(1, 4), max_size=2)), 1
        for n in inner:
            pieces.append((d, step, n))
            step *= n
        pieces.append((d, step, 0))
    names = tuple("abcd"[: len(shape)])
    return shape, Layout(names, tuple(draw(st.permutations(pieces))), draw(st.integers(0, 2)))


def buffer(shape, layout):
    return Buffer("X", tuple(Const(n, "index") for n in shape), "float32", Scope.GLOBAL, layout)


def stored(x, layout):
    """``x`` as memory holds it: padded to whole blocks, each dimension reshaped to its pieces, transposed, padded."""
    dims = range(x.ndim)
    mine = [sorted((p for p in layout.pieces if p[0] == d), key=lambda p: (-p[1], p[2] != 0)) for d in dims]
    x = np.pad(x, [(0, -x.shape[d] % mine[d][0][1]) for d in dims], constant_values=-1)
    sizes = [n or x.shape[d] // step for d in dims for _, step, n in mine[d]]
    flat = [p for one in mine for p in one]
    x = x.reshape(sizes).transpose([flat.index(p) for p in layout.pieces])
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, layout.pad)], constant_values=-1).ravel()


@settings(deadline=None, derandomize=True)
@given(layouts())
def test_cells_are_where_numpy_puts_them(case):
    shape, layout = case
    if len(set(layout.pieces)) < len(layout.pieces):
        return  # i%1 twice: the same piece, of one element
    x = np.arange(np.prod(shape)).reshape(shape)
    parts, size = cells(buffer(shape, layout))
    memory = stored(x, layout)
    assert size == len(memory)
    for index in np.ndindex(*shape):
        at = sum(c.stride * (index[d] // step % (n or 10**9)) for c in parts for d, step, n in [c.piece])
        assert memory[at] == x[index]
    assert all(chain([p for p in layout.pieces if p[0] == d]) for d in range(len(shape)))


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ([], False),
        ([(0, 1, 0)], True),
        ([(0, 4, 0), (0, 1, 4)], True),
        ([(0, 4, 0), (0, 1, 8)], False),
        ([(0, 4, 0), (0, 1, 2)], False),
        ([(0, 1, 4)], False),
        ([(0, 1, 0), (0, 1, 0)], False),
        ([(0, 8, 0), (0, 1, 2), (0, 2, 4)], True),
        ([(0, 8, 0), (0, 1, 2), (0, 4, 2)], False),
        ([(0, 1, 1), (0, 1, 0)], True),
    ],
)
def test_chains(pieces, whole):
    assert chain(pieces) is whole


def test_text_and_blocks():
    layout = Layout(("k", "j"), ((1, 16, 0), (0, 1, 0), (1, 4, 4), (1, 1, 4)), 2)
    assert written(layout) == "k, j -> j/16, k, j/4%4, j%4 pad 2"
    assert written(permuted((1, 0))) == "d0, d1 -> d1, d0"
    shape = buffer((5, 17), None).shape
    assert [e.value for e in whole_blocks(shape, layout)] == [5, 32]
    assert whole_blocks(shape, None) == shape


def test_scattered_tiles():
    panels = Layout(("k", "j"), ((1, 16, 0), (0, 1, 0), (1, 1, 16)))
    assert scattered(panels, (1, 8)) == 1
    assert scattered(panels, (8, 1)) is None
    assert scattered(permuted((1, 0)), (1, 8)) == 0
    assert scattered(permuted((0, 1)), (4, 8)) is None
