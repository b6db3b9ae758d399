"""Tuning several shapes: who is measured when, what they share, and the few kernels; no device, a clock of its own."""

import json
import math
import threading

import benches
import pytest
from benches import Bench

import tensorir as tir
from tensorir.api import shape_set
from tensorir.errors import DeclarationError, DeviceError, Problem
from tensorir.tune import loop
from tensorir.tune.log import LogError, LogReader, LogWriter, key_of
from tensorir.tune.process import WorkerError
from tensorir.tune.spec import RunSpec


def shape(n, values=range(12), **more):
    """An operator whose configurations differ by one number; the template is never run here."""
    A = tir.placeholder((n,), name="A")
    C = tir.compute((n,), lambda i: A[i] * 2, name="C")
    return tir.Workload(
        "scale", C, {"t": (lambda s, c: s, tir.Space(x=values))}, parameters={"n": n, **more}, flops=1.0
    )


def near_target(n, x):
    """Shapes of 64 and up want x = 9, smaller ones x = 4."""
    return 1e-3 * n * (1 + abs(x - (9 if n >= 64 else 4)) / 10)


@pytest.fixture
def run(monkeypatch, tmp_path):
    def go(bench, works, weights=None, regret=0.05, device=None, **options):
        monkeypatch.setattr(shape_set, "Measurer", bench.measurer)
        options = RunSpec(**{"budget_s": None, "log": str(tmp_path), "strategy": "random", **options})
        found = shape_set.tune_set(works, weights, device, options, regret, bench.clock)
        assert bench.opened == 0
        return found

    return go


def test_defaults_first_and_the_few_kernels(run, tmp_path):
    bench = Bench(near_target)
    found = run(bench, [shape(n) for n in (8, 16, 64, 128)], trials=12)
    assert bench.calls[:4] == [(8, 0), (16, 0), (64, 0), (128, 0)]
    assert len(set(bench.calls)) == len(bench.calls) == 48
    assert (found.status, found.stopped) == ("ok", "trials")
    few = found.portfolio
    assert few.exact and sorted(k.config["x"] for k in few.kernels) == [4, 9]
    assert all(s.confirmed and s.regret == 0 == s.tree_regret for s in few.served)
    assert found.choose(n=16)["config"] == found.choose(n=20)["config"] == {"x": 4}
    assert found.choose(n=1000) == {"template": "t", "config": {"x": 9}}
    assert found.total_s() == pytest.approx(1e-3 * (8 + 16 + 64 + 128)) == found.total_s("kernel")
    assert found.total_s("default") > found.total_s()
    doc = json.loads(json.dumps(found.json()))
    assert [r["workload"] for r in doc["results"]] == [f"scale n={n}" for n in (8, 16, 64, 128)]
    assert all(r["trials"] == 12 == sum(r["counts"].values()) and r["best"]["checked"] for r in doc["results"])
    assert len(list(LogReader(tmp_path).records(kind="trial"))) == 48


def test_a_shape_that_no_configuration_fits_is_left_out(run):
    works = [shape(8), shape(16, range(5)), shape(64)]
    found = run(Bench(near_target), works, trials=6, restrict=("x >= 5",))
    assert found.left_out == ("scale n=16",) and [len(r.choices) for r in found.results] == [6, 0, 6]
    assert "x >= 5" in found.results[1].refused and found.json()["refused"] == {"scale n=16": found.results[1].refused}
    assert found.status == "ok" and len(found.portfolio.served) == 2
    with pytest.raises(DeclarationError, match=r"space\.empty"):
        run(Bench(near_target), [shape(16, range(5)), shape(8, range(4))], trials=6, restrict=("x >= 5",))


def test_a_larger_regret_needs_fewer(run):
    bench = Bench(near_target)
    works = [shape(n) for n in (8, 16, 64, 128)]
    few = run(bench, works, trials=12, regret=0.3).portfolio
    assert len(few.kernels) == 1 and max(s.regret for s in few.served) <= 0.3001
    assert {s.kernel for s in few.served} == {0}


def test_winners_are_tried_where_they_are_new(run):
    """What random search finds on one shape, the others try in their next slices."""
    bench = Bench(lambda n, x: 1e-3 * (0.1 if x == 27 else 1 + x % 7 / 10))
    found = run(bench, [shape(n, range(40)) for n in (30, 31, 32)], budget_s=90.0)
    when = [k for k, (_, x) in enumerate(bench.calls) if x == 27]
    assert len(when) == 3 and [k.config for k in found.portfolio.kernels] == [{"x": 27}]
    assert when[-1] - when[0] <= 20


def test_what_is_not_legal_elsewhere_is_not_tried(run):
    bench = Bench(near_target)
    works = [shape(8, range(6)), shape(64), shape(128, range(6, 12))]
    found = run(bench, works, trials=9)
    assert all(x < 6 for n, x in bench.calls if n == 8) and all(x >= 6 for n, x in bench.calls if n == 128)
    assert sorted(k.config["x"] for k in found.portfolio.kernels) == [4, 9]


def test_trials_go_where_time_is_saved(run):
    """Equal shapes, but one runs a hundred times as often."""
    bench = Bench(lambda n, x: 1e-3 * (1 + 1 / (1 + x)))
    run(bench, [shape(n, range(500)) for n in (64, 65)], weights=[100, 1], budget_s=100.0)
    counts = [sum(n == m for n, _ in bench.calls) for m in (64, 65)]
    assert counts[0] > 4 * counts[1] > 0


@pytest.mark.parametrize("budget", [2.5, 7.0, 30.0, 60.0])
def test_the_budget_is_a_promise(run, budget):
    bench = Bench(near_target)
    found = run(bench, [shape(n, range(400)) for n in (8, 16, 64, 128)], budget_s=budget)
    assert bench.clock.now <= 1000 + budget + 1e-6 or bench.finals
    assert bench.clock.now <= 1000 + budget + 3  # this final round does not look at the clock
    assert len(found.outcomes) == min(4, int(budget)) and len(found.left_out) == 4 - len(found.outcomes)
    assert found.stopped == "budget" and found.portfolio is not None


def test_a_shape_that_takes_long_to_open_does_not_outlive_the_budget(run, monkeypatch):
    bench, going, ended = Bench(near_target), threading.Event(), threading.Event()
    opened = benches.Measurer.open

    def slow(measurer):
        if measurer.n == 16:
            assert going.wait(60)
        return opened(measurer)

    monkeypatch.setattr(benches.Measurer, "open", slow)
    monkeypatch.setattr(benches.Measurer, "abandon", lambda m: bench.abandoned.append(m.n) or ended.set())
    found = run(bench, [shape(n) for n in (64, 16, 8)], weights=[9, 5, 1], budget_s=1.05)
    assert found.stopped == "budget" and {n for n, _ in bench.calls} == {64} and not going.is_set()
    assert found.status == "ok" and [bool(r.choices) for r in found.results] == [True, False, False]
    going.set()
    assert ended.wait(60) and bench.abandoned == [16], "what it began is left when it ends"


def test_what_is_made_in_time():
    late = []
    assert shape_set.in_time(lambda: 5, 60.0, lambda: late.append(1)) == 5
    with pytest.raises(DeclarationError):
        shape_set.in_time(lambda: tir.placeholder((-1,)), 60.0, lambda: late.append(1))
    assert not late


def test_the_same_again_measures_nothing(run):
    works = [shape(n) for n in (8, 64)]
    first = run(Bench(near_target), works, trials=6)
    bench = Bench(near_target)
    again = run(bench, works, trials=6)
    assert not bench.calls and [o.reused for o in again.outcomes] == [6, 6]
    assert again.portfolio.json() == first.portfolio.json()
    more = run(bench := Bench(near_target), works, trials=8)
    assert len(bench.calls) == 4 and [(o.reused, o.trials) for o in more.outcomes] == [(6, 2), (6, 2)]


def test_a_shape_on_which_nothing_runs(run):
    bench = Bench(lambda n, x: None if n == 16 else near_target(n, x))
    found = run(bench, [shape(n) for n in (8, 16)], trials=5)
    assert found.status == "no_valid_config" and found.total_s() is None is found.total_s("kernel")
    assert [s.workload for s in found.portfolio.served] == ["scale n=8"]
    assert found.outcomes[1].reasons[0]["status"] == "compile_error"
    nothing = run(Bench(lambda n, x: None), [shape(9)], trials=2)
    assert nothing.portfolio is None and nothing.json()["portfolio"] is None
    for use in (lambda: nothing.choose(n=9), lambda: nothing.save("out")):
        with pytest.raises(tir.DeclarationError) as caught:
            use()
        assert caught.value.code == "shapes.nothing"


def test_a_member_that_fails_the_final_round_leaves(run):
    bench = Bench(near_target)
    bench.wrong_in_final = {(128, 9)}
    found = run(bench, [shape(n) for n in (64, 128)], trials=12)
    by_title = {s.workload: found.portfolio.kernels[s.kernel].config["x"] for s in found.portfolio.served}
    assert by_title["scale n=128"] != 9
    assert (128, 9) in [(n, x) for n, xs in bench.finals for x in xs]


def test_ctrl_c_keeps_what_was_found(run):
    bench = Bench(near_target)

    def stop(record):
        if len(bench.calls) == 6:
            raise KeyboardInterrupt

    found = run(bench, [shape(n) for n in (8, 64)], trials=12, on_trial=stop)
    assert (found.status, found.stopped) == ("interrupted", "interrupted") and len(bench.calls) == 6
    assert found.portfolio is not None and sum(o.trials for o in found.outcomes) == 6


def test_a_log_that_cannot_be_written_ends_it(run, monkeypatch):
    """Whatever is measured then, a slice or a winner of another shape: the error is in the outcome."""
    for last in range(2, 9):
        bench = Bench(near_target)
        append = LogWriter.append

        def failing(self, record, bench=bench, last=last, append=append):
            if len(bench.calls) >= last:
                raise LogError(Problem("log.full", "no room"))
            append(self, record)

        with monkeypatch.context() as m:
            m.setattr(LogWriter, "append", failing)
            found = run(bench, [shape(n) for n in (8, 64)], trials=12, fresh=True)
        assert found.stopped == "log" and len(bench.calls) == last
        assert [o.error.code for o in found.outcomes if o.error is not None] == ["log.full"]


def test_patience_and_exhaustion(run):
    bench = Bench(lambda n, x: 1e-3)
    found = run(bench, [shape(n, range(50)) for n in (8, 64)], patience=4, trials=40)
    assert found.stopped == "patience" and len(bench.calls) < 30
    found = run(Bench(near_target), [shape(n, range(3)) for n in (8, 64)], fresh=True)
    assert found.stopped == "exhausted" and [o.trials for o in found.outcomes] == [3, 3]


def test_files(run, tmp_path):
    found = run(Bench(near_target), [shape(n) for n in (8, 16, 64)], trials=12)
    folder = found.save(tmp_path / "a" / "b")
    names = {}
    exec((folder / "choose.py").read_text(), names)
    assert names["choose"](n=11) == found.choose(n=11) and "2 kernels" not in names["__doc__"]
    doc = json.loads((folder / "kernels.json").read_text())
    assert doc["schema"] == 1 and doc["workload"] == "scale" and doc["device"]["name"] == "cpu"
    assert [s["kernel"] for s in doc["shapes"]] == list(found.portfolio.dispatch.chosen)
    assert "int tensorir_choose(long long n)" in (folder / "choose.c").read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(tir.DeclarationError) as caught:
        found.save(tmp_path / "file" / "out")
    assert caught.value.code == "shapes.unwritable"


@pytest.mark.parametrize(
    ("works", "options", "code"),
    [
        ([], {}, "shapes.set"),
        ([shape(8), shape(8)], {}, "shapes.set"),
        ([shape(8), tir.ops.matmul(m=8, n=8, k=8)], {}, "shapes.set"),
        ([shape(8), 5], {}, "argument.type"),
        (7, {}, "argument.type"),
        ([shape(8)], {"weights": [1, 2]}, "argument.value"),
        ([shape(8)], {"weights": [-1]}, "argument.value"),
        ([shape(8)], {"weights": 3}, "argument.type"),
        ([shape(8)], {"regret": -0.1}, "argument.value"),
        ([shape(8)], {"regret": math.nan}, "argument.value"),
        ([shape(8)], {"speed": 3}, "tune.option"),
        ([shape(8), shape(16, mode=("a", 1))], {}, "shapes.parameters"),
    ],
)
def test_wrong_sets(works, options, code, tmp_path):
    with pytest.raises(tir.DeclarationError) as caught:
        tir.tune_shapes(works, log=str(tmp_path), **options)
    assert caught.value.code == code and not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", [["opencl:0", "opencl:0"], [], ["opencl:0", 5], 5])
def test_devices_are_different_names(tmp_path, device):
    with pytest.raises(tir.DeclarationError) as error:
        tir.tune_shapes([shape(8), shape(16)], device, log=str(tmp_path))
    assert error.value.code == "tune.devices" and not list(tmp_path.iterdir())


def test_fresh_uses_nothing_from_before(run):
    works = [shape(8), shape(64)]
    run(Bench(near_target), works, trials=12)
    found = run(Bench(lambda n, x: 2 * near_target(n, x)), works, trials=3, fresh=True)
    for result in found.results:
        assert len(result.choices) == 3
        assert result.choices[0].time_s == min(r.time_s for r in result.outcome.records)


def test_times_that_could_not_be_written_count(run, monkeypatch):
    def full(self, record):
        raise LogError(Problem("log.unwritable", "no space left"))

    monkeypatch.setattr(LogWriter, "append", full)
    found = run(Bench(near_target), [shape(8)], trials=3)
    assert found.results[0].choices and found.outcomes[0].error is not None


def test_a_shape_that_expects_little_still_takes_what_won_elsewhere(run):
    bench = Bench(near_target)
    found = run(bench, [shape(8, range(40)), shape(64, range(40))], trials=40, strategy="bayes", least_gain=0.5)
    assert found.stopped == "gain" and len(bench.calls) < 60
    assert len({x for n, x in bench.calls if n == 8} & {x for n, x in bench.calls if n == 64}) > 1


def test_who_starts_is_told(run):
    seen = []
    run(Bench(near_target), [shape(8), shape(64)], trials=2, on_start=lambda about, spaces, known: seen.append(known))
    assert seen == [0, 0]


def test_a_search_begins_with_what_was_fast_on_near_shapes(run):
    """The second shape's model starts from the trials of the first, which is nearly the same."""
    bench = Bench(lambda n, x: 1e-3 * n * (1 + abs(x - 31) / 40))
    works = [shape(64, range(60)), shape(65, range(60))]
    found = run(bench, works, weights=[1000, 1], trials=24, strategy="bayes")
    counts = [r.outcome.search for r in found.results]
    assert any(c.get("elsewhere") for c in counts)


def test_a_shape_is_opened_when_its_turn_comes(run):
    """The first trial waits for no other shape, and what there is no time for is not opened at all."""
    bench = Bench(near_target)
    opened = []

    def on_start(about, spaces, known):
        opened.append(len(bench.calls))

    works = [shape(n) for n in (8, 16, 64, 128)]
    run(bench, works, trials=3, on_start=on_start)
    assert opened == [0, 1, 2, 3]
    opened.clear()
    bench = Bench(near_target)
    found = run(bench, works, budget_s=2.0, fresh=True, on_start=on_start)
    assert opened == [0, 1] and len(found.outcomes) == 2 == len(found.left_out)


@pytest.mark.parametrize(("error", "code"), [(DeviceError, "device.broken"), (WorkerError, "tune.workers-lost")])
def test_a_device_that_goes_away_before_a_shape_is_opened(run, monkeypatch, error, code):
    bench = Bench(near_target)
    monkeypatch.setattr(benches.Measurer, "open", lambda self: self.bench.gone() if bench.calls else benches.ABOUT)
    bench.gone = raising = lambda: (_ for _ in ()).throw(error(Problem(code, "gone")))
    found = run(bench, [shape(8), shape(64)], trials=3)
    assert found.stopped == ("device_lost" if error is DeviceError else "workers") and len(bench.calls) == 1
    assert [o.error.code for o in found.outcomes] == [code] and found.portfolio is not None
    monkeypatch.setattr(benches.Measurer, "open", lambda self: raising())
    with pytest.raises(error):
        run(Bench(near_target), [shape(8), shape(64)], trials=3, fresh=True)


def test_options_that_fit_no_template_are_refused_before_a_device_is_opened(run):
    bench = Bench(near_target)
    with pytest.raises(tir.TensorIRError) as caught:
        run(bench, [shape(8), shape(64)], templates=("nothing",))
    assert caught.value.code == "template.unknown" and not bench.calls


def test_tables_are_made_for_strategies_that_begin(run, monkeypatch):
    """Slices go on with the strategy of the first one, which has taken what is known from elsewhere."""
    made = []
    monkeypatch.setattr(shape_set, "tables", lambda _, identity, *__: made.append(identity.workload) or {})
    monkeypatch.setattr(loop, "tables", lambda *_: made.append("again"))
    run(Bench(near_target), [shape(n, range(40)) for n in (8, 64)], trials=30)
    assert sorted(made) == ["scale n=64", "scale n=8"]


def test_only_times_of_one_round_are_called_confirmed(run):
    """The machine was half as fast on the first day: what is only in that day's round is brought to the second's."""
    works = [shape(n, range(40)) for n in (8, 64)]
    first = run(Bench(lambda n, x: 2 * near_target(n, x)), works, trials=4)
    assert all(s.confirmed for s in first.portfolio.served)
    second = run(Bench(near_target), works, trials=24)
    seen = set()
    for result, served in zip(second.results, second.portfolio.served, strict=True):
        best, chosen = result.choices[0], result.times()[key_of(second.portfolio.records[served.workload])]
        assert served.confirmed == (chosen.round == 0 == best.round) and served.regret <= 0.05
        for choice in (c for c in result.choices if c.round == 1):
            mine = near_target(result.work.parameters["n"], choice.record.config["x"])
            assert choice.time_s == pytest.approx(mine) and choice.record.time_s == pytest.approx(2 * mine)
            assert result.comparable(choice) == pytest.approx(mine if best.round == 1 else 1.02 * mine)
            seen.add(served.confirmed)
    assert seen == {True, False}


def test_devices_that_measure_at_the_same_time(run):
    """The shapes use the same ones in turn: every trial is measured once, and taken by its own shape."""
    bench = Bench(near_target)
    found = run(bench, [shape(n) for n in (8, 64, 128)], trials=12, device=["p", "q", "r"])
    assert sorted(bench.calls) == [(n, x) for n in (8, 64, 128) for x in range(12)]
    (places,) = bench.places
    assert len(places) == 36 and set(places) == {"p", "q", "r"}
    assert sorted(k.config["x"] for k in found.portfolio.kernels) == [4, 9]
    for result in found.results:
        times = {r.config["x"]: r.time_s for r in result.outcome.records}
        assert times == {x: near_target(result.work.parameters["n"], x) for x in range(12)}
