"""Which earlier records still speak of what the templates make now: people edit their templates between two runs."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tensorir.api.kept import ours
from tensorir.tune.brief import by_run
from tensorir.tune.log import key_of
from tensorir.tune.record import TRANSIENT, Identity, Record, steady_s

if TYPE_CHECKING:
    from tensorir.tune.template import Template

Digests = Callable[[Sequence[Record]], Sequence[str | None]]
FEW = 1
"""Configurations of a template of this package whose sources are made again, the fastest first: where these are as they
were, and its version is the same, so are the others. Each takes some hundredths of a second, for every shape."""


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
    mine = [r for r in records if accepts(r) and r["template"] in templates]
    of: dict[str, dict[str, Record]] = defaultdict(dict)  # by template and configuration
    for record in sorted(mine, key=steady_s):
        if _can_be_told(record):
            of[record["template"]].setdefault(key_of(record), record)
    known: dict[str, str | None] = {}
    changed: set[str] = set()
    for name, found in of.items():
        every = list(found.values())
        few = every[:FEW] if ours(templates[name].function) else every
        for asked in (few, every[len(few) :]):
            if asked and (asked is few or name in changed):
                known |= dict(zip(map(key_of, asked), digests(asked), strict=True))
                changed |= {name} if any(_differs(r, known) for r in mine if r["template"] == name) else set()
    newest: dict[str, str] = defaultdict(str)  # by template, when the last stale one was made
    for record in mine:
        if _differs(record, known):
            newest[record["template"]] = max(newest[record["template"]], record["started"])
    stale = {
        id(r)
        for r in mine
        if _differs(r, known)
        or (r["source_sha256"] is None and key_of(r) not in known and r["started"] <= newest[r["template"]])
    }
    left = [r for r in records if id(r) not in stale]
    lost = {key_of(r) for r in mine if id(r) in stale and r["kind"] == "trial"} - {key_of(r) for r in left}
    if lost:
        of_which = ", ".join(sorted(changed))
        text = f"{of_which} changed since: {len(lost)} configuration{'s' * (len(lost) != 1)} of the log stale, not used"
        warnings.warn(f"template {text}", stacklevel=2)
    return left


def _can_be_told(record: Record) -> bool:
    """Whether making the source again says something; not for what hung or fell while it was made."""
    said = record["source_sha256"] is not None or record["status"] == "illegal_schedule"
    return said and record["status"] not in TRANSIENT


def _differs(record: Record, known: Mapping[str, str | None]) -> bool:
    key = key_of(record)
    return key in known and known[key] != record["source_sha256"] and _can_be_told(record)
