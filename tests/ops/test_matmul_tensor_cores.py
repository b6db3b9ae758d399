"""matmul on tensor cores: the text of any configuration multiplies any shape."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.engines.gemm_tensor import TensorTile
from tensorir.engines.problems import Gemm

AMPERE = "cuda -arch=sm_80"
TURING = "cuda -arch=sm_75"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def work(**changed):
    return tir.ops.matmul(**{"m": 128, "n": 128, "k": 64, "dtype": "float16", **changed})


def test_is_the_default_where_there_are_tensor_cores():
    assert work().template_for(AMPERE) == "gpu_tile_mma"
    assert work(dtype="float32").template_for(AMPERE) == "gpu_tile_warp"
    for dtype in ("float16", "int8", "uint8"):
        assert work(dtype=dtype).template_for(TURING) == "gpu_tile_mma"
    for other in (dict(dtype="bfloat16"), dict(dtype="float32", precision="tf32")):
        assert work(**other).template_for(TURING) == "gpu_tile"
        with pytest.raises(tir.ScheduleError) as e:
            work(**other).schedule(template="gpu_tile_mma", target=TURING)
        assert e.value.code == "template.target"
        assert "sm_80 or later" in str(e.value)
        with pytest.raises(tir.ScheduleError, match="sm_80 or later") as e:
            work(**other).templates["gpu_tile_mma"].space_for(tir.Target.parse(TURING))
        assert e.value.code == "template.target"
    with pytest.raises(tir.ScheduleError) as e:
        work().schedule(template="gpu_tile_mma", target="cuda -arch=sm_70")
    assert "sm_75 or later" in str(e.value)


@pytest.mark.parametrize("target", [AMPERE, TURING])
def test_a_start_has_values_of_the_knobs(target):
    """A start that is no configuration would be left for the first legal one without a word."""
    on = tir.Target.parse(target)
    for size in (40, 512, 4096):
        p = Gemm(m=size, n=size, k=512, dtype="float16")
        knobs = TensorTile.knobs(p, on)
        assert all(value in knobs[name] for name, value in TensorTile.start(p, on).items())


KINDS = [("float16", "fp32"), ("bfloat16", "fp32"), ("int8", "fp32"), ("uint8", "fp32"), ("float32", "tf32"),
         ("float32", "3xtf32")]  # fmt: skip


SHAPES = (
    {},
    dict(ta=True, tb=True, batch=2, bias=True, act="relu", m=70, n=40, k=50),
    dict(ta=True, m=65, n=131, k=40),
    dict(tb=True, alpha=True, beta=True, m=64, n=96),
)


@emulated
@pytest.mark.parametrize(
    ("changed", "dtype", "precision"),
    [(c, *KINDS[0]) for c in SHAPES] + [(SHAPES[1 + n % 3], *kind) for n, kind in enumerate(KINDS[1:])],
    ids=str,
)
def test_text_is_right(changed, dtype, precision):
    w = work(dtype=dtype, precision=precision, **changed)
    assert w.template_for(AMPERE) == "gpu_tile_mma"
    verdict = w.schedule(target=AMPERE).check("emulate")
    assert verdict, verdict


@emulated
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(1, 1, 1), (130, 70, 33), (64, 256, 96), (17, 300, 64)]),
       st.booleans(), st.sampled_from(KINDS))  # fmt: skip
def test_any_configuration(seed, shape, turned, kind):
    m, n, k = shape
    w = work(m=m, n=n, k=k, ta=turned, tb=not turned, dtype=kind[0], precision=kind[1])
    space = w.templates["gpu_tile_mma"].space_for(tir.Target.parse(AMPERE))
    config = space.config(seed % len(space.legal))
    s = w.schedule(config, "gpu_tile_mma", AMPERE)
    assert s.check("emulate"), config


@emulated
@pytest.mark.parametrize(("changed", "dtype"), [(SHAPES[1], "float8_e4m3"), (SHAPES[3], "float8_e5m2")])
def test_8_bit_floats_are_multiplied_from_sm_89_on(changed, dtype):
    w = work(dtype=dtype, **changed)
    assert w.template_for(AMPERE) == "gpu_tile"
    assert w.template_for("cuda -arch=sm_89") == "gpu_tile_mma"
    assert w.outputs[0].dtype == "bfloat16"
    verdict = w.schedule(target="cuda -arch=sm_89").check("emulate")
    assert verdict, verdict


@pytest.mark.parametrize(("changed", "dtype"), [(SHAPES[1], "float16"), (SHAPES[2], "int8"), (SHAPES[3], "uint8")],
                         ids=str)  # fmt: skip
def test_tensor_cores_of_sm_75(changed, dtype):
    """Half as many terms at a time, copies through registers."""
    s = work(dtype=dtype, **changed).schedule(target=TURING)
    text = s.source()
    assert ("tir_mma_m16n8k8_f16(" if dtype == "float16" else "mma.sync.aligned.m8n8k16.row.col.s32") in text
    assert "copy_async" not in text
    verdict = s.check("emulate")
    assert verdict, verdict


@emulated
@settings(max_examples=2, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from(["float16", "int8"]))
def test_any_configuration_of_sm_75(seed, turned, dtype):
    w = work(m=130, n=72, k=33, ta=turned, tb=not turned, dtype=dtype)
    space = w.templates["gpu_tile_mma"].space_for(tir.Target.parse(TURING))
    config = space.config(seed % len(space.legal))
    assert config["depth"] <= 2
    assert not config["in_flight"]
    assert w.schedule(config, "gpu_tile_mma", TURING).check("emulate"), config


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_the_default_of_sm_75_spills_nothing(dtype):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin, sass_opcodes

    s = work(m=4096, n=4096, k=4096, tb=True, dtype=dtype).schedule(target=TURING)
    cubin = compile_cubin(s.emitted().text, "sm_75")
    assert cubin.spills == 0
    assert any(name.startswith("HMMA.1688" if dtype == "float16" else "IMMA.8816") for name in sass_opcodes(cubin))


@pytest.mark.parametrize(("dtype", "precision"), [KINDS[5]])
def test_configurations_are_proved(dtype, precision):
    verdict = work(m=70, n=72, k=40, dtype=dtype, precision=precision).schedule(target=AMPERE).check()
    assert verdict, verdict


@emulated
def test_three_products_of_tf32_are_as_exact_as_float32():
    """The stated bound: no further from the exact product than sums of float32 in threads; one product is."""
    import numpy as np

    from tensorir.check.emulate import emulate

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 512), (512, 64)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = {}
    for precision in ("fp32", "tf32", "3xtf32"):
        s = tir.ops.matmul(m=64, n=64, k=512, precision=precision).schedule(target=AMPERE)
        got = emulate(s.emitted(), [a, b])
        assert not got.problems
        error[precision] = np.abs(got.outputs[0] - exact).max() / np.abs(exact).max()
    assert error["3xtf32"] <= error["fp32"] < 1e-6 < error["tf32"] < 1e-2


def test_precision_is_named():
    assert "precision=3xtf32" in work(dtype="float32", precision="3xtf32").title
    assert "precision" not in work(dtype="float32").title
    for wrong, code in (("fp16", "argument.value"), ("tf32", "matmul.precision")):
        with pytest.raises(tir.DeclarationError) as e:
            work(dtype="float16", precision=wrong)
        assert e.value.code == code


@emulated
def test_default_reads_shared_memory_without_conflicts():
    """The counts that docs/cuda-evidence.md shows: whole wavefronts, whole sectors."""
    import numpy as np

    from tensorir.check.emulate import emulate

    for ta, tb in ((False, False), (True, False), (False, True), (True, True)):
        w = work(m=512, n=512, k=64, ta=ta, tb=tb)
        given = [
            np.ones((64, 512) if ta else (512, 64), np.float16),
            np.ones((512, 64) if tb else (64, 512), np.float16),
        ]
        got = emulate(w.schedule(target=AMPERE).emitted(), given)
        assert not got.problems
        assert np.array_equal(got.outputs[0], np.full((512, 512), 64, np.float16))
        for t in got.traffic:
            assert t.units == t.ideal, t
            assert t.width == 16 or t.what == "shared write", t  # of results, two neighbours at a time


@emulated
def test_a_third_matrix_is_read_in_whole_sectors():
    from emulating import small_integers

    from tensorir.check.emulate import emulate

    w = work(m=256, n=256, k=64, beta=True, alpha=True)
    source = w.schedule(target=AMPERE).emitted()
    got = emulate(source, small_integers(source))
    assert not got.problems and {t.what for t in got.traffic} >= {"global read", "shared write"}
    assert all(t.units == t.ideal for t in got.traffic)
