"""Folders of kernels whose extents each call decides: loaders read them from shapes."""

import importlib
import json
import sys

import numpy as np
import pytest

import tensorir as tir
from tensorir.export.folder import export_set
from tensorir.tune.dispatch import Dispatch, Leaf


@pytest.fixture
def product():
    n = tir.dim("n", low=2, high=40)
    A, B = tir.placeholder((n, 8), name="A"), tir.placeholder((8, 6), name="B")
    k = tir.reduce_axis(8, name="k")
    C = tir.compute((n, 6), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    top = tir.compute((n,), lambda i: C[i, 0], name="top")
    s = tir.Schedule(tir.compute((n, 6), lambda i, j: C[i, j] - top[i], name="D"))
    io, _ = s.split("D.i", [None, 4])
    s.bind(io, "block.x")
    return s


def loaded(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder.parent))
    for name in [m for m in sys.modules if m.split(".")[0] == folder.name]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(folder.name)


def test_one_folder_serves_every_extent(product, tmp_path, monkeypatch):
    pytest.importorskip("pyopencl")
    folder = product.export(tmp_path / "dims_one", to="pyopencl")
    program = loaded(folder, monkeypatch).Program()
    rng = np.random.default_rng(0)
    for n in (2, 3, 4, 5, 39, 40, 2):
        a, b = (rng.integers(-4, 5, s).astype("float32") for s in ((n, 8), (8, 6)))
        want = a @ b
        assert np.array_equal(program(a, b), want - want[:, :1])
    with pytest.raises(ValueError, match="n is 2 to 40, got 41"):
        program(np.ones((41, 8), "float32"), b)
    with pytest.raises(ValueError, match="expected shape"):
        program(np.ones((5, 7), "float32"), b)


def test_its_self_test_runs(product, tmp_path, monkeypatch):
    pytest.importorskip("pyopencl")
    folder = product.export(tmp_path / "dims_two")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["dims"] == [{"name": "n", "low": 2, "high": 40}]
    assert "where `n` is 2 to 40" in (folder / "README.md").read_text()
    assert {"(n + 3) // 4"} <= {k["grid"][0] for k in manifest["kernels"]}
    loaded(folder, monkeypatch)
    selftest = importlib.import_module(f"{folder.name}.selftest")
    assert selftest.main() == 0


def test_places_of_a_scatter_over_a_dim_are_compared(tmp_path, monkeypatch):
    pytest.importorskip("pyopencl")
    n = tir.dim("n", low=1, high=20)
    at, v = tir.placeholder((n,), "int32", name="at"), tir.placeholder((n,), name="v")
    Y = tir.scatter((n + 2,), over=(n,), index=lambda t: (at[t],), value=lambda t: v[t], op="set", fill=-1, name="Y")
    program = loaded(tir.Schedule(Y).export(tmp_path / "dims_set", to="pyopencl"), monkeypatch).Program()
    for extent in (4, 7):
        places, x = np.arange(extent, dtype="int32")[::-1] + 1, np.arange(extent, dtype="float32")
        assert np.array_equal(program(places, x), [-1, *x[::-1], -1])
        places[0] = 2
        with pytest.raises(ValueError, match=r"Y: more than one term goes to cell \[2\]"):
            program(places, x)
        places[0] = extent + 2
        with pytest.raises(ValueError, match=f"an index is not in 0 ... {extent + 1}"):
            program(places, x)


def test_arguments_of_a_folder_must_agree(tmp_path, monkeypatch):
    pytest.importorskip("pyopencl")
    n = tir.dim("n", low=1, high=20)
    A, B = tir.placeholder((n,), name="A"), tir.placeholder((n,), name="B")
    s = tir.Schedule(tir.compute((n,), lambda i: A[i] + B[i], name="Y"))
    program = loaded(s.export(tmp_path / "dims_two_inputs", to="pyopencl"), monkeypatch).Program()
    with pytest.raises(ValueError, match=r"n is 5 in A\.shape\[0\] and 6 in B\.shape\[0\]"):
        program(np.ones(5, "float32"), np.ones(6, "float32"))


def test_a_set_of_shapes_has_no_place_for_them(product, tmp_path):
    chosen = Dispatch((), ({"n": 40},), (0,), Leaf(0))
    with pytest.raises(tir.TensorIRError) as caught:
        export_set([product._part()], tmp_path / "none", "pyopencl", name="D", dispatch=chosen, files={})
    assert caught.value.problems[0].code == "export.dims"
    assert "such as n of " in caught.value.problems[0].message
    assert not (tmp_path / "none").exists()


def test_a_dim_that_only_expressions_hold_is_told_by_them(tmp_path, monkeypatch):
    pytest.importorskip("pyopencl")
    n = tir.dim("n", low=1, high=9)
    X = tir.placeholder((2 * n,), name="X")
    s = tir.Schedule(tir.compute((n,), lambda i: X[2 * i], name="Y"))
    program = loaded(s.export(tmp_path / "dims_line"), monkeypatch).Program()
    assert program(np.arange(10, dtype="float32")).tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(ValueError, match="expected shape"):
        program(np.arange(9, dtype="float32"))
