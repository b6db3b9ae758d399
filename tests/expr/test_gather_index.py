"""Indices that depend on data."""

import pytest

import tensorir as tir


def test_an_index_computed_from_data_is_refused_with_the_clamp_that_makes_it_legal():
    b, at = tir.placeholder((4, 3), name="B"), tir.placeholder((5,), "int32", name="at")
    with pytest.raises(tir.DeclarationError, match=r"tir\.minimum\(tir\.maximum\(at\[i\] \+ 1, 0\), 3\)") as caught:
        tir.compute((5, 3), lambda i, j: b[at[i] + 1, j])
    assert caught.value.code == "declare.gather-index"
    tir.compute((5, 3), lambda i, j: b[tir.minimum(tir.maximum(at[i] + 1, 0), 3), j])
