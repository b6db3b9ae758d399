"""Progress lines say what people expect them to say."""

from dataclasses import replace

from records import ME, made

from tensorir.tune.progress import Progress, between, duration, eta, line, milliseconds, rate, statuses


def ok(time_s, name="a"):
    return replace(made(time_s=time_s), id=name, samples=[time_s], low_s=time_s, high_s=time_s)


def test_line_has_everything_known():
    state = Progress(total=200, budget_s=600, flops=23.1e6, baseline=("cudnn", 31.4e-6), known=2)
    assert line(state, 0) == "[    0s] 2/200  nothing valid yet | eta 10m00s"
    assert state.add(ok(80e-6)) and state.add(ok(58.1e-6)) and not state.add(ok(90e-6))
    for status in ("resource_limit", "resource_limit", "run_timeout"):
        assert not state.add(ME.record("trial", "t", {}, {"status": status}))
    text = line(state, 12.2)
    assert text == "[   12s] 8/200  best 0.0581 ms  398 GF/s  54% of cudnn  | ok 3  resources 2  timeout 1 | eta 6m30s"


def test_a_share_that_cannot_be_said_is_not():
    """The peer's slowest slot is a hundred times its fastest; other programs take the cores."""

    def share(busy=0.0, **peer):
        state = Progress()
        state.hear({"name": "torch", "time_s": 2e-3, "low_s": 1.9e-3, "high_s": 2.1e-3, "spread": 1.2, **peer})
        state.add(replace(ok(1e-3), load={"seconds": 1.0, "others": busy, "stolen": 0.0, "cores": 2}))
        return line(state, 1)

    assert share().endswith("best 1.0000 ms  200% of torch  | ok 1")
    assert "~200% of torch (unsteady)" in share(spread=3.5)
    assert "unsteady against torch" in share(low_s=0.1e-3, high_s=50e-3, spread=500.0)
    assert "~200% of torch (unsteady)  | ok 1 | other programs used 1.2 of 2 cores" in share(busy=1.2)


def test_an_interval_that_says_nothing_is_not_printed():
    assert between(1e-3, 0.9e-3, 1.2e-3) == "1.0000 ms  [0.9000 ms, 1.2000 ms]"
    assert between(36e-3, 1e-9, 878.8) == "~36.000 ms  [cannot be told on this busy machine]"
    assert between(1e-3, None, None) == "1.0000 ms"


def test_prints_on_improvement_or_after_ten_seconds():
    state = Progress()
    assert state.due(0, False)
    assert not state.due(9, False) and state.due(9, True) and not state.due(18, False) and state.due(19, False)


def test_eta_is_the_nearer_end():
    state = Progress(total=10, budget_s=100)
    state.add(ok(1))
    assert eta(state, 5) == 45 and eta(Progress(budget_s=10), 4) == 6 and eta(Progress(total=9), 4) is None
    assert "eta" not in line(Progress(), 3)


def test_numbers_read_well():
    assert [duration(s) for s in (0, 59.6, 99, 100, 220, 3599, 7500)] == [
        "0s",
        "60s",
        "99s",
        "1m40s",
        "3m40s",
        "59m59s",
        "2h05m",
    ]
    assert [milliseconds(s) for s in (30.9e-6, 1.2345e-3, 12.345e-3, 1.5)] == [
        "0.0309 ms",
        "1.2345 ms",
        "12.345 ms",
        "1500.00 ms",
    ]
    assert [rate(r) for r in (1.5e9, 398.2e9, 1.25e12)] == ["1.50 GF/s", "398 GF/s", "1.25 TF/s"]
    assert statuses({"crashed": 1, "ok": 2, "wrong_result": 0, "compile_error": 5}) == "ok 2  compile 5  crashed 1"
