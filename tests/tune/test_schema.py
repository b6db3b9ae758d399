"""docs/tuning-log.schema.json says what the package checks of a record, as far as a schema can."""

import itertools
import json
import math
from pathlib import Path

import pytest
from records import ME, ok, text_of
from records import made as record_of

from tensorir.tune.record import (
    MAX_DEPTH,
    MAX_LINE,
    RECORD_FIELDS,
    REQUIRED_FIELDS,
    STATUSES,
    VERSION,
    BadRecord,
    decode,
    seal,
)

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads((Path(__file__).parents[2] / "docs/tuning-log.schema.json").read_text(encoding="utf-8"))
CHECKER = jsonschema.Draft202012Validator(SCHEMA)


def made(**fields):
    return text_of(record_of(**fields))


def accepted(r):
    try:
        decode(json.dumps(r).encode())
    except BadRecord:
        return False
    return True


def test_it_is_a_schema_and_names_every_field():
    CHECKER.check_schema(SCHEMA)
    assert set(SCHEMA["required"]) == {*REQUIRED_FIELDS, "crc"}
    assert set(SCHEMA["properties"]) == {*RECORD_FIELDS, "crc"}
    assert set(SCHEMA["properties"]["status"]["enum"]) == STATUSES
    assert SCHEMA["properties"]["v"]["const"] == VERSION
    assert str(MAX_LINE) in SCHEMA["description"] and f" {MAX_DEPTH} " in SCHEMA["description"]


def whole():
    """Records as the package makes them, every status and every optional field among them."""
    yield made(detail={"output": "x"}, flags=["unstable_timing"], trace=[["split", ["C.i", [None, 4]], {}]], of="ab12")
    yield made(trace="s.split(…)", resources={"registers": 3}, detail="words", kind="final", round="ab12")
    yield made(drift=1.5)
    yield text_of(ME.record("trial", "t", {}, ok(check=None, load={"seconds": 0.1, "others": 0.2})))
    yield text_of(ME.record("trial", "t", {}, {"status": "crashed"}))
    for status in sorted(STATUSES - {"ok"}):
        check = {"ok": False, "max_err": math.inf}
        yield text_of(ME.record("trial", "t", {"a": [1]}, {"status": status, "check": check}))


def test_every_record_of_ours_fits():
    for r in whole():
        CHECKER.validate(r)
        assert accepted(r)


VALUES = [
    10**400, {"ok": True, "max_err": -(10**400)}, {"ok": True, "max_err": 1}, [10**400],
    None, True, False, 0, 1, -1, 2, 7, 0.5, -0.5, 1e-9, 86399.0, 86400, 1e300, "", "x", "ok", "trial", "final",
    "nan", 5e-324, 100, 100.5, 0.01, 0.0099,
    "-inf", "é" * 201, "x" * 80, "x" * 81, "x" * 101, "x" * 70_000, "ab" * 32, "AB" * 32, "ab" * 33, "0123abcd", "../x",
    "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456+00:00", "2026-01-01 00:00:00", "yesterday", [], [1], [0.5],
    [0.5, 0], [0.5, None], ["x"], [""], [["x"]], {}, {"a": 1}, {"a": "b"}, {"name": "a", "driver": "b"}, {"name": "a"},
    {"name": "a", "driver": 1}, {"name": "a", "driver": "b", "target": "c"},
    {"name": "a", "driver": "b", "target": [5]}, {"ok": True}, {"ok": False}, {"ok": 1}, {"ok": True, "max_err": "nan"},
    {"ok": True, "max_err": "big"}, {"ok": True, "max_err": None}, {"ok": True, "max_err": True},
    {"name": "a", "time_s": 1.0, "low_s": 0.5, "high_s": 2.0, "samples": [1.0]},
    {"name": "a", "time_s": 1.0, "low_s": 0.5, "high_s": 2.0, "samples": [], "spread": 1e308},
    {"name": "a", "time_s": 1.0, "low_s": 0.5, "high_s": 2.0, "samples": [], "spread": "wide"},
    {"name": "a", "time_s": 1.0, "low_s": 0.5, "high_s": 86400, "samples": []},
    {"name": "a", "time_s": 1.0, "low_s": None, "high_s": None, "samples": []},
    *sorted(STATUSES - {"ok"}),
]  # fmt: skip


def fields():
    return [*RECORD_FIELDS, "crc", "something else"]


@pytest.mark.parametrize("field", fields())
def test_both_refuse_the_same(field):
    """Any value in any field, in records that are ok and that are not."""
    good = made(detail={}, flags=[], of="ab12")
    bad = text_of(ME.record("trial", "t", {}, {"status": "crashed", "detail": {"signal": "SIGSEGV"}}))
    refused = 0
    for base, value in itertools.product((good, bad), VALUES):
        changed = {**base, field: value}
        r = seal(changed) if field != "crc" else changed
        if field == "crc" and isinstance(value, str) and len(value) == 8:
            continue  # which of them is the right one a schema cannot say
        assert CHECKER.is_valid(r) == accepted(r), (field, value)
        refused += not accepted(r)
    assert refused or field == "something else"


@pytest.mark.parametrize("field", fields()[:-1])
def test_both_miss_the_same(field):
    r = seal({k: v for k, v in made().items() if k != field})
    if field == "crc":
        del r["crc"]
    assert CHECKER.is_valid(r) == accepted(r)


def test_what_belongs_together():
    for good, bad in [
        (made(), {"status": "crashed"}),
        (made(), {"time_s": None}),
        (made(), {"samples": []}),
        (made(), {"low_s": None}),
        (made(), {"v": 1}),
        (made(), {"check": {"ok": False}}),
        (text_of(ME.record("trial", "t", {}, {"status": "crashed"})), {"time_s": 1e-3}),
    ]:
        r = seal({**good, **bad})
        assert CHECKER.is_valid(good) and not CHECKER.is_valid(r) and not accepted(r)
