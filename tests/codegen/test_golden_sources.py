"""The emitted text of both languages, kept word for word; compiled for GPUs, run, and run under Oclgrind."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from codegen_programs import CASES

from tensorir.api.schedule import emit_source
from tensorir.check.verdict import compare_results
from tensorir.errors import TensorIRError
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.runtime.device import open_device
from tensorir.runtime.launch import CompiledProgram

ROOT = Path(__file__).parents[2]


def source(name, target):
    s = CASES[name](target)
    return s, emit_source(s, s.target)


@pytest.mark.parametrize("language", ["opencl", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_golden(name, language, golden):
    golden(source(name, language)[1].text, f"codegen/{name}.{'cl' if language == 'opencl' else 'cu'}")


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("name", CASES)
def test_cuda_compiles_offline(name, arch):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    cubin = compile_cubin(source(name, f"cuda -arch={arch}")[1].text, arch)
    assert cubin.data[:4] == b"\x7fELF"
    assert cubin.spills == 0


def results(s, text, device):
    arrays = random_arguments(s.outputs, 0)
    got = CompiledProgram(text, open_device(device))(*arrays)
    verdict = compare_results(s.outputs, got if isinstance(got, tuple) else (got,), evaluate(s.outputs, arrays))
    assert verdict, str(verdict)
    return verdict


@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("name", CASES)
def test_opencl_runs(name):
    pytest.importorskip("pyopencl")
    s, text = source(name, "opencl")
    results(s, text, "opencl")


@pytest.mark.parametrize("name", CASES)
def test_opencl_is_clean_under_oclgrind(name, capfd):
    """(its finders of races and uninitialised values need a process of their own: tools/mutants --oclgrind)"""
    pytest.importorskip("pyopencl")
    s, text = source(name, "opencl")
    try:
        open_device("opencl:oclgrind")
    except TensorIRError as e:
        pytest.skip(f"Oclgrind is not installed: {e}")
    results(s, text, "opencl:oclgrind")
    said = capfd.readouterr().err
    assert "Invalid" not in said
    assert "divergence" not in said


def test_the_same_text_whatever_the_hash_seed():
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from codegen_programs import CASES\n"
        "for f in CASES.values():\n for t in ('opencl', 'cuda'): print(f(t).source())"
    )
    paths = [str(ROOT), str(Path(__file__).parent), str(ROOT / "tools" / "mutants")]
    texts = {
        subprocess.run(
            [sys.executable, "-c", program, *paths],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in "01"
    }
    assert len(texts) == 1


def test_dtypes_on_the_device():
    pytest.importorskip("pyopencl")
    s, text = source("dtypes", "opencl")
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-128, 128, 16).astype(x.dtype) if x.dtype.kind != "u" else rng.integers(0, 256, 16).astype("uint8")
        for x in random_arguments(s.outputs, 0)
    ]
    got = CompiledProgram(text, open_device("opencl"))(*arrays)
    want = evaluate(s.outputs, arrays)
    for n, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.dtype == w.dtype
        if n == 6:
            np.testing.assert_allclose(g, w, rtol=1e-5)
        else:
            assert np.array_equal(g, w), n
