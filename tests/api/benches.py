"""A measuring side that only counts: no process, no device, a clock of its own."""

from concurrent.futures import Future

from tensorir.api.waits import Waits
from tensorir.codec import encode
from tensorir.tune.flight import Flights, Sent
from tensorir.tune.trial import CANCELLED, Check, FinalRound, Outcome, Trial

ABOUT = {"name": "cpu", "platform": "x", "driver": "1", "id": "x:0", "target": "opencl"}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Devices:
    """Devices that measure at the same time; each answers at once."""

    named = True

    def __init__(self, bench, names):
        self.bench, self.names = bench, names
        bench.places.append([])

    def live(self):
        return list(self.names)

    def start(self, place, message, remaining):
        self.bench.places[-1].append(place)
        future = Future()
        trial = Trial(message["template"], message["config"])
        future.set_result(encode(message["measurer"].measure(trial, remaining)))
        return future

    def close(self):
        pass


class Bench:
    """Times by shape and configuration, in a second a trial; stands in for the measuring process."""

    def __init__(self, time_of, cost=1.0):
        self.time_of, self.cost, self.clock = time_of, cost, Clock()
        self.calls, self.finals, self.opened = [], [], 0
        self.wrong_in_final, self.places, self.abandoned = set(), [], []

    def measurer(self, work, device, options, shared):
        return Side(self, work, shared or Flights(Devices(self, device))) if device else Measurer(self, work)


class Measurer:
    flights, cold_s, shareable, width = None, 0.0, None, 1

    def __init__(self, bench, work):
        self.bench, self.n, self.waits = bench, work.parameters["n"], Waits(True)
        bench.opened += 1

    def __exit__(self, *_):
        self.bench.opened -= 1

    def abandon(self):
        self.bench.abandoned.append(self.n)

    def open(self):
        return ABOUT

    def known(self, records, default, levels):
        pass

    def digests(self, records):
        return [r.source_sha256 for r in records]

    def measure(self, trial, remaining):
        bench = self.bench
        cost = bench.cost if remaining is None else min(bench.cost, max(0.0, remaining))
        bench.clock.now += cost
        if cost < bench.cost:
            return CANCELLED
        bench.calls.append((self.n, trial.config.get("x")))
        return self.result(trial.template, trial.config)

    def result(self, template, config):
        time_s = self.bench.time_of(self.n, config.get("x"))
        if time_s is None:
            return Outcome("compile_error")
        sha = f"{self.n * 1000 + config.get('x', 0):064x}"
        return Outcome("ok", time_s=time_s, samples=(time_s,) * 3, check=Check(True, 0.0), source_sha256=sha)

    def final(self, finalists, remaining, searched_s=None):
        self.bench.finals.append((self.n, [r.config.get("x") for r in finalists]))
        self.bench.clock.now += 0.5 * len(finalists)
        results = [self.result(r.template, r.config) for r in finalists]
        bad = Outcome("wrong_result", {})
        return FinalRound(
            [bad if (self.n, r.config.get("x")) in self.bench.wrong_in_final else x
             for r, x in zip(finalists, results, strict=True)]
        )  # fmt: skip


class Side(Measurer):
    """One of several that use the same devices, in turn."""

    def __init__(self, bench, work, shareable):
        super().__init__(bench, work)
        self.shareable = shareable

    @property
    def flights(self):
        self.shareable.prepare = lambda trial: Sent({**encode(trial), "measurer": self})
        return self.shareable

    def watched(self, on_trial, record):
        on_trial(record)
