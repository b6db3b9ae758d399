"""Functions of float32 that texts for CPUs bring along: within their bounds everywhere; the library's on request."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_c import COMPILERS, run, target

import tensorir as tir
from tensorir.check.verdict import compare_results
from tensorir.codegen.vector_math import VECTOR_FUNCTIONS
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.interp.ulps import LIBRARY_ULPS, VECTOR_ULPS

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from vector_math import EXACT, schedule, ulps

pytestmark = pytest.mark.usefixtures("unoptimised")

ROOT = Path(__file__).parents[2]
NAMES = list(VECTOR_ULPS)
NEAR = 1e5
"""Where the bounds of sin and cos end, and the library's begin."""
AVX512 = " -registers=32 -vector_bytes=64"
SPECIAL = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, -1.1754942e-38, 1.1754944e-38, 3.4028235e38, -3.4028235e38, np.inf,
     -np.inf, np.nan, -np.nan, 1.0, -1.0, 0.5, 2.0, 88.72283, 88.72284, -87.33655, -103.97207, -103.97208, 127.99999,
     128.0, -126.0, -149.0, -149.99998, -150.0, 0.99999994, 1.0000001, 0.70710677, 1.4142135, 0.625, 0.62499994, 0.925,
     4.0, 9.0, -9.0, 99999.99, 100000.0, 100000.01, 1e20, 3.1415927, 1.5707964, -1.5707964, 16367173.0, 8388608.0],
    np.float32,
)  # fmt: skip


def dense(size):
    """All exponents and both signs, with the first, the last and drawn digits; numbers near 0; what is special."""
    rng = np.random.default_rng(7)
    each = size // 512 - 8
    exponents = np.arange(512, dtype=np.uint32)[:, None] << 23
    digits = np.concatenate(
        [rng.integers(0, 1 << 23, (512, each), np.uint32), np.tile([0, 1, (1 << 23) - 1], (512, 1))], 1
    )
    bits = (exponents | digits.astype(np.uint32)).ravel()
    left = size - len(bits) - 2 * len(SPECIAL)
    drawn = rng.standard_normal(left).astype(np.float32) * 10.0 ** rng.integers(-2, 4, left).astype(np.float32)
    return np.concatenate([bits.view(np.float32), SPECIAL, -SPECIAL, drawn])


def exact(name, x):
    with np.errstate(all="ignore"):
        return np.asarray(EXACT[name](x.astype(np.float64)))


def agree(name, x, got):
    errors = ulps(np.asarray(got), exact(name, x))
    allowed = np.full(x.shape, VECTOR_ULPS[name])
    if name in ("sin", "cos"):
        allowed[np.abs(x) > NEAR] = LIBRARY_ULPS
    wrong = np.flatnonzero(~(errors <= allowed))
    assert not len(wrong), f"{name}({x[wrong[:5]]!r}) = {np.asarray(got)[wrong[:5]]!r}, off by {errors[wrong[:5]]} ulps"


def test_the_table_names_what_there_is():
    assert set(NAMES) == VECTOR_FUNCTIONS
    assert max(VECTOR_ULPS.values()) <= LIBRARY_ULPS  # which checks allow of any executor


def test_the_documentation_has_the_bounds():
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d.]+) \|", (ROOT / "docs/language.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {name: float(bound) for name, bound in rows} == VECTOR_ULPS


def test_what_is_off_is_seen():
    x = np.linspace(0.1, 3, 1 << 10, dtype="float32")
    want = np.exp(x.astype(np.float64))
    right = want.astype(np.float32)
    agree("exp", x, right)
    for wrong in (
        right + 2 * np.spacing(right),
        np.where(x > 2, np.nan, right),
        np.where(x > 2, np.inf, right),
        -right,
    ):
        with pytest.raises(AssertionError):
            agree("exp", x, wrong)
    assert ulps(np.float32([-0.0]), np.float64([0.0]))[0] == np.inf


@pytest.mark.parametrize("device", ["opencl:pocl", "c:0"])
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_within_the_bounds(name, device):
    x = dense(1 << 19)
    f = schedule([name], 16, device.partition(":")[0] + AVX512, len(x)).build(device)
    agree(name, x, f(x))


@pytest.mark.parametrize("device", ["opencl:pocl", "c:0"])
@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_other_widths_too(lanes, device):
    x = dense(1 << 14)
    made = schedule(NAMES, lanes, device.partition(":")[0] + AVX512, len(x)).build(device)(x)
    for name, got in zip(NAMES, made, strict=True):
        agree(name, x, got)


@pytest.mark.parametrize("lanes", [1, 16])
def test_threads_of_a_block_too(lanes):
    x = dense(1 << 14)
    s = schedule(NAMES, lanes, "opencl" + AVX512, len(x), block=256)
    for stage in s.stages():
        s.bind(s.loops(stage.name)[1], "thread.x")
    for name, got in zip(NAMES, s.build("opencl:pocl")(x), strict=True):
        agree(name, x, got)


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_nothing_is_undefined_and_no_fma_is_needed(compiler, width, tmp_path, capfd):
    x = dense(1 << 14)
    s = schedule(NAMES, width // 4, "opencl", len(x))
    made = run(s.emitted(target(width)), (x,), tmp_path, compiler, width, ("-O1", "-fsanitize=undefined"))
    assert "runtime error" not in capfd.readouterr().err
    for name, got in zip(NAMES, made, strict=True):
        agree(name, x, got)


CALLS = {"c": {n: f"{n}f" for n in NAMES} | {"rsqrt": "tir_rsqrt_float32"}, "opencl": {n: n for n in NAMES}}


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("language", CALLS)
def test_the_library_is_called_on_request(language, lanes):
    for name in NAMES:
        ours, precise = (
            schedule([name], lanes, language + AVX512 + t, 64, 64).source() for t in ("", " -precise_math=1")
        )
        own, library = rf"\btir(_wide)?_{name}_float\d*\(", rf"\b{CALLS[language][name]}\("
        assert re.search(own, ours) and "ulp" in ours
        assert re.search(library, precise) and "ulp" not in precise
        if name not in ("sin", "cos"):  # which call it for large arguments
            assert not re.search(library, re.sub("//.*", "", ours))


def test_what_is_precise_stays_so_for_other_targets(tmp_path):
    for more in ("", " -precise_math=1"):
        folder = tmp_path / (more or "ours")
        schedule(["exp"], 1, f"opencl{more}", 64, 64).export(folder, to=["c"])
        text = "".join(p.read_text(encoding="utf-8") for p in folder.rglob("*.c"))
        assert ("tir_exp_float" in text, "expf(" in text) == (not more, bool(more))


@pytest.mark.parametrize("language", ["cuda", "opencl -kind=gpu"])
def test_gpus_and_doubles_have_the_library(language):
    x, d = tir.placeholder((64,), name="x"), tir.placeholder((64,), "float64", name="d")
    for t, to in ((x, language), (d, "opencl"), (d, "c"), (d, language)):
        s = tir.Schedule(tir.compute((64,), lambda i, t=t: tir.exp(t[i]), name="y"), to)
        if to not in ("opencl", "c"):
            s.bind("y.i", "thread.x")
        assert "tir_exp" not in s.source() and re.search(r"\b(__expf|expf?)\(", s.source())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_computed_in_float32(dtype):
    x = tir.placeholder((64,), dtype, name="x")
    s = tir.Schedule(tir.compute((64,), lambda i: tir.exp(x[i]), name="y"), "opencl")
    assert "tir_exp_float(" in s.source()
    arrays = random_arguments(s.outputs, 0)
    assert compare_results(s.outputs, (s.build("opencl:pocl")(*arrays),), evaluate(s.outputs, arrays))


def test_measures_errors_from_the_command_line():
    words = ["--stride", "262147", "--functions", "exp,sin", "--devices", "opencl:pocl"]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "vector_math.py", *words], capture_output=True, text=True, check=True
    )
    assert re.search(r"exp +16 lanes +opencl:pocl +0\.\d+ ulp at .* \(bound 1\)", done.stdout), done.stdout
