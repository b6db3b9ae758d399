"""Every operator of the gallery passes its check, and computes on the device what NumPy does."""

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorir.check.emulate import emulate

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))
from gallery import NAMES  # noqa: E402

import tensorir as tir  # noqa: E402

DOCS = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


SMALL = {"histogram": dict(length=5000), "max_unpool": dict(n=2, h=10, w=14, c=32)}
"""Scatters are checked over the terms that they have."""

WINDOWS = {"bilateral": [dict(r=5, t=5, y=y, x=x) for y, x in ((8, 16), (9, 17), (17, 9))]}
"""Where longer windows than those declared take seconds in the emulator."""


def small(module, name, seed):
    """A definition that checks get through, its schedule, and inputs."""
    if name == "cumsum":
        output = tir.scan(tir.placeholder((1000,), name="A"), name="S")
        return output, module.tiles(tir.Schedule(output), tile=256), tuple(x[:1000] for x in module.inputs(seed))
    if name not in SMALL:
        return module.OUTPUT, module.schedule(), module.inputs(seed)
    output = module.declare(**SMALL[name])
    return output, module.schedule(output), module.inputs(seed, **SMALL[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_is_right(name):
    module = importlib.import_module(f"gallery.{name}")
    schedule, inputs = module.schedule(), module.inputs(1)
    assert small(module, name, 1)[1].check()
    tolerance = getattr(module, "TOLERANCE", 0.0)
    np.testing.assert_allclose(schedule.build()(*inputs), module.by_numpy(*inputs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_a_library_computes_the_same(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = importlib.import_module(f"gallery.{name}")
    inputs = module.inputs(2)
    tolerance = getattr(module, "TOLERANCE", 0.0)
    theirs = module.by_torch(*map(torch.from_numpy, inputs))
    np.testing.assert_allclose(np.asarray(theirs), module.by_numpy(*inputs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["histogram", "bilateral", "segment_sum", "cumsum", "prefix_sum_2d", "max_unpool"])
def test_it_is_right_on_other_executors(name):
    """The interpreter and the device are those of the test above; here C, and CUDA text on the CPU."""
    module = importlib.import_module(f"gallery.{name}")
    (output, s, inputs), tolerance = small(module, name, 3), getattr(module, "TOLERANCE", 0.0)
    c = tir.replay(output, s.trace, target="c")
    assert c.check()
    np.testing.assert_allclose(c.build()(*inputs), module.by_numpy(*inputs), rtol=tolerance, atol=tolerance)
    told = tir.replay(output, s.trace, target="cuda -arch=sm_80").check("emulate", shapes=WINDOWS.get(name))
    assert told, str(told)


def test_the_page_shows_them_all():
    assert [n for n in NAMES if f"../examples/gallery/{n}.py" not in DOCS] == []


@pytest.mark.parametrize("name", ["causal", "ALiBi", "sliding window", "soft-cap", "documents"])
def test_variants_of_attention_are_lambdas(name):
    from gallery import attention

    output = attention.declare(heads=2, places=130, width=8, score=attention.SCORES[name])
    s = attention.schedule(output, rows=16, keys=16, tile=2, lanes=4, vectors=1, masked=name in attention.MASKED)
    assert s.check() and str(s.source()).count("__kernel") == 1
    by_name = {
        "causal": lambda s, h, i, j: np.where(j <= i, s, -np.inf),
        "ALiBi": lambda s, h, i, j: s - (i - j) * 2.0 ** -(h + 1.0),
        "sliding window": lambda s, h, i, j: np.where((j <= i) & (i - j < 100), s, -np.inf),
        "soft-cap": lambda s, h, i, j: 30 * np.tanh(s / 30),
        "documents": lambda s, h, i, j: np.where(i // 96 == j // 96, s, -np.inf),
    }
    inputs = attention.inputs(3, (2, 130, 8))
    want = attention.by_numpy(*inputs, by_name[name])
    np.testing.assert_allclose(s.build()(*inputs), want, rtol=1e-4, atol=1e-5)


def test_attention_on_tensor_cores_is_one_kernel():
    from gallery import attention, attention_cuda

    s = attention_cuda.schedule(attention_cuda.declare(1, 96, 32), warps=2, keys=32)
    assert s.check()
    source = s.source()
    assert source.count("__global__") == 1 and "mma.sync" in source and "ldmatrix" in source
    masked = attention_cuda.declare(1, 64, 16, attention.SCORES["causal"])
    assert attention_cuda.schedule(masked, warps=2, keys=32).check()
    assert attention_cuda.schedule(masked, warps=2, keys=32, masked=True).check()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_text_of_attention_on_tensor_cores_is_right():
    from gallery import attention_cuda

    s = attention_cuda.schedule(attention_cuda.declare(1, 64, 16), warps=2, keys=32)
    assert s.check("emulate")
    arrays = [np.random.default_rng(n).standard_normal((1, 64, 16)).astype("float16") for n in range(3)]
    run = emulate(s.emitted(), arrays)
    assert not run.problems
    np.testing.assert_allclose(run.outputs[0], attention_cuda.by_numpy(*arrays), rtol=2e-3, atol=2e-3)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_blocks_of_queries_skip_the_keys_after_them_on_tensor_cores():
    from gallery import attention, attention_cuda

    output = attention_cuda.declare(1, 96, 16, attention.SCORES["causal"])
    s = attention_cuda.schedule(output, warps=2, keys=32, masked=True)
    assert "skipped unless O.j.0 <= O.i.0" in s.tree()
    assert s.check("emulate")
