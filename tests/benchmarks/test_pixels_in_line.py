"""What pixels in one line save, by counting: a row of the table, and the committed table."""

from __future__ import annotations

from pathlib import Path

import pixels_in_line
import pytest

ROOT = Path(__file__).parents[2]


def test_one_layer():
    """7x7 pixels of 64 images: 3136, where boxes of 8x8 have 4096; 49 tiles of 64 by 512 channels."""
    shape = dict(n=64, c=512, h=7, w=7, k=512, r=3, s=3, pad=1)
    full = pixels_in_line.shape_of(shape)
    assert (full.p, full.q, full.cg) == (7, 7, 512)
    assert pixels_in_line.idle(dict(groups=1, wide=8, bk=64, pixels="box"), full) == 1 - 49 / 64
    assert pixels_in_line.idle(dict(groups=1, wide=8, bk=64, pixels="im2col"), full) == 0
    box, line, ratio = pixels_in_line.row(shape)
    assert (box, ratio) == (1 - 49 / 64, 1.25)
    assert 0 < line < 0.05


def test_the_committed_table_is_what_the_script_makes():
    saved = (ROOT / "benchmarks/results/gpu_pixels.md").read_text()
    (made,) = pixels_in_line.markdown((64,), pixels_in_line.RESNET50[-1:]).splitlines()[2:3]
    name, cell = made.strip("| ").split(" | ")
    (row,) = (line for line in saved.splitlines() if line.startswith(f"| {name} |"))
    assert row.endswith(f"| {cell} |")


@pytest.mark.parametrize("kind", pixels_in_line.KINDS)
def test_the_best_is_legal(kind):
    shape = pixels_in_line.shape_of(dict(n=1, c=64, h=14, w=14, k=64, r=1, s=1))
    assert pixels_in_line.best(shape, kind)["pixels"] == kind
