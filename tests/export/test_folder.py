"""Exported folders: complete, safe to write, and their self-test notices any change of the kernel."""

import ast
import hashlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import zoo

import tensorir as tir
from tensorir.codegen.source import Source
from tensorir.export import bodies
from tensorir.export.folder import export
from tensorir.export.program import ExportError
from tensorir.export.shipped import selftest
from tensorir.interp.numbers import numpy_dtype
from tensorir.runtime.device import devices
from tensorir.tune import inputs

pytestmark = pytest.mark.usefixtures("unoptimised")

needs_device = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)


def exported(work, path, to=("source", "pyopencl"), config=None, target="opencl"):
    s = work.schedule(config, target=target)
    return export(s.emitted(), path, list(to), str(s.trace), outputs=work.outputs)


def run(path):
    return subprocess.run(
        [sys.executable, "-I", str(path / "selftest.py")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        check=False,
    )


@needs_device
def test_folder_tests_itself_anywhere(tmp_path):
    where = exported(zoo.product(13), tmp_path / "deep" / "out").rename(tmp_path / "moved")
    done = run(where)
    assert done.returncode == 0 and done.stdout.startswith("selftest ok") and done.stdout.count("\n") == 1, done.stderr
    names = {p.name for p in where.iterdir()}
    assert {"manifest.json", "loader.py", "selftest.py", "README.md", "C.cl"} <= names
    manifest = json.loads((where / "manifest.json").read_text())
    assert set(manifest["files"]) == names - {"manifest.json"}
    for name, about in manifest["files"].items():
        assert hashlib.sha256((where / name).read_bytes()).hexdigest() == about["sha256"]
    assert manifest["kernels"][0]["grid"] == [13, 1, 1] and manifest["arguments"][0]["align"] >= 4
    assert manifest["trace"][0].startswith("s.split(")


@needs_device
def test_loader_takes_arrays_and_refuses_others(tmp_path):
    where = exported(zoo.product(13), tmp_path / "out")
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import threading, numpy as np, pyopencl as cl, pyopencl.array as ca
from loader import Program
program = Program()
a = np.arange(169, dtype=np.float32).reshape(13, 13)
assert np.array_equal(program(a, a), a @ a)
out = np.empty_like(a)
assert program(a, a, out=out) is out and np.array_equal(out, a @ a)
d = ca.to_device(program.queue, a)
assert np.array_equal(program(d, d).get(), a @ a)
late = cl.UserEvent(program.context)  # on another queue
cl.enqueue_barrier(there := cl.CommandQueue(program.context), wait_for=[late])
d.with_queue(there).fill(2)
threading.Timer(0.1, late.set_status, [cl.command_execution_status.COMPLETE]).start()
assert np.all(program(d, d).get() == 4 * 13)
for bad in ((a,), (a, a.astype(np.float64)), (a, a[:5]), (a, 5)):
    try:
        program(*bad)
    except (TypeError, ValueError):
        continue
    raise SystemExit(f"{len(bad)} arguments were accepted")
"""
    command = [sys.executable, "-c", code, str(where)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3", "float16", "float32"])
def test_digests_take_zeros_of_either_sign(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr("tensorir.export.evidence.MAX_STORED_BYTES", 1)
    kind = numpy_dtype(dtype)
    x = tir.placeholder((40,), dtype, name="x")
    y = tir.compute((40,), lambda i: tir.where(x[i] > 0, x[i], 0), name="y")
    where = export(tir.Schedule(y).emitted(), tmp_path, ["source"], outputs=(y,))
    m = json.loads((where / "manifest.json").read_text())
    (case,), (given,) = m["selftest"]["cases"], m["selftest"]["inputs"]
    made = selftest.integers(40, given["low"], given["high"], case["seed"] * 1000)
    for zero in (0.0, -0.0):
        result = np.where(made > 0, made, zero).astype(kind)
        bits = result.view(selftest.stored(np.zeros(1), dtype).dtype)
        selftest.compare(m, case, {"name": "y", "dtype": dtype}, bits)
    with pytest.raises(selftest.WrongError):
        selftest.compare(m, case, {"name": "y", "dtype": dtype}, bits[::-1])


def loader_of(path):
    spec = importlib.util.spec_from_file_location("exported_loader", path / "loader.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@needs_device
def test_results_do_not_overwrite_what_is_read(tmp_path):
    import pyopencl as cl
    import pyopencl.array as arrays

    program = loader_of(exported(zoo.product(13), tmp_path / "out")).Program()
    a = np.arange(169, dtype=np.float32).reshape(13, 13)
    kept = a.copy()
    assert np.array_equal(program(a, a, out=a), kept @ kept)  # host arrays are copied before
    device = arrays.to_device(program.queue, np.concatenate([kept, np.zeros((51, 13), "f4"), kept]))
    with pytest.raises(ValueError, match="C: expected memory of its own, got memory that overlaps A"):
        program(device[:13], device[:13], out=device[:13])
    assert np.array_equal(program(device[:13], device[:13], out=device[64:]).get(), kept @ kept)
    parts = [device.base_data.get_sub_region(0, kept.nbytes) for _ in range(2)]
    a, out = (arrays.Array(program.queue, (13, 13), np.float32, data=part) for part in parts)
    with pytest.raises(ValueError, match="overlaps A"):
        program(a, a, out=out)
    other = cl.CommandQueue(cl.Context([program.queue.device]))
    with pytest.raises(ValueError, match="another context"):
        program(arrays.to_device(other, kept), device[:13])
    with pytest.raises(TypeError, match="got MaskedArray"):
        program(np.ma.array(kept, mask=kept > 9), kept)
    pair = loader_of(exported(zoo.rich(), tmp_path / "two")).Program()
    out = np.empty((6, 5), np.float32)
    with pytest.raises(ValueError, match="overlaps"):
        pair(np.zeros((7, 5), "f4"), np.zeros(6, "i4"), 1.0, out=(out, out))


@needs_device
@pytest.mark.parametrize(
    ("dtype", "right", "wrong"),
    [
        ("float32", {2: 2, 0.5: 0.5, True: 1, np.float32(3): 3}, ("2", None, 1j, [2.0], np.float64(2), np.ones(1))),
        ("float16", {2: 2, 0.5: 0.5, np.float16(3): 3}, (np.float32(2), np.uint16(2))),
        ("int32", {2: 2, np.int32(-3): -3}, (2.0, 0.5, np.int64(2))),
        ("bfloat16", {0.5: 0.5, -3: -3, 1 + 2**-7 + 2**-9: 1 + 2**-7, 1 + 2**-8: 1, 1e39: np.inf}, (np.uint16(2),)),
        ("float8_e5m2", {0.5: 0.5, -3: -3, 1.3: 1.25, 1e5: np.inf, 2**-17: 0, -(2**-16): -(2**-16)}, ("2",)),
    ],
)
def test_scalars_are_taken_by_value_or_refused(tmp_path, dtype, right, wrong):
    x, s = tir.placeholder((4,), dtype, name="x"), tir.scalar("s", dtype)
    y = tir.compute((4,), lambda i: x[i] * s, name="y")
    where = export(tir.Schedule(y).emitted(), tmp_path / "out", ["pyopencl"], outputs=(y,))
    assert ("passed as float32" in (where / "README.md").read_text()) == (dtype not in ("float32", "int32"))
    assert verdict(where) == 0
    loader = loader_of(where)
    program, ones = loader.Program(), selftest.stored(np.ones(4), dtype)
    for given, value in right.items():
        assert (selftest.as_double(program(ones, given), dtype) == value).all(), given
    for given in wrong:
        with pytest.raises(TypeError, match="s: expected"):
            program(ones, given)


@needs_device
def test_threads_take_turns_and_queues_need_no_order(tmp_path):
    import pyopencl as cl

    x, k = tir.placeholder((8, 8), name="x"), tir.reduce_axis(8, name="k")
    twice = tir.compute((8, 8), lambda i, j: 2 * x[i, j], name="twice")
    y = tir.compute((8, 8), lambda i, j: tir.sum(twice[i, k] * x[k, j], axis=k), name="y")
    loader = loader_of(export(tir.Schedule(y).emitted(), tmp_path / "out", ["pyopencl"], outputs=(y,)))
    order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    program = loader.Program(cl.CommandQueue(cl.Context([loader.choose_device("cpu")]), properties=order))
    a, b = (np.random.default_rng(n).integers(-4, 5, (8, 8)).astype("f4") for n in (1, 2))
    found, inside = [], threading.Event()
    second = threading.Thread(target=lambda: found.append(program(b)))
    (first, kernel), last = program.launches

    class Slow:
        def __getattr__(self, name):
            return getattr(kernel, name)

        def set_args(self, *given):
            kernel.set_args(*given)
            if threading.current_thread() is not second:
                second.start()
                inside.wait(0.1)  # long enough for the other thread to come between, if it can

    program.launches = [(first, Slow()), last]
    real = cl.enqueue_nd_range_kernel
    loader.cl = types.SimpleNamespace(**vars(cl))
    loader.cl.enqueue_nd_range_kernel = lambda q, k, *more, **options: real(
        q, kernel if isinstance(k, Slow) else k, *more, **options
    )
    made = program(a)
    second.join()
    assert np.array_equal(made, 2 * a @ a) and np.array_equal(found[0], 2 * b @ b)


@needs_device
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_needs_a_program_of_its_own(tmp_path, monkeypatch):
    loader = loader_of(exported(zoo.product(13), tmp_path / "out"))
    program, a = loader.Program(), np.ones((13, 13), np.float32)
    monkeypatch.setattr(loader.os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="forked"):
        program(a, a)


@needs_device
def test_everything_that_a_program_may_have(tmp_path):
    where = exported(zoo.rich(), tmp_path / "out")
    done = run(where)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((where / "manifest.json").read_text())
    assert [p["role"] for p in manifest["arguments"]][:5] == ["input", "input", "scalar", "output", "output"]
    assert manifest["gathers"] == [{"param": "index", "limit": 7, "into": "table", "part": []}]


@needs_device
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "bool", "float8_e4m3", "float8_e5m2"])
def test_dtypes(tmp_path, dtype):
    A = tir.placeholder((9,), dtype, name="A")
    C = tir.compute((9,), lambda i: tir.where(A[i], A[i], A[8 - i]) if dtype == "bool" else A[i] + A[8 - i], name="C")
    done = run(exported(tir.Workload("w", C, {"t": (lambda s, c: None, tir.Space())}), tmp_path / "out"))
    assert done.returncode == 0, done.stderr


@needs_device
def test_inexact_results_have_a_tolerance(tmp_path):
    A = tir.placeholder((50,), name="A")
    C = tir.compute((50,), lambda i: tir.exp(A[i] * 0.1), name="C")
    where = exported(tir.Workload("w", C, {"t": (lambda s, c: None, tir.Space())}), tmp_path / "out")
    assert "within rounding" in run(where).stdout
    change(where, "0.1f", "0.11f")
    assert run(where).returncode == 1


@needs_device
def test_large_results_ship_as_digests(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorir.export.evidence.MAX_STORED_BYTES", 100)
    where = exported(zoo.product(13), tmp_path / "out")
    assert not list(where.glob("*.npy")) and run(where).returncode == 0
    change(where, "A[", "A[1 + ")
    done = run(where)
    assert done.returncode == 1 and "digest" in done.stderr


def change(where, old, new, count=1, file="*.cl"):
    """Edit the source and its digest in the manifest."""
    source, manifest = next(where.glob(file)), where / "manifest.json"
    text = source.read_text()
    changed = text.replace(old, new, count)
    assert changed != text
    digests = [hashlib.sha256(t.encode()).hexdigest() for t in (text, changed)]
    source.write_text(changed)
    manifest.write_text(manifest.read_text().replace(*digests))


def mutants(text):
    """The body with each index, bound and work-item number changed by one, one at a time."""
    start = text.index("{")
    for m in re.finditer(r"(?<=\[)|(?<=< )|get_(?:group|local|global)_id\(\d\)", text[start:]):
        at = start + m.end()
        if m.group():
            yield text[:at] + " + 1" + text[at:]
        elif text[at - 1] == "[" and not re.search(r"float \w+\[$", text[:at]):
            yield text[:at] + "1 + " + text[at:]
        elif text[at - 1] == " ":
            yield text[:at] + "-1 + " + text[at:]


@needs_device
def test_any_changed_index_is_noticed(tmp_path):
    """The self-test itself runs in this process, so that many mutants cost little."""
    where = exported(zoo.product(13), tmp_path / "out", config={"ti": 2, "tj": 4, "out": True})
    source, manifest = where / "C.cl", where / "manifest.json"
    text, about = source.read_text(), manifest.read_text()
    digest, alive, tried = hashlib.sha256(text.encode()).hexdigest(), [], 0
    for mutant in mutants(text):
        source.write_text(mutant)
        manifest.write_text(about.replace(digest, hashlib.sha256(mutant.encode()).hexdigest()))
        tried += 1
        if verdict(where) == 0:
            alive.append(mutant)
    assert tried >= 10 and not alive, "\n\n".join(alive)
    source.write_text(text)
    manifest.write_text(about)
    assert verdict(where) == 0


def verdict(where):
    saved, selftest.HERE = selftest.HERE, where
    try:
        return selftest.main()
    finally:
        selftest.HERE = saved


@needs_device
def test_large_whole_numbers_are_compared_to_the_last_bit(tmp_path):
    """2^60 and 2^60 + 1 are the same double."""
    A = tir.placeholder((4,), "int64", name="A")
    C = tir.compute((4,), lambda i: A[i] * 2 + 2**60 + 1, name="C")
    where = exported(tir.Workload("large", C, {"plain": (lambda s, c: None, tir.Space())}), tmp_path / "out")
    source, manifest = where / "C.cl", where / "manifest.json"
    wrong = source.read_text().replace(" + 1L;", ";")
    assert verdict(where) == 0 and wrong != source.read_text()
    about = manifest.read_text().replace(
        hashlib.sha256(source.read_bytes()).hexdigest(), hashlib.sha256(wrong.encode()).hexdigest()
    )
    source.write_text(wrong)
    manifest.write_text(about)
    assert verdict(where) == 1


@needs_device
def test_changed_files_are_refused(tmp_path):
    where = exported(zoo.product(13), tmp_path / "out")
    (where / "expected_1_0.npy").write_bytes(b"\x93NUMPY")
    done = run(where)
    assert done.returncode == 1 and "was changed" in done.stderr and not done.stdout


def test_same_generator_on_both_sides():
    assert inspect.getsource(selftest.integers).split('"""')[2] == inspect.getsource(inputs.integers).split('"""')[2]


def test_nothing_in_it_imports_the_package(tmp_path):
    for target, to in (("opencl", ["pyopencl"]), ("cuda", ["source", "cupy"])):
        where = exported(zoo.product(13), tmp_path / target, to, target=target)
        allowed = set(sys.stdlib_module_names) | {"numpy", "pyopencl" if target == "opencl" else "cupy", "__future__"}
        for file in where.glob("*.py"):
            for n in ast.walk(ast.parse(file.read_text())):
                names = [a.name for a in n.names] if isinstance(n, ast.Import) else []
                names += [n.module or ""] if isinstance(n, ast.ImportFrom) else []
                assert {name.split(".")[0] for name in names} <= allowed, file
        assert len((where / "loader.py").read_text().splitlines()) < 320
    assert (where / "C.cu").exists() and "ot yet run on a GPU" in (where / "README.md").read_text()


@pytest.mark.parametrize(
    ("to", "code"),
    [(["pyopncl"], "export.destination"), ([], "export.destination"), ("sourc", "export.destination"),
         (3, "export.destination"),
     (["source", "cupy"], "export.language")],
)  # fmt: skip
def test_wrong_destinations(tmp_path, to, code):
    work = zoo.product(13)
    with pytest.raises(ExportError) as caught:
        export(work.schedule().emitted(), tmp_path / "out", to, outputs=work.outputs)
    assert caught.value.code == code and not (tmp_path / "out").exists()
    if to == ["pyopncl"]:
        assert "pyopencl" in str(caught.value) and "cupy" in str(caught.value)


def test_without_declarations_there_is_nothing_to_test_against(tmp_path):
    with pytest.raises(ExportError, match="nothing to test against: pass the declared outputs") as caught:
        export(zoo.product(13).schedule().emitted(), tmp_path / "out", ["source"])
    assert caught.value.code == "export.no-reference" and not (tmp_path / "out").exists()


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ExportError) as caught:
        exported(zoo.product(13), tmp_path)
    assert caught.value.code == "export.not-empty" and [p.name for p in tmp_path.iterdir()] == ["precious.txt"]
    (tmp_path / "manifest.json").write_text('{"format": "something else"}')
    with pytest.raises(ExportError):
        exported(zoo.product(13), tmp_path)
    with pytest.raises(ExportError):
        exported(zoo.product(13), tmp_path / "precious.txt")
    with pytest.raises(ExportError, match=r"cannot write .*: Not a directory") as caught:
        exported(zoo.product(13), tmp_path / "precious.txt" / "below")
    assert caught.value.code == "export.unwritable"


def test_own_earlier_export_is_replaced(tmp_path):
    where = exported(zoo.rich(), tmp_path / "out")
    (where / "notes.txt").write_text("mine")
    manifest = json.loads((where / "manifest.json").read_text())
    manifest["files"]["../../victim"] = {"sha256": ""}
    (where / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path.parent / "victim").write_text("mine")
    before = {p.name for p in where.iterdir()}
    exported(zoo.product(13), where)
    after = {p.name for p in where.iterdir()}
    assert "C.cl" in after and "notes.txt" in after and not (before - after) & {"notes.txt"}
    assert not any(name.endswith("_1.npy") for name in after) and (tmp_path.parent / "victim").exists()


@pytest.mark.parametrize("name", ["../../x", "a;rm -rf ~", "float", "x" * 500, "é\n*/", ""])
def test_hostile_names(tmp_path, name):
    made = bodies.file_name(Source(name, "opencl", "", (), ()))
    assert re.fullmatch(r"[A-Za-z0-9_]{1,60}\.cl", made)


def test_executable_exports(tmp_path):
    if not any(d.usable and d.language == "opencl" for d in devices()):
        pytest.skip("no OpenCL device")
    f = zoo.product(13).schedule().build()
    where = f.export(tmp_path / "out", to=["source", "pyopencl"])
    assert isinstance(where, Path) and run(where).returncode == 0
    a = np.ones((13, 13), np.float32)
    assert np.array_equal(f(a, a), a @ a)


@needs_device
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sums_that_blocks_add_to(tmp_path, dtype):
    x, k = tir.placeholder((37, 24), dtype, name="x"), tir.reduce_axis(37, name="k")
    s = tir.Schedule(tir.compute((24,), lambda j: tir.sum(x[k, j], axis=k), name="y"))
    s.decompose_reduction("y", "y.j").schedule.atomic("y").reorder("y.k", "y.j").bind("y.k", "block.x")
    done = run(s.build().export(tmp_path / "out"))
    assert done.stdout == "selftest ok source: y, 2 cases, exact\n", done.stderr


def weighted():
    """y = x w, the weights packed by a kernel that runs once."""
    x, w = tir.placeholder((8, 16), name="x"), tir.placeholder((16, 12), name="w")
    k = tir.reduce_axis(16, name="k")
    s = tir.Schedule(tir.compute((8, 12), lambda i, j: tir.sum(x[i, k] * w[k, j], axis=k), name="y"))
    s.stage_in(w, "root", "global", order=[1, 0], run="once")
    return s


@needs_device
@pytest.mark.parametrize("fixed", [False, True])
def test_kernels_that_run_once(tmp_path, fixed):
    x, w = (np.random.default_rng(n).integers(-4, 5, size).astype("f4") for n, size in ((1, (8, 16)), (2, (16, 12))))
    f = weighted().build()
    where = (f.prepack(w=w) if fixed else f).export(tmp_path / "out", to=["source", "pyopencl"])
    np.savez(tmp_path / "arrays.npz", x=x, w=w)
    done = run(where)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((where / "manifest.json").read_text())
    assert [k["once"] for k in manifest["kernels"]] == [True, False] and manifest["prepack"] == ["w"]
    assert "program.prepack(w=w)" in (where / "README.md").read_text()
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, pyopencl.array as ca
from loader import Program
arrays = np.load(sys.argv[2]); x, w = arrays["x"], arrays["w"]
program = Program()
fixed = sys.argv[3] == "True"
assert np.array_equal(program(x) if fixed else program(x, w), x @ w) and len(program.launches) == 2 - fixed
ready, other = program.prepack(w=w), program.prepack(w=ca.to_device(program.queue, w + 1))
assert np.array_equal(ready(x), x @ w) and np.array_equal(other(x), x @ (w + 1)) and len(ready.launches) == 1
assert np.array_equal(program(x) if fixed else program(x, w * 2), x @ w * (1 if fixed else 2))
assert np.array_equal(ready(x), x @ w)
for bad in ({}, {"x": x}, {"w": w[:3]}):
    try:
        program.prepack(**bad)
    except (TypeError, ValueError):
        continue
    raise SystemExit(f"{list(bad)} was accepted")
"""
    command = [sys.executable, "-c", code, str(where), str(tmp_path / "arrays.npz"), str(fixed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    change(where, "w_global[", "w_global[1 + ")
    assert run(where).returncode == 1


def test_kernels_that_run_once_for_cupy(tmp_path):
    s = weighted()
    where = export(s.emitted("cuda"), tmp_path / "out", ["cupy"], outputs=s.outputs)
    assert "def prepack" in (where / "common.py").read_text() and "Base" in (where / "loader.py").read_text()
