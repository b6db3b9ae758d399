"""Many shapes of every class, emulated: what is drawn, one shape of each order, and what was saved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import emulated_shapes
import pytest

ROOT = Path(__file__).parents[2]
HOPPER = [name for name in emulated_shapes.CLASSES if "wgmma" in name]


@pytest.mark.parametrize("name", HOPPER)
def test_warpgroups_get_shapes_that_tensor_copies_take(name):
    """Small tiles and few blocks: most blocks walk several tiles, most rings wrap around."""
    of_images, several, around = "convolution" in name or "gradient" in name, 0, 0
    for c in emulated_shapes.cases(emulated_shapes.CLASSES[name], 6):
        assert c.template == (emulated_shapes.WGMMA if of_images else "gpu_tile_wgmma")
        tiles, iterations = c.turns()
        several, around = several + (tiles > 1), around + (iterations > c.config["depth"])
        if several >= 2 and around >= 3:
            break
    assert several >= 2 and around >= 3


def test_another_seed_draws_others():
    """The shapes that were saved are those of seed 0."""
    c = emulated_shapes.CLASSES["bf16 mma.sync"]
    drawn = [[(x.shape, x.config) for x in emulated_shapes.cases(c, 3, seed)] for seed in (0, 7, 8)]
    assert drawn[0] == [(x.shape, x.config) for x in emulated_shapes.cases(c, 3)]
    assert drawn[1] not in (drawn[0], drawn[2])
    assert [(x.shape, x.config) for x in emulated_shapes.cases(c, 1)] == drawn[0][:1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler to emulate with")
def test_one_shape():
    found = emulated_shapes.row("tf32 wgmma", emulated_shapes.CLASSES["tf32 wgmma"], 1)
    assert (found["shapes"], found["runs"], found["exact"]) == (1, 3, 1)
    assert found.get("compiled", 1) == 1


def test_every_class_was_exact_on_fifty_shapes():
    saved = {r["class"]: r for r in json.loads((ROOT / "benchmarks/results/cuda_shapes.json").read_text())}
    assert list(saved) == list(emulated_shapes.CLASSES)
    for row in saved.values():
        assert row["exact"] == row["shapes"] >= 50
        assert not row["failed"]
