"""``tune``: runs the search of one workload on a device, with the log's records and a measuring process."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tensorir.api.identity import folder_of, identity_of
from tensorir.api.load_cache import ours
from tensorir.api.measurer import Measurer
from tensorir.api.neighbours import near_records
from tensorir.errors import DeclarationError, Problem, ScheduleError
from tensorir.errors.habits import meant
from tensorir.target import Target
from tensorir.tune.brief import Brief, Rows, by_run
from tensorir.tune.claims import Others
from tensorir.tune.interfaces import Bench, SearchPart, Task
from tensorir.tune.legal import listed_until
from tensorir.tune.log import LogReader, LogWriter, key_of
from tensorir.tune.loop import search
from tensorir.tune.outcome import TuneOutcome
from tensorir.tune.record import TRANSIENT, Record, RunIdentity
from tensorir.tune.restrict import parse
from tensorir.tune.selection import sample, usable_rows
from tensorir.tune.space import Space
from tensorir.tune.spec import RunSpec
from tensorir.tune.template import suiting
from tensorir.tune.trial import Trial

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.runtime.device import Device
    from tensorir.tune.template import Template


LEAST_S = 2.0  # for listing spaces, however small the budget: something is always measured


def tune(work: Work, device: str | Device | Sequence[str | Device] | None, spec: RunSpec) -> TuneOutcome:
    """Search ``work``'s templates on a device; returns the outcome (``Workload.tune``)."""
    spec = replace(spec, started=time.monotonic() if spec.started is None else spec.started)
    with Measurer(work, device, spec) as measurer:
        session = Session(work, measurer, spec)
        if spec.on_start is not None:
            spec.on_start(session.about, session.spaces, len(session.reused))
        with LogWriter(spec.log, session.identity.workload) as log:
            return session.search(spec, log)


class Session:
    """A workload on an opened device: its search spaces and earlier records."""

    def __init__(self, work: Work, measurer: Measurer, spec: RunSpec) -> None:
        refuse_options(work, spec)
        self.work, self.measurer, self.spec = work, measurer, spec
        self.about = measurer.open()
        self.spaces = spaces_of(work, spec, Target.parse(str(self.about["target"])))
        self.identity = identity_of(work, self.about)
        self.others = None if spec.fresh else Others(folder_of(work, spec.log), spec.limits)
        known = Earlier(work, self.identity, self.spaces, spec, measurer.digests)
        self.earlier, self.reused = known.records, known.reused
        first = next(iter(self.spaces))
        default = Trial(first, self.spaces[first].default)
        measurer.known(self.reused, default, known.levels)

    def legal(self, template: str, config: Mapping[str, object]) -> bool:
        """True if this configuration is in the searched spaces."""
        space = self.spaces.get(template)
        return space is not None and space.index(config) >= 0

    @property
    def task(self) -> Task:
        """Task for a search of this workload: identity, spaces, earlier records."""
        return Task(self.identity, self.spaces, self.earlier, self.work.flops, known=self.reused)

    @property
    def bench(self) -> Bench:
        """The measuring side for a search: this session's measurer, with final round, parallel builds and workers."""
        m = self.measurer
        return Bench(m.measure, m.final, m if m.width > 1 else None, m.flights, m.cold_s)

    def search(
        self,
        spec: RunSpec,
        log: LogWriter | None = None,
        task: Task | None = None,
        bench: Bench | None = None,
        part: SearchPart | None = None,
    ) -> TuneOutcome:
        """Search this session's spaces and return the outcome; task and bench are the session's own unless given."""
        if self.measurer.flights is not None:
            spec = replace(spec, on_trial=partial(self.measurer.watched, spec.on_trial))
        if self.others is not None and log is not None:
            self.others.begin(log.path)
        try:
            asked = replace(part or SearchPart(), others=self.others)
            found = search(spec, task or self.task, bench or self.bench, log, asked)
        finally:
            if self.others is not None:
                self.others.end()
        return replace(found, machine=replace(found.machine, waits=self.measurer.waits.told()))


class Earlier:
    """Log records that a run on a device takes over.

    digests: function from records to the SHA-256 of the sources that templates make for them now (None: no source)

    levels:  trials of this workload on this device and versions that need no second measurement, stale ones included
    records: records of this and nearby shapes, of any device and kind, without stale ones; [] with ``spec.fresh``
    reused:  trials of ``levels`` that are among ``records``: they count as trials of this run
    """

    def __init__(
        self, work: Work, identity: RunIdentity, spaces: Mapping[str, Space], spec: RunSpec, digests: Digests
    ) -> None:
        self._identity, self._spaces = identity, spaces
        here = LogReader(folder_of(work, spec.log)).brief()
        self.levels = _read(here, usable_rows(here, identity, spec.limits))
        found = [] if spec.fresh else [*self._found(here), *near_records(identity, spec.log)]
        self.records = current(found, identity, work.templates, digests)
        left = set(map(id, self.records))
        self.reused = [r for r in self.levels if id(r) in left]

    def _found(self, here: Brief) -> list[Record]:
        """The log's records of this workload: trials and finals of this device with legal configurations, and a sample
        of those of other devices and versions.
        """
        mine = here.rows_of(self._identity.accepts)
        finals = _read(here, np.flatnonzero(mine & here.columns["final"].astype(bool)))
        return [*self._legal([*self.levels, *finals]), *_read(here, sample(here, ~mine))]

    def _legal(self, records: Sequence[Record]) -> list[Record]:
        """Records with configurations in the searched spaces."""
        legal: set[int] = set()
        for name, space in self._spaces.items():
            mine = [r for r in records if r.template == name]
            rows = zip(mine, space.rows([r.config for r in mine]), strict=True)
            legal |= {id(r) for r, row in rows if row >= 0}
        return [r for r in records if id(r) in legal]


def _read(known: Brief, rows: Rows) -> list[Record]:
    """Records of ``rows``, decoded together."""
    known.read("config", known.columns["config"][rows])
    return known.records(rows)


def spaces_of(work: Work, spec: RunSpec, target: Target) -> dict[str, Space]:
    """{template: space} searched on a target, legal configurations listed. A space that lacks a condition's knobs, or
    has no configuration under the conditions, is dropped while others remain.

    Raises ScheduleError for unknown templates or none for the target; DeclarationError for conditions that fit no
    template, ``space.empty`` if no space is left, ``space.constraint-slow`` if listing outlasts the budget (2 s at
    least).
    """
    refuse_options(work, spec)
    budget, started = spec.budget_s, spec.started
    end = None if budget is None or started is None else max(started + budget, time.monotonic() + LEAST_S)
    with listed_until(end):
        spaces = _restricted(work, spec.restrict, spec.templates, target)
        for space in spaces.values():
            _ = space.legal
    return spaces


def refuse_options(work: Work, spec: RunSpec) -> None:
    """Raise ScheduleError ``template.unknown`` for unknown templates, DeclarationError for a condition that is
    malformed or has a knob that no template has. No device is opened.
    """
    for template in spec.templates:
        if template not in work.templates:
            message = f"{work.name} has no template {template!r}"
            raise ScheduleError(Problem("template.unknown", message, hint=meant("template", template, work.templates)))
    for condition in spec.restrict:
        refusals = []
        for name in spec.templates or work.templates:
            try:
                parse(condition, work.templates[name].space.names)
                break
            except DeclarationError as error:
                refusals.append(error)
        else:
            raise refusals[0]


def _restricted(work: Work, conditions: Sequence[str], templates: Sequence[str], target: Target) -> dict[str, Space]:
    """{template: space} under the user's conditions; emptied spaces are dropped while others remain.

    A condition that applies to no template is refused.
    """
    spaces: dict[str, Space] = {
        n: t.space_for(target) for n, t in suiting(work.templates, target) if not templates or n in templates
    }
    if not spaces:
        work.template_for(target, next(iter(templates), None))  # says that there is no template for this kind
    for condition in conditions:
        refusals: dict[str, Exception] = {}
        for name, space in list(spaces.items()):
            try:
                spaces[name] = space.restrict(condition)
            except DeclarationError as error:
                refusals[name] = error
        for name in refusals:
            del spaces[name]
        if not spaces:
            raise next(iter(refusals.values()))
    empty: list[DeclarationError] = []
    for name, space in list(spaces.items()):
        try:
            _ = space.default
        except DeclarationError as error:
            if error.code != "space.empty":
                raise
            empty.append(error)
            del spaces[name]
    if not spaces:
        raise empty[0]
    return spaces


# Which earlier records still speak of what the templates make now: people edit their templates between two runs.

Digests = Callable[[Sequence[Record]], Sequence[str | None]]
REMADE_OF_PACKAGE = 1
"""Configurations, the fastest, of one of this package's templates whose sources are made again: if they are unchanged,
the others count as unchanged. Each takes some hundredths of a second, for every shape."""
REMADE_OF_OTHERS = 200
"""Configurations of a user's template, or of a changed one, whose sources are made again: half of them the fastest,
half evenly spaced. If one of them has changed, those not made again are stale as well."""


def current(
    records: Sequence[Record], identity: RunIdentity, templates: Mapping[str, Template], digests: Digests
) -> list[Record]:
    """``records`` without stale ones of this identity (their template makes another source now), with a warning.

    digests: SHA-256 of the sources that the templates make of some records' configurations now; None for no source

    A record without a source (nothing emitted, or the process died) is stale if there is a source now and later records
    of its template are stale.
    """
    accepts = by_run(identity.accepts)
    mine = [r for r in records if r.template in templates and accepts(r)]
    of: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(mine, key=lambda r: r.steady_s):
        of[record.template].append(record)
    known: dict[str, str | None] = {}
    changed: dict[str, bool] = {}  # whether all of the template's configurations were asked for
    for name, some in of.items():
        for asked in _asked(some, ours(templates[name].function)):
            new = [r for r in asked if key_of(r) not in known]
            known |= dict(zip(map(key_of, new), digests(new) if new else [], strict=True))
            configs = [r.config for r in new]
            if not any(_differs(r, known) for r in some if len(new) > REMADE_OF_PACKAGE or r.config in configs):
                break
            changed[name] = len(asked) < REMADE_OF_OTHERS
    if not changed:
        return list(records)
    stale = [r for r in mine if _differs(r, known) or _lost(r, known, changed)]
    newest: dict[str, str] = defaultdict(str)  # by template, when the last stale one was made
    for record in stale:
        newest[record.template] = max(newest[record.template], record.started)
    stale += [r for r in mine if r.source_sha256 is None and key_of(r) not in known and r.started <= newest[r.template]]
    gone = set(map(id, stale))
    left = [r for r in records if id(r) not in gone]
    lost = {key_of(r) for r in stale if r.kind == "trial"} - {key_of(r) for r in left}
    if lost:
        of_which = ", ".join(sorted(changed))
        text = f"{of_which} changed since: {len(lost)} configuration{'s' * (len(lost) != 1)} of the log stale, not used"
        warnings.warn(f"template {text}", stacklevel=2)
    return left


def _asked(some: Sequence[Record], our: bool) -> Iterator[list[Record]]:
    """Yield two batches (one if not ``our``) of a template's records whose sources are to be made again and compared,
    fastest first.

    The first has up to ``REMADE_OF_PACKAGE`` records, for the package's own template (``our``); the second up to
    ``REMADE_OF_OTHERS``, half of them the fastest, half evenly spaced. The caller stops if no source changed.
    """
    told = filter(_can_be_told, some)
    few = list(islice(told, REMADE_OF_PACKAGE)) if our else []
    if few:
        yield few
    every = list({key_of(r): r for r in reversed([*few, *told])}.values())[::-1]
    yield [
        *every[: REMADE_OF_OTHERS // 2],
        *spaced(every[REMADE_OF_OTHERS // 2 :], REMADE_OF_OTHERS - REMADE_OF_OTHERS // 2),
    ]


def spaced(some: list[Record], most: int) -> list[Record]:
    """At most ``most`` of the records, evenly spaced."""
    return some[:: max(1, -(-len(some) // most))]


def _can_be_told(record: Record) -> bool:
    """True if the record's source can be compared with the present one: it has a digest or is an illegal schedule, and
    its status is not transient (cancelled, device lost, internal error).
    """
    said = record.source_sha256 is not None or record.status == "illegal_schedule"
    return said and record.status not in TRANSIENT


def _lost(record: Record, known: Mapping[str, str | None], changed: Mapping[str, bool]) -> bool:
    """True if a record counts as stale without having been compared: other sources of its template have changed, and
    not all were compared.
    """
    return not changed.get(record.template, True) and _can_be_told(record) and key_of(record) not in known


def _differs(record: Record, known: Mapping[str, str | None]) -> bool:
    key = key_of(record)
    return key in known and known[key] != record.source_sha256 and _can_be_told(record)
