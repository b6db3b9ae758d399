"""Selects relevant records from a log's columns, without decoding lines (logs reach 100,000 records)."""

from __future__ import annotations

import numpy as np

from tensorir.tune.brief import Brief, Mask, Rows, TrialEnd
from tensorir.tune.circumstances import TIMEOUTS, Limits, open_again
from tensorir.tune.record import RunIdentity, Setting

MAX_START_RECORDS = 1000
"""Records per run of another device or shape from which a warm start takes a sample."""


def usable_rows(brief: Brief, identity: RunIdentity, limits: Limits | None) -> Rows:
    """Rows of the trials that need no second measurement, as ``log.usable`` selects them: accepted by ``identity``, one
    per configuration.
    """
    mine = brief.rows_of(identity.accepts) & ~brief.columns["final"].astype(bool)
    rows = np.flatnonzero(mine)
    ends = brief.columns["status"][rows].astype("i8") << 32 | brief.columns["rest"][rows]
    pairs, pair_of = np.unique(ends, return_inverse=True)
    brief.read("rest", pairs & 0xFFFFFFFF)
    settled = np.array([not open_again(_ended(brief, int(p)), limits) for p in pairs], dtype=bool)
    rows = rows[settled[pair_of]] if len(rows) else rows
    late = brief.has_status(*TIMEOUTS)[rows]
    rows = np.concatenate([brief.in_time(rows[late]), brief.in_time(rows[~late])])
    last = np.unique(keys(brief, rows)[::-1], return_index=True)[1]
    return rows[::-1][np.sort(last)][::-1]


def _ended(brief: Brief, pair: int) -> TrialEnd:
    rest = brief.rest(pair & 0xFFFFFFFF)
    return TrialEnd(brief.words["status"][pair >> 32], rest.get("detail"), rest.get("limits"))


def keys(brief: Brief, rows: Rows) -> Rows:
    """Integer per row, equal for equal template and configuration."""
    names: dict[str, int] = {}
    groups = range(len(brief.words["group"]))
    template = [names.setdefault(brief.group(n).template, len(names)) for n in groups]
    if not len(rows):
        return np.zeros(0, dtype="i8")
    return np.array(template, dtype="i8")[brief.columns["group"][rows]] << 32 | brief.columns["config"][rows]


def sample(brief: Brief, mask: Mask) -> Rows:
    """Rows of the trials in ``mask`` for a warm start: per run all up to ``MAX_START_RECORDS``; of more, the fastest
    half that number, and others evenly spaced in order of time.
    """
    found = [np.zeros(0, dtype="i8")]
    rows = np.flatnonzero(mask & ~brief.columns["final"].astype(bool))
    for group in np.unique(brief.columns["group"][rows]):
        mine = rows[brief.columns["group"][rows] == group]
        if len(mine) > MAX_START_RECORDS:
            mine = mine[np.argsort(brief.columns["steady"][mine], kind="stable")]
            rest = mine[MAX_START_RECORDS // 2 :]
            mine = np.concatenate([mine[: MAX_START_RECORDS // 2], rest[:: -(-2 * len(rest) // MAX_START_RECORDS)]])
        found.append(mine)
    return np.sort(np.concatenate(found))


def contenders(brief: Brief, mask: Mask, most: int | None = None) -> Rows:
    """Rows sufficient for ``choose`` to rank the first ``most`` configurations; None: all rows of ``mask``.

    Configurations outside of final rounds, every trial passed: the fastest by their last trial. Other configurations
    outside of final rounds: those with any trial among these.
    """
    rows = np.flatnonzero(mask)
    if most is None or len(rows) <= most:
        return rows
    rows = brief.in_time(rows)
    key = keys(brief, rows)
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    begins = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    counts = np.diff(np.r_[begins, len(rows)])
    plain = (brief.columns["final"][rows] == 0) & (brief.columns["passed"][rows] == 1)
    ours = np.minimum.reduceat(plain.astype("u1"), begins).astype(bool)
    last = brief.columns["steady"][rows[begins + counts - 1]]
    bar = np.sort(last[ours])[most - 1] if ours.sum() >= most else np.inf
    timed = np.where(brief.columns["passed"][rows] == 1, brief.columns["steady"][rows], np.inf)
    confirmed = np.maximum.reduceat(brief.columns["final"][rows], begins).astype(bool)
    keep = confirmed | np.where(ours, last <= bar, np.minimum.reduceat(timed, begins) <= bar)
    return np.sort(rows[np.repeat(keep, counts)])


def counted(brief: Brief) -> list[tuple[Setting, dict[str, int]]]:
    """Per run: (shared fields, {status: number of trials})."""
    found = []
    for group, run in brief.runs():
        mine = (brief.columns["group"] == group) & (brief.columns["final"] == 0)
        numbers, counts = np.unique(brief.columns["status"][mine], return_counts=True)
        statuses = {brief.words["status"][int(n)]: int(c) for n, c in zip(numbers, counts, strict=True)}
        found.append((run, statuses))
    return found
