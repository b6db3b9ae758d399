"""Indices that depend on data."""

import numpy as np
import pytest

import tensorir as tir


def test_an_index_computed_from_data_is_refused_with_the_clamp_that_makes_it_legal():
    b, at = tir.placeholder((4, 3), name="B"), tir.placeholder((5,), "int32", name="at")
    with pytest.raises(tir.DeclarationError, match=r"tir\.minimum\(tir\.maximum\(at\[i\] \+ 1, 0\), 3\)") as caught:
        tir.compute((5, 3), lambda i, j: b[at[i] + 1, j])
    assert caught.value.code == "declare.gather-index"
    tir.compute((5, 3), lambda i, j: b[tir.minimum(tir.maximum(at[i] + 1, 0), 3), j])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint32"])
@pytest.mark.parametrize("padded", [False, True])
def test_addresses_are_computed_as_indices_whatever_type_the_index_has_in_memory(dtype, padded):
    rows, columns = 100, 200  # the product is beyond int8 and int16
    b, at = tir.placeholder((rows, columns), name="B"), tir.placeholder((9,), dtype, name="at")
    read = (lambda i, j: b.get(at[i], j)) if padded else (lambda i, j: b[at[i], j])
    s = tir.Schedule(tir.compute((9, columns), read, name="G"), "opencl")
    values = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    index = np.arange(60, 69).astype(dtype)
    np.testing.assert_array_equal(np.asarray(s.build()(values, index)), values[index.astype(int)])
    assert s.check()


def test_arithmetic_of_data_wraps_so_it_proves_no_bounds():
    table, at = tir.placeholder((256,), name="T"), tir.placeholder((5,), "int8", name="at")
    with pytest.raises(tir.DeclarationError) as caught:
        tir.compute((5,), lambda i: table[at[i] + 128])  # 128 is no int8: 127 + 128 wraps to -1
    assert caught.value.code in ("declare.gather-index", "declare.constant-range")
    tir.compute((5,), lambda i: table[tir.cast(at[i], "int32") + 128])  # -128 … 127 fits int32
