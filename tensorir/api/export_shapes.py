"""Exports the few kernels for a set of shapes from a log's records, without measuring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorir.api.candidate import Candidate, trace_text
from tensorir.api.frozen import log_for
from tensorir.api.identity import compute_digest, folder_of, place_of, suits, target_of
from tensorir.api.load import left_out, other_target, regenerate
from tensorir.api.shape_outcome import Portfolio, ShapeResult
from tensorir.api.shape_set import understood
from tensorir.errors import NotTuned, Problem
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_path
from tensorir.export.folder import export_set
from tensorir.export.options import by_language, each_language, places, refuse_sets
from tensorir.export.program import ExportProgram
from tensorir.target import Target
from tensorir.tune.log import LogReader, RankedRecord, Record, choose
from tensorir.tune.portfolio import REGRET
from tensorir.tune.template import found_on

if TYPE_CHECKING:
    from tensorir.api.work import Work

MAX_NAMED_SHAPES = 5  # of the shapes that are not tuned


@answers()
def export_shapes(
    works: Sequence[Work],
    path: str | Path,
    to: str | Sequence[str] = ("source",),
    *,
    weights: Sequence[float] | None = None,
    regret: float = REGRET,
    target: str | Target | None = None,
    log: str | Path = "tuning_logs",
) -> Path:
    """Write a folder with a kernel for each shape, of the fewest that suit all, which runs without tensorir.

    works, weights, regret: as for ``tune_shapes``; the kernels are chosen from the log as it chooses them
    to:     destinations, as for ``f.export``
    target: kind of device for which the kernels were tuned; any when None

    Destinations that take OpenCL and CUDA have a folder of each in ``path``, ``opencl`` and ``cuda``; where the log
    has no kernels for one of them, neither is written.

    Raises NotTuned ``export.not-tuned`` where a shape has no usable record, and what ``f.export`` raises.
    """
    parsed = target if isinstance(target, Target) or target is None else Target.parse(target)
    refuse_sets(to)
    wanted = by_language(to, None if parsed is None else parsed.language)
    log = need_path("log", log)
    found = each_language(wanted, lambda language: recorded_set(works, weights, parsed or language, log, regret))
    folders = places(path, wanted)
    for language, one in found.items():
        one.export(folders[language], wanted[language])
    return Path(path)


@dataclass(frozen=True)
class RecordedSet:
    """Kernels selected for a set of shapes from records.

    made:    program of each shape, in order
    remarks: notes on skipped lines and records
    """

    works: tuple[Work, ...]
    portfolio: Portfolio
    made: tuple[Candidate, ...]
    remarks: tuple[str, ...]

    def export(self, path: str | Path, to: Sequence[str]) -> Path:
        """Write the folder; returns its path."""
        portfolio, name = self.portfolio, self.works[0].name
        records = [portfolio.records[w.title] for w in self.works]
        parts = []
        for work, made, record, s in zip(self.works, self.made, records, portfolio.served, strict=True):
            kernel = portfolio.kernels[s.kernel]
            about = {"workload": work.title, "template": kernel.template, "config": kernel.config, "time_s": s.time_s}
            about |= {"regret": s.regret, "record": about_record(record)}
            kind = target_of(record).kind
            steps, error = trace_text(made), work.allowed_error(kernel.template)
            parts.append(ExportProgram(made.source, work.outputs, work.reference, steps, kind, about, error))
        device = records[0].device
        files = portfolio.files(name, device)
        more = {"regret": portfolio.regret, "exact": portfolio.exact, "device": device}
        return export_set(parts, path, to, name=name, dispatch=portfolio.dispatch, files=files, about=more)


def about_record(record: Record) -> dict[str, object]:
    """README fields of an exported folder about its kernel's record."""
    return {key: getattr(record, key) for key in ("id", "time_s", "device", "versions", "started")}


def recorded_set(
    works: Sequence[Work], weights: Sequence[float] | None, target: Target | str | None, log: str, regret: float,
    command: str = "tir.tune_shapes(works)",
) -> RecordedSet:  # fmt: skip
    """Select kernels for all shapes from the trials of one device, by times alone.

    Among devices, drivers and versions with all shapes tuned, the latest. Stale trials are skipped, with a remark.
    Raises NotTuned ``export.not-tuned`` if a shape has no record left there.

    command: command that tunes the set, for messages
    """
    works, numbers = understood(works, weights, regret)
    remarks: dict[str, None] = {}
    known = _of_one_place(works, target, log, remarks)
    made: dict[str, Candidate | None] = {}
    stale = 0
    while all(known.values()):
        results = [ShapeResult(w, x, None, tuple(known[w.title])) for w, x in zip(works, numbers, strict=True)]
        portfolio = Portfolio.of(results, regret)
        assert portfolio is not None
        wrong = {}
        for work in works:
            record = portfolio.records[work.title]
            if record.id not in made:
                made[record.id] = regenerate(work, record, target_of(record))
            if made[record.id] is None:
                wrong[work.title] = record.id
        if not wrong:
            chosen = [made[portfolio.records[w.title].id] for w in works]
            return RecordedSet(tuple(works), portfolio, tuple(c for c in chosen if c is not None), tuple(remarks))
        stale += len(wrong)
        for title, name in wrong.items():
            remarks[f"record {name} is stale: this version makes another source for it"] = None
            known[title] = [c for c in known[title] if c.record.id != name]
    raise _not_tuned([w for w in works if not known[w.title]], len(works), target, log, stale, command)


def _of_one_place(
    works: Sequence[Work], target: Target | str | None, log: str, remarks: dict[str, None]
) -> dict[str, list[RankedRecord]]:
    """{title: ranked choices} on the device and versions with most shapes tuned, the latest if several have; [] for
    untuned shapes. Notes on skipped lines are added to ``remarks``.
    """
    found: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for work in works:
        reader = LogReader(folder_of(work, log_for(work, log)))
        for record in reader.records(workload=work.title, compute=compute_digest(work)):
            if suits(record, target) and found_on(work.templates, record.template, target_of(record)):
                found[place_of(record)][work.title].append(record)
        if reader.summary():
            remarks[f"log: {reader.summary()}"] = None
    places = [{w.title: choose(records[w.title]) for w in works} for records in found.values()]

    def worth(place: dict[str, list[RankedRecord]]) -> tuple[int, str]:
        started = (c.record.started for some in place.values() for c in some)
        return sum(map(bool, place.values())), max(started, default="")

    return max(places, key=worth, default={w.title: [] for w in works})


def _not_tuned(
    missing: Sequence[Work], of: int, target: Target | str | None, log: str, stale: int, command: str
) -> NotTuned:
    words = [f"{w.title}{left_out(w, log, other_target(target))}" for w in missing[:MAX_NAMED_SHAPES]]
    words += [f"{len(missing) - MAX_NAMED_SHAPES} more"] if len(missing) > MAX_NAMED_SHAPES else []
    message = f"{len(missing)} of {of} shapes are not tuned in {log} for one device: {'; '.join(words)}"
    message += f"; {stale} records of another version: stale, not used" if stale else ""
    return NotTuned(Problem("export.not-tuned", message, hint=command))
