"""Kernels as functions of TVM-FFI: tensors of NumPy and PyTorch, numbers, refusals."""

import importlib.util
import os
import subprocess
import sys
import threading

import hand_made
import numpy as np
import pytest

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
if not hand_made.COMPILERS:
    pytest.skip("there is no C compiler", allow_module_level=True)


def function(folder):
    about = hand_made.manifest(folder)["tvm_ffi"]
    return getattr(tvm_ffi.load_module(str(folder / about["library"])), about["function"])


@pytest.fixture
def product(monkeypatch, tmp_path):
    return function(hand_made.product(monkeypatch, tmp_path / "mm", ["tvm_ffi"]))


def matrices():
    return hand_made.ints(33, 17), hand_made.ints(17, 20, seed=2)


def shifted(array, offset):
    """A copy that starts ``offset`` bytes behind a multiple of 64."""
    room = np.zeros(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    made = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


@pytest.mark.parametrize("offset", [0, 4, 36])
def test_arrays_of_numpy_wherever_they_start(product, offset):
    a, b = matrices()
    y = shifted(np.empty((33, 20), np.float32), offset)
    assert product(shifted(a, offset), shifted(b, 8), y) is None and np.array_equal(y, a @ b)


def test_tensors_of_its_own_and_of_pytorch(product):
    a, b = matrices()
    y = np.empty((33, 20), np.float32)
    product(*(tvm_ffi.from_dlpack(x) for x in (a, b, y)))
    assert np.array_equal(y, a @ b)
    torch = pytest.importorskip("torch", reason="torch is not installed")
    z = torch.empty(33, 20)
    product(torch.from_numpy(a), torch.from_numpy(b), z)
    assert np.array_equal(z.numpy(), y)


def test_tensors_that_do_not_fit_are_refused_by_name(product):
    a, b = matrices()
    y = np.empty((33, 20), np.float32)
    for given, kind, message in (
        ((a, b), TypeError, "mm: expected 3 arguments, 1 of them outputs at the end, got 2"),
        ((a, b.T, y), ValueError, r"mm: b: expected float32 \(17, 20\), got a tensor of another shape"),
        ((a[0], b, y), ValueError, "mm: a: expected .* got a tensor of another shape"),
        ((a.astype("f8"), b, y), TypeError, r"mm: a: expected float32 \(33, 17\), got .* type \(2, 64, 1\)"),
        ((a, b.astype("i4"), y), TypeError, r"mm: b: .* type \(0, 32, 1\)"),
        ((a, np.asfortranarray(b), y), ValueError, "mm: b: .* not contiguous"),
        ((a, b, np.empty((33, 40), np.float32)[:, ::2]), ValueError, "mm: y: .* not contiguous"),
        ((a, 1.5, y), TypeError, "mm: b: .* got no tensor"),
        ((a, y[:17], y), ValueError, "mm: y: expected memory of its own, got memory that overlaps b"),
    ):
        with pytest.raises(kind, match=message):
            product(*given)
    product(a, b, y)
    assert np.array_equal(y, a @ b)


def test_numbers_and_several_outputs(monkeypatch, tmp_path):
    f = function(hand_made.several(monkeypatch, tmp_path / "several", ["tvm_ffi"]))
    x, u, v = np.arange(6, dtype="i4").reshape(2, 3), np.empty((2, 3)), np.empty((2, 3), "i8")
    f(x, 1.0002, 5, True, u, v)
    assert np.array_equal(u, x) and np.array_equal(v, x + 5), "half is a float of 16 bits"
    f(x, 2, -(2**40), 0, u, v)
    assert np.array_equal(u, 2 * x) and (v == -1).all()
    f(x, 1e9, 5, True, u, v)
    assert np.isinf(u[0, 1])
    for given, kind, message in (
        ((x, "1", 5, True, u, v), TypeError, "half: expected a float16 number, got no number"),
        ((x, 1, 5.5, True, u, v), TypeError, "shift: expected a int64 number, got no integer"),
        ((x, 1, 5, 2, u, v), ValueError, "on: expected a bool number, got 2"),
        ((x, 1, 5, True, u, u), TypeError, "v: expected int64"),
        ((x, 1, 77, True, u, v), RuntimeError, "several: error 5, see several.h"),
    ):
        with pytest.raises(kind, match=message):
            f(*given)


def test_an_index_out_of_range_is_refused(monkeypatch, tmp_path):
    f = function(hand_made.gather(monkeypatch, tmp_path / "rows", ["tvm_ffi"]))
    x, y = np.arange(15, dtype="f4").reshape(5, 3), np.empty((4, 3), "f4")
    f(x, np.array([4, 0, 1, 4], "i4"), y)
    assert np.array_equal(y, x[[4, 0, 1, 4]])
    for wrong in (5, -1, 2**31 - 1):
        with pytest.raises(IndexError, match=r"rows: at: an index is not in 0 \.\.\. 4"):
            f(x, np.array([0, wrong, 0, 0], "i4"), y)


def test_threads(product):
    a, b = matrices()
    wrong = []

    def calls(n):
        x, y = a * n, np.empty((33, 20), np.float32)
        for _ in range(500):
            product(x, b, y)
        if not np.array_equal(y, n * (a @ b)):
            wrong.append(n)

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(1, 5)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_the_module_describes_its_function(monkeypatch, tmp_path):
    """By the symbols that the interface gives documentation and types."""
    from tvm_ffi.core import TypeSchema

    product = "mm(a: float32 (33, 17), b: float32 (17, 20), y: written, float32 (33, 20))"
    several = "several(x: int32 (2, 3), half: a float16 number, shift: a int64 number, on: a bool number, "
    several += "u: written, float64 (2, 3), v: written, int64 (2, 3))"
    for write, doc, schema in (
        (hand_made.product, product, "Callable[[Tensor, Tensor, Tensor], None]"),
        (hand_made.several, several, "Callable[[Tensor, float, int, bool, Tensor, Tensor], None]"),
    ):
        folder = write(monkeypatch, tmp_path / write.__name__, ["tvm_ffi"])
        about = hand_made.manifest(folder)["tvm_ffi"]
        module = tvm_ffi.load_module(str(folder / about["library"]))
        assert module.get_function_doc(about["function"]) == doc
        found = TypeSchema.from_json_str(module.get_function_metadata(about["function"])["type_schema"])
        assert str(found) == schema


ARRAYS_OF_JAX = """
import sys
sys.modules["tensorir"] = None
import numpy as np, jax.numpy as jnp, tvm_ffi
f = tvm_ffi.load_module(sys.argv[1]).mm
a, b = jnp.arange(33 * 17, dtype="f4").reshape(33, 17) % 5, jnp.arange(17 * 20, dtype="f4").reshape(17, 20) % 7
y = np.empty((33, 20), "f4")
f(a, b, y)
assert np.array_equal(y, a @ b)
try:
    f(a.astype("bfloat16"), b, y)
except TypeError as error:
    print(error)
"""


def test_arrays_of_jax(monkeypatch, tmp_path):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    folder = hand_made.product(monkeypatch, tmp_path / "mm", ["tvm_ffi"])
    done = subprocess.run(
        [sys.executable, "-c", ARRAYS_OF_JAX, str(folder / "libmm.so")], capture_output=True, text=True, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "mm: a: expected float32 (33, 17), got a tensor of DLPack's type (4, 16, 1)"
    )  # fmt: skip


LOADED_BEFORE = """
import sys
sys.modules["tensorir"] = None
import ctypes, numpy as np
ctypes.CDLL(sys.argv[1])  # as the door of another framework does
import tvm_ffi
f = tvm_ffi.load_module(sys.argv[1]).mm
try:
    f(np.zeros(3, "f4"), np.zeros(3, "f4"), np.zeros(3, "f4"))
except ValueError as error:
    print(error)
"""


def test_errors_of_a_library_that_another_framework_loaded_first(monkeypatch, tmp_path):
    folder = hand_made.product(monkeypatch, tmp_path / "mm", ["tvm_ffi"])
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BEFORE, str(folder / "libmm.so")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "mm: a: expected float32 (33, 17)" in done.stdout, done.stderr


def test_the_self_test_and_its_module(monkeypatch, tmp_path):
    to = ["tvm_ffi", *(["jax"] if importlib.util.find_spec("jax") else [])]
    for write in (hand_made.product, hand_made.several, hand_made.gather):
        folder = write(monkeypatch, tmp_path / write.__name__, to)
        done = subprocess.run(
            [sys.executable, str(folder / "selftest.py"), *to], capture_output=True, text=True, check=False, cwd="/",
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout.startswith(f"selftest ok {' '.join(to)}"), done.stderr
