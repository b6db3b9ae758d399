"""The offline evidence for CUDA kernels: what the script computes itself, and that it runs."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def offline():
    spec = importlib.util.spec_from_file_location("gpu_offline", ROOT / "benchmarks/gpu/offline.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blocks_that_fit_on_a_multiprocessor(offline):
    assert offline.resident("sm_80", 256, 127, 16384) == 2, "registers: 8 warps of 4096 each, twice"
    assert offline.resident("sm_80", 256, 129, 16384) == 1
    assert offline.resident("sm_80", 128, 32, 32 * 1024) == 4, "shared memory, and 1 KiB a block for the system"
    assert offline.resident("sm_75", 1024, 32, 0) == 1, "threads"
    assert offline.resident("sm_90", 32, 16, 0) == 32, "blocks"


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler")
def test_costs_of_a_small_product(offline):
    c = offline.CLASSES[0]
    found = offline.emulated(offline.KernelClass(c.name, c.make, c.large, dict(m=128, n=128, k=16), c.arches))
    assert found["exact"]
    for what in ("shared read", "shared write", "global read"):
        assert found[what]["units"] == found[what]["ideal"] > 0


def test_instructions_of_the_default_kernel(offline):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    row = offline.compiled(offline.CLASSES[0], "sm_80")
    assert (row["spills"], row["local"], row["narrower"]) == (0, 0, 0)
    assert row["blocks_per_sm"] >= 1
    assert row["multiply_adds"] == 1024
    assert row["multiply_adds"] > 0.75 * row["all"]
    cores = offline.compiled(next(c for c in offline.CLASSES if "B transposed" in c.name and "fp16" in c.name), "sm_80")
    assert (cores["spills"], cores["local"], cores["narrower"], cores["membar"]) == (0, 0, 0, 0)
    assert (cores["multiply_adds"], cores["reads_128"], cores["sts"]) == (64, 16, 0)
    text = offline.markdown([row], [])
    assert f"| {row['registers']} | 0 | 16384 | {row['blocks_per_sm']} |" in text


def test_the_committed_table_is_the_committed_result(offline):
    saved = json.loads((ROOT / "benchmarks/results/gpu_offline.json").read_text())
    assert (
        offline.markdown(saved["compiled"], saved["emulated"])
        == (ROOT / "benchmarks/results/gpu_offline.md").read_text()
    )
