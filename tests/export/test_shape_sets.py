"""Exported sets of shapes: chosen from the log alone, run by the choice of the folder, tested shape by shape."""

import ast
import ctypes
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import zoo
from test_folder import change, needs_device, run, verdict

import tensorir as tir
from tensorir.api.candidate import prepare
from tensorir.api.identity import describe, identity_of
from tensorir.cli import common, main
from tensorir.runtime.device import open_device
from tensorir.target import Target
from tensorir.tune.log import LogWriter

pytestmark = pytest.mark.usefixtures("unoptimised")

DEVICE = {"name": "cpu", "platform": "x", "driver": "1", "target": "opencl"}
ONE, TWO, THREE = ({"ti": ti, "tj": tj, "out": out} for ti, tj, out in ((1, 4, True), (2, 8, False), (2, 4, True)))
SIZES = (12, 13, 40)


def note(log, work, times, device=DEVICE, template="tile", **changed):
    """A log as tuning would leave it: seconds of configurations."""
    identity = identity_of(work, device)
    with LogWriter(log, work.title) as writer:
        for config, time_s in times:
            made = prepare(work, template, config, Target.parse(device["target"]), check=False)
            result = {"status": "ok", "time_s": time_s, "samples": [time_s] * 6, "check": {"ok": True, "max_err": 0.0}}
            result |= {"source_sha256": made.source.sha256, "trace": made.known.trace, **changed}
            writer.append(identity.record("trial", template, config, result))


@pytest.fixture
def log(tmp_path):
    """The middle one is within 5 % everywhere; on its own each shape has another best."""
    for n, best in zip(SIZES, (ONE, THREE, THREE), strict=True):
        note(tmp_path / "log", zoo.product(n), [(best, 1.0e-3 * n), (TWO, 1.02e-3 * n)])
    return str(tmp_path / "log")


def works(*sizes):
    return [zoo.product(n) for n in sizes or SIZES]


@needs_device
def test_every_shape_runs_through_the_choice(log, tmp_path):
    where = tir.export_shapes(works(), tmp_path / "out", ["source", "pyopencl"], log=log).rename(tmp_path / "moved")
    done = run(where)
    assert done.returncode == 0 and done.stdout == "selftest ok source pyopencl: product, 3 shapes, 6 cases, exact\n", (
        done.stderr
    )
    manifest = json.loads((where / "manifest.json").read_text())
    names = {p.name for p in where.iterdir()}
    assert set(manifest["files"]) == names - {"manifest.json"} and "README.md" in names
    assert [(p["parameters"], p["kernel"], p["config"]) for p in manifest["programs"]] == [
        ({"n": n}, 0, TWO) for n in SIZES
    ]
    assert all(p["record"]["id"] and p["regret"] == pytest.approx(0.02) for p in manifest["programs"])
    assert json.loads((where / "kernels.json").read_text())["device"]["name"] == "cpu"
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np
from dispatch import Programs
programs = Programs()
a = np.arange(169, dtype=np.float32).reshape(13, 13)
program = programs(n=13)
assert np.array_equal(program(a, a), a @ a) and programs(n=13) is program and programs(n=40).queue is program.queue
try:
    programs(n=14)
except ValueError as error:
    assert "n=14" in str(error) and "'tj': 8" in str(error)
else:
    raise SystemExit("another shape was taken")
assert "tensorir" not in sys.modules
"""
    command = [sys.executable, "-c", code, str(where)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@needs_device
def test_a_changed_program_or_choice_is_noticed(log, tmp_path, capsys):
    where = tir.export_shapes(works(12, 40), tmp_path / "out", ["pyopencl"], log=log, regret=0)
    assert verdict(where) == 0 and "2 shapes" in capsys.readouterr().out
    shutil.copytree(where, tmp_path / "other")
    change(tmp_path / "other", "A[", "A[1 + ", file="01_C.cl")
    assert verdict(tmp_path / "other") == 1 and "n=40: C" in capsys.readouterr().err
    shutil.copytree(where, tmp_path / "third")
    change(tmp_path / "third", "(12,): 0", "(12,): 1", file="choose.py")
    assert verdict(tmp_path / "third") == 1 and "choose.py says" in capsys.readouterr().err


@needs_device
def test_kernels_that_round_more_than_was_declared(tmp_path, capsys):
    """They are right within the error that their workload allows them, wherever they are exported from."""
    device, log, work = open_device("opencl"), str(tmp_path / "log"), zoo.rounded()
    note(log, work, [({}, 1e-3)], describe(device), "sevenths")
    tir.export_shapes([work], tmp_path / "set", ["pyopencl"], log=log)
    work.load(log=log).export(tmp_path / "one", ["pyopencl"])
    command = ["export", f"{zoo.__file__}:rounded", "--to", "pyopencl", "--log", log, "-o", str(tmp_path / "said")]
    assert main.run(command) == common.OK
    for name in ("set", "one", "said"):
        assert verdict(tmp_path / name) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.count("within rounding") == 3
    change(tmp_path / "one", "21.0f", "21.001f")
    assert verdict(tmp_path / "one") == 1


@needs_device
def test_a_result_without_axes(tmp_path, capsys):
    """And what a reference that says something else makes of it."""
    device, log = open_device("opencl"), str(tmp_path / "log")
    x, k = tir.placeholder((9,), name="x"), tir.reduce_axis(9, name="k")
    y = tir.compute((), lambda: tir.sum(x[k], axis=k), name="y")
    work = tir.Workload("total", y, {"plain": (lambda s, c: None, tir.Space())})
    note(log, work, [({}, 1e-3)], describe(device), "plain")
    f = work.load(log=log)
    assert f(np.arange(9, dtype=np.float32)) == 36 and verdict(f.export(tmp_path / "out", ["pyopencl"])) == 0
    edited = tir.Workload("total", y, work.templates, reference=lambda x: x.sum() + 1)
    with pytest.raises(tir.NotTuned, match="1 record whose kernel fails its check here"):
        edited.load(log=log)


def test_no_regret_is_each_ones_best(log, tmp_path):
    where = tir.export_shapes(works(), tmp_path / "out", log=log, regret=0)
    manifest = json.loads((where / "manifest.json").read_text())
    assert [p["config"] for p in manifest["programs"]] == [ONE, THREE, THREE]
    assert [p["kernel"] for p in manifest["programs"]] == [1, 0, 0] and manifest["regret"] == 0
    assert [p["source"] for p in manifest["programs"]] == ["00_C.cl", "01_C.cl", "02_C.cl"]
    text = (where / "README.md").read_text()
    assert (
        "| 2 | n=40 | 0 | `02_C.cl` | 40 | 0.0% |" in text and "programs(n=12)" in text and text.count("## Prog") == 3
    )


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_numbers_of_programs_in_c(log, tmp_path):
    where = tir.export_shapes(works(), tmp_path / "out", log=log)
    made = tmp_path / "program.so"
    texts = [str(where / "program.c"), str(where / "choose.c")]
    subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(made), *texts], check=True)
    library = ctypes.CDLL(str(made))
    assert [library.tensorir_program(ctypes.c_longlong(n)) for n in (*SIZES, 14)] == [0, 1, 2, -1]
    assert [library.tensorir_choose(ctypes.c_longlong(n)) for n in (*SIZES, 14)] == [0, 0, 0, 0]


def test_nothing_in_it_imports_the_package(log, tmp_path):
    where = tir.export_shapes(works(), tmp_path / "out", log=log)
    allowed = set(sys.stdlib_module_names) | {"numpy", "pyopencl"}
    for file in where.glob("*.py"):
        for n in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in n.names] if isinstance(n, ast.Import) else []
            names += [n.module or ""] if isinstance(n, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, file


def test_for_cupy(tmp_path):
    for n in (12, 13):
        note(tmp_path / "log", zoo.product(n), [(TWO, 1e-3)], {**DEVICE, "name": "gpu", "target": "cuda"})
        note(tmp_path / "log", zoo.product(n), [(ONE, 1e-3)])
    where = tir.export_shapes(works(12, 13), tmp_path / "out", ["cupy"], target="cuda", log=str(tmp_path / "log"))
    manifest = json.loads((where / "manifest.json").read_text())
    assert [p["source"] for p in manifest["programs"]] == ["00_C.cu", "01_C.cu"] and manifest["device"]["name"] == "gpu"
    assert "import cupy" in (where / "loader.py").read_text() and "ot yet run" in (where / "README.md").read_text()
    both = tir.export_shapes(works(12, 13), tmp_path / "both", ["pyopencl", "cupy"], log=str(tmp_path / "log"))
    languages = {p.name: json.loads((p / "manifest.json").read_text())["language"] for p in both.iterdir()}
    assert languages == {"opencl": "opencl", "cuda": "cuda"}


def test_from_a_frozen_file(log, tmp_path, monkeypatch):
    """What it pins is each shape's best, so there is one choice for each."""
    monkeypatch.chdir(tmp_path)
    assert main.run(["log", "freeze", "--log", log, "-o", "frozen.json"]) == common.OK
    where = tir.export_shapes(works(), tmp_path / "out", log="frozen.json")
    manifest = json.loads((where / "manifest.json").read_text())
    assert [p["config"] for p in manifest["programs"]] == [ONE, THREE, THREE]


def test_shapes_without_a_record_are_named(log, tmp_path):
    with pytest.raises(tir.NotTuned) as caught:
        tir.export_shapes(works(12, 14, 15), tmp_path / "out", log=log)
    assert caught.value.code == "export.not-tuned" and not (tmp_path / "out").exists()
    text = str(caught.value)
    assert "2 of 3" in text and "n=14" in text and "n=15" in text and "n=12" not in text and "tune_shapes" in text


def test_times_of_two_devices_are_not_put_together(log, tmp_path):
    """The fourth shape is known on another device only; where all are known, the device tuned last has the say."""
    other = {**DEVICE, "name": "other"}
    note(log, zoo.product(14), [(ONE, 1e-3)], other)
    with pytest.raises(tir.NotTuned) as caught:
        tir.export_shapes(works(12, 13, 14), tmp_path / "out", log=log)
    assert "1 of 3" in str(caught.value) and "n=14" in str(caught.value)
    note(log, zoo.product(12), [(THREE, 1e-3)], other)
    where = tir.export_shapes(works(12, 14), tmp_path / "out", log=log, regret=0)
    manifest = json.loads((where / "manifest.json").read_text())
    assert manifest["device"]["name"] == "other" and [p["config"] for p in manifest["programs"]] == [THREE, ONE]


def test_a_stale_record_gives_way(log, tmp_path):
    """A faster one whose source this version does not make is not used; where there is no other, it is said."""
    note(log, zoo.product(12), [(THREE, 1e-4)], source_sha256="ab" * 32)
    where = tir.export_shapes(works(12, 13), tmp_path / "out", log=log)
    assert [p["config"] for p in json.loads((where / "manifest.json").read_text())["programs"]] == [TWO, TWO]
    note(log, zoo.product(9), [(THREE, 1e-4)], source_sha256="ab" * 32)
    with pytest.raises(tir.NotTuned) as caught:
        tir.export_shapes(works(12, 9), tmp_path / "two", log=log)
    assert "1 of 2" in str(caught.value) and "stale" in str(caught.value)


def test_what_is_refused_before_anything_is_read(log, tmp_path):
    for given, code in [
        ({"to": ["onnx"]}, "export.destination"),
        ({"to": ["cupy"]}, "export.not-tuned"),
        ({"to": ["pyopencl", "cupy"]}, "export.not-tuned"),
        ({"to": ["cupy"], "target": "opencl"}, "export.language"),
        ({"weights": [1]}, "argument.value"),
        ({"regret": -1}, "argument.value"),
        ({"target": "cuda"}, "export.not-tuned"),
    ]:
        with pytest.raises(tir.TensorIRError) as caught:
            tir.export_shapes(works(), tmp_path / "out", log=log, **given)
        assert caught.value.code == code and not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("")
    with pytest.raises(tir.TensorIRError) as caught:
        tir.export_shapes(works(), tmp_path / "mine", log=log)
    assert caught.value.code == "export.not-empty"


def test_a_set_replaces_one_and_one_a_set(log, tmp_path):
    work = zoo.product(12)
    tir.export_shapes(works(), tmp_path / "out", log=log)
    from tensorir.export.folder import export

    export(work.schedule().emitted(), tmp_path / "out", ["source"], outputs=work.outputs)
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert "dispatch.py" not in names and "00_C.cl" not in names and "C.cl" in names
    tir.export_shapes(works(), tmp_path / "out", log=log)
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert "dispatch.py" in names and "C.cl" not in names


def test_command(tmp_path, monkeypatch, capsys):
    """What tune --shapes recorded, by the same --shapes; without a record, the command that makes them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes").write_text("8x8x8 --weight 3\n8x16x8\n")
    args = ["export", "matmul", "--shapes", "shapes", "--act", "relu", "--log", "log", "--to", "source", "-o", "out"]
    assert main.run(args) == common.NO_CONFIG and not (tmp_path / "out").exists()
    assert "tensorir tune matmul --shapes shapes --act relu --log log" in capsys.readouterr().err
    for n in (8, 16):
        work = tir.ops.matmul(m=8, n=n, k=8, act="relu")
        name = work.template_for(Target.parse("opencl"))
        default = work.templates[name].space_for(Target.parse("opencl")).default
        note("log", work, [(default, 1e-6 * n)], template=name)
    with next((tmp_path / "log").rglob("*.jsonl")).open("a") as file:
        file.write("garbage\n")
    assert main.run([*args, "--json", "--regret", "0.1"]) == common.OK
    out, err = capsys.readouterr()
    doc = json.loads(out)
    assert "1 damaged line" in err
    assert doc["folder"] == "out" and "dispatch.py" in doc["files"] and doc["portfolio"]["regret"] == 0.1
    assert [s["weight"] for s in doc["portfolio"]["shapes"]] == [3.0, 1.0]
    text = (tmp_path / "out/README.md").read_text()
    assert "programs(m=8, n=8, k=8, batch=1)" in text and "All have ta=False" in text


def test_command_for_destinations_of_both_languages(tmp_path, monkeypatch, capsys):
    """One folder, with what is fastest in each; where there is no kernel for one of them, none, and why."""
    monkeypatch.chdir(tmp_path)
    args = ["export", f"{zoo.__file__}:product", "--arg", "n=13", "--log", "log", "--to", "source,pyopencl,cupy"]
    note("log", zoo.product(13), [(ONE, 1e-3)])
    assert main.run([*args, "-o", "out"]) == common.NO_CONFIG and not (tmp_path / "out").exists()
    err = capsys.readouterr().err
    assert "cupy needs cuda source" in err and "another device: cpu" in err and "pyopencl" not in err
    note("log", zoo.product(13), [(TWO, 1e-4)], {**DEVICE, "name": "gpu", "target": "cuda -arch=sm_90"})
    assert main.run([*args, "-o", "out", "--name", "mine::product"]) == common.OK
    assert capsys.readouterr().out.split() == ["out"]
    made = json.loads((tmp_path / "out/manifest.json").read_text())
    assert made["targets"] == ["source", "pyopencl", "cupy"] and made["operator"] == "mine::product"
    assert made["config"] == ONE and made["bodies"]["cuda"]["config"] == TWO
    assert (made["source"], made["bodies"]["cuda"]["source"]) == ("C.cl", "C.cu")
    assert (tmp_path / "out/C.cl").exists() and (tmp_path / "out/C.cu").exists()
    assert made["runners"] == {"source": "loader", "pyopencl": "loader", "cupy": "loader_cuda"}
    assert "import out.loader_cuda" in (tmp_path / "out/README.md").read_text()
    assert main.run([*args, "-o", "more", "--json"]) == common.OK
    doc = json.loads(capsys.readouterr().out)
    assert doc["config"] == ONE and doc["bodies"]["cuda"]["config"] == TWO and {"C.cl", "C.cu"} <= set(doc["files"])
    assert main.run([*args[:-1], "cupy", "-o", "one", "--json"]) == common.OK
    doc = json.loads(capsys.readouterr().out)
    assert doc["folder"] == "one" and doc["config"] == TWO, "whichever GPU it was tuned on"
    (tmp_path / "mine").mkdir(parents=True)
    (tmp_path / "mine/own.txt").write_text("of somebody else")
    assert main.run([*args, "-o", "mine"]) != common.OK and "mine is not empty" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["own.txt"]


def test_sets_in_both_languages(tmp_path):
    """A folder of each, since the choice differs; nothing is written before all is known to be possible."""
    to = ["source", "pyopencl", "cupy"]
    for n in (12, 13):
        note(tmp_path / "log", zoo.product(n), [(ONE, 1e-3)])
        note(tmp_path / "log", zoo.product(n), [(TWO, 1e-4)], {**DEVICE, "name": "gpu", "target": "cuda -arch=sm_90"})
    out = tir.export_shapes(works(12, 13), tmp_path / "out", to, log=str(tmp_path / "log"))
    made = {p.name: json.loads((p / "manifest.json").read_text()) for p in out.iterdir()}
    assert {k: m["targets"] for k, m in made.items()} == {"opencl": ["source", "pyopencl"], "cuda": ["source", "cupy"]}
    (tmp_path / "mine/cuda").mkdir(parents=True)
    (tmp_path / "mine/cuda/own.txt").write_text("of somebody else")
    (tmp_path / "one").mkdir()
    (tmp_path / "one/C.cl").write_text("")
    for folder, what in (("mine", "mine/cuda is not empty"), ("one", "one is to have a folder for each language")):
        with pytest.raises(tir.TensorIRError, match=what):
            tir.export_shapes(works(12, 13), tmp_path / folder, to, log=str(tmp_path / "log"))
        assert not (tmp_path / folder / "opencl").exists()


def test_a_kind_of_device_without_a_template(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import tensorir as tir\n"
        "def work():\n"
        "    A = tir.placeholder((8,), name='A')\n"
        "    C = tir.compute((8,), lambda i: A[i] * 2, name='C')\n"
        "    t = (lambda s, c: None, tir.Space(), ('cpu',))\n"
        "    return tir.Workload('mine', C, {'t': t})\n"
    )
    args = ["export", "mine.py:work", "--untuned", "-o", "out", "--to"]
    assert main.run([*args, "pyopencl,cupy"]) != common.OK and not (tmp_path / "out").exists()
    assert "cupy needs cuda source, and nothing was written: mine has no template for a gpu" in capsys.readouterr().err
    assert main.run([*args, "pyopencl"]) == common.OK
    (tmp_path / "mine.py").write_text("def work():\n    return 1 / 0\n")
    assert main.run([*args, "pyopencl,cupy"]) != common.OK
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err and "needs" not in err, "that is about no destination"
