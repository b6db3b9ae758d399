"""Which earlier records still speak of what the templates make now: people edit their templates between two runs."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tensorir.api.load_cache import ours
from tensorir.tune.brief import by_run
from tensorir.tune.log import key_of
from tensorir.tune.record import TRANSIENT, Identity, Record, steady_s

if TYPE_CHECKING:
    from tensorir.tune.template import Template

Digests = Callable[[Sequence[Record]], Sequence[str | None]]
FEW = 1
"""Configurations of a template of this package whose sources are made again, the fastest first: where these are as they
were, and its version is the same, so are the others. Each takes some hundredths of a second, for every shape."""
MANY = 200
"""Configurations of any other template, or of one that has changed, whose sources are made again: the fastest, and
others evenly spaced. Where one of them has changed, those that were not asked for are stale as well."""


def current(
    records: Sequence[Record], identity: Identity, templates: Mapping[str, Template], digests: Digests
) -> list[Record]:
    """``records`` without those that ``identity`` accepts but whose template makes another source now, with a warning.

    digests: what the templates make of the configurations of some records: the SHA-256 of the source, None where there
             is none

    Records that name no source, because nothing was emitted or the process that knew it died, are stale where there is
    a source now, and where later ones of their template are stale.
    """
    accepts = by_run(identity.accepts)
    mine = [r for r in records if r["template"] in templates and accepts(r)]
    of: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(mine, key=steady_s):
        of[record["template"]].append(record)
    known: dict[str, str | None] = {}
    changed: dict[str, bool] = {}  # whether all of the template's configurations were asked for
    for name, some in of.items():
        for asked in _asked(some, ours(templates[name].function)):
            new = [r for r in asked if key_of(r) not in known]
            known |= dict(zip(map(key_of, new), digests(new) if new else [], strict=True))
            configs = [r["config"] for r in new]
            if not any(_differs(r, known) for r in some if len(new) > FEW or r["config"] in configs):
                break
            changed[name] = len(asked) < MANY
    if not changed:
        return list(records)
    stale = [r for r in mine if _differs(r, known) or _lost(r, known, changed)]
    newest: dict[str, str] = defaultdict(str)  # by template, when the last stale one was made
    for record in stale:
        newest[record["template"]] = max(newest[record["template"]], record["started"])
    stale += [
        r
        for r in mine
        if r["source_sha256"] is None and key_of(r) not in known and r["started"] <= newest[r["template"]]
    ]
    gone = set(map(id, stale))
    left = [r for r in records if id(r) not in gone]
    lost = {key_of(r) for r in stale if r["kind"] == "trial"} - {key_of(r) for r in left}
    if lost:
        of_which = ", ".join(sorted(changed))
        text = f"{of_which} changed since: {len(lost)} configuration{'s' * (len(lost) != 1)} of the log stale, not used"
        warnings.warn(f"template {text}", stacklevel=2)
    return left


def _asked(some: Sequence[Record], our: bool) -> Iterator[list[Record]]:
    """Of records of a template, the fastest first, those to ask for, each configuration once: first ``FEW`` for one of
    ours, then, as long as they have changed, ``MANY``.
    """
    told = filter(_can_be_told, some)
    few = list(islice(told, FEW)) if our else []
    if few:
        yield few
    every = list({key_of(r): r for r in reversed([*few, *told])}.values())[::-1]
    yield [*every[: MANY // 2], *spaced(every[MANY // 2 :], MANY - MANY // 2)]


def spaced(some: list[Record], most: int) -> list[Record]:
    """At most so many of them, evenly spaced."""
    return some[:: max(1, -(-len(some) // most))]


def _can_be_told(record: Record) -> bool:
    """Whether making the source again says something; not for what hung or fell while it was made."""
    said = record["source_sha256"] is not None or record["status"] == "illegal_schedule"
    return said and record["status"] not in TRANSIENT


def _lost(record: Record, known: Mapping[str, str | None], changed: Mapping[str, bool]) -> bool:
    """Whether a record was not asked for, and others of its template have changed."""
    return not changed.get(record["template"], True) and _can_be_told(record) and key_of(record) not in known


def _differs(record: Record, known: Mapping[str, str | None]) -> bool:
    key = key_of(record)
    return key in known and known[key] != record["source_sha256"] and _can_be_told(record)
