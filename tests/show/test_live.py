"""The live cell of a tuning run: it is renewed while it runs, and one table is left."""

import dataclasses
from dataclasses import replace

import pytest
from notebooks import executed, html_of

import tensorir as tir
from tensorir.show import live
from tensorir.show.live import LiveCell, Several, Single, watched
from tensorir.tune.record import RunIdentity
from tensorir.tune.spec import RunSpec

ME = RunIdentity("matmul", "d1g357", {"name": "cpu", "driver": "1"}, {})
TIMED = {"status": "ok", "time_s": 2e-3, "low_s": 1.9e-3, "high_s": 2.2e-3, "samples": [2e-3]}
RECORD = ME.record("trial", "default", {}, TIMED)


@pytest.fixture
def work():
    return tir.ops.matmul(m=32, n=32, k=32)


class Screen:
    """What a cell shows, in order."""

    def __init__(self):
        self.shown: list[tuple[str, str]] = []

    def __call__(self, html, text):
        self.shown.append((html, text))


def test_a_cell_changes_with_the_clock_alone(work):
    now, screen = [100.0], Screen()
    cell = LiveCell(Single(work, RunSpec()), screen, clock=lambda: now[0])
    for _ in range(3):
        cell.renew()
        now[0] += 1.0
    pages = [html for html, _ in screen.shown]
    assert len(set(pages)) == 3 and len({text for _, text in screen.shown}) == 3
    assert "nothing valid yet" in pages[0] and all(p.count("<table") == 1 for p in pages)
    assert live.EVERY_S <= 0.5  # twice as often as promised: the machine is busy meanwhile


def test_a_cell_tells_trials_the_best_and_its_ratio(work):
    screen, heard, seen = Screen(), Single(work, RunSpec(trials=9)), []
    cell = LiveCell(heard, screen)
    options = cell.listening(RunSpec(trials=9, on_trial=seen.append))
    options.on_start({"name": "a device", "kind": "cpu"}, {}, 2)
    options.on_peer({"name": "numpy", "time_s": 1e-3, "low_s": 0.9e-3, "high_s": 1.1e-3})
    options.on_trial(RECORD)
    options.on_trial(ME.record("trial", "default", {}, {"status": "compile_error"}))
    cell.renew()
    html, text = screen.shown[-1]
    assert seen and seen[0] is RECORD  # the caller's own callback is called too
    assert "a device" in html and "4 of 9" in html and "compile 1" in html and "2.0000 ms" in html
    assert "of numpy" in html and "<svg" in html and "of numpy" in text


def test_a_cell_of_several_shapes(work):
    other = tir.ops.matmul(m=16, n=16, k=16)
    screen = Screen()
    cell = LiveCell(Several([work, other], [1.0, 2.0], RunSpec()), screen)
    cell.listening(RunSpec()).on_trial(replace(RECORD, workload=other.title))
    cell.renew()
    assert "1 of 2" in screen.shown[-1][0] and "total 4.0000 ms" in screen.shown[-1][0]


def test_outside_of_notebooks_nothing_is_shown(work, monkeypatch):
    options = RunSpec()
    assert live.screen() is None
    assert watched(Single(work, options), options, lambda given: given) is options
    monkeypatch.setattr(live, "screen", Screen)
    silent = dataclasses.replace(options, live=False)
    assert watched(Single(work, silent), silent, lambda given: given) is silent


def test_an_error_ends_the_cell(work, monkeypatch):
    screen = Screen()
    monkeypatch.setattr(live, "screen", lambda: screen)
    with pytest.raises(RuntimeError):
        watched(Single(work, RunSpec()), RunSpec(), lambda given: raised())
    assert len(screen.shown) >= 1 and "Tuning …" in screen.shown[-1][0]


def raised():
    raise RuntimeError


def test_one_table_is_left_in_a_notebook(tmp_path):
    call = "w.tune(trials={}, budget='100s', log='logs', builders=1, final_s=0.2)"
    cells = ["import tensorir as tir\nw = tir.ops.matmul(m=32, n=48, k=16)",
             f"r = {call.format(3)}", call.format(4), "r", f"r = {call.format(4)}\nr"]  # fmt: skip
    client = executed(cells, tmp_path)
    kept, last, again, both = (html_of(c) for c in client.nb.cells[1:])
    assert [len([h for h in cell if h]) for cell in (kept, last, again, both)] == [1, 1, 1, 1]
    for cell in (kept, last, again, both):
        assert "".join(cell).count("<table") == 1 and "Tuning …" not in "".join(cell) and "<svg" in "".join(cell)
    displays: dict[str, list[str]] = {}
    for name, html in client.renewed:
        displays.setdefault(name, []).append(html)
    assert len(displays) == 3  # one for each call of tune
    for shown in displays.values():
        moving = [h for h in shown if "Tuning …" in h]
        assert len(moving) >= 2 and len(set(moving)) >= 2
