"""The ported te tutorials: golden trees and sources, exact results, offline CUDA, Oclgrind, and the check."""

import functools

import numpy as np
import pytest
from te import conv, gemm

import tensorir as tir
from tensorir.runtime.timing import Timing

CASES = [
    pytest.param(m, step, id=f"{m.__name__.split('.')[-1]}-{step.__name__}") for m in (gemm, conv) for step in m.STEPS
]
LAST = [pytest.param(gemm, gemm.parallel, id="gemm"), pytest.param(conv, conv.vectors, id="conv")]


def name(module, step):
    return f"te/{module.__name__.split('.')[-1]}_{step.__name__}"


def small_integers(shape, seed):
    """Values whose products and sums are exact in float32 in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype("float32")


@functools.cache
def problem(module):
    """Inputs and the expected result of an example."""
    if module is gemm:
        a, b = small_integers((gemm.M, gemm.K), 1), small_integers((gemm.K, gemm.N), 2)
        return (a, b), a @ b
    x = small_integers((conv.SIZE, conv.SIZE, conv.CHANNELS, conv.IMAGES), 1)
    w = small_integers((conv.WINDOW, conv.WINDOW, conv.CHANNELS, conv.FILTERS), 2)
    return (x, w), conv.reference(x, w)


@pytest.mark.parametrize(("module", "step"), CASES)
def test_tree(module, step, golden):
    golden(step()[0].tree(), name(module, step) + ".tree.txt")


@pytest.mark.parametrize(("target", "suffix"), [("opencl", "cl"), ("cuda", "cu")])
@pytest.mark.parametrize(("module", "step"), CASES)
def test_source(module, step, target, suffix, golden):
    golden(step(target)[0].source(), f"{name(module, step)}.{suffix}")


@pytest.mark.parametrize(("module", "step"), CASES)
def test_replay_gives_the_same_tree_and_source(module, step):
    s, _ = step()
    for trace in (s.trace, s.trace.to_json()):
        other = tir.replay(s.outputs, trace)
        assert other.tree() == s.tree()
        assert other.source() == s.source()


@pytest.mark.parametrize(
    ("module", "step", "arch"), [(*case.values, ("sm_75", "sm_80", "sm_90")[n % 3]) for n, case in enumerate(CASES)]
)
def test_cuda_text_compiles_offline(module, step, arch, tmp_path, monkeypatch):
    pytest.importorskip("cupy", reason="the extra cuda is not installed")
    from tensorir.runtime.cuda import compile_cubin

    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path))
    cubin = compile_cubin(step("cuda")[0].source(), arch)
    assert cubin.kernels
    assert cubin.spills == 0


@pytest.mark.parametrize(("module", "step"), LAST)
def test_under_oclgrind(module, step):
    from tensorir.runtime.device import devices

    found = [d for d in devices() if d.simulator and d.usable]
    if not found:
        pytest.skip("Oclgrind's wheel is not installed")
    arrays, want = problem(module)
    np.testing.assert_array_equal(step()[0].build(found[0].name)(*arrays), want)


@pytest.mark.parametrize(("module", "step"), CASES)
def test_check_agrees(module, step):
    verdict = step()[0].check()
    assert verdict, str(verdict)


@pytest.mark.parametrize("module", [gemm, conv])
def test_every_step_says_what_it_does(module):
    said = [step()[1] for step in module.STEPS]
    assert len(set(said)) == len(said)
    assert all(step.__doc__ for step in module.STEPS)


@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("module", [gemm, conv])
def test_runs_as_a_script(module, capsys, monkeypatch):
    """It asserts that the result of each step is exact, and times it, here by one launch: how long a run takes is no
    business of this test.
    """

    def launched(executable, *arrays):
        executable(*arrays)
        return Timing.of([0.001])

    monkeypatch.setattr(tir.Executable, "time", launched)
    module.main()
    assert capsys.readouterr().out.count("== ") == len(module.STEPS)
