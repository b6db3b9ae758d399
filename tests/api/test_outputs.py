"""Comparing results, and guarding what they are compared with."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.api.floats import Floats
from tensorir.api.outputs import Data, compare, compare_floats
from tensorir.api.questions import Output
from tensorir.errors import CheckError
from tensorir.tune.inputs import ArgumentRange

OUT = (Output("y", "float32", (2, 3)),)


def made(value, where=(1, 2)):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    array[where] = value
    return array


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf, 500.0])
def test_wrong_elements_are_found(value, exact):
    found = compare(OUT, [made(value)], [made(5)], exact)
    assert found.where.startswith("y[1, 2] is ") and "1 of 6" in found.where and found.max_err > 0


def test_rounding_is_allowed_only_where_results_round():
    near = made(np.nextafter(np.float32(5), np.float32(6)))
    assert not compare(OUT, [near], [made(5)], False).where and compare(OUT, [near], [made(5)], True).where
    assert not compare(OUT, [made(np.nan)], [made(np.nan)], True).where
    whole = (Output("n", "int32", (1,)),)
    assert compare(whole, [np.array([3], np.int32)], [np.array([4], np.int32)], False).where


def test_whole_numbers_are_compared_beyond_what_a_double_tells_apart():
    """2^60 and 2^60 + 1 are the same double."""
    whole = (Output("n", "int64", (2,)),)
    right, wrong = np.array([5, 2**60 + 1]), np.array([5, 2**60])
    found = compare(whole, [wrong], [right], True)
    assert found.where == f"n[1] is {2**60}, should be {2**60 + 1}; 1 of 2 elements differ" and found.max_err >= 1
    assert not compare(whole, [right], [right.copy()], True).where


class TestData:
    ARGUMENTS = (ArgumentRange("a", "float32", (3,), -5, 5),)
    OUTPUTS = (Output("y", "float32", (3,)),)

    def data(self, folder, make=lambda a: a * 2):
        return Data(self.ARGUMENTS, True, self.OUTPUTS, str(folder), make)

    def test_damage_is_undone(self, tmp_path):
        data = self.data(tmp_path)
        inputs, expected = data.fresh()
        before = inputs[0].copy()
        inputs[0][1] += 1
        expected[0][:] = 7
        again, wanted = data.fresh()
        assert np.array_equal(again[0], before) and np.array_equal(wanted[0], before * 2)

    def test_reference_is_evaluated_once_for_all_workers(self, tmp_path):
        calls = []
        for _ in range(3):
            self.data(tmp_path, lambda a: calls.append(1) or a * 2).fresh()
        assert len(calls) == 1
        (tmp_path / "expected_0.npy").write_bytes(b"torn")
        assert np.array_equal(self.data(tmp_path).fresh()[1][0], self.data(tmp_path).fresh()[0][0] * 2)

    def test_references_that_round_are_compared_with_a_tolerance(self, tmp_path):
        data = self.data(tmp_path, lambda a: a * 2 + 1e-3)
        data.fresh()
        assert data.exact is False

    def test_floats_are_asked_for_where_that_says_more_and_there_is_time(self, tmp_path):
        calls = []
        data = self.data(tmp_path, lambda a: calls.append(1) or a * 2)
        assert data.floats(60.0) is None, "nobody knows how long that takes"
        data.fresh()
        (tmp_path / "seconds").write_text("1.0")
        assert data.floats(3.9) is None
        inputs, expected = data.floats(60.0).fresh()
        assert len(calls) == 2 and inputs[0].dtype == np.float32 and np.array_equal(expected[0], inputs[0] * 2)
        assert not np.array_equal(inputs[0], inputs[0].round())
        whole = Data((ArgumentRange("a", "int32", (3,), -5, 5),), True, self.OUTPUTS, str(tmp_path), lambda a: a)
        assert whole.reference_s < 5 and whole.floats(60.0) is None
        jumps = Data(self.ARGUMENTS, True, self.OUTPUTS, str(tmp_path), lambda a: a, continuous=False)
        assert jumps.reference_s < 5 and jumps.floats(60.0) is None

    def test_reference_of_another_shape(self, tmp_path):
        with pytest.raises(CheckError) as caught:
            self.data(tmp_path, lambda a: a[:2]).fresh()
        assert caught.value.code == "workload.reference"


def test_operands_of_tf32_have_fewer_digits():
    """On floats only, and not where three such products stand for one: their small terms show on floats alone."""
    work = tir.ops.matmul(m=64, n=64, k=64, tb=True, precision="tf32")
    a, b = work.random_inputs(1)
    right = work.reference(a, b)

    def cut(x):  # as cvt.rna does
        return ((x.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)

    got = work.reference(cut(a), cut(b))
    for template, precision, agrees in [("gpu_tile_mma", "tf32", True), ("gpu_tile_wgmma", "tf32", True),
                                        ("gpu_tile_mma", "3xtf32", False), ("gpu_tile", "tf32", False)]:  # fmt: skip
        made = tir.ops.matmul(m=64, n=64, k=64, tb=True, precision=precision)
        source = made.schedule(None, template, "cuda -arch=sm_90a").emitted()
        found = compare_floats(source, [got], Floats([a, b], [right], lambda: 0.0), None)
        assert (not found.where) == agrees, (template, precision)
