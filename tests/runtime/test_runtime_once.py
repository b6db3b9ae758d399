"""Kernels that run once: every call, when bound, or ahead of everything."""

from dataclasses import replace

import numpy as np
import pytest
from runtime_sources import f32

from tensorir.codegen.source import GatherRange, KernelLaunch, Param, Source
from tensorir.errors import LaunchError
from tensorir.runtime.launch import CompiledProgram

# U = 2 w (once), V = U + e (once), y = x * V
PACKED = Source(
    "packed",
    "opencl",
    """__kernel void twice(__global const float* w, __global float* U) {
  U[get_global_id(0)] = 2 * w[get_global_id(0)];
}
__kernel void more(__global const float* U, __global const float* e, __global float* V) {
  V[get_global_id(0)] = U[get_global_id(0)] + e[get_global_id(0)];
}
__kernel void rows(__global const float* x, __global const float* V, __global float* y) {
  y[get_global_id(0)] = x[get_global_id(0)] * V[get_global_id(0)];
}
""",
    (
        *(f32(n, (6,), "input") for n in ("x", "w", "e")),
        f32("y", (6,), "output"),
        f32("U", (6,), "workspace"),
        f32("V", (6,), "workspace"),
    ),
    (
        KernelLaunch("twice", ("w", "U"), (6, 1, 1), (1, 1, 1), once=True),
        KernelLaunch("more", ("U", "e", "V"), (6, 1, 1), (1, 1, 1), once=True),
        KernelLaunch("rows", ("x", "V", "y"), (6, 1, 1), (1, 1, 1)),
    ),
)
X, W, E = (np.arange(6, dtype=np.float32) + n for n in (1, 10, 100))


@pytest.fixture(scope="module")
def packed(device):
    return CompiledProgram(PACKED, device)


def want(x, w, e):
    return x * (2 * w + e)


def test_a_call_runs_everything(packed):
    for w in (W, W + 1):
        np.testing.assert_array_equal(packed(X, w, E), want(X, w, E))
    results, problems = packed.run_guarded(X, W, E)
    assert not problems
    np.testing.assert_array_equal(results, want(X, W, E))


def test_bound_launches_keep_their_own_results(packed):
    x, w = X.copy(), W.copy()
    one, two = packed.bind(x, w, E), packed.bind(x, W + 7, E)
    packed(X, W * 0, E)
    old = w.copy()
    x += 1
    w += 1
    for bound in (one, two):
        bound.refresh() if bound is two else None
        bound()
    np.testing.assert_array_equal(two.wait(), want(x, W + 7, E))
    np.testing.assert_array_equal(one.wait(), want(x, old, E))  # the weights are those of bind
    one.refresh()
    one()
    np.testing.assert_array_equal(one.wait(), want(x, w, E))
    assert one.results is one.wait()


def test_bound_launches_run_the_rest_only(packed):
    bound = packed.bind(X, W, E)
    assert (len(bound._once), len(bound._steps)) == (2, 1)
    assert packed.time(X, W, E, repeat=3, min_seconds=0.0).median_s > 0


def test_prepack(packed):
    w = W.copy()
    ready = packed.prepack(w=w, e=E)
    w[:] = 0
    assert [p.name for p in ready.source.inputs] == ["x"]
    np.testing.assert_array_equal(ready(X), want(X, W, E))
    bound = ready.bind(X)
    assert (len(bound._once), len(bound._steps)) == (0, 1)
    bound()
    np.testing.assert_array_equal(bound.wait(), want(X, W, E))
    results, problems = ready.run_guarded(X)
    assert not problems
    np.testing.assert_array_equal(results, want(X, W, E))
    other = ready.prepack(w=W + 5)
    np.testing.assert_array_equal(other(X), want(X, W + 5, E))
    np.testing.assert_array_equal(ready(X), want(X, W, E))
    np.testing.assert_array_equal(packed(X, W, E), want(X, W, E))


@pytest.mark.parametrize("name", ["w", "e"])
def test_prepack_of_a_part(packed, name):
    given = {"w": W, "e": E}
    ready = packed.prepack(**{name: given.pop(name)})
    (rest,) = given.values()
    for n in (1, 2):
        arrays = {"w": W, "e": E} | {k: v * n for k, v in given.items()}
        np.testing.assert_array_equal(ready(X, rest * n), want(X, **arrays))
        bound = ready.bind(X, rest * n)
        bound()
        np.testing.assert_array_equal(bound.wait(), want(X, **arrays))


def test_prepack_refuses(packed, device):
    def refused(code, call, *texts):
        with pytest.raises(LaunchError) as caught:
            call()
        assert caught.value.code == code
        assert all(text in str(caught.value) for text in texts)

    refused("launch.prepack", lambda: packed.prepack(x=X), "x cannot be fixed", "read w, e")
    refused("launch.prepack", lambda: packed.prepack(q=X), "q cannot be fixed")
    refused("launch.prepack", packed.prepack, "no input was named")
    refused("launch.prepack", lambda: packed.prepack(w=W, e=E).prepack(x=X), "read w, e")
    refused("launch.shape", lambda: packed.prepack(w=W[:3]))
    refused("launch.dtype", lambda: packed.prepack(w=W.astype("f8")))
    refused("launch.type", lambda: packed.prepack(w=[1.0]))
    plain = CompiledProgram(replace(PACKED, kernels=tuple(replace(k, once=False) for k in PACKED.kernels)), device)
    refused("launch.prepack", lambda: plain.prepack(w=W), "no input", "run='once'")


def test_fixed_indices_are_checked_once(device):
    text = """__kernel void take(__global const float* t, __global const int* n, __global float* U) {
  U[get_global_id(0)] = t[n[get_global_id(0)]];
}
__kernel void rows(__global const float* x, __global const float* U, __global float* y) {
  y[get_global_id(0)] = x[get_global_id(0)] * U[get_global_id(0)];
}
"""
    params = (f32("x", (3,), "input"), f32("t", (5,), "input"), Param("n", "int32", (3,), "input"))
    kernels = (
        KernelLaunch("take", ("t", "n", "U"), (3, 1, 1), (1, 1, 1), once=True),
        KernelLaunch("rows", ("x", "U", "y"), (3, 1, 1), (1, 1, 1)),
    )
    rest = (f32("y", (3,), "output"), f32("U", (3,), "workspace"))
    program = CompiledProgram(
        Source("take", "opencl", text, params + rest, kernels, (GatherRange("n", 5, "t"),)), device
    )
    t = np.arange(5, dtype=np.float32)
    with pytest.raises(LaunchError) as caught:
        program.prepack(t=t, n=np.array([0, 5, 1], np.int32))
    assert caught.value.code == "launch.index-range"
    ready = program.prepack(n=np.array([0, 4, 1], np.int32))
    np.testing.assert_array_equal(ready(t[:3], t), t[:3] * [0, 4, 1])


def test_arrays_of_another_context(packed, device):
    import pyopencl as cl
    import pyopencl.array as ca

    queue = cl.CommandQueue(cl.Context([device.handle]))
    x, w, e = (ca.to_device(queue, a) for a in (X, W, E))
    np.testing.assert_array_equal(packed(x, w, e).get(), want(X, W, E))
    ready = packed.prepack(w=w, e=E)
    np.testing.assert_array_equal(ready(x).get(), want(X, W, E))
    np.testing.assert_array_equal(ready(X), want(X, W, E))
