"""How much work a large log is: each line is parsed and summed once, each key is made once, and nobody visits it."""

import json
import subprocess
import sys
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from records import made, write

from tensorir.tune import ranking, record, store
from tensorir.tune.log import LogReader, best, choose
from tensorir.tune.record import BadRecord, decode, encode

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


def reordered(line):
    """The line as other writers may order it."""
    return json.dumps(dict(reversed(json.loads(line).items())), separators=(", ", ": ")).encode() + b"\n"


@pytest.mark.parametrize("ours", [True, False])
def test_each_line_is_parsed_once_and_made_again_only_where_others_wrote_it(tmp_path, monkeypatch, ours):
    path = write(tmp_path, [made(n) for n in range(20)])
    if not ours:
        path.write_bytes(b"".join(map(reordered, path.read_bytes().splitlines())))
    calls = []
    for name in ("read_json", "canonical"):
        given = getattr(record, name)
        monkeypatch.setattr(record, name, lambda x, name=name, given=given: calls.append(name) or given(x))
    assert best(LogReader(tmp_path))
    lines = 20 + 1  # and that of the best, whole
    assert sorted(calls) == ["canonical"] * (0 if ours else lines) + ["read_json"] * lines


BODY = encode(made())[: -len(b',"crc":"01234567"}\n')]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (BODY + b',"kind":"trial"', "duplicate key"),
        (BODY + b',"x":1e999', "infinite number"),
        (BODY + b',"x":-1' + b"0" * 400 + b".0", "infinite number"),
        (BODY + b',"x":NaN', "NaN is not JSON"),
        (BODY + b',"x":"\\ud800"', "broken text"),
        (BODY + b',"x":"\xff"', "not UTF-8"),
        (BODY + b',"x":' + b"[" * 16 + b"]" * 16, "nested too deeply"),
        (BODY + b',"x":"[",y:' + b"[" * 16 + b"]" * 16, "not JSON"),
        (BODY + b',"x":"[","y":' + b"[" * 16 + b"]" * 16, "nested too deeply"),
        (BODY.replace(b'"v":2', b'"v":-2'), "bad v"),
    ],
)
def test_a_right_sum_of_the_bytes_is_not_enough(body, reason):
    line = body + b',"crc":"%08x"}\n' % zlib.crc32(body + b"}")
    with pytest.raises(BadRecord, match=reason):
        decode(line)


WORDS = st.text("[]{}a,'" + chr(34) + chr(92), max_size=3)
TREES = st.recursive(
    WORDS,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(WORDS, x, max_size=2),
    max_leaves=30,
)


@given(TREES, st.integers(10, 20))
@example({'"[': '"'}, 10)
@example({'\\"[': "\\"}, 10)
def test_depth_is_that_of_lists_and_dicts_whatever_strings_hold(inner, wrapped):
    value = inner
    for _ in range(wrapped):
        value = [value]

    def depth(x):
        inside = x.values() if isinstance(x, dict) else x if isinstance(x, list) else None
        return 0 if inside is None else 1 + max(map(depth, inside), default=0)

    tree = {"x": value}
    assert record._too_deep(record.canonical(tree)) == (depth(tree) > record.MAX_DEPTH)


def test_each_configuration_gets_its_key_once(monkeypatch):
    records = [made(n, kind=kind) for n in range(20) for kind in ("trial", "final")]
    calls = []
    given = ranking.key_of
    monkeypatch.setattr(ranking, "key_of", lambda r: calls.append(r.id) or given(r))
    assert len(choose(records)) == 20
    assert sorted(calls) == sorted(r.id for r in records)


def test_only_the_first_record_is_read_where_only_that_is_wanted(tmp_path, monkeypatch):
    write(tmp_path, [made(n) for n in range(20)])
    calls = []
    given = store.decode
    monkeypatch.setattr(store, "decode", lambda line: calls.append(line) or given(line))
    next(LogReader(tmp_path).records())
    assert len(calls) == 1


def test_records_before_a_failure_are_read_first():
    def entries():
        yield from (store.LogLine(None, n, b"x" * 10) for n in range(50))
        raise OSError("gone")

    read = store._in_batches(entries())
    assert [next(read).line for _ in range(50)] == list(range(50))
    with pytest.raises(OSError, match="gone"):
        next(read)
