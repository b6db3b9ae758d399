"""Finds the tuned shapes of an operator nearest to a shape, with their best configurations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tensorir.api.identity import A_WORD, describe, distance, identity_of
from tensorir.api.work import Work
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_path, wrong
from tensorir.runtime.device import Device, open_device
from tensorir.tune.log import LogReader, Record, choose, slug
from tensorir.tune.nearest_shape import NearestShape
from tensorir.tune.record import Setting
from tensorir.tune.selection import contenders, counted, sample

if TYPE_CHECKING:
    from tensorir.tune.record import RunIdentity


MAX_RANKED = 100
"""Configurations of another shape that are ranked: the fastest."""
START_SHAPES = 3
"""Shapes that a search starts from: their times are worth more than those of farther ones."""


@answers()
def nearest(work: Work, device: str | Device | None = None, log: str = "tuning_logs") -> list[NearestShape]:
    """Other tuned shapes of this operator on this device, the nearest first, each with its best configuration.

    [] if there are none. Records of this very shape are left out: ``work.load()`` uses those.
    """
    if not isinstance(work, Work):
        raise wrong("work", work, "a Workload")
    identity = identity_of(work, describe(open_device(device)), search=False)
    return near_shapes(identity, need_path("log", log))


def near_shapes(identity: RunIdentity, log: str) -> list[NearestShape]:
    """Other tuned shapes of ``identity``'s operator, the nearest first, each with its best configuration on this
    device.
    """
    return [several[0] for several in near_choices(identity, log)]


def near_choices(identity: RunIdentity, log: str) -> list[list[NearestShape]]:
    """For each other tuned shape, nearest first: its usable configurations, fastest first, ``MAX_RANKED`` at most."""
    known = LogReader(log).brief()
    shapes = {(g.workload, g.compute) for g, _ in counted(known) if _alike(identity, g)}
    found = []
    for title, compute in sorted(shapes):
        fits = known.rows_of(partial(_of, identity, title, compute))
        if ranked := choose(known.records(contenders(known, fits, MAX_RANKED))):
            apart = distance(identity.workload, title)
            found.append([NearestShape(title, apart, c.record.template, c.record.config, c.time_s) for c in ranked])
    return sorted(found, key=lambda several: (several[0].distance, several[0].workload))


def near_records(identity: RunIdentity, log: str) -> list[Record]:
    """Records on this device of the ``START_SHAPES`` nearest shapes that differ in numbers only: of each run the
    fastest trials and a sample of the others.

    Other shapes' folders are judged by their first record: a log may be long, and searches begin with this call.
    """
    folders = Path(log).glob(f"{slug(identity.workload).rpartition('-')[0]}-*/")
    titles = {folder: next((r.workload for r in LogReader(folder).records()), "") for folder in folders}
    apart = {folder: distance(identity.workload, title) for folder, title in titles.items() if title}
    near = sorted((d, titles[f], f) for f, d in apart.items() if d < A_WORD and titles[f] != identity.workload)
    found: list[Record] = []
    for _, _, folder in near[:START_SHAPES]:
        known = LogReader(folder).brief()
        found += known.records(sample(known, known.rows_of(partial(_alike, identity))))
    return found


def _of(identity: RunIdentity, title: str, compute: str, record: Setting) -> bool:
    return (record.workload, record.compute) == (title, compute) and _alike(identity, record)


def _alike(identity: RunIdentity, record: Setting) -> bool:
    """True if a record is of another shape of this operator, with comparable times."""
    title = record.workload
    same = title.split()[:1] == identity.workload.split()[:1] and title != identity.workload
    return same and replace(identity, compute=record.compute).accepts(record)
