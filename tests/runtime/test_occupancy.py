"""Blocks of a multiprocessor: figures of NVIDIA's occupancy tables."""

import pytest

from tensorir.runtime.limits import blocks_at_once, occupancy
from tensorir.target import Target


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "threads", "blocks", "part"),
    [
        ("sm_80", 32, 0, 256, 8, 1.0),
        ("sm_80", 128, 16384, 256, 2, 0.25),  # 65536 registers
        ("sm_80", 255, 0, 256, 1, 0.125),
        ("sm_80", 32, 100 * 1024, 128, 1, 0.0625),  # 164 KiB
        ("sm_86", 40, 0, 1024, 1, 2 / 3),  # 48 warps
        ("sm_75", 64, 0, 1024, 1, 1.0),
        ("sm_90a", 168, 213144, 384, 1, 12 / 64),
        ("sm_90a", 32, 0, 32, 32, 0.5),  # 32 blocks
        ("sm_90a", 255, 0, 1024, 0, 0.0),
    ],
)
def test_blocks(arch, registers, shared, threads, blocks, part):
    target = Target.parse(f"cuda -arch={arch}")
    assert blocks_at_once(target, registers, shared, threads) == blocks
    assert occupancy(target, registers, shared, threads) == pytest.approx(part)
