"""Tuning a workload with extents known at launch: one record, whose key is the range, serves all of them."""

import json

import numpy as np
import pytest

import tensorir as tir
from tensorir.api.identity import compute_digest

pytest.importorskip("pyopencl")


def tiled(s, config):
    io, _ = s.split("C.i", [None, config["t"]], tail="peel")
    s.bind(io, "block.x")
    return s


def workload(high=64):
    n = tir.dim("n", low=1, high=high)
    A, B = tir.placeholder((n, 8), name="A"), tir.placeholder((8, 6), name="B")
    k = tir.reduce_axis(8, name="k")
    C = tir.compute((n, 6), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    return tir.Workload("rows", C, templates={"default": (tiled, tir.Space(t=[4, 8]))})


def test_one_record_serves_every_extent(tmp_path):
    w, log = workload(), str(tmp_path / "log")
    assert w.tune(trials=1, log=log)
    records = [
        json.loads(line) for file in (tmp_path / "log").rglob("*.jsonl") for line in file.read_text().splitlines()
    ]
    assert sum(r.get("status") == "ok" for r in records) >= 1
    f, rng = workload().load(log=log), np.random.default_rng(0)
    for n in (1, 5, 8, 63, 64):
        a, b = (rng.integers(-4, 5, s).astype("float32") for s in ((n, 8), (8, 6)))
        assert np.array_equal(f(a, b), a @ b)
        assert np.array_equal(w.reference(a, b), a @ b)
    with pytest.raises(tir.NotTuned):
        workload(high=65).load(log=log)


def test_the_digest_says_the_range():
    assert compute_digest(workload()) == compute_digest(workload())
    assert compute_digest(workload()) != compute_digest(workload(high=65))


def test_random_inputs_have_the_largest_extents():
    w = workload()
    assert [x.shape for x in w.random_inputs()] == [(64, 8), (8, 6)]
    with pytest.raises(tir.TensorIRError, match=r"\(n, 8\)"):
        w.reference(np.zeros((5, 7), "float32"), np.zeros((8, 6), "float32"))
