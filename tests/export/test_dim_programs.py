"""C programs whose extents each call decides: one text for all of them, tested at several, ranges looked at first."""

import ctypes
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import tensorir as tir
from tensorir.codegen.source import DimRange
from tensorir.export.c_extents import InC, helpers
from tensorir.export.folder import MOST_WORK, export_part, largest, points, work
from tensorir.ir.extents import value

STRICT = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror")
LIBRARIES = ("-lm", "-ldl", "-lpthread")
pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def product():
    """A product and what follows it, with workspace as large as the extent."""
    n = tir.dim("n", low=2, high=4096)
    A, B = tir.placeholder((n, 8), name="A"), tir.placeholder((8, 6), name="B")
    k = tir.reduce_axis(8, name="k")
    C = tir.compute((n, 6), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    top = tir.compute((n,), lambda i: C[i, 0], name="top")
    s = tir.Schedule(tir.compute((n, 6), lambda i, j: C[i, j] - top[i], name="D"), target="c")
    s.bind(s.split("D.i", [None, 4], tail="peel")[0], "block.x")
    return s


def rows():
    """Two dims, results within rounding, names that C's own text has, and extents that are expressions."""
    n, call = tir.dim("n", low=1, high=100000), tir.dim("call", low=1, high=33)
    A = tir.placeholder((n, call), name="A")
    k = tir.reduce_axis(call, name="k")
    total = tir.compute((n,), lambda i: tir.sum(tir.exp(A[i, k]), axis=k), name="total")
    B = tir.compute(
        (n + call, call), lambda i, j: tir.where(i < n, tir.exp(A[tir.minimum(i, n - 1), j]), 1.0), name="B"
    )
    s = tir.Schedule([B, tir.compute((n,), lambda i: tir.log(total[i]), name="logs")], target="c")
    s.bind(s.split("B.i", [None, 8])[0], "block.x")
    return s


def gathered():
    """Indices below a dim, of which there are as many as another."""
    n, m = tir.dim("n", low=1, high=50), tir.dim("m", low=1, high=30)
    E, at = tir.placeholder((n, 8), name="E"), tir.placeholder((m,), "int64", name="at")
    return tir.Schedule(tir.compute((m, 8), lambda i, j: E[at[i], j], name="C"), target="c")


def scattered():
    n = tir.dim("n", low=1, high=20)
    at, v = tir.placeholder((n,), "int32", name="at"), tir.placeholder((n,), name="v")
    Y = tir.scatter((n + 2,), over=(n,), index=lambda t: (at[t],), value=lambda t: v[t], op="set", fill=-1, name="Y")
    return tir.Schedule(Y, target="c")


def told_by_a_line():
    n, c = tir.dim("n", low=3, high=90), tir.scalar("c", "float16")
    X = tir.placeholder((2 * n + 1,), "float16", name="X")
    return tir.Schedule(tir.compute((n,), lambda i: X[2 * i] * c + X[2 * i + 2], name="Y"), target="c")


KERNELS = (product, rows, gathered, scattered, told_by_a_line)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kernel):
        if kernel not in made:
            made[kernel] = kernel().export(tmp_path_factory.mktemp("c") / kernel.__name__, to="c")
        return made[kernel]

    return folder


def outcome(folder, *flags, compiler="cc"):
    """The self-test in C, compiled without a warning and run."""
    build = [compiler, *STRICT, *flags, "selftest.c", f"{folder.name}.c", "-o", "selftest", *LIBRARIES]
    built = subprocess.run(build, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[:3000]
    return subprocess.run(["./selftest"], cwd=folder, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_its_own_test_passes_without_a_warning(folders, kernel):
    done = outcome(folders(kernel))
    assert done.returncode == 0 and done.stdout.strip() == f"selftest ok {kernel.__name__}", done.stderr


@pytest.mark.skipif(not shutil.which("clang"), reason="clang is not installed")
@pytest.mark.parametrize("kernel", [product, rows], ids=lambda k: k.__name__)
def test_the_other_compiler_says_nothing_either(folders, kernel):
    assert outcome(folders(kernel), compiler="clang").returncode == 0


@pytest.mark.parametrize("kernel", [product, gathered, scattered], ids=lambda k: k.__name__)
def test_sanitizers_say_nothing(folders, kernel):
    done = outcome(folders(kernel), "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    assert done.returncode == 0 and not done.stderr, done.stderr[:3000]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_the_python_side_runs_it_too(folders, kernel):
    done = subprocess.run([sys.executable, "-I", "selftest.py"], cwd=folders(kernel), check=False, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("selftest ok c"), done.stdout + done.stderr


FAULTS = {
    "a tail": ("+ 1 <= n", "+ 2 <= n"),
    "a range": ("dim_n > 4096", "dim_n > 4097"),
    "the workspace": ("* 24 + 63", "* 20 + 63"),
    "a grid": ("(dim_n + 3) / 4", "(dim_n + 2) / 4"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_some_extents_have_fails(folders, tmp_path, fault):
    folder = tmp_path / "product"
    shutil.copytree(folders(product), folder)
    text = (folder / "product.c").read_text()
    old, new = FAULTS[fault]
    if fault == "a tail":  # the last rows of some extents
        old, new = "n <= i_0 * 4 + 1", "n < i_0 * 4 + 1"
    assert old in text
    (folder / "product.c").write_text(text.replace(old, new))
    done = outcome(folder, *(("-fsanitize=address",) if fault == "the workspace" else ()))
    assert done.returncode != 0, fault


def library(folder):
    name = folder.name
    subprocess.run(["cc", "-std=c11", "-O1", "-shared", "-fPIC", f"{name}.c", "-o", "own.so", *LIBRARIES],
                   cwd=folder, check=True, timeout=120)  # fmt: skip
    return ctypes.CDLL(str(folder / "own.so"))


def codes(folder):
    text = (folder / f"{folder.name}.h").read_text()
    return {name: int(n) for name, n in re.findall(rf"{folder.name.upper()}_(\w+) = (\d+)", text)}


def test_a_call_says_how_large_its_arrays_are(folders):
    folder = folders(product)
    function, error = library(folder).product, codes(folder)
    b = np.random.default_rng(1).integers(-4, 5, (8, 6)).astype("f4")
    for n in (2, 3, 4, 5, 1021, 4096, 7):
        a, out = np.random.default_rng(n).integers(-4, 5, (n, 8)).astype("f4"), np.full((n, 6), np.nan, "f4")
        places = [a.ctypes.data, b.ctypes.data, out.ctypes.data, np.array([n]).ctypes.data]
        assert function(None, (ctypes.c_void_p * 4)(*places)) == 0
        want = a @ b
        np.testing.assert_array_equal(out, want - want[:, :1])
    for n in (1, 4097, -(2**40), 2**32 + 5):
        extent = np.array([n])
        places[3] = extent.ctypes.data
        assert function(None, (ctypes.c_void_p * 4)(*places)) == error["DIM_RANGE"]
    places[3] = None
    assert function(None, (ctypes.c_void_p * 4)(*places)) == error["NULL"]


def test_its_header_says_ranges_and_the_typed_call_takes_extents(folders, tmp_path):
    folder = folders(rows)
    header = (folder / "rows.h").read_text()
    assert "n 1 to 100000, call 1 to 33" in header
    assert "buffers[3]: n, the address of an int64_t, 1 to 100000" in header
    assert "size_t rows_workspace_bytes(int64_t n, int64_t call_);" in header
    (folder / "typed.c").write_text("""
#include "rows.h"
int main(void) {
  float a[3][2] = {{0}}, b[5][2], logs[3];
  if (rows_typed(&a[0][0], &b[0][0], logs, 3, 2, NULL) || logs[2] < 0.69f || logs[2] > 0.7f || b[4][1] != 1) return 1;
  return rows_typed(&a[0][0], &b[0][0], logs, 3, 34, NULL) != ROWS_DIM_RANGE;
}
""")
    command = ["cc", *STRICT, "typed.c", "rows.c", "-o", "typed", *LIBRARIES]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    assert subprocess.run(["./typed"], cwd=folder, check=False, timeout=60).returncode == 0


def test_shapes_tell_the_dims_and_disagreements_have_words(tmp_path):
    n, m = tir.dim("n", low=1, high=20), tir.dim("m", low=2, high=9)
    A, B = tir.placeholder((n, 2 * m + 1), name="A"), tir.placeholder((n,), name="B")
    s = tir.Schedule(tir.compute((n, m), lambda i, j: A[i, j] + B[i], name="Y"), target="c")
    folder = s.export(tmp_path / "told", to="c")
    loaded, error = library(folder), codes(folder)

    def ask(*shapes):
        kept = [np.array(shape, np.int64) for shape in shapes]
        dims, why = (ctypes.c_int64 * 2)(), ctypes.create_string_buffer(200)
        places = (ctypes.c_void_p * len(kept))(*(a.ctypes.data for a in kept))
        return loaded.told_dims(places, dims, why, ctypes.c_size_t(200)), tuple(dims), why.value.decode()

    assert ask((5, 7), (5,))[:2] == (0, (5, 3))
    assert ask((5, 7), (6,))[::2] == (
        error["DIM_DISAGREE"],
        "n is 5 in A.shape[0] and 6 in B.shape[0]: it is one extent",
    )
    assert ask((21, 7), (21,))[::2] == (error["DIM_RANGE"], "A.shape[0]: n is 1 to 20, got 21")
    assert ask((5, 21), (5,))[::2] == (error["DIM_RANGE"], "A.shape[1]: m is 2 to 9, got 10")
    assert ask((5, 8), (5,))[::2] == (error["DIM_RANGE"], "no shape tells m")
    got = (ctypes.c_int64 * 8)()
    loaded.told_extents((ctypes.c_int64 * 2)(5, 3), got)
    assert re.search(r"made of: n, 2 \* m \+ 1, m\.", (folder / "told.h").read_text()) and list(got[:3]) == [5, 7, 3]


def test_weights_are_packed_once_for_every_extent(tmp_path):
    """What is packed depends on the weights alone."""
    n = tir.dim("n", low=1, high=40)
    A, W = tir.placeholder((n, 8), name="A"), tir.placeholder((8, 6), name="W")
    k = tir.reduce_axis(8, name="k")
    turned = tir.compute((6, 8), lambda j, k: W[k, j], name="turned")
    s = tir.Schedule(tir.compute((n, 6), lambda i, j: tir.sum(A[i, k] * turned[j, k], axis=k), name="Y"), target="c")
    s.run_once("turned")
    folder = s.export(tmp_path / "packed", to="c")
    assert "packed_packed_bytes ((size_t)192)" in (folder / "packed.h").read_text()
    assert outcome(folder).returncode == 0
    done = subprocess.run(
        [sys.executable, "-I", "selftest.py"], cwd=folder, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_depends_on_an_extent_is_packed_in_every_call(tmp_path):
    n = tir.dim("n", low=1, high=40)
    W, A = tir.placeholder((8, n), name="W"), tir.placeholder((8,), name="A")
    turned = tir.compute((n, 8), lambda i, k: W[k, i], name="turned")
    k = tir.reduce_axis(8, name="k")
    s = tir.Schedule(tir.compute((n,), lambda i: tir.sum(A[k] * turned[i, k], axis=k), name="Y"), target="c")
    s.run_once("turned")
    folder = s.export(tmp_path / "each", to="c")
    assert "_pack(" not in (folder / "each.h").read_text()
    assert outcome(folder).returncode == 0


@pytest.mark.parametrize("kernel", [product, gathered, scattered], ids=lambda k: k.__name__)
def test_a_driver_launches_as_many_blocks_as_an_extent_needs(tmp_path, kernel):
    pytest.importorskip("pyopencl")
    made = kernel()
    part = type(made)(made.outputs, "opencl").replay(made.trace)._part()
    folder = export_part(part, tmp_path / "hosted", ["c"], others={"c": replace(part, hosted=True)})
    built = subprocess.run(["cc", *STRICT, "-c", "selftest.c", "hosted.c"], cwd=folder, check=False,
                           capture_output=True, text=True, timeout=120)  # fmt: skip
    assert built.returncode == 0, built.stderr
    done = subprocess.run([sys.executable, "-I", "selftest.py"], cwd=folder, check=False, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    assert done.stdout.startswith("selftest ok c:"), done.stdout + done.stderr


def test_a_self_test_has_awkward_extents(folders):
    cases = json.loads((folders(product) / "manifest.json").read_text())["selftest"]["cases"]
    seen = {case["dims"]["n"] for case in cases}
    assert {2, 7, 4096} <= seen and {n % 4 for n in seen} >= {0, 1, 3}


def test_a_self_test_is_done_in_a_moment_whatever_the_ranges():
    n, m = tir.dim("n", high=2**31 - 1), tir.dim("m", high=2**31 - 1)
    A = tir.placeholder((n, m), name="A")
    s = tir.Schedule(tir.compute((n, m), lambda i, j: A[i, j] + 1, name="Y"), target="c")
    most = largest(s.outputs)
    assert MOST_WORK // 4 <= work(s.outputs, most) <= MOST_WORK
    assert all(point["n"] * point["m"] <= MOST_WORK for point in points(s.outputs, [s.emitted()]))


def test_arrays_that_nobody_can_count_are_refused(tmp_path):
    n, m = tir.dim("n", high=2**31 - 1), tir.dim("m", high=2**31 - 1)
    A = tir.placeholder((n, m), name="A")
    s = tir.Schedule(tir.compute((n, m), lambda i, j: A[i, j] + 1, name="Y"), target="c")
    with pytest.raises(tir.TensorIRError) as caught:
        s.export(tmp_path / "none", to="c")
    assert caught.value.problems[0].code == "export.dims"
    assert not (tmp_path / "none").exists()


def test_expressions_in_c_have_pythons_values(tmp_path):
    """Division rounds down, also of what is negative."""
    rng = np.random.default_rng(0)
    texts = ["(n + 7) // 8", "n - m", "(n - m) // 3", "(n - 9) % 4", "min(n, m) * 2 + 1", "max(n - m, 3) // 2 * n",
             "64 - n", "n * (m + 1) - (n - m)", "(-n + 2) // 5", "n // m", "n % m"]  # fmt: skip
    said = InC([DimRange("n", 1, 90), DimRange("m", 2, 50)])
    body = "".join(f"  out[{k}] = {said(text)};\n" for k, text in enumerate(texts))
    text = "\n".join(
        ["#include <stdint.h>", *helpers(body), "void f(int64_t dim_n, int64_t dim_m, int64_t *out) {", body, "}"]
    )
    (tmp_path / "f.c").write_text(text)
    subprocess.run(["cc", *STRICT, "-shared", "-fPIC", "f.c", "-o", "f.so"], cwd=tmp_path, check=True, timeout=60)
    f, out = ctypes.CDLL(str(tmp_path / "f.so")).f, (ctypes.c_int64 * len(texts))()
    f.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    for n, m in zip(rng.integers(1, 91, 200).tolist(), rng.integers(2, 51, 200).tolist(), strict=True):
        f(n, m, out)
        assert list(out) == [value(text, {"n": n, "m": m}) for text in texts], (n, m)


def test_self_tests_tell_dims_of_the_same_range_apart_in_both_orders():
    n, m = tir.dim("n", low=16, high=4096), tir.dim("m", low=16, high=4096)
    X = tir.placeholder((n, m), name="X")
    s = tir.Schedule(tir.compute((n, m), lambda i, j: X[i, j] * 2.0, name="Y"))
    orders = {(p["n"] > p["m"]) - (p["n"] < p["m"]) for p in points(s.outputs, [s.emitted()])}
    assert orders == {-1, 0, 1}
