"""A search as tests say it: what measures is a function of a template and a configuration that returns plain data."""

from dataclasses import replace

from tensorir.codec import decode, encode
from tensorir.runtime.machine import ProcessorLoad
from tensorir.tune import loop
from tensorir.tune.interfaces import Bench, SearchPart, Task
from tensorir.tune.spec import RunSpec
from tensorir.tune.trial import FinalRound, Outcome, Peer

WHOLE = {
    "check": {"max_err": None, "shapes": []},
    "race": {"ratio": 1.0, "low": 1.0, "high": 1.0, "rounds": 9},
}
"""What tests leave out of such fields."""


def outcome(data, kind=Outcome):
    """The outcome (or Reply) that plain data says."""
    return decode(kind, data | {name: {**rest, **data[name]} for name, rest in WHOLE.items() if data.get(name)})


def measuring(measure):
    return measure and (lambda trial, left: outcome(measure(trial.template, trial.config, trial.kind, left)))


def finishing(final):
    def measured(finalists, left):
        found = final(finalists, left)
        peer, load = found.baseline, found.load
        results = tuple(outcome(r) if isinstance(r, dict) else r for r in found.results)
        peer = Peer(**peer) if isinstance(peer, dict) else peer
        return replace(
            found, results=results, baseline=peer, load=ProcessorLoad.of(load) if isinstance(load, dict) else load
        )

    return final and measured


class Building:
    def __init__(self, ahead):
        self._ahead, self.width = ahead, ahead.width

    def build(self, wanted, left):
        found = self._ahead.build([encode(trial) for trial in wanted], left)
        return [None if data is None else outcome(data) for data in found]


TASK = ("identity", "reuse", "flops", "priors")
PART = ("also", "defaults", "grace_s", "make", "clock", "others")


def search(strategy, spaces, measure, final=None, ahead=None, flights=None, cold_s=0.0, log=None, **options):
    """``tensorir.tune.loop.search`` with what measures, builds and confirms in the words of tests."""
    task = Task(spaces=spaces, **{name: options.pop(name) for name in TASK if name in options})
    part = SearchPart(**{name: options.pop(name) for name in PART if name in options})
    bench = Bench(measuring(measure), finishing(final), ahead and Building(ahead), flights, cold_s)
    return loop.search(RunSpec(strategy=strategy, **{"budget_s": None, **options}), task, bench, log, part)


__all__ = ["FinalRound", "outcome", "search"]
