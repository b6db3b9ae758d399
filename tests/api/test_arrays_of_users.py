"""Arrays as users have them, on both devices of a processor: what is taken, what is refused, and what stays theirs."""

import array
import gc
import os
import signal
import threading
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import tensorir as tir
from tensorir.errors import TensorIRError
from tensorir.interp.numbers import numpy_dtype
from tensorir.runtime.device import open_device

SHAPE = (5, 10)


@pytest.fixture(scope="module", params=["opencl", "c:0"])
def device(request):
    try:
        return open_device(request.param)
    except TensorIRError as error:
        pytest.skip(error.problems[0].message)


@pytest.fixture(scope="module")
def add(device):
    """C = A + 2 B, called once."""
    a, b = tir.placeholder(SHAPE, name="A"), tir.placeholder(SHAPE, name="B")
    f = tir.Schedule(tir.compute(SHAPE, lambda i, j: a[i, j] + 2 * b[i, j], name="C")).build(device)
    f(numbers(), numbers())
    return f


def numbers(first=0, shape=SHAPE):
    made = tir.empty(shape)
    made[...] = np.arange(made.size, dtype=np.float32).reshape(shape) + first
    return made


def refusal(call):
    with pytest.raises(TensorIRError) as caught:
        call()
    return caught.value


# --- what is taken


class Sub(np.ndarray):
    """An array of another class."""


def moved(x, beyond):
    raw = np.empty(x.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + beyond
    made = raw[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def frozen(x):
    x.flags.writeable = False
    return x


def mapped(x, folder, mode):
    path = folder / f"{mode[0]}.bin"
    x.tofile(path)
    return np.memmap(path, np.float32, mode, shape=x.shape)


TAKEN = {
    "as it is": lambda x, folder: x,
    "read-only": lambda x, folder: frozen(x),
    "mapped": lambda x, folder: mapped(x, folder, "r"),
    "a subclass": lambda x, folder: x.view(Sub),
    "a matrix": lambda x, folder: x.view(np.matrix),
    "of bytes": lambda x, folder: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
    "beyond 4": lambda x, folder: moved(x, 4),
    "beyond 16": lambda x, folder: moved(x, 16),
    "turned": lambda x, folder: np.ascontiguousarray(x[::-1])[::-1],
    "in columns": lambda x, folder: np.asfortranarray(x),
    "every second": lambda x, folder: np.repeat(x, 2, 1)[:, ::2],
    "of a record": lambda x, folder: np.rec.fromarrays([x, x], names="p,q").p,
}
STRIDED = {"turned", "in columns", "every second", "of a record"}


@pytest.mark.filterwarnings("ignore:.*launch.copied-strides")
@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_taken(add, device, tmp_path, kind):
    x, y = numbers(3), numbers(7)
    for _ in range(2):
        given, before = TAKEN[kind](x.copy(), tmp_path), x.copy()
        for got, want in ((add(given, y), x + 2 * y), (add(y, B=given), y + 2 * x), (add(B=given, A=given), 3 * x)):
            assert type(got) is np.ndarray and got.flags.writeable and got.flags.c_contiguous
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(given, before)
        codes = {p.code for p in add.copies}
        assert ("launch.copied-strides" in codes) == (kind in STRIDED), "what is copied is told"
        if device.target.language == "c" and kind not in STRIDED:
            assert not codes, "any address suits"


def test_results_go_to_arrays_of_the_users(add, tmp_path):
    x, y = numbers(3), numbers(7)
    for out in (numbers(), moved(numbers(), 4), numbers().view(Sub), mapped(numbers(), tmp_path, "r+")):
        for given in (out, (out,), [out]):
            out[...] = 0
            assert add(x, y, out=given) is given
            np.testing.assert_array_equal(out, x + 2 * y)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "r.bin", np.float32).reshape(SHAPE), x + 2 * y)
    whole = numbers(0, (7, 10))
    add(x, y, out=whole[1:6])
    np.testing.assert_array_equal(whole[1:6], x + 2 * y)
    assert whole[0].tolist() == list(range(10)) and whole[6].tolist() == list(range(60, 70))


def test_numbers_without_axes(device):
    x, y, s = tir.placeholder((), name="x"), tir.placeholder((4,), name="y"), tir.scalar("s", "int32")
    f = tir.Schedule(tir.compute((4,), lambda i: y[i] * x[()] + tir.cast(s, "float32"), name="z")).build(device)
    b = np.arange(4, dtype=np.float32)
    for two in (2, 2.0, np.float32(2), np.array(2, np.float32)):
        for three in (3, np.int32(3), np.array(3, np.int32), True + 2):
            np.testing.assert_array_equal(f(two, b, three), 2 * b + 3)
            np.testing.assert_array_equal(f(s=three, y=b, x=two), 2 * b + 3)
    for wrong in (2.5, np.int64(3), "3", None, [3], np.array([3], np.int32)):
        assert refusal(lambda wrong=wrong: f(2, b, wrong)).code in ("launch.dtype", "launch.type", "launch.shape")


# --- what is refused


def structured():
    return np.zeros(SHAPE, [("p", "f4")])


REFUSED = {
    "a list": (lambda x: x.tolist(), "launch.type", "numpy.asarray(A)"),
    "a tuple": (lambda x: tuple(x.ravel()), "launch.type", "numpy.asarray(A)"),
    "None": (lambda x: None, "launch.type", ""),
    "a number": (lambda x: 3.0, "launch.type", "numpy.asarray(A)"),
    "a memoryview": (memoryview, "launch.type", "numpy.asarray(A)"),
    "bytes": (lambda x: x.tobytes(), "launch.type", ""),
    "an array.array": (lambda x: array.array("f", x.ravel()), "launch.type", "numpy.asarray(A)"),
    "float64": (lambda x: x.astype("f8"), "launch.dtype", "A.astype('float32')"),
    "the other byte order": (lambda x: x.astype(x.dtype.newbyteorder()), "launch.dtype", "A.astype('float32')"),
    "objects": (lambda x: x.astype(object), "launch.dtype", ""),
    "records": (lambda x: structured(), "launch.dtype", ""),
    "complex": (lambda x: x.astype("c8"), "launch.dtype", ""),
    "flat": (lambda x: x.reshape(-1), "launch.shape", "(5, 10)"),
    "one more axis": (lambda x: x[None], "launch.shape", "(5, 10)"),
    "a mask": (np.ma.masked_array, "launch.type", ""),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(add, kind):
    make, code, said = REFUSED[kind]
    x = numbers()
    error = refusal(lambda: add(make(x), x))
    assert error.code == code and "A: " in str(error) and said in str(error)
    np.testing.assert_array_equal(add(x, x), 3 * x)


def test_what_cannot_hold_results(add):
    x, y, raw = numbers(), numbers(5), numbers(0, (20, 10))
    for out, code in (
        (frozen(numbers()), "launch.read-only"),
        (np.broadcast_to(np.float32(0), SHAPE), "launch.strides"),
        (numbers()[::-1], "launch.strides"),
        (np.asfortranarray(numbers()), "launch.strides"),
        (numbers().astype("f8"), "launch.dtype"),
        (numbers(0, (4, 10)), "launch.shape"),
        (x, "launch.aliasing"),
        (y, "launch.aliasing"),
        (numbers().tolist(), "launch.count"),
        ((numbers(), numbers()), "launch.count"),
        ((), "launch.count"),
    ):
        before = (x.copy(), y.copy())
        assert refusal(lambda out=out: add(x, y, out=out)).code == code
        assert np.array_equal(x, before[0]) and np.array_equal(y, before[1])
    for first in range(1, 6):
        a, out = raw[:5], raw[first : first + 5]
        if first < 5:
            assert refusal(lambda a=a, out=out: add(a, y, out=out)).code == "launch.aliasing"
    np.testing.assert_array_equal(add(raw[:5], y, out=raw[5:10]), numbers(0, (5, 10)) + 2 * y)
    assert refusal(lambda: add(raw[::4], y, out=raw[5:10])).code == "launch.aliasing", "bounds of a strided array"


def test_arguments_by_name(add):
    x, y = numbers(), numbers(5)
    for call in (lambda: add(x, A=y), lambda: add(x, C=y), lambda: add(x, y, b=y), lambda: add(x, y, B=y)):
        assert refusal(call).code == "launch.keyword"
    assert refusal(lambda: add(A=x)).code == refusal(lambda: add(x)).code == "launch.count"


class Narrow:
    """An array of a library that knows bfloat16, of which DLPack in NumPy says nothing."""

    def __init__(self, array):
        self.array = array

    dtype = property(lambda self: self.array.dtype.name)

    def __array__(self, *_, **__):
        return self.array

    def __dlpack__(self, **_):
        raise BufferError("Unsupported dtype")

    def __dlpack_device__(self):
        return (1, 0)

    def __array_namespace__(self):
        return Narrow

    asarray = classmethod(lambda cls, array: cls(array))

    @staticmethod
    def from_dlpack(array):
        raise BufferError("Unsupported dtype")


def test_what_dlpack_does_not_say(device):
    a = tir.placeholder((8,), "bfloat16", name="a")
    f = tir.Schedule(tir.compute((8,), lambda i: a[i] + a[i], name="c")).build(device)
    x = np.arange(8).astype(numpy_dtype("bfloat16"))
    for _ in range(2):
        got = f(Narrow(x))
        assert type(got) is Narrow and got.dtype == "bfloat16"
        np.testing.assert_array_equal(got.array.astype("f4"), 2 * np.arange(8))
    assert refusal(lambda: f(Narrow(x.astype("f4")))).code == "launch.type"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int8"])
def test_jax(device, dtype):
    jax = pytest.importorskip("jax", reason="the extra jax is not installed")
    a, b = (tir.placeholder((4, 8), dtype, name=n) for n in "ab")
    f = tir.Schedule(tir.compute((4, 8), lambda i, j: tir.maximum(a[i, j], b[i, j]), name="c")).build(device)
    x, y = (jax.numpy.arange(n, n + 32).reshape(4, 8).astype(dtype) for n in (0, 5))
    held = []
    for _ in range(8):
        z = f(x, y)
        assert isinstance(z, jax.Array) and z.dtype == x.dtype
        held.append(z)
        x = z
    assert all((z == y).all() for z in held)
    assert (f(x, np.asarray(y)) == y).all() and type(f(np.asarray(y), x)) is np.ndarray
    assert refusal(lambda: f(x, y, out=y)).code == "launch.read-only"
    assert 'to="jax"' in str(refusal(lambda: jax.jit(f)(x, y)))


def test_constant_operands_are_packed_once_when_asked(device):
    work = tir.ops.matmul(m=4, n=32, k=16, prepack=True)
    f = work.schedule(target=device.target.text).build(device)
    x, w = numbers(-9, (4, 16)), numbers(-200, (16, 32))
    g, want = f.prepack(b=w), x @ w
    plain = f(x, w)
    held = [g(x), g(a=x)]
    w += 1
    for got in (*held, plain, g(x), f.prepack(b=w - 1)(x)):
        np.testing.assert_array_equal(got, want)
    for again in (f(x, w), f.prepack(b=w)(x), f.prepack(b=np.asfortranarray(w))(x)):
        np.testing.assert_array_equal(again, x @ w)
    out = tir.empty((4, 32))
    assert g(x, out=out) is out and np.array_equal(out, want)
    assert refusal(lambda: f.prepack(a=x)).code == "launch.prepack"
    assert refusal(lambda: g(x, w)).code == "launch.count"


# --- results are the user's


def _begun(result):
    def walk(rows):
        yield from rows

    made = walk(result)
    next(made)
    return made


def _error_with(hidden):
    try:
        raise ValueError
    except ValueError as error:
        return error


def _cycle(result):
    made = [result]
    made.append(made)
    return made


FORMS = {
    "itself": (lambda r: r, np.array),
    "a row": (lambda r: r[2], np.array),
    "a column": (lambda r: r[:, 3], np.array),
    "bytes": (lambda r: r.view(np.uint8), np.array),
    "memory": (memoryview, np.array),
    "dlpack": (np.from_dlpack, np.array),
    "a walk": (np.nditer, lambda r: np.array([float(v) for v in r.copy()])),
    "a generator": (_begun, lambda g: np.array(g.gi_frame.f_locals["rows"])),
    "an error": (_error_with, lambda e: np.array(e.__traceback__.tb_frame.f_locals["hidden"])),
    "a cycle": (_cycle, lambda c: np.array(c[0])),
}
"""What keeps a result, or a part of it, alive, and how to read that."""
if find_spec("torch"):
    FORMS["a tensor"] = (lambda r: import_module("torch").from_numpy(r)[1:], lambda t: t.numpy().copy())


class Calls(RuleBasedStateMachine):
    """Calls in any order, with results that are kept, given back, read from, written to and forgotten."""

    add = None

    def __init__(self):
        super().__init__()
        self.held = []  # what is kept, how it is read, what it must say
        self.whole = []  # results: array and what it must say

    @rule(n=st.integers(-9, 9), how=st.integers(0, 20))
    def call(self, n, how):
        x = numbers(n)
        result = self.add(x, x)
        form = list(FORMS)[how % len(FORMS)]
        keep, read = FORMS[form]
        alive = keep(result)
        if form == "itself":
            self.whole.append((result, 3 * x))
        else:
            self.held.append((alive, read, read(alive)))

    @rule(which=st.integers(0, 50))
    def call_with_a_result(self, which):
        if self.whole:
            given, says = self.whole[which % len(self.whole)]
            self.whole.append((self.add(given, B=given), 3 * says))

    @rule(which=st.integers(0, 50), n=st.integers(-9, 9))
    def call_into_a_result(self, which, n):
        if self.whole:
            place, _ = self.whole[which % len(self.whole)]
            x = numbers(n)
            self.add(x, x, out=place)
            self.whole = [(a, 3 * x if a is place else s) for a, s in self.whole]

    @rule()
    def call_that_is_refused(self):
        x = numbers()
        assert refusal(lambda: self.add(x, x.astype("f8"))).code == "launch.dtype"

    @rule(which=st.integers(0, 50))
    def forget(self, which):
        for kept in (self.held, self.whole):
            if kept:
                del kept[which % len(kept)]

    @rule()
    def forget_all_at_once(self):
        self.held.clear(), self.whole.clear()
        gc.collect()

    @rule(which=st.integers(0, 50))
    def write_to_a_result(self, which):
        if self.whole:
            result, says = self.whole[which % len(self.whole)]
            result += 1
            says += 1

    @invariant()
    def all_say_what_they_said(self):
        for result, says in self.whole:
            np.testing.assert_array_equal(result, says)
        for alive, read, says in self.held:
            np.testing.assert_array_equal(read(alive), says)
        places = sorted((a.ctypes.data, a.nbytes) for a in {id(a): a for a, _ in self.whole}.values())
        assert all(start + size <= after for (start, size), (after, _) in pairwise(places))


def test_results_are_never_overwritten(add):
    class Mine(Calls):
        pass

    for keep, read in FORMS.values():  # what they import is there now
        read(keep(add(numbers(), numbers())))
    gc.collect()
    gc.freeze()  # each time that all is forgotten, all that modules have would be looked through
    Mine.add = staticmethod(add)
    run_state_machine_as_test(
        Mine,
        settings=settings(
            max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_threads_keep_what_they_got(add):
    wrong = []

    def work(seed):
        mine = []
        for n in range(150):
            x = numbers(100 * seed + n)
            mine.append((add(x, x)[n % 5 :], 3 * x[n % 5 :]))
            mine = mine[-(n % 7) - 1 :]
            wrong.extend(seed for got, want in mine if not np.array_equal(got, want))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_after_a_fork_both_keep_what_they_had(add, device):
    x = numbers()
    held = [add(x, numbers(n)) for n in range(3)]
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(60)  # should it wait for ever
        try:
            if device.target.language == "c":
                more = [add(x, numbers(50 + n)) for n in range(6)]
                right = all(np.array_equal(y, x + 2 * numbers(50 + n)) for n, y in enumerate(more))
            else:
                right = refusal(lambda: add(x, x)).code == "device.forked"
            code = 0 if right and all(np.array_equal(y, x + 2 * numbers(n)) for n, y in enumerate(held)) else 2
        finally:
            os._exit(code)
    more = [add(x, numbers(90 + n)) for n in range(6)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for n, y in enumerate(held):
        np.testing.assert_array_equal(y, x + 2 * numbers(n))
    for n, y in enumerate(more):
        np.testing.assert_array_equal(y, x + 2 * numbers(90 + n))
