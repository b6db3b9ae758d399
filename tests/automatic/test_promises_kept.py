"""A lint of untuned schedules: all of ``ops`` and ``nn``, the gallery and drawn declarations leave nothing idle but
what ``KNOWN`` lists. What is no longer so fails as well, so that the list only gets shorter.
"""

import importlib

import operator_set
import pytest
from drawing import WIDE, drawn
from gallery import NAMES

import tensorir as tir

TARGETS = {"cpu": "c -registers=32 -vector_bytes=64 -units=16", "gpu": "cuda -arch=sm_90a"}
SORTS = {"idle": " cores", "scalar": "not in vectors", "cells": "computed cell by cell", "chain": "kernels with"}
"""Sorts of facts, and words in them."""
TILES = "the tile that is fastest on a full device; none that is smaller is modelled to be faster"
FEW = "few heads of few queries, each block takes one; keys are not split where there are several queries"
RUNS = "cores do not share runs of less than 1 KiB: their lines and prefetches would meet"
TURNS = "terms that go to places that data choose are added in turn; parts of them have no copies of so many cells"
ONE_BY_ONE = "float16 is converted one by one where it is written"
SUMS = "partial sums, scans and their offsets need all blocks of the kernel before"
DIVISIONS = "no vectors divide integers of 32 bits by each other; they are priced as if some did"
TABLE = "counters at places that data choose: blocks have copies, which are added up"
KNOWN = {
    ("attention", "cpu"): {"cells": "the last division; compilers find vectors of it, ours gained 3 % when measured"},
    ("conv2d of float16", "cpu"): {"cells": ONE_BY_ONE},
    ("embedding gradient", "cpu"): {"idle": RUNS},
    ("drawn 19001", "cpu"): {"idle": DIVISIONS, "scalar": DIVISIONS},
    ("histogram", "cpu"): {"cells": TABLE},
    ("gallery histogram", "cpu"): {"cells": TABLE},
    ("gallery max_unpool", "cpu"): {"idle": RUNS},
    ("gallery prefix_sum_2d", "cpu"): {"chain": SUMS},
    ("gallery segment_sum", "cpu"): {"idle": RUNS},
    ("attention", "gpu"): {"idle": FEW},
    ("conv2d_backward_weight", "gpu"): {"chain": SUMS},
    ("matmul of bfloat16", "gpu"): {"idle": TILES},
    ("conv1d", "gpu"): {"idle": TILES},
    ("conv2d of float16", "gpu"): {"idle": TILES},
    ("conv2d of int8", "gpu"): {"idle": TILES},
    ("conv3d", "gpu"): {"idle": TILES},
    ("conv_transpose2d", "gpu"): {"chain": SUMS},
    ("cross entropy", "gpu"): {"idle": "the mean over rows waits for all of them"},
    ("embedding gradient", "gpu"): {"idle": TURNS},
    ("group_norm", "gpu"): {"idle": "a block for each group"},
    ("histogram", "gpu"): {"idle": TABLE},
    ("linear", "gpu"): {"idle": TILES},
    ("quantized convolution", "gpu"): {"idle": TILES},
    ("rms_norm gradient", "gpu"): {"chain": SUMS},
    ("gallery cumsum", "gpu"): {"chain": SUMS},
    ("gallery histogram", "gpu"): {"idle": TABLE, "chain": TABLE},
    ("gallery max_unpool", "gpu"): {"idle": TURNS},
    ("gallery prefix_sum_2d", "gpu"): {"chain": SUMS},
    ("gallery quantised_linear", "gpu"): {"idle": TILES},
    ("gallery segment_sum", "gpu"): {"idle": TURNS},
}
"""What untuned schedules leave idle, by name and target, with the reason."""
DRAWN = [*range(1000, 1020), *range(WIDE + 9000, WIDE + 9010)]
CASES = [
    (name, kind)
    for kind in TARGETS
    for name in (*operator_set.REAL, *(f"gallery {n}" for n in NAMES), *(f"drawn {seed}" for seed in DRAWN))
]


def declared(name):
    if name.startswith("gallery "):
        return importlib.import_module(f"gallery.{name.removeprefix('gallery ')}").OUTPUT
    return drawn(int(name.removeprefix("drawn "))).outputs if name.startswith("drawn ") else operator_set.REAL[name]()


def sort_of(fact):
    return next(sort for sort, words in SORTS.items() if words in fact)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_an_untuned_schedule_leaves_nothing_idle_but_what_is_known(name, kind):
    facts = tir.auto_schedule(declared(name), TARGETS[kind]).expected.facts
    if name.startswith("drawn "):  # of a few cells, whose launches take most of the time whatever is done
        facts = [f for f in facts if sort_of(f) != "chain"]
    assert {sort_of(f) for f in facts} == {*KNOWN.get((name, kind), ())}, facts


def test_what_is_known_is_looked_at_and_short():
    assert {*KNOWN} <= {*CASES}
    assert sum(map(len, KNOWN.values())) <= 40 and all(reason for known in KNOWN.values() for reason in known.values())
