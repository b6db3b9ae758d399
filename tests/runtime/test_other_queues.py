"""Launches on pyopencl arrays take their place in the arrays' queues, without waiting on the host.

Most work is held back by an event of the user's, which is set when everything has been enqueued: a launch that did not
wait, or a copy that did not wait for it, has then seen the old contents.
"""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_sources import one
from test_runtime_once import PACKED

import tensorir as tir
from tensorir.runtime.launch import CompiledProgram

cl = pytest.importorskip("pyopencl")
ca = pytest.importorskip("pyopencl.array")
N = 10
OUT_OF_ORDER = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE


@pytest.fixture(scope="module")
def more(device):
    """C = A + 1 on 10 elements."""
    return CompiledProgram(one("more", "C[i] = A[i] + 1;"), device)


@pytest.fixture(scope="module")
def context(device):
    return cl.Context([device.handle])


@pytest.fixture(params=[0, OUT_OF_ORDER], ids=["in order", "out of order"])
def queue(context, request):
    return cl.CommandQueue(context, properties=request.param)


KEPT = []  # pyopencl waits for a copy whose event nobody keeps


class Held:
    """What is enqueued after ``Held(queue)`` starts when the block ends."""

    def __init__(self, *queues):
        self.queues, self.event = queues, cl.UserEvent(queues[0].context)

    def __enter__(self):
        for queue in self.queues:
            cl.enqueue_barrier(queue, wait_for=[self.event])
        return self

    def __exit__(self, *_):
        self.event.set_status(cl.command_execution_status.COMPLETE)


def zeros(queue, count, n=N):
    made = [ca.zeros(queue, n, np.float32) for _ in range(count)]
    queue.finish()
    return made


def fetched(queue, array):
    """The array's contents at this place of the queue, there when it has finished; by events where it has no order."""
    host, wait = np.full(array.shape, -1, np.float32), array.events if queue.properties & OUT_OF_ORDER else None
    KEPT.append(cl.enqueue_copy(queue, host, array.base_data, is_blocking=False, wait_for=wait))
    return host


def launches(more, x, y):
    return {"bound": more.bind(x, out=y), "sequence": tir.sequence([more.bind(x, out=y)])}


@pytest.mark.parametrize("kind", ["bound", "sequence"])
def test_after_what_is_pending_and_before_what_follows(more, queue, kind):
    x, y = zeros(queue, 2)
    run = launches(more, x, y)[kind]
    with Held(queue):
        x.fill(5)
        run()
        between = fetched(queue, y)
        x.fill(7)
        run()
    np.testing.assert_array_equal(run.wait().get(), np.full(N, 8))
    queue.finish()
    np.testing.assert_array_equal(between, np.full(N, 6))


@pytest.mark.parametrize("kind", ["bound", "sequence"])
def test_after_events_of_a_third_queue(more, context, queue, kind):
    x, y = zeros(queue, 2)
    run, third = launches(more, x, y)[kind], cl.CommandQueue(context)
    with Held(third):
        x.with_queue(third).fill(5)
        run()
        copied = np.empty(N, np.float32)
        done = cl.enqueue_copy(third, copied, y.base_data, wait_for=y.events, is_blocking=False)
    np.testing.assert_array_equal(run.wait().get(), np.full(N, 6))
    done.wait()
    np.testing.assert_array_equal(copied, np.full(N, 6))


def test_a_call_after_events_of_a_third_queue(more, context, queue):
    (x,) = zeros(queue, 1)
    third = cl.CommandQueue(context)
    held = Held(third).__enter__()
    x.with_queue(third).fill(5)
    threading.Timer(0.1, held.__exit__).start()
    np.testing.assert_array_equal(more(x).get(), np.full(N, 6))


def test_binding_waits_for_nothing(device, context, queue):
    """Kernels that run once read what is still to come, too."""
    packed = CompiledProgram(PACKED, device)
    x, w, e, y = zeros(queue, 4, 6)
    with Held(queue):
        for array, value in ((x, 3), (w, 10), (e, 100)):
            array.fill(value)
        run = packed.bind(x, w, e, out=y)
        run()
    np.testing.assert_array_equal(run.wait().get(), np.full(6, 3 * (20 + 100)))
    with Held(queue):
        w.fill(20)
        run.refresh()
        run()
    np.testing.assert_array_equal(run.wait().get(), np.full(6, 3 * (40 + 100)))


def test_arrays_of_several_queues_of_views_and_of_none(more, context):
    queues = [cl.CommandQueue(context) for _ in range(2)]
    (whole,), (y,) = zeros(queues[0], 1, 64), zeros(queues[1], 1)
    x = whole[:N]
    run = more.bind(x, out=y.with_queue(None))
    with Held(*queues):
        whole.fill(3)
        run()
        y.add_event(cl.enqueue_marker(queues[1]))
        run()
    np.testing.assert_array_equal(run.wait().with_queue(queues[1]).get(), np.full(N, 4))


def test_events_do_not_pile_up(more, queue):
    x, y = zeros(queue, 2)
    run = more.bind(x, out=y)
    with Held(queue):
        for _ in range(50):  # pyopencl would wait for the first of more than twelve
            run()
        assert len(x.events) == len(y.events) == 1
    run.wait()


def test_a_copy_to_the_host_is_not_waited_for(more, queue):
    x, y = zeros(queue, 2)
    run = more.bind(x, out=y)
    with Held(queue):
        x.fill(5)
        got, _ = x.get_async()
        del _  # the array has the only reference to its event
        run()
    np.testing.assert_array_equal(run.wait().get(), np.full(N, 6))
    queue.finish()
    np.testing.assert_array_equal(got, np.full(N, 5))
    run()
    assert len(x.events) == 1, "it has ended"
    run.wait()


def test_the_devices_own_queue(more, device):
    x, y = zeros(device.queue, 2)
    run = more.bind(x, out=y)
    with Held(device.queue):
        x.fill(5)
        run()
        x.fill(6)
        got = fetched(device.queue, y)
    device.queue.finish()
    np.testing.assert_array_equal(got, np.full(N, 6))


def test_timing_leaves_the_queues_alone(more, queue, monkeypatch):
    x, y = zeros(queue, 2)
    net = tir.sequence([more.bind(x, out=y)])
    asked, real = [], cl.enqueue_marker
    monkeypatch.setattr(cl, "enqueue_marker", lambda *args, **options: asked.append(1) or real(*args, **options))
    net()
    once = len(asked)
    more.time(x, out=y, repeat=20, min_seconds=0)
    net.time(repeat=20, min_seconds=0)
    assert len(asked) == 3 * once > 0, "once for each timing"
    net()
    assert len(asked) == 4 * once, "the sequence itself still takes its place"
    net.wait()


def test_a_thousand_behind_asynchronous_fills_and_events(more, context):
    queue, third = cl.CommandQueue(context), cl.CommandQueue(context)
    x, y, z = zeros(queue, 3)
    run = more.bind(x, out=y)
    net = tir.sequence([run, more.bind(y, out=z)])
    held, got, expected = [], [], []
    for n in range(1000):
        if n % 5 == 0:
            held.append(Held(queue if n % 10 else third).__enter__())
        (x if n % 3 else x.with_queue(third)).fill(float(n))
        (net if n % 2 else run)()
        got.append(fetched(queue, z if n % 2 else y))
        expected.append(n + 1 + n % 2)
        while held and n % 50 == 49:
            held.pop().__exit__()
    queue.finish()
    wrong = [n for n, (host, value) in enumerate(zip(got, expected, strict=True)) if not np.all(host == value)]
    assert not wrong


KINDS = ("fill", "held fill", "third", "bound", "sequence", "call", "read")


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_order_is_as_one_after_the_other(more, context, data):
    """Three arrays on two queues; fills there and on a third queue, launches of all kinds, copies to the host."""
    kinds = data.draw(st.tuples(*[st.sampled_from([0, OUT_OF_ORDER])] * 2))
    turns = data.draw(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(1, 2)), max_size=25))
    queues = [cl.CommandQueue(context, properties=kind) for kind in kinds]  # no draw may end this while events are held
    third = cl.CommandQueue(context)
    arrays = [*zeros(queues[0], 2), *zeros(queues[1], 1)]
    homes = (queues[0], queues[0], queues[1])
    now, expected, got, pending = [0.0, 0.0, 0.0], [], [], []
    bound = {(i, o): more.bind(arrays[i], out=arrays[o]) for i in range(3) for o in range(3) if i != o}

    def release():
        while pending:
            pending.pop().set_status(cl.command_execution_status.COMPLETE)

    def last(n, event):
        """What comes next on this array, on whatever queue, comes after ``event``."""
        cl.enqueue_barrier(homes[n], wait_for=[event])
        arrays[n].events[:] = [event]

    for turn, (kind, n, m) in enumerate(turns):
        o, value = (n + m) % 3, float(turn + 1)
        x, home = arrays[n], homes[n]
        if kind in ("fill", "held fill", "third"):
            where = third if kind == "third" else home
            wait = list(x.events)
            if kind == "held fill":
                pending.append(cl.UserEvent(context))
                wait.append(pending[-1])
            wait.append(cl.enqueue_marker(home))
            last(n, cl.enqueue_fill_buffer(where, x.base_data, np.float32(value), 0, 4 * N, wait_for=wait))
            now[n] = value
        elif kind == "read":
            host = np.full(N, -1, np.float32)
            wait = [*x.events, cl.enqueue_marker(home)]
            KEPT.append(cl.enqueue_copy(home, host, x.base_data, is_blocking=False, wait_for=wait))
            last(n, KEPT[-1])
            got.append(host)
            expected.append(now[n])
        else:
            if kind == "call":
                release()
                more(x, out=arrays[o])
            elif kind == "bound":
                bound[n, o]()
            else:
                tir.sequence([bound[n, o], bound[o, n]])()
                now[n] = now[n] + 2
            now[o] = now[n] - (kind == "sequence") + (kind != "sequence")
    release()
    for queue in (*queues, third):
        queue.finish()
    for host, value in zip([*got, *(a.get() for a in arrays)], [*expected, *now], strict=True):
        np.testing.assert_array_equal(host, np.full(N, value))
