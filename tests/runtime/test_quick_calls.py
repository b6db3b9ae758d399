"""Plain calls: the quick way gives what the long way gives, and never touches a result that somebody still has."""

import ctypes
import gc
import re
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_sources import ADD, GATHER, TWO, f32, one
from test_runtime_launch import Foreign, aligned, codes, numbers, refused, unaligned
from test_runtime_once import PACKED, E, W, X, want

import tensorir as tir
from tensorir.codegen.source import KernelLaunch, Source
from tensorir.errors import LaunchError, TensorIRError
from tensorir.interp.numbers import numpy_dtype
from tensorir.runtime import launch
from tensorir.runtime.arguments import address
from tensorir.runtime.call import _COUNTED, MAX_KEPT_RESULTS
from tensorir.runtime.launch import CompiledProgram

pytestmark = pytest.mark.filterwarnings("ignore:.*launch.copied-strides")


@pytest.fixture
def add(device):
    """A program that has been called once, so that calls can be quick."""
    if not device.works_in_place:
        pytest.skip("this device works on copies")
    program = CompiledProgram(ADD, device)
    program(aligned(numbers(5, 10)), aligned(numbers(5, 10)))
    return program


@pytest.fixture
def quick_only(monkeypatch):
    """From now on a call that goes the long way fails."""

    def begin():
        def long(*_):
            raise AssertionError("this call went the long way")

        monkeypatch.setattr(launch, "accept", long)

    return begin


def slow(program):
    """The same program, whose calls all go the long way."""
    made = CompiledProgram(program.source, program.device, module=program._module)
    made._lock, made._called = program._lock, True
    return made


# --- which calls are quick


def test_what_needs_no_copy_is_quick(add, quick_only):
    a, b, out = (aligned(numbers(5, 10) + n) for n in range(3))
    a.flags.writeable = False
    quick_only()
    np.testing.assert_array_equal(add(a, b), a + 2 * b)
    assert add(a, b, out=out) is out
    np.testing.assert_array_equal(out, a + 2 * b)
    outs = (out,)
    assert add(b, b, out=outs) is outs
    np.testing.assert_array_equal(out, 3 * b)
    assert add(b, b, out=[out]) == [out]
    np.testing.assert_array_equal(add(a, Foreign(b)), a + 2 * b)
    assert type(add(Foreign(a), b)) is Foreign
    assert add.copies == ()


def test_a_quick_call_forgets_the_copies_of_an_earlier_one(add):
    a = aligned(numbers(5, 10))
    add(a[::-1], a)
    assert [p.code for p in add.copies] == ["launch.copied-strides"]
    add(a, a)
    assert add.copies == ()


def test_what_is_copied_is_quick_and_told(add, quick_only):
    a, turned, out = aligned(numbers(5, 10)), aligned(numbers(5, 10))[::-1], aligned(numbers(5, 10), 4)
    add(turned, a)  # which warns
    quick_only()
    np.testing.assert_array_equal(add(turned, aligned(a, 8), out=out), turned + 2 * a)
    assert codes(add.copies) == [(f"launch.copied-{why}", p) for p, why in zip("ABC", ("strides", *("alignment",) * 2))]
    kept = [add(aligned(numbers(5, 10) + n, 4), a) for n in range(9)]
    for n, y in enumerate(kept):
        np.testing.assert_array_equal(y, 3 * a + n)
    y = add(a, a)
    add(a, aligned(a, 4), out=aligned(a, 4))
    np.testing.assert_array_equal(y, 3 * a)


def test_of_arrays_with_the_same_bytes_only_the_strided_one_is_copied(add, quick_only):
    a = aligned(numbers(5, 10))
    add(a[::-1], a)
    quick_only()
    for first, second, copied in ((a[::-1], a, "A"), (a, a[::-1], "B")):
        np.testing.assert_array_equal(add(first, second), first + 2 * second)
        assert codes(add.copies) == [("launch.copied-strides", copied)]


def test_scalars_and_several_results_are_quick(device, quick_only):
    two = CompiledProgram(TWO, device)
    a = aligned(numbers(4, 6))
    two(a, 2.0, 10)
    quick_only()
    for s, n in ((3.0, 5), (np.float32(3), np.int32(5)), (np.array(3, "f4"), np.array(5, "i4")), (3, 5)):
        c, d = two(a, s, n)
        np.testing.assert_array_equal(c, a.T * 3 + np.arange(6, dtype=np.float32)[:, None])
        np.testing.assert_array_equal(d, np.arange(5, 11))


def test_by_name_and_with_out(device, quick_only):
    x, w = tir.placeholder((5, 8), name="x"), tir.placeholder((8,), name="w")
    f = tir.Schedule(tir.compute((5, 8), lambda i, j: x[i, j] * w[j], name="y")).build(device)
    a, b, out = aligned(numbers(5, 8)), aligned(numbers(8)), tir.empty((5, 8))
    f(a, b)
    quick_only()
    for call in (lambda **o: f(w=b, x=a, **o), lambda **o: f(a, w=b, **o), lambda **o: f(a, b, **o)):
        np.testing.assert_array_equal(call(), a * b)
        assert call(out=out) is out and np.array_equal(out, a * b)
        out[...] = 0


def test_kernels_that_run_once_and_prepacked_ones_are_quick(device, quick_only):
    packed = CompiledProgram(PACKED, device)
    x, w, e = aligned(X), aligned(W), aligned(E)
    ready = packed.prepack(w=w)
    packed(x, w, e), ready(x, e)
    quick_only()
    for n in (0, 1):
        np.testing.assert_array_equal(packed(x, aligned(w + n), e), want(x, w + n, e))
        np.testing.assert_array_equal(ready(x, aligned(e + n)), want(x, w, e + n))
    again = packed.prepack(w=aligned(w + 5))  # whoever changes weights packs again
    np.testing.assert_array_equal(ready(x, e), want(x, w, e))
    assert again is not ready


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float64", "float16", "bfloat16", "float8_e4m3"])
def test_every_dtype_is_quick(device, quick_only, dtype):
    c_type = {1: "uchar", 2: "ushort", 8: "long"}[numpy_dtype(dtype).itemsize]
    program = CompiledProgram(one(f"quick_{dtype}", "C[i] = A[i];", (3, 4), dtype, c_type), device)
    a = aligned((np.arange(12).reshape(3, 4) % 2).astype(numpy_dtype(dtype)))
    program(a)
    quick_only()
    for _ in range(3):
        c = program(a)
        assert c.dtype == a.dtype and (c == a).all()


def test_numbers_and_arrays_without_axes(device, quick_only):
    x, y = tir.placeholder((), name="x"), tir.placeholder((4,), name="y")
    f = tir.Schedule(tir.compute((4,), lambda i: y[i] * x[()], name="z")).build(device)
    total = tir.Schedule(tir.compute((), lambda: x[()] + 1, name="t")).build(device)
    b = aligned(numbers(4))
    f(2, b), total(1.0)
    quick_only()
    for two in (2, 2.0, np.float32(2), np.array(2, "f4")):
        np.testing.assert_array_equal(f(two, b), 2 * b)
        assert total(two).shape == () and total(two) == 3
    with pytest.raises(AssertionError, match="long way"):
        f(np.float64(2), b)


def test_numbers_of_another_dtype_are_refused(device):
    x = tir.placeholder((), "int8", name="x")
    f = tir.Schedule(tir.compute((4,), lambda i: x[()], name="z")).build(device)
    refused("launch.dtype", lambda: f(np.float64(2)), "x: ", "float64")
    refused("launch.dtype", lambda: f(300), "x: ", "300")
    refused("launch.type", lambda: f("2"), "x: ")
    refused("launch.type", lambda: f(1, out=2), "z: expected an array")


# --- the same verdicts


PLACES = (
    "aligned", "beyond 4", "beyond 16", "strided", "turned", "read-only", "float64", "foreign order", "short", "flat",
    "list", "none", "number", "masked", "subclass", "dlpack", "no array", "other device",
)  # fmt: skip


class Sub(np.ndarray):
    """An array of another class."""


def placed(place, first):
    """An array as users have them, with numbers from ``first``."""
    x = (numbers(5, 10) + first).astype(np.float32)
    moved = {"aligned": 0, "beyond 4": 4, "beyond 16": 16}
    if place in moved:
        return aligned(x, moved[place])
    made = aligned(x)
    match place:
        case "strided":
            return np.repeat(x, 2, 1)[:, ::2]
        case "turned":
            return made[::-1]
        case "read-only":
            made.flags.writeable = False
        case "float64" | "foreign order":
            return made.astype({"float64": "f8"}.get(place, ">f4"))
        case "short":
            return made[:4]
        case "flat":
            return made.reshape(-1)
        case "list" | "none" | "number":
            return {"list": [1.0], "none": None, "number": 3.0}[place]
        case "masked":
            return np.ma.masked_array(made)
        case "subclass":
            return made.view(Sub)
        case "dlpack" | "no array" | "other device":
            return Foreign("nothing" if place == "no array" else made, 7 if place == "other device" else 1)
    return made


def content(value):
    return np.array(value.array if isinstance(value, Foreign) else value)


def said(program, arrays, out):
    """What a call says: results and their kinds, or what it refuses."""
    try:
        got = program(*arrays, out=out)
    except TensorIRError as error:
        return type(error), [(p.code, p.message) for p in error.problems]
    assert out is None or got is out
    return type(got), content(got[0] if isinstance(got, (list, tuple)) else got).tolist(), program.copies


def outs(place):
    """What users give as ``out``: made anew for each call, for it is written."""
    c = lambda: placed(place, 100)  # noqa: E731
    return {"none": lambda a: None, "one": lambda a: c(), "in a list": lambda a: [c()], "in a tuple": lambda a: (c(),),
            "two": lambda a: (c(), c()), "no one": lambda a: (), "an input": lambda a: a}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_both_ways_say_the_same(add, place):
    """Results, kinds of results, and refusals, of calls with one argument of a sort of its own."""
    lists = [("aligned", "aligned"), (place, "aligned"), ("aligned", place), (place, place), (place,), (place,) * 3]
    for places in lists:
        for same in (False, True):
            for name, out in outs(place).items():
                ways = []
                for way in (add, slow(add)):
                    arrays = [placed(p, n) for n, p in enumerate(places)]
                    arrays = [arrays[0], arrays[0]] if same and len(arrays) == 2 else arrays
                    ways.append(said(way, arrays, out(arrays[0])))
                assert ways[0] == ways[1], (places, same, name)


WARM = {}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 15), st.integers(0, 15), st.integers(0, 15))
def test_arrays_that_share_bytes(device, first, second, third):
    """Parts of one array as inputs and as the result, at all distances."""
    program = WARM.setdefault(device, CompiledProgram(ADD, device))
    program(aligned(numbers(5, 10)), aligned(numbers(5, 10)))
    found = []
    for way in (program, slow(program)):
        raw = aligned(numbers(130))
        a, b, c = (raw[4 * n : 4 * n + 50].reshape(5, 10) for n in (first, second, third))
        try:
            way(a, b, out=c)
        except LaunchError as error:
            found.append(error.code)
        else:
            found.append(raw.tolist())
        np.testing.assert_array_equal(way(a, b), a + 2 * b)
    assert found[0] == found[1]


def test_indices_are_checked_in_quick_calls_too(device, quick_only):
    gather = CompiledProgram(GATHER, device)
    table, index = aligned(numbers(7)), aligned(np.array([[0, 6, 1], [2, 2, 5]], np.int32))
    gather(table, index)
    index[1, 2] = 7
    refused("launch.index-range", lambda: gather(table, index), "7 at (1, 2)")
    index[1, 2] = 0
    quick_only()
    np.testing.assert_array_equal(gather(table, index), table[index])


def test_devices_that_work_on_copies_have_no_quick_calls(add, device, monkeypatch):
    a = aligned(numbers(5, 10))
    monkeypatch.setattr(device, "_in_place", False)
    np.testing.assert_array_equal(add(a, a), 3 * a)
    fresh = CompiledProgram(ADD, device)
    for _ in range(2):
        np.testing.assert_array_equal(fresh(a, a), 3 * a)
    assert fresh._quick is None


def test_results_are_fetched_where_memory_has_to_be_mapped(add, device, monkeypatch, quick_only):
    monkeypatch.setattr(device, "coherent", False)
    quick_only()
    for n in range(3):
        a = aligned(numbers(5, 10) + n)
        np.testing.assert_array_equal(add(a, a), 3 * a)
    published = []
    monkeypatch.setattr(device, "publish", lambda shared: published.extend(array.nbytes for _, array in shared))
    add(a, a)
    device.finish()
    assert published == [200]


def test_guarded_programs_stay_guarded(device):
    program = CompiledProgram(one("behind", "C[i == 9 ? 10 : i] = A[i];"), device, guard=True)
    for _ in range(2):
        refused("launch.out-of-bounds", lambda: program(aligned(numbers(10))))


# --- results


FLOATS = ctypes.POINTER(ctypes.c_float)


def kept(result):
    """Ways to keep a result, or a part of it, alive: what is kept, and how to read it."""
    return {
        "itself": (result, np.array),
        "a view": (result[1:3], np.array),
        "a view of a view": (result[1:].T[::2], np.array),
        "another dtype": (result.view(np.int32), np.array),
        "its memory": (memoryview(result), np.array),
        "a pointer": (result.ctypes, lambda c: np.array(np.ctypeslib.as_array(ctypes.cast(c, FLOATS), (50,)))),
        "dlpack": (np.from_dlpack(result), np.array),
        "an iterator": (result.flat, lambda flat: np.array(flat.base)),
        "an array around it": (np.broadcast_to(result, (2, 5, 10)), np.array),
    }  # fmt: skip


@pytest.mark.parametrize("way", list(kept(np.zeros((5, 10), np.float32))))
def test_what_is_kept_of_a_result_is_never_overwritten(add, way):
    a = aligned(numbers(5, 10))
    gc.freeze()  # all that modules have need not be looked through each time
    for n in range(12):
        alive, read = kept(add(a, aligned(numbers(5, 10) + n)))[way]
        gc.collect()
        before = read(alive)
        for other in range(2 * MAX_KEPT_RESULTS):
            add(a, aligned(numbers(5, 10) - other))
        np.testing.assert_array_equal(read(alive), before)


def test_many_results_are_all_kept(add):
    a = [aligned(numbers(5, 10) + n) for n in range(50)]
    results = [add(x, x) for x in a]
    for x, y in zip(a, results, strict=True):
        np.testing.assert_array_equal(y, 3 * x)
    assert len({address(y) for y in results}) == 50


@pytest.mark.skipif(not _COUNTED, reason="this interpreter does not count references exactly")
def test_memory_of_forgotten_results_is_used_again_and_little_is_kept(add):
    a = aligned(numbers(5, 10))
    places = set()
    for _ in range(20):
        y = add(a, a)
        places.add(address(y))
    assert len(places) == 2, "the one that the name still has, and the next"
    held = [add(a, a) for _ in range(10 * MAX_KEPT_RESULTS)]
    owners = [sys.getrefcount(y.base) for y in held]
    (want,) = add._quick._outputs
    assert len(want.results._made) == MAX_KEPT_RESULTS
    assert max(owners[:-MAX_KEPT_RESULTS]) < min(owners[-MAX_KEPT_RESULTS:]), "the oldest belong to the user alone"


def test_a_result_may_be_an_input_or_the_place_of_a_result(add):
    a = aligned(numbers(5, 10))
    y = add(a, a)
    for _ in range(5):
        old = y.copy()
        y = add(y, a)
        np.testing.assert_array_equal(y, old + 2 * a)
    z = add(a, a, out=add(a, a))
    np.testing.assert_array_equal(z, 3 * a)


def test_results_of_bound_launches_are_their_own(add):
    a = aligned(numbers(5, 10))
    bound = add.bind(a, a)
    y = add(a, aligned(numbers(5, 10) * 5))
    bound()
    np.testing.assert_array_equal(bound.wait(), 3 * a)
    np.testing.assert_array_equal(y, 11 * a)
    piped = add.bind(add(a, a), a)  # nobody but the launch has this array
    for n in range(2 * MAX_KEPT_RESULTS):
        add(a, aligned(numbers(5, 10) + n))
    piped()
    np.testing.assert_array_equal(piped.wait(), 5 * a)


def test_threads_keep_their_results(device):
    program, wrong = CompiledProgram(ADD, device), []

    def work(seed):
        rng, mine = np.random.default_rng(seed), []
        for n in range(150):
            a, b = (aligned(rng.integers(-9, 9, (5, 10)).astype(np.float32)) for _ in range(2))
            y = program(a, b)
            mine.append((y[n % 5], (a + 2 * b)[n % 5]))
            mine = mine[-(n % 7) - 1 :]
            if not all(np.array_equal(got, expected) for got, expected in mine):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == []


# --- failures


def test_after_a_failed_launch_nothing_runs_and_the_next_call_is_right(add, device, monkeypatch):
    a, finished = aligned(numbers(5, 10)), []
    steps, finish = add._quick._steps, device.finish
    for error, shown in ((RuntimeError("the driver is gone"), LaunchError), (KeyboardInterrupt(), KeyboardInterrupt)):

        def fail(args, error=error):
            steps[0][0](args)
            raise error

        monkeypatch.setattr(add._quick, "_steps", [(fail, steps[0][1])])
        monkeypatch.setattr(device, "finish", lambda: finished.append(finish()))
        with pytest.raises(shown) as caught:
            add(a, a)
        assert shown is KeyboardInterrupt or (caught.value.code == "launch.failed" and "gone" in str(caught.value))
        assert finished.pop() is None
        monkeypatch.setattr(add._quick, "_steps", steps)
        np.testing.assert_array_equal(add(a, a), 3 * a)


def test_a_fork_is_refused_in_quick_calls_too(add, device, monkeypatch):
    def run(args):
        raise AssertionError("something was enqueued")

    monkeypatch.setattr(device, "pid", -1)
    monkeypatch.setattr(add._quick, "_steps", [(run, ())])
    with pytest.raises(TensorIRError) as caught:
        add(aligned(numbers(5, 10)), aligned(numbers(5, 10)))
    assert caught.value.code == "device.forked"


def test_where_arrays_begin():
    for array in (
        np.empty(3),
        np.empty((4, 5))[1:],
        np.zeros(9, "u1")[3:],
        np.empty((3, 0)),
        np.array(2.0),
        np.empty(3).view(Sub),
    ):
        assert address(array) == array.ctypes.data


def test_an_array_that_changed_its_shape_in_place(add):
    a = np.empty(512, np.uint8)
    b = aligned(numbers(5, 10))
    a.resize((200,), refcheck=False)
    a.dtype = np.float32
    a.shape = (5, 10)
    a[...] = b
    np.testing.assert_array_equal(add(a, b), 3 * b)
    a.resize((5, 9), refcheck=False)
    refused("launch.shape", lambda: add(a, b), "(5, 9)")


def test_unaligned_results_are_written_in_place_of_themselves(add):
    a = aligned(numbers(5, 10))
    out = unaligned(a)
    assert add(a, a, out=out) is out
    np.testing.assert_array_equal(out, 3 * a)


def test_no_arguments(device):
    text = "__kernel void fill(__global float* C) { C[get_global_id(0)] = get_global_id(0); }"
    launches = (KernelLaunch("fill", ("C",), (8, 1, 1), (1, 1, 1)),)
    fill = CompiledProgram(Source("fill", "opencl", text, (f32("C", (8,), "output"),), launches), device)
    for _ in range(3):
        np.testing.assert_array_equal(fill(), np.arange(8))
        np.testing.assert_array_equal(fill(out=tir.empty(8)), np.arange(8))
    refused("launch.count", lambda: fill(numbers(8)))


def test_what_is_said_of_a_tensor_with_a_gradient(device, monkeypatch, golden):
    """PyTorch need not be there: what it tells of a tensor is enough."""

    class Tensor:
        requires_grad = True

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, is_grad_enabled=lambda: True))
    a = aligned(numbers(5, 10))
    text = str(refused("launch.gradient", lambda: CompiledProgram(ADD, device)(a, Tensor())))
    golden(re.sub(r"  at .*\n?", "", text) + "\n", "errors/launch_gradient.txt")
