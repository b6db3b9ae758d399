"""CUDA programs compiled ahead: which images are made, which one a device takes, and that later devices have one."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_cuda
import numpy as np
import pytest
from fake_cuda import SHAPE, SOURCE, Driver
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.export import images
from tensorir.export.folder import export_part
from tensorir.export.program import ExportError, ExportProgram
from tensorir.export.shipped.cuda_images import order, runs

pytestmark = pytest.mark.usefixtures("unoptimised")

DEVICES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]


def image(kind, arch, program="tuned"):
    return {"kind": kind, "arch": arch, "program": program, "file": f"{arch}.{kind}"}


def first(rows, texts):
    """What each device takes: the image's architecture, "text of …", or None where nothing runs."""
    found = {}
    for device in DEVICES:
        try:
            program, one = order(rows, texts, device)[0]
        except RuntimeError:
            found[device] = None
        else:
            found[device] = f"{program} text" if one is None else f"{program} {one['kind']} {one['arch']}"
    return list(found.values())


def test_exact_machine_code_else_the_newest_ptx_else_the_text():
    rows = [image("cubin", "sm_80"), image("cubin", "sm_90"), image("ptx", "compute_80"), image("ptx", "compute_90")]
    assert first(rows, {"tuned": "sm_80"}) == [
        None, "tuned cubin sm_80", "tuned ptx compute_80", "tuned ptx compute_80", "tuned cubin sm_90",
        *["tuned ptx compute_90"] * 4,
    ]  # fmt: skip
    assert first([image("cubin", "sm_86")], {"tuned": "sm_75"}) == [
        "tuned text", "tuned text", "tuned cubin sm_86", *["tuned text"] * 6,
    ]  # fmt: skip
    assert first([], {"tuned": "sm_89"}) == [None, None, None, *["tuned text"] * 6]


def test_a_kernel_of_one_architecture_has_another_beside_it():
    rows = [image("cubin", "sm_90a"), image("cubin", "sm_80", "portable"), image("ptx", "compute_80", "portable"),
            image("ptx", "compute_90", "portable")]  # fmt: skip
    texts = {"tuned": "sm_90a", "portable": "sm_80"}
    assert first(rows, texts) == [
        None, "portable cubin sm_80", *["portable ptx compute_80"] * 2, "tuned cubin sm_90a",
        *["portable ptx compute_90"] * 4,
    ]  # fmt: skip
    assert first(rows[1:], texts)[4] == "portable ptx compute_90"
    assert [p for p, _ in order(rows, texts, (9, 0))] == ["tuned", "portable", "tuned"], "when images are refused"
    assert first([], texts) == [None, *["portable text"] * 3, "tuned text", *["portable text"] * 4]
    assert first(rows[:1], {"tuned": "sm_90a"}) == [*[None] * 4, "tuned cubin sm_90a", *[None] * 4]
    both = [image("cubin", "sm_90", "portable"), image("cubin", "sm_90a")]
    assert first(both, texts)[4] == "tuned cubin sm_90a"


ARCHS = ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f"]
PTX = [a.replace("sm", "compute") for a in ARCHS]
MADE = st.builds(image, st.just("cubin"), st.sampled_from(ARCHS), st.sampled_from(["tuned", "portable"])) | st.builds(
    image, st.just("ptx"), st.sampled_from(PTX), st.sampled_from(["tuned", "portable"]))  # fmt: skip


def fits(arch, own, exact=False):
    digits = arch.split("_")[1]
    return int(digits.rstrip("af")) == own if exact or digits[-1] in "af" else int(digits) <= own


@settings(deadline=None, max_examples=400)
@given(st.lists(MADE, max_size=8), st.sampled_from(ARCHS), st.sampled_from(ARCHS),
       st.sampled_from([(8, 6), (9, 0), (10, 0), (12, 0)]))  # fmt: skip
def test_the_rule_on_any_list(rows, tuned, portable, device):
    """Whatever order they come in: no image that fits is better than the one that is taken, by the rule's sentence."""
    own, texts = 10 * device[0] + device[1], {"tuned": tuned, "portable": portable}
    cubins = [i for i in rows if i["kind"] == "cubin" and fits(i["arch"], own, exact=True)]
    ptx = [i for i in rows if i["kind"] == "ptx" and fits(i["arch"], own)]
    plain = [p for p, arch in texts.items() if fits(arch, own)]
    if not cubins and not ptx and not plain:
        with pytest.raises(RuntimeError, match=f"the device is sm_{own}"):
            order(rows, texts, device)
        return
    found = order(rows, texts, device)
    kinds = [i and i["kind"] for _, i in found]
    assert kinds == [k for k, some in (("cubin", cubins), ("ptx", ptx), (None, plain)) if some]
    assert all(i is None or i["program"] == p for p, i in found)

    def worth(i):
        newer = int(i["arch"].split("_")[1].rstrip("af")) if i["kind"] == "ptx" else 0
        return newer, i["program"] == "tuned", i["arch"][-1] in "af"

    for program, taken in found:
        if taken is None:
            assert program == plain[0]
        else:
            assert worth(taken) == max(map(worth, cubins if taken["kind"] == "cubin" else ptx))


def test_what_runs_where():
    assert [d for d in DEVICES if runs("sm_90a", d)] == [(9, 0)] == [d for d in DEVICES if runs("compute_90a", d)]
    assert [d for d in DEVICES if runs("compute_89", d)] == DEVICES[3:]
    with pytest.raises(ValueError, match="no CUDA architecture"):
        runs("ampere", (8, 0))
    with pytest.raises(RuntimeError, match="made for sm_90a, the device is sm_80"):
        order([], {"tuned": "sm_90a"}, (8, 0))


def loaded(folder):
    spec = importlib.util.spec_from_file_location("exported_loader", folder / "loader.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Program()


@pytest.fixture
def compiled(monkeypatch):
    """What NVRTC is asked for; the images are no images."""
    asked = []

    def compile_image(text, arch):
        asked.append((arch, text))
        return f"image for {arch}".encode()

    monkeypatch.setattr(images, "compile_image", compile_image)
    return asked


def added(arch, again=None):
    A, B = tir.placeholder(SHAPE, name="A"), tir.placeholder(SHAPE, name="B")
    C = tir.compute(SHAPE, lambda i, j: A[i, j] + B[i, j], name="C")
    return ExportProgram(SOURCE, (C,), arch=arch, kind="gpu", again=again)


def portable(target):
    arch = target.removeprefix("cuda -arch=")
    return replace(added(arch), source=replace(SOURCE, text="// portable"))


@pytest.mark.parametrize(
    ("capability", "refused", "loads"),
    [("80", (), "C_sm_80.cubin"), ("86", (), "C_compute_80.ptx"), ("90", (), "C_sm_90a.cubin"),
     ("90", (".cubin",), "C_compute_90.ptx"), ("90", (".cubin", ".ptx"), "tuned"), ("120", (), "C_compute_90.ptx"),
     ("120", (".ptx",), "portable"), ("75", (), None)],
)  # fmt: skip
def test_the_loader_takes_what_the_device_runs(tmp_path, monkeypatch, compiled, capability, refused, loads):
    Driver().install(monkeypatch)
    cupy = fake_cuda.cupy(capability)
    cupy.refused = refused
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    part = added("sm_90a", portable)
    where = export_part(part, tmp_path / "out", ["cupy"], arch=["sm_80", "sm_90a"])
    if loads is None:
        with pytest.raises(RuntimeError, match="made for sm_90a, sm_80, the device is sm_75"):
            loaded(where)
        return
    X = np.ones(SHAPE, np.float32)
    np.testing.assert_array_equal(loaded(where)(X, X), X + X)
    module = cupy.modules[-1]
    found = Path(module.path).name if module.path else "portable" if module.code == "// portable" else "tuned"
    stem = SOURCE.kernels and Path(json.loads((where / "manifest.json").read_text())["source"]).stem
    assert found == loads.replace("C_", f"{stem}_")


def test_what_is_compiled_for_whom(tmp_path, compiled):
    where = export_part(added("sm_90a", portable), tmp_path / "out", ["cupy"], arch=["sm_86", "sm_90a"])
    assert [(arch, text == "// portable") for arch, text in compiled] == [
        ("sm_86", True), ("sm_90a", False), ("compute_86", True), ("compute_90", True),
    ], "the portable program is for the least that is asked"  # fmt: skip
    about = json.loads((where / "manifest.json").read_text())
    assert about["arch"] == "sm_90a" and about["cuda"]["portable"]["arch"] == "sm_86"
    assert (where / about["cuda"]["portable"]["source"]).read_text() == "// portable"
    text = (where / "README.md").read_text()
    assert "## Images" in text and "| ptx | compute_90 | portable |" in text
    del compiled[:]
    where = export_part(added("sm_75"), tmp_path / "two", "cupy", arch="sm_90a")
    assert [arch for arch, _ in compiled] == ["sm_90a", "compute_75", "compute_80", "compute_90"]
    assert "portable" not in json.loads((where / "manifest.json").read_text())["cuda"]


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_every_later_device_has_an_image(tmp_path, compiled, arch):
    """Also those between the levels of PTX: what takes text needs NVRTC, which a C program has not."""
    where = export_part(added(arch), tmp_path / "out", "cupy", arch=arch)
    about = json.loads((where / "manifest.json").read_text())
    rows, least = about["cuda"]["images"], int(arch.removeprefix("sm_"))
    for device in [(n // 10, n % 10) for n in range(least, 122)]:
        assert order(rows, {"tuned": arch}, device)[0][1] is not None, device


def test_one_architecture_alone_is_said(tmp_path, compiled):
    """Nobody asked for another; the folder says that there is none."""
    where = export_part(added("sm_90a"), tmp_path / "out", "cupy", arch=["sm_90a"])
    about = json.loads((where / "manifest.json").read_text())["cuda"]
    assert [i["arch"] for i in about["images"]] == ["sm_90a"] and "came without its schedule" in about["missing"]
    assert "no image for other architectures" in (where / "README.md").read_text()


@pytest.mark.parametrize(
    ("to", "arch", "code"),
    [("cupy", ["ampere"], "export.arch"), ("cupy", [80], "export.arch"), ("cupy", ["sm_81"], "target.unknown"),
     ("cupy", 5, "argument.type"), ("cupy", ["sm_80", "sm_90a"], "export.portable")],
)  # fmt: skip
def test_what_is_refused(tmp_path, compiled, to, arch, code):
    with pytest.raises(tir.TensorIRError) as caught:
        export_part(added("sm_90a"), tmp_path / "out", to, arch=arch)
    assert caught.value.code == code and not (tmp_path / "out").exists()
    with pytest.raises(ExportError) as caught:
        tir.ops.matmul(m=8, n=8, k=8).schedule(target="opencl").export(tmp_path / "out", "source", arch=["sm_80"])
    assert caught.value.code == "export.arch" and not (tmp_path / "out").exists()


# --- with NVRTC


def nvrtc():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")


def ptxas():
    """The assembler on the PATH, or of a wheel; at least as new as NVRTC."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(place, "cu13/bin/ptxas") for place in (spec.submodule_search_locations or () if spec else ())]
    found = next((str(p) for p in wheels if p.exists()), shutil.which("ptxas"))
    if found is None:
        pytest.skip("there is no ptxas: pip install nvidia-cuda-nvcc")
    if not os.access(found, os.X_OK):
        os.chmod(found, 0o755)
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.search(r"release (\d+)\.(\d+)", said).groups()
    from cupy.cuda import nvrtc

    if (int(major), int(minor)) < nvrtc.getVersion():
        pytest.skip(f"ptxas {major}.{minor} is older than NVRTC")
    return found, nvrtc.getSupportedArchs()


WORKS = {
    "matmul": (lambda: tir.ops.matmul(m=64, n=64, k=64), "sm_75"),
    "halves": (lambda: tir.ops.matmul(m=128, n=128, k=64, dtype="float16"), "sm_80"),
    "hopper": (lambda: tir.ops.matmul(m=128, n=128, k=64, dtype="float16"), "sm_90a"),
    "conv": (lambda: tir.ops.conv2d(n=1, c=16, h=14, w=14, k=32, r=3, s=3, pad=1, layout="NHWC"), "sm_80"),
}


@pytest.mark.parametrize("name", WORKS)
def test_later_devices_have_an_image(tmp_path, name):
    """PTX assembles for every architecture that the rule gives it to, and each device has one."""
    nvrtc()
    make, arch = WORKS[name]
    where = make().schedule(target=f"cuda -arch={arch}").export(tmp_path / "out", "cupy", arch=["sm_80", arch])
    about = json.loads((where / "manifest.json").read_text())
    rows = about["cuda"]["images"]
    texts = {"tuned": about["arch"]}
    if "portable" in about["cuda"]:
        texts["portable"] = about["cuda"]["portable"]["arch"]
    assert all((where / i["file"]).read_bytes()[:4] == b"\x7fELF" for i in rows if i["kind"] == "cubin")
    assert {"cubin", "ptx"} == {i["kind"] for i in rows} and ("portable" in texts) == (arch == "sm_90a")
    for device in DEVICES[1:]:
        assert order(rows, texts, device)[0][1] is not None, device
    assembler, known = ptxas()
    tried = 0
    for level in known:
        device = (level // 10, level % 10)
        for row in rows:
            if row["kind"] == "ptx" and runs(row["arch"], device):
                command = [assembler, f"-arch=sm_{level}", "-o", os.devnull, str(where / row["file"])]
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
                assert done.returncode == 0, f"{row['arch']} for sm_{level}: {done.stderr[-500:]}"
                tried += 1
    assert tried >= len(known)


def test_a_hand_made_schedule_has_no_portable_kernel(tmp_path):
    nvrtc()
    work = tir.ops.matmul(m=128, n=128, k=64, dtype="float16")
    s = work.schedule(target="cuda -arch=sm_90a")
    s._workload = None
    with pytest.raises(ExportError) as caught:
        s.export(tmp_path / "out", "cupy", arch=["sm_80", "sm_90a"])
    assert caught.value.code == "export.portable" and "sm_80" in str(caught.value)
    assert not (tmp_path / "out").exists()
