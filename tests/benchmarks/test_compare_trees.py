"""The script that compares two trees: what counts as the same text, and what it says of changes that are planted."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

import tensorir as tir
from tensorir.tune.template import suiting

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("compare_trees", ROOT / "benchmarks/compare_trees.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A function that makes a tree in which files are changed: (path, old text, new text) for each."""

    def made(*changes):
        tree = tmp_path_factory.mktemp("tree")
        # with what is compiled, but for files that another process writes
        shutil.copytree(ROOT / "tensorir", tree / "tensorir", ignore=shutil.ignore_patterns("*.pyc.*"))
        for path, old, new in changes:
            file = tree / "tensorir" / path
            text = file.read_text()
            assert old in text, f"{path} has no {old!r} any more"
            file.write_text(text.replace(old, new))
        return tree

    return made


def rows_of(script, after, *given):
    options = script.arguments([str(ROOT), str(after), "--configs", "0", *given])
    return list(script.compared(options))


KERNEL = """
/* one */ static inline float add(float a, float b) { return a + b; }
void k(const float *restrict A, float *restrict B) {
  for (int i = 0; i < 8; i++) { float s = A[i]; B[i] = add(s, s.x); }
  { float *p = B + 1; int i = 2; p[i] = A[i]; }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("/* one */", "// another\n", True),
        ("add", "plus", True),
        ("float s = A[i]; B[i] = add(s, s.x);", "float t = A[i]; B[i] = add(t, t.x);", True),
        ("int i = 2; p[i] = A[i]", "int n = 2; p[n] = A[n]", True),
        ("*restrict B", "*restrict C", False),  # and B is what nobody declared
        ("return a + b", "return b + a", False),
        ("add(s, s.x)", "add(s, s.y)", False),
        ("A[i]; }\n}", "A[1]; }\n}", False),
        ("i < 8", "i < 9", False),
        ("p[i] = A[i]", "p[i] = B[i]", False),
    ],
)
def test_texts_differ_by_more_than_names(script, old, new, same):
    from trees.names import difference

    assert old in KERNEL
    found = difference(KERNEL, KERNEL.replace(old, new))
    assert (found is None) == same, found


def test_a_name_means_the_innermost_declaration(script):
    from trees.names import difference

    one = "void k(int *o) { int a = 1; for (int a = 0; a < 2; a++) o[a] = a; o[3] = a; }"
    assert difference(one, "void k(int *o) { int a = 1; for (int b = 0; b < 2; b++) o[b] = b; o[3] = a; }") is None
    assert difference("void k(int *o) { int a = 1; int b = 2; { int c = 3; o[0] = a; } }",
                      "void k(int *o) { int a = 1; int b = 2; { int c = 3; o[0] = b; } }") == (1, 1)  # fmt: skip


SMALL = ("--shape", "matmul", "m=128", "n=128", "k=16", "act=relu")
LARGER = ("--shape", "matmul", "m=256", "n=256", "k=16", "act=relu")
CUDA = (*LARGER, "--target", "cuda -arch=sm_80", "--template", "gpu_tile$")
compiler = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang")), reason="no C compiler")
cxx = pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler")


@compiler
def test_a_tree_that_names_kernels_otherwise_is_equal(script, changed):
    tree = changed(("lower/kernel.py", '_kernel"', '_nest"'))
    rows = rows_of(script, tree, *SMALL, "--target", "c:0", "--target", "cuda -arch=sm_80")
    assert {r["status"] for r in rows} == {"equal"}, rows
    assert {"cpu_tile_column", "gpu_tile"} <= {r["template"] for r in rows}
    assert script.told(rows, script.figures(rows))[1] == 0


@compiler
def test_what_differs_on_a_processor_is_timed(script, changed):
    tree = changed(("engines/product.py", ", terms=unroll)", ")"))
    (row,) = rows_of(script, tree, *SMALL, "--target", "c:0", "--template", "cpu_tile_column", "--rounds", "3")
    assert row["status"] in ("better", "alike", "worse")
    assert row["ratio"]["low"] <= row["ratio"]["value"] <= row["ratio"]["high"]
    assert list(script.figures([row])) == ["matmul cpu_tile_column c:0"]
    assert row["apart"]["lines"][0] != row["apart"]["lines"][1]


@cxx
def test_more_instructions_and_sectors_on_cuda_are_worse(script, changed):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    tree = changed(("engines/gemm_blocks.py", "if n <= most and", "if n <= 1 and"))
    (row,) = rows_of(script, tree, *CUDA)
    assert row["status"] == "worse"
    assert "LDG " in row["detail"]
    assert "shared write" in row["detail"], "four words at a time, and now one"
    assert script.told([row], {})[1] == 1


@compiler
def test_another_result_and_a_refusal_are_wrong(script, changed):
    tree = changed(
        ("ops/common.py", "bias, p.act, axis", "bias, None, axis"),
        ("engines/gemm_gpu.py", "Knob(1, 0), Knob(2, 1)\n", "Knob(1, 0), Knob(1)\n"),
    )
    (row,) = rows_of(script, tree, *SMALL, "--target", "c:0", "--template", "cpu_tile_column")
    assert row["status"] == "wrong"
    assert row["detail"].startswith("results differ by")
    (row,) = rows_of(script, tree, *CUDA)
    assert row["status"] == "wrong"
    assert "after:" in row["detail"]


def test_the_interval_of_a_template_decides(script):
    def row(ratio):
        return {"op": "matmul", "template": "cpu_tile_dot", "target": "c:0", "status": "worse",
                "rounds": [([1.0, 1.1, 1.0, 1.2, 1.0], [x / ratio for x in (1.0, 1.1, 1.0, 1.2, 1.0)])]}  # fmt: skip

    for ratios, status in (((0.9, 0.9), 1), ((0.9, 1.2), 0), ((0.995,), 0)):
        rows = [row(r) for r in ratios]
        assert script.told(rows, script.figures(rows))[1] == status, ratios


def test_every_template_of_the_operators_is_in_a_case(script):
    """Each name of a template that the package spells."""
    spelled = {
        m for f in (ROOT / "tensorir/ops").glob("*.py") for m in re.findall(r'"((?:cpu|gpu)_[a-z_]+)"', f.read_text())
    }
    missing = spelled | {"cpu_tile_column", "cpu_tile_strip", "cpu_tile_dot"}
    # from the end where the newest instructions are; only as many are made as it takes to find all
    for target, cases in (("c", script.CASES), ("cuda -arch=sm_90a", reversed(script.CASES))):
        on = tir.Target.parse(target)
        for given, op in ((case.parameters(on.kind), case.op) for case in cases):
            if given is not None and any(name.startswith(on.kind) for name in missing):
                missing -= {name for name, _ in suiting(getattr(tir.ops, op)(**given).templates, on)}
    assert not missing
