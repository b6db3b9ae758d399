"""Kills, full disks, read-only places, several processes, wrong clocks: what was finished stays, and tuning goes on."""

import errno
import io
import multiprocessing
import os
import resource
import sys
import time
from pathlib import Path

import pytest
from records import ME, made, write
from searching import search

from tensorir.tune import log, record, store
from tensorir.tune.log import LogError, LogReader, LogWriter
from tensorir.tune.record import decode, encode
from tensorir.tune.space import Space

sys.path.append(str(Path(__file__).parents[2] / "benchmarks/tuner"))
import killed

linux = pytest.mark.skipif(sys.platform != "linux", reason="forks, and Linux's limits")
SPACE = Space(x=range(12))
OK = {"status": "ok", "time_s": 1e-3, "samples": [1e-3] * 3, "check": {"ok": True, "max_err": 0.0, "shapes": []}}


def tune(root, trials=12, measure=lambda *_: OK, seed=0, **options):
    with LogWriter(root, ME.workload) as writer:
        reuse = list(LogReader(root).records())
        return search("random", {"a": SPACE}, measure, identity=ME, trials=trials, log=writer, reuse=reuse, seed=seed,
                      **options)  # fmt: skip


@linux
def test_killed_at_random_instants_nothing_finished_is_lost(tmp_path):
    """The script under benchmarks kills a hundred times."""
    tally = killed.kill_often(12, seed=int(time.time()), folder=tmp_path, longest=0.1)
    assert not tally.problems, tally
    assert tally.kills == 12 and tally.finished and tally.resumed


def test_the_killing_is_noticed_where_trials_are_lost(tmp_path, monkeypatch):
    """The judge of the test above judges: a log that loses a line is found out."""
    path = write(tmp_path, [killed.ME.record("trial", "a", {"x": n}, OK) for n in range(3)])
    ids = {r.id for r in LogReader(tmp_path).records()}
    tally = killed.Tally()
    assert killed._judge(tmp_path, ids, tally) == 0 and not tally.problems
    path.write_bytes(path.read_bytes()[:-10])
    assert killed._judge(tmp_path, ids, tally) == 1
    assert tally.problems == ("lost: 1 finished trials",)


def test_cut_at_every_byte_n_or_one_less_are_left(tmp_path):
    """What a run that resumes finds, for every length that the file may have been left with."""
    lines = [encode(ME.record("trial", "a", {"x": n}, OK)) for n in range(3)]
    whole = b"".join(lines)
    for cut in range(len(whole) + 1):
        entries = list(store._entries(tmp_path, io.BytesIO(whole[:cut])))
        usable = log.usable((e.record for e in entries if e.record is not None), ME)
        begun = sum(len(b"".join(lines[:n])) < cut for n in range(3))
        assert begun - 1 <= len(usable) <= begun
        assert sum(e.damaged for e in entries) == begun - len(usable)


@pytest.mark.parametrize("cut", [1, 2, 300])
def test_a_search_resumes_after_a_cut(tmp_path, cut):
    outcome = tune(tmp_path, trials=6)
    path = Path(outcome.log_path)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    again = tune(tmp_path, trials=6)
    assert (again.reused, again.trials) == ((6, 0) if cut == 1 else (5, 1))
    assert len({r.config["x"] for r in LogReader(tmp_path).records()}) == 6


@linux
def test_a_full_disk_stops_after_the_trial(tmp_path):
    """The system's own short write and refusal: a limit on the size of files in a child."""

    def child(pipe):
        line = len(encode(ME.record("trial", "a", {"x": 1}, OK)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * line + line // 2,) * 2)
        outcome = tune(tmp_path)
        error = outcome.error
        pipe.send((outcome.stopped, outcome.status, outcome.trials, error and error.code, outcome.best is not None))

    mine, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(its,))
    process.start()
    assert mine.poll(60) and mine.recv() == ("log", "ok", 5, "log.full", True)
    process.join(60)
    reader = LogReader(tmp_path)
    assert len(list(reader.records())) == 4 and reader.damaged == 0
    assert tune(tmp_path).reused == 4


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_errors_of_the_disk_end_the_search_with_what_was_found(tmp_path, monkeypatch, number, call):
    real, calls = getattr(os, call), []

    def failing(fd, *data):
        calls.append(fd)
        if len(calls) > 3 + (call == "fsync"):  # the first fsync is that of the folder
            raise OSError(number, os.strerror(number))
        return real(fd, *data)

    monkeypatch.setattr(os, call, failing)
    outcome = tune(tmp_path)
    monkeypatch.undo()
    full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    assert (outcome.stopped, outcome.error.code) == ("log", "log.full" if full else "log.unwritable")
    assert outcome.status == "ok" and outcome.best is not None
    reader = LogReader(tmp_path)
    assert len(list(reader.records())) == 3 and reader.damaged == 0


def test_a_read_only_place_is_known_before_anything_is_measured(tmp_path, monkeypatch):
    real = os.open

    def denied(path, flags, *mode, **more):
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *mode, **more)

    write(tmp_path, [made(1)])
    monkeypatch.setattr(os, "open", denied)
    measured = []
    with pytest.raises(LogError) as caught:
        tune(tmp_path, measure=lambda *_: measured.append(1) or OK)
    assert caught.value.code == "log.unwritable" and not measured
    assert len(list(LogReader(tmp_path).records())) == 1, "it can still be read"


@linux
def test_two_processes_on_one_directory(tmp_path):
    """Neither waits for the other; the union of what they found is there, and the next run needs nothing."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(2)

    def measure(template, config, kind, remaining):
        if kind == "default":
            together.wait(60)
        return OK

    options = {"measure": measure, "trials": 8}
    both = [context.Process(target=tune, args=(tmp_path,), kwargs={"seed": n, **options}) for n in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    reader = LogReader(tmp_path)
    found = {r.config["x"] for r in reader.records()}
    assert len(found) >= 8 and reader.damaged == 0 and len(reader.segments()) == 2
    again = tune(tmp_path, trials=12)
    assert again.reused == len(found) and again.trials == 12 - len(found)


class Watch:
    """A wall clock that jumps by ``step`` seconds each time it is read."""

    def __init__(self, step):
        self.now, self.step = 1.8e9, step

    def time(self):
        self.now += self.step
        return self.now


@pytest.mark.parametrize("step", [-86_400.0, 86_400.0, 0.0])
def test_jumps_of_the_clock_change_nothing(tmp_path, monkeypatch, step):
    """Budgets are measured on the monotonic clock, and records keep their order."""
    from datetime import UTC, datetime

    watch = Watch(step)
    monkeypatch.setattr(time, "time", watch.time)
    monkeypatch.setattr(record, "_last", "")

    class Jumping(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.fromtimestamp(watch.time(), zone or UTC)

    monkeypatch.setattr(record, "datetime", Jumping)
    began = time.monotonic()
    outcome = tune(tmp_path, budget_s=20.0)
    assert outcome.trials == 12 and outcome.stopped in ("trials", "exhausted")
    assert 0 <= outcome.elapsed_s <= time.monotonic() - began
    times = [decode(line).started for line in Path(outcome.log_path).read_bytes().splitlines()]
    assert times == sorted(set(times)) and len(times) == 12
    good, bad = made(1, kind="final"), ME.record("final", "default", {"tile": 1}, {"status": "crashed"})
    assert log.choose([made(1), good, bad]) == [], "the later round counts, though the clock says otherwise"


def test_a_budget_ends_by_the_monotonic_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", Watch(1e6).time)

    def slow(*_):
        time.sleep(0.02)
        return OK

    outcome = tune(tmp_path, measure=slow, budget_s=0.1)
    assert outcome.stopped == "budget" and 1 <= outcome.trials < 12


@pytest.mark.parametrize("how", ["removed", "replaced", "renamed", "folder"])
def test_a_segment_that_was_moved_away_gets_a_successor(tmp_path, how):
    """A machine whose clock is a day ahead takes a live segment for an old one and compacts it."""
    records = [made(n) for n in range(3)]
    with LogWriter(tmp_path, ME.workload) as writer:
        writer.append(records[0])
        first = writer.path
        if how == "removed":
            first.unlink()
        elif how == "replaced":
            log.write_whole(first, first.read_bytes())
        elif how == "renamed":
            first.rename(first.with_name(first.name + ".damaged"))
        else:
            first.parent.rename(tmp_path / "elsewhere")
        for r in records[1:]:
            writer.append(r)
        assert writer.path != first or how in ("removed", "renamed", "folder")
    found = [r.config["tile"] for r in LogReader(tmp_path).records()]
    assert sorted(found) == ([0, 1, 2] if how in ("replaced", "folder") else [1, 2])
