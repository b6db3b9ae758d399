"""One row: configurations are built, compared exactly and timed; the fastest meets the libraries."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .building import BuildFailure, Built, Job, in_words
from .candidates import Config, Search
from .device import Broken, Case, Device, Pace, Times
from .problems import Problem
from .results import Json

MOST_COMPARED = 3
"""Configurations of a row that is not timed."""
SPARE = 4
"""Configurations that take the places of those that spill or do not fit."""
MOST_CRASHES = 2
"""Processes that the kernels of one row may end before it is given up."""
TIMING = "timing"
"""What a row is doing once its best configuration is known."""


@dataclass(frozen=True)
class Plan:
    """How a row is made.

    count: configurations of a row, or of one batch of the search;  search_s: seconds of the search, None for none
    """

    count: int = 6
    pace: Pace = field(default_factory=Pace)
    search_s: float | None = None

    def count_of(self, problem: Problem) -> int:
        """Configurations of one row; what is only compared needs fewer."""
        return self.count if problem.timed else min(self.count, MOST_COMPARED)

    def listed_of(self, problem: Problem) -> int:
        """How many are compiled for that: some spill."""
        return self.count_of(problem) + (SPARE if problem.timed else 0)


@dataclass(frozen=True)
class Attempt:
    """A configuration that was tried: its line in the row, and its program where it is exact."""

    line: Json
    built: Built | None = None


Says = Callable[[str, Json | None, str, str], None]


class Row:
    """The row of one problem in the making. says: reports what is running; crashes: see ``Results.crashes``.

    given_up: why it is not made at all; empty where it is
    """

    def __init__(self, problem: Problem, device: Device, plan: Plan, says: Says, crashes: Sequence[Json] = (),
                 given_up: str = "") -> None:  # fmt: skip
        self.problem, self.device, self.plan, self.says = problem, device, plan, says
        self.of_peers = {c["peer"]: c["reason"] for c in crashes if c.get("peer")}
        self.crashes = [c for c in crashes if not c.get("peer")]
        self.given_up, self.best = given_up, dict[str, Any]()
        self.template, self.attempts = "", list[Attempt]()

    def make(self) -> Json:
        """The finished row, whatever happens; only Broken goes through, when the process has to be a new one."""
        started, p = time.time(), self.problem
        head = {"name": p.name, "group": p.group, "kind": p.kind, "op": p.op, "parameters": p.parameters,
                "timed": p.timed}  # fmt: skip
        about: Json = {}
        try:
            if unsuited := p.unsuited(p.target(self.device.target)):
                return {**head, "template": p.template or "", "status": "skipped", "reason": unsuited, "tried": [],
                        "wall_s": 0.0}  # fmt: skip
            self._refuse_after_crashes()
            self.says(p.name, None, "starting", "")
            with self.device.case(p) as case:
                case.without = self.of_peers
                case.asks = self._asks
                self._try_all(case)
                about = dict(case.about) | self._outcome(case)
        except Broken:
            raise
        except Exception as error:
            self._check_health(error)
            about = {"status": "failed", "reason": in_words(error)}
        tried = [a.line for a in self.attempts]
        return {**head, "template": self.template, **about, "tried": tried, "wall_s": round(time.time() - started, 3)}

    def _asks(self, peer: str) -> None:
        """What is wrong from now on is a library's, or with no name that of the best configuration."""
        self.says(self.problem.name, None if peer else self.best, "library", peer)

    def _refuse_after_crashes(self) -> None:
        if self.given_up:
            raise RuntimeError(self.given_up)
        whole = [c["reason"] for c in self.crashes if c["config"] is None]
        if whole or len(self.crashes) >= MOST_CRASHES:
            raise RuntimeError(f"ended the process: {(whole or [self.crashes[-1]['reason']])[0]}")

    def _try_all(self, case: Case) -> None:
        """Batch after batch; the next one is compiled while one is measured, and chosen by what was known before."""
        batches = self._batches()
        jobs = self._asked(next(batches, []))
        while jobs:
            following = self._asked(next(batches, []))
            for job in jobs:
                if self.plan.search_s is None and self._tried() >= self.plan.count_of(self.problem):
                    break
                self.attempts.append(self._attempt(case, job))
            jobs = following

    def _tried(self) -> int:
        """Attempts that were more than a compilation."""
        return sum(a.line["status"] != "skipped" for a in self.attempts)

    def _asked(self, batch: Sequence[Config]) -> list[Job]:
        jobs = [Job(self.problem, self.template, c, self.problem.target(self.device.target)) for c in batch]
        self.device.ahead(jobs)
        return jobs

    def _batches(self) -> Iterator[list[Config]]:
        self.says(self.problem.name, None, "building", "")
        if self.plan.search_s is None:
            found = self.device.listed(self.problem, self.plan.listed_of(self.problem))
            assert found is not None
            self.template, configs = found
            yield configs
            return
        target = self.problem.target(self.device.target)
        search, ends = Search(self.problem, target, self.plan.count), time.time() + self.plan.search_s
        self.template = search.template
        while batch := search.batch([a.line["config"] for a in self.ranking()]):
            yield batch
            if time.time() >= ends:
                return

    def _attempt(self, case: Case, job: Job) -> Attempt:
        config = dict(job.config)
        line: Json = {"config": config, "status": "failed", "reason": ""}
        crashed = [c["reason"] for c in self.crashes if c["config"] == config]
        if crashed:
            return Attempt({**line, "reason": f"ended the process: {crashed[0]}"})
        self.says(self.problem.name, None, "building", "")
        try:
            built = self.device.built(job)
        except BuildFailure as error:
            return Attempt({**line, "reason": str(error)})
        line |= {"registers": built.registers, "spills": built.spills, "shared_bytes": built.shared_bytes}
        if reason := self._unfit(built):
            return Attempt({**line, "status": "skipped", "reason": reason})
        self.says(self.problem.name, config, "comparing", "")
        try:
            found = case.check(built)
            if found.of_bound is not None:
                line["of_bound"] = found.of_bound
            if not found.exact:
                return Attempt({**line, "status": "wrong", "reason": found.remark, "largest": found.largest})
            if self.problem.timed:
                line["screened_s"] = case.screen(built)
        except Broken:
            raise
        except Exception as error:
            self._check_health(error)
            return Attempt({**line, "reason": in_words(error)})
        return Attempt({**line, "status": "exact"}, built)

    def _unfit(self, built: Built) -> str:
        if built.spills and self.problem.timed:
            return f"spills {built.spills} bytes"
        limit = self.device.shared_optin_bytes
        return f"{built.shared_bytes} bytes of shared memory, of {limit}" if built.shared_bytes > limit else ""

    def _check_health(self, error: Exception) -> None:
        if not self.device.healthy():
            raise Broken(in_words(error)) from error

    def ranking(self) -> list[Attempt]:
        """The exact ones, the fastest first; in the order of trial where nothing was timed."""
        exact = [a for a in self.attempts if a.line["status"] == "exact"]
        return sorted(exact, key=lambda a: a.line.get("screened_s") or 0.0)

    def _outcome(self, case: Case) -> Json:
        """Status, and for what was exact the figures of the fastest."""
        wrong = [a for a in self.attempts if a.line["status"] == "wrong"]
        found = self.ranking()
        about: Json = {"status": "exact" if found else "wrong" if wrong else "failed", "wrong": len(wrong)}
        if wrong:
            about["largest"] = max((a.line["largest"] for a in wrong if a.line["largest"] is not None), default=None)
        if not found:
            return about | {"reason": _reasons(self.attempts)}
        if not self.problem.timed:
            return about
        if self.plan.search_s is not None:
            self.attempts.sort(key=lambda a: a.line.get("screened_s") or math.inf)
        best = found[0]
        built = best.built
        assert built is not None
        self.best = best.line["config"]
        about |= {"best": self.best, "flops": self.problem.workload().flops}
        failed = {name: f"ended the process: {why}" for name, why in self.of_peers.items()}
        self.says(self.problem.name, self.best, TIMING, "")
        about["errors"] = self._guarded(lambda: case.errors(built), failed) or {}
        for cache in ("cold", "warm"):
            self.says(self.problem.name, self.best, TIMING, "")
            times = self._guarded(lambda cold=cache == "cold": case.compete(built, self.plan.pace, cold), failed)
            if times is not None:
                about[cache] = _figures(times)
                failed |= times.failed
        return about | {"peers_failed": failed}

    def _guarded(self, what: Callable[[], Any], failed: dict[str, str]) -> Any:
        """A part of the figures; without it where that fails, so that the others are kept."""
        try:
            return what()
        except Broken:
            raise
        except Exception as error:
            self._check_health(error)
            failed["ours"] = in_words(error)
            return None


def _reasons(attempts: Sequence[Attempt]) -> str:
    """Why none can be used, each reason once."""
    told = dict.fromkeys(a.line["reason"] or a.line["status"] for a in attempts)
    return "; ".join(told)[:500] or "no configuration"


def _figures(times: Times) -> dict[str, dict[str, Any]]:
    """Median, fastest and slowest round in seconds."""
    return {
        name: {"median_s": statistics.median(rounds), "low_s": min(rounds), "high_s": max(rounds), "rounds": rounds}
        for name, rounds in times.seconds.items()
    }
