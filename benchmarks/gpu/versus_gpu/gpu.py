"""The GPU: torch holds the data, CuPy launches our kernels, events and CUDA graphs of torch measure."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.codegen.source import itemsize
from tensorir.ir.dtypes import is_float

from .building import Built, Compilers, Job, in_words
from .candidates import Listed
from .device import Broken, Case, Compared, Device, Pace, Times
from .environment import gpu_environment
from .exact import bound, exact, from_nchw, magnitude
from .peers import peers, tensor_float32, torch_type
from .problems import SCALARS, Argument, Problem
from .program import Program
from .timing import Competitor, measure, survive

COLD = 3
"""Footprint of the rotating buffer sets over the size of the L2 cache."""
SHARE = 0.25
"""Of the device's memory that buffer sets may take."""
MOST_SETS = 256
L2_BYTES = 50 * 2**20
"""Where torch does not say."""
DEVICE = "cuda"
SCREEN = Pace(rounds=3, sample_s=1e-3, warm_up_s=0.02)
GUARD = 4096
"""Bytes before and behind each array of a comparison, all bits set: no number where floats are read, and seen where
something is written."""
REPEATS = 3
"""Runs of a kernel that is only compared: what races may be right once."""
HANGS_S = 8.0
"""Seconds after which a kernel that is compared is given up, and the process with it."""


@dataclass(frozen=True)
class Buffers:
    """One set: the inputs in the order of the signature, tensors and NumPy's numbers, and the output."""

    inputs: list[Any]
    output: Any


class GpuCase(Case):
    """The tensors of one problem. Whole numbers are compared, normal numbers are timed."""

    def __init__(self, problem: Problem, l2_bytes: int, memory_bytes: int) -> None:
        self.problem, work = problem, problem.workload()
        (out,) = work.outputs
        self.result = tuple(out.shape), out.dtype
        arrays = [(a.shape, a.dtype) for a in problem.arguments if a.role != "scalar"]
        self.set_bytes = sum(itemsize(d) * math.prod(s) for s, d in (*arrays, self.result))
        room = max(1, int(SHARE * memory_bytes) // self.set_bytes)
        self.sets = max(1, min(math.ceil(COLD * l2_bytes / self.set_bytes), room, MOST_SETS))
        self.about = {"sets": self.sets, "set_bytes": self.set_bytes, "l2_bytes": l2_bytes} if problem.timed else {}
        self._programs: dict[int, tuple[Built, Program]] = {}  # what is kept alive has a number of its own

    # --- data

    def _empty(self) -> Any:
        import torch

        shape, dtype = self.result
        return torch.empty(shape, dtype=torch_type(dtype), device=DEVICE)

    def _drawn(self, low: int, high: int, seed: int) -> list[Any]:
        """Whole numbers, low and high included; from 0 where there are no others."""
        import torch

        draw = torch.Generator(device=DEVICE).manual_seed(seed)

        def tensor(a: Argument) -> Any:
            least = low if a.signed else 0
            drawn = torch.randint(least, high + 1, a.shape, generator=draw, device=DEVICE, dtype=torch.int16)
            return drawn.float().to(torch_type(a.dtype))

        return [self._other(a, 0) if a.role != "tensor" else tensor(a) for a in self.problem.arguments]

    def _normal(self, seed: int) -> Buffers:
        """Standard normal numbers; for integers all of their values."""
        import torch

        if self.problem.kind in ("int8", "uint8"):
            return Buffers(self._drawn(-127, 126 if self.problem.kind == "int8" else 255, seed), self._empty())
        draw = torch.Generator(device=DEVICE).manual_seed(seed)

        def tensor(a: Argument) -> Any:
            drawn = torch.randn(a.shape, generator=draw, device=DEVICE, dtype=torch.float32)
            return drawn.to(torch_type(a.dtype))

        inputs = [self._other(a, 1) if a.role != "tensor" else tensor(a) for a in self.problem.arguments]
        return Buffers(inputs, self._empty())

    def _other(self, a: Argument, normal: int) -> Any:
        """A scalar, or the table of groups."""
        import torch

        if a.role == "table":
            return torch.from_numpy(self.problem.table()).to(DEVICE)
        value = SCALARS[a.name][normal if is_float(a.dtype) else 0]
        return np.dtype(a.dtype).type(value)

    @cached_property
    def _small(self) -> Buffers:
        largest, times = self.problem.whole
        found = self._drawn(-largest, largest, 0)
        return Buffers([a * times if n == 1 and times > 1 else a for n, a in enumerate(found)], self._empty())

    @cached_property
    def _expected(self) -> Any:
        """The exact result of the small numbers, rounded once to the output's type."""
        return exact(self.problem, self._small.inputs).round().to(torch_type(self.result[1]))

    @cached_property
    def _timed(self) -> list[Buffers]:
        return [self._normal(seed) for seed in range(self.sets)]

    # --- what a row asks

    def _program(self, built: Built) -> Program:
        """Loaded when first asked for."""
        if id(built) not in self._programs:
            self._programs[id(built)] = built, Program(built)
        return self._programs[id(built)][1]

    def check(self, built: Built) -> Compared:
        if self.problem.timed:
            small = self._small
            small.output.fill_(_no_result(small.output))
            self._launched(built, small.inputs, small.output)
            return _same(small.output, self._expected)
        found = Compared(True)
        if self.problem.exact:
            found = self._repeated(built, self._small.inputs, lambda got: _same(got, self._expected))
        return self._within(built) if found.exact else found

    def _within(self, built: Built) -> Compared:
        """Whether the result of normal numbers is as near to the exact one as its type and its sums allow."""
        inputs = self._normal(1).inputs
        expected = exact(self.problem, inputs)
        if self.problem.kind in ("int8", "uint8"):
            return self._repeated(built, inputs, lambda got: _same(got, expected.round().to(got.dtype)))
        allowed = bound(self.problem, expected, magnitude(self.problem, inputs))
        return self._repeated(built, inputs, lambda got: _near(got, expected, allowed))

    def _repeated(self, built: Built, inputs: Sequence[Any], judge: Any) -> Compared:
        """The first run that is not right, else the last one; arrays lie between bytes that nobody may use."""
        import torch

        held = [Guarded(t) if isinstance(t, torch.Tensor) else t for t in inputs]
        given = [h.inner if isinstance(h, Guarded) else h for h in held]
        found = Compared(True)
        for _ in range(REPEATS):
            out = Guarded(self._empty())
            out.inner.fill_(_no_result(out.inner))
            self._launched(built, given, out.inner)
            found = judge(out.inner)
            if found.exact and not all(h.whole() for h in (*held, out) if isinstance(h, Guarded)):
                found = Compared(False, None, "it writes beyond an array")
            if not found.exact:
                break
        return found

    def _launched(self, built: Built, inputs: Sequence[Any], output: Any) -> None:
        """Run once and wait; Broken where that takes too long: a kernel that waits for ever ends with its process."""
        import torch

        call = self._program(built).bound(inputs, output)
        torch.cuda.synchronize()
        done = torch.cuda.Event()
        call()
        done.record()
        ends = time.perf_counter() + HANGS_S
        while not done.query():
            if time.perf_counter() > ends:
                raise Broken(f"it does not end within {HANGS_S:g} s")
            time.sleep(0)
        torch.cuda.synchronize()

    def errors(self, built: Built) -> dict[str, float]:
        import torch

        if self.problem.kind in ("int8", "uint8"):
            return {}
        data = self._timed[0]
        want = exact(self.problem, data.inputs)
        largest = float(want.abs().max())

        def error(result: Any) -> float:
            return float((result.double() - want).abs().max()) / largest

        found = {}
        self._launched(built, data.inputs, data.output)
        found["ours"] = error(data.output)
        for peer in self._peers():
            try:
                data.output.zero_()
                made = peer.prepare(data.inputs, data.output)()
                torch.cuda.synchronize()
                found[peer.name] = error(data.output if made is None else from_nchw(self.problem, made))
            except Exception as failure:  # said again, and kept, where it is timed
                survive(failure)
                print(f"{self.problem.name}: {peer.name}: {in_words(failure)}", flush=True)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _peers(self) -> Iterable[Any]:
        """The libraries, each named before it is asked; without those that ended a process."""
        for peer in peers(self.problem):
            if peer.name not in self.without:
                self.asks(peer.name)
                yield peer

    def screen(self, built: Built) -> float | None:
        seconds = measure({"ours": self._ours(built, self._timed)}, SCREEN).seconds["ours"]
        return sorted(seconds)[len(seconds) // 2]

    def compete(self, built: Built, pace: Pace, cold: bool) -> Times:
        data = self._timed if cold else self._timed[:1]
        who, failed = {"ours": self._ours(built, data)}, dict[str, str]()
        for peer in self._peers():
            try:
                who[peer.name] = Competitor([peer.prepare(d.inputs, d.output) for d in data], peer.graph)
            except Exception as error:
                survive(error)
                failed[peer.name] = in_words(error)
        times = measure(who, pace, self.asks)
        times.failed |= failed
        return times

    def _ours(self, built: Built, data: list[Buffers]) -> Competitor:
        program = self._program(built)
        return Competitor([program.bound(d.inputs, d.output) for d in data])

    def close(self) -> None:
        import torch

        self._programs.clear()
        for name in ("_small", "_expected", "_timed"):
            self.__dict__.pop(name, None)
        gc.collect()
        torch.cuda.empty_cache()


class Guarded:
    """A copy of a tensor between bytes that nobody may read or write."""

    def __init__(self, t: Any) -> None:
        import torch

        size = t.numel() * t.element_size()
        self.start, self.end = GUARD, GUARD + size
        self.bytes = torch.full((size + 2 * GUARD,), 255, dtype=torch.uint8, device=t.device)
        self.inner = self.bytes[self.start : self.end].view(t.dtype).view(t.shape)
        self.inner.copy_(t)

    def whole(self) -> bool:
        """Whether they are as they were."""
        return bool((self.bytes[: self.start] == 255).all() and (self.bytes[self.end :] == 255).all())


def _no_result(out: Any) -> Any:
    import torch

    return float("nan") if out.dtype.is_floating_point else torch.iinfo(out.dtype).min


def _same(got: Any, expected: Any) -> Compared:
    import torch

    if torch.equal(got, expected):
        return Compared(True)
    difference = (got.double() - expected.double()).abs()
    known = difference[torch.isfinite(difference)]
    share = float((difference != 0).double().mean())
    remark = f"{100 * share:.2g} % of the elements differ, {int(difference.numel() - known.numel())} are no numbers"
    return Compared(False, float(known.max()) if known.numel() else None, remark)


def _near(got: Any, expected: Any, allowed: Any) -> Compared:
    """of_bound: the largest error over what is allowed."""
    import torch

    difference = (got.double() - expected).abs()
    share = difference / allowed
    if not bool(torch.isfinite(share).all()):
        lost = int((~torch.isfinite(share)).sum())
        return Compared(False, None, f"of normal numbers {lost} elements are no numbers")
    worst = float(share.max()) if share.numel() else 0.0
    remark = "" if worst <= 1 else f"of normal numbers: {worst:.3g} times the error that is allowed"
    return Compared(worst <= 1, float(difference.max()), remark, worst)


class Gpu(Device):
    """The first CUDA device."""

    def __init__(self, compilers: int) -> None:
        import torch

        torch.cuda.set_device(0)
        torch.cuda.set_stream(torch.cuda.Stream())  # everything runs on this one, or is captured
        tensor_float32(False)
        about = torch.cuda.get_device_properties(0)
        self.arch = f"sm_{about.major}{about.minor}" + ("a" if about.major >= 9 else "")
        self.target = f"cuda -arch={self.arch} -units={about.multi_processor_count}"
        known = tir.Target.parse(self.target).shared_optin_bytes
        self.shared_optin_bytes = int(getattr(about, "shared_memory_per_block_optin", 0) or known)
        self.l2_bytes = int(getattr(about, "L2_cache_size", 0) or L2_BYTES)
        self.memory_bytes = int(about.total_memory)
        self.compilers = Compilers(self.arch, compilers)

    def environment(self) -> dict[str, Any]:
        found = {"arch": self.arch, "l2_bytes": self.l2_bytes, "memory_bytes": self.memory_bytes}
        return {**gpu_environment(), **found}

    def list_ahead(self, asked: Iterable[tuple[Problem, int]]) -> None:
        self.compilers.list_ahead((p, p.target(self.target), count) for p, count in asked)

    def listed(self, problem: Problem, count: int, wait: bool = True) -> Listed | None:
        return self.compilers.listed(problem, problem.target(self.target), count, wait)

    def ahead(self, jobs: Iterable[Job]) -> None:
        self.compilers.ahead(jobs)

    def built(self, job: Job) -> Built:
        return self.compilers.built(job)

    def case(self, problem: Problem) -> Case:
        return GpuCase(problem, self.l2_bytes, self.memory_bytes)

    def healthy(self) -> bool:
        import torch

        try:
            torch.cuda.synchronize()
            return bool((torch.ones(8, device=DEVICE) + 1).sum().item() == 16)
        except Exception:  # whatever it is, no more can be had of it
            return False

    def close(self) -> None:
        self.compilers.close()
