"""Indices are numbers of 64 bits where what they are made of needs as many, however small the arrays are."""

import pytest

import tensorir as tir


def mixed(count):
    """Places of a small table, by products of which those from 2148 on need more than 32 bits."""
    x = tir.placeholder((97,), name="x")
    return tir.compute((count,), lambda i: x[(i * 1000003) % 97], name="y")


@pytest.mark.parametrize("target", ["cuda", "opencl -kind=gpu"])
def test_products_on_the_way_to_an_index_have_room(target):
    wide = "const long" if "opencl" in target else "long long"
    assert wide not in tir.auto_schedule(mixed(2048), target).source()
    assert wide in tir.auto_schedule(mixed(2200), target).source()


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "opencl -kind=gpu"])
@pytest.mark.parametrize("rows", [50_000_000, 33_000_000])
def test_places_in_large_arrays_have_room(target, rows):
    """What data give counts for nothing in the indices: the array alone says how far they reach."""
    weight, at = tir.placeholder((rows, 65), name="weight"), tir.placeholder((4,), "int32", name="at")
    y = tir.compute((4, 65), lambda i, j: weight[at[i], j], name="y")
    wide = "const long" if "opencl" in target else "long long"
    assert (wide in tir.auto_schedule(y, target).source()) is (rows * 65 > 2**31)


def test_bits_on_the_way_to_an_index_have_room():
    x = tir.placeholder((97,), name="x")
    y = tir.compute((1025,), lambda i: x[((i | 1023) * 1500000) % 97], name="y")
    s = tir.auto_schedule(y, "cuda -arch=sm_80")
    assert "long long" in s.source() and s.check("emulate")


def test_values_of_places_have_room():
    y = tir.compute((50,), lambda i: tir.cast(i * 1103515245 % 65536, "int32"), name="y")
    assert "long long" in tir.Schedule(y, "cuda").source()


def test_the_largest_dim_is_shared_out():
    n = tir.dim("n", high=2**31 - 1)
    x = tir.placeholder((n,), name="x")
    y = tir.compute((n,), lambda i: x[n - 1 - i] * 2, name="y")
    assert "(n + 255) // 256" in str(tir.auto_schedule(y, "cuda").emitted().kernels[0].grid)


def test_more_cells_than_32_bits_count_are_shared_out():
    x = tir.placeholder((2**31 + 5,), "int8", name="x")
    y = tir.compute((2**31 + 5,), lambda i: x[i] + 1, name="y")
    for target in ("opencl", "cuda"):
        s = tir.auto_schedule(y, target)
        assert s.emitted().kernels[0].grid[0] > 1000
        assert s.check(shapes=[{"i": 1000}])
