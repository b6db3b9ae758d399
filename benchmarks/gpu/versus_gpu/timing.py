"""Seconds of calls on the GPU: CUDA graphs of many calls between events, competitors in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .building import in_words
from .device import Broken, Pace, Times
from .program import Call

OURS = "ours"
MOST_CALLS = 20
"""Calls of one graph where the buffer sets are fewer."""
LONGEST_S = 0.1
"""Seconds of one graph, unless two calls take longer: very slow kernels rotate through fewer sets."""


@dataclass(frozen=True)
class Competitor:
    """One call for each buffer set. graph: whether it can be captured in a CUDA graph; a loop of calls otherwise."""

    calls: Sequence[Call]
    graph: bool = True


def _event_s(run: Call, times: int) -> float:
    """Seconds of one run, of ``times`` in a row."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / times


class Sampler:
    """Calls that rotate through the buffer sets, long enough for events to measure."""

    def __init__(self, competitor: Competitor, pace: Pace) -> None:
        import torch

        calls = competitor.calls
        for call in dict.fromkeys((calls[0], calls[-1])):  # libraries choose their algorithms in the first calls
            call()
        torch.cuda.synchronize()
        one = max(_event_s(calls[0], 3), 1e-7)
        calls = calls[: max(2, math.ceil(LONGEST_S / one))]
        rounds = math.ceil(min(MOST_CALLS, pace.sample_s / one) / len(calls))
        self.calls = [*calls] * max(1, rounds)
        self.kept: list[Any] = []
        self.run = self._captured() if competitor.graph else self._loop
        self.run()
        torch.cuda.synchronize()
        self.once_s = max(_event_s(self.run, 1), 1e-7)
        self.replays = max(1, math.ceil(pace.sample_s / self.once_s))

    def _loop(self) -> None:
        for call in self.calls:
            call()

    def _captured(self) -> Call:
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            # results that a library allocates are kept, so that each call of the graph has memory of its own
            self.kept = [call() for call in self.calls]
        self.graph = graph
        replay: Call = graph.replay
        return replay

    def sample(self) -> float:
        """Seconds of one call; what runs before is not counted and leaves the cache as this one does."""
        self.run()
        return _event_s(self.run, self.replays) / len(self.calls)


def survive(error: Exception) -> None:
    """Nothing where the device works after a library's error; else Broken, while it is known whose error it was."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:
        raise Broken(in_words(error)) from error


def _sampler(competitor: Competitor, pace: Pace) -> tuple[Sampler, str]:
    """A sampler, and why its calls are in a loop although a graph was wanted: some libraries cannot be captured."""
    import torch

    stream = torch.cuda.current_stream()
    try:
        return Sampler(competitor, pace), ""
    except Exception as error:
        torch.cuda.set_stream(stream)  # a capture that fails leaves its own
        torch.cuda.synchronize()
        if not competitor.graph:
            raise
        return Sampler(replace(competitor, graph=False), pace), f"not in a graph: {in_words(error)}"


def measure(competitors: Mapping[str, Competitor], pace: Pace, asks: Callable[[str], None] = lambda _: None) -> Times:
    """Rounds of all in alternating order, after a warm-up; a competitor that fails is left out and named.

    asks: told the name of each library before it begins
    """
    import torch

    times, samplers = Times(), dict[str, Sampler]()

    def drop(name: str, error: Exception) -> None:
        if name == OURS:
            raise error
        asks(name)
        survive(error)
        asks("")
        samplers.pop(name, None)
        times.seconds.pop(name, None)
        times.failed[name] = in_words(error)

    for name, competitor in competitors.items():
        try:
            asks("" if name == OURS else name)
            samplers[name], remark = _sampler(competitor, pace)
            if remark:
                times.failed[name] = remark
        except Exception as error:
            drop(name, error)
    asks("")
    ends = time.perf_counter() + pace.warm_up_s
    while True:
        for name, sampler in list(samplers.items()):
            try:
                sampler.run()
            except Exception as error:
                drop(name, error)
        torch.cuda.synchronize()
        if time.perf_counter() >= ends:
            break
    times.seconds = {name: [] for name in samplers}
    for number in range(pace.rounds):
        order = list(samplers) if number % 2 == 0 else list(reversed(samplers))
        for name in order:
            try:
                times.seconds[name].append(samplers[name].sample())
            except Exception as error:
                drop(name, error)
    return times
