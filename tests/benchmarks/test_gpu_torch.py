"""What the GPU benchmark asks of torch, on the CPU, where torch is installed: references, libraries, comparisons."""

import time
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from versus_gpu import exact, gpu, lists, peers, timing
from versus_gpu.building import Built
from versus_gpu.device import Broken, Pace

from tensorir.codegen.source import Source
from tensorir.interp.numbers import numpy_dtype

torch = pytest.importorskip("torch")
OF_GPUS = ("cupy", "triton", "cudnn_fused")


def distinct():
    """A problem of each operator, type, layout and epilogue, at tiny sizes. Winograd's templates are asked for what is
    in the lists already: no rules run for them while tests are collected.
    """
    found = {}
    with mock.patch.object(lists, "winograd", lambda layers: ()):
        every = lists.problems("full", "^(?!check)", dry=True)
    for p in every:
        o = p.parameters
        stored = (o.get("layout"), o.get("tb"), o.get("batch", 1) > 1)
        found.setdefault(
            (p.op, p.kind, stored, o.get("bias"), o.get("residual"), o.get("beta"), o.get("groups", 1) > 1), p
        )
    return list(found.values())


def arrays(problem, tensors):
    """NumPy's arrays of torch's, in the types of the arguments."""

    def one(a, t):
        return t if isinstance(t, np.generic) else t.double().numpy().astype(numpy_dtype(a.dtype))

    return [one(a, t) for a, t in zip(problem.arguments, tensors, strict=True)]


class Event:
    """Of the CPU: work is done when it is asked for."""

    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self):
        self.at = time.perf_counter()

    def query(self):
        return True

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)


@pytest.fixture
def cpu(monkeypatch):
    """torch's CPU in place of the GPU; nothing can be captured."""

    @contextmanager
    def refused(*_, **__):
        raise RuntimeError("no capture here")
        yield

    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    fakes = dict(Event=Event, CUDAGraph=SimpleNamespace, graph=refused, synchronize=lambda: None)
    fakes |= dict(current_stream=lambda: None, set_stream=lambda _: None, empty_cache=lambda: None)
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)


class Computed:
    """In place of a program: what the workload's reference computes, with a fault."""

    def __init__(self, problem, fault=lambda out: None):
        self.problem, self.fault = problem, fault

    def bound(self, inputs, output):
        def call():
            made = self.problem.workload().reference(*arrays(self.problem, inputs))
            output.copy_(torch.from_numpy(np.asarray(made, np.float64)))
            self.fault(output)

        return call


def case_of(problem, monkeypatch, fault=lambda out: None):
    case = gpu.GpuCase(problem, 1, 1 << 30)
    monkeypatch.setattr(case, "_program", lambda _: Computed(problem, fault))
    return case, Built(Source("k", "cuda", "", (), ()))


@pytest.mark.parametrize("problem", distinct(), ids=lambda p: p.name)
def test_references_and_libraries_compute_the_same(problem, cpu, monkeypatch):
    case, _ = case_of(problem, monkeypatch)
    want = exact.exact(problem, case._small.inputs).numpy()
    reference = np.asarray(problem.workload().reference(*arrays(problem, case._small.inputs)), np.float64)
    assert np.allclose(reference, want, rtol=0 if problem.exact else 1e-2, atol=0 if problem.exact else 1e-2)
    for peer in peers.peers(problem):
        if peer.name not in OF_GPUS and (peer.name == "torch" or problem.kind != "int8"):
            data = case._normal(1)
            made = peer.prepare(data.inputs, data.output)()
            got = data.output if made is None else exact.from_nchw(problem, made)
            assert tuple(got.shape) == case.result[0]
            near = 0.05 if problem.kind == "bf16" else 5e-3
            assert torch.allclose(got.double(), exact.exact(problem, data.inputs), rtol=near, atol=20 * near), peer.name


def one(only):
    return lists.problems("check", only)[0]


@pytest.mark.parametrize("only", ["mma.sync bf16 nt 127.*alpha", "mma.sync fp16.*gelu", "threads int8", "groups e4m3",
                                  "gradient of weight fp16", "Winograd"])  # fmt: skip
def test_what_is_right_is_within_its_bound(only, cpu, monkeypatch):
    problem = one(only)
    case, built = case_of(problem, monkeypatch)
    found = case.check(built)
    assert found.exact, found.remark
    assert found.of_bound is None if problem.kind == "int8" else found.of_bound <= 1


def test_what_is_wrong_is_told(cpu, monkeypatch):
    problem = one("mma.sync fp16 nt 65")

    def told(fault):
        case, built = case_of(problem, monkeypatch, fault)
        found = case.check(built)
        assert not found.exact
        return found

    assert "elements differ" in told(lambda out: out.view(-1)[5:6].add_(1)).remark
    assert told(lambda out: out.view(-1)[5:6].fill_(float("nan"))).remark.endswith("1 are no numbers")

    def beyond(out):  # one element behind the last one
        torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).zero_()

    assert told(beyond).remark == "it writes beyond an array"
    rough = told(lambda out: out.mul_(1 + 2**-7) if bool((out != out.round()).any()) else None)
    assert rough.of_bound > 1
    assert "times the error that is allowed" in rough.remark


def test_a_kernel_that_does_not_end_breaks_the_process(cpu, monkeypatch):
    monkeypatch.setattr(Event, "query", lambda self: False)
    monkeypatch.setattr(gpu, "HANGS_S", 0.01)
    case, built = case_of(one("threads fp32 nn"), monkeypatch)
    with pytest.raises(Broken, match="does not end"):
        case.check(built)


def test_libraries_that_fail_or_cannot_be_captured(cpu):
    """One is dropped in the midst of its rounds, one is timed in a loop; ours goes on."""
    asked = []

    def fails():
        if "loop" in asked:
            raise RuntimeError("lost")

    def never():
        raise RuntimeError("not in this torch")

    who = {"ours": timing.Competitor([lambda: None], graph=False), "fails": timing.Competitor([fails], graph=False),
           "never": timing.Competitor([never]), "loop": timing.Competitor([lambda: None])}  # fmt: skip
    times = timing.measure(who, Pace(3, 1e-6, 0.0), asked.append)
    assert set(times.seconds) == {"ours", "loop"}
    assert times.failed == {"fails": "RuntimeError: lost", "never": "RuntimeError: not in this torch",
                            "loop": "not in a graph: RuntimeError: no capture here"}  # fmt: skip
    assert asked == ["", "fails", "never", "never", "", "loop", "", "fails", ""], "whose turn it is when one fails"


def test_a_library_that_breaks_the_device_is_named(cpu, monkeypatch):
    def lost():
        raise RuntimeError("illegal address")

    def breaks():
        monkeypatch.setattr(torch.cuda, "synchronize", lost)
        lost()

    asked = []
    who = {"ours": timing.Competitor([lambda: None], graph=False), "breaks": timing.Competitor([breaks], graph=False)}
    with pytest.raises(Broken, match="illegal address"):
        timing.measure(who, Pace(3, 1e-6, 0.0), asked.append)
    assert asked[-1] == "breaks"
