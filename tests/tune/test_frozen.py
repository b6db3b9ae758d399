"""Frozen choices: the file, what it refuses, and what is chosen for it."""

import io
import json

import pytest
from records import DEVICE, ME, made, text_of, write

from tensorir.tune import frozen, log
from tensorir.tune.frozen import frozen_records, frozen_text
from tensorir.tune.log import LogError, LogReader, RunIdentity
from tensorir.tune.record import BadRecord


def test_the_file_is_json_and_holds_the_records(tmp_path):
    records = [made(n, trace=[["split", ["C.i", [None, n]], {}]]) for n in range(3)]
    text = frozen_text(records)
    assert frozen_text(records[::-1]) == text
    document = json.loads(text)
    assert document["choices"] == [text_of(r) for r in sorted(records, key=lambda r: r.id)] and document["frozen"] == 1
    file = tmp_path / "frozen.json"
    for content in (text, text.replace(b"},\n", b"},\n")):
        file.write_bytes(content)
        assert [text_of(r) for r in LogReader(file).records()] == document["choices"]
    file.write_bytes(frozen_text([]))
    assert list(LogReader(file).records()) == []


def test_every_cut_and_every_flipped_byte_is_refused(tmp_path):
    text = frozen_text([made(1), made(2)])
    wrong = [text[:cut] for cut in range(12, len(text))]  # before that it does not say what it is
    wrong += [text[:n] + bytes([text[n] ^ 1]) + text[n + 1 :] for n in range(12, len(text))]
    for content in wrong:
        with pytest.raises(BadRecord):
            frozen_records(io.BytesIO(content))
    (tmp_path / "frozen.json").write_bytes(wrong[99])
    with pytest.raises(LogError) as caught:
        list(LogReader(tmp_path / "frozen.json").records())
    assert caught.value.code == "log.frozen-damaged"


def hostile():
    text = frozen_text([made(1), made(2)])
    head, body = text.split(b"\n", 1)
    return {
        "pretty": json.dumps(json.loads(text), indent=2).encode(),
        "compact": json.dumps(json.loads(text)).encode(),
        "behind": text + b" ",
        "twice": text + text,
        "bomb": head + b"\n" + b"[" * 200_000 + b"]" * 200_000 + b"\n]}\n",
        "long line": head + b"\n" + b"x" * (3 << 20) + b"\n]}\n",
        "code": b'{"frozen": __import__("os").abort()}\n',
        "huge version": b'{"frozen": ' + b"9" * 5000 + b"}\n",
        "no number": text.replace(b'"frozen": 1', b'"frozen": "1"'),
        "equal keys": head + b"\n" + body.replace(b"{", b'{"v":1,', 1),
        "NaN": head + b"\n" + body.replace(b'"time_s":0.001', b'"time_s":NaN'),
        "many": head + b"\n" + b"\n".join([body.split(b"\n")[0]] * 9),
    }


HOSTILE = hostile()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path, name, monkeypatch):
    monkeypatch.setattr(frozen, "MAX_CHOICES", 5)
    (tmp_path / "frozen.json").write_bytes(HOSTILE[name])
    with pytest.raises(LogError) as caught:
        list(LogReader(tmp_path / "frozen.json").records())
    assert caught.value.code == "log.frozen-damaged"


def test_other_versions_say_so(tmp_path):
    file = tmp_path / "frozen.json"
    text = frozen_text([made(1)])
    newer = json.dumps(text_of(made(), v=99), separators=(",", ":")).encode()
    for content in (text.replace(b'"frozen": 1', b'"frozen": 2'), text.split(b"\n")[0] + b"\n" + newer + b"\n]}\n"):
        file.write_bytes(content)
        with pytest.raises(LogError) as caught:
            list(LogReader(file).records())
        assert caught.value.code == "log.frozen-version"


def test_it_is_small():
    frozen.MAX_CHOICES, before = 2, frozen.MAX_CHOICES
    try:
        with pytest.raises(BadRecord):
            frozen_text([made(n) for n in range(3)])
    finally:
        frozen.MAX_CHOICES = before


def test_a_segment_among_others_is_never_a_frozen_file(tmp_path):
    """Only the file that was named decides; in a folder the same bytes are lines that are no records."""
    (tmp_path / "x.jsonl").write_bytes(frozen_text([made(1)]))
    reader = LogReader(tmp_path)
    assert [r.config["tile"] for r in reader.records()] == [1]  # its record's line is a record
    assert reader.damaged == 2


def test_one_choice_for_each_workload_and_device(tmp_path):
    def on(workload=ME.workload, versions=ME.versions, **device):
        return RunIdentity(workload, ME.compute, {**DEVICE, **device}, versions)

    write(tmp_path, [made(1, 2e-3), made(2, 1e-3)])
    write(tmp_path, [made(3, 3e-3, identity=on(name="gpu")), made(4, 1e-4, identity=on(target="opencl -registers=32"))])
    write(tmp_path, [made(5, identity=on("conv2d n=1")), made(6, identity=on(versions={"tensorir": "9"}))])
    write(tmp_path, [ME.record("trial", "default", {"tile": 7}, {"status": "crashed"})])
    choices, stale = log.freeze(LogReader(tmp_path))
    assert sorted(c.record.config["tile"] for c in choices) == [2, 3, 4, 5, 6] and not stale
    (only,), _ = log.freeze(LogReader(tmp_path), ["conv2d n=1"])
    assert only.record.config["tile"] == 5


def test_what_is_not_made_any_more_gives_way(tmp_path):
    fast, slow = made(1, 1e-3), made(2, 2e-3)
    write(tmp_path, [fast, slow])
    choices, stale = log.freeze(LogReader(tmp_path), (), lambda r: "cd" * 32 if r.config["tile"] == 1 else "ab" * 32)
    assert [c.record for c in choices] == [slow] and stale == [fast.id]
    assert log.freeze(LogReader(tmp_path), (), lambda r: None)[0][0].record == fast, "nobody can tell"
