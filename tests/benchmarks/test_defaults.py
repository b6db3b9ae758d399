"""Some of the shapes that benchmarks/defaults draws, and how its files go on."""

import json
import os
import time
from pathlib import Path

import cpu
import drawn_shapes
import gpu
import pytest
import scan

from tensorir.errors import CompileError, Problem
from tensorir.ops import OPERATORS

SEED = 1  # the saved files have those of seed 0


@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("number", range(16))
def test_a_default_for_the_cpu_passes_its_check_and_is_right(number):
    row = cpu.one(number, SEED, "opencl:pocl")
    assert row["status"] in ("ok", "refused"), json.dumps(row)


@pytest.mark.parametrize("number", range(12))
def test_defaults_for_gpus_fit(number):
    row = gpu.one(number, SEED, 1)
    assert row["status"] in ("ok", "refused"), json.dumps(row)


def test_all_operators_and_layouts_are_drawn():
    for on_gpu in (False, True):
        found = [drawn_shapes.drawn(0, n, on_gpu) for n in range(400)]
        assert {op for op, _ in found} == {name for name, o in OPERATORS.items() if not o.tensors}
        assert {g.get("layout") for op, g in found if op == "conv2d"} == {"NCHW", "NHWC"}
        assert sum(g.get("groups", 1) > 1 for op, g in found if "conv" in op) > 60
        assert {g.get("dtype", "float32") for _, g in found} >= {"float32", "float64", *drawn_shapes.SHORT}
    assert drawn_shapes.drawn(0, 7) == drawn_shapes.drawn(0, 7) != drawn_shapes.drawn(1, 7)


def case(number):
    """One that ends its process at 3, and takes long at 6."""
    if number == 3:
        os._exit(9)
    time.sleep(600 if number == 6 else 0)
    return {"status": "wrong" if number == 4 else "ok"}


def test_a_scan_survives_what_it_runs_and_goes_on(tmp_path: Path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    scan.scan(case, [8], file, 1, 1000.0)
    scan.scan(case, [1, 3, 4], file, 0, 1000.0)
    monkeypatch.setattr(scan, "PATIENCE_S", 0.1)
    scan.scan(case, [6], file, 0, 1000.0)
    rows = scan.recorded(file, 0)
    assert {n: r["status"] for n, r in rows.items()} == {1: "ok", 3: "crashed", 4: "wrong", 6: "hangs"}
    assert rows[3]["detail"] == "exit status 9"
    scan.scan(case, [4, 1], file, 0, 0.0)
    assert list(scan.recorded(file, 1)) == [8]
    assert [json.loads(x)["number"] for x in file.read_text().splitlines()] == [1, 3, 4, 6, 8]
    assert "4 cases: {'ok': 1, 'crashed': 1, 'wrong': 1, 'hangs': 1}" in scan.told(rows)


def test_what_is_wrong_is_told(monkeypatch):
    """A verdict, a result and a space that are wrong do not pass."""
    number = next(n for n in range(100) if cpu.drawn(SEED, n)[0] == "matmul")
    monkeypatch.setattr(cpu, "ran", lambda *_: "c[0] is 2, not 1")
    assert cpu.one(number, SEED, "opencl:pocl")["status"] == "wrong"
    monkeypatch.setattr(gpu, "TARGETS", ("cuda -arch=sm_80 -shared_optin_bytes=64 -shared_bytes=64",))
    assert gpu.one(number, SEED, 0)["status"] == "ok", "rules have ways without shared memory"

    def too_large(*_):
        raise CompileError(Problem("compile.device-limit", "more than there is"))

    monkeypatch.setattr(gpu, "check_source", too_large)
    assert gpu.one(number, SEED, 0)["status"] == "limit"
