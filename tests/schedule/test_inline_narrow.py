"""What is computed as a narrow float and read as another type is rounded in between, wherever it is inlined."""

import pytest

import tensorir as tir


def halves(wide="float32", cell=lambda x: x * 2 + 1, dtype="bfloat16"):
    x = tir.placeholder((4, 40), dtype, name="x")
    t = tir.compute((4, 40), lambda i, j: cell(x[i, j]), name="t")
    return tir.compute((4, 40), lambda i, j: t[i, j].astype(wide), name="y")


@pytest.mark.parametrize("wide", ["float32", "float64", "int32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("step", ["compute_inline", "reverse_compute_inline"])
def test_a_converted_result_is_rounded_first(step, dtype, wide):
    s = tir.Schedule(halves(wide, dtype=dtype), "opencl")
    getattr(s, step)("t" if step == "compute_inline" else "y")
    assert f"tir_round_{dtype}(" in s.source().split("__kernel")[1]
    assert s.check()


@pytest.mark.parametrize("cell", [lambda x: x, lambda x: tir.maximum(x, 0), lambda x: tir.where(x > 0, x, 0)])
def test_what_is_no_longer_than_its_type_is_not(cell):
    s = tir.Schedule(halves(cell=cell), "opencl").compute_inline("t")
    assert "tir_round_bfloat16(" not in s.source().split("__kernel")[1]


def test_a_result_of_the_same_type_is_rounded_as_it_is_stored():
    s = tir.Schedule(halves("bfloat16"), "opencl").compute_inline("t")
    assert "tir_round_bfloat16(" not in s.source().split("__kernel")[1]


def thirds(seen):
    """Cells that show whether thirds of squares, stored with 8 digits, have more of them."""
    x = tir.placeholder((4, 40), "bfloat16", name="x")
    t = tir.compute((4, 40), lambda i, j: x[i, j] * x[i, j] / 3, name="t")
    return tir.compute((4, 40), lambda i, j: seen(t[i, j], x[i, j]), name="y")


@pytest.mark.parametrize("step", ["compute_inline", "reverse_compute_inline"])
@pytest.mark.parametrize(
    "seen",
    [
        lambda t, x: (t * 2).astype("float32"),
        lambda t, x: (-t).astype("float32"),
        lambda t, x: (t - x * x / 3).astype("float32"),
        lambda t, x: tir.where(t * 3 == x * x, 1, 0),
    ],
    ids=["product", "negative", "difference", "comparison"],
)
def test_operations_in_between_do_not_keep_digits(seen, step):
    s = tir.Schedule(thirds(seen), "cuda -arch=sm_80")
    getattr(s, step)("t" if step == "compute_inline" else "y")
    assert s.check("emulate")
