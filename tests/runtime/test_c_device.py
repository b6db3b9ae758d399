"""The device that is the processor itself: built by each compiler that is here, and compared with NumPy."""

import multiprocessing
import threading

import numpy as np
import pytest

import tensorir as tir
from tensorir.errors import CompileError, DeviceError, TensorIRError
from tensorir.runtime import c_device
from tensorir.runtime.device import devices, open_device

HERE = [d.name for d in devices() if d.language == "c" and d.usable]
pytestmark = pytest.mark.skipif(not HERE, reason="no C compiler")


@pytest.fixture(params=HERE)
def device(request):
    return open_device(request.param)


@pytest.fixture
def product(device):
    return tir.ops.matmul(m=61, n=84, k=37).schedule(target=device.target.text).build(device)


def small(seed, *shape):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype("float32")


def test_a_product_is_numpys(product):
    a, b = small(0, 61, 37), small(1, 37, 84)
    assert np.array_equal(product(a, b), a @ b)


def test_the_identity_says_by_what_it_was_built(device):
    assert "-march=native" in device.identity["compiler"] and device.identity["driver"] in device.identity["compiler"]


def test_arrays_are_worked_on_where_they_are_whatever_their_address(product):
    raw = np.zeros(61 * 37 + 1, "float32")
    for first in (0, 1):
        a, b = raw[first : first + 61 * 37].reshape(61, 37), small(1, 37, 84)
        a[:] = small(2, 61, 37)
        out = np.empty(61 * 84 + 1, "float32")[first:][: 61 * 84].reshape(61, 84)
        assert product(a, b, out=out) is out
        assert np.array_equal(out, a @ b) and not product.copies


def test_the_second_build_comes_from_the_cache(device, product):
    again = tir.ops.matmul(m=61, n=84, k=37).schedule(target=device.target.text).build(device)
    assert again.program.cached and again.program.digest


def test_threads_may_call_at_the_same_time(device):
    f = tir.ops.matmul(m=256, n=256, k=64).schedule(target=device.target.text).build(device)
    given = [(small(n, 256, 64), small(n + 9, 64, 256)) for n in range(4)]
    wrong = []

    def work(n):
        a, b = given[n]
        bound = f.bind(a, b)
        for _ in range(50):
            bound()
        wrong.extend([n] if not np.array_equal(bound.wait(), a @ b) else [])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def _in_child(f, a, b, queue):
    queue.put(bool(np.array_equal(f(a, b), a @ b)))


def test_a_forked_child_may_go_on(device):
    f = tir.ops.matmul(m=256, n=256, k=64).schedule(target=device.target.text).build(device)
    a, b = small(0, 256, 64), small(1, 64, 256)
    assert np.array_equal(f(a, b), a @ b)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(f, a, b, queue))
    child.start()
    assert queue.get(timeout=60)
    child.join(60)
    assert np.array_equal(f(a, b), a @ b)


def test_several_kernels_workspace_scalars_and_several_outputs(device):
    A, B = tir.placeholder((40, 24), name="A"), tir.placeholder((24, 33), name="B")
    alpha = tir.scalar("alpha")
    t = tir.reduce_axis(24, "t")
    C = tir.compute((40, 33), lambda i, j: tir.sum(A[i, t] * B[t, j], axis=t), name="C")
    D = tir.compute((40, 33), lambda i, j: (C[i, j] * alpha, tir.maximum(C[i, j], 0)), name="D")
    s = tir.Schedule(D, target=device.target.text)
    s.bind("C.i", "block.x").bind("D.i", "block.x")
    f = s.build(device)
    assert len(f.emitted.kernels) == 2 and f.emitted.workspace_bytes
    a, b = small(0, 40, 24), small(1, 24, 33)
    order = {"A": a, "B": b, "alpha": np.float32(2.5)}
    x, y = f(**order)
    assert np.array_equal(x, (a @ b) * np.float32(2.5)) and np.array_equal(y, np.maximum(a @ b, 0))


def test_what_is_written_beyond_an_array_is_seen(device):
    A = tir.placeholder((64,), name="A")
    s = tir.Schedule(tir.compute((64,), lambda i: A[i] + 1, name="C"), target=device.target.text)
    bad = s.with_source(s.source().replace("C[i] =", "C[i + 1] ="))
    assert bad.edited != s.source()
    with pytest.raises(TensorIRError) as found:
        bad.build(device)
    assert found.value.code == "launch.out-of-bounds"


def test_text_that_does_not_compile_says_where(device):
    A = tir.placeholder((64,), name="A")
    s = tir.Schedule(tir.compute((64,), lambda i: A[i] + 1, name="C"), target=device.target.text)
    with pytest.raises(CompileError, match="undeclared") as found:
        s.with_source(s.source().replace("A[i] + 1.0f", "A[i] + nothing")).build(device)
    assert found.value.code == "compile.c-text" and "nothing" in str(found.value)


def test_a_machine_without_a_compiler_says_so(monkeypatch):
    monkeypatch.setattr(c_device, "compilers", tuple)
    (only,) = c_device.list_devices()
    assert not only.usable and "gcc" in only.fix
    with pytest.raises(DeviceError) as found:
        open_device("c:0")
    assert found.value.code == "device.no-compiler"


@pytest.mark.parametrize("text", ["c:7", "c:msvc"])
def test_other_devices_are_not_there(text):
    with pytest.raises(DeviceError) as found:
        open_device(text)
    assert found.value.code == "device.not-found"


def test_compilers_have_names():
    for name in HERE:
        family = "clang" if "clang" in open_device(name).identity["driver"].lower() else "gcc"
        if family == "clang":
            assert open_device("c:clang").name == name


def test_plain_calls_are_quick(device, monkeypatch):
    x, w, s = tir.placeholder((5, 8), name="x"), tir.placeholder((8,), name="w"), tir.scalar("s", "float32")
    y = tir.compute((5, 8), lambda i, j: x[i, j] * w[j] + s, name="y")
    z = tir.compute((5,), lambda i: x[i, 0] - s, name="z")
    f = tir.Schedule([y, z], device.target.text).build(device)
    a, b, raw = small(0, 5, 8), small(1, 8), np.zeros(41, "float32")
    f(a, b, 1.0)
    monkeypatch.setattr("tensorir.runtime.launch.accept", None)
    held = [(f(a, b + n, float(n)), a * (b + n) + n, a[:, 0] - n) for n in range(9)]
    for (got, less), want, rest in held:
        assert np.array_equal(got, want) and np.array_equal(less, rest)
    out = raw[1:].reshape(5, 8), np.empty(5, "float32")
    for scalar in (2, 2.0, np.float32(2), np.array(2, "float32")):
        assert f(x=a, s=scalar, w=b, out=out) is out and not f.copies
        assert np.array_equal(out[0], a * b + 2) and np.array_equal(out[1], a[:, 0] - 2)
