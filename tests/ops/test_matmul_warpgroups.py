"""matmul by warpgroups: any shape whose rows tensor copies take."""

from __future__ import annotations

import shutil

import pytest

import tensorir as tir

HOPPER = "cuda -arch=sm_90a -units=2"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


@emulated
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_batches_need_whole_pieces_along_rows_only(dtype):
    """A map's strides are multiples of 16 bytes where its rows are, whatever the number of rows."""
    w = tir.ops.matmul(m=65, n=33, k=144, batch=3, tb=True, dtype=dtype, bias=True, act="relu")
    assert w.template_for(HOPPER) == "gpu_hopper"
    verdict = w.schedule(target=HOPPER).check("emulate")
    assert verdict, verdict


def test_loading_is_not_unrolled():
    """Two copies to an iteration: compilers left to themselves make hundreds where the extents are known."""
    text = tir.ops.matmul(m=4096, n=4096, k=4096, tb=True, dtype="bfloat16").schedule(target=HOPPER).source()
    before, _, load = text.partition("// load")
    assert load.count("#pragma unroll 1\n") == load.count("for (") == 2
    assert before.count("#pragma unroll 1\n") == 1
