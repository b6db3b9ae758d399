"""Columnar view of a log's records: fields for ranking and search as arrays; full records decoded on demand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypedDict, cast, overload

import numpy as np
import numpy.typing as npt

from tensorir.tune.record import BadRecord, Record, Setting, key_text
from tensorir.tune.trial import Outcome

Column = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
"""Array of row numbers, or of one number per row."""
Mask = npt.NDArray[np.bool_]
Lines = Callable[[int], Record]
"""Function from a row to its full record."""
WORD_COLUMNS = ("group", "status", "config", "rest")
"""Columns that hold indices into tables of JSON texts (``Brief.words``), which records share."""
NUMBER_COLUMNS: dict[str, str] = {
    "segment": "i4", "line": "i4", "offset": "i8", "length": "i4", "final": "u1", "passed": "u1", "peer": "u1",
    "steady": "f8", "low": "f8", "high": "f8", **dict.fromkeys(WORD_COLUMNS, "i4"),
}  # fmt: skip
TEXT_COLUMNS = ("id", "started", "source")
"""Columns that hold the texts themselves, as ASCII bytes."""
GROUP_FIELDS = tuple(field.name for field in fields(Setting))
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
REST_FIELDS = ("of", "round", "drift")
SHORT_DETAIL = ("signal", "limit", "code", "exit", "phase", "at_least_s")
"""Fields of a failure's detail that are stored in a Brief."""
MEMORY_LIMIT = ("memory_bytes", "resource_limit")
"""(limit that differs from record to record, the only status with which it is stored)."""


class Rest(TypedDict, total=False):
    """Rarely used fields of a record, stored as one JSON object; only fields that the record has.

    race: place among the finalists; limits: under which a trial failed; detail: fields ``SHORT_DETAIL`` of a failure;
    reason: short text of a failure (``reason_of``)
    """

    of: str
    round: str
    drift: float
    race: dict[str, Any]
    limits: dict[str, Any]
    detail: dict[str, Any]
    reason: str


class WordTable(Sequence[str]):
    """A read-only list of strings stored as concatenated UTF-8 bytes; ends: end offset of each."""

    def __init__(self, data: bytes | memoryview, ends: Column) -> None:
        self.data, self.ends = data, ends
        self._places = [0, *ends.tolist()]

    @classmethod
    def of(cls, texts: Iterable[str]) -> WordTable:
        """A WordTable of ``texts``."""
        parts = [text.encode("utf-8") for text in texts]
        return cls(b"".join(parts), np.cumsum([len(part) for part in parts], dtype="i8"))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        return str(self.data[self._places[number] : self._places[number + 1]], "utf-8")


class Brief:
    """Columns over a log's records, in order of lines.

    words:   tables of JSON texts, indexed by the columns of ``WORD_COLUMNS``
    columns: arrays of ``NUMBER_COLUMNS`` and ``TEXT_COLUMNS``
    lines:   function from a row to its full record
    """

    def __init__(self, words: Mapping[str, WordTable], columns: dict[str, Column], lines: Lines) -> None:
        self.words, self.columns, self.lines = words, columns, lines
        self._values: dict[str, dict[int, Any]] = {name: {} for name in WORD_COLUMNS}
        self._prefixes: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.columns["id"])

    def group(self, number: int) -> Setting:
        """Fields shared by all records of run ``number``, decoded once."""
        return cast("Setting", self._value("group", number))

    def config(self, number: int) -> Mapping[str, object]:
        """Configuration ``number`` of the table of distinct configurations, as a mapping."""
        return cast("Mapping[str, object]", self._value("config", number))

    def rest(self, number: int) -> Rest:
        """Rarely used fields of a record, decoded from entry ``number`` of the table of distinct ones; read-only."""
        return cast("Rest", self._value("rest", number))

    def key(self, run: int, config: int) -> str:
        """JSON text ``["template", {configuration}]`` that identifies configuration ``config`` of run ``run``."""
        if run not in self._prefixes:
            self._prefixes[run] = f"[{json.dumps(self.group(run).template)}, "
        return f"{self._prefixes[run]}{self.words['config'][config]}]"

    def _value(self, name: str, number: int) -> Any:
        known = self._values[name]
        if number not in known:
            made = json.loads(self.words[name][number])
            known[number] = Setting(**made) if name == "group" else made
        return known[number]

    def read(self, name: str, numbers: Rows) -> None:
        """Decode entries ``numbers`` of the table of column ``name`` into the cache: in one go, five times as fast as
        singly.
        """
        known, texts = self._values[name], self.words[name]
        new = [n for n in np.unique(numbers).tolist() if n not in known]
        known.update(zip(new, json.loads(f"[{','.join(texts[n] for n in new)}]"), strict=True))

    def records(self, rows: Rows | None = None) -> list[Record]:
        """Records of ``rows``, or of all."""
        every = np.arange(len(self)) if rows is None else rows
        groups, statuses = list(map(self.group, range(len(self.words["group"])))), self.words["status"][:]
        columns = (self.columns[name][every].tolist() for name in ("group", "status", "config", "steady"))
        return [
            cast("Record", Stored(self, row, groups[run], run, statuses[status], config, steady))
            for row, run, status, config, steady in zip(every.tolist(), *columns, strict=True)
        ]

    def runs(self) -> list[tuple[int, Setting]]:
        """[(run number, fields shared by its records)] of all runs with records."""
        return [(n, self.group(n)) for n in np.unique(self.columns["group"]).tolist()]

    def rows_of(self, accept: Callable[[Setting], bool]) -> Mask:
        """Mask of the rows in runs accepted by ``accept``, from the shared fields of their records alone."""
        fits = np.array([accept(self.group(n)) for n in range(len(self.words["group"]))], dtype=bool)
        return fits[self.columns["group"]] if len(self) else np.zeros(0, dtype=bool)

    def has_status(self, *statuses: str) -> Mask:
        """Mask of rows with one of ``statuses``."""
        return np.isin(self.columns["status"], [n for n, s in enumerate(self.words["status"]) if s in statuses])

    def in_time(self, rows: Rows) -> Rows:
        """``rows`` sorted by start time, then id."""
        started = self.columns["started"][rows]
        if (started[1:] > started[:-1]).all():  # a log of one process after the other
            return rows
        return rows[np.lexsort((self.columns["id"][rows], started))]

    def distinct(self) -> Rows:
        """Rows with the first occurrence of each record id."""
        ids = self.columns["id"]
        parts = -(-ids.itemsize // 8)
        mixed = ids.astype(f"S{8 * parts}").view("u8").reshape(-1, parts) @ _HASH_FACTOR ** np.arange(parts, dtype="u8")
        mixed.sort()
        if (mixed[1:] != mixed[:-1]).all():  # a fifth of the time that texts take
            return np.arange(len(ids))
        return np.sort(np.unique(ids, return_index=True)[1])


class Stored:
    """A record with a few decoded fields; the others are decoded from its line on access."""

    __slots__ = ("_config", "_whole", "brief", "group", "row", "run", "status", "steady_s")

    def __init__(
        self, brief: Brief, row: int, group: Setting, run: int, status: str, config: int, steady_s: float
    ) -> None:
        """Create a lazily decoded record. group: fields shared by its run; steady_s: ``Record.steady_s``"""
        self.brief, self.row, self.group, self.run, self.status = brief, row, group, run, status
        self.steady_s, self._config = steady_s, config
        self._whole: Record | None = None

    @property
    def whole(self) -> Record:
        """The full record, decoded from its line."""
        if self._whole is None:
            self._whole = self.brief.lines(self.row)
        return self._whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)  # what has no column

    def __repr__(self) -> str:
        return repr(self.whole)

    def at(self, name: str) -> Any:
        """Value of column ``name`` for this record."""
        return self.brief.columns[name].item(self.row)

    @property
    def config(self) -> Mapping[str, object]:
        """Configuration of this record."""
        return self.brief.config(self._config)

    @property
    def rest(self) -> Rest:
        """Rarely used fields; read-only."""
        return self.brief.rest(self.at("rest"))

    @property
    def key(self) -> str:
        """JSON text ``["template", {configuration}]`` that identifies this record's configuration."""
        return self.brief.key(self.run, self._config)

    @property
    def passed(self) -> bool:
        """True if the record has a time and its result was right."""
        return bool(self.at("passed"))

    @property
    def span(self) -> tuple[float, float]:
        """(low, high) seconds: 95 % interval of the record's time."""
        return self.at("low"), self.at("high")

    @property
    def short_detail(self) -> Mapping[str, object]:
        """Fields ``SHORT_DETAIL`` (signal, exit code, …) of a failed record's detail; {} if it has none."""
        return cast("Mapping[str, object]", self.rest.get("detail") or {})


def _group(name: str) -> Callable[[Stored], object]:
    return lambda record: getattr(record.group, name)


def _rest(name: str) -> Callable[[Stored], object]:
    return lambda record: record.rest.get(name)


def _text(name: str) -> Callable[[Stored], str]:
    return lambda record: record.at(name).decode("ascii")


def _time(column: str) -> Callable[[Stored], object]:
    """Getter for a property: seconds in ``column`` of a Stored record; None for NaN or infinity."""

    def found(record: Stored) -> object:
        seconds = record.steady_s if column == "steady" else record.at(column)
        return seconds if math.isfinite(seconds) else None

    return found


_FIELDS: dict[str, Callable[[Stored], object]] = {
    **{name: _group(name) for name in GROUP_FIELDS},
    **{name: _rest(name) for name in (*REST_FIELDS, "race")},
    **{name: _text(name) for name in ("id", "started")},
    "kind": lambda r: "final" if r.at("final") else "trial",
    "source_sha256": lambda r: _text("source")(r) or None,
    **{name: _time(name.removesuffix("_s")) for name in ("low_s", "high_s")},
    "time_s": _time("steady"),
}


for _name, _field in _FIELDS.items():
    setattr(Stored, _name, property(_field))  # a property takes half the time of __getattr__


def by_run(test: Callable[[Setting], bool]) -> Callable[[Record], bool]:
    """Memoized ``test``, called once per run; it must read only fields shared by all records of a run."""
    known: dict[int, bool] = {}

    def asked(record: Record) -> bool:
        if not isinstance(record, Stored):
            return test(record)
        run = id(record.group)  # which its brief keeps
        if run not in known:
            known[run] = test(record.group)
        return known[run]

    return asked


def whole(record: Record) -> Record:
    """The fully decoded record."""
    return record.whole if isinstance(record, Stored) else record


class TrialEnd(NamedTuple):
    """Fields of a failed trial that later runs need."""

    status: str
    detail: Mapping[str, Any] | None
    limits: Mapping[str, Any] | None


def told(record: Record | TrialEnd) -> Mapping[str, object]:
    """Detail of a failure as a mapping, for an undecoded record only its ``SHORT_DETAIL`` fields; {} if it is a text or
    absent.
    """
    if isinstance(record, Stored):
        return record.short_detail
    return record.detail if isinstance(record.detail, Mapping) else {}


def limits_told(record: Record | TrialEnd) -> Mapping[str, object]:
    """Limits ({"compile_s": …, "run_s": …, "memory_bytes": …}) under which a trial failed, as far as recorded; {} if
    none.
    """
    found = record.rest.get("limits") if isinstance(record, Stored) else record.limits
    return found or {}


def reason_of(record: Record | Outcome) -> str:
    """Short reason of a failed trial: status, and the detail that distinguishes failures."""
    if isinstance(record, Stored) and "reason" in record.rest:
        return record.rest["reason"]
    detail = record.detail
    if isinstance(detail, str):
        words = detail
    elif isinstance(detail, Mapping):
        found = (detail.get(key) for key in ("signal", "limit", "code", "where", "message", "exit", "phase"))
        words = next((str(value) for value in found if value not in (None, "")), "")
    else:
        words = ""
    line = words.strip().splitlines()[0][:120] if words.strip() else ""
    return f"{record.status}: {line}" if line else record.status


class Briefs:
    """Builder of a Brief, record by record."""

    def __init__(self) -> None:
        self.words: dict[str, dict[str, int]] = {name: {} for name in WORD_COLUMNS}
        self.columns: dict[str, list[Any]] = {name: [] for name in (*NUMBER_COLUMNS, *TEXT_COLUMNS)}
        self._last: tuple[Mapping[str, Any], int] = {}, -1

    def add(self, record: Record, segment: int, line: int, offset: int, length: int) -> None:
        """Append a record and the location of its line."""
        timed = record.time_s is not None
        low, high = record.span if timed else (math.nan, math.nan)
        row = {
            "segment": segment, "line": line, "offset": offset, "length": length,
            "final": record.kind == "final", "peer": bool(record.baseline and record.round),
            "passed": record.status == "ok" and record.check is not None and record.check["ok"] is True,
            "steady": record.steady_s, "low": low, "high": high,
            "group": self._group(record),
            "status": self._word("status", record.status),
            "config": self._word("config", key_text(record.config)),
            "source": (record.source_sha256 or "").encode("ascii"),
            "rest": self._word("rest", key_text(_rest_of(record))),
            "id": record.id.encode("ascii"), "started": record.started.encode("ascii"),
        }  # fmt: skip
        for name, value in row.items():
            self.columns[name].append(value)

    def _group(self, record: Setting) -> int:
        """Index of the record's run in the table of runs; a new run is appended."""
        group = {name: getattr(record, name) for name in GROUP_FIELDS}
        if group != self._last[0]:
            self._last = group, self._word("group", key_text(group))
        return self._last[1]

    def _word(self, name: str, text: str) -> int:
        known = self.words[name]
        return known.setdefault(text, len(known))

    def made(self, lines: Lines) -> Brief:
        """The Brief of all added records."""
        columns: dict[str, Column] = {
            name: np.array(self.columns[name], dtype=kind) for name, kind in NUMBER_COLUMNS.items()
        }
        columns |= {name: np.array(self.columns[name], dtype=np.bytes_) for name in TEXT_COLUMNS}
        return Brief({name: WordTable.of(known) for name, known in self.words.items()}, columns, lines)


def _rest_of(record: Record) -> dict[str, Any]:
    """{field: value} of the rarely used fields (``Rest``) that ``record`` has."""
    found = {name: value for name in REST_FIELDS if (value := getattr(record, name)) is not None}
    standing, detail = (record.race or {}).get("standing"), record.detail
    if record.status != "ok":
        found["reason"] = reason_of(record)
        limits = {
            k: v for k, v in (record.limits or {}).items() if k != MEMORY_LIMIT[0] or record.status == MEMORY_LIMIT[1]
        }
        found |= {"limits": limits} if limits else {}
    if record.status != "ok" and isinstance(detail, Mapping):
        short = {k: v for k in SHORT_DETAIL if isinstance(v := detail.get(k), str | int | float) and len(str(v)) < 200}
        found |= {"detail": short} if short else {}
    return found | ({"race": {"standing": standing}} if isinstance(standing, str) else {})


def joined(parts: list[Brief], lines: Lines) -> Brief:
    """Concatenated records of several Briefs, in order; ``lines``: function from a row of the result to its full
    record.
    """
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        return Brief(parts[0].words, parts[0].columns, lines)
    words: dict[str, dict[str, int]] = {name: {} for name in WORD_COLUMNS}
    columns: dict[str, list[Column]] = {name: [] for name in (*NUMBER_COLUMNS, *TEXT_COLUMNS)}
    for part in parts:
        for name, column in part.columns.items():
            if name in WORD_COLUMNS:
                known = words[name]
                new = np.array([known.setdefault(text, len(known)) for text in part.words[name]], dtype="i4")
                column = new[column] if len(column) else column
            columns[name].append(column)
    made: dict[str, Column] = {
        n: np.concatenate(c) if c else np.zeros(0, NUMBER_COLUMNS.get(n, "S1")) for n, c in columns.items()
    }
    return Brief({name: WordTable.of(known) for name, known in words.items()}, made, lines)


def checked(record: Record, brief: Brief, row: int) -> Record:
    """``record`` if it matches row ``row`` of ``brief``, else raises BadRecord."""
    same = (
        record.id.encode() == brief.columns["id"][row]
        and record.status == brief.words["status"][int(brief.columns["status"][row])]
    )
    if not same or (record.time_s is not None and record.steady_s != brief.columns["steady"][row]):
        raise BadRecord("another record than the index says")
    return record
