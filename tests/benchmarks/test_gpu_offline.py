"""The offline evidence for CUDA kernels: what the script computes itself, and that it runs."""

import dataclasses
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NARROWER = 4
"""Reads of less than 16 bytes: NVRTC 13.5 splits one of 192 in 1 of 50 compilations of the same text in one process."""


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
    found = offline.emulated(offline.KernelClass(c.name, c.make, c.large, dict(m=128, n=128, k=64), c.arches))
    assert found["exact"]
    for what in ("shared read", "shared write", "global read"):
        assert found[what]["units"] == found[what]["ideal"] > 0


def test_instructions_of_the_default_kernel(offline):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    row = offline.compiled(offline.CLASSES[0], "sm_80")
    assert (row["spills"], row["local"]) == (0, 0)
    assert row["narrower"] <= NARROWER < row["reads_128"] / 40
    assert row["blocks_per_sm"] >= 1
    assert row["multiply_adds"] == 2048
    assert row["multiply_adds"] > 0.75 * row["all"]
    cores = offline.compiled(next(c for c in offline.CLASSES if "B transposed" in c.name and "fp16" in c.name), "sm_80")
    assert (cores["spills"], cores["local"], cores["membar"]) == (0, 0, 0)
    assert cores["narrower"] <= NARROWER
    assert (cores["multiply_adds"], cores["reads_128"], cores["sts"]) == (64, 16, 0)
    text = offline.markdown([row], [], [])
    assert f"| {row['registers']} | 0 | 24576 | {row['blocks_per_sm']} |" in text


def hopper(offline, name):
    return next(c for c in offline.HOPPER if c.name == name)


@pytest.mark.parametrize("name", ["bf16 wgmma, B transposed", "int8 wgmma, B transposed"])
def test_instructions_of_warpgroups(offline, name):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    row = offline.specialised(hopper(offline, name))
    assert (row["spills"], row["local"], row["membar"], row["by_threads"], row["warnings"]) == (0, 0, 0, 0, [])
    assert row["registers"] == [168, 40, 232], "65536 among 384 threads, and what the roles make of that"
    assert row["registers_set"] == 2
    assert row["products"] == row["multiplies"]["products"] == row["planned"]["products"] == 4
    assert (row["multiplies"]["waits"], row["multiplies"]["barriers"]) == (1, 2)
    assert (row["loads"]["tiles"], row["loads"]["barriers"]) == (2, 2)
    assert 0 <= row["shared_bytes"] - row["planned"]["shared_bytes"] < 1024
    assert row["blocks_per_sm"] == 1


def test_the_compiler_tells_of_products_one_by_one(offline, monkeypatch):
    """What "no warnings" is worth: sums that something else reads while products are under way make C75xx."""
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    compile_cubin = offline.compile_cubin

    def late(text, arch):
        return compile_cubin(text.replace("tir_wgmma_wait<0>();", ""), arch)

    monkeypatch.setattr(offline, "compile_cubin", late)
    assert offline.specialised(hopper(offline, "bf16 wgmma, B transposed"))["warnings"]


def test_costs_of_warpgroups(offline):
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    c = hopper(offline, "bf16 wgmma, A transposed")
    small = dict(c.large, m=128, n=256, k=64)
    found = offline.emulated(dataclasses.replace(c, small=small))
    assert found["exact"]
    assert found["shared read"]["units"] == found["shared read"]["ideal"] > 0
    assert found["global read"]["units"] == found["global read"]["ideal"] > 0


def test_loops_of_machine_code(offline):
    text = """
.L_a:
        /*0000*/                   UIADD3 UR4, UR4, 0x1, URZ ;
.L_b:
        /*0010*/              @!P0 SYNCS.ARRIVE.TRANS64 RZ, [R5] ;
        /*0020*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0030*/               @P0 BRA `(.L_b) ;
        /*0040*/               @P1 BRA `(.L_a) ;
        /*0050*/                   STG.E desc[UR4][R2.64], R3 ;
        /*0060*/                   NOP ;
"""
    assert offline.loop_around(text, ("HGMMA",)) == ["SYNCS.ARRIVE.TRANS64", "HGMMA.64x256x16.F32.BF16", "BRA"]
    assert len(offline.loop_around(text, ("HGMMA", "UIADD3"))) == 5
    assert offline.loop_around(text, ("STG",)) == []
    assert offline.counted(["BAR.SYNC", "BRA"], "BAR") == 1


def test_the_committed_table_is_the_committed_result(offline):
    saved = json.loads((ROOT / "benchmarks/results/gpu_offline.json").read_text())
    assert (
        offline.markdown(saved["compiled"], saved["warpgroups"], saved["emulated"])
        == (ROOT / "benchmarks/results/gpu_offline.md").read_text()
    )
