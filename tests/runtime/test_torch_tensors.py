"""Tensors of PyTorch as arguments: worked on where they are, results are tensors, no gradient is lost in silence."""

import numpy as np
import pytest
from runtime_sources import ADD, TWO, one
from test_runtime_launch import numbers, refused

import tensorir as tir
from tensorir.errors import LaunchTypeError
from tensorir.runtime import launch
from tensorir.runtime.launch import CompiledProgram

torch = pytest.importorskip("torch", reason="the extra torch is not installed")


@pytest.fixture(params=["long", "quick"])
def add(device, request, monkeypatch):
    """C = A + 2 B; the second time, calls that go the long way fail."""
    program = CompiledProgram(ADD, device)
    if request.param == "quick":
        if not device.works_in_place:
            pytest.skip("this device works on copies")
        program(tensor(), tensor())
        monkeypatch.setattr(launch, "accept", None)
    else:
        program._called = True
    return program


def tensor(dtype=torch.float32, first=0, size=(5, 10)):
    return (torch.arange(size[0] * size[1]) + first).to(dtype).reshape(size)


def test_results_are_tensors_and_nothing_is_copied(add):
    a, b, out = tensor(), tensor(first=3), torch.zeros(5, 10)
    c = add(a, b)
    assert type(c) is torch.Tensor and torch.equal(c, a + 2 * b) and add.copies == ()
    assert add(a, b, out=out) is out and torch.equal(out, c) and add.copies == ()
    np.testing.assert_array_equal(add(a, b.numpy()), c)
    kept = [add(a, tensor(first=n)) for n in range(10)]
    assert all(torch.equal(y, a + 2 * tensor(first=n)) for n, y in enumerate(kept))
    part = add(a, a)[1:, 2:]
    for n in range(10):
        add(a, tensor(first=n))
    assert torch.equal(part, (3 * a)[1:, 2:])


def test_a_kernel_works_on_the_memory_of_the_tensor(device):
    if not device.coherent:
        pytest.skip("this device works on copies")
    program, a, out = CompiledProgram(ADD, device), tensor(), torch.zeros(5, 10)
    bound = program.bind(a, a, out=out)
    a += 1
    bound()
    bound.finish()
    assert torch.equal(out, 3 * a) and bound.copies == ()


def test_gradients_are_not_lost_in_silence(device):
    a, weight, add = tensor(), torch.nn.Parameter(tensor(first=1)), CompiledProgram(ADD, device)
    for _ in range(2):
        error = refused("launch.gradient", lambda: add(a, weight), "B: expected a tensor without", "try: B.detach()")
        assert isinstance(error, LaunchTypeError)
        refused("launch.gradient", lambda: add(a, a, out=weight), "C: ")
        assert torch.equal(add(a, weight.detach()), a + 2 * weight.detach())


def test_where_no_gradient_is_recorded_parameters_are_taken(add):
    a, weight = tensor(), torch.nn.Parameter(tensor(first=1))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(add(a, weight), a + 2 * weight)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float64", "float16", "bfloat16", "float8_e4m3fn", "uint8"])
@pytest.mark.parametrize("quick", [False, True])
def test_dtypes(device, dtype, quick):
    kind = getattr(torch, dtype)
    ours = tir.placeholder((3, 4), dtype, name="x").dtype
    size = {1: "uchar", 2: "ushort", 8: "long"}[kind.itemsize]
    program = CompiledProgram(one(f"copy_{dtype}", "C[i] = A[i];", (3, 4), str(ours), size), device)
    program._called = not quick
    a, out = (torch.arange(12).reshape(3, 4) % 2).to(kind), torch.zeros(3, 4).to(kind)
    for _ in range(2):
        c = program(a)
        assert c.dtype == kind and torch.equal(c.float(), a.float()) and program.copies == ()
        assert program(a, out=out) is out and torch.equal(out.float(), a.float())
    refused("launch.dtype", lambda: program(a.to(torch.complex64)), "A: expected dtype", "complex64")


@pytest.mark.filterwarnings("ignore:.*launch.copied-strides")
def test_strided_tensors_are_copied_and_told(device):
    add = CompiledProgram(ADD, device)
    turned, a = tensor(size=(10, 5)).T, tensor()
    assert torch.equal(add(turned, a), turned + 2 * a)
    assert "try: A.contiguous() once" in str(add.copies[0])
    refused("launch.strides", lambda: add(a, a, out=turned), "C: ")


def test_tensors_that_are_no_plain_memory_are_refused(device):
    add, a = CompiledProgram(ADD, device), tensor()
    for bad in (a.to_sparse(), torch.empty(5, 10, device="meta"), a.to(torch.complex64).conj().imag):
        refused("launch.type", lambda bad=bad: add(a, bad), "B: this torch.Tensor cannot be read")


def test_scalars(device):
    two, a = CompiledProgram(TWO, device), tensor(size=(4, 6))
    for s, n in ((torch.tensor(2.0), torch.tensor(10, dtype=torch.int32)), (2.0, 10)):
        c, d = two(a, s, n)
        np.testing.assert_array_equal(c, numbers(4, 6).T * 2 + np.arange(6, dtype="f4")[:, None])
        np.testing.assert_array_equal(d, np.arange(10, 16))
    refused("launch.dtype", lambda: two(a, torch.tensor(2.0, dtype=torch.float64), 1), "s: ", "float64")
    refused("launch.gradient", lambda: two(a, torch.tensor(2.0, requires_grad=True), 1), "s: ")


def test_prepacked_weights(device):
    from test_runtime_once import PACKED, E, W, X, want

    packed = CompiledProgram(PACKED, device)
    x, w, e = map(torch.from_numpy, (X.copy(), W.copy(), E.copy()))
    ready = packed.prepack(w=w)
    w += 1
    np.testing.assert_array_equal(ready(x, e), want(X, W, E))
    refused("launch.gradient", lambda: packed.prepack(w=torch.nn.Parameter(w)), "w.detach()")
