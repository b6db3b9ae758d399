"""The tuned shapes nearest to one, and kernels for it from their configurations."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensorir.api.identity import A_WORD, describe, distance, identity_of
from tensorir.api.work import Work
from tensorir.errors.needs import need_path, wrong
from tensorir.runtime.device import Device, open_device
from tensorir.tune.log import LogReader, Record, choose, slug
from tensorir.tune.near import Near

if TYPE_CHECKING:
    from tensorir.tune.record import Identity


FEW = 3
"""Shapes that a search starts from: their times are worth more than those of farther ones."""


def nearest(work: Work, device: str | Device | None = None, log: str = "tuning_logs") -> list[Near]:
    """Other tuned shapes of this operator on this device, the nearest first, each with its best configuration.

    What is known of this very shape is not among them: ``work.load()`` uses that.
    """
    if not isinstance(work, Work):
        raise wrong("work", work, "a Workload")
    identity = identity_of(work, describe(open_device(device)), search=False)
    return near_shapes(identity, need_path("log", log))


def near_shapes(identity: Identity, log: str) -> list[Near]:
    """``nearest`` for a device that is open already."""
    return [several[0] for several in near_choices(identity, log)]


def near_choices(identity: Identity, log: str) -> list[list[Near]]:
    """Usable configurations of each other tuned shape, the fastest first, of the nearest shape first."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in LogReader(log).records():
        if _alike(identity, record):
            groups[record["workload"], record["compute"]].append(record)
    found = []
    for (title, _), records in groups.items():
        if ranked := choose(records):
            apart = distance(identity.workload, title)
            found.append([Near(title, apart, c.record["template"], c.record["config"], c.time_s) for c in ranked])
    return sorted(found, key=lambda several: (several[0].distance, several[0].workload))


def near_records(identity: Identity, log: str) -> list[Record]:
    """What is known, on this device, of the nearest few shapes that differ in numbers only.

    Of the folders of other shapes only the first record is read, for a log may be long and a search starts with this.
    """
    folders = Path(log).glob(f"{slug(identity.workload).rpartition('-')[0]}-*/")
    titles = {folder: next((r["workload"] for r in LogReader(folder).records()), "") for folder in folders}
    apart = {folder: distance(identity.workload, title) for folder, title in titles.items() if title}
    near = sorted((d, titles[f], f) for f, d in apart.items() if d < A_WORD and titles[f] != identity.workload)
    return [r for _, _, folder in near[:FEW] for r in LogReader(folder).records() if _alike(identity, r)]


def _alike(identity: Identity, record: Record) -> bool:
    """Whether a record is of another shape of this operator, and its time means here what it meant there."""
    title = record["workload"]
    same = title.split()[:1] == identity.workload.split()[:1] and title != identity.workload
    return same and replace(identity, compute=record["compute"]).accepts(record)
