"""A small part of tools/mutants/cuda_planted.py: what is planted in CUDA texts is told, or is no fault."""

import functools
import shutil

import cuda_planted
import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
GROUPS = {"scalars", "index tables", "sizes", "launch bounds", "registers", "assembly", "precision", "alignment",
          "start values", "functions", "numbers", "special numbers", "branches", "ways to tell", "launches",
          "tensor maps", "order, places, conditions"}  # fmt: skip


@functools.cache
def source_of(name):
    return cuda_planted.EVERY[name].schedules()[0].emitted()


def test_every_group_has_places_in_some_kernel():
    found = {f.group for name in ("bf16 with alpha and beta, clusters", "bf16 grouped, mma.sync", "threads")
             for f in cuda_planted.planted(cuda_planted.EVERY[name], source_of(name), 1, 0)}  # fmt: skip
    assert found >= GROUPS


def test_a_sample_is_the_same_for_a_seed_and_another_for_another():
    kernel, source = cuda_planted.EVERY["threads"], source_of("threads")
    one, again, other = (cuda_planted.planted(kernel, source, 2, seed) for seed in (0, 0, 1))
    assert one == again != other and len(one) > 15
    assert all(f.source != source and f.place(source) for f in one)


@pytest.mark.parametrize(("name", "group"), [
    ("bf16 with alpha and beta, clusters", "assembly"), ("threads", "numbers"),
    ("fp32 with alpha and beta, threads", "scalars"), ("bf16 with alpha and beta, clusters", "branches"),
    ("threads", "ways to tell"), ("threads", "special numbers"),
])  # fmt: skip
def test_what_is_planted_is_told(name, group):
    schedule, source = cuda_planted.EVERY[name].schedules()[0], source_of(name)
    found = cuda_planted.planted(cuda_planted.EVERY[name], source, 1, 3, group)
    assert found and not [f.place(source) for f in found if not cuda_planted.told(schedule, f)]
