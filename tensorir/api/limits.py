"""Time limits of a request's phases: as configured, and tightened by earlier trials."""

from __future__ import annotations

import math

from tensorir.api.bench import REFERENCE_PHASE, WHOLE_PHASE
from tensorir.tune.spec import RunSpec
from tensorir.tune.trial import Outcome

REFERENCE_S = 600.0  # a reference in Python may take its time
SETUP_S = 120.0
CHECK_S = 30.0  # at least
LEAST_S = 2.0  # that runs of all blocks may take once it is known how long others took, and
MOST_RUNS = 100.0  # times the best (some ten launches, of candidates up to five times slower), and
MOST_SLACK = 10.0  # times the longest such phase of a valid trial: the arrays and the machine's load are in it
PEER_S = 60.0  # for a look at one library,
PEER_SHARE = 0.25  # of what is left of the budget at most,
PEER_LEAST_S = 10.0  # or half of it where that is less than this: the first look imports the library


def limits_of(spec: RunSpec) -> dict[str, float]:
    """{phase: seconds allowed}, with the finalists' own phases ("run 0", "compile 0", …)."""
    run, compile_ = spec.timeout, spec.compile_timeout
    limits = {"setup": SETUP_S, "reference": REFERENCE_S, "schedule": run, "emit": run, "check": max(run, CHECK_S)}
    limits |= {"compile": compile_, REFERENCE_PHASE: compile_ + run, "run": run, WHOLE_PHASE: run, "time": 10 * run}
    limits |= {"baseline": PEER_S}
    for n in range(spec.top + 2):
        limits |= {f"{phase} {n}": run for phase in ("run", "schedule", "emit")}
        limits |= {f"compile {n}": compile_}
    return limits


def for_a_peer(left_s: float | None) -> float:
    """Seconds allowed for timing a library briefly: 60 for None; else a quarter of ``left_s``, raised to 10 or to half
    of ``left_s`` where that is less, and 60 at most.
    """
    return PEER_S if left_s is None else min(PEER_S, max(PEER_SHARE * left_s, min(PEER_LEAST_S, left_s / 2)))


class Experience:
    """Time limits for future trials, learned from past ones.

    best_s:    least seconds of a valid result, None before one
    longest_s: longest run phases of valid candidates
    """

    def __init__(self) -> None:
        self.best_s: float | None = None
        self.longest_s: float | None = None

    def better(self, seconds: float) -> None:
        """Lower ``best_s`` to ``seconds``, the time of a valid result, if that is less."""
        self.best_s = min(self.best_s or math.inf, seconds)

    def took(self, outcome: Outcome) -> None:
        """Raise ``longest_s`` to the run phase's duration of a valid trial, if that is more."""
        spent = outcome.told.get("seconds") or {}
        if outcome.ok and WHOLE_PHASE in spent:
            self.longest_s = max(self.longest_s or 0.0, spent[WHOLE_PHASE])

    def limits(self, best_s: float | None, timeout: float) -> dict[str, float]:
        """{run phase: seconds} allowed for a kernel that passed the slowness test; {} before a successful trial."""
        if best_s is None or self.longest_s is None:
            return {}
        return {WHOLE_PHASE: min(timeout, LEAST_S + MOST_RUNS * best_s + MOST_SLACK * self.longest_s)}
