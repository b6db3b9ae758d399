"""The search loop: what is measured, how often, in which order, and what is believed in the end."""

import json
from dataclasses import replace

import numpy as np
import pytest
from searching import search

from tensorir.tune.brief import reason_of
from tensorir.tune.budget import TIME_PARTS
from tensorir.tune.log import LogReader, LogWriter, RunIdentity, best
from tensorir.tune.outcome import without_default
from tensorir.tune.ranking import library
from tensorir.tune.space import Space
from tensorir.tune.store import LogError
from tensorir.tune.trial import FinalRound, Outcome

ME = RunIdentity("own n=8", "d1g357", {"name": "cpu", "platform": "x", "driver": "1"}, {"tensorir": "0.1.0"})


class Clock:
    """Time passes only when somebody measures."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Bench:
    """A measuring side whose times are a function of the configuration."""

    def __init__(self, time_of=lambda template, c: 1e-3 * (1 + abs(c["x"] - 7)), cost=1.0, clock=None):
        self.time_of, self.cost, self.clock = time_of, cost, clock or Clock()
        self.calls = []

    def __call__(self, template, config, kind, remaining):
        self.calls.append((template, config["x"], kind))
        self.clock.now += min(self.cost, remaining) if remaining is not None else self.cost
        if remaining is not None and remaining < self.cost:
            return {"status": "cancelled"}
        answer = self.time_of(template, config)
        if not isinstance(answer, float):
            return answer
        check = {"ok": True, "max_err": 0.0, "shapes": []}
        sha = f"{abs(hash((template, config['x']))):064x}"[:64]
        return {"status": "ok", "time_s": answer, "samples": [answer] * 3, "check": check, "source_sha256": sha}


class InOrder:
    """The rows as they come."""

    def __init__(self, name, space, seed=0, budget=None, priors=()):
        self.left, self.told = list(range(len(space.legal))), {}
        self.name, self.seed, self.budget = name, seed, budget

    def ask(self, n=1):
        out, self.left = self.left[:n], self.left[n:]
        return out

    def tell(self, row, seconds):
        self.told[row] = seconds
        if row in self.left:
            self.left.remove(row)


SPACE = Space(x=range(20), default={"x": 3})


def run(bench, spaces=None, strategy="order", make=InOrder, **options):
    options.setdefault("identity", ME)
    options.setdefault("clock", bench.clock)
    return search(strategy, spaces or {"a": SPACE}, bench, make=make, **options)


def final_of(bench, noise=None, baseline=None, seen=None, slower=()):
    """A final round that measures what the bench says, plus what ``noise`` says about single configurations.

    slower: the configurations whose race said so
    """

    def final(finalists, remaining):
        if seen is not None:
            seen.append(([r.config["x"] for r in finalists], remaining))
        results = []
        for record in finalists:
            change = (noise or {}).get(record.config["x"])
            if isinstance(change, str):
                results.append({"status": change})
            else:
                time_s = change or record.time_s
                samples = [time_s * 0.99, time_s, time_s * 1.01]
                race = {"standing": "slower" if record.config["x"] in slower else "tie"}
                results.append({"status": "ok", "time_s": time_s, "samples": samples, "race": race})
        return FinalRound(results, baseline)

    return final


def test_default_first_then_everything_once():
    bench = Bench()
    outcome = run(bench)
    assert bench.calls[0] == ("a", 3, "default") and {c[2] for c in bench.calls[1:]} == {"trial"}
    assert sorted(x for _, x, _ in bench.calls) == list(range(20))
    assert (outcome.status, outcome.stopped, outcome.trials, outcome.reused) == ("ok", "exhausted", 20, 0)
    assert outcome.best.config == {"x": 7} and outcome.default.time_s == pytest.approx(5e-3)
    assert outcome.counts == {"ok": 20} and outcome.space == {"configs": 20, "legal": 20}


def test_what_passes_first_stands_in_for_a_default_that_fails():
    """Peers are timed after it, and others beside it; until then nothing is built ahead."""
    bad = {"status": "wrong_result", "detail": "x_pad[2160] is read but was never written"}
    failing = {("a", 3), ("a", 0), ("b", 2)}
    spaces = {"a": SPACE, "b": Space(x=range(4), default={"x": 2})}
    bench = Bench(lambda t, c: bad if (t, c["x"]) in failing else 1e-3 * (2 + c["x"]))
    outcome = run(bench, spaces, trials=12, ahead=Together(bench.clock))
    kinds = [kind for *_, kind in bench.calls]
    passed = next(n for n, (t, x, _) in enumerate(bench.calls) if (t, x) not in failing)
    assert bench.calls[0] == ("a", 3, "default") and bench.calls[1] == ("b", 2, "default") and passed >= 2
    assert kinds == ["default"] * (passed + 1) + ["trial"] * (12 - passed - 1)
    assert outcome.status == "ok" and outcome.default.status == "wrong_result" and outcome.default.time_s is None
    assert without_default(outcome.default.record) == (
        "wrong_result: x_pad[2160] is read but was never written; the search continues with what passes"
    )


def test_document_is_the_pinned_one(tmp_path):
    bench = Bench()
    with LogWriter(tmp_path, ME.workload) as log:
        outcome = run(
            bench,
            trials=9,
            log=log,
            final=final_of(bench, baseline={"name": "blas", "time_s": 1e-3}),
            flops=1e6,
            strategy="bayes",
        )
    doc = json.loads(json.dumps(outcome.json()))
    assert doc["schema"] == 1 and doc["status"] == "ok" and doc["workload"] == ME.workload
    assert doc["device"] == {"name": "cpu", "platform": "x", "driver": "1"}
    assert doc["trials"] == sum(doc["counts"].values()) == 9 and doc["reused"] == 0
    assert doc["search"] == {"name": "bayes", "surrogate": None, "initial": 0, "model": 0, "local": 0}
    assert {k: doc["baseline"][k] for k in ("name", "time_s")} == {"name": "blas", "time_s": 1e-3}
    kept = [r for r in LogReader(tmp_path).records() if r.baseline]
    assert len(kept) == 1 and kept[0].kind == "final", "once a round"
    (choice,) = best(LogReader(tmp_path))
    peer, ratio = library(kept, choice)
    assert peer["name"] == "blas" and choice.record.id == doc["best"]["trial"]
    assert ratio == outcome.ratio, "what the log says afterwards is what the run said"
    assert doc["log"] == str(log.path) and doc["elapsed_s"] == 9.0
    assert list(doc["seconds"]) == list(TIME_PARTS) and sum(doc["seconds"].values()) == doc["elapsed_s"]
    assert doc["seconds"]["trials"] == 9.0
    assert doc["estimator"] == "paired-slots" and doc["baseline"]["steady"] is True and doc["machine"]["busy"] is False
    assert doc["baseline"]["ratio"] == pytest.approx(1e-3 / doc["best"]["time_s"])


def test_best_and_default_have_times_that_compare():
    """The same configuration has one time; a default that was not in the final round, that of its trial on the level
    of the best's final one.
    """
    bench = Bench(lambda t, c: 1e-3 * (1 + c["x"]))
    space = {"a": Space(x=range(3), default={"x": 0})}
    same = run(bench, spaces=space, final=final_of(bench, noise={0: 5e-3, 1: 6e-3, 2: 7e-3}))
    assert same.best.config == same.default.config == {"x": 0}
    assert (same.best.time_s, same.best.span) == (same.default.time_s, same.default.span)
    assert same.gain.value == 1.0 and same.gain.steady

    other = {"a": Space(x=range(3), default={"x": 1})}
    late = run(bench, spaces=other, final=final_of(bench, noise={0: 5e-3, 1: "cancelled", 2: 7e-3}))
    assert late.best.config == {"x": 0} and not late.default.confirmed
    assert late.best.time_s == 5e-3 and late.default.time_s == pytest.approx(10e-3)
    assert late.gain.value == pytest.approx(2.0) and late.json()["default"]["ratio"] == late.gain.value


def test_what_the_machine_did_is_said():
    quiet, busy = ({"seconds": 1.0, "others": x, "stolen": 0.0, "cores": 2} for x in (0.01, 1.5))

    def outcome(trials, final):
        timed = {"status": "ok", "time_s": 1e-3, "samples": [1e-3] * 3, "check": {"ok": True}, "load": trials}
        bench = Bench(lambda t, c: timed)
        measured = final_of(bench, baseline={"name": "blas", "time_s": 2e-3})
        return run(bench, trials=3, final=lambda *given: replace(measured(*given), load=final))

    at_rest = outcome(quiet, quiet)
    assert at_rest.machine.words() == "" and at_rest.ratio.steady and not at_rest.json()["machine"]["busy"]
    disturbed = outcome(quiet, busy)
    assert "other programs used" in disturbed.machine.words() and not disturbed.ratio.steady
    assert disturbed.json()["baseline"]["steady"] is False and disturbed.json()["machine"]["busy"]
    assert outcome(busy, quiet).ratio.steady, "the final round decides"
    on_gpu = replace(disturbed, identity=replace(ME, device={**ME.device, "kind": "gpu"}))
    assert on_gpu.ratio.steady, "what others do on the processor is nothing to it"


def test_trials_are_in_total_and_nothing_is_measured_twice(tmp_path):
    first = Bench()
    with LogWriter(tmp_path, ME.workload) as log:
        run(first, trials=6, log=log)
    earlier = list(LogReader(tmp_path).records())
    second = Bench()
    outcome = run(second, trials=9, reuse=earlier)
    assert outcome.reused == 6 and outcome.trials == 3 and len(second.calls) == 3
    assert not {x for _, x, _ in first.calls} & {x for _, x, _ in second.calls}
    assert outcome.default.time_s == pytest.approx(5e-3) and len(outcome.records) == 9
    third = Bench()
    outcome = run(third, trials=6, reuse=earlier, final=final_of(third))
    assert not third.calls and outcome.status == "ok" and outcome.stopped == "trials" and outcome.best.confirmed


def test_only_usable_records_are_reused(tmp_path):
    bench = Bench()
    records = list(run(bench, trials=4).records)
    foreign = RunIdentity(ME.workload, "other", ME.device, ME.versions)
    ok = {key: getattr(records[0], key) for key in ("status", "time_s", "samples", "check")}
    strange = [
        foreign.record("trial", "a", {"x": 10}, ok),
        ME.record("trial", "gone", {"x": 11}, ok),
        ME.record("trial", "a", {"x": 999}, ok),
        ME.record("trial", "a", {"y": 1}, ok),
        ME.record("trial", "a", {"x": 12}, {"status": "internal_error"}),
        ME.record("trial", "a", {"x": 13}, {"status": "device_lost"}),
        ME.record("final", "a", {"x": 14}, ok),
    ]
    outcome = run(Bench(), reuse=[*records, *records, *strange], trials=5)
    assert outcome.reused == 4 and outcome.trials == 1


def test_strategies_hear_about_earlier_and_failed_trials():
    arms = []

    def make(*args, **kwargs):
        arms.append(InOrder(*args, **kwargs))
        return arms[-1]

    slow = {"status": "skipped_slow", "detail": {"at_least_s": 0.5}}
    no_time = {"status": "skipped_slow", "detail": {"at_least_s": 0.0}}
    met = {0: {"status": "crashed"}, 1: slow, 2: {"status": "skipped_slow"}, 4: no_time}
    records = run(Bench(lambda t, c: met.get(c["x"], 1e-3)), trials=6, make=make, seed=7).records
    assert arms[0].told == {3: 1e-3, 0: None, 1: 0.5, 2: None, 4: None, 5: 1e-3}
    assert (arms[0].seed, arms[0].budget) == (7, 6)
    run(Bench(), trials=6, make=make, reuse=records)
    assert arms[1].told == arms[0].told


def test_times_are_compared_as_if_the_machine_kept_its_pace():
    """It is twice as slow in every other trial, and says so."""
    made, seen, bench = [], [], Bench()

    def measure(template, config, kind, remaining):
        drift = 1.0 + len(bench.calls) % 2
        result = bench(template, config, kind, remaining)
        samples = [result["time_s"] * drift] * 3
        return {**result, "samples": samples, "low_s": 1e-9, "high_s": 1.0, "drift": drift}

    def make(*args, **options):
        made.append(InOrder(*args, **options))
        return made[-1]

    measure.clock = bench.clock
    final = final_of(bench, noise={6: 2e-3, 7: 1e-3, 8: 2e-3}, seen=seen)
    outcome = run(measure, make=make, final=final, top=3)
    assert made[0].told == {x: pytest.approx(1e-3 * (1 + abs(x - 7))) for x in range(20)}
    assert sorted(seen[0][0]) == [3, 6, 7, 8] and outcome.best.config == {"x": 7}
    assert {r.drift for r in outcome.records} == {1.0, 2.0} and outcome.machine.pace == (1.0, 2.0)
    assert "pace went from 1.00 to 2.00" in outcome.machine.words()


def test_log_comes_before_strategy_and_callback():
    order = []

    class Log:
        path = "x"

        def append(self, record):
            order.append(("log", record.config["x"]))

    class Told(InOrder):
        def tell(self, row, seconds):
            super().tell(row, seconds)
            order.append(("tell", row))

    run(Bench(), trials=2, log=Log(), make=Told, on_trial=lambda r: order.append(("seen", r.config["x"])))
    assert order == [(what, x) for x in (3, 0) for what in ("log", "tell", "seen")]


class TestBudget:
    def test_asking_stops_when_another_trial_would_not_fit(self):
        bench = Bench(cost=3.0)
        outcome = run(bench, budget_s=20)
        assert outcome.stopped == "budget" and outcome.trials == 6 and outcome.elapsed_s <= 20

    def test_final_round_fits_too(self):
        bench, seen = Bench(cost=1.0), []
        outcome = run(bench, budget_s=20, final=final_of(bench, seen=seen))
        assert outcome.stopped == "budget" and 10 <= outcome.trials <= 15
        assert seen[0][1] >= 5.0, "a quarter of the budget is kept"

    def test_counts_from_process_start(self):
        bench = Bench(cost=1.0)
        outcome = run(bench, budget_s=20, started=bench.clock.now - 15)
        assert outcome.trials == 4 and outcome.elapsed_s == 19.0

    def test_trial_in_flight_is_cancelled_and_forgotten(self, tmp_path):
        bench = Bench(cost=1.0)

        def slow(template, config, kind, remaining):
            bench.cost = 50.0 if len(bench.calls) == 4 else 1.0
            return bench(template, config, kind, remaining)

        with LogWriter(tmp_path, ME.workload) as log:
            outcome = search(
                "order", {"a": SPACE}, slow, identity=ME, budget_s=20, clock=bench.clock, make=InOrder, log=log
            )
        assert outcome.stopped == "budget" and outcome.elapsed_s <= 20 and outcome.counts == {"ok": 4}
        assert len(list(LogReader(tmp_path).records())) == 4

    def test_default_alone_too_slow(self):
        outcome = run(Bench(cost=100.0), budget_s=20)
        assert (outcome.status, outcome.stopped, outcome.best, outcome.default) == (
            "not_tried",
            "budget",
            None,
            None,
        )
        assert outcome.json()["default"]["time_s"] is None and outcome.json()["best"] is None

    def test_a_search_that_tried_none_says_so(self):
        outcome = run(Bench(cost=100.0), budget_s=20)
        assert outcome.why == "the 20 s of the budget ended before the first trial did" and outcome.reasons == ()

    def test_why_a_part_of_the_budget_is_left(self):
        bench = Bench(cost=20.0)
        outcome = run(bench, budget_s=60, final=final_of(bench))
        assert outcome.stopped == "budget" and outcome.trials == 1 and outcome.json()["unspent_s"] == 40.0
        assert outcome.why == "40 s left, of which 15 s are kept for the final round: another trial takes some 20 s"
        assert run(Bench(cost=1.0), budget_s=20).why == "", "next to nothing is left"

    def test_something_is_measured_even_so(self):
        assert run(Bench(cost=0.0), trials=1, budget_s=1e-9).trials == 1


class TestStopping:
    def test_interrupt_keeps_the_best_so_far(self):
        bench, seen = Bench(), []

        def interrupted(*args):
            if len(bench.calls) == 9:
                raise KeyboardInterrupt
            return bench(*args)

        outcome = search(
            "o",
            {"a": SPACE},
            interrupted,
            identity=ME,
            make=InOrder,
            clock=bench.clock,
            final=final_of(bench, seen=seen),
        )
        assert (
            outcome.status == outcome.stopped == "interrupted"
            and outcome.best.config == {"x": 7}
            and outcome.trials == 9
        )
        assert not seen and outcome.best.checked and not outcome.best.confirmed

    def test_interrupt_in_the_final_round(self):
        def final(*_):
            raise KeyboardInterrupt

        outcome = run(Bench(), final=final)
        assert outcome.status == "interrupted" and outcome.best.config == {"x": 7}

    def test_interrupt_before_anything(self):
        def measure(*_):
            raise KeyboardInterrupt

        outcome = search("o", {"a": SPACE}, measure, identity=ME, make=InOrder)
        assert outcome.status == "interrupted" and outcome.best is None and outcome.trials == 0

    def test_a_cancelled_row_may_be_asked_for_again(self):
        forgotten = []

        class Forgetting(InOrder):
            def forget(self, row):
                forgotten.append(row)

        run(Bench(lambda t, c: {"status": "cancelled"} if c["x"] == 2 else 1e-3), make=Forgetting)
        assert forgotten == [2]

    def test_without_defaults_only_what_the_strategy_wants(self):
        bench = Bench()
        run(bench, trials=2, defaults=False)
        assert [x for _, x, _ in bench.calls] == [0, 1]

    def test_patience_and_stop(self):
        assert run(Bench(), patience=5).trials == 13  # 3, 0..2, 4..7 (the best), then five without a gain
        asked = []
        assert run(Bench(), stop=lambda: len(asked) > 3 or asked.append(1)).stopped == "stop"

    def test_a_search_that_expects_little_ends(self):
        class Expecting(InOrder):
            @property
            def expected_gain(self):
                return None if len(self.told) < 4 else 0.5 / len(self.told)

        assert run(Bench(), make=Expecting, least_gain=0.05).stopped == "gain"
        assert run(Bench(), make=Expecting, least_gain=0.05).trials == 11
        assert run(Bench(), make=Expecting, least_gain=0.0).stopped == "exhausted"
        assert run(Bench(), least_gain=0.05).stopped == "exhausted"  # that strategy expects nothing

    def test_what_another_template_expects_must_beat_the_best_of_all(self):
        class Expecting(InOrder):
            expected_gain = 0.1

        far = Bench(lambda template, c: 1e-3 if template == "a" else 1.2e-3)
        both = {"a": Space(x=[1, 2]), "b": Space(x=[1, 2, 3, 4, 5, 6])}
        # once a is exhausted, 10 % better than 1.2 times the best is no gain
        outcome = run(far, make=Expecting, least_gain=0.05, spaces=both)
        assert outcome.stopped == "gain" and outcome.trials < 8

    def test_device_lost_ends_the_run(self):
        bench = Bench(lambda t, c: {"status": "device_lost"} if c["x"] == 2 else 1e-3)
        outcome = run(bench, final=lambda *_: pytest.fail("there is no device"))
        assert (
            outcome.stopped == "device_lost"
            and outcome.status == "ok"
            and outcome.counts == {"ok": 3, "device_lost": 1}
        )

    def test_full_disk_ends_after_the_trial(self):
        from tensorir.errors import refuse

        class Full:
            path = "x"

            def append(self, record):
                if record.config["x"] == 1:
                    raise refuse(LogError, "log.full", "no room")

        outcome = run(Bench(), log=Full(), final=lambda *_: pytest.fail("not now"))
        assert (
            outcome.stopped == "log"
            and outcome.error.code == "log.full"
            and outcome.trials == 3
            and outcome.best is not None
        )

    def test_all_fail_with_grouped_reasons(self):
        def failing(template, c):
            if c["x"] % 2:
                return {"status": "crashed", "detail": {"phase": "run", "signal": "SIGSEGV", "output": "…"}}
            return {"status": "resource_limit", "detail": {"limit": "smem"}}

        outcome = run(Bench(failing), trials=7, final=lambda *_: pytest.fail("nothing to confirm"))
        assert outcome.status == "no_valid_config" and outcome.best is None and outcome.default.status == "crashed"
        assert [(r["reason"], r["count"]) for r in outcome.reasons] == [
            ("resource_limit: smem", 4),
            ("crashed: SIGSEGV", 3),
        ]
        assert outcome.reasons[0]["trial"] in {r.id for r in outcome.records}

    def test_where_the_final_round_leaves_nothing_its_reasons_are_told(self):
        bench = Bench()
        noise = dict.fromkeys(range(20), "device_error")
        outcome = run(bench, trials=3, final=final_of(bench, noise=noise))
        assert outcome.status == "no_valid_config" and outcome.best is None
        assert [(r["reason"], r["count"]) for r in outcome.reasons] == [("device_error", 3)]
        assert outcome.reasons[0]["trial"] in {r.id for r in outcome.records}, "a trial that repro knows"
        outcome = run(bench, trials=3, final=final_of(bench, noise={0: "device_error"}))
        assert outcome.best is not None and outcome.reasons == ()

    def test_bad_measurement_is_our_error_not_a_crash(self):
        outcome = run(Bench(lambda t, c: {"status": "fine"}), trials=2)
        assert outcome.counts == {"internal_error": 2} and "fine" in str(outcome.records[0].detail)

    def test_strategy_that_repeats_itself(self):
        class Stuck(InOrder):
            def ask(self, n=1):
                return [3]

        outcome = run(Bench(), make=Stuck)
        assert outcome.trials == 1 and outcome.stopped == "exhausted"


class TestFinalRound:
    def test_finalists_are_distinct_sources_and_the_default(self):
        def measure(template, c):
            time_s = 1e-3 * (1 + abs(c["x"] - 7))
            twin = 7 if c["x"] in (6, 8) else c["x"]
            sha = f"{twin:064x}"
            return {"status": "ok", "time_s": time_s, "samples": [time_s], "check": {"ok": True}, "source_sha256": sha}

        seen = []
        bench = Bench(measure)
        run(bench, final=final_of(bench, seen=seen), top=3)
        assert seen[0][0][0] == 7 and set(seen[0][0][1:3]) == {5, 9} and seen[0][0][3:] == [3]

    def test_winner_is_the_confirmed_one(self):
        bench = Bench()
        outcome = run(bench, final=final_of(bench, noise={7: 2.1e-3, 8: 1.5e-3}, slower=(3, 5, 6, 7, 9)))
        assert outcome.best.config == {"x": 8} and outcome.best.time_s == 1.5e-3 and outcome.best.confirmed
        assert outcome.default.confirmed and outcome.ties == ()

    def test_records_name_their_round(self, tmp_path):
        bench = Bench()
        for _ in range(2):
            with LogWriter(tmp_path, ME.workload) as writer:
                run(bench, final=final_of(bench), log=writer, reuse=list(LogReader(tmp_path).records()))
        names = [r.round for r in LogReader(tmp_path).records(kind="final")]
        assert len(set(names)) == 2 and names == sorted(names, key=names.index)
        assert not any(r.round for r in LogReader(tmp_path).records(kind="trial"))

    def test_ties_are_called_ties(self):
        bench = Bench()
        slower = (3, 5, 6, 9)
        outcome = run(bench, final=final_of(bench, noise={7: 1.500e-3, 8: 1.501e-3}, slower=slower))
        assert outcome.best.config == {"x": 7} and [t.config for t in outcome.ties] == [{"x": 8}]
        assert outcome.json()["ties"] == [outcome.ties[0].trial]

    def test_who_is_far_behind_is_no_tie_in_a_race_that_was_cut_short(self):
        bench = Bench()
        plain = final_of(bench)

        def final(finalists, remaining):
            found = plain(finalists, remaining)
            races = {7: {"standing": "best"}, 8: {"standing": "tie", "low": 0.98}, 6: {"standing": "tie", "low": 1.9}}
            for record, result in zip(finalists, found.results, strict=True):
                result["race"] = races.get(record.config["x"])
            return found

        outcome = run(bench, final=final, top=4)
        assert [t.config for t in outcome.ties] == [{"x": 8}]

    def test_what_was_found_slower_does_not_win_by_its_seconds(self):
        bench = Bench()
        outcome = run(bench, final=final_of(bench, noise={7: 1e-3, 8: 1e-3}, slower=(3, 5, 6, 7, 9)))
        assert outcome.best.config == {"x": 8}

    def test_finalist_found_wrong_is_never_returned(self, tmp_path):
        bench = Bench()
        with LogWriter(tmp_path, ME.workload) as log:
            outcome = run(bench, final=final_of(bench, noise={7: "wrong_result"}), log=log)
        assert outcome.best.config in ({"x": 6}, {"x": 8})
        again = run(Bench(), reuse=list(LogReader(tmp_path).records()), trials=20)
        assert again.reused == 20 and again.best.config == outcome.best.config, "nor by a later run"

    def test_when_all_finalists_fail_the_next_ones_are_tried(self):
        bench, seen = Bench(), []
        noise = dict.fromkeys(range(5, 10), "crashed")
        outcome = run(bench, final=final_of(bench, noise=noise | {3: "crashed"}, seen=seen))
        assert len(seen) == 2 and not set(seen[0][0]) & set(seen[1][0])
        assert outcome.best.config in ({"x": 4}, {"x": 10})

    def test_no_time_left(self):
        bench = Bench()

        def final(finalists, remaining):
            return FinalRound([{"status": "cancelled"}] * len(finalists))

        outcome = run(bench, final=final)
        assert outcome.best.config == {"x": 7} and not outcome.best.confirmed and outcome.finalists == ()


class TestTemplates:
    def test_every_default_then_the_promising(self):
        bench = Bench(lambda t, c: 1e-3 if t == "good" else 5e-2)
        big = Space(x=range(100), default={"x": 3})
        spaces = {"bad": big, "good": big, "broken": big}
        slow = bench.time_of
        bench.time_of = lambda t, c: {"status": "compile_error"} if t == "broken" else slow(t, c)
        outcome = run(bench, spaces, trials=60)
        first = [call[:2] for call in bench.calls[:3]]
        assert first == [("bad", 3), ("good", 3), ("broken", 3)] and bench.calls[0][2] == "default"
        tried = [call[0] for call in bench.calls]
        assert tried.count("good") >= 45 and tried.count("bad") >= 3 and tried.count("broken") >= 3
        assert outcome.best.template == "good" and outcome.default.template == "bad"
        assert outcome.space == {"configs": 300, "legal": 300}

    def test_exhausted_template_leaves_the_others(self):
        spaces = {"a": Space(x=[3]), "b": Space(x=[1, 2])}
        assert run(Bench(), spaces).trials == 3


@pytest.mark.parametrize("name", ["random", "climb", "grid"])
def test_real_strategies_fit(name):
    space = Space(x=range(10), y=[1, 2, 4, 8], where={"even": lambda c: (c["x"] + c["y"]) % 2 == 0 or c["y"] == 1})
    bench = Bench()
    outcome = search(name, {"a": space}, bench, identity=ME, trials=12, clock=bench.clock, seed=3)
    assert outcome.trials == 12 and len({json.dumps(r.config) for r in outcome.records}) == 12
    assert outcome.space["configs"] == 40 and outcome.space["legal"] == len(space.legal)


def test_bayes_counts_are_reported():
    pytest.importorskip("skopt")
    bench = Bench()
    outcome = search("bayes", {"a": Space(x=range(40), y=range(4))}, bench, identity=ME, trials=20, clock=bench.clock)
    assert outcome.search["name"] == "bayes" and outcome.search["model"] > 0 and outcome.search["surrogate"]


def test_reasons_are_short():
    assert reason_of(Outcome(status="compile_error", detail="line one\nline two")) == "compile_error: line one"
    assert reason_of(Outcome(status="crashed", detail={"signal": "SIGABRT", "phase": "run"})) == "crashed: SIGABRT"
    assert reason_of(Outcome(status="run_timeout")) == "run_timeout"


class Together:
    """Builds three at a time, a second for all; ``fate``: what becomes of single configurations there."""

    width = 3

    def __init__(self, clock, fate=lambda x: None):
        self.clock, self.fate, self.asked = clock, fate, []

    def build(self, wanted, remaining):
        self.asked.append([w["config"]["x"] for w in wanted])
        if remaining is not None and remaining < 1:
            self.clock.now += remaining
            return [{"status": "cancelled"} for _ in wanted]
        self.clock.now += 1.0
        return [self.fate(w["config"]["x"]) for w in wanted]


def test_configurations_are_built_together_and_measured_alone():
    bench = Bench()
    ahead = Together(bench.clock, lambda x: {"status": "compile_error"} if x == 5 else None)
    seen = []
    outcome = run(bench, trials=9, ahead=ahead, on_trial=seen.append)
    assert ahead.asked[0] == [0, 1, 2], "the default has been measured alone"
    assert [len(a) for a in ahead.asked] == [3, 3, 2], "no more than there are trials left"
    assert [r.config["x"] for r in seen] == [3, 0, 1, 2, 5, 4, 6, 7, 8], "5 has ended, so it is logged first"
    assert [x for _, x, _ in bench.calls] == [3, 0, 1, 2, 4, 6, 7, 8], "5 has ended before"
    assert outcome.counts == {"ok": 8, "compile_error": 1} and outcome.stopped == "trials"
    assert outcome.best.config == {"x": 7}


@pytest.mark.parametrize(("cost", "status"), [(4.0, "ok"), (6.4, "ok"), (6.6, "not_tried")])
def test_a_short_budget_on_a_slow_machine_gives_a_result(cost, status):
    """The one trial that fits, or nearly fits, is a checked kernel; it is not confirmed, and nothing hangs."""
    bench = Bench(cost=cost)
    outcome = run(bench, budget_s=5.0)
    assert outcome.status == status and len(bench.calls) == 1 and outcome.stopped == "budget"
    assert bench.clock.now - 100.0 <= 5.0 + 1.5
    if status == "ok":
        assert outcome.best.checked and not outcome.best.confirmed


def test_the_second_trial_does_not_outlive_the_budget():
    bench = Bench(cost=2.0)
    assert run(bench, budget_s=5.0).trials == 2 and bench.clock.now - 100.0 == 4.0


def test_models_are_imported_while_others_are_built_and_at_no_other_time():
    """An import takes seconds of a core, which whatever is timed then would pay for."""
    seen = []

    class Modelled(InOrder):
        def load(self):
            while not building:  # started before the builders were: they are what it runs beside
                pass
            seen.append(len(bench.calls))

    class Building(Together):
        def build(self, wanted, remaining):
            building.append(len(bench.calls))
            return super().build(wanted, remaining)

    bench, building = Bench(), []
    run(bench, trials=9, ahead=Building(bench.clock), make=Modelled)
    assert seen == building == [1, 4, 7]
    assert run(Bench(), trials=9, make=Modelled).trials == 9 and len(seen) == 3, "without builders it is never called"


def test_what_is_built_is_not_measured_once_something_says_stop():
    bench = Bench()
    ahead = Together(bench.clock)
    outcome = run(bench, trials=20, ahead=ahead, patience=2, make=InOrder)
    assert [x for _, x, _ in bench.calls] == [3, 0, 1], "two without a gain, and 2 was built for nothing"
    assert outcome.stopped == "patience" and ahead.asked == [[0, 1, 2]]
    bench = Bench()
    outcome = run(bench, ahead=Together(bench.clock), stop=lambda: len(bench.calls) >= 3)
    assert len(bench.calls) == 3 and outcome.stopped == "stop"


def test_building_counts_against_the_budget():
    bench = Bench()
    made = []

    class Forgets(InOrder):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            self.forgotten = []
            made.append(self)

        def forget(self, row):
            self.forgotten.append(row)

    outcome = run(bench, budget_s=7.5, ahead=Together(bench.clock), make=Forgets)
    assert bench.clock.now - 100.0 <= 7.5 and outcome.stopped == "budget"
    assert outcome.trials == 5 and len(bench.calls) == 6, "the last one was cut off"
    assert sorted([*made[0].told, *made[0].forgotten]) == list(range(7)), "none is left under way"


def test_a_build_that_is_cut_off_is_no_trial():
    bench = Bench(cost=0.4)
    outcome = run(bench, budget_s=2.9, ahead=Together(bench.clock))
    assert outcome.trials == len(bench.calls) == 4 and outcome.stopped == "budget"
    assert bench.clock.now - 100.0 <= 2.9


@pytest.mark.parametrize("strategy", ["bayes", "random", "climb", "evolve"])
def test_the_same_answers_give_the_same_sequence(tmp_path, strategy):
    """A stand-in answers what the log of the first run says."""
    space = Space(x=range(40), default={"x": 3})
    rng = np.random.default_rng(0)
    times = {x: float(t) for x, t in enumerate(rng.uniform(1e-3, 1e-2, 40))}

    def sequence(time_of, **options):
        bench = Bench(time_of)
        outcome = search(strategy, {"a": space}, bench, identity=ME, clock=bench.clock, trials=14, seed=7, **options)
        return [x for _, x, _ in bench.calls], outcome

    with LogWriter(tmp_path, ME.workload) as log:
        first_run, _ = sequence(lambda _, c: times[c["x"]], log=log)
    said = {r.config["x"]: r.time_s for r in LogReader(tmp_path).records()}
    replayed, _ = sequence(lambda _, c: said[c["x"]])
    assert replayed == first_run and len(replayed) == 14
    other, _ = sequence(lambda _, c: 1.0 / (1 + times[c["x"]]))
    assert other[0] == first_run[0] == 3
