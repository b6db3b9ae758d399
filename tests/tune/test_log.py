"""The tuning log: every complete record survives, nothing damaged or forged is ever chosen, nothing is executed."""

import errno
import json
import multiprocessing
import os
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records import DEVICE, ME, made, ok, text_of, write

from tensorir.tune import log
from tensorir.tune.log import BadRecord, LogError, LogReader, LogWriter, RunIdentity
from tensorir.tune.record import ESTIMATOR, MAX_LINE, checksum, decode, encode, interval, slug


def test_what_is_written_is_what_is_read(tmp_path):
    records = [made(n, detail={"output": "é\x1b"}, trace="s.split(…)", flags=["unstable_timing"]) for n in range(5)]
    path = write(tmp_path, records)
    assert path.parent == tmp_path / slug(ME.workload) and path.suffix == ".jsonl" and str(os.getpid()) in path.name
    assert list(LogReader(tmp_path).records()) == records
    for line in path.read_bytes().splitlines():
        record = json.loads(line)
        assert record["v"] == 2 and record["estimator"] == ESTIMATOR and record["crc"] == checksum(record)


def test_a_record_made_for_other_limits_is_not_an_answer():
    def on(target):
        device = {**DEVICE, "target": target} if target else DEVICE
        return RunIdentity(ME.workload, ME.compute, device, ME.versions)

    wide, narrow = "opencl -registers=32 -vector_bytes=64", "opencl"
    assert on(wide).accepts(made(identity=on(wide)))
    assert not on(wide).accepts(made(identity=on(narrow)))
    assert on(wide).accepts(made(identity=on(None))), "older records do not say"


def test_folder_is_empty_or_missing(tmp_path):
    LogWriter(tmp_path, "x").close()
    assert not list(tmp_path.rglob("*.jsonl")), "an unused segment leaves no file"
    assert not list(LogReader(tmp_path / "nowhere").records())


def test_every_cut_keeps_the_complete_records(tmp_path):
    """In a folder; ``test_faults`` tries every byte."""
    records = [made(n) for n in range(3)]
    path = write(tmp_path, records)
    whole = path.read_bytes()
    ends = [n for n, byte in enumerate(whole) if byte == ord("\n")]
    for cut in sorted({*range(0, len(whole), 37), *(e + n for e in ends for n in (-1, 0, 1))}):
        path.write_bytes(whole[:cut])
        reader = LogReader(tmp_path)
        complete = sum(end <= cut for end in ends)
        assert list(reader.records()) == records[:complete]
        assert reader.damaged == (cut > 0 and cut not in ends and cut - 1 not in ends)


@pytest.mark.parametrize("cut", [1, 300, -2])
def test_append_after_a_torn_line_starts_afresh(tmp_path, cut):
    first, second = made(1), made(2)
    path = write(tmp_path, [first])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut])
    with LogWriter.resume(path) as writer:
        writer.append(second)
    reader = LogReader(path)
    assert list(reader.records()) == [first, second] and reader.damaged == 1
    assert reader.summary() == "1 damaged line ignored"


def changed(**fields):
    return json.dumps(text_of(made(), **fields)).encode()


BAD = {
    "garbage": b"\xff\xfe\x00garbage",
    "not JSON": b"[[[[",
    "no object": b"[1, 2]",
    "depth bomb": b'{"v":1,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested": changed(config={"a": json.loads("[" * 20 + "]" * 20)}),
    "long": b'{"v":1,"text":"' + b"x" * MAX_LINE + b'"}',
    "endless": b"y" * (3 * MAX_LINE + 17),
    "duplicate key": json.dumps(text_of(made())).replace("{", '{"v":1,', 1).encode(),
    "nan": json.dumps({**text_of(made()), "time_s": float("nan")}).encode(),
    "infinite": encode(made()).rstrip().replace(b'"time_s":0.001', b'"time_s":1e999'),
    "negative": changed(time_s=-1.0),
    "zero": changed(time_s=0),
    "boolean time": changed(time_s=True),
    "text time": changed(time_s="1e-9"),
    "bad sample": changed(samples=[1e-3, None]),
    "no samples": changed(samples=[]),
    "status": changed(status="OK"),
    "status with detail": changed(status="crashed(SIGSEGV)", time_s=None),
    "failed but timed": changed(status="crashed"),
    "ok but wrong": changed(check={"ok": False, "max_err": 3, "shapes": []}),
    "path as id": changed(id="../../etc"),
    "config list": changed(config=[1]),
    "device text": changed(device="cpu"),
    "time zone": changed(started="yesterday"),
    "surrogate": changed(workload="a\ud800"),
    "huge integer": encode(made()).rstrip().replace(b'"v":2', b'"v":' + b"9" * 5000),
    "wrong crc": encode(made()).rstrip().replace(b"0.001", b"0.002"),
    "crc gone": json.dumps({k: v for k, v in text_of(made()).items() if k != "crc"}).encode(),
}


@pytest.mark.parametrize("name", BAD)
def test_damage_is_counted_and_never_chosen(tmp_path, name):
    good = made(7, 5e-3)
    path = write(tmp_path, [good])
    path.write_bytes(BAD[name] + b"\n" + path.read_bytes() + BAD[name])
    reader = LogReader(tmp_path)
    assert [c.record for c in log.best(reader)] == [good]
    assert reader.damaged == 2 and not reader.other and len(reader.findings) == 2
    with pytest.raises(BadRecord):
        decode(BAD[name])


@pytest.mark.parametrize("version", [1, 99])
def test_records_of_another_version_are_counted_apart_and_kept(tmp_path, version):
    line = b'{"v":%d,"kind":"trial","what":"ever"}\n' % version
    path = write(tmp_path, [made()])
    path.write_bytes(path.read_bytes() + line)
    reader = LogReader(tmp_path)
    assert len(list(reader.records())) == 1 and (reader.other, reader.damaged) == (1, 0)
    assert "1 line of another version of tensorir skipped" in reader.summary()
    path.rename(path.with_name("20200101T000000-elsewhere-1.jsonl"))
    os.utime(path.with_name("20200101T000000-elsewhere-1.jsonl"), (0, 0))
    log.compact(tmp_path)
    assert line in b"".join(p.read_bytes() for p in tmp_path.rglob("*.jsonl"))


def test_forged_record_is_never_best(tmp_path):
    path = write(tmp_path, [made(time_s=1e-3)])
    record = {**json.loads(path.read_text()), "id": "forged", "time_s": 1e-9}
    path.write_text(path.read_text() + json.dumps(record) + "\n")
    assert log.best(LogReader(tmp_path))[0].time_s == 1e-3


def test_reading_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "__import__('os').system('touch pwned')"
    write(tmp_path, [made(n, trace=code, resources={code: code}) for n in range(2)])
    log.best(LogReader(tmp_path))
    log.verify(LogReader(tmp_path))
    assert not (tmp_path / "pwned").exists()


def test_ids_are_read_once(tmp_path):
    record = made()
    write(tmp_path, [record])
    write(tmp_path, [record, made(8)])
    reader = LogReader(tmp_path)
    assert len(list(reader.records())) == 2 and reader.duplicates == 1


class TestChoosing:
    def test_fastest_checked_wins(self):
        unchecked = ME.record("trial", "default", {"tile": 1}, {**ok(1e-6), "check": None})
        failed = ME.record("trial", "default", {"tile": 2}, {"status": "crashed", "detail": {"signal": "SIGSEGV"}})
        ranked = log.choose([unchecked, failed, made(3, 3e-3), made(4, 2e-3)])
        assert [c.record.config["tile"] for c in ranked] == [4, 3]
        assert ranked[0].low_s <= ranked[0].time_s <= ranked[0].high_s

    def test_once_wrong_never_chosen(self):
        wrong = ME.record(
            "trial", "default", {"tile": 3}, {"status": "wrong_result", "check": {"ok": False, "max_err": float("nan")}}
        )
        assert wrong.check["max_err"] == "nan"
        assert [c.record.config["tile"] for c in log.choose([made(3, 1e-6), wrong, made(4)])] == [4]

    def test_who_lost_the_race_is_not_the_best_at_the_same_time(self):
        trials = [made(n, 1e-3) for n in range(6)]
        finals = [
            made(n, 1e-3, kind="final", round="a", race={"standing": "tie" if n == 3 else "slower"}) for n in range(6)
        ]
        assert log.choose([*trials, *finals])[0].record.id == trials[3].id

    def test_final_round_is_believed(self):
        lucky, steady = made(1, 0.99e-3), made(2, 1.00e-3)
        finals = [made(1, 1.05e-3, kind="final", of=lucky.id), made(2, 1.01e-3, kind="final", of=steady.id)]
        ranked = log.choose([lucky, steady, *finals])
        assert ranked[0].record == steady and ranked[0].confirmed and ranked[0].time_s == 1.01e-3

    def test_unconfirmed_must_win_clearly(self):
        final = made(1, 1.00e-3, kind="final")
        assert log.choose([final, made(2, 0.99e-3)])[0].record == final
        assert log.choose([final, made(2, 0.90e-3)])[0].record.config["tile"] == 2

    def test_times_are_of_one_pace(self):
        slow_hour, quick = made(1, 0.8e-3, drift=2.5), made(2, 1.0e-3)
        assert [(c.record.config["tile"], c.time_s) for c in log.choose([quick, slow_hour])] == [
            (1, 8e-4),
            (2, 1e-3),
        ]

    def test_a_busy_hour_decides_nothing(self):
        """Four is faster than one, timed while the machine was half as fast; two, the default, was in both rounds."""
        quiet = [made(n, t, kind="final", round="a") for n, t in ((1, 1.0e-3), (2, 2.0e-3))]
        busy = [made(n, t, kind="final", round="b") for n, t in ((4, 1.8e-3), (2, 4.0e-3))]
        ranked = log.choose([*quiet, *busy])
        assert [(c.record.config["tile"], c.time_s, c.round) for c in ranked] == [
            (4, 1.8e-3, 0), (1, 2.0e-3, 1), (2, 4.0e-3, 0)
        ]  # fmt: skip
        assert [c.confirmed for c in ranked] == [True, False, True] and ranked[1].high_s == 2.2e-3
        assert ranked[1].against(ranked[0]) == 2.0e-3
        slow = [made(n, t, kind="final", round="b") for n, t in ((4, 2.1e-3), (2, 4.0e-3))]
        assert [c.record.config["tile"] for c in log.choose([*quiet, *slow])] == [1, 4, 2]
        close = [made(n, t, kind="final", round="b") for n, t in ((4, 2.02e-3), (2, 4.0e-3))]
        assert log.choose([*quiet, *close])[0].confirmed, "what is from another round must win clearly"

    def test_rounds_are_linked_in_chains_or_not_at_all(self):
        """Times grow twofold from round to round; the oldest has nothing in common with any."""
        rounds = {"x": (8, 9), "a": (1, 2), "b": (2, 3), "c": (3, 4)}
        finals = [
            made(n, 1e-3 * n * 2**k, kind="final", round=name)
            for k, (name, some) in enumerate(rounds.items())
            for n in some
        ]
        trials = [made(8, 0.5e-3), made(9, 9e-3)]
        ranked = log.choose([*trials, *finals])
        assert [(c.record.config["tile"], c.round) for c in ranked if c.round is not None] == [
            (1, 2), (2, 1), (3, 0), (4, 0)
        ]  # fmt: skip
        assert [round(c.time_s * 1e3) for c in ranked if c.round is not None] == [8, 16, 24, 32]
        assert [(c.record.config["tile"], c.time_s) for c in ranked if c.round is None] == [(8, 0.5e-3), (9, 9e-3)]
        lost = log.choose(finals)  # without its trial: what is left of it
        assert {c.record.config["tile"] for c in lost} == {1, 2, 3, 4, 8, 9}

    def test_records_from_before_rounds_had_names(self):
        """What was written at once is of one round, what was written later of another."""

        def old(tile, time_s, started):
            return replace(made(tile, time_s, kind="final"), started=f"2026-01-01T{started}Z")

        first = [old(1, 1.0e-3, "10:00:00.1"), old(2, 2.0e-3, "10:00:00.9")]
        later = [old(4, 1.8e-3, "12:00:00"), old(2, 4.0e-3, "12:00:00.5")]
        assert [(c.record.config["tile"], c.round) for c in log.choose([*first, *later])] == [(4, 0), (1, 1), (2, 0)]
        impossible = [old(1, 1.0e-3, "99:99:99"), old(2, 2.0e-3, "99:99:99")]
        assert [c.round for c in log.choose(impossible)] == [0, 0]

    def test_a_round_of_what_failed_is_no_level(self):
        bad = ME.record("final", "default", {"tile": 3}, {"status": "crashed", "round": "b"})
        ranked = log.choose([made(1, kind="final", round="a"), made(3, 0.5e-3), bad])
        assert [(c.record.config["tile"], c.round) for c in ranked] == [(1, 0)]

    def test_failed_final_disqualifies(self):
        bad = ME.record("final", "default", {"tile": 1}, {"status": "crashed"})
        lost = ME.record("final", "default", {"tile": 2}, {"status": "device_lost"})
        assert [c.record.config["tile"] for c in log.choose([made(1), bad, made(2), lost])] == [2]

    def test_of_several_sources_the_latest_comes_first(self):
        """Its template was changed: the old one's time and its being wrong say nothing of the new one."""
        fast = made(1, source_sha256="aa" * 32)
        slow = made(1, 0.5, source_sha256="bb" * 32, started="2030-01-01T00:00:00Z")
        assert [c.record.id for c in log.choose([slow, fast])] == [slow.id, fast.id]
        bad = ME.record("trial", "default", {"tile": 1}, {"status": "wrong_result", "source_sha256": "aa" * 32})
        assert [c.record.id for c in log.choose([fast, slow, bad])] == [slow.id]
        bad = ME.record("trial", "default", {"tile": 1}, {"status": "wrong_result"})  # of nobody knows which
        assert log.choose([fast, slow, bad]) == []

    def test_only_the_same_everything_is_usable(self):
        others = [
            RunIdentity(ME.workload, "other", DEVICE, ME.versions),
            RunIdentity(ME.workload, ME.compute, {**DEVICE, "driver": "4"}, ME.versions),
            RunIdentity(ME.workload, ME.compute, {**DEVICE, "name": "gpu"}, ME.versions),
            RunIdentity(ME.workload, ME.compute, DEVICE, {**ME.versions, "compiler": "llvm 15"}),
        ]
        newer_numpy = RunIdentity(ME.workload, ME.compute, DEVICE, {**ME.versions, "numpy": "3.0"})
        cancelled = ME.record("trial", "default", {"tile": 90}, {"status": "cancelled"})
        records = [
            *(made(n, identity=i) for n, i in enumerate(others)),
            made(10, identity=newer_numpy),
            made(11),
            cancelled,
        ]
        assert [r.config["tile"] for r in log.usable(records, ME)] == [10, 11]

    def test_best_per_workload_and_device(self, tmp_path):
        there = RunIdentity(ME.workload, ME.compute, {**DEVICE, "name": "gpu"}, ME.versions)
        write(tmp_path, [made(1, 2e-3), made(2, 1e-3), made(3, 1e-4, identity=there)])
        assert {(c.record.device["name"], c.time_s) for c in log.best(LogReader(tmp_path))} == {
            ("cpu", 1e-3),
            ("gpu", 1e-4),
        }
        assert not log.best(LogReader(tmp_path), compute="unknown")


class TestVerbs:
    def test_listing_show_stats(self, tmp_path):
        records = [
            made(1, 2e-3),
            made(2, 1e-3),
            ME.record("trial", "default", {"tile": 3}, {"status": "compile_error"}),
        ]
        records.append(made(2, 1.1e-3, kind="final", of=records[1].id, flags=["unstable_timing"]))
        write(tmp_path, records)
        (row,) = log.listing(LogReader(tmp_path))
        assert (row["trials"], row["ok"], row["best_s"], row["workload"]) == (3, 2, 1.1e-3, ME.workload)
        assert log.show(LogReader(tmp_path), records[1].id[:9]) == [records[1], records[3]]
        assert log.show(LogReader(tmp_path), "") == []
        counts = log.stats(LogReader(tmp_path))
        assert (
            counts["counts"] == {"ok": 2, "compile_error": 1}
            and counts["finals"] == 1
            and counts["flags"] == {"unstable_timing": 1}
        )

    def test_verify_finds_stale_sources(self, tmp_path):
        fresh, stale, foreign = made(1), made(2, source_sha256="cd" * 32), made(3)
        path = write(tmp_path, [fresh, stale, foreign])
        answer = log.verify(LogReader(tmp_path), lambda r: None if r.config["tile"] == 3 else "ab" * 32)
        assert not answer["ok"] and answer["stale"] == [stale.id] and answer["unknown"] == 1 and answer["records"] == 3
        path.write_bytes(path.read_bytes() + b"{")
        assert log.verify(LogReader(tmp_path))["findings"] == [{"file": str(path), "line": 4, "reason": "not JSON"}]

    def test_merge_is_commutative_and_idempotent(self, tmp_path):
        other = RunIdentity("conv2d n=1", "zzz", DEVICE, ME.versions)
        shared = made(5)
        write(tmp_path / "a", [made(1), shared])
        write(tmp_path / "b", [shared, made(2)])
        write(tmp_path / "b", [made(3, identity=other)], "conv2d n=1")
        log.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "ab")
        log.merge([tmp_path / "b", tmp_path / "a"], tmp_path / "ba")
        log.merge([tmp_path / "b", tmp_path / "a", tmp_path / "ab"], tmp_path / "ba")
        ab, ba = (
            {p.relative_to(r): p.read_bytes() for p in r.rglob("*.*")} for r in (tmp_path / "ab", tmp_path / "ba")
        )
        assert ab == ba and len(ab) == 2
        assert len(list(LogReader(tmp_path / "ab").records())) == 4
        with pytest.raises(LogError) as caught:
            log.merge([tmp_path / "missing"], tmp_path / "x")
        assert caught.value.code == "log.unreadable"

    def test_compact_spares_live_and_damaged_segments(self, tmp_path):
        done = [write(tmp_path, [made(n)]) for n in range(2)]
        hurt = write(tmp_path, [made(8)])
        hurt.write_bytes(hurt.read_bytes() + b"torn")
        old = []
        for n, path in enumerate([*done, hurt]):
            old.append(path.rename(path.with_name(f"20200101T00000{n}-elsewhere-1.jsonl")))
            os.utime(old[-1], (0, 0))
        live = write(tmp_path, [made(9)])
        before = {r.id for r in LogReader(tmp_path).records()}
        answer = log.compact(tmp_path)
        assert live.exists() and not any(p.exists() for p in old) and answer["kept_damaged"] == 1
        assert old[2].with_name(old[2].name + ".damaged").read_bytes().endswith(b"torn")
        reader = LogReader(tmp_path)
        assert {r.id for r in reader.records()} == before and reader.damaged == 0
        assert log.compact(tmp_path)["replaced"] == []


class TestDisk:
    def test_full_disk_leaves_a_valid_file(self, tmp_path, monkeypatch):
        writer = LogWriter(tmp_path, "x")
        first = made(1)
        writer.append(first)
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:100]))
        with pytest.raises(LogError) as caught:
            writer.append(made(2))
        assert caught.value.code == "log.full" and list(LogReader(tmp_path).records()) == [first]

        def full(fd, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(LogError, match="No space left"):
            writer.append(made(3))
        monkeypatch.setattr(os, "write", real)
        monkeypatch.setattr(os, "fsync", lambda fd: full(fd, b""))
        with pytest.raises(LogError):
            writer.append(made(4))
        monkeypatch.undo()
        last = made(5)
        writer.append(last)
        reader = LogReader(tmp_path)
        assert list(reader.records()) == [first, last] and reader.damaged == 0

    def test_resuming_touches_only_regular_files_and_removes_none(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.jsonl")
        with pytest.raises(LogError, match="not a regular file"):
            LogWriter.resume(tmp_path / "pipe.jsonl")
        empty = tmp_path / "empty.jsonl"
        empty.touch()
        LogWriter.resume(empty).close()
        assert empty.exists(), "only a segment that this writer made may be removed"

    def test_unwritable_and_unreadable_places(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(LogError) as caught:
            LogWriter(tmp_path / "file", "x")
        assert caught.value.code == "log.unwritable" and "--log" in str(caught.value)
        for place in (tmp_path / "pipe.jsonl", tmp_path / ("x" * 300)):
            if len(place.name) < 255:
                os.mkfifo(place)
            with pytest.raises(LogError) as caught:
                list(LogReader(place).records())
            assert caught.value.code == "log.unreadable"

    def test_what_has_a_segments_name_and_is_no_file_is_counted(self, tmp_path):
        """A pipe, a device, links to nothing and to themselves, a folder: others' things never break reading."""
        good = write(tmp_path, [made()])
        os.mkfifo(good.with_name("a-pipe.jsonl"))
        good.with_name("a-device.jsonl").symlink_to("/dev/zero")
        good.with_name("a-loop.jsonl").symlink_to("a-loop.jsonl")
        good.with_name("to-nothing.jsonl").symlink_to("nowhere")
        good.with_name("folder.jsonl").mkdir()
        reader = LogReader(tmp_path)
        assert len(list(reader.records())) == 1
        assert reader.damaged == 3 and {f.reason for f in reader.findings} == {"not a regular file"}
        before = sorted(p.name for p in good.parent.iterdir() if p != good)
        done = log.compact(tmp_path)
        assert not done["replaced"] and done["kept_damaged"] == 0
        assert set(before) < {p.name for p in good.parent.iterdir()}, "they are left alone"

    def test_permissions(self, tmp_path, monkeypatch):
        def denied(*args, **kwargs):
            raise PermissionError(errno.EACCES, "Permission denied")

        write(tmp_path, [made()])
        monkeypatch.setattr(os, "open", denied)
        with pytest.raises(LogError, match="Permission denied"):
            LogWriter(tmp_path, "x")
        with pytest.raises(LogError, match="Permission denied"):
            list(LogReader(tmp_path).records())

    def test_forked_child_may_not_write(self, tmp_path):
        writer = LogWriter(tmp_path, "x")
        writer._pid += 1
        with pytest.raises(LogError) as caught:
            writer.append(made())
        assert caught.value.code == "log.forked"


def _many(root, seed):
    with LogWriter(root, ME.workload) as writer:
        for n in range(25):
            writer.append(made(seed * 100 + n))


def test_concurrent_writers_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    group = [context.Process(target=_many, args=(tmp_path, n)) for n in range(6)]
    for process in group:
        process.start()
    for process in group:
        process.join(60)
    reader = LogReader(tmp_path)
    assert (
        len({r.config["tile"] for r in reader.records()}) == 150 and reader.damaged == 0 and len(reader.segments()) == 6
    )


@pytest.mark.parametrize(
    "name", ["../../x", "ä" * 10_000, "float", "main", "a;rm -rf ~", "", " ", "con", ".", "a\x00b", "x" * 300, "\ud800"]
)
def test_slugs_are_harmless(tmp_path, name):
    made = slug(name)
    assert made.replace("_", "a").replace("-", "a").isalnum() and made.isascii() and len(made) <= 64
    assert made == slug(name) != slug(name + "x")
    with LogWriter(tmp_path, name) as writer:
        assert writer.path.parent.parent == tmp_path


@given(st.text(), st.text())
def test_slugs_tell_workloads_apart(a, b):
    assert (slug(a) == slug(b)) == (a == b)


json_data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    config=st.dictionaries(st.text(max_size=6), json_data, max_size=4),
    trace=st.lists(json_data, max_size=3),
    time_s=st.floats(1e-9, 1e3),
)
def test_round_trip(config, trace, time_s):
    record = ME.record("trial", "t", config, ok(time_s, trace=trace, samples=[time_s]))
    assert decode(encode(record)) == record


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_any_damage_leaves_the_other_lines(tmp_path, data):
    records = [made(n) for n in range(4)]
    lines = [bytearray(encode(r)) for r in records]
    victim = data.draw(st.integers(0, 3))
    where = data.draw(st.integers(0, len(lines[victim]) - 2))
    lines[victim][where] ^= data.draw(st.integers(1, 255))
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"".join(lines))
    read = list(LogReader(file).records())
    others = [r for n, r in enumerate(records) if n != victim]
    assert [r for r in read if r in others] == others and all(r in records for r in read)


@given(junk=st.binary(max_size=200))
def test_junk_is_never_a_record(junk):
    with pytest.raises(BadRecord):
        decode(junk)


def test_bad_results_do_not_become_records():
    for result in (
        {},
        {"status": "fine"},
        {"status": "ok"},
        ok(float("nan")),
        ok(detail=object()),
        ok(trace="x" * MAX_LINE),
    ):
        with pytest.raises(BadRecord):
            ME.record("trial", "t", {}, result)
    fake = ME.record("trial", "t", {}, ok(id="mine", compute="other", kind="final", v=7))
    assert (fake.compute, fake.kind, fake.v) == (ME.compute, "trial", 2) and fake.id != "mine"
    assert ME.record("trial", "t", {}, {**ok(), "status": "crashed"}).time_s is None


def test_interval_of_the_median():
    assert interval([], 2.0) == (2.0, 2.0)
    assert interval([3.0, 1.0, 2.0], 2.0) == (1.0, 3.0)
    low, high = interval([float(n) for n in range(101)], 50.0)
    assert 38 < low < 45 and 55 < high < 62
    rng, inside = random.Random(1), 0
    for _ in range(400):
        low, high = interval([rng.gauss(0, 1) for _ in range(15)], 0.0)
        inside += low < 0 < high
    assert inside > 360


def test_a_writer_whose_segment_is_gone_closes_its_file(tmp_path):
    writer = LogWriter(tmp_path, "w")
    writer.path.unlink()
    opened = writer._fd
    writer.close()
    with pytest.raises(OSError):
        os.fstat(opened)
