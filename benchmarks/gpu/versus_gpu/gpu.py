"""The GPU: torch holds the data, CuPy launches our kernels, events and CUDA graphs of torch measure."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorir as tir
from tensorir.codegen.source import itemsize

from .building import Built, Compilers, Job, in_words
from .device import Case, Compared, Device, Pace, Times
from .environment import gpu_environment
from .peers import as_nchw, convolve, operands, peers, tensor_float32, torch_type
from .problems import Problem
from .program import Program
from .timing import Competitor, measure

COLD = 3
"""Footprint of the rotating buffer sets over the size of the L2 cache."""
SHARE = 0.25
"""Of the device's memory that buffer sets may take."""
MOST_SETS = 256
L2_BYTES = 50 * 2**20
"""Where torch does not say."""
DEVICE = "cuda"
SCREEN = Pace(rounds=3, sample_s=1e-3, warm_up_s=0.02)


@dataclass(frozen=True)
class Buffers:
    """One set of tensors: the inputs in the order of the signature, and the output."""

    inputs: list[Any]
    output: Any


class GpuCase(Case):
    """The tensors of one problem. Whole numbers are compared, normal numbers are timed."""

    def __init__(self, problem: Problem, l2_bytes: int, memory_bytes: int) -> None:
        self.problem, work = problem, problem.workload()
        self.shapes = problem.arguments()
        (out,) = work.outputs
        self.result = tuple(out.shape), out.dtype
        self.set_bytes = sum(itemsize(d) * math.prod(s) for s, d in (*self.shapes, self.result))
        room = max(1, int(SHARE * memory_bytes) // self.set_bytes)
        self.sets = max(1, min(math.ceil(COLD * l2_bytes / self.set_bytes), room, MOST_SETS))
        self.about = {"sets": self.sets, "set_bytes": self.set_bytes, "l2_bytes": l2_bytes}
        self._programs: dict[int, tuple[Built, Program]] = {}  # what is kept alive has a number of its own

    # --- data

    def _empty(self) -> Any:
        import torch

        shape, dtype = self.result
        return torch.empty(shape, dtype=torch_type(dtype), device=DEVICE)

    def _drawn(self, low: int, high: int, seed: int) -> list[Any]:
        """Whole numbers, low and high included."""
        import torch

        draw = torch.Generator(device=DEVICE).manual_seed(seed)
        drawn = [
            torch.randint(low, high + 1, s, generator=draw, device=DEVICE, dtype=torch.int8) for s, _ in self.shapes
        ]
        return [a.float().to(torch_type(d)) for a, (_, d) in zip(drawn, self.shapes, strict=True)]

    def _normal(self, seed: int) -> Buffers:
        """Standard normal numbers; for integers all of their values."""
        import torch

        if self.problem.kind == "int8":
            return Buffers(self._drawn(-127, 126, seed), self._empty())
        draw = torch.Generator(device=DEVICE).manual_seed(seed)
        inputs = [torch.randn(s, generator=draw, device=DEVICE, dtype=torch.float32).to(torch_type(d))
                  for s, d in self.shapes]  # fmt: skip
        return Buffers(inputs, self._empty())

    @cached_property
    def _small(self) -> Buffers:
        largest, times = self.problem.whole
        found = self._drawn(-largest, largest, 0)
        return Buffers([a * times if n == 1 and times > 1 else a for n, a in enumerate(found)], self._empty())

    @cached_property
    def _expected(self) -> Any:
        """The exact result of the small numbers, rounded once to the output's type."""
        return self._exact(self._small.inputs).round().to(torch_type(self.result[1]))

    @cached_property
    def _timed(self) -> list[Buffers]:
        return [self._normal(seed) for seed in range(self.sets)]

    def _exact(self, inputs: list[Any]) -> Any:
        """The result in float64, with the axes of our output."""
        import torch

        if self.problem.op == "matmul":
            a, b = operands(self.problem, inputs)
            return a.double() @ b.double()
        torch.backends.cudnn.benchmark = False
        x, w = as_nchw(self.problem, inputs)
        weights = w.double()
        made = torch.cat([convolve(self.problem, part.double(), weights) for part in x.split(8)])
        return self._ours_from_nchw(made)

    def _ours_from_nchw(self, y: Any) -> Any:
        nhwc = self.problem.parameters.get("layout", "NCHW") == "NHWC"
        return y.permute(0, 2, 3, 1) if nhwc else y

    # --- what a row asks

    def _program(self, built: Built) -> Program:
        """Loaded when first asked for."""
        if id(built) not in self._programs:
            self._programs[id(built)] = built, Program(built)
        return self._programs[id(built)][1]

    def check(self, built: Built) -> Compared:
        import torch

        small = self._small
        floats = small.output.dtype.is_floating_point
        small.output.fill_(float("nan") if floats else torch.iinfo(small.output.dtype).min)
        expected = self._expected
        self._program(built).bound(small.inputs, small.output)()
        torch.cuda.synchronize()
        if torch.equal(small.output, expected):
            return Compared(True)
        difference = (small.output.double() - expected.double()).abs()
        known = difference[torch.isfinite(difference)]
        share = float((difference != 0).double().mean())
        remark = f"{100 * share:.2g} % of the elements differ, {int(difference.numel() - known.numel())} are no numbers"
        return Compared(False, float(known.max()) if known.numel() else None, remark)

    def errors(self, built: Built) -> dict[str, float]:
        import torch

        if self.problem.kind == "int8":
            return {}
        data = self._timed[0]
        exact = self._exact(data.inputs)
        largest = float(exact.abs().max())

        def error(result: Any) -> float:
            return float((result.double() - exact).abs().max()) / largest

        found = {}
        self._program(built).bound(data.inputs, data.output)()
        torch.cuda.synchronize()
        found["ours"] = error(data.output)
        for peer in peers(self.problem):
            try:
                data.output.zero_()
                made = peer.prepare(data.inputs, data.output)()
                torch.cuda.synchronize()
                found[peer.name] = error(data.output if made is None else self._ours_from_nchw(made))
            except Exception as failure:  # said again, and kept, where it is timed
                print(f"{self.problem.name}: {peer.name}: {in_words(failure)}", flush=True)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def screen(self, built: Built) -> float | None:
        seconds = measure({"ours": self._ours(built, self._timed)}, SCREEN).seconds["ours"]
        return sorted(seconds)[len(seconds) // 2]

    def compete(self, built: Built, pace: Pace, cold: bool) -> Times:
        data = self._timed if cold else self._timed[:1]
        who, failed = {"ours": self._ours(built, data)}, dict[str, str]()
        for peer in peers(self.problem):
            try:
                who[peer.name] = Competitor([peer.prepare(d.inputs, d.output) for d in data], peer.graph)
            except Exception as error:
                failed[peer.name] = in_words(error)
        times = measure(who, pace)
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


class Gpu(Device):
    """The first CUDA device."""

    def __init__(self, compilers: int) -> None:
        import torch

        torch.cuda.set_device(0)
        torch.cuda.set_stream(torch.cuda.Stream())  # everything runs on this one, or is captured
        tensor_float32(False)
        about = torch.cuda.get_device_properties(0)
        self.arch = f"sm_{about.major}{about.minor}" + ("a" if about.major >= 9 else "")
        self.target = f"cuda -arch={self.arch}"
        known = tir.Target.parse(self.target).shared_optin_bytes
        self.shared_optin_bytes = int(getattr(about, "shared_memory_per_block_optin", 0) or known)
        self.l2_bytes = int(getattr(about, "L2_cache_size", 0) or L2_BYTES)
        self.memory_bytes = int(about.total_memory)
        self.compilers = Compilers(self.arch, compilers)

    def environment(self) -> dict[str, Any]:
        found = {"arch": self.arch, "l2_bytes": self.l2_bytes, "memory_bytes": self.memory_bytes}
        return {**gpu_environment(), **found}

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
