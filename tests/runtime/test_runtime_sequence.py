"""Sequences of bound launches: the results of single calls, on shared memory, with one wait."""

import numpy as np
import pytest
from runtime_sources import ADD, TWO, one
from test_runtime_once import PACKED

import tensorir as tir
from tensorir.errors import LaunchError, LaunchTypeError
from tensorir.runtime.arguments import aligned_empty
from tensorir.runtime.launch import CompiledProgram


@pytest.fixture(scope="module")
def more(device):
    """C = A + 1 on 10 elements."""
    return CompiledProgram(one("more", "C[i] = A[i] + 1;"), device)


@pytest.fixture(scope="module")
def twice(device):
    """C = 2 A on 10 elements."""
    return CompiledProgram(one("twice", "C[i] = 2 * A[i];"), device)


def arrays(count, kind=aligned_empty):
    made = [kind((10,), "float32") for _ in range(count)]
    for n, a in enumerate(made):
        a[...] = np.arange(10) + 100 * n
    return made


def unaligned(shape, dtype):
    raw = np.empty(np.prod(shape) * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 16 + 4
    return raw[start : start + np.prod(shape) * 4].view(dtype).reshape(shape)


@pytest.mark.parametrize("kind", [aligned_empty, unaligned])
@pytest.mark.parametrize("flag", ["", "coherent", "_in_place"])
def test_as_single_calls(more, twice, device, monkeypatch, kind, flag):
    if flag:
        monkeypatch.setattr(device, flag, False)
    x, y, z, v = arrays(4, kind)
    net = tir.sequence([more.bind(x, out=y), twice.bind(y, out=z), more.bind(z, out=v)])
    for n in range(3):
        x[...] = np.arange(10) + n
        if n:
            net.refresh()
        assert net.run() is v
        np.testing.assert_array_equal(y, x + 1)
        np.testing.assert_array_equal(z, 2 * (x + 1))
        np.testing.assert_array_equal(v, 2 * (x + 1) + 1)
    assert len(net) == 3
    assert "3 launches (more, twice, more), 3 kernels" in repr(net)


def test_nothing_is_copied_where_the_device_works_in_place(more, twice, device, monkeypatch):
    x, y, z = arrays(3)
    net = tir.sequence([more.bind(x, out=y), twice.bind(y, out=z)])
    for name in ("write", "read", "allocate"):
        monkeypatch.setattr(device, name, lambda *a, name=name: pytest.fail(f"{name} was called"))
    assert [len(b._attached.uploads) + len(b._attached.copied) for b in net.launches] == [0, 0]
    x += 5
    net.run()
    np.testing.assert_array_equal(z, 2 * (x + 1))


def test_one_wait(more, twice, device, monkeypatch):
    x, y, z = arrays(3)
    net = tir.sequence([more.bind(x, out=y), twice.bind(y, out=z)])
    waits = []
    finish = device.finish
    monkeypatch.setattr(device, "finish", lambda: waits.append(1) or finish())
    net.enqueue()
    net()
    assert not waits
    net.wait()
    assert len(waits) == 1
    assert net.time(repeat=3, min_seconds=0.0).median_s > 0


def test_results_chain_and_sequences_nest(more, twice):
    (x,) = arrays(1)
    a = more.bind(x)
    b = twice.bind(a.results)
    front = tir.sequence([a, b])
    c = more.bind(b.results)
    net = tir.sequence([front, c])
    np.testing.assert_array_equal(net.run(), 2 * (x + 1) + 1)
    assert net.wait() is c.results


def test_state_that_is_carried_over(more, twice):
    """Written after it is read: the next run reads what the last one wrote."""
    for kind in (aligned_empty, unaligned):
        x, y = arrays(2, kind)
        x[...] = 1
        net = tir.sequence([more.bind(x, out=y), twice.bind(y, out=x)])
        net()
        net.run()
        np.testing.assert_array_equal(x, np.full(10, 10))  # 1 -> 4 -> 10


def test_mixed_alignment_of_one_array(more, device):
    """A kernel that needs more alignment than the array has works on a copy: the other then does as well."""
    wide = CompiledProgram(one("wide", "C[i] = 3 * A[i];", align=4096), device)
    raw = aligned_empty((1100,), "float32", 4096)
    x, y, z = raw[4:14], raw[20:30], raw[36:46]  # multiples of 16, not of 4096
    x[...] = np.arange(10)
    np.testing.assert_array_equal(tir.sequence([more.bind(x, out=y), wide.bind(y, out=z)]).run(), 3 * (x + 1))
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_array_equal(tir.sequence([wide.bind(x, out=y), more.bind(y, out=z)]).run(), 3 * x + 1)


def test_parts_of_one_array(device, more, monkeypatch):
    """Two launches fill the halves of what a third reads: right in place, refused where copies would be stale."""
    add = CompiledProgram(ADD, device)
    whole = aligned_empty((60,), "float32")
    left, right = whole[:10], whole[48:58]
    x = np.arange(10, dtype=np.float32)
    both, out = whole[:50].reshape(5, 10), aligned_empty((5, 10), "float32")
    whole[...] = 0

    def bound():
        return [more.bind(x, out=left), more.bind(x, out=right), add.bind(both, both, out=out)]

    tir.sequence(bound()).run()
    np.testing.assert_array_equal(out[0], 3 * (x + 1))
    np.testing.assert_array_equal(out[4, 8:], 3 * (x[:2] + 1))
    monkeypatch.setattr(device, "coherent", False)
    with pytest.raises(LaunchError) as caught:
        tir.sequence(bound())
    assert caught.value.code == "sequence.overlap"
    assert "B of launch 2 (add) overlaps C of launch 0 (more)" in str(caught.value)


def test_strided_views(more, twice):
    long = aligned_empty((20,), "float32")
    long[...] = np.arange(20)
    y, z = arrays(2)
    net = tir.sequence([more.bind(long[::2], out=y), twice.bind(y, out=z)])
    np.testing.assert_array_equal(net.run(), 2 * (long[::2] + 1))
    long += 1
    net.refresh()
    np.testing.assert_array_equal(net.run(), 2 * (long[::2] + 1))
    with pytest.raises(LaunchError) as caught:
        tir.sequence([more.bind(y, out=long[:10]), twice.bind(long[::2], out=z)])
    assert caught.value.code == "sequence.overlap"
    square = aligned_empty((5, 10), "float32")
    turned = one("turned", "C[i] = A[i] + 1;", shape=(10, 5))
    with pytest.raises(LaunchError) as caught:  # the same bytes in another order
        add = CompiledProgram(ADD, net.device)
        tir.sequence([add.bind(square + 1, square + 2, out=square), CompiledProgram(turned, net.device).bind(square.T)])
    assert caught.value.code == "sequence.overlap"


def test_bound_views_are_refreshed(more):
    long = aligned_empty((20,), "float32")
    long[...] = np.arange(20)
    bound = more.bind(long[::2])
    long += 1
    bound.refresh()
    bound()
    np.testing.assert_array_equal(bound.wait(), long[::2] + 1)


def test_kernels_that_run_once(device):
    packed = CompiledProgram(PACKED, device)
    six = CompiledProgram(one("six", "C[i] = A[i] + 1;", shape=(6,)), device)
    x, w, e = (np.arange(6, dtype=np.float32) + n for n in (1, 10, 100))
    first = packed.bind(x, w, e)
    net = tir.sequence([first, packed.bind(first.results, w + 1, e)])
    assert len(net._steps) == 2
    want = x * (2 * w + e) * (2 * (w + 1) + e)
    np.testing.assert_array_equal(net.run(), want)
    before = w.copy()
    w += 3
    np.testing.assert_array_equal(net.run(), want)
    net.refresh()
    np.testing.assert_array_equal(net.run(), x * (2 * w + e) * (2 * (before + 1) + e))
    made = six.bind(w)  # the weights of the second launch are made by the first
    chain = tir.sequence([made, packed.bind(x, made.results, e)])
    assert len(chain._steps) == 4
    for n in range(2):
        w += n
        np.testing.assert_array_equal(chain.run(), x * (2 * (w + 1) + e))
    ready = tir.sequence([packed.prepack(w=w, e=e).bind(x)])
    assert len(ready._steps) == 1
    np.testing.assert_array_equal(ready.run(), x * (2 * w + e))


def test_workspace_scalars_and_several_outputs(device):
    two = CompiledProgram(TWO, device)
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    c, d = tir.sequence([two.bind(a, 1.0, 3), two.bind(a, 2.0, 10)]).run()
    np.testing.assert_array_equal(c, a.T * 2 + np.arange(6, dtype=np.float32)[:, None])
    np.testing.assert_array_equal(d, np.arange(10, 16))


def test_device_arrays(more, twice, device):
    import pyopencl.array as ca

    x = ca.to_device(device.queue, np.arange(10, dtype=np.float32))
    one_ = more.bind(x)
    net = tir.sequence([one_, twice.bind(one_.results)])
    np.testing.assert_array_equal(net.run().get(), 2 * (np.arange(10) + 1))
    x += 1
    device.queue.finish()
    np.testing.assert_array_equal(net.run().get(), 2 * (np.arange(10) + 2))


def test_nothing_to_compute(device, more):
    empty = CompiledProgram(one("nothing", "C[i] = A[i];", shape=(0,), grid=(0, 1, 1)), device)
    (x,) = arrays(1)
    z = np.empty(0, np.float32)
    np.testing.assert_array_equal(tir.sequence([empty.bind(z), more.bind(x)]).run(), x + 1)


def test_what_is_no_sequence(more):
    for bad in (more, 3, "abc", [], [more], [3], None):
        with pytest.raises(LaunchTypeError) as caught:
            tir.sequence(bad)
        assert caught.value.code == "sequence.launches"


def test_other_contexts(more, device):
    import pyopencl as cl
    import pyopencl.array as ca

    queue = cl.CommandQueue(cl.Context([device.handle]))
    there = more.bind(ca.to_device(queue, np.arange(10, dtype=np.float32)))
    (x,) = arrays(1)
    with pytest.raises(LaunchError) as caught:
        tir.sequence([more.bind(x), there])
    assert caught.value.code == "sequence.device"
    assert "another context" in str(caught.value)
    np.testing.assert_array_equal(tir.sequence([there]).run().get(), np.arange(10) + 1)


def test_empty_is_aligned():
    for shape, dtype in (((3, 5), "float32"), (7, "float64"), ((), "int8"), ((0, 2), "float16")):
        a = tir.empty(shape, dtype)
        assert a.shape == (shape if isinstance(shape, tuple) else (shape,))
        assert a.dtype == dtype
        assert not a.size or a.ctypes.data % 64 == 0
    for bad in ({"shape": (-1,)}, {"shape": "x"}):
        with pytest.raises(LaunchError):
            tir.empty(**bad)
    for bad in ("float31", None, ">f4"):
        with pytest.raises(tir.DeclarationError, match=r"declare\.dtype"):
            tir.empty(3, bad)
