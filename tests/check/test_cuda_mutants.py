"""A small part of tools/mutants/cuda_mutants.py: no mutant survives without a computed reason."""

import itertools
import json
import shutil
from pathlib import Path

import cuda_mutants
import cuda_pass_layer
import cuda_tables
import cuda_text_layer
import cuda_tiles
import pytest
from cuda_judge import own_folder
from cuda_kernels import KERNELS
from cuda_texts import edits, statements

ROOT = Path(__file__).parents[2]
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", None)
    with own_folder():
        yield


def all_told(results, least):
    (found,) = cuda_mutants.summary(results).values()
    assert found["mutants"] >= least
    assert not found["survived"], found["survivors"]
    assert found["killed"] > 0.7 * found["mutants"]
    return found


@emulated
def test_no_text_with_copies_out_of_order_survives():
    kinds = ("dropped", "moved", "wait", "another slot", "swizzle")
    found = all_told(cuda_text_layer.run_kernel("threads, cp.async", 1, kinds), 8)
    assert "memory.in-flight" in found["codes"]


@emulated
def test_no_program_with_a_fault_survives():
    kinds = ("dropped", "moved", "wait", "another slot", "lands")
    all_told(cuda_pass_layer.run_kernel("threads, cp.async", 1, kinds), 10)


@emulated
def test_no_table_with_a_fault_survives():
    found = all_told(cuda_tables.run_kernel("tf32", 1, ("fragments, lanes",)), 6)
    assert found["by"].keys() & {"emulator", "result"}


@emulated
def test_no_map_with_other_steps_survives():
    """Every second pixel is what a strided convolution reads, along both sides of the image."""
    found = [w for w in cuda_tiles.mutants("bf16", cuda_tiles.STRIDED) if w.kind.startswith("step of a map")]
    found = [w for w in found if "steps=(1, 2, 2, 1)" in w.place.split(" -> ")[0]]
    assert len(found) == 8
    assert all(w.judge() for w in found)


@emulated
def test_no_map_of_pixels_with_a_fault_survives():
    """Corners moved or exchanged, and steps, of a convolution with 3 x 2 taps and a stride."""
    found = [w for w in cuda_tiles.mutants("bf16", cuda_tiles.LINED) if "lower=(-1, -1)" in w.place]
    found = [w for w in found if w.kind.startswith(("corner", "step of a map"))]
    assert len(found) == 14
    assert all(w.judge() for w in found[::2])


@emulated
def test_no_text_of_roles_with_a_fault_survives():
    kinds = ("another parity", "the other barrier", "other bytes", "dropped fence", "moved commit", "which products")
    found = all_told(cuda_text_layer.run_kernel("bf16 nt, warpgroups", 1, kinds), 6)
    assert found["codes"].keys() & {"barrier.stuck", "barrier.misused"}


@emulated
def test_no_program_of_roles_with_a_fault_survives():
    kinds = ("another parity", "arrivals", "dropped wait", "dropped fence", "other bytes")
    found = all_told(cuda_pass_layer.run_kernel("fp16 nn, warpgroups", 1, kinds), 5)
    assert found["by"]["emulator"], "fences of registers are what the interpreter does not know"


def test_numbers_of_kernels_are_added():
    def layer(kernel, kind, by):
        return {"mutants": 2, "by": by, "kernels": {kernel: 2}, "kinds": {kind: {"mutants": 2, "by": by}},
                "survivors": [kernel]}  # fmt: skip

    one, two = {"text": layer("b", "x", {"result": 2})}, {"text": layer("a", "w", {"result": 1, "emulator": 1})}
    both = cuda_mutants.merged(one, two)["text"]
    assert both["mutants"] == 4
    assert both["by"] == {"result": 3, "emulator": 1}
    assert list(both["kinds"]) == ["w", "x"]
    assert both["survivors"] == ["b", "a"]
    with pytest.raises(SystemExit):
        cuda_mutants.merged(one, one)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_texts_of_two_shapes_have_the_same_mutants(kernel):
    one, two = (edits(s.emitted().text, kernel.slots) for s in kernel.schedules())
    assert [e.kind for e in one] == [e.kind for e in two]
    assert len(one) > 100


def test_statements_are_the_whole_text():
    text = KERNELS["threads, registers ahead"].schedules()[0].emitted().text
    top = statements(text)
    assert all(a.end == b.start for a, b in itertools.pairwise(top))
    assert sum(s.head == "__syncthreads();" for x in top for s in x.all()) == text.count("__syncthreads();") == 3


def test_the_committed_table_is_the_committed_result():
    saved = json.loads((ROOT / "benchmarks/results/cuda_mutants.json").read_text())
    assert cuda_mutants.markdown(saved) == (ROOT / "benchmarks/results/cuda_mutants.md").read_text()
    assert list(saved) == ["text", "passes", "tables"]
    assert sum(layer["mutants"] for layer in saved.values()) >= 200
    for layer in saved.values():
        assert layer["mutants"] == layer["killed"] + layer["equivalent"] + layer["survived"]
