"""The schema of a line of the tuning log: each field, whether it must be there, and what it may hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

ESTIMATOR = "paired-slots"
"""The name of the estimator of ``tensorir.runtime.estimate`` in records and documents."""
VERSION = 2
"""Of the schema; records of others are left where they are."""
MOST = 1e308  # of numbers that are measurements
MOST_DRIFT = 100.0  # by how much a machine's speed may have changed within a run
STATUSES = frozenset(
    {"ok", "illegal_schedule", "compile_error", "compile_timeout", "resource_limit", "launch_error", "run_timeout"}
    | {"crashed", "device_error", "device_lost", "wrong_result", "nondeterministic", "skipped_slow", "cancelled"}
    | {"internal_error"}
)
_NUMBER_WORDS = frozenset({"nan", "inf", "-inf"})  # what JSON has no numbers for, see child.plain


def _number(value: Any) -> bool:
    """A number that a float can hold; whole numbers in JSON may be of any size."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MOST


def _seconds(value: Any) -> bool:
    """A duration that a clock can have shown: positive and below a day."""
    return _number(value) and 0 < value < 86_400


def _text(limit: int, pattern: str = r"(?s).+") -> Callable[[Any], bool]:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and len(value) <= limit and compiled.fullmatch(value) is not None


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _optional(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _list_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _check(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("ok"), bool):
        return False
    error = value.get("max_err")
    return error is None or _number(error) or (isinstance(error, str) and error in _NUMBER_WORDS)


def _device(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("target", ""), str):
        return False
    return all(isinstance(value.get(key), str) for key in ("name", "driver"))


def _versions(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def is_library(value: object) -> bool:
    """Whether a final record can hold it: a name, and what ``Span.of`` takes."""
    if not isinstance(value, dict) or not _text(200)(value.get("name")) or not _seconds(value.get("time_s")):
        return False
    ends = _seconds(value.get("low_s")) and _seconds(value.get("high_s"))
    return ends and _list_of(_seconds)(value.get("samples")) and _optional(_number)(value.get("spread"))


_ID = _text(80, r"[A-Za-z0-9._:#-]+")
SCHEMA: dict[str, tuple[bool, Callable[[Any], bool]]] = {
    "v": (True, lambda v: type(v) is int and v == VERSION),
    "kind": (True, lambda v: v in ("trial", "final")),
    "id": (True, _ID),
    "workload": (True, _text(65_536)),
    "compute": (True, _text(200)),
    "template": (True, _text(200)),
    "config": (True, _mapping),
    "trace": (True, lambda v: v is None or isinstance(v, (str, list, dict))),
    "source_sha256": (True, _optional(_text(64, r"[0-9a-f]{64}"))),
    "status": (True, lambda v: isinstance(v, str) and v in STATUSES),
    "time_s": (True, _optional(_seconds)),
    "samples": (True, _list_of(_seconds)),
    "estimator": (True, _text(80)),  # how the time was come by
    "low_s": (False, _optional(_seconds)),  # the interval of time_s
    "high_s": (False, _optional(_seconds)),
    "load": (False, _optional(_mapping)),  # what else the machine did meanwhile
    "check": (True, _optional(_check)),
    "resources": (True, _optional(_mapping)),
    "device": (True, _device),
    "versions": (True, _versions),
    "started": (True, _text(40, r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|\+00:00)")),
    "crc": (True, _text(8, r"[0-9a-f]{8}")),
    "flags": (False, _list_of(_text(100))),
    "detail": (False, lambda v: v is None or isinstance(v, (str, dict))),
    "limits": (False, _optional(_mapping)),  # of a failure: seconds and bytes that it was allowed (circumstances.py)
    "drift": (False, lambda v: _number(v) and 1 / MOST_DRIFT <= v <= MOST_DRIFT),  # see drift_of
    "race": (False, _optional(_mapping)),  # a final record: its Standing among the finalists
    "of": (False, _ID),  # a final record: the id of the trial that it measured again
    "baseline": (False, _optional(is_library)),  # one final record of each round: the library that was timed in it
    "round": (False, _ID),  # a final record: those of one name were measured interleaved, and only they can be compared
}
