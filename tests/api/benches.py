"""A measuring side that only counts: no process, no device, a clock of its own."""

from tensorir.tune.loop import FinalRound

ABOUT = {"name": "cpu", "platform": "x", "driver": "1", "id": "x:0", "target": "opencl"}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Bench:
    """Times by shape and configuration, in a second a trial; stands in for the measuring process."""

    def __init__(self, time_of, cost=1.0):
        self.time_of, self.cost, self.clock = time_of, cost, Clock()
        self.calls, self.finals, self.opened = [], [], 0
        self.wrong_in_final = set()

    def measurer(self, work, device, options, asker):
        return Measurer(self, work)


class Measurer:
    flights, cold_s = None, 0.0

    def __init__(self, bench, work):
        self.bench, self.n = bench, work.parameters["n"]
        bench.opened += 1

    def __exit__(self, *_):
        self.bench.opened -= 1

    def open(self):
        return ABOUT

    def known(self, records):
        pass

    def measure(self, template, config, kind, remaining):
        bench = self.bench
        cost = bench.cost if remaining is None else min(bench.cost, max(0.0, remaining))
        bench.clock.now += cost
        if cost < bench.cost:
            return {"status": "cancelled"}
        bench.calls.append((self.n, config.get("x")))
        return self.result(template, config)

    def result(self, template, config):
        time_s = self.bench.time_of(self.n, config.get("x"))
        if time_s is None:
            return {"status": "compile_error"}
        check = {"ok": True, "max_err": 0.0, "shapes": []}
        sha = f"{self.n * 1000 + config.get('x', 0):064x}"
        return {"status": "ok", "time_s": time_s, "samples": [time_s] * 3, "check": check, "source_sha256": sha}

    def final(self, finalists, remaining, searched_s=None):
        self.bench.finals.append((self.n, [r["config"].get("x") for r in finalists]))
        self.bench.clock.now += 0.5 * len(finalists)
        results = [self.result(r["template"], r["config"]) for r in finalists]
        bad = {"status": "wrong_result", "detail": {}}
        return FinalRound(
            [bad if (self.n, r["config"].get("x")) in self.bench.wrong_in_final else x
             for r, x in zip(finalists, results, strict=True)]
        )  # fmt: skip
