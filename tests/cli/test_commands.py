"""The verbs: results on stdout, messages on stderr, exit codes, never a traceback."""

import errno
import inspect
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import zoo
from benches import Bench
from click.shell_completion import ShellComplete

import tensorir as tir
from tensorir import ops
from tensorir.api import shape_set
from tensorir.cli import common, early, main, parse, verb_list, verbs
from tensorir.cli.common import Stop
from tensorir.errors import Problem
from tensorir.errors.catalogue import find
from tensorir.export.destinations import DESTINATIONS
from tensorir.ops.shapes import SETS
from tensorir.runtime import c_device, host
from tensorir.runtime.device import devices
from tensorir.tune.log import LogError
from tensorir.tune.trial import Outcome

ZOO = str(Path(zoo.__file__))
ROOT = Path(__file__).parents[2]
OWN = f"{ZOO}:product"
CONV = ("conv2d", "1x2x5x5", "3x2x3x3", "--pad", "1")

needs_device = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The log of one tuned workload."""
    where = tmp_path_factory.mktemp("logs")
    args = ["tune", OWN, "--arg", "n=12", "--trials", "3", "--log", str(where), "--json", "--progress", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "tensorir", *args], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return where, json.loads(done.stdout)


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from tensorir.cli import main; assert main.run(['--help']) == 0\n"
        "assert main.run(['tune', '--help']) == 0\n"
        "bad = [m for m in ('numpy', 'rich', 'pyopencl', 'skopt') if m in sys.modules]; assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert all(verb in done.stdout for verb in main.VERBS) and "\x1b" not in done.stdout


def leaves(group, name=""):
    """Every verb below a group, by what is typed."""
    for word, verb in group.items():
        if hasattr(verb, "commands"):
            yield from leaves(verb.commands, f"{name}{word} ")
        else:
            yield f"{name}{word}", verb


@pytest.mark.parametrize(("name", "verb"), [*leaves(verbs.VERBS)])
def test_the_work_of_a_verb_takes_its_options(name, verb):
    """It is imported when it is called, so that nothing but this and calls compare the two."""
    given = {p.name for p in verb.params}
    works = [verb.callback.found()]
    if works[0] is early.tune:
        given.add("began")
        works.append(early._tune.found())
    for work in works:
        taken = inspect.signature(work).parameters
        named = {k for k, p in taken.items() if p.kind is not p.VAR_KEYWORD}
        assert named <= given
        assert named == given or len(taken) > len(named), f"{name}: {given ^ named}"


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_verb_has_help(cli, verb):
    code, out, err = cli(verb, "--help")
    assert code == 0 and "Usage: tensorir" in out and not err


def test_help_names_every_destination(cli):
    words = re.findall(r"\w+", re.search(r"--to DEST,…([^-]*)", cli("export", "--help")[1])[1])
    entry = find("export.destination").meaning.partition(": ")[2]
    assert set(DESTINATIONS) == set(words) - {"required"} == set(re.findall(r"\w+", entry))


@pytest.mark.parametrize("verb", ["tune", "show", "bench", "check", "export"])
def test_options_are_grouped(cli, verb):
    """Each option once, under what it is about."""
    out = cli(verb, "--help")[1]
    out = out[out.index("Computation:") :]
    sections = re.findall(r"(?m)^([A-Z]\w+):$", out)
    assert sections[0] == "Computation" and sections[-1] == "Results" and "Target" in sections
    found = main.cli.get_command(click.Context(main.cli), verb)
    for option in (p for p in found.params if isinstance(p, click.Option)):
        assert len(re.findall(rf"(?m)^  (?:-\w, )?{option.opts[-1]}\b(?!-)", out)) == 1, option.opts


@pytest.mark.parametrize(("typed", "word"), [("tu", "tune"), ("log fr", "freeze"), ("tune --la", "--layout")])
def test_shells_complete(typed, word):
    *words, last = typed.split()
    found = ShellComplete(main.cli, {}, "tensorir", "_TENSORIR_COMPLETE").get_completions(words, last)
    assert [c.value for c in found] == [word]


WRONG = [
    ("tune",),
    ("tune", "conv3000d", "1x1"),
    ("tune", "conv2d", "1x16x28", "32x16x3x3"),
    ("tune", "conv2d"),
    ("tune", "conv2d", "1x16x28x28", "32x8x3x3"),
    ("tune", "conv2d", "1xax2x3", "1x1x1x1"),
    ("tune", *CONV, "--trials", "0"),
    ("tune", *CONV, "--budget", "soon"),
    ("tune", *CONV, "--tuner", "oracle"),
    ("tune", *CONV, "--ta"),
    ("tune", *CONV, "--restrict", "__import__('os')"),
    ("tune", *CONV, "--restrict", "nothing == 1"),
    ("tune", *CONV, "--arg", "x=1"),
    ("log", "verify", "--log", "x" * 300),
    ("tune", "matmul", "--shapes", "x" * 300),
    ("tune", "matmul", "5x5"),
    ("tune", "matmul", "5x5x5", "--stride", "2"),
    ("tune", "conv2d", "--shapes", "nothing"),
    ("tune", *CONV, "--shapes", "alexnet"),
    ("tune", "matmul", "--shapes", "alexnet"),
    ("tune", OWN, "--shapes", "alexnet"),
    ("tune", *CONV, "--regret", "0.1"),
    ("tune", *CONV, "-o", "out"),
    ("tune", "conv2d", "--shapes", "alexnet", "--regret", "-1"),
    ("tune", "conv2d", "--shapes", "alexnet", "-o", "/dev/null/x"),
    ("tune", "absent.py:f"),
    ("tune", f"{ZOO}:absent"),
    ("tune", ZOO),
    ("tune", OWN, "5x5"),
    ("tune", OWN, "--arg", "n"),
    ("tune", OWN, "--arg", "m=3"),
    ("tune", f"{ZOO}:not_a_workload"),
    ("show", "nothing-here"),
    ("show", "0123456789abcdef"),
    ("show", *CONV, "--target", "tpu"),
    ("show", *CONV, "--config", "tile=-1"),
    ("show", *CONV, "--config", "{"),
    ("show", *CONV, "--template", "nothing"),
    ("log", "frobnicate"),
    ("log", "show", "nothing"),
    ("log", "verify"),
    ("explain", "no.such-code"),
    ("list", "nothing"),
    ("repro", "nothing"),
    ("report", "log"),
    ("frobnicate",),
    ("export", *CONV, "--to", "source"),
    ("export", *CONV, "--to", "sauce", "-o", "x"),
    ("export", *CONV, "--to", "source", "--untuned", "-o", "/dev/null/x"),
    ("export", *CONV, "--to", "source", "--regret", "0.1", "-o", "x"),
    ("export", "conv2d", "--shapes", "alexnet", "--to", "source", "--untuned", "-o", "x"),
]


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_wrong_use_is_a_short_message(cli, args, tmp_path):
    code, out, err = cli(*args)
    assert code == common.USAGE and not out and 1 <= len(err.strip().splitlines()) <= 14
    assert not list(tmp_path.iterdir())


def test_what_the_system_refuses_is_a_message(cli, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tensorir.cli.verb_list.put", full)
    code, _, err = cli("list", "relu")
    assert code == common.BAD_LOG and err == "tensorir: No space left on device: the result cannot be written\n"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, _, err = cli("tune", "matmul", "8x8x8", "--trials", "1")
    assert code == common.USAGE and "the folder that this was called in is gone" in err

    def no_log(*_, **__):
        raise LogError(Problem("log.write", "no such file or directory"))

    monkeypatch.setattr("tensorir.cli.verb_list.put", no_log)
    code, _, err = cli("list", "relu")
    assert code == common.USAGE and err == "tensorir: the folder that this was called in is gone\n"


def test_closed_streams_are_no_traceback():
    """The numbers 1 and 2 would otherwise be those of the next files: what is printed would end in a log."""
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        command = f"{shlex.quote(sys.executable)} -m tensorir explain split.divides {closed}"
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr and bool(done.stdout) == (closed == "2>&-")


def test_other_exit_codes(cli, tmp_path):
    code, out, err = cli("export", *CONV, "--to", "source", "-o", "x")
    assert code == common.NO_CONFIG and not out and "tensorir tune conv2d 1x2x5x5 3x2x3x3 --pad 1" in err
    code, out, err = cli("tune", *CONV, "--device", "opencl:99:0")
    assert code == common.NO_DEVICE and not out and "tensorir devices" in err
    (tmp_path / "file").write_text("")
    code, _, err = cli("tune", OWN, "--arg", "n=12", "--trials", "1", "--log", "file")
    assert code == common.BAD_LOG and "log" in err


EXITS = """
import sys

import tensorir as tir
from tensorir import ops


def op():
    A = tir.placeholder((8,), name="A")
    C = tir.compute((8,), lambda i: A[i] + 1, name="C")
    return tir.Workload("exits", C, {"t": (lambda s, c: sys.exit(0), tir.Space())})


def leaves():
    sys.exit(0)
"""


@pytest.mark.parametrize(
    ("text", "args", "word"),
    [
        ("import sys\nsys.exit(0)\n", ("tune", "own.py:op"), "failed with SystemExit"),
        (EXITS, ("tune", "own.py:leaves"), "leaves() of own.py failed with SystemExit"),
        (EXITS, ("show", "own.py:op"), "sys.exit(0)"),
    ],
)
def test_a_workload_that_exits_is_no_success(cli, tmp_path, text, args, word):
    (tmp_path / "own.py").write_text(text)
    code, out, err = cli(*args)
    assert code == common.USAGE and not out and word in err and len(err.strip().splitlines()) <= 3


def test_internal_errors_go_to_a_file(cli, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tensorir.cli.verb_devices.devices", lambda: 1 / 0)
    code, out, err = cli("devices")
    assert code == common.BUG and not out and "this is a bug" in err
    assert "ZeroDivisionError" in next(tmp_path.glob("tensorir-error-*")).read_text()


def test_interrupt_is_130(cli, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorir.cli.verb_devices.devices", interrupt)
    assert cli("devices")[0] == common.INTERRUPTED


@needs_device
class TestTuned:
    def test_document(self, logs):
        _, doc = logs
        assert doc["schema"] == 1 and doc["status"] == "ok" and doc["trials"] == 3 == sum(doc["counts"].values())
        assert doc["workload"] == "product n=12" and doc["device"]["name"] and doc["best"]["checked"] is True
        assert doc["search"]["name"] == "bayes" and doc["baseline"]["name"] == "numpy" and doc["space"]["legal"] == 8

    def test_table_and_plain_progress(self, cli, logs):
        code, out, err = cli("tune", OWN, "--arg", "n=12", "--trials", "5", "--log", logs[0], "--budget", "60s")
        assert code == 0 and "3 reused" in out and "best" in out and "log" in out
        assert err.startswith("tensorir 0.") and "3 results reused" in err and "known  best " in err
        assert f"({logs[1]['best']['trial']})" in err

    def test_show(self, cli, logs):
        code, out, err = cli("show", OWN, "--arg", "n=12", "--log", logs[0], "--json")
        doc = json.loads(out)
        assert code == 0 and doc["tuned"] and doc["kernels"] == 1 and doc["workspace_bytes"] == 0 and not err
        assert "__kernel" in doc["source"] and doc["tree"].startswith("def C(")
        assert cli("show", OWN, "--arg", "n=12", "--log", logs[0], "--source")[1].strip() == doc["source"].strip()
        code, out, err = cli("show", OWN, "--arg", "n=13", "--log", logs[0], "--tree")
        assert code == 0 and "not tuned" in err and out.startswith("def C(")
        doc = json.loads(cli("show", OWN, "--config", "ti=2,tj=8,out=true", "--target", "cuda", "--json")[1])
        assert doc["config"] == {"ti": 2, "tj": 8, "out": True} and "__global__" in doc["source"]

    def test_check_and_bench(self, cli, logs):
        code, out, _ = cli("check", OWN, "--arg", "n=12", "--log", logs[0], "--json")
        doc = json.loads(out)
        assert code == 0 and doc["ok"] and [c["name"] for c in doc["checks"]][:2] == ["interpreter", "compile"]
        code, out, _ = cli("bench", OWN, "--arg", "n=12", "--log", logs[0], "--json", "--require", "1000000")
        row = json.loads(out)["rows"][0]
        assert (
            code == common.TOO_SLOW and row["time_s"] > 0 and row["against"][0]["name"] == "numpy" and row["ratio"] > 0
        )

    def test_check_says_no(self, cli, tmp_path):
        (tmp_path / "bad.py").write_text(BAD)
        code, out, err = cli("check", "bad.py:op", "--json")
        doc = json.loads(out)
        assert code == common.WRONG_RESULT and doc["ok"] is False and "wrong_result" in doc["checks"][-1]["detail"]
        code, out, err = cli("tune", "bad.py:op", "--budget", "30s", "--json")
        assert code == common.NO_CONFIG and json.loads(out)["status"] == "no_valid_config" and "wrong_result" in err

    @pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler")
    def test_check_runs_the_cuda_text(self, cli):
        code, out, _ = cli("check", "matmul", "32x32x16", "--emulate", "--json")
        doc = json.loads(out)
        assert code == 0 and doc["ok"] and [c["name"] for c in doc["checks"]] == ["emulated", "own shape"]
        assert {t["what"] for t in doc["traffic"]} == {"global read", "global write", "shared read", "shared write"}
        assert all(t["units"] >= t["ideal"] > 0 and t["text"] for t in doc["traffic"])
        code, out, _ = cli("check", "matmul", "32x32x16", "--emulate", "--target", "cuda -arch=sm_90")
        assert code == 0 and "ok    own shape" in out and "shared read" in out and "sectors" in out
        code, _, err = cli("check", "matmul", "32x32x16", "--target", "cuda")
        assert code == common.USAGE and "--emulate" in err

    @pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler")
    def test_what_takes_too_long_is_not_counted(self, cli, monkeypatch):
        monkeypatch.setattr("tensorir.cli.verb_check.MOST_FLOPS", 1e3)
        code, out, err = cli("check", "matmul", "32x32x16", "--emulate", "--json")
        doc = json.loads(out)
        assert code == 0 and doc["ok"] and len(doc["checks"]) == 1 and doc["traffic"] == []
        assert "counted at smaller shapes" in err
        assert cli("check", "matmul", "32x32x16", "--emulate", "--device", "cuda:0")[0] == common.USAGE

    def test_export(self, cli, logs, tmp_path):
        code, out, err = cli(
            "export", OWN, "--arg", "n=12", "--log", logs[0], "--to", "source,pyopencl", "-o", "out", "--test"
        )
        assert code == 0 and out == "out\n" and "selftest ok" in err
        assert json.loads((tmp_path / "out/manifest.json").read_text())["record"]["id"]
        code, _, err = cli("export", OWN, "--arg", "n=12", "--log", logs[0], "--to", "onnx", "-o", "two")
        assert code == common.USAGE and "export.destination" in err and "pyopencl" in err

    def test_a_stale_record_is_named(self, cli, logs, tmp_path):
        """The operator's definition changed, or the record is of another device: not used, and said so."""
        log = tmp_path / "log"
        folder = next(p for p in Path(logs[0]).iterdir() if p.is_dir())
        shutil.copytree(folder, log / folder.name)
        (tmp_path / "changed.py").write_text(Path(ZOO).read_text().replace("A[i, k] * B[k, j]", "A[i, k] + B[k, j]"))
        args = ("--arg", "n=12", "--log", log, "--to", "source", "-o", "out")
        code, _, err = cli("export", "changed.py:product", *args)
        assert code == common.NO_CONFIG and "of another definition of the operator: stale" in err
        code, _, err = cli("export", OWN, *args, "--target", "cuda")
        assert code == common.NO_CONFIG and "tuned for another device" in err and not (tmp_path / "out").exists()

    def test_log_verbs(self, cli, logs, tmp_path):
        log = ("--log", logs[0])
        best = json.loads(cli("log", "best", *log, "--json")[1])["records"]
        assert best[0]["status"] == "ok" and best[0]["workload"] == "product n=12"
        assert best[0]["id"] in cli("log", "best", *log)[1] and "product n=12" in cli("log", "ls", *log)[1]
        shown = json.loads(cli("log", "show", best[0]["id"], *log, "--json")[1])["records"]
        assert {r["kind"] for r in shown} == {"trial", "final"}
        assert json.loads(cli("log", "stats", *log, "--json")[1])["trials"] >= 3
        code, out, _ = cli("log", "verify", *log, "--json")
        assert code == 0 and json.loads(out)["ok"] and json.loads(out)["unknown"] > 0
        assert cli("log", "merge", logs[0], "-o", "merged")[0] == 0
        assert json.loads(cli("log", "best", "--log", "merged", "--json")[1])["records"][0]["id"] == best[0]["id"]
        segment = next((tmp_path / "merged").rglob("*.jsonl"))
        segment.write_bytes(b"garbage\n" + segment.read_bytes())
        code, out, err = cli("log", "best", "--log", "merged", "--json")
        assert code == 0 and "1 damaged line ignored" in err and json.loads(out)["records"]
        assert cli("log", "verify", "--log", "merged")[0] == common.BAD_LOG
        assert cli("log", "compact", "--log", "merged")[0] == 0

    def test_repro(self, cli, logs):
        record = logs[1]["best"]["trial"]
        code, out, _ = cli("repro", record, "--log", logs[0], "--workload", OWN, "--arg", "n=12", "--json")
        doc = json.loads(out)
        assert code == 0 and doc["again"]["status"] == "ok" and doc["same_source"] is True
        assert cli("repro", record, "--log", logs[0], "--workload", OWN, "--arg", "n=14")[0] == common.BAD_LOG

    def test_devices_and_doctor(self, cli):
        assert any(d["usable"] for d in json.loads(cli("devices", "--json")[1])["devices"])
        code, out, _ = cli("doctor", "--json")
        doc = json.loads(out)
        assert code == 0 and doc["ok"] and next(c for c in doc["checks"] if c["name"] == "kernel")["ok"]
        machine = next(c["detail"] for c in doc["checks"] if c["name"] == "machine")
        assert machine.startswith(f"{host.cores()} cores (affinity and quota), ") and "bytes (flags)" in machine
        assert "KiB" in machine

    def test_no_compiler_is_no_fault_where_another_device_is(self, cli, monkeypatch):
        monkeypatch.setattr(c_device, "compilers", tuple)
        code, out, _ = cli("doctor", "--json")
        found = next(c for c in json.loads(out)["checks"] if c["name"] == "device c")
        assert code == 0 and found["ok"] is None and "no C compiler" in found["detail"]

    def test_doctor_sees_damage_in_pocls_cache(self, cli, tmp_path, monkeypatch):
        kernel = tmp_path / "kernels/AB/CD/a/1-1-1/a.so"
        kernel.parent.mkdir(parents=True)
        kernel.write_bytes(b"\x7fELF")
        monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "kernels"))
        _, out, _ = cli("doctor", "--json")
        found = next(c for c in json.loads(out)["checks"] if c["name"] == "PoCL's cache")
        assert not found["ok"] and str(kernel) in found["detail"] and found["fix"] == f"rm -r {tmp_path}/kernels"

    @pytest.mark.parametrize("verb", [("tune", "--trials", "2"), ("check",), ("tune", "--budget", "5s", "--json")])
    def test_a_cache_that_others_may_write(self, cli, tmp_path, monkeypatch, verb):
        """Refused before the first trial, which does not open it."""
        self.open_to_all(tmp_path, monkeypatch)
        _, out, err = cli(verb[0], "matmul", "16x16x16", "--log", "log", *verb[1:])
        assert "[cache.foreign-directory]" in err and "mode 0777" in err and "chmod 700" in err
        assert not list(tmp_path.glob("log/**/*.jsonl")) and not out

    def open_to_all(self, tmp_path, monkeypatch):
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(0o777)
        monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "cache"))

    def test_doctor_sees_a_cache_that_others_may_write(self, cli, tmp_path, monkeypatch):
        self.open_to_all(tmp_path, monkeypatch)
        finding = next(c for c in json.loads(cli("doctor", "--json")[1])["checks"] if c["name"] == "kernel")
        assert not finding["ok"] and "mode 0777" in finding["detail"] and "chmod" in finding["fix"]

    def test_several_devices_are_different_ones(self, cli):
        code, _, err = cli("tune", "matmul", "8x8x8", "--device", "opencl:0:0,opencl:0:0")
        assert code == 2 and "tune.devices" in err
        code, out, _ = cli("tune", "matmul", "8x8x8", "--device", "opencl:0:0,opencl:0:1", "--dry-run", "--json")
        assert code == 0 and json.loads(out)["dry_run"]

    def test_dry_run_counts_what_a_run_searches(self, cli):
        for options in ((), ("--restrict", "tj <= 4"), ("--template", "tile")):
            dry = json.loads(cli("tune", OWN, "--dry-run", "--json", *options)[1])["workloads"][0]
            run = json.loads(cli("tune", OWN, "--trials", "1", "--json", "--log", "".join(options) or "l", *options)[1])
            assert {key: dry[key] for key in ("configs", "legal")} == run["space"] and dry["reused"] == 0, options
        reused = [json.loads(cli("tune", OWN, "--dry-run", "--json", "--log", "l", *more)[1])["workloads"][0]["reused"]
                  for more in ((), ("--fresh",))]  # fmt: skip
        assert reused == [1, 0]
        assert cli("tune", OWN, "--dry-run", "--restrict", "tj <= 4 and")[0] == 2
        assert cli("tune", OWN, "--dry-run", "--restrict", "tj > 4000")[0] == 2
        assert cli("tune", OWN, "--dry-run", "--template", "none")[0] == 2
        assert cli("tune", OWN, "--dry-run", "--device", "opencl:0:0,opencl:0:0")[0] == 2

    def test_dry_run_measures_nothing(self, cli, tmp_path):
        code, out, _ = cli("tune", OWN, "--dry-run", "--json")
        doc = json.loads(out)
        assert code == 0 and doc["workloads"][0]["legal"] == 8 and "__kernel" in doc["workloads"][0]["source"]
        assert not list(tmp_path.iterdir())


BAD = """
import tensorir as tir
from tensorir import ops

def op():
    A = tir.placeholder((8,), name="A")
    C = tir.compute((8,), lambda i: A[i] + 1, name="C")
    return tir.Workload("bad", C, {"t": (lambda s, c: s.with_source(s.source().replace("1.0f", "2.0f")), tir.Space())})
"""


def test_explain_and_list(cli):
    code, out, _ = cli("explain", "split.covers-extent")
    assert code == 0 and len(out.splitlines()) >= 3
    out = cli("list")[1]
    assert all(f"{name}(" in out for name in ops.OPERATORS) and "template " not in out
    assert "template cpu_rows" in cli("list", "softmax")[1]


def test_the_list_imports_no_schedules():
    """It reads parameters from the text of modules, whose import takes a second."""
    code = "import sys; from tensorir.cli import main; main.run(['list']); print([*sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "conv2d(n=1" in done.stdout
    assert not re.search(r"tensorir\.(schedule|automatic|expr)|'numpy'|pyopencl", done.stderr)
    declared = {n: inspect.signature(getattr(ops, n)).parameters for n in ops.OPERATORS}
    assert all(
        verb_list._declared(n)["parameters"] == {k: p.default for k, p in d.items()} for n, d in declared.items()
    )


IDLE = """
import tensorir as tir

def op():
    x, r = tir.placeholder((4096, 64), name="x"), tir.placeholder((4096,), "int32", name="r")
    return tir.scatter((1000, 64), (4096, 64), lambda i, j: (r[i], j), lambda i, j: x[i, j], name="y")
"""


def test_what_stays_idle_is_said_wherever_a_schedule_is_made(cli, tmp_path):
    (tmp_path / "idle.py").write_text(IDLE)
    note = "y: 1 block for 16 cores; s.share_out('y.j.0')"
    target = ("--target", "opencl -registers=32 -vector_bytes=64 -units=16")
    head = cli("show", "idle.py:op", *target)[1].split("\n\n")[0]
    assert "bound by idle cores (modelled, not measured)" in head and note in head
    assert note in json.loads(cli("show", "idle.py:op", *target, "--json")[1])["expected"]
    assert f"#   {note}" in cli("show", "idle.py:op", *target, "--why-schedule")[1]
    gpu = cli("tune", "idle.py:op", "--dry-run", "--device", "cuda -arch=sm_80")[1]
    assert "y: 1 block for 108 cores; " in gpu.split("\n\n")[0]


def test_show_says_why_a_schedule_was_made(cli):
    """Rule and reason of each step, as text that a fresh schedule of the declaration takes."""
    Path("mine.py").write_text(
        "import tensorir as tir\n\n\ndef rows(n=48):\n    A = tir.placeholder((n, 32), name='A')\n"
        "    k = tir.reduce_axis(32, name='k')\n    return tir.compute((n,), lambda i: tir.sum(A[i, k], axis=k), "
        "name='R')\n"
    )
    at = ("show", "mine.py:rows", "--arg", "n=64", "--target", "opencl -kind=gpu")
    code, out, _ = cli(*at, "--why-schedule")
    steps = out[: out.index("# other template")].splitlines()
    assert code == 0 and steps[0].startswith("# rows: ") and len({s for s in steps if s.startswith("# ")}) < len(steps)
    scope = {}
    exec(Path("mine.py").read_text(), scope)
    R = scope["rows"](64)
    s = tir.Schedule(R, "opencl -kind=gpu")
    exec(out, {"s": s})
    document = json.loads(cli(*at, "--why-schedule", "--json")[1])
    assert s.tree() == document["tree"] and document["trace"] == "\n".join(steps)
    assert set(document["others"]) == set(tir.auto(R, "opencl -kind=gpu")) - {document["template"]}
    assert all(f"# other template {n}: {c} legal" in out for n, c in document["others"].items())
    assert out.splitlines()[-1] == f"# {document['expected']}" and "kernel, bound by" in document["expected"]
    assert "others" not in json.loads(cli(*at, "--json")[1])


def test_show_lists_the_fusions_of_a_function(cli):
    """A table of one row a line, and the same as data."""
    Path("mine.py").write_text(
        "import tensorir as tir\n\n\ndef chain(n=64):\n    A = tir.placeholder((n, 32), name='A')\n"
        "    P = tir.compute((n, 32), lambda i, j: tir.exp(A[i, j]), name='P')\n"
        "    return tir.compute((n, 32), lambda i, j: P[i, j] * 2, name='Y')\n"
    )
    at = ("show", "mine.py:chain", "--target", "opencl", "--fusions")
    code, out, _ = cli(*at)
    head, row = out.splitlines()
    assert code == 0 and head.split()[0] == "first" and row.split()[:3] == ["P", "Y", "vertical"]
    document = json.loads(cli(*at, "--json")[1])
    (found,) = document["fusions"]
    assert (found["first"], found["legal"], found["saved_bytes"]) == ("P", True, 2 * 64 * 32 * 4)
    assert found["measured"] is None
    assert "fusions" not in json.loads(cli(*at[:-1], "--json")[1])


def test_show_says_steps_of_a_schedule_by_hand(cli):
    lines = cli("show", OWN, "--arg", "n=12", "--why-schedule")[1].splitlines()
    assert lines[0].startswith("s.") and not any("  # " in line for line in lines if line.startswith("s."))


def test_show_cuda_offline(cli):
    pytest.importorskip("cupy", reason="extra cuda is not installed")
    code, out, err = cli("show", "matmul", "64x64x64", "--target", "cuda", "--arch", "sm_80", "--resources", "--json")
    doc = json.loads(out)
    assert code == 0, err
    assert doc["resources"]["registers"] > 0 and doc["resources"]["spills"] == 0


def test_a_reader_that_has_enough_is_no_error(monkeypatch, capsys):
    """As in ``tensorir log ls | head -1``."""

    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Gone())
    assert main.run(["list", "relu"]) == 0 and "sys.exit" not in capsys.readouterr().err


class TestParsing:
    def test_shapes_become_parameters(self, monkeypatch):
        seen = []
        for name in ("conv2d", "matmul"):
            monkeypatch.setattr(f"tensorir.ops.{name}", lambda name=name, **options: seen.append((name, options)))
        options = dict.fromkeys(("shapes", "stride", "layout", "arg", "ta")) | {"pad": 1, "groups": 2, "bias": True}
        parse.workloads("conv2d", ("1x4x5x6", "8x2x3x1"), options)[0]()
        parse.workloads("matmul", ("3x4x5",), {"ta": True, "batch": 2})[0]()
        parse.from_title("matmul m=3 n=4 k=5 ta=1 act=None dtype=float32")()
        assert seen == [
            ("conv2d", {"n": 1, "c": 4, "h": 5, "w": 6, "k": 8, "r": 3, "s": 1, "pad": 1, "groups": 2, "bias": True}),
            ("matmul", {"m": 3, "n": 4, "k": 5, "batch": 2, "ta": True}),
            ("matmul", {"m": 3, "n": 4, "k": 5, "ta": 1, "act": None, "dtype": "float32"}),
        ]
        assert len(parse.workloads("conv2d", (), {"shapes": "AlexNet"})) == 5
        assert len(parse.workloads("conv2d", (), {"shapes": "resnet-50"})) == 23

    def test_sets_of_an_operator_are_named(self):
        for op, known in (("conv2d", "alexnet"), ("matmul", "bert"), ("softmax", "none for this operator")):
            with pytest.raises(Stop) as caught:
                parse.weighted(op, (), {"shapes": "nothing"})
            assert known in str(caught.value)

    def test_sets_have_weights(self):
        """ResNet-50 has 53 convolutions, VGG-16 13, MobileNet 27; BERT 12 layers of 8 products."""
        wanted = {"resnet50": 53, "vgg16": 13, "mobilenet": 27, "alexnet": 5, "bert": 96}
        for name, (op, params, counts) in SETS.items():
            assert sum(counts) == wanted[name] and len(params) == len(counts)
            found = parse.weighted(op, (), {"shapes": name})
            assert [w for _, w in found] == list(counts)
        assert [make().parameters["tb"] for make, _ in found] == [False, False, False, True, False]

    def test_files_of_shapes(self, tmp_path):
        text, rows = tmp_path / "s.txt", tmp_path / "s.json"
        text.write_text("# two layers\n1x4x5x6 8x4x3x1 --pad 1 --weight 2.5\n\n1x4x9x9 8x2x1x1 --groups 2 # late\n")
        rows.write_text('[{"c": 4, "h": 5, "weight": 2}, {"c": 8}]')
        found = parse.weighted("conv2d", (), {"shapes": str(text), "bias": True, "groups": 1})
        assert [w for _, w in found] == [2.5, 1.0]
        first, second = (make().parameters for make, _ in found)
        assert (first["r"], first["s"], first["pad"], first["groups"]) == (3, 1, 1, 1)
        assert first["bias"] and second["bias"] and (second["pad"], second["groups"]) == (0, 2)
        found = parse.weighted("conv2d", (), {"shapes": str(rows), "stride": 2})
        assert [(make().parameters["c"], make().parameters["stride"], w) for make, w in found] == [(4, 2, 2), (8, 2, 1)]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "no shapes"),
            ("5x5\n", "MxNxK"),
            ("5x5x5 --stride 2\n", "--stride belongs to conv2d"),
            ("5x5x5\n5x5x5 --weight -1\n", "line 2"),
            ("5x5x5 --nothing\n", "line 1"),
            ("5x5x5\n5x5\n", "line 2: 5x5 has 2 dimensions"),
            ("5x5x5 --weight nan\n", "line 1: the weight nan"),
            ("5x5x5 'open\n", "line 1"),
            ("5x5x5 --help\n", "line 1"),
            ("[1]", "shape 1 is not an object"),
            ("[", "not JSON"),
            ("[" * 100_000, "not JSON"),
            ('[{"m": 5, "x": 6}]', "shape 1"),
            ('[{"m": 5, "weight": "a"}]', "weight"),
            ("\0\xff", "not text"),
            ("5x5x5\n" * 200_000, "larger"),
        ],
        ids=range(16),
    )
    def test_files_that_hold_no_shapes(self, tmp_path, text, words):
        (tmp_path / "f").write_bytes(text.encode("latin-1"))
        with pytest.raises(Stop) as caught:
            parse.weighted("matmul", (), {"shapes": str(tmp_path / "f")})
        assert words in caught.value.message

    @pytest.mark.parametrize("text", ["a=1,b=relu", '{"a": 1, "b": "relu"}'])
    def test_configurations(self, text):
        assert parse.config_option(text) == {"a": 1, "b": "relu"}

    def test_titles_of_files_cannot_be_rebuilt(self):
        with pytest.raises(Stop):
            parse.from_title("os.system n=1")


@needs_device
def test_a_default_that_fails_is_told_and_replaced(cli, tmp_path):
    run = ("tune", f"{ZOO}:unlucky", "--trials", "3", "--log")
    code, out, err = cli(*run, tmp_path / "log", "--progress", "plain")
    assert code == 0 and "default  wrong_result: " in err and "; the search continues with what passes" in err
    assert "default   wrong_result: " in out and "config    t: tile " in out and "tile 4" not in out
    code, out, err = cli(*run, tmp_path / "other", "--json", "--progress", "none")
    doc = json.loads(out)
    assert doc["default"]["status"] == "wrong_result" and doc["best"]["config"]["tile"] in (8, 16)


class TestSets:
    """What a set prints and writes; nothing is measured."""

    @pytest.fixture
    def tune(self, cli, monkeypatch, tmp_path):
        bench = Bench(lambda n, _: 1e-3 * n)
        monkeypatch.setattr(shape_set, "Measurer", bench.measurer)
        (tmp_path / "shapes").write_text("8x8x8 --weight 3\n8x16x8\n")
        return lambda *args: cli("tune", "matmul", "--shapes", "shapes", "--tuner", "random", *args)

    def test_document_and_files(self, tune, tmp_path):
        code, out, err = tune("--trials", "3", "--json", "-o", "out")
        doc = json.loads(out)
        assert code == 0 and doc["status"] == "ok" and [r["trials"] for r in doc["results"]] == [3, 3]
        assert [r["weight"] for r in doc["results"]] == [3.0, 1.0] and doc["total"]["best_s"] == pytest.approx(0.04)
        assert len(doc["portfolio"]["kernels"]) == 1 and doc["portfolio"]["shapes"][0]["regret"] == 0
        assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["choose.c", "choose.py", "kernels.json"]
        assert "wrote out" in err and "1 of 2 shapes  total 24.000 ms" in err

    def test_table(self, tune):
        code, out, _ = tune("--trials", "1", "--progress", "none")
        assert code == 0 and "total 40.000 ms, by the defaults 40.000 ms, by the kernels below 40.000 ms" in out
        assert "1 kernel, the fewest within 5.0% of each shape's best" in out

    def test_interrupted(self, tune, monkeypatch):
        def stop(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr("tensorir.cli.verb_tune.SetWatch.on_trial", stop)
        code, out, err = tune("--trials", "3")
        assert code == common.INTERRUPTED and "no time left for matmul m=8 n=16" in err and "matmul m=8 n=8" in out

    def test_nothing_works(self, tune, monkeypatch):
        monkeypatch.setattr("benches.Measurer.result", lambda *_: Outcome("compile_error"))
        code, out, err = tune("--trials", "2", "--json", "-o", "out")
        assert code == common.NO_CONFIG and json.loads(out)["portfolio"] is None and "no valid configuration" in err


def test_a_title_makes_its_workload_again():
    for work in (
        tir.ops.conv2d(c=16, h=9, w=9, k=16, bias=True, residual=True, prepack=True, max_error=1e-5, act="relu"),
        tir.ops.matmul(m=8, n=8, k=8, ta=True, alpha=True, prepack=True, batch=2),
        tir.ops.conv2d(),
    ):
        assert parse.from_title(work.title)().title == work.title
