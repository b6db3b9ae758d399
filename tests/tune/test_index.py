"""The index of a long log: the same answers whatever became of it and of the segments, and few lines decoded."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import ME, made, ok

from tensorir.tune import index, store
from tensorir.tune import log as logs
from tensorir.tune.brief import Stored, whole
from tensorir.tune.circumstances import Limits
from tensorir.tune.log import LogReader, LogWriter, choose, key_of, usable
from tensorir.tune.record import RECORD_FIELDS, Record, RunIdentity, encode
from tensorir.tune.selection import contenders, usable_rows

OTHER = RunIdentity(ME.workload, ME.compute, {**ME.device, "driver": "9"}, ME.versions)
SMALL = {"status": "resource_limit", "detail": {"limit": "host memory"}}
NOW = Limits(compile_s=1.0, memory_bytes=1 << 20)
FAILED = {"status": "compile_timeout", "detail": {"phase": "compile"}, "limits": {"compile_s": 1.0}}


def records(count, seed=0):
    """Trials and final rounds of two drivers, some failed, some twice, with several sources."""
    rng = np.random.default_rng(seed)
    found = []
    for n in range(count):
        who = OTHER if rng.integers(4) == 0 else ME
        tile, sha = int(rng.integers(count)), ("b" if rng.integers(9) == 0 else "a") * 64
        if rng.integers(6) == 0:
            memory = {"compile_s": 1.0, "memory_bytes": int(rng.integers(1 << 21))}
            failed = {**(SMALL if rng.integers(3) == 0 else FAILED), "limits": memory}
            found.append(who.record("trial", "default", {"tile": tile}, failed))
            continue
        extra = {"source_sha256": sha}
        if rng.integers(5) == 0:
            extra |= {"kind": "final", "round": f"r{n // 7}", "of": "ab12", "race": {"standing": "tie"}}
        found.append(made(tile, float(rng.uniform(1e-3, 1e-2)), identity=who, **extra))
    return found


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "LEAST_INDEXED_BYTES", 1000)
    monkeypatch.setattr(index, "RACY_NS", 0)
    for part in range(3):
        with LogWriter(tmp_path / "log", ME.workload) as writer:
            for record in records(30, part):
                writer.append(record)
    return tmp_path / "log"


def folder(log):
    return next(log.iterdir())


def answers(log):
    """What a search, a load and ``log verify`` ask."""
    reader = LogReader(log)
    brief = reader.brief()
    mine = brief.rows_of(ME.accepts)
    return (
        [whole(r) for r in brief.records(usable_rows(brief, ME, NOW))],
        [c.record.id for c in choose(brief.records(contenders(brief, mine, 5)))[:3]],
        (reader.damaged, reader.other, reader.duplicates, dict(reader.reasons)),
    )


def plainly(log):
    """The same from the lines alone."""
    reader = LogReader(log)
    every = list(reader.records())
    mine = [r for r in every if ME.accepts(r)]
    counts = reader.damaged, reader.other, reader.duplicates, dict(reader.reasons)
    return usable(every, ME, NOW), [c.record.id for c in choose(mine)[:3]], counts


def agree(log):
    have, want = answers(log), plainly(log)
    assert sorted(have[0], key=key_of) == sorted(want[0], key=key_of) and have[1:] == want[1:]


def test_the_index_says_what_the_lines_say(log):
    agree(log)
    assert (folder(log) / index.INDEX_NAME).exists()
    agree(log)


def test_known_lines_are_not_decoded_again(log, monkeypatch):
    answers(log)
    calls = []
    given_ = store.decode
    monkeypatch.setattr(store, "decode", lambda line: calls.append(line) or given_(line))
    brief = LogReader(log).brief()
    usable_rows(brief, ME, None)
    choose(brief.records(contenders(brief, brief.rows_of(ME.accepts), 5)))
    assert len(brief) == 90 and not calls
    with LogWriter(log, ME.workload) as writer:
        writer.append(made(500))
    assert len(LogReader(log).brief()) == 91 and len(calls) == 1, "the new one alone"


def test_a_field_that_is_not_in_the_index_is_read_from_the_line(log):
    answers(log)
    brief = LogReader(log).brief()
    by_id = {r.id: r for r in LogReader(log).records()}
    for record in brief.records():
        plain = by_id[record.id]
        assert isinstance(record, Stored) and whole(record) == plain and key_of(record) == key_of(plain)
        assert record.steady_s == plain.steady_s
        assert all(getattr(record, name) == getattr(plain, name) for name in RECORD_FIELDS)


def test_best_ls_and_show_ask_the_index(log, monkeypatch):
    every = list(LogReader(log).records())
    ranked = [choose(r for r in every if who.accepts(r)) for who in (ME, OTHER)]
    want = sorted((c[0].record.id, c[0].time_s) for c in ranked)
    answers(log)
    calls = []
    given_ = index.decode
    monkeypatch.setattr(index, "decode", lambda line: calls.append(line) or given_(line))
    reader = LogReader(log)
    found = logs.best(reader, workload=ME.workload)
    assert sorted((c.record.id, c.time_s) for c in found) == want and len(calls) <= 4
    assert all(isinstance(c.record, Record) for c in found) and not logs.best(reader, compute="other")
    (row,) = logs.listing(reader)
    trials = [r for r in every if r.kind == "trial"]
    assert (row["trials"], row["ok"]) == (len(trials), sum(r.status == "ok" for r in trials))
    assert row["best_s"] == min(c[0].time_s for c in ranked) and row["last"] == max(r.started for r in every)
    del calls[:]
    assert logs.show(reader, every[3].id) == [every[3]] and len(calls) == 1
    assert logs.show(reader, "ab12") == [r for r in every if r.id.startswith("ab12") or r.of == "ab12"]


def segments(log):
    return sorted(folder(log).glob("*.jsonl"))


def cut(log):
    os.truncate(segments(log)[0], segments(log)[0].stat().st_size // 2)


def torn(log):
    with segments(log)[0].open("ab") as file:
        file.write(encode(made(77))[:-20])


def appended(log):
    with segments(log)[1].open("ab") as file:
        file.write(b"\n\n{}\n" + encode(made(78)) + b'{"v": 99}\n' + encode(made(79))[:-1])


def edited(log):
    """In place, of the same size, with the same time."""
    path = segments(log)[1]
    before = path.stat()
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"status":"ok"', b'"status":"0k"', 3))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def copied(log):
    moved = log.with_name("moved")
    shutil.copytree(log, moved)
    shutil.rmtree(log)
    moved.rename(log)


def renamed(log):
    segments(log)[0].rename(segments(log)[0].with_name("z.jsonl"))


def twice(log):
    shutil.copy(segments(log)[0], folder(log) / "a.jsonl")


def removed(log):
    segments(log)[0].unlink()


def swapped(log):
    one, two, _ = segments(log)
    one.rename(folder(log) / "t")
    two.rename(one)
    (folder(log) / "t").rename(two)


def replaced(log):
    (folder(log) / "pipe.jsonl").symlink_to("/dev/null")


def other_version(log):
    path = folder(log) / index.INDEX_NAME
    head, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(head), "index": 99}).encode() + b"\n" + rest)


@pytest.mark.parametrize(
    "change",
    [cut, torn, appended, edited, copied, renamed, twice, removed, swapped, replaced, other_version],
    ids=lambda change: change.__name__,
)
def test_the_same_answers_after(log, change):
    answers(log)
    change(log)
    agree(log)
    agree(log)


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.integers(0, 255))
def test_a_damaged_index_is_made_again(place, flipped):
    """Bits flipped at one place of it; cut there for 0."""
    with tempfile.TemporaryDirectory() as parent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "LEAST_INDEXED_BYTES", 1000)
        log = Path(parent) / "log"
        with LogWriter(log, ME.workload) as writer:
            for record in records(8):
                writer.append(record)
        want = answers(log)
        path = folder(log) / index.INDEX_NAME
        text = bytearray(path.read_bytes())
        at = int(place * (len(text) - 1))
        if flipped:
            text[at] ^= flipped
        else:
            del text[at:]
        path.write_bytes(text)
        assert answers(log) == want


def test_a_log_that_cannot_be_written_has_no_index(log, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "read-only")

    monkeypatch.setattr(index.os, "replace", refused)
    agree(log)
    assert [p.suffix for p in folder(log).iterdir()] == [".jsonl"] * 3


def test_few_contenders_rank_as_all_do():
    every = records(400, 5)
    from tensorir.tune.brief import Briefs

    briefs = Briefs()
    for n, record in enumerate(every):
        briefs.add(record, 0, n, 0, 0)
    brief = briefs.made(every.__getitem__)
    mine = brief.rows_of(ME.accepts)
    some = contenders(brief, mine, 4)
    ranked = choose(r for r in every if ME.accepts(r))
    assert len(some) < mine.sum()
    assert [c.record.id for c in choose(brief.records(some))[:4]] == [c.record.id for c in ranked[:4]]


def test_a_long_log_of_failures_says_why_without_reading_lines(log, monkeypatch):
    from tensorir.tune.outcome import grouped_reasons

    answers(log)
    brief = LogReader(log).brief()
    brief.lines = None
    reasons = grouped_reasons(brief.records())
    assert reasons[0]["reason"] == "compile_timeout: compile" and ok()
