"""Trials under way at several places: all are busy, whatever becomes of them, and each trial is counted once."""

import threading
import warnings
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

import flight_zoo
import pytest
from searching import search

from tensorir.api.places import ExecutorPlaces, Neighbours, device_names, width_of
from tensorir.codec import encode
from tensorir.errors import DeclarationError
from tensorir.tune.flight import Flights, PlacesLost, Sent, as_it_is
from tensorir.tune.log import LogReader, LogWriter, RunIdentity
from tensorir.tune.space import Space
from tensorir.tune.trial import FinalRound, Outcome

ME = RunIdentity("own n=8", "d1g357", {"name": "cpu", "driver": "1"}, {"tensorir": "0.1.0"})
SPACE = Space(x=range(20), default={"x": 3})


def run(flights, **options):
    options.setdefault("identity", ME)
    options.setdefault("spaces", {"a": SPACE})
    return search("random", measure=None, flights=flights, **options)


def xs(records):
    return [r.config["x"] for r in records]


class Threads(ThreadPoolExecutor):
    """An executor with one place for each thread, and the flights over it."""

    def __init__(self, width, function):
        super().__init__(width)
        self.flights = Flights(ExecutorPlaces(self, width, {}, function))


class Stage:
    """Places that do what the test says: ``script(place, x)`` is a result, None for no answer, or an exception."""

    named = True

    def __init__(self, names, script):
        self.names, self.script, self.asked, self.open = list(names), script, [], {}

    def live(self):
        return list(self.names)

    def start(self, place, message, remaining):
        x = message["config"]["x"]
        self.asked.append((place, x))
        future = self.open[place, x] = Future()
        answer = self.script(place, x)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return future

    def close(self):
        pass


def well(place, x):
    return flight_zoo.timed(x)


def test_all_places_are_busy_at_once_after_the_default():
    barrier, order = threading.Barrier(4), []

    def together(message, limits, remaining):
        order.append(message["kind"])
        if message["kind"] != "default":
            barrier.wait(20)  # nobody passes until four are here
        return flight_zoo.timed(message["config"]["x"])

    with Threads(4, together) as pool:
        outcome = run(pool.flights, trials=9)
    assert outcome.counts == {"ok": 9} and outcome.stopped == "trials"
    assert order == ["default", *["trial"] * 8] and len(set(xs(outcome.records))) == 9


def test_every_configuration_once_and_logged_before_it_is_told(tmp_path):
    def told(record):
        assert record.id in {r.id for r in LogReader(tmp_path).records()}

    with Threads(3, flight_zoo.fake) as pool, LogWriter(tmp_path, ME.workload) as log:
        outcome = run(pool.flights, log=log, on_trial=told)
    logged = list(LogReader(tmp_path).records())
    assert sorted(xs(logged)) == list(range(20)) and xs(logged)[0] == 3 and outcome.stopped == "exhausted"
    assert outcome.best.config == {"x": 7} and len(LogReader(tmp_path).segments()) == 1
    assert {r.detail["place"] for r in logged} <= {"worker 0", "worker 1", "worker 2"}


def test_results_know_the_best_so_far_and_which_device():
    seen = []

    def script(place, x):
        return flight_zoo.timed(x) | {"device": {"name": "cpu", "driver": "1", "id": place}}

    def prepare(trial):
        seen.append(trial.best_s)
        return as_it_is(trial)

    outcome = run(Flights(Stage(["p", "q"], script), prepare=prepare), trials=6)
    assert seen[0] is None and seen[1] == pytest.approx(5e-3) and len(seen) == 6
    assert {r.device["id"] for r in outcome.records} == {"p", "q"}


def test_a_trial_whose_place_is_gone_is_measured_elsewhere():
    def script(place, x):
        if place == "dies":
            stage.names.remove("dies")
            return None
        return flight_zoo.timed(x)

    stage = Stage(["dies", "lives"], script)
    outcome = run(Flights(stage))
    assert outcome.counts == {"ok": 20} and sorted(xs(outcome.records)) == list(range(20))
    assert [p for p, _ in stage.asked].count("dies") == 1 and outcome.best.config == {"x": 7}
    assert [place for (place, _), future in stage.open.items() if future.cancelled()] == ["dies"]


def test_an_answer_that_comes_after_the_second_one_is_not_counted(tmp_path):
    def script(place, x):
        return None if place == "slow" else flight_zoo.timed(x)

    stage = Stage(["slow", "quick"], script)

    def late(record):
        if len(stage.open) > 15:  # the others are measured, and now it answers after all
            for (place, x), future in stage.open.items():
                if place == "slow" and not future.done():
                    stage.script = well
                    future.set_result(flight_zoo.timed(x))

    outcome = run(Flights(stage, trial_timeout=0.05), on_trial=late)
    assert outcome.counts == {"ok": 20} and sorted(xs(outcome.records)) == list(range(20))
    slow = [x for place, x in stage.asked if place == "slow"]
    assert ("quick", slow[0]) in stage.asked and len(slow) > 1  # a place that answers is one again


def test_what_is_lost_hung_or_fails_everywhere_has_its_status():
    def script(place, x):
        if x == 1:
            stage.names = [n for n in stage.names if n != place]
            return None
        if x == 4:
            return None
        return RuntimeError("no disk") if x == 8 else flight_zoo.timed(x)

    stage = Stage([f"p{n}" for n in range(12)], script)
    outcome = run(Flights(stage, trial_timeout=0.05))
    by_x = {r.config["x"]: r for r in outcome.records}
    assert {x: by_x[x].status for x in (1, 4, 8)} == {1: "crashed", 4: "run_timeout", 8: "internal_error"}
    assert outcome.counts["ok"] == 17 and "no disk" in by_x[8].detail["message"]
    assert all(sum(asked == x for _, asked in stage.asked) == 3 for x in (1, 4, 8))


def test_workers_may_join_and_unfit_ones_are_left_out():
    def script(place, x):
        if len(stage.asked) > 4:
            stage.names = ["old", "unfit", "new"]
        if place == "unfit":
            return {"status": "unfit", "detail": {"message": "another driver"}}
        return flight_zoo.timed(x)

    stage = Stage(["old", "unfit"], script)
    outcome = run(Flights(stage))
    asked = [p for p, _ in stage.asked]
    assert outcome.counts == {"ok": 20} and asked.count("unfit") == 1 and asked.count("new") > 3


def test_a_lost_device_is_left_out_while_there_is_another():
    def script(place, x):
        return {"status": "device_lost"} if place == "broken" and x != 3 else flight_zoo.timed(x)

    stage = Stage(["broken", "other"], script)
    outcome = run(Flights(stage))
    assert outcome.counts == {"ok": 20} and [p for p, _ in stage.asked].count("broken") <= 2
    outcome = run(Flights(Stage(["broken"], script)))
    assert outcome.stopped == "device_lost" and outcome.counts["device_lost"] == 1


@pytest.mark.parametrize("names", [[], ["silent"]])
def test_nobody_left_ends_the_run_with_what_was_found(names):
    def script(place, x):
        stage.names = names
        return flight_zoo.timed(x) if place == "first" else None

    stage = Stage(["first"], script)
    outcome = run(Flights(stage, trial_timeout=0.05, grace_s=0.1), final=lambda finalists, left: pytest.fail("no"))
    assert outcome.stopped == "workers" and outcome.error.code == "tune.workers-lost" and outcome.counts == {"ok": 1}
    assert outcome.best.config == {"x": 3}


def test_a_process_that_cannot_measure_ends_the_use_of_an_executor():
    def unfit(message, limits, remaining):
        return {"status": "unfit", "detail": {"message": "another driver"}}

    with Threads(2, unfit) as pool, pytest.raises(PlacesLost) as caught:
        pool.flights.ask({"config": {"x": 1}}, None)
    assert "another driver" in str(caught.value)


def test_budget_ends_even_if_nobody_answers():
    stage = Stage(["p", "q"], lambda place, x: flight_zoo.timed(x) if x == 3 else None)
    outcome = run(Flights(stage), budget_s=0.3)
    assert outcome.stopped == "budget" and outcome.counts == {"ok": 1} and len(stage.asked) == 3
    flights = Flights(Stage(["p"], lambda place, x: None))
    assert flights.ask({"config": {"x": 1}}, 0.01).status == "cancelled" and flights.under_way == 0


def test_interrupt_and_stop():
    def interrupt(record):
        raise KeyboardInterrupt

    outcome = run(Flights(Stage("pq", well)), on_trial=interrupt)
    assert outcome.status == "interrupted" and outcome.best is not None
    done = []
    outcome = run(Flights(Stage("pqr", well)), on_trial=done.append, stop=lambda: len(done) >= 4)
    assert outcome.stopped == "stop" and 4 <= len(done) == outcome.trials <= 7  # what was under way is not thrown away


def test_a_killed_process_breaks_a_pool_and_the_next_one_goes_on(tmp_path):
    def prepare(trial):
        return Sent({**encode(trial), "folder": str(tmp_path)})

    def final(finalists, left):
        return FinalRound([flight_zoo.timed(r.config["x"]) for r in finalists])

    def tune():
        with ProcessPoolExecutor(2) as pool, LogWriter(tmp_path / "log", ME.workload) as log:
            places = ExecutorPlaces(pool, 2, {}, flight_zoo.dangerous)
            earlier = list(LogReader(tmp_path / "log").records())
            return run(Flights(places, prepare=prepare), log=log, reuse=earlier, final=final, spaces=spaces)

    spaces = {"a": Space(x=range(8), default={"x": 3})}
    outcome = tune()
    assert outcome.stopped == "workers" and outcome.error.code == "tune.workers-lost"
    again = tune()
    assert again.reused == outcome.trials and outcome.trials + again.trials == 8 and again.status == "ok"
    assert sorted(xs(LogReader(tmp_path / "log").records(kind="trial"))) == list(range(8))
    assert again.best.config == {"x": 7} and again.best.confirmed


def test_what_is_under_way_counts_for_a_templates_share():
    templates = []

    def prepare(trial):
        templates.append(trial.template)
        return as_it_is(trial)

    spaces = {name: Space(x=range(20), default={"x": 3}) for name in "ab"}
    run(Flights(Stage("pqrs", well), prepare=prepare), spaces=spaces, trials=16)
    assert templates[:2] == ["a", "b"] and "a" in templates[2:5]  # b's default is not known yet, but under way


def test_how_wide_executors_are():
    with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2) as processes:
        assert (width_of(threads), width_of(processes), width_of(object())) == (3, 2, 1)


def test_names_of_devices():
    assert device_names(None) == [] and device_names("a") == ["a"] and device_names(("a", "b")) == ["a", "b"]
    for bad in ([], ["a", "a"], ["a", 5], 5, ""):
        with pytest.raises(DeclarationError) as caught:
            device_names(bad)
        assert caught.value.code == "tune.devices"


def test_neighbours_on_a_processor_are_noticed_once():
    found = Neighbours()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for host, worker in (("h", "1"), ("g", "1"), ("h", "1"), ("h", "2"), ("h", "3")):
            found.notice(Outcome("ok", {"host": host, "worker": worker, "place": "worker 0"}))
    assert [str(w.message).split(" at ")[0] for w in caught] == ["several workers measure on the processor of h"]
