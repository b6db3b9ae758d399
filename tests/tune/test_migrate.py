"""Logs of older versions: the machinery, proven with versions that there never were, and version 1."""

import json
import os

import pytest
from records import ME, finished, first, made, write

from tensorir.tune import log, record, schema
from tensorir.tune.arm import believed_time
from tensorir.tune.log import LogReader
from tensorir.tune.migrate import migrate
from tensorir.tune.record import BadRecord, OlderRecord, compares, decode, encode, migrated, seal, span, steady_s


@pytest.fixture
def later(monkeypatch):
    """As if this were version 3: version 2 renamed ``knobs`` to ``config``, version 3 put times into seconds."""

    def earliest(r):
        r["config"] = r.pop("knobs")
        return r

    def second(r):
        ms = r.pop("time_ms")
        return {**r, "time_s": None if ms is None else ms / 1000}

    monkeypatch.setattr(record, "VERSION", 3)
    monkeypatch.setattr(schema, "READ", frozenset({3}))
    monkeypatch.setattr(record, "MIGRATIONS", {1: earliest, 2: second})


def older(version, r):
    """A line as an earlier version would have written it."""
    r = {**r, "v": version, "time_ms": r["time_s"] and r["time_s"] * 1000}
    del r["time_s"]
    if version == 1:
        r["knobs"] = r.pop("config")
    return encode(seal(r))


def test_records_are_brought_forward_one_version_at_a_time(later):
    now = made(4, 2e-3)
    for version in (1, 2):
        with pytest.raises(OlderRecord):
            decode(older(version, now))
        assert migrated(older(version, now)) == now
    assert migrated(encode(now)) == now
    failed = ME.record("trial", "t", {}, {"status": "crashed"})
    assert migrated(older(1, failed)) == failed


def test_damage_is_damage_in_every_version(later):
    line = older(1, made())
    for bad in (
        line.replace(b'"time_ms":1.0', b'"time_ms":1.5'),
        encode(seal({k: v for k, v in json.loads(line).items() if k != "knobs"})),
        encode(seal({**json.loads(line), "knobs": [1]})),
        encode(seal({**json.loads(line), "time_ms": "1"})),
        encode(seal({**json.loads(line), "v": 0})),
        encode(seal({**json.loads(line), "v": 4})),
        line.replace(b"{", b'{"v":1,', 1),
    ):
        with pytest.raises(BadRecord):
            migrated(bad)


def test_a_log_is_migrated_once_and_nothing_is_lost(later, tmp_path):
    records = [made(n) for n in range(5)]
    path = write(tmp_path, records[:1])
    newer = b'{"v":99,"what":"ever"}\n'
    lines = [older(1, records[1]), b"damaged\n", older(2, records[2]), newer, older(1, records[3])[:-1]]
    path.write_bytes(path.read_bytes() + b"".join(lines))
    path = finished(path)
    current = finished(write(tmp_path, records[4:]), "20200101T000001-elsewhere-1.jsonl")
    untouched, before = current.stat(), path.read_bytes()
    reader = LogReader(tmp_path)
    assert len(list(reader.records())) == 2 and (reader.older, reader.newer, reader.damaged) == (3, 1, 1)
    assert "3 lines of an older version skipped (tensorir log migrate)" in reader.summary()

    answer = migrate(tmp_path)
    assert (answer["migrated"], answer["failed"], answer["files"]) == (3, 0, [str(path)])
    reader = LogReader(tmp_path)
    assert sorted(r["config"]["tile"] for r in reader.records()) == [0, 1, 2, 3, 4]
    assert (reader.older, reader.newer, reader.damaged) == (0, 1, 1)
    assert newer in path.read_bytes() and b"damaged\n" in path.read_bytes()
    (kept,) = tmp_path.rglob("*.older")
    assert kept.read_bytes() == before and answer["kept"] == [str(kept)]
    assert os.path.samestat(current.stat(), untouched)

    state = {p: p.read_bytes() for p in tmp_path.rglob("*.*")}
    again = migrate(tmp_path)
    assert (again["migrated"], again["files"]) == (0, [])
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.*")} == state


@pytest.mark.parametrize("links", [True, False])
def test_a_call_that_was_killed_is_done_again(later, tmp_path, monkeypatch, links):
    path = write(tmp_path, [made(1)])
    path.write_bytes(older(1, made(2)))
    path = finished(path)
    before = path.read_bytes()
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: os.open("/dev/null/x", 0))
    with monkeypatch.context() as context:
        real = log.write_whole

        def killed(where, content):
            if where == path:
                raise KeyboardInterrupt
            real(where, content)

        context.setattr("tensorir.tune.migrate.write_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            migrate(tmp_path)
    assert path.read_bytes() == before
    assert migrate(tmp_path)["migrated"] == 1
    assert all(p.read_bytes() == before for p in tmp_path.rglob("*.older")) and len(list(tmp_path.rglob("*.older"))) < 3
    assert [r["config"]["tile"] for r in LogReader(tmp_path).records()] == [2]


def test_what_is_written_to_is_left_alone(later, tmp_path):
    path = write(tmp_path, [made(1)])  # named for this process, which lives
    path.write_bytes(path.read_bytes() + older(1, made(2)))
    before = path.read_bytes()
    answer = migrate(tmp_path)
    assert answer["in_use"] == [str(path)] and not answer["files"] and path.read_bytes() == before


def test_a_line_that_cannot_be_migrated_stays(later, tmp_path):
    bad = encode(seal({**json.loads(older(1, made(1))), "knobs": None}))
    path = write(tmp_path, [made(3)])
    path.write_bytes(bad + older(1, made(2)))
    path = finished(path)
    for n in (1, 0):
        answer = migrate(tmp_path)
        assert (answer["migrated"], answer["failed"]) == (n, 1)
        assert bad in path.read_bytes()
        os.utime(path, (0, 0))


def test_merging_and_compacting_carry_older_lines_along(later, tmp_path):
    line = older(1, made(2))
    path = write(tmp_path / "a", [made(1)])
    path.write_bytes(path.read_bytes() + line)
    finished(path)
    answer = log.merge([tmp_path / "a"], tmp_path / "b")
    assert answer["older"] == 1 and not answer["damaged"]
    log.compact(tmp_path / "a")
    for root in ("a", "b"):
        assert line in b"".join(p.read_bytes() for p in (tmp_path / root).rglob("*.jsonl"))


def test_version_1_is_read_as_it_is_and_may_be_migrated(tmp_path):
    """Its times keep their meaning: what a trial took over its drift, and they compare with each other only."""
    trial, final = first(made(1, 3e-3, drift=1.5)), first(made(1, 2.5e-3, kind="final"))
    failed = first(ME.record("trial", "t", {}, {"status": "skipped_slow", "detail": {"at_least_s": 3.0}, "drift": 2.0}))
    path = write(tmp_path, [made(7)])
    path.write_bytes(path.read_bytes() + b"".join(map(encode, (trial, final, failed))))
    path = finished(path)
    before = list(LogReader(tmp_path).records())
    assert before[1:] == [trial, final, failed]
    assert migrate(tmp_path)["migrated"] == 3
    after = list(LogReader(tmp_path).records())
    assert after[0] == before[0] and {r["v"] for r in after} == {2}
    assert [r["id"] for r in after] == [r["id"] for r in before]
    for old, new in zip(before, after, strict=True):
        assert steady_s(new) == steady_s(old) and compares(new) == compares(old) == (old is before[0])
        assert believed_time(new) == believed_time(old)
        assert new["time_s"] is None or span(new) == span(old)
    assert [r["estimator"] for r in after[1:]] == [record.FIRST_ESTIMATOR] * 3
    assert migrate(tmp_path)["files"] == []


def test_what_is_of_no_version_is_not_migrated(tmp_path):
    path = finished(write(tmp_path, [made(1)]))
    path.write_bytes(path.read_bytes() + encode(seal({**made(2), "v": 0})))
    assert migrate(tmp_path) == {"files": [], "kept": [], "migrated": 0, "failed": 0, "in_use": []}
    assert record.VERSION == 2 and record.MIGRATIONS.keys() == {1}
