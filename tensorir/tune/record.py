"""One line of the tuning log: its schema, its checksum, and the only way in and out of text."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypedDict, cast

from tensorir.codec import Json, plain
from tensorir.errors.shown import Shown
from tensorir.runtime.timing import outside
from tensorir.tune.schema import ESTIMATOR, SCHEMA, VERSION


class Record(TypedDict, total=False):
    """A line of the log, and what is left out of it where it is being made; ``SCHEMA`` says what each field holds."""

    v: int
    kind: str
    id: str
    workload: str
    compute: str
    template: str
    config: dict[str, Any]
    trace: str | list[Any] | dict[str, Any] | None
    source_sha256: str | None
    status: str
    time_s: float | None
    samples: list[float]
    estimator: str
    low_s: float | None
    high_s: float | None
    load: dict[str, Any] | None
    check: dict[str, Any] | None
    resources: dict[str, Any] | None
    device: dict[str, Any]
    versions: dict[str, str]
    started: str
    crc: str
    flags: list[str]
    detail: str | dict[str, Any] | None
    limits: dict[str, Any] | None
    drift: float
    race: dict[str, Any] | None
    of: str
    baseline: dict[str, Any] | None
    round: str


Fields = Mapping[str, Any]
"""What a record or a document says, to be read only."""

MAX_LINE = 1 << 20  # bytes; an honest record has about 2000
MAX_DEPTH = 16
# These say nothing about the configuration, so a later run may measure it again.
TRANSIENT = frozenset({"cancelled", "device_lost", "internal_error"})
_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
# Libraries that run the search but do not touch the kernel or its clock.
HARNESS = frozenset({"python", "numpy", "scikit-optimize", "skopt", "scikit-learn", "scipy", "click", "rich"})


class BadRecord(ValueError):  # it is a finding about data, not a failure of ours
    """A line that is not a record; the text says why in a few words."""


class OtherVersion(BadRecord):
    """A line of another version of the schema: not read, never deleted."""


@dataclass(frozen=True)
class Entry:
    """One line as read: exactly one of ``record`` and ``reason`` is there.

    line:  from 1; 0 for what has a segment's name and is no file
    other: of another version of the schema: carried along, never deleted
    """

    path: Path
    line: int
    raw: bytes
    record: Record | None = None
    reason: str = ""
    other: bool = False

    @property
    def damaged(self) -> bool:
        return self.record is None and not self.other


@dataclass(frozen=True, repr=False)
class Identity(Shown):
    """What all records of one tuning run share.

    workload: name and parameters in one line, such as ``conv2d n=1 c=64 …``
    compute:  digest of the definition
    device:   ``name``, ``platform``, ``driver`` and what else tells devices apart
    versions: of the package and of the compilers that make the kernel
    """

    workload: str
    compute: str
    device: Mapping[str, Any]
    versions: Mapping[str, str]

    def record(self, kind: str, template: str, config: Mapping[str, object], result: Mapping[str, object]) -> Record:
        """Return the sealed record of one measurement; BadRecord when ``result`` is not one.

        ``result`` has ``status`` and any other field of the record that is the measurement's own;
        what identifies the record is set here and cannot be overridden. A time without ``low_s`` and ``high_s`` gets
        the interval of its samples.
        """
        empty: Json = {"trace": None, "source_sha256": None, "time_s": None, "samples": [], "check": None}
        empty |= {"resources": None, "started": utc_now(), "estimator": ESTIMATOR}
        made: Json = {"v": VERSION, "kind": kind, "id": os.urandom(8).hex(), "workload": self.workload}
        made |= {"compute": self.compute, "template": template, "config": dict(config)}
        own = {key: value for key, value in result.items() if value is not None}
        made |= {key: value for key, value in (empty | own).items() if key not in made}
        made |= {"device": dict(self.device), "versions": dict(self.versions)}
        if made.get("status") != "ok":
            made |= {"time_s": None, "low_s": None, "high_s": None}
        try:
            if made["time_s"] is not None and made.get("low_s") is None:
                made["low_s"], made["high_s"] = interval(made["samples"], made["time_s"])
            sealed = seal(plain(made))
        except TypeError as error:
            raise BadRecord(str(error)) from None
        validate(sealed)
        encode(sealed)
        return sealed

    def accepts(self, record: Record) -> bool:
        """Tell whether a measurement of ``record`` says something about this computation on this device.

        Same definition, same device name and driver, the same limits as far as both say them, and the
        same version of everything that makes the kernel. What is left out here is at most a warm start,
        never an answer.
        """
        limits = [d["target"] for d in (record["device"], self.device) if d.get("target")]
        return (
            record["compute"] == self.compute
            and len(set(limits)) < 2
            and all(record["device"].get(key) == self.device.get(key) for key in ("name", "driver"))
            and relevant(record["versions"]) == relevant(self.versions)
        )


class InBrief(Protocol):
    """A record whose time is known without its line: ``brief.Stored``."""

    @property
    def steady_s(self) -> float: ...
    @property
    def span(self) -> tuple[float, float]: ...


def drift_of(record: Record) -> float:
    """By how much slower what trials are timed with (the reference) ran than in its own trial; 1 where the record does
    not say.
    """
    return float(record.get("drift", 1.0))


def steady_s(record: Record) -> float:
    """Seconds to compare, as if the machine were as fast as when the reference had its own trial; infinite for what
    has no time.
    """
    if not isinstance(record, dict):  # of a log in brief, whose columns say it
        return cast("InBrief", record).steady_s
    seconds = record.get("time_s")
    return math.inf if seconds is None else max(float(seconds), math.ulp(0.0))  # never 0, whatever a log says


def span(record: Record) -> tuple[float, float]:
    """The 95 % interval of ``steady_s``; the record has a time."""
    if not isinstance(record, dict):
        return cast("InBrief", record).span
    seconds, low, high = cast("float", record["time_s"]), record.get("low_s"), record.get("high_s")
    if low is None or high is None:
        return interval(list(record["samples"]), seconds)
    return min(low, seconds), max(high, seconds)


def relevant(versions: Mapping[str, str]) -> dict[str, str]:
    """The entries of ``versions`` that can change a kernel or its time."""
    return {key: value for key, value in versions.items() if key not in HARNESS}


_last = ""


def utc_now() -> str:
    """The present as the log writes it, later than all earlier answers in this process even if the clock goes back."""
    global _last  # noqa: PLW0603 - there is one clock
    now = datetime.now(UTC).strftime(_FORMAT)
    if now <= _last:  # choosing takes the latest final round of a configuration, and that is decided by these times
        now = (datetime.strptime(_last, _FORMAT) + timedelta(microseconds=1)).strftime(_FORMAT)
    _last = now
    return now


# made once: json.dumps makes an encoder at each call; a record is a tree, so nothing looks for cycles
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False).encode
key_text = json.JSONEncoder(sort_keys=True, check_circular=False).encode
"""The JSON text of a key, by which records are grouped."""


def canonical(record: Mapping[str, object]) -> bytes:
    """The bytes that the checksum covers: sorted keys, no spaces, ASCII, without ``crc``."""
    return _canonical({key: value for key, value in record.items() if key != "crc"}).encode("ascii")


def checksum(record: Mapping[str, object]) -> str:
    """CRC-32 of the canonical bytes as 8 hexadecimal digits."""
    return f"{zlib.crc32(canonical(record)):08x}"


def seal(record: Record) -> Record:
    """Return ``record`` with its checksum, last."""
    body = {key: value for key, value in record.items() if key != "crc"}
    return cast("Record", {**body, "crc": checksum(body)})


def encode(record: Record) -> bytes:
    """Return the line of a sealed record; BadRecord when it would be too long to be read back.

    The bytes that the checksum covers with it as the last key, so that a reader sums the line as it is.
    """
    line = canonical(record)[:-1] + b',"crc":' + _canonical(record.get("crc")).encode("ascii") + b"}\n"
    if len(line) > MAX_LINE:
        raise BadRecord("over-long line")
    return line


def decode(line: bytes) -> Record:
    """Return the record of one line; BadRecord says why there is none. Nothing in it is ever executed."""
    if len(line) > MAX_LINE:
        raise BadRecord("over-long line")
    said = read_json(line)
    if type(version := said.get("v")) is int and version > 0 and version != VERSION:
        raise OtherVersion(f"version {version} of the schema")
    record = cast("Record", said)
    validate(record, _summed(line))
    return record


def _summed(line: bytes) -> bytes | None:
    """The canonical bytes of a line as ``encode`` writes it whose checksum is right; None for any other line."""
    body, crc = line[:-19] + b"}", line[-19:]
    if not line.isascii() or b"\\ud" in line or crc != b',"crc":"%08x"}\n' % zlib.crc32(body):
        return None
    return body


def read_json(text: bytes) -> dict[str, object]:
    """The object in a text; BadRecord for anything else, for equal keys and for what JSON does not have."""
    try:
        made = _decoder.decode(text.decode("utf-8"))
    except BadRecord:
        raise
    except UnicodeDecodeError:
        raise BadRecord("not UTF-8") from None
    except RecursionError:
        raise BadRecord("nested too deeply") from None
    except ValueError:
        raise BadRecord("not JSON") from None
    if not isinstance(made, dict):
        raise BadRecord("not an object")
    return made


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    """Two readers may pick different ones of two equal keys, so such a line means nothing."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise BadRecord("duplicate key")
    return made


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise BadRecord("infinite number")
    return number


def _no_constant(name: str) -> Any:
    raise BadRecord(f"{name} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)


def validate(record: Record, summed: bytes | None = None) -> None:
    """Check every field; raises BadRecord with the first thing wrong. Unknown fields are allowed.

    summed: the bytes of the record, where they are known to be what its checksum covers
    """
    said: Fields = record
    for name, (required, test) in SCHEMA.items():
        if name not in said:
            if required:
                raise BadRecord(f"no {name}")
        elif not test(said[name]):
            raise BadRecord(f"bad {name}")
    found = _checked_sum(record) if summed is None else record["crc"]
    if summed is not None and _too_deep(summed, record):
        raise BadRecord("nested too deeply")
    ok = record["status"] == "ok"
    if ok != (record["time_s"] is not None):
        raise BadRecord("time_s without ok" if not ok else "ok without time_s")
    if ok and not record["samples"]:
        raise BadRecord("ok without samples")
    if ok and (record.get("low_s") is None or record.get("high_s") is None):
        raise BadRecord("ok without the interval of time_s")
    if ok and record["check"] is not None and record["check"]["ok"] is not True:
        raise BadRecord("ok with a failed check")
    if found != record["crc"]:
        raise BadRecord("wrong crc")


def _checked_sum(record: Record) -> str:
    """The checksum; refuses what would break a reader of any field: infinities, lone surrogates, deep nesting."""
    try:
        text = canonical(record)
    except RecursionError:
        raise BadRecord("nested too deeply") from None
    except ValueError:
        raise BadRecord("infinite number") from None
    if _too_deep(text, record):
        raise BadRecord("nested too deeply")
    if b"\\ud" in text and not _encodable(
        json.dumps(record, ensure_ascii=False)
    ):  # halves of pairs are what has no UTF-8
        raise BadRecord("broken text")
    return f"{zlib.crc32(text):08x}"


_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))


def _too_deep(text: bytes, record: Fields) -> bool:
    """Whether lists and dicts are nested more than ``MAX_DEPTH`` deep, ``record`` itself being the first.

    By the brackets of its JSON ``text`` where no string holds one: a walk through all values takes ten times as long.
    """
    if b'\\"' in text:  # quotes inside of strings, which say nothing of where these end
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = text.translate(_BRACKETS, _OTHERS).replace(b'""', b"")
    if b'"' not in brackets:
        for _ in range(MAX_DEPTH):
            brackets = brackets.replace(b"[]", b"")
        return bool(brackets)
    level: list[Any] = [record]
    for _ in range(MAX_DEPTH):
        inner = [x for some in level for x in (some.values() if isinstance(some, dict) else some)]
        level = [x for x in inner if isinstance(x, (dict, list))]
    return bool(level)


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def slug(workload: str) -> str:
    """Return the folder name of a workload: what is harmless of its first word, and a digest of all of it.

    The digest tells apart what sanitising makes equal; the word is for people only. Two workloads
    whose digests collide share a folder, which is harmless: records carry their full identity.
    """
    words = workload.split(None, 1)
    word = re.sub(r"[^A-Za-z0-9_]+", "_", words[0][:200] if words else "").strip("_")[:40] or "op"
    return f"{word}-{hashlib.sha256(workload.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


def interval(samples: list[float], time_s: float) -> tuple[float, float]:
    """Return a 95 % confidence interval of the median, widened to contain ``time_s``.

    Order statistics need no assumption about the noise; below six samples they cover 95 % nowhere,
    and the whole range is given.
    """
    ordered, n = sorted(samples), len(samples)
    if not ordered:
        return time_s, time_s
    skip = outside(n)
    return min(ordered[skip], time_s), max(ordered[n - 1 - skip], time_s)
