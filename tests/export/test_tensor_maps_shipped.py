"""Exported folders of kernels that take tensor maps, run on a CuPy and a driver in host memory."""

import ast
import importlib.util
import json
import sys
from dataclasses import replace

import fake_cuda
import numpy as np
import pytest
from fake_cuda import SHAPE, SOURCE, Driver

import tensorir as tir
from tensorir.export.folder import export
from tensorir.export.shipped import selftest

X, Y, Z = (np.random.default_rng(n).integers(-9, 9, SHAPE).astype(np.float32) for n in (1, 2, 3))


def exported(path, source=SOURCE):
    A, B = tir.placeholder(SHAPE, name="A"), tir.placeholder(SHAPE, name="B")
    C = tir.compute(SHAPE, lambda i, j: A[i, j] + B[i, j], name="C")
    return export(source, path, ["cupy"], outputs=(C,))


@pytest.fixture
def driver(monkeypatch):
    return Driver().install(monkeypatch)


@pytest.fixture
def cupy(driver, monkeypatch):
    made = fake_cuda.cupy()
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


def loaded(folder):
    spec = importlib.util.spec_from_file_location("exported_loader", folder / "loader.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Program()


def test_the_folder_says_all_that_a_map_is(tmp_path):
    where = exported(tmp_path / "out")
    manifest = json.loads((where / "manifest.json").read_text())
    pack, add = manifest["kernels"]
    rows = {"dtype": "float32", "shape": [16, 32], "box": [8, 32], "steps": [], "lower": [], "upper": []}
    assert add["args"] == ["A_map", "C", "W_map"]
    assert add["maps"] == [{"name": f"{n}_map", "array": n, **rows, "swizzle": 128} for n in "AW"]
    assert [m["name"] for m in pack["maps"]] == pack["args"] == ["B_map", "W_store"]
    assert pack["maps"][0] == {"name": "B_map", "array": "B", **rows, "swizzle": 0}
    assert "tensor_maps.py" in manifest["files"] and manifest["prepack"] == ["B"]
    text = (where / "README.md").read_text()
    assert "| `add` | `A_map` | `A` | float32 | 16x32 | 8x32 | 1x1 | 128 |" in text
    assert "| `pack` | `B_map` | `B` | float32 | 16x32 | 8x32 | 1x1 | none |" in text
    for words in ("cuTensorMapEncodeTiled", "innermost first", "13010", "bit 21", "sm_90a"):
        assert words in text
    plain = [replace(k, maps=(), args=k.params) for k in SOURCE.kernels]
    where = exported(tmp_path / "out", replace(SOURCE, kernels=tuple(plain)))
    assert not (where / "tensor_maps.py").exists() and "CUtensorMap" not in (where / "README.md").read_text()
    assert [k["maps"] for k in json.loads((where / "manifest.json").read_text())["kernels"]] == [[], []]


def test_nothing_in_it_imports_the_package(tmp_path):
    files = list(exported(tmp_path / "out").glob("*.py"))
    assert {f.name for f in files} == {
        "__init__.py",
        "common.py",
        "cuda_images.py",
        "loader.py",
        "selftest.py",
        "tensor_maps.py",
    }
    for file in files:
        for n in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in n.names] if isinstance(n, ast.Import) else []
            names += [n.module or ""] if isinstance(n, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "numpy", "cupy"}, file


def test_the_self_test_runs(tmp_path, cupy, driver, monkeypatch, capsys):
    where = exported(tmp_path / "out")
    monkeypatch.setattr(selftest, "HERE", where)
    assert selftest.main() == 0, capsys.readouterr().err
    assert capsys.readouterr().out.startswith("selftest ok cupy: mapped, 2 cases, exact")
    driver.status = 1
    assert selftest.main() == 1
    assert "B: the driver refuses the tensor map B_map (CUDA error 1)" in capsys.readouterr().err


def test_a_call(tmp_path, cupy, driver):
    program = loaded(exported(tmp_path / "out"))
    add = cupy.modules[0].get.functions["add"]
    assert add.max_dynamic_shared_size_bytes == 65536
    a, b, out = (cupy.asarray(fake_cuda.empty(SHAPE, np.float32).host) for _ in range(3))
    a.host[:], b.host[:] = X, Y
    assert program(a, b, out=out) is out
    np.testing.assert_array_equal(out.get(), X + Y)
    packed = program.fixed["W"]
    grid, block, values, shared = add.launches[0]
    assert (grid, block, shared) == ((1, 1, 1), (32, 1, 1), 65536)
    assert [fake_cuda.address_of(v) for v in values] == [a.data.ptr, out.data.ptr, packed.data.ptr]
    assert driver.addresses == [b.data.ptr, packed.data.ptr, a.data.ptr, packed.data.ptr]
    assert driver.asked[2] == {
        "kind": 7, "rank": 2, "address": a.data.ptr, "extents": [32, 16], "strides": [128], "box": [32, 8],
        "steps": [1, 1], "interleave": 0, "swizzle": 3, "promotion": 3, "fill": 0,
    }  # fmt: skip
    assert not (int(values[0].view(np.uint64)[1]) >> 21) & 1, "small, for a driver of 13.0"
    a.host[:] = Z
    np.testing.assert_array_equal(program(a, b, out=out).get(), Z + Y)
    assert len(driver.asked) == 4, "the arrays lie where they lay"
    program(b, b, out=out)
    assert driver.addresses[4:] == [b.data.ptr]
    with pytest.raises(ValueError, match="C: expected memory of its own, got memory that overlaps B"):
        program(a, b, out=b)
    ready = program.prepack(B=b)
    b.host[:] = 0
    np.testing.assert_array_equal(ready(a, out=out).get(), Z + Y)


@pytest.mark.parametrize(
    ("needed", "declared", "passed"), [(4096, 0, 4096), (4096, 4096, 0), (4096, 5120, 0), (70000, 1024, 70000)]
)
def test_memory_that_a_kernel_does_not_declare_comes_at_launch(tmp_path, cupy, monkeypatch, needed, declared, passed):
    """Blocks of a cluster declare none, however little they need."""
    monkeypatch.setattr(fake_cuda.Function, "shared_size_bytes", declared)
    pack, add = SOURCE.kernels
    program = loaded(exported(tmp_path / "out", replace(SOURCE, kernels=(pack, replace(add, shared_bytes=needed)))))
    program(X, Y)
    kernel = cupy.modules[0].get.functions["add"]
    assert [shared for *_, shared in kernel.launches] == [passed]
    assert getattr(kernel, "max_dynamic_shared_size_bytes", None) == (passed if needed > 48 << 10 else None)


def test_steps_are_shipped(tmp_path, cupy, driver):
    pack, add = SOURCE.kernels
    stepped = replace(add, maps=(replace(add.maps[0], steps=(2, 1)), add.maps[1]))
    where = exported(tmp_path / "out", replace(SOURCE, kernels=(pack, stepped)))
    assert "| `add` | `A_map` | `A` | float32 | 16x32 | 8x32 | 2x1 | 128 | |" in (where / "README.md").read_text()
    loaded(where)(X, Y)
    assert [a["steps"] for a in driver.asked] == [[1, 1], [1, 1], [1, 2], [1, 1]]


def test_corners_are_shipped(tmp_path, cupy, driver):
    """As of an array of 16 x 32 elements that is gone through as images of 2 x 8 x 32."""
    pack, add = SOURCE.kernels
    image = replace(add.maps[0], shape=(1, 2, 8, 32), steps=(1, 1, 2, 1), lower=(-1, 0), upper=(-1, -2))
    where = exported(tmp_path / "out", replace(SOURCE, kernels=(pack, replace(add, maps=(image, add.maps[1])))))
    row = "| `add` | `A_map` | `A` | float32 | 1x2x8x32 | 8x32 | 1x1x2x1 | 128 | -1, 0 to -1, -2 |"
    about = (where / "README.md").read_text()
    assert row in about and "cuTensorMapEncodeIm2col" in about
    loaded(where)(X, Y)
    asked = driver.asked[2]
    assert (asked["lower"], asked["upper"], asked["channels"], asked["pixels"]) == ([0, -1], [-2, -1], 32, 8)
    assert (asked["extents"], asked["steps"]) == ([32, 8, 2, 1], [1, 2, 1, 1])


def test_prepacked_programs_share_no_memory(tmp_path, cupy):
    program = loaded(exported(tmp_path / "out"))
    one, two = program.prepack(B=Y), program.prepack(B=Z)
    for _ in range(2):
        np.testing.assert_array_equal(one(X), X + Y)
        np.testing.assert_array_equal(two(X), X + Z)
        np.testing.assert_array_equal(program(X, X), X + X)
    assert len(one.launches) == 1 and len(program.launches) == 2


def test_loaders_of_several_folders(tmp_path, cupy, monkeypatch):
    """Each folder's own, though all are imported as ``loader``."""
    found = []
    for name in ("one", "two", "one"):
        monkeypatch.syspath_prepend(exported(tmp_path / name))
        found.append(importlib.import_module("loader"))
    assert [m.HERE for m in found] == [tmp_path / name for name in ("one", "two", "one")] and found[0] is found[2]
    np.testing.assert_array_equal(found[1].Program()(X, Y), X + Y)


def test_shipped_weights(tmp_path, cupy, monkeypatch):
    where = exported(tmp_path / "out", SOURCE.fixed({"B": Y.tobytes()}))
    program = loaded(where)
    np.testing.assert_array_equal(program(X), X + Y)
    monkeypatch.setattr(selftest, "HERE", where)
    assert selftest.main() == 0


def test_limits_are_refused_by_name(tmp_path, cupy):
    program = loaded(exported(tmp_path / "out"))
    a, b = fake_cuda.empty(SHAPE, np.float32), fake_cuda.empty((514,), np.float32)
    odd = fake_cuda.Array(b.host[2:].reshape(SHAPE))
    with pytest.raises(ValueError, match="A: expected an array aligned to 16 bytes"):
        program(odd, a)
    with pytest.raises(ValueError, match="B: it starts 8 bytes past a multiple of 16"):
        program.run({"A": a, "B": odd, "C": a})


@pytest.mark.parametrize(
    ("capability", "nvrtc", "own"), [("90", (13, 0), True), ("90", (12, 9), False), ("80", (13, 4), False)]
)
def test_code_for_hopper(tmp_path, monkeypatch, driver, capability, nvrtc, own):
    made = fake_cuda.cupy(capability, nvrtc)
    monkeypatch.setitem(sys.modules, "cupy", made)
    loaded(exported(tmp_path / "out"))
    assert made.modules[0].options == ("--std=c++17", *(["-arch=sm_90a"] if own else []))
