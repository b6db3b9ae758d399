"""``Record``, one line of the tuning log: fields, validation, checksum, encoding."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tensorir import codec
from tensorir.codec import UNKNOWN_FIELDS, CodecError, Json, checked, plain, travels
from tensorir.errors.shown import Shown
from tensorir.runtime.timing import outside

ESTIMATOR = "paired-slots"
"""Name of the estimator of ``tensorir.runtime.estimate`` in records and documents."""
VERSION = 2
"""Version of the schema; records of other versions are not read, and stay in the log."""
MAX_MEASURED = 1e308
MAX_DRIFT = 100.0  # slowdown of a machine within a run, and its inverse
STATUSES = frozenset(
    {"ok", "illegal_schedule", "compile_error", "compile_timeout", "resource_limit", "launch_error", "run_timeout"}
    | {"crashed", "device_error", "device_lost", "wrong_result", "nondeterministic", "skipped_slow", "cancelled"}
    | {"internal_error"}
)
_NUMBER_WORDS = frozenset({"nan", "inf", "-inf"})  # what JSON has no numbers for, see codec.plain


MAX_LINE = 1 << 20  # bytes; an honest record has about 2000
MAX_DEPTH = 16
# These say nothing about the configuration, so a later run may measure it again.
TRANSIENT = frozenset({"cancelled", "device_lost", "internal_error"})
_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
# Libraries that run the search but do not touch the kernel or its clock.
HARNESS_LIBRARIES = frozenset({"python", "numpy", "scikit-optimize", "skopt", "scikit-learn", "scipy", "click", "rich"})


class BadRecord(ValueError):  # it is a finding about data, not a failure of ours
    """A line is not a valid record; the message says why."""


class OtherVersion(BadRecord):
    """A record of another schema version: not read, never deleted."""


def _number(value: Any) -> bool:
    """True for a finite number that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_MEASURED


def _seconds(value: Any) -> bool:
    """True for a plausible duration: positive and below a day."""
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
    """True for valid library timing fields of a final record."""
    if not isinstance(value, dict) or not _text(200)(value.get("name")) or not _seconds(value.get("time_s")):
        return False
    ends = _seconds(value.get("low_s")) and _seconds(value.get("high_s"))
    return ends and _list_of(_seconds)(value.get("samples")) and _optional(_number)(value.get("spread"))


def _trace(value: Any) -> bool:
    return isinstance(value, (str, list, dict))


def _detail(value: Any) -> bool:
    return isinstance(value, (str, dict))


def _drift(value: Any) -> bool:
    return _number(value) and 1 / MAX_DRIFT <= value <= MAX_DRIFT


_ID = _text(80, r"[A-Za-z0-9._:#-]+")


@travels
@dataclass(frozen=True, kw_only=True, repr=False)
class Setting(Shown):
    """Fields shared by all records of one template in one run (``RunIdentity``).

    estimator: method by which ``time_s`` was estimated
    """

    workload: str = field(metadata=checked(_text(65_536)))
    compute: str = field(metadata=checked(_text(200)))
    template: str = field(metadata=checked(_text(200)))
    device: dict[str, Any] = field(metadata=checked(_device))
    versions: dict[str, str] = field(metadata=checked(_versions))
    estimator: str = field(metadata=checked(_text(80)))


@travels(sparse=True)
@dataclass(frozen=True, kw_only=True, repr=False)
class Record(Setting):
    """A measurement: one line of the log. BadRecord for fields that contradict each other.

    low_s, high_s: the interval of ``time_s``
    load:     use of the processor by other processes meanwhile
    limits:   seconds and bytes allowed to a measurement that failed (``circumstances.Limits``)
    drift:    slowdown of the reference since its own trial; 1 where it is None
    race:     of a final record: its ``Standing`` among the finalists
    of:       of a final record: the id of its trial
    baseline: of one final record of each round: the library timed in it
    round:    of a final record: its round; times of different rounds are not comparable
    unknown:  fields that this version does not have, carried along
    """

    v: int = field(metadata=checked(lambda v: type(v) is int and v == VERSION))
    kind: str = field(metadata=checked(lambda v: v in ("trial", "final")))
    id: str = field(metadata=checked(_ID))
    config: dict[str, Any] = field(metadata=checked(_mapping))
    trace: str | list[Any] | dict[str, Any] | None = field(metadata=checked(_optional(_trace)))
    source_sha256: str | None = field(metadata=checked(_optional(_text(64, r"[0-9a-f]{64}"))))
    status: str = field(metadata=checked(lambda v: isinstance(v, str) and v in STATUSES))
    time_s: float | None = field(metadata=checked(_optional(_seconds)))
    samples: list[float] = field(metadata=checked(_list_of(_seconds)))
    low_s: float | None = field(default=None, metadata=checked(_optional(_seconds)))
    high_s: float | None = field(default=None, metadata=checked(_optional(_seconds)))
    load: dict[str, Any] | None = field(default=None, metadata=checked(_optional(_mapping)))
    check: dict[str, Any] | None = field(metadata=checked(_optional(_check)))
    resources: dict[str, Any] | None = field(metadata=checked(_optional(_mapping)))
    started: str = field(metadata=checked(_text(40, r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|\+00:00)")))
    flags: list[str] | None = field(default=None, metadata=checked(_list_of(_text(100))))
    detail: str | dict[str, Any] | None = field(default=None, metadata=checked(_optional(_detail)))
    limits: dict[str, Any] | None = field(default=None, metadata=checked(_optional(_mapping)))
    drift: float | None = field(default=None, metadata=checked(_drift))
    race: dict[str, Any] | None = field(default=None, metadata=checked(_optional(_mapping)))
    of: str | None = field(default=None, metadata=checked(_ID))
    baseline: dict[str, Any] | None = field(default=None, metadata=checked(_optional(is_library)))
    round: str | None = field(default=None, metadata=checked(_ID))
    unknown: dict[str, Any] = field(default_factory=dict, metadata=UNKNOWN_FIELDS)

    def __post_init__(self) -> None:
        ok = self.status == "ok"
        if ok != (self.time_s is not None):
            raise BadRecord("time_s without ok" if not ok else "ok without time_s")
        if ok and not self.samples:
            raise BadRecord("ok without samples")
        if ok and (self.low_s is None or self.high_s is None):
            raise BadRecord("ok without the interval of time_s")
        if ok and self.check is not None and self.check["ok"] is not True:
            raise BadRecord("ok with a failed check")

    @property
    def steady_s(self) -> float:
        """Seconds to compare: ``time_s``, from which the machine's drift is already divided out; inf without a time."""
        return math.inf if self.time_s is None else max(float(self.time_s), math.ulp(0.0))  # positive in any log

    @property
    def span(self) -> tuple[float, float]:
        """(low, high): 95 % interval of ``time_s`` in seconds; the record must have a time."""
        assert self.time_s is not None
        assert self.low_s is not None
        assert self.high_s is not None
        return min(self.low_s, self.time_s), max(self.high_s, self.time_s)


RECORD_FIELDS = tuple(field.name for field in fields(Record) if field.name != "unknown")
REQUIRED_FIELDS = tuple(f.name for f in fields(Record) if f.default is MISSING and f.default_factory is MISSING)
"""Names of a line's fields except ``crc`` (``RECORD_FIELDS``), and of those that every line has."""


@dataclass(frozen=True)
class LogLine:
    """One line of a log file: a valid ``record``, or None and the ``reason``.

    line:  number from 1; 0 for an entry named like a segment that is not a file
    other: true for a record of another schema version: carried along, never deleted
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
class RunIdentity(Shown):
    """The fields that all records of one tuning run share.

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
        """Return the record of one measurement; raises BadRecord when ``result`` is not one.

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
            said = plain(made)
        except TypeError as error:
            raise BadRecord(str(error)) from None
        record = read(said)
        _checked_sum(said)
        encode(record)
        return record

    def accepts(self, record: Setting) -> bool:
        """True if measurements of ``record`` are valid for this computation on this device.

        Same definition, same device name and driver, the same limits as far as both say them, and the
        same version of everything that makes the kernel. What is left out here is at most a warm start,
        never an answer.
        """
        limits = [d["target"] for d in (record.device, self.device) if d.get("target")]
        return (
            record.compute == self.compute
            and len(set(limits)) < 2
            and all(record.device.get(key) == self.device.get(key) for key in ("name", "driver"))
            and relevant(record.versions) == relevant(self.versions)
        )


def relevant(versions: Mapping[str, str]) -> dict[str, str]:
    """Entries of ``versions`` that affect a kernel or its time; libraries of the measuring side are dropped."""
    return {key: value for key, value in versions.items() if key not in HARNESS_LIBRARIES}


_last = ""


def utc_now() -> str:
    """Current UTC timestamp for the log, strictly increasing within this process."""
    global _last  # noqa: PLW0603 - there is one clock
    now = datetime.now(UTC).strftime(_FORMAT)
    if now <= _last:  # choosing takes the latest final round of a configuration, and that is decided by these times
        now = (datetime.strptime(_last, _FORMAT) + timedelta(microseconds=1)).strftime(_FORMAT)
    _last = now
    return now


# made once: json.dumps makes an encoder at each call; a record is a tree, so nothing looks for cycles
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False).encode
key_text = json.JSONEncoder(sort_keys=True, check_circular=False).encode
"""Function JSON data -> text with sorted keys, by which records are grouped."""


def canonical(record: Mapping[str, object]) -> bytes:
    """The bytes that the checksum covers: sorted keys, no spaces, ASCII, without ``crc``."""
    return _canonical({key: value for key, value in record.items() if key != "crc"}).encode("ascii")


def checksum(record: Mapping[str, object]) -> str:
    """CRC-32 of the canonical bytes as 8 hexadecimal digits."""
    return f"{zlib.crc32(canonical(record)):08x}"


def seal(said: Mapping[str, object]) -> Json:
    """Dict of ``said`` with its checksum as last key, ``crc``."""
    body = {key: value for key, value in said.items() if key != "crc"}
    return {**body, "crc": checksum(body)}


def encode(record: Record) -> bytes:
    """Return the log line of a record; raises BadRecord if too long to be read back.

    The checksum is appended as the last key, so that a reader can verify the line's bytes without encoding it again.
    """
    return sealed(codec.encode(record))


def sealed(said: Mapping[str, object]) -> bytes:
    """Log line (bytes with line end) of a JSON object and its checksum; raises BadRecord if too long."""
    body = canonical(said)
    line = body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body)
    if len(line) > MAX_LINE:
        raise BadRecord("over-long line")
    return line


def decode(line: bytes) -> Record:
    """Return the record of one line, checksum verified; nothing in it is ever executed.

    Raises BadRecord, whose message says why there is none; OtherVersion for another version of the schema.
    """
    if len(line) > MAX_LINE:
        raise BadRecord("over-long line")
    said = read_json(line)
    if type(version := said.get("v")) is int and version > 0 and version != VERSION:
        raise OtherVersion(f"version {version} of the schema")
    crc = said.pop("crc", None)
    record = read(said)
    if crc is None:
        raise BadRecord("no crc")
    if not isinstance(crc, str) or re.fullmatch("[0-9a-f]{8}", crc) is None:
        raise BadRecord("bad crc")
    if crc != _sum_of(said, line):
        raise BadRecord("wrong crc")
    return record


def read(said: object) -> Record:
    """Record of a JSON object without checksum; raises BadRecord if invalid."""
    try:
        return codec.decode(Record, said)
    except CodecError as error:
        missing = next((name for name in REQUIRED_FIELDS if isinstance(said, dict) and name not in said), "")
        raise BadRecord(
            f"no {missing}" if missing else f"bad {error.field}" if error.field else "not an object"
        ) from None


def read_json(text: bytes) -> dict[str, object]:
    """Parse a JSON object strictly; raises BadRecord for other values, duplicate keys and non-JSON numbers."""
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
    """Dict of key-value pairs; raises BadRecord on duplicate keys, which readers resolve differently."""
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


def _sum_of(said: Json, line: bytes) -> str:
    """Checksum of an object as 8 hexadecimal digits, computed from its line if that is canonical, which is faster."""
    body, crc = line[:-19] + b"}", line[-19:]
    if line.isascii() and b"\\ud" not in line and crc == b',"crc":"%08x"}\n' % zlib.crc32(body):
        if _too_deep(body):
            raise BadRecord("nested too deeply")
        return crc[8:16].decode()
    return _checked_sum(said)


def _checked_sum(said: Json) -> str:
    """Checksum of an object as 8 hexadecimal digits; raises BadRecord for infinities, lone surrogates, deep nesting."""
    try:
        text = canonical(said)
    except RecursionError:
        raise BadRecord("nested too deeply") from None
    except ValueError:
        raise BadRecord("infinite number") from None
    if _too_deep(text):
        raise BadRecord("nested too deeply")
    if b"\\ud" in text and not _encodable(json.dumps(said, ensure_ascii=False)):  # halves of pairs have no UTF-8
        raise BadRecord("broken text")
    return f"{zlib.crc32(text):08x}"


_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))


def _too_deep(text: bytes) -> bool:
    """True if a JSON text nests brackets deeper than ``MAX_DEPTH``.

    Read off its brackets outside of strings: a walk through all values takes ten times as long.
    """
    if b'\\"' in text:  # quotes inside of strings, which say nothing of where these end
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = text.translate(_BRACKETS, _NOT_BRACKETS).replace(b'""', b"")  # an empty string, or the gap between two
    brackets = b"".join(brackets.split(b'"')[::2])
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def slug(workload: str) -> str:
    """Return the folder name of a workload: its first word, sanitized, ``-`` and eight hexadecimal digits of the whole.

    The digest tells apart what sanitising makes equal; the word is for people only. Two workloads
    whose digests collide share a folder, which is harmless: records carry their full identity.
    """
    words = workload.split(None, 1)
    word = re.sub(r"[^A-Za-z0-9_]+", "_", words[0][:200] if words else "").strip("_")[:40] or "op"
    return f"{word}-{hashlib.sha256(workload.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


def interval(samples: list[float], time_s: float) -> tuple[float, float]:
    """(low, high): a 95 % confidence interval of the median of ``samples``, widened to contain ``time_s``.

    Order statistics need no assumption about the noise; below six samples they cover 95 % nowhere,
    and the whole range is given. Without samples both ends are ``time_s``.
    """
    ordered, n = sorted(samples), len(samples)
    if not ordered:
        return time_s, time_s
    skip = outside(n)
    return min(ordered[skip], time_s), max(ordered[n - 1 - skip], time_s)
