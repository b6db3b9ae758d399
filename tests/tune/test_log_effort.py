"""How much work a large log is: each line is parsed and summed once, each key is made once, and nobody visits it."""

import subprocess
import sys

import pytest
from records import made, write

from tensorir.tune import choosing, record, store
from tensorir.tune.log import LogReader, best, choose

COUNT = """
import gc, sys
from tensorir.tune.log import LogReader
seen = []
gc.callbacks.append(lambda phase, info: seen.append(phase))
kept = list(LogReader(sys.argv[1]).records())
print(len(kept), seen.count("start"), gc.isenabled())
"""


def test_the_collector_does_not_visit_records_while_they_pile_up(tmp_path):
    trace = [["split", ["c.i", [None, n]], {}] for n in range(1000)]
    write(tmp_path, [made(n, trace=trace) for n in range(60)])
    asked = subprocess.run([sys.executable, "-c", COUNT, tmp_path], capture_output=True, text=True, check=True)
    records, collections, enabled = asked.stdout.split()
    assert records == "60" and enabled == "True"
    assert int(collections) < 100, "a collection for each 700 of 180,000 containers would be 257"


def test_each_line_is_parsed_and_summed_once(tmp_path, monkeypatch):
    write(tmp_path, [made(n) for n in range(20)])
    calls = []
    for name in ("read_json", "canonical"):
        given = getattr(record, name)
        monkeypatch.setattr(record, name, lambda x, name=name, given=given: calls.append(name) or given(x))
    reader = LogReader(tmp_path)
    assert best(reader)
    assert sorted(calls) == ["canonical"] * 20 + ["read_json"] * 20


def test_each_configuration_gets_its_key_once(monkeypatch):
    records = [made(n, kind=kind) for n in range(20) for kind in ("trial", "final")]
    calls = []
    given = choosing.key_of
    monkeypatch.setattr(choosing, "key_of", lambda r: calls.append(r["id"]) or given(r))
    assert len(choose(records)) == 20
    assert sorted(calls) == sorted(r["id"] for r in records)


def test_only_the_first_record_is_read_where_only_that_is_wanted(tmp_path, monkeypatch):
    write(tmp_path, [made(n) for n in range(20)])
    calls = []
    given = store.decode
    monkeypatch.setattr(store, "decode", lambda line: calls.append(line) or given(line))
    next(LogReader(tmp_path).records())
    assert len(calls) == 1


def test_records_before_a_failure_are_read_first():
    def entries():
        yield from (store.Entry(None, n, b"x" * 10) for n in range(50))
        raise OSError("gone")

    read = store._in_batches(entries())
    assert [next(read).line for _ in range(50)] == list(range(50))
    with pytest.raises(OSError, match="gone"):
        next(read)
