"""A device whose kernels call the library's functions: opened by name, tuned, logged and loaded."""

import json

import numpy as np

import tensorir as tir
from tensorir.cli.main import run
from tensorir.runtime.device import open_device


def cut(s, config):
    s.split("Y.i", [None, config["tile"]])
    return s


def exponentials():
    X = tir.placeholder((64,), name="X")
    Y = tir.compute((64,), lambda i: tir.exp(X[i]), name="Y")
    return tir.Workload("exponentials", Y, templates={"default": (cut, tir.Space(tile=[4]))})


def test_it_is_the_device_under_another_name():
    plain, precise = open_device("opencl"), open_device("opencl -precise_math=1")
    assert precise is open_device(precise.name) and precise is not plain
    assert (precise.name, precise.place) == (f"{plain.name} -precise_math=1", plain.place)
    assert precise.target.precise_math and not plain.target.precise_math
    assert open_device(plain.name) is plain


def test_what_is_tuned_for_it_is_loaded_for_it(tmp_path):
    w, x = exponentials(), np.linspace(-3, 3, 64, dtype="float32")
    for device, own in (("opencl -precise_math=1", False), ("opencl", True)):
        assert w.tune(device=device, trials=1, log=str(tmp_path)).best
        f = w.load(device=device, log=str(tmp_path))
        assert ("tir_exp" in f.source) == own
        np.testing.assert_allclose(f(x), np.exp(x), rtol=1e-6)
    records = [json.loads(line) for file in tmp_path.rglob("*.jsonl") for line in file.read_text().splitlines()]
    trials = [r["device"]["target"] for r in records if r.get("kind") == "trial"]
    assert sorted("-precise_math=1" in t for t in trials) == [False, True]


def test_the_command_line_takes_it(tmp_path, capsys):
    log = str(tmp_path / "log")
    assert run(["tune", "matmul", "16x16x16", "--device", "opencl -precise_math=1", "--trials", "1", "--log", log]) == 0
    assert "precise_math" in "".join(f.read_text() for f in (tmp_path / "log").rglob("*.jsonl"))
    capsys.readouterr()
