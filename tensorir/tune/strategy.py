"""Search strategies by name, and Bayesian optimization, the default one.

A strategy proposes rows of a pool (``ask``), which are measured elsewhere, and receives their seconds (``tell``).
``Kept`` and ``Given`` are strategies for searches that are run in time slices.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import shown
from tensorir.errors.spelling import nearest
from tensorir.tune.baseline import Climber, Evolution, GridSearch, PoolSearch, RandomSearch, Replay
from tensorir.tune.gp import SURROGATE, Hyperparameters, absent, missing, one_thread
from tensorir.tune.interfaces import Strategy
from tensorir.tune.model import Guided, Hyper, Model, Points, Results, Trend, measured, response, standard
from tensorir.tune.pool import Config, Features, Floats, HasRows, Ints, Pool

LEAST_GAIN = 1e-3
"""Log seconds: if a model expects a smaller gain of every candidate, every other row is a random one."""
LIKELY_SHARE = 0.9
"""Share of the best chance to run that a model's own rows must have in that case."""
FEW_RESULTS, DRAWN_ROWS = 5, 16
"""While most rows fail and fewer than ``FEW_RESULTS`` ran, a model chooses among ``DRAWN_ROWS`` random rows: of all it
would propose the ends of the space, least known and rarely good."""
MAX_MODEL_WORK = 3_000_000
"""Maximum product of candidates and results of a model: a tenth of a second."""
LEAST_CANDIDATES = 2000
HEDGED_FROM = 16
"""Number of results beyond which a search led by a space's model fits every other surrogate without it."""
CLIMBS, CLIMBED_FROM = 2, 5
"""In a pool of which a model sees a sample, the neighbours of the ``CLIMBED_FROM`` candidates of most expected gain
become candidates, so many times in turn at each fit."""
MAX_TWO_KNOB_CHANGES = 100
"""Random two-knob changes tried around each of the fastest rows at each fit, in a sampled space."""


class Bayes(PoolSearch):
    """scikit-optimize's Gaussian process and expected improvement, over exactly the rows that may be measured.

    Its own loop samples the bounding box and is, on constrained spaces, worse than random; so the loop is
    ours: a start that spreads over the pool, then the row of greatest expected improvement, every fourth time
    a random unseen neighbour of the best row (costs little on smooth spaces, rescues rugged ones), and every fourth
    time, if nothing better was found for a while, one of the other side of a switch (``_other_side``).

    features:  optional numbers for each configuration (threads, bytes of shared memory, …) as further inputs
               of the model, those of the space (``Space.features``) when None; every second fit goes without
               them, because they help early and can mislead late
    A space with a model of its own (``Space.expecting``) is led by it while what is measured agrees (``Guide``): the
    first rows are the fastest that differ in modelled time, its seconds are the trend of the process, and what it takes
    for hopeless comes last. Rows from anywhere, ever rarer, show whether it agrees. Once contradicted it is a feature
    where no others are given.
    counts:    numbers of rows: "initial" (the start), "model", "local" (neighbours), "other" (``_other_side``),
               "random" (from anywhere), and "elsewhere" (from ``priors``) if there are any

    Raises DeclarationError ``tune.skopt-missing`` where scikit-optimize is not installed.
    """

    name = "bayes"
    guided = True
    surrogate = SURROGATE
    INITIAL = 7
    LED = 3  # first rows in the order of a model, before its process chooses: more of the same say little
    TESTED = 5  # results after which a row from anywhere first shows whether the model agrees
    LOCAL_EVERY = 4
    OTHER_SIDE_AT = 2  # of ``LOCAL_EVERY`` steps, the one that improves on the other side of a switch
    STALE = 0.75  # share of the results since whose end nothing better was found, for such steps to be taken
    LOCAL_AROUND = 3  # best rows that have their neighbours tried, in order
    REFIT_EVERY = 8
    CANDIDATES = 20_000  # of larger pools, a fresh sample at each fit
    ELSEWHERE = 6  # rows of the start that are what was fast elsewhere; the others show whether it is so here
    VIEWS = 6  # models that must agree that nothing is to be expected any more
    SPREAD_AMONG = 1000  # maximin over a sample: the extremes of the whole pool are its worst configurations

    def __init__(
        self,
        space: Pool | HasRows,
        *,
        seed: int = 0,
        budget: int | None = None,
        features: Features | None = None,
        priors: Sequence[Results] = (),
    ) -> None:
        if reason := absent():
            message = f"the Bayesian search needs scikit-optimize, which cannot be imported ({reason})"
            hint = "pip install scikit-optimize, or the search 'climb'"
            raise refuse(DeclarationError, "tune.skopt-missing", message, hint=hint)
        super().__init__(space, seed=seed, budget=budget, priors=priors)
        self.counts = {"initial": 0, "model": 0, "local": 0, "other": 0, "random": 0}
        self._elsewhere = Priors(self.pool, self.priors)
        if len(self._elsewhere):
            self.counts["elsewhere"] = 0
        self._initial = self.INITIAL if budget is None else max(2, min(self.INITIAL, budget // 3))
        self._pending: list[int] = []
        self._steps = 0
        self._model: Model | None = None
        self._was_led = False
        features = features or self.pool.features
        if features is None and self.pool.expected_s is not None:
            features = self._expected
        points = [Points(self.pool, features), Points(self.pool)] if features else [Points(self.pool)]
        # alternate between using and ignoring what may mislead: features, and what is known from elsewhere
        known = (True, False) if len(self._elsewhere) else (False,)
        self._views = [(p, with_trend) for with_trend in known for p in points]
        self._hyper: dict[tuple[bool, int], Hyper] = {}
        self._unaided = [Points(self.pool, self.pool.features), Points(self.pool)][self.pool.features is None :]
        self._fits = self._doubts = self._followed = 0
        self._test_at = self.TESTED  # results with which the space's model is tested next
        self._gains: deque[float] = deque(maxlen=self.VIEWS)
        self._missing: str | None = None  # why there is no model; None until somebody has looked

    def load(self) -> bool:
        """Import scikit-optimize unless done, which may take seconds; True if it is available.

        Without it, the search continues by hill climbing, after one warning.
        """
        if self._missing is None:
            self._missing = missing()
            if self._missing:
                message = f"scikit-optimize cannot be imported ({self._missing}); searching without a model"
                warnings.warn(message, stacklevel=2)
        return not self._missing

    @property
    def expected_gain(self) -> float | None:
        """Improvement of the best time that the next trial is expected to bring, in log seconds (0.01: 1 %): the
        greatest expectation of the last ``VIEWS`` proposals by a model; None before as many.
        """
        return max(self._gains) if len(self._gains) == self.VIEWS else None

    def tell(self, row: int, seconds: float | None) -> None:
        """Record the time of a row, None if it failed; a second call replaces the first."""
        super().tell(row, seconds)
        if row in self._pending:
            self._pending.remove(row)

    def forget(self, row: int) -> None:
        """Mark a proposed row as unmeasured, so that it may be proposed again."""
        super().forget(row)
        if row in self._pending:
            self._pending.remove(row)

    def _expected(self, config: Config) -> list[float]:
        assert self.pool.expected_s is not None
        return [math.log(max(self.pool.expected_s(config), 1e-12))]

    def _next(self) -> int:
        row, kind = self._propose()
        self.counts[kind] += 1
        self._pending.append(row)
        return row

    def _propose(self) -> tuple[int, str]:
        ok = sum(t is not None for t in self.results.values())
        known = len(self.results) + len(self._pending)
        if known < min(self.ELSEWHERE, self._initial) and len(self._elsewhere) and self.load():
            turn = self.counts["elsewhere"]
            return self._elsewhere.start(turn, np.flatnonzero(self._seen), self._some_unseen()), "elsewhere"
        led = self._led()
        if led and (row := self._ordered(known)) is not None:
            return row, "initial"
        if not led and known - self._followed < self._initial:
            return self._spread(), "initial"
        few = 1 if led else max(2, min(5, self._initial // 2) if known < 2 * self._initial else 2)
        if ok < few:  # most of the spread-out start failed: its extremes are what fails, so look elsewhere
            return self._random_unseen(), "initial"
        self._steps += 1
        modelled = self.load()
        if (self._steps % self.LOCAL_EVERY == 0 or not modelled) and (row := self._local()) is not None:
            return row, "local"
        aside = self._steps % self.LOCAL_EVERY == self.OTHER_SIDE_AT and not led and self._stuck()
        if aside and modelled and (row := self._other_side()) is not None:
            return row, "other"
        return self._improving() if modelled else (self._random_unseen(), "initial")

    def _led(self) -> bool:
        """True if the space's model leads the search: it distinguishes rows and is not contradicted."""
        return self._guide is not None and self._guide.agrees and not self._guide.blind

    def _ordered(self, known: int) -> int | None:
        """For the first trials, the unseen row that the space's model predicts to be fastest; later None, or now and
        then a random row to test the model.

        known: number of results so far
        """
        assert self._guide is not None
        if known < self.LED:
            row = self._guide.distinct(self._seen, self._rng)
            self._followed += row is not None
            return row
        if known < self._test_at:
            return None
        self._test_at = 2 * known
        return int(self._rng.choice(self._hopeful(np.flatnonzero(~self._seen))))

    def _spread(self) -> int:
        """The unseen row farthest from all seen ones (maximin; Johnson, Moore, Ylvisaker 1990); a random one if knobs
        are conditional.

        With conditional knobs, a branch with few knobs has as many extremes as one with many, and maximin would settle
        in it (60 landscapes of three branches: the best branch's optimum was found within 50 trials by 26 searches with
        random starts, and by 16 with maximin).
        """
        unseen = self._hopeful(np.flatnonzero(~self._seen))
        if self._left == len(self.pool) or self.pool.conditional:
            return int(self._rng.choice(unseen))
        if len(unseen) > self.SPREAD_AMONG:
            unseen = self._rng.choice(unseen, self.SPREAD_AMONG, replace=False)
        here, seen = self.pool.points(unseen), self.pool.points(np.flatnonzero(self._seen))
        nearest = ((here[:, None, :] - seen[None]) ** 2).sum(axis=2).min(axis=1)
        return int(unseen[np.argmax(nearest)])

    def _local(self) -> int | None:
        for best in self._fastest(self.LOCAL_AROUND):
            near = self._neighbours(best)
            near = self._hopeful(near[~self._seen[near]])
            if len(near):
                chance = np.ones(len(near)) if self._model is None else self._model.chances(self.results, near)
                return int(self._rng.choice(near, p=chance / chance.sum()))
        return None

    def _stuck(self) -> bool:
        """True if the best row is among the first ``STALE`` of the results."""
        best = self._fastest(1)[0]
        return list(self.results).index(best) < self.STALE * len(self.results)

    def _other_side(self) -> int | None:
        """The row of greatest expected improvement on the fastest row of the other side: without the best row's value
        of one switch, drawn at random; None without switches or rows there.

        What a switch turns on or off may be tuned well where other knobs are far from where the best row has them, and
        one process over both sides takes what it learnt of knobs where they mean nothing for true where they matter. So
        now and then a side is searched for its own sake (of 30 searches of 100 trials on three recorded convolutions, 7
        ended more than 5 % from the optimum without this and 3 with it).
        """
        if not len(self.pool.switches):
            return None
        knob = int(self._rng.choice(self.pool.switches))
        rows = self.pool.rows
        with one_thread():
            model = self._current()
            value = rows[self._fastest(1)[0], knob]
            free = self._free(model)
            free = free[rows[model.candidates[free], knob] != value]
            rivals = [row for row in measured(self.results) if rows[row, knob] != value]
            if not len(free) or not rivals:
                return int(model.candidates[self._rng.choice(free)]) if len(free) else None
            gain, chance = model.improvement(self.results, self._pending, free, rivals)
        likely = gain * chance
        return int(model.candidates[free[self._rng.choice(np.flatnonzero(likely >= likely.max()))]])

    def _free(self, model: Model) -> Ints:
        """Positions of the model's unseen candidates, of hopeful ones if there are any."""
        free = np.flatnonzero(~self._seen[model.candidates])
        hopeful = np.isin(model.candidates[free], self._hopeful(model.candidates[free]))
        return free[hopeful] if hopeful.any() else free

    def _improving(self) -> tuple[int, str]:
        """(row of greatest expected improvement, reason), ties at random.

        Where next to nothing is expected it is a random row every other time: a model that is sure of its valley knows
        of no other, but may be wrong about how flat it is.
        """
        with one_thread():
            model = self._current()
            free = self._free(model)
            ran = sum(t is not None for t in self.results.values())
            if len(free) > DRAWN_ROWS and ran < min(FEW_RESULTS, len(self.results) / 2):
                free = self._rng.choice(free, DRAWN_ROWS, replace=False)
            gain, chance = model.improvement(self.results, self._pending, free)
            likely = gain * chance
            self._gains.append(float(likely.max()))
            if likely.max() < LEAST_GAIN * chance.max():
                self._doubts += 1
                if self._doubts % 2 == 0:
                    return self._anywhere(model), "random"
                likely = np.where(
                    chance >= LIKELY_SHARE * chance.max(), gain, 0.0
                )  # what little there is, where it may run
        return int(model.candidates[free[self._rng.choice(np.flatnonzero(likely >= likely.max()))]]), "model"

    def _anywhere(self, model: Model) -> int:
        """A random unseen row, weighted by its predicted probability to run."""
        rows = self._some_unseen()
        chance = model.chances(self.results, rows)
        return int(self._rng.choice(rows, p=chance / chance.sum()))

    def _current(self) -> Model:
        model, led = self._model, self._led()
        # fits cost the cube of the number of results; from 50 on they become rarer
        more = max(self.REFIT_EVERY, model.fitted // 10) if model is not None else 0
        if led and len(self.results) <= self.REFIT_EVERY:
            more = 1
        current = model is not None and self._was_led == led and len(self.results) < model.fitted + more
        if model is not None and current and not self._seen[model.candidates].all():
            return model
        # also a model that agrees may mislead in the end: every other fit of many results goes without it
        lead = led and (len(self.results) <= HEDGED_FROM or self._fits % 2 == 0)
        turn = self._fits // (2 if led else 1) % (len(self._unaided) if lead else len(self._views))
        self._fits += 1
        trend: Trend | None
        if lead:
            assert self._guide is not None
            points, trend = self._unaided[turn], self._guide.trend(self.results)
        else:
            points, with_trend = self._views[turn]
            trend = self._elsewhere.trend(self.results) if with_trend else None
        if (lead, turn) not in self._hyper:
            self._hyper[lead, turn] = Hyper(points([self._fastest(1)[0]]).shape[1])
        hyper = self._hyper[lead, turn]
        kind = Guided if lead else Model
        self._model, self._was_led = kind(self.pool, points, self._candidates(), hyper, self.results, trend), led
        if len(self._model.candidates) < len(self.pool):
            self._climb(self._model)
        return self._model

    def _climb(self, model: Model) -> None:
        """Make the neighbours of a model's most promising candidates its candidates too.

        A sample of one row in ten has none of the best rows' neighbours but by chance, and what the model expects
        of a row it expects of some of its neighbours.
        """
        for _ in range(CLIMBS):
            free = self._free(model)
            if not len(free):
                return
            gain, chance = model.improvement(self.results, self._pending, free)
            top = free[np.argsort(-gain * chance, kind="stable")[:CLIMBED_FROM]]
            near = np.unique(np.concatenate([self._neighbours(int(row)) for row in model.candidates[top]]))
            near = self._hopeful(near[~self._seen[near]])
            model.consider(near[~np.isin(near, model.candidates)])

    def _candidates(self) -> Ints:
        """Rows that the model evaluates: the whole pool, or a subset in large pools with many results."""
        most = min(self.CANDIDATES, max(LEAST_CANDIDATES, MAX_MODEL_WORK // max(1, len(self.results))))
        if len(self.pool) <= most and not self.pool.partial:
            return np.arange(len(self.pool))
        fastest = self._fastest(self.LOCAL_AROUND)
        near = np.concatenate([self._neighbours(row, pairs=MAX_TWO_KNOB_CHANGES) for row in fastest] or [np.arange(0)])
        near = np.concatenate([near, np.arange(len(self.pool) - self.pool.added, len(self.pool))[-most // 2 :]])
        near = np.unique(near[~self._seen[near]])
        return np.unique(np.concatenate([self._some_unseen(max(1, most - len(near))), near]))

    def _some_unseen(self, most: int | None = None) -> Ints:
        most = self.CANDIDATES if most is None else most
        unseen = self._hopeful(np.flatnonzero(~self._seen))
        return unseen if len(unseen) <= most else self._rng.choice(unseen, most, replace=False)


# What measurements elsewhere say about a pool: earlier logs of other devices and shapes, as a hedged prior.

LEAST_ROWS = 8
"""Successes below which a table is ignored."""
MOST_ROWS = 150
"""Maximum entries of a table that are used: more would be surer than devices are alike."""
FASTEST_ROWS = 10
"""Number of these that are the fastest; the others are random."""
SHORTLIST_SHARE = 0.004
"""Share of the candidates, the best predicted ones (ten at least), from which a start takes a distant row."""
AGREEMENT_ROWS = 8
"""Measured rows from which on tables weigh by their correlation with them."""
LEAST_CORRELATION = 0.2
"""Correlation of expected and measured times below which a table has no weight."""
SAME_SPREAD = 4.0
"""Prior weight, in results, of the assumption that times spread here as they do elsewhere."""
AT_ONCE = 20_000
"""Rows evaluated per batch; a pool of at most so many is evaluated once, a larger one on request."""


class Expectation:
    """Predicted times of any row from one table of times, in units comparable between tables (lower is faster).

    Mean of a Gaussian process fitted to ``MOST_ROWS`` of the times (``model.response``), centred and scaled; smoothed
    for measured rows as well, since deviations may not recur on this device.

    table: {row: seconds, None if failed} from another device or shape
    """

    def __init__(self, pool: Pool, table: Results) -> None:
        table = some_of(table)
        y = standard(response(list(table.values())))
        self._pool, self._points = pool, pool.points(list(table))
        self._kernel, noise = Hyperparameters(self._points.shape[1]).fit(self._points, y)
        covariance = self._kernel(self._points) + noise * np.eye(len(y))
        self._weights = np.linalg.solve(covariance, y)
        self._all = self._at(np.arange(len(pool))) if len(pool) <= AT_ONCE else None

    def __call__(self, rows: npt.ArrayLike) -> Floats:
        some = np.asarray(rows, dtype=np.int64)
        if self._all is None or len(self._all) < len(self._pool):  # the pool is large, or has got rows since
            return self._at(some)
        found: Floats = self._all[some]
        return found

    def _at(self, rows: Ints) -> Floats:
        out = np.empty(len(rows))
        for low in range(0, len(rows), AT_ONCE):
            part = rows[low : low + AT_ONCE]
            out[low : low + AT_ONCE] = self._kernel(self._pool.points(part), self._points) @ self._weights
        return out


def some_of(table: Results) -> Results:
    """The table itself up to ``MOST_ROWS`` entries, else that many: the ``FASTEST_ROWS`` fastest, and others drawn with
    a fixed seed.
    """
    if len(table) <= MOST_ROWS:
        return table
    ranked = sorted(table, key=lambda row: (table[row] is None, table[row] or 0.0, row))
    others = np.random.default_rng(0).choice(ranked[FASTEST_ROWS:], MOST_ROWS - FASTEST_ROWS, replace=False)
    return {row: table[row] for row in [*ranked[:FASTEST_ROWS], *map(int, others)]}


class Priors:
    """Predicted times of a pool's rows from tables {row: seconds, None if failed}; those with fewer than ``LEAST_ROWS``
    times are ignored. Its length is the number of tables that are used.
    """

    def __init__(self, pool: Pool, tables: Sequence[Results]) -> None:
        self.pool = pool
        self._usable = [t for t in tables if sum(s is not None for s in t.values()) >= LEAST_ROWS]

    @cached_property
    def expected(self) -> list[Expectation]:
        """One Expectation per table, fitted on first use (imports scikit-optimize)."""
        with one_thread():
            return [Expectation(self.pool, table) for table in self._usable]

    def __len__(self) -> int:
        return len(self._usable)

    def start(self, turn: int, seen: Ints, allowed: Ints) -> int:
        """A row to measure early: the best of each table in round-robin order, then one of the best that differs from
        those seen.

        turn:    number of rows proposed this way
        seen:    all rows proposed so far
        allowed: candidate rows, at least one
        """
        each = np.stack([expected(allowed) for expected in self.expected])
        table = turn % (len(self) + 1)
        if table < len(self):
            return int(allowed[np.argmin(each[table])])
        mean = each.mean(axis=0)
        count = min(len(allowed), max(10, round(SHORTLIST_SHARE * len(allowed))))
        short = allowed[np.argpartition(mean, count - 1)[:count]]
        here, there = self.pool.points(short), self.pool.points(seen)
        nearest = ((here[:, None, :] - there[None]) ** 2).sum(axis=2).min(axis=1)
        return int(short[np.argmax(nearest)])

    def trend(self, results: Results) -> Trend | None:
        """Function from rows to predicted ``response(results)``; None if no table correlates with the results.

        A mean over tables, weighted by squared correlation, scaled to the results.
        """
        timed = measured(results)
        if not len(self) or len(timed) < 2:
            return None
        rows = np.fromiter(timed, dtype=np.int64)
        y = response(list(timed.values()))
        weights = np.ones(len(self))
        if len(rows) >= AGREEMENT_ROWS:
            agreement = np.array([_agreement(expected(rows), y) for expected in self.expected])
            weights = np.where(agreement >= LEAST_CORRELATION, agreement**2, 0.0)
        if not weights.any():
            return None

        def base(some: npt.ArrayLike) -> Floats:
            return np.asarray(np.average([e(some) for e in self.expected], axis=0, weights=weights))

        there = base(rows)
        slope = _slope(there, y)
        offset = float(y.mean()) - slope * float(there.mean())
        return lambda some: slope * base(some) + offset


def _slope(expected: Floats, y: Floats) -> float:
    """Scale factor in [0, 2] that matches the spread of an expectation to the results ``y``."""
    spread, scale = float(expected.std()) or 1.0, float(y.std()) or 1.0
    together = float((expected - expected.mean()) @ (y - y.mean())) / (spread * scale)
    found = (together + SAME_SPREAD) / (len(y) + SAME_SPREAD)
    return min(2.0, max(0.0, found)) * scale / spread


def _agreement(expected: Floats, y: Floats) -> float:
    if expected.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.corrcoef(expected, y)[0, 1])


# --- by name

STRATEGIES: dict[str, type[PoolSearch]] = {
    "bayes": Bayes,
    "random": RandomSearch,
    "climb": Climber,
    "evolve": Evolution,
    "grid": GridSearch,
    "replay": Replay,
}


def make(
    name: str,
    space: Pool | HasRows,
    seed: int = 0,
    budget: int | None = None,
    priors: Sequence[Mapping[int, float | None]] = (),
) -> PoolSearch:
    """The strategy called ``name`` on ``space``; without scikit-optimize, "bayes" is the climber and a warning.

    Whether scikit-optimize can be imported shows when "bayes" first asks its model: importing it takes seconds.

    priors: seconds (None: failed) by row, as measured on other devices or for other shapes, one mapping for each
    budget: number of rows that will be asked for, None if unknown

    Raises DeclarationError ``tune.unknown-strategy``.
    """
    if not isinstance(name, str) or name not in STRATEGIES:
        near = nearest(str(name), STRATEGIES)
        hint = near[0] if near else f"one of {', '.join(STRATEGIES)}"
        raise refuse(DeclarationError, "tune.unknown-strategy", f"there is no search strategy {shown(name)}", hint=hint)
    if name == "bayes" and (reason := absent()):
        warnings.warn(
            f"scikit-optimize cannot be imported ({reason}); searching with 'climb' instead of 'bayes'", stacklevel=2
        )
        name = "climb"
    return STRATEGIES[name](space, seed=seed, budget=budget, priors=priors)


class Kept:
    """A strategy kept between time slices of a search and created at the first ``ask``.

    begin: function that creates the strategy; called once the number of trials is known
    """

    def __init__(self, begin: Callable[[], Strategy]) -> None:
        self._begin = begin
        self._inner: Strategy | None = None
        self._told: dict[int, float | None] = {}

    @property
    def begun(self) -> bool:
        """True once the strategy exists."""
        return self._inner is not None

    def ask(self, n: int = 1) -> list[int]:
        """Propose up to ``n`` unmeasured rows."""
        if self._inner is None:
            self._inner = self._begin()
            for row, seconds in self._told.items():
                self._inner.tell(row, seconds)
        return self._inner.ask(n)

    def tell(self, row: int, seconds: float | None) -> None:
        """Record the time of a row, None if it failed."""
        if row in self._told and self._told[row] == seconds:
            return
        self._told[row] = seconds
        if self._inner is not None:
            self._inner.tell(row, seconds)

    def take_over(self, times: Mapping[int, float | None]) -> None:
        """Record each row's time, {row: seconds, None if failed}."""
        for row, seconds in times.items():
            self.tell(row, seconds)

    def __getattr__(self, name: str) -> Any:
        """Attribute ``name`` of the strategy, such as ``counts``; raises AttributeError before it exists."""
        return getattr(self.__dict__.get("_inner"), name)


class Given:
    """A strategy that proposes a fixed list of rows."""

    def __init__(self, rows: list[int]) -> None:
        self._rows = rows

    def ask(self, n: int = 1) -> list[int]:
        """Remove and return the next ``n`` rows of the list, fewer at its end."""
        out, self._rows = self._rows[:n], self._rows[n:]
        return out

    def tell(self, row: int, seconds: float | None) -> None:
        """Remove ``row``, which has a result, from the list."""
        self._rows = [r for r in self._rows if r != row]
