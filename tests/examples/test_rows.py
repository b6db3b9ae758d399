"""Rows scheduled by hand are right for each shape; on GPUs they read memory once and combine in log2(threads) steps."""

import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorir.check.emulate import emulate

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from rows import gpus, libraries, processors

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
SECTOR = 32
"""Bytes that global memory is read and written by."""


def names(operators):
    return {"argvalues": operators, "ids": [o.__name__ for o in operators]}


@pytest.mark.parametrize("operator", **names(processors.OPERATORS))
@pytest.mark.parametrize(("rows", "columns"), [(128, 256), (64, 1000)])
def test_rows_on_processors(operator, rows, columns):
    schedule, arrays = operator(rows, columns), libraries.inputs(operator.__name__, rows, columns)
    want = libraries.by_numpy(operator.__name__, *(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(schedule.build()(*arrays), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("operator", **names(processors.OPERATORS))
def test_rows_on_processors_are_what_was_declared(operator):
    verdict = operator(128, 256).check()
    assert verdict, verdict


@emulated
@pytest.mark.parametrize("operator", **names(gpus.OPERATORS))
def test_rows_on_gpus_read_once(operator):
    name, rows, columns = operator.__name__, 64, 1024
    source, arrays = operator(rows, columns).emitted(), libraries.inputs(name, rows, columns)
    done = emulate(source, arrays)
    assert not done.problems
    want = libraries.by_numpy(name, *(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(done.outputs[0], want, rtol=2e-4, atol=2e-4)
    blocks = math.prod(source.kernels[0].grid)
    asked = sum(t.units for t in done.traffic if t.what.startswith("global"))
    least = arrays[0].nbytes / blocks + sum(a.nbytes for a in arrays[1:]) + done.outputs[0].nbytes / blocks
    assert asked <= 1.05 * least / SECTOR + 1


@pytest.mark.parametrize("operator", **names(gpus.OPERATORS))
def test_threads_combine_in_steps(operator):
    text = operator(64, 1024).emitted().text
    threads, reductions = (8, 1) if operator.__name__ in ("sum_first", "sum_middle") else (gpus.THREADS, None)
    reductions = reductions or sum(f" {n}_part[1]" in text for n in ("largest", "total", "squares", "Y"))
    steps = re.findall(r"__shfl_down_sync\(|_tree\[[^]]*\] \+=", text)
    assert len(steps) == reductions * math.log2(threads)


@emulated
@pytest.mark.parametrize("operator", **names(gpus.OPERATORS))
def test_rows_on_gpus_are_what_was_declared(operator):
    verdict = operator(64, 256, "cuda -arch=sm_80").check()
    assert verdict, verdict


@pytest.mark.parametrize("operator", **names(processors.OPERATORS))
def test_a_library_computes_the_same(operator):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    arrays = libraries.inputs(operator.__name__, 128, 256)
    theirs = libraries.by_torch(operator.__name__, *map(torch.from_numpy, arrays))
    np.testing.assert_allclose(theirs, libraries.by_numpy(operator.__name__, *arrays), rtol=2e-4, atol=2e-4)
