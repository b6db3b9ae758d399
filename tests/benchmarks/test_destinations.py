"""benchmarks/frameworks: what is changed in a kernel, and how frameworks of several versions are asked. Nothing is
installed.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "frameworks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER.parent / "cpu"))
    for name in ("destinations", "jax_versions"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import destinations

    return destinations


@pytest.fixture
def commands(script, monkeypatch):
    """What would have been run."""
    said = []

    def run(words, **how):
        said.append(words)
        code = int("import tensorir" in words)
        return subprocess.CompletedProcess(words, code, f"selftest ok {words[-1]}", "")

    monkeypatch.setattr(script, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(script, "venv", SimpleNamespace(create=lambda folder, **how: None))
    return said


def test_a_sum_is_changed_once_in_each_width(script):
    """Two changed signs may make a right one: of packed weights and of their products."""
    width = "/* --- registers of {} bytes */\nU += w;\nM += V * U;\n"
    before = "static int tir_n; tir_n += 1;\n" + width.format(64) + width.format(32)
    after = script.another(before)
    assert after.count("U -= w") == 2 and after.count("M += ") == 2 and "tir_n += 1" in after
    shared = width.format("TIR_BYTES") + "/* --- registers of 64 bytes */\n#define TIR_BYTES 64\nM += 1;\n"
    assert script.another(shared).count("-=") == 1 and "M += 1" in script.another(shared)
    assert script.another("y = a * x;\nz = a * x;") == "y = a + x;\nz = a * x;"


def test_each_version_has_an_environment(script, commands, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "write", lambda name, path, to: (path, ["onnxruntime"], {}))
    monkeypatch.setattr(script, "tested", lambda *given: {"ok": True, "said": "selftest ok"})
    words = ["--to", "onnxruntime", "--kernels", "gather", "--environments", str(tmp_path), "-o", f"{tmp_path}/found"]
    old = ["--install", "onnxruntime=onnxruntime==1.17.3 numpy<2", "--install", "onnxruntime=newest"]
    monkeypatch.setattr(sys, "argv", ["destinations.py", *words, *old])
    with pytest.raises(SystemExit) as end:
        script.main()
    assert not end.value.code
    found = json.loads((tmp_path / "found").read_text())
    names = ["onnxruntime-onnxruntime-1.17.3-numpy-2", "onnxruntime"]
    assert list(found["environment"]["installed"]) == [row["environment"] for row in found["rows"]] == names
    installed = [words[words.index("-q") + 1 :] for words in commands if "install" in words]
    assert installed == [["onnxruntime==1.17.3", "numpy<2"], ["numpy", "onnxruntime"]]


def test_versions_of_jax_are_asked_the_same(script, commands, monkeypatch, tmp_path):
    import jax_versions

    monkeypatch.setattr(jax_versions, "write", lambda folder: [folder / "product"])
    monkeypatch.setattr(sys, "argv", ["jax_versions.py", "--environments", str(tmp_path), "-o", f"{tmp_path}/found"])
    with pytest.raises(SystemExit) as end:
        jax_versions.main()
    assert not end.value.code
    rows = json.loads((tmp_path / "found").read_text())["rows"]
    assert [(row["version"], row["ok"]) for row in rows] == [(v, True) for v in ("0.5.0", "newest") for _ in range(2)]
    runs = [words for words in commands if "install" not in words]
    assert [words[1] for words in runs] == ["-I"] * 4 and runs[0][0] != runs[2][0]
