import math
import multiprocessing
import sys
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
from runtime_sources import ADD, GATHER, TWO, f32, one

import tensorir as tir
from tensorir.api.build import Executable
from tensorir.codegen.source import KernelLaunch, Param, Source
from tensorir.errors import CompileError, DeviceError, LaunchError, LaunchTypeError
from tensorir.interp.numbers import numpy_dtype
from tensorir.runtime import guard, opencl
from tensorir.runtime.arguments import aligned_empty
from tensorir.runtime.device import devices, open_device
from tensorir.runtime.launch import CompiledProgram


@pytest.fixture(scope="module")
def add(device):
    return CompiledProgram(ADD, device)


@pytest.fixture(scope="module")
def two(device):
    return CompiledProgram(TWO, device)


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def unaligned(array):
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 16 + 4
    moved = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def refused(code, call, *texts):
    with pytest.raises(LaunchError) as caught:
        call()
    assert caught.value.code == code
    for text in texts:
        assert text in str(caught.value)
    return caught.value


def test_numpy_in_numpy_out(add):
    a, b = numbers(5, 10), numbers(5, 10)[::-1]
    c = add(a, b)
    assert type(c) is np.ndarray
    np.testing.assert_array_equal(c, a + 2 * b)
    out = np.zeros((5, 10), np.float32)
    assert add(a, b, out=out) is out
    np.testing.assert_array_equal(out, c)


@pytest.mark.parametrize(
    "move", [np.asfortranarray, unaligned, lambda x: np.repeat(x, 2, 1)[:, ::2], lambda x: x[::-1]]
)
def test_any_view_is_a_legal_input(add, move):
    a, b = numbers(5, 10), numbers(5, 10) + 7
    np.testing.assert_array_equal(add(move(a), move(b)), move(a) + 2 * move(b))


@pytest.fixture
def wide(device):
    """Sums of the columns of a matrix, in vectors of eight."""
    x, k = tir.placeholder((6, 32), name="x"), tir.reduce_axis(6, name="k")
    s = tir.Schedule(tir.compute((32,), lambda j: tir.sum(x[k, j], axis=k), name="y"))
    outer, lane = s.split("y.j", [None, 8])
    s.reorder(outer, "y.k", lane).vectorize(lane)
    return s.build(device)


def aligned(array, beyond=0):
    """A copy of the array so many bytes beyond a multiple of 64."""
    raw = aligned_empty((array.nbytes + 64,), "uint8")
    moved = raw[beyond : beyond + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def codes(copies):
    return [(p.code, p.message.partition(":")[0]) for p in copies]


def test_strided_arrays_are_copied_warned_of_once_and_told(wide):
    x = aligned(numbers(6, 32))
    for bad in (x[::-1], np.asfortranarray(x)):
        fresh = Executable(wide.emitted, wide.device)
        with pytest.warns(
            RuntimeWarning, match=r"\[launch.copied-strides\] x: kernels work on a copy, .* C-contiguous"
        ) as warned:
            assert np.array_equal(fresh(bad), bad.sum(0))
        assert [w.filename for w in warned] == [__file__]
        assert codes(fresh.copies) == [("launch.copied-strides", "x")] == codes(fresh.bind(bad).copies)
        assert "its last call copied x" in repr(fresh) and "copies of x" in repr(fresh.bind(bad))
        assert str(fresh.time(bad, repeat=3)).endswith(", without copying x")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fresh(bad)
        fresh(x)
        assert not fresh.copies and "copied" not in repr(fresh)


@pytest.mark.parametrize("beyond", [0, 4, 16, 32])
def test_addresses_that_vectors_cannot_take_are_told(wide, beyond):
    if not wide.device.works_in_place:
        pytest.skip("this device works on copies")
    assert "// alignment in bytes: x 32, y 32\n" in wide.source
    x, out = aligned(numbers(6, 32), beyond), aligned(numbers(32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(wide(x, out=out), x.sum(0))
    told = [] if beyond % 32 == 0 else [("launch.copied-alignment", "x")]
    assert codes(wide.copies) == codes(wide.bind(x, out=out).copies) == told
    assert ("without copying x" in str(wide.time(x, out=out, repeat=3))) == bool(told)
    assert codes(tir.sequence([wide.bind(x, out=out)]).time(repeat=3).copies) == told
    for p in wide.copies:
        assert f"{beyond} beyond a multiple of 32" in p.message
        assert "tir.empty((6, 32), 'float32')" in p.hint
    wide(aligned(x), out=aligned(out, 4))
    assert codes(wide.copies) == [("launch.copied-alignment", "y")]
    assert "which is copied back" in wide.copies[0].message


def test_devices_that_copy_anyway_tell_of_no_address(wide, monkeypatch):
    if hasattr(wide.device, "_in_place"):
        monkeypatch.setattr(wide.device, "_in_place", False)
    wide(aligned(numbers(6, 32), 4))
    assert wide.copies == ()


def test_read_only_and_same_and_overlapping_inputs(add):
    a = numbers(5, 10)
    a.flags.writeable = False
    np.testing.assert_array_equal(add(a, a), 3 * a)
    long = numbers(60)
    x, y = long[:50].reshape(5, 10), long[4:54].reshape(5, 10)
    np.testing.assert_array_equal(add(x, y), x + 2 * y)


def test_unaligned_out_writes_exactly_itself(add):
    raw = np.full(300, 9, np.uint8)
    start = -raw.ctypes.data % 16 + 4
    out = raw[start : start + 200].view(np.float32).reshape(5, 10)
    a = numbers(5, 10)
    add(a, a, out=out)
    np.testing.assert_array_equal(out, 3 * a)
    assert (raw[:start] == 9).all()
    assert (raw[start + 200 :] == 9).all()


@pytest.mark.parametrize("flag", ["coherent", "_in_place"])
def test_runtimes_that_need_maps_or_copies(add, device, monkeypatch, flag):
    monkeypatch.setattr(device, flag, False)
    a, out = aligned_empty((5, 10), "float32"), aligned_empty((5, 10), "float32")
    a[...] = numbers(5, 10)
    for _ in range(3):
        out[...] = 0
        np.testing.assert_array_equal(add(a, a, out=out), 3 * a)
    bound = add.bind(a, a, out=out)
    a[...] = 1
    bound.refresh()
    bound()
    assert bound.wait() is out
    np.testing.assert_array_equal(out, 3 * a)


def test_host_arrays_are_not_copied_where_their_address_allows(add, device):
    """PoCL's memory is the host's: a bound launch sees what happens to the arrays."""
    if not device.coherent:
        pytest.skip("this device works on copies")
    for place in (lambda: aligned_empty((5, 10), "float32"), lambda: np.empty((5, 10), np.float32)):
        a, b, out = place(), place(), place()
        a[...], b[...] = numbers(5, 10), 1
        bound = add.bind(a, b, out=out)
        if any(x.ctypes.data % 16 for x in (a, b, out)):
            continue  # (an allocator that does not align)
        assert not bound._attached.uploads
        assert not bound._attached.copied
        a += 1
        bound()
        bound.finish()
        np.testing.assert_array_equal(out, a + 2 * b)


def test_neighbours_in_one_array_are_not_copied(device):
    if not device.coherent:
        pytest.skip("this device works on copies")
    A, B = tir.placeholder((64,), name="A"), tir.placeholder((64,), name="B")
    f = tir.Schedule(tir.compute((64,), lambda i: A[i] - B[i], name="C")).build(device)
    both, out = aligned_empty((128,), "float32"), aligned_empty((64,), "float32")
    both[:] = numbers(128)
    bound = f.bind(both[:64], both[64:], out=out)
    assert not bound._attached.uploads and not bound._attached.copied
    bound()
    bound.finish()
    np.testing.assert_array_equal(out, -64.0)


def test_two_kernels_workspace_constant_scalars(two):
    a = numbers(4, 6)
    c, d = two(a, 2.0, 10)
    np.testing.assert_array_equal(c, a.T * 2 + np.arange(6, dtype=np.float32)[:, None])
    np.testing.assert_array_equal(d, np.arange(10, 16))
    outs = (np.empty((6, 4), np.float32), np.empty(6, np.int32))
    assert two(a, np.float32(2), np.int32(10), out=outs) is outs
    np.testing.assert_array_equal(outs[0], c)


def test_wrong_arguments_are_named(add, two):
    a = numbers(5, 10)
    refused("launch.count", lambda: add(a), "expected 2 arguments (A, B), got 1", "missing: B")
    refused("launch.count", lambda: add(a, a, a), "got 3")
    refused("launch.count", lambda: add(a, a, out=(a, a)))
    assert isinstance(
        refused("launch.type", lambda: add(a, [1.0]), "B: expected an array", "got list"), LaunchTypeError
    )
    refused("launch.type", lambda: add(a, None))
    refused("launch.type", lambda: add(a, 3.0))
    refused("launch.type", lambda: add(a, np.ma.masked_array(a)))
    refused("launch.dtype", lambda: add(a, a.astype(np.float64)), "B: expected dtype float32, got float64")
    refused("launch.dtype", lambda: add(a, a.astype(">f4")), ">f4")
    refused("launch.shape", lambda: add(a, numbers(5, 9)), "B: expected shape (5, 10), got (5, 9)")
    refused("launch.shape", lambda: add(a, numbers(50)))
    error = refused("launch.shape", lambda: add(numbers(1), numbers(2)))
    assert len(error.problems) == 2
    assert __file__ in str(error)
    wide = np.zeros((5, 20), np.float32)
    refused("launch.strides", lambda: add(a, a, out=wide[:, ::2]), "C: ")
    locked = np.zeros((5, 10), np.float32)
    locked.flags.writeable = False
    refused("launch.read-only", lambda: add(a, a, out=locked), "C: ")
    refused("launch.aliasing", lambda: add(a, a, out=a), "C: ", "A")
    long = numbers(60)
    refused("launch.aliasing", lambda: add(long[:50].reshape(5, 10), a, out=long[10:].reshape(5, 10)))
    refused("launch.dtype", lambda: two(numbers(4, 6), 2.0, 1.5), "n: ")
    refused("launch.dtype", lambda: two(numbers(4, 6), 2.0, 2**31), "n: ")
    refused("launch.dtype", lambda: two(numbers(4, 6), np.float64(2), 1), "s: expected dtype float32")
    refused("launch.type", lambda: two(numbers(4, 6), "2", 1), "s: ")


def test_outputs_must_not_overlap_each_other(two):
    raw = aligned_empty((200,), "uint8")
    c, d = raw[:96].view(np.float32).reshape(6, 4), raw[80:104].view(np.int32)
    refused("launch.aliasing", lambda: two(numbers(4, 6), 1.0, 0, out=(c, d)), "D: ", "C")


def test_gather_indices_are_checked(device):
    gather = CompiledProgram(GATHER, device)
    table, index = numbers(7), np.array([[0, 6, 1], [2, 2, 5]], np.int32)
    np.testing.assert_array_equal(gather(table, index), table[index])
    for value in (-1, 7):
        index[1, 2] = value
        refused(
            "launch.index-range", lambda: gather(table, index), "I: expected indices from 0 to 6", f"{value} at (1, 2)"
        )
        refused("launch.index-range", lambda: gather.bind(table, index))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float64", "float16", "bfloat16", "float8_e4m3"])
def test_dtypes(device, dtype):
    size = {"bool": "uchar", "int8": "char", "int64": "long", "float64": "double", "float8_e4m3": "uchar"}.get(
        dtype, "ushort"
    )
    program = CompiledProgram(one(f"copy_{dtype}", "C[i] = A[i];", (3, 4), dtype, size), device)
    kind = numpy_dtype(dtype)
    a = (np.arange(12).reshape(3, 4) % 2).astype(kind)
    c = program(a)
    assert c.dtype == kind
    assert (c == a).all()


def test_zero_size_is_not_launched(device):
    source = replace(ADD, params=tuple(replace(p, shape=(0, 10)) for p in ADD.params))
    empty = np.zeros((0, 10), np.float32)
    program = CompiledProgram(source, device)
    assert program(empty, empty).shape == (0, 10)
    bound = program.bind(empty, empty)
    bound()
    assert bound.wait().shape == (0, 10)
    assert program.run_guarded(empty, empty)[1] == ()


def test_reduction_over_nothing_still_writes(device):
    text = "__kernel void zero(__global const float* A, __global float* C) { C[get_global_id(0)] = 0; }"
    params = (f32("A", (3, 0), "input"), f32("C", (3,), "output"))
    source = Source("zero", "opencl", text, params, (KernelLaunch("zero", ("A", "C"), (3, 1, 1), (1, 1, 1)),))
    np.testing.assert_array_equal(CompiledProgram(source, device)(np.zeros((3, 0), np.float32)), np.zeros(3))
    skipped = replace(source, kernels=(KernelLaunch("zero", ("A", "C"), (0, 1, 1), (1, 1, 1)), *source.kernels))
    np.testing.assert_array_equal(CompiledProgram(skipped, device)(np.zeros((3, 0), np.float32)), np.zeros(3))


class Foreign:
    """An array of another library, as DLPack shows it."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return (self.device, 0)

    @classmethod
    def from_dlpack(cls, array):
        return cls(array)


def test_dlpack_in_same_kind_out(add):
    a, b = numbers(5, 10), numbers(5, 10) + 1
    c = add(Foreign(a), Foreign(b))
    assert type(c) is Foreign
    np.testing.assert_array_equal(c.array, a + 2 * b)
    out = Foreign(np.zeros((5, 10), np.float32))
    assert add(Foreign(a), b, out=out) is out
    np.testing.assert_array_equal(out.array, a + 2 * b)
    refused("launch.device", lambda: add(Foreign(a, device=7), b), "A: ")
    refused("launch.type", lambda: add(Foreign("no array"), b), "A: ")


def test_a_copy_is_made_by_the_users_own_library(add):
    class Strided(Foreign):
        def contiguous(self):
            return Strided(np.ascontiguousarray(self.array))

    turned = Strided(numbers(10, 5).T)
    add(turned, numbers(5, 10))
    assert "try: A.contiguous() once" in str(add.copies[0]) and codes(add.copies)[0][0] == "launch.copied-strides"
    add(turned.contiguous(), numbers(5, 10).copy())
    assert "launch.copied-strides" not in [code for code, _ in codes(add.copies)]


def test_torch_tensors(add):
    torch = pytest.importorskip("torch")
    a = torch.arange(50, dtype=torch.float32).reshape(5, 10)
    c = add(a, a)
    assert isinstance(c, torch.Tensor)
    assert torch.equal(c, 3 * a)


def test_pyopencl_arrays_of_the_users_own_context(add, device):
    cl = opencl.load_pyopencl()
    arrays = pytest.importorskip("pyopencl.array")
    queue = cl.CommandQueue(cl.Context([device.handle]))
    a, b = numbers(5, 10), numbers(5, 10) + 1
    given = arrays.to_device(queue, a), arrays.to_device(queue, b)
    c = add(*given)
    assert isinstance(c, arrays.Array)
    assert c.context == queue.context
    np.testing.assert_array_equal(c.get(), a + 2 * b)
    assert add(*given, out=c) is c
    assert add.run_guarded(*given)[1] == ()
    refused("launch.device", lambda: add(given[0], b), "B: ")
    refused("launch.aliasing", lambda: add(*given, out=given[0]))
    whole = arrays.zeros(queue, (512,), np.float32)
    parts = [whole.base_data.get_sub_region(1024 * n, 1024) for n in (0, 0, 1)]
    one, same, next_ = (arrays.Array(queue, (5, 10), np.float32, data=part) for part in parts)
    refused("launch.aliasing", lambda: add(one, given[0], out=same))
    refused("launch.aliasing", lambda: add(one, given[0], out=whole[:50].reshape(5, 10)))
    one.set(a)
    np.testing.assert_array_equal(add(one, given[1], out=next_).get(), a + 2 * b)
    other = arrays.to_device(cl.CommandQueue(cl.Context([device.handle])), a)
    refused("launch.device", lambda: add(given[0], other))
    pooled = arrays.Array(queue, (5, 10), np.float32, data=whole.base_data)
    pooled.base_data = object()  # shared virtual memory has no buffer
    refused("launch.type", lambda: add(given[0], pooled), "B: ", "shared virtual memory")
    refused("launch.strides", lambda: add(given[0], arrays.to_device(queue, np.asfortranarray(b))), "B: ")
    part = arrays.to_device(queue, numbers(38, 10))
    refused("launch.alignment", lambda: add(given[0], part[1:6]), "B: ")
    np.testing.assert_array_equal(add(given[0], part[32:37]).get(), a + 2 * part.get()[32:37])
    np.testing.assert_array_equal(add(given[0], part[:5]).get(), a + 2 * part.get()[:5])


def test_bound_launches(two):
    a = aligned_empty((4, 6), "float32")
    a[...] = numbers(4, 6)
    first, second = two.bind(a, 1.0, 0), two.bind(unaligned(a), 3.0, 5)
    first(), second(), first()
    c, d = first.wait()
    np.testing.assert_array_equal(c[:, 1], a[1] + np.arange(6))
    np.testing.assert_array_equal(second.wait()[0][:, 1], 3 * a[1] + np.arange(6))
    np.testing.assert_array_equal(d, np.arange(6))
    a[...] = 0
    first.refresh()
    first()
    np.testing.assert_array_equal(first.wait()[0][:, 1], np.arange(6))


def test_one_kernel_may_be_launched_twice(device):
    text = (
        "__kernel void inc(__global const float* X, __global float* Y) { int i = get_global_id(0); Y[i] = X[i] + 1; }"
    )
    params = (f32("A", (8,), "input"), f32("C", (8,), "output"), f32("W", (8,), "workspace"))
    launches = tuple(KernelLaunch("inc", args, (8, 1, 1), (1, 1, 1)) for args in (("A", "W"), ("W", "C")))
    program = CompiledProgram(Source("twice", "opencl", text, params, launches), device)
    np.testing.assert_array_equal(program(numbers(8)), numbers(8) + 2)
    bound = program.bind(numbers(8))
    bound()
    np.testing.assert_array_equal(bound.wait(), numbers(8) + 2)
    assert program.run_guarded(numbers(8))[1] == ()


def test_threads_take_turns(two):
    wrong = []

    def work(scale):
        a = numbers(4, 6)
        for _ in range(20):
            c, _ = two(a, float(scale), 0)
            if not np.array_equal(c, a.T * scale + np.arange(6, dtype=np.float32)[:, None]):
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2", "int8"])
def test_narrow_scalars(device, dtype):
    kind = numpy_dtype(dtype)
    x, s = tir.placeholder((6,), dtype, name="x"), tir.scalar("s", dtype)
    f = tir.Schedule(tir.compute((6,), lambda i: x[i] * s, name="y")).build(device)
    a = np.arange(6).astype(kind)
    for given in (2, kind.type(2)):
        np.testing.assert_array_equal(f(a, given).astype("f4"), 2.0 * np.arange(6))
    if dtype != "int8":
        assert float(f(a, 1 + 2**-11)[1]) == 1.0  # rounded as its type says


@pytest.mark.parametrize("chained", [False, True], ids=["bound", "sequence"])
def test_changed_indices_are_checked_when_they_are_taken_over(device, chained):
    table, index = numbers(7), np.zeros((2, 3), np.int32)
    bound = CompiledProgram(GATHER, device).bind(table, index)
    run = tir.sequence([bound]) if chained else bound
    index[1, 2] = 5
    run.refresh()
    run()
    np.testing.assert_array_equal(run.wait(), table[index])
    index[1, 2] = 7
    refused("launch.index-range", run.refresh)


@pytest.mark.parametrize("chained", [False, True], ids=["bound", "sequence"])
def test_bound_launches_take_turns_with_the_workspace(two, chained):
    one, other = (two.bind(numbers(4, 6), float(scale), 0) for scale in (1, 2))
    inside, second = threading.Event(), threading.Thread(target=other)
    first, last = one._steps

    def begin():
        first()
        second.start()
        inside.wait(0.1)  # long enough for the other thread to come between, if it can

    one._steps = (begin, last)
    (tir.sequence([one]) if chained else one)()
    second.join()
    for scale, bound in enumerate((one, other), 1):
        np.testing.assert_array_equal(bound.wait()[0], numbers(4, 6).T * scale + np.arange(6, dtype="f4")[:, None])


def test_time_and_resources(add, device):
    timing = add.time(numbers(5, 10), numbers(5, 10), repeat=6, min_seconds=0)
    assert 0 < timing.low_s <= timing.median_s <= timing.high_s
    assert len(timing.samples) == 6
    assert add.resources["shared_bytes"] == 0
    assert set(add.resources["kernels"]) == {"add"}


def test_compile_errors(device):
    bad = replace(ADD, text="// first\n__kernel void add(__global float* A) {\n  A[0] = zz;\n}\n")
    with pytest.raises(CompileError) as caught:
        CompiledProgram(bad, device)
    assert caught.value.code == "compile.opencl"
    assert "zz" in caught.value.log
    assert "3 |   A[0] = zz;" in str(caught.value)
    assert ".cache" not in str(caught.value)


def code_of(source, device):
    with pytest.raises(CompileError) as caught:
        CompiledProgram(source, device)
    return caught.value.code


def test_a_kernel_that_no_text_has_is_no_fault_of_a_cache(device, monkeypatch, tmp_path):
    (tmp_path / "kernel.so").touch()
    monkeypatch.setattr("tensorir.runtime.library_caches.pocl_cache", lambda: tmp_path)
    assert code_of(replace(ADD, text=ADD.text.replace("void add", "void sub")), device) == "compile.signature"


def test_sources_that_do_not_fit(device):
    launch = ADD.kernels[0]
    assert code_of(replace(ADD, text=ADD.text.replace("void add", "void sub")), device) == "compile.signature"
    assert code_of(replace(ADD, kernels=(replace(launch, args=("A", "C")),)), device) == "compile.signature"
    assert code_of(replace(ADD, kernels=(replace(launch, args=("A", "B", "X")),)), device) == "compile.signature"
    assert code_of(replace(ADD, kernels=(replace(launch, name="a b"),)), device) == "compile.signature"
    assert code_of(replace(ADD, language="cuda"), device) == "compile.language"
    assert code_of(replace(ADD, kernels=(replace(launch, block=(1 << 20, 1, 1)),)), device) == "compile.threads"
    assert code_of(replace(ADD, kernels=(replace(launch, grid=(1 << 40, 1, 1)),)), device) == "compile.grid"
    assert code_of(replace(ADD, kernels=(replace(launch, grid=(3, 1, 1), cluster=2),)), device) == "compile.grid"
    assert code_of(replace(ADD, kernels=(replace(launch, shared_bytes=1 << 30),)), device) == "compile.shared-memory"
    params = (*ADD.params, Param("K", "float32", (2,), "constant", data=b"1234"))
    assert code_of(replace(ADD, params=params), device) == "compile.signature"


def test_local_memory_limit_is_ours(device):
    body = "__local float big[25000000]; big[i] = A[i]; barrier(CLK_LOCAL_MEM_FENCE); C[i] = big[9 - i];"
    assert code_of(one("big", body), device) == "compile.shared-memory"


def test_array_beyond_the_largest_allocation(device):
    source = replace(ADD, params=(*ADD.params, Param("W", "float32", (1 << 40,), "workspace")))
    refused("launch.memory", lambda: CompiledProgram(source, device)(numbers(5, 10), numbers(5, 10)))


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("C[i == 9 ? 10 : i] = A[i];", "launch.out-of-bounds", "byte 40 (element 10"),
        ("C[i] = A[i]; if (i == 0) C[-1] = 3;", "launch.out-of-bounds", "4 bytes before"),
        ("if (i != 4) C[i] = A[i];", "launch.unwritten", "1 of 10 elements were never written, first (4,)"),
        ("C[i] = A[i]; if (i == 3) A[i] = 77;", "launch.input-written", "element (3,) was written"),
        ("C[i] = A[i]; if (i == 3) A[12] = 77;", "launch.out-of-bounds", "A has 40 bytes"),
    ],
)
def test_guarded_runs_report(device, body, code, text):
    program = CompiledProgram(one("guarded", body), device, guard=True)
    a = numbers(10)
    _, problems = program.run_guarded(a)
    assert code in [p.code for p in problems]
    assert any(text in p.message for p in problems)
    with pytest.raises(LaunchError):
        program(a)
    np.testing.assert_array_equal(a, numbers(10))


def test_guarded_runs_of_good_programs(device, two):
    c, problems = CompiledProgram(one("poisonlike", "C[i] = A[i];", dtype="int32", ctype="int"), device).run_guarded(
        np.full(10, -1, np.int32)
    )
    assert problems == ()
    assert (c == -1).all()
    (c, _), problems = two.run_guarded(numbers(4, 6), 2.0, 1)
    assert problems == ()
    np.testing.assert_array_equal(c, two(numbers(4, 6), 2.0, 1)[0])
    checked = CompiledProgram(ADD, device, guard=True)
    out = np.zeros((5, 10), np.float32)
    np.testing.assert_array_equal(checked(numbers(5, 10), numbers(5, 10), out=out), 3 * numbers(5, 10))


def test_reads_beyond_an_input_are_nan(device):
    c, _ = CompiledProgram(one("beyond", "C[i] = A[i + 1];"), device).run_guarded(numbers(10))
    assert np.isnan(c[9])


def test_devices_and_names(device):
    listed = devices()
    assert any(d.usable and d.language == "opencl" for d in listed)
    assert all(d.reason for d in listed if not d.usable)
    assert "oclgrind" not in device.identity["platform"].lower()
    assert open_device(None) is device
    assert open_device(device) is device
    assert open_device(device.name) is device
    assert open_device(device.target) is device
    assert device.target.kind == "cpu"
    assert type(device.target).parse(device.target.text) == device.target
    assert {"name", "platform", "driver", "compiler"} <= set(device.identity)
    if "portable computing" in device.identity["platform"].lower():
        assert open_device("opencl:pocl") is device
        assert device.name == "opencl:0:0"
    for name in ("opencl:77:0", "opencl:nothere"):
        with pytest.raises(DeviceError) as caught:
            open_device(name)
        assert caught.value.code == "device.not-found"
        assert device.name in str(caught.value)


def test_no_pyopencl(monkeypatch):
    _without("pyopencl", monkeypatch)
    with pytest.raises(DeviceError) as caught:
        open_device("opencl")
    assert caught.value.code == "device.no-opencl"
    assert "pip install pyopencl" in str(caught.value)
    assert not devices()[0].usable


def _without(package, monkeypatch):
    """Make imports of a package fail as they do where it is not installed."""
    for name in [package, *(n for n in sys.modules if n.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)


def _in_fork(program, results):
    try:
        program(numbers(5, 10), numbers(5, 10))
    except DeviceError as error:
        results.put(error.code)


def test_what_was_bound_is_not_waited_for_in_a_fork(two, monkeypatch):
    bound = two.bind(numbers(4, 6), 1.0, 0)
    net = tir.sequence([bound])
    monkeypatch.setattr(two.device, "pid", -1)
    for wait in (bound.wait, bound.finish, net.run, net.finish):
        with pytest.raises(DeviceError) as caught:
            wait()
        assert caught.value.code == "device.forked"


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused(add):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_fork, args=(add, results))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert results.get() == "device.forked"


def test_oclgrind_copies(device):
    name = next((d.name for d in devices() if d.usable and d.simulator), None)
    if name is None:
        pytest.skip("Oclgrind is not installed")
    program = CompiledProgram(ADD, name)
    a = numbers(5, 10)
    np.testing.assert_array_equal(program(a, a), 3 * a)


def test_probe_runs_few_blocks_of_a_slow_kernel_and_all_of_a_fast_one(device, monkeypatch):
    ran = []

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()

    class Timed:
        """Runs nothing; a block takes ``each`` seconds."""

        def __init__(self, each):
            self.each = each

        def step(self, launch, args, private):
            def run():
                ran.append(launch.grid)
                clock.now += self.each * math.prod(launch.grid)

            return run

    monkeypatch.setattr(guard, "time", clock)
    made, given = one("many", "C[i] = A[i];", shape=(4096,)), numbers(4096)
    for each, most in ((1.0, max(1, device.target.units)), (1e-9, 4096)):
        ran.clear()
        seconds, warm = CompiledProgram(made, device, module=Timed(each)).probe(given)
        assert seconds == pytest.approx(each * 4096) and warm
        assert max(map(math.prod, ran)) == most
    ran.clear()
    single = replace(made, kernels=(replace(made.kernels[0], grid=(1, 1, 1)),))
    assert CompiledProgram(single, device, module=Timed(1.0)).probe(given) == (0.0, True), (
        "nothing less than a run would tell"
    )
    assert ran == [(1, 1, 1)], "only what the runtime puts off to the first launch"


def test_probe_of_a_later_kernel_finds_what_the_earlier_ones_leave(device, two):
    assert two.probe(numbers(4, 6), 2.0, 1)[0] >= 0
    text = """
__kernel void first(__global int* A, __global int* W) { int i = get_global_id(0); W[i] = A[i]; }
__kernel void second(__global int* W, __global int* C) { int i = get_global_id(0); C[i] = 1; C[W[i]] = 1; }
"""
    shape, kinds = (4096,), (("A", "input"), ("W", "workspace"), ("C", "output"))
    params = tuple(Param(name, "int32", shape, role) for name, role in kinds)
    kernels = tuple(KernelLaunch(n, a, (4096, 1, 1), (1, 1, 1)) for n, a in (("first", "AW"), ("second", "WC")))
    program = CompiledProgram(
        Source("chain", "opencl", text, params, tuple(replace(k, args=tuple(k.args)) for k in kernels))
    )
    seconds, warm = program.probe(np.arange(4096, dtype=np.int32))
    assert seconds > 0, "poison as an index would have crashed"
    assert not warm, "the second kernel has not run before there were places to write to"
