"""Exported kernels refuse indices out of range, pointers out of order and cells that are there twice, unwritten."""

import ctypes
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorir as tir

sys.path.insert(0, str(Path(__file__).parents[1] / "expr"))
from test_segments import BAD, PLACES, ROWS, dense, some, spmv


def placed():
    """Rows of x to places of y, in the columns where they are, and one cell that is fixed."""
    at, x = tir.placeholder((3, 2), "int32", name="at"), tir.placeholder((3, 2), name="x")
    return tir.scatter((5, 2), over=(3, 2), index=lambda t, c: (at[t, c], c), value=lambda t, c: x[t, c], op="set")


def columns():
    """Elements of x at places whose numbers are in columns 1 and 3 of a table, of which nothing else is read."""
    at, x = tir.placeholder((4, 5), "int64", name="at"), tir.placeholder((3, 7), name="x")
    return tir.compute((4,), lambda i: x[at[i, 1], at[i, 3]], name="y")


KERNELS = {"spmv": spmv, "placed": placed, "columns": columns}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of the kernels."""
    made = {}
    for name, y in ((n, f()) for n, f in KERNELS.items()):
        made[name] = tmp_path_factory.mktemp("checked") / name
        tir.Schedule(y).export(made[name], to=["c", "pyopencl"], name=name)
    return made


def function(folder):
    """The C function of a folder on arrays, and its codes."""
    library = folder / "kernel.so"
    if not library.exists():
        words = [
            "-std=c11",
            "-O1",
            "-shared",
            "-fPIC",
            f"{folder.name}.c",
            "-o",
            library.name,
            "-lm",
            "-ldl",
            "-lpthread",
        ]
        subprocess.run(["cc", *words], cwd=folder, check=True)
    text = (folder / f"{folder.name}.h").read_text()
    codes = {n: int(c) for n, c in re.findall(rf"{folder.name.upper()}_(\w+) = (\d)", text)}
    f = getattr(ctypes.CDLL(str(library)), folder.name)
    return lambda *arrays: f(None, (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))), codes


def test_c_refuses_pointers_and_indices(folders):
    f, codes = function(folders["spmv"])
    j, d, x = some()
    x, out = x[:, 0].copy(), np.full(ROWS, -1, "float32")
    for places, _, _ in BAD.values():
        assert f(np.array(places, "int32"), j, d, x, out) == codes["INDEX"]
    assert f(PLACES, np.where(np.arange(len(j)) == 5, 7, j).astype("int32"), d, x, out) == codes["INDEX"]
    assert (out == -1).all()
    assert f(PLACES, j, d, x, out) == codes["OK"] and np.array_equal(out, dense(j, d) @ x)


TWICE = np.array([[0, 0], [1, 4], [2, 0]], "int32")
BEYOND = np.array([[0, 0], [1, 4], [2, 5]], "int32")
GOOD = np.array([[0, 0], [1, 4], [2, 2]], "int32")


def test_c_refuses_cells_that_are_there_twice(folders):
    f, codes = function(folders["placed"])
    x, out = np.arange(6, dtype="float32").reshape(3, 2), np.full((5, 2), -1, "float32")
    for bad in (TWICE, BEYOND):
        assert f(bad, x, out) == codes["INDEX"]
    assert (out == -1).all()
    assert f(GOOD, x, out) == codes["OK"] and out[:, 1].tolist() == [1, 0, 5, 0, 3]


TABLE = np.array([[-9, 2, 99, 6, 99], [9, 0, 9, 0, 9], [9, 1, -9, 5, 9], [9, 2, 9, 4, 9]])
WRONG = {(1, 1): 3, (2, 3): 7, (0, 1): -1}
"""Places of the table, and what is out of range there."""


def wrong_tables():
    for place, value in WRONG.items():
        table = TABLE.copy()
        table[place] = value
        yield table


def test_c_looks_at_the_columns_that_are_read(folders):
    f, codes = function(folders["columns"])
    x, out = np.arange(21, dtype="float32").reshape(3, 7), np.full(4, -1, "float32")
    for table in wrong_tables():
        assert f(table, x, out) == codes["INDEX"]
    assert (out == -1).all()
    assert f(TABLE, x, out) == codes["OK"] and np.array_equal(out, x[TABLE[:, 1], TABLE[:, 3]])


def test_folders_for_python_look_at_the_columns_that_are_read(programs):
    f, x = programs["columns"], np.arange(21, dtype="float32").reshape(3, 7)
    for table in wrong_tables():
        with pytest.raises(ValueError, match=r"at\[:, [13]:[24]:1\]: an index is not in 0"):
            f(table, x)
    assert np.array_equal(f(TABLE, x), x[TABLE[:, 1], TABLE[:, 3]])


def program(folder):
    """The program of a folder for pyopencl."""
    spec = importlib.util.spec_from_file_location(f"loader_of_{folder.name}", next(folder.rglob("*loader*.py")))
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made.Program()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Programs of folders that have nothing else."""
    pytest.importorskip("pyopencl")
    made = {}
    for name, y in ((n, f()) for n, f in KERNELS.items()):
        folder = tmp_path_factory.mktemp("alone") / name
        tir.Schedule(y).export(folder, to=["pyopencl"], name=name)
        made[name] = program(folder)
    return made


def test_folders_for_python_refuse_the_same(programs):
    j, d, x = some()
    f, out, x = programs["spmv"], np.full(ROWS, -1, "float32"), x[:, 0].copy()
    for places, _, _ in BAD.values():
        with pytest.raises(ValueError, match=r"P: (neighbours \d and \d differ by|an index is not in 0 \.\.\. 40)"):
            f(np.array(places, "int32"), j, d, x, out=out)
    assert (out == -1).all()
    assert np.array_equal(f(PLACES, j, d, x), dense(j, d) @ x)
    f, x, out = programs["placed"], np.arange(6, dtype="float32").reshape(3, 2), np.full((5, 2), -1, "float32")
    for bad, said in ((TWICE, r"more than one term goes to cell \[0, 1\]"), (BEYOND, "an index is not in 0")):
        with pytest.raises(ValueError, match=said):
            f(bad, x, out=out)
    assert (out == -1).all() and f(GOOD, x)[:, 1].tolist() == [1, 0, 5, 0, 3]


def test_self_tests_have_pointers_in_order(folders):
    about = json.loads((folders["spmv"] / "manifest.json").read_text())
    assert "segments" in json.dumps(about) and "steps" in json.dumps(about)
    for folder in folders.values():
        words = ["selftest.c", f"{folder.name}.c", "-o", "test", "-lm", "-ldl", "-lpthread"]
        subprocess.run(["cc", "-std=c11", "-O1", *words], cwd=folder, check=True)
        said = subprocess.run(["./test"], check=False, cwd=folder, capture_output=True, text=True)
        assert said.stdout == f"selftest ok {folder.name}\n", said.stdout + said.stderr
        words = [sys.executable, "selftest.py", "pyopencl"]
        said = subprocess.run(words, check=False, cwd=folder, capture_output=True, text=True)
        assert "selftest ok" in said.stdout, said.stdout + said.stderr
