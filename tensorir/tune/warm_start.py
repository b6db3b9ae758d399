"""Warm starts: times from other devices and shapes as tables for a search."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tensorir.tune.arm import believed_time
from tensorir.tune.brief import by_run
from tensorir.tune.circumstances import Limits, open_again
from tensorir.tune.interfaces import SpaceLike, Table
from tensorir.tune.log import identity_of
from tensorir.tune.record import Record, RunIdentity

MAX_TABLES = 4
"""Maximum tables per template: those of more devices would hardly add anything."""


def tables(
    records: Iterable[Record], identity: RunIdentity, spaces: Mapping[str, SpaceLike], limits: Limits | None = None
) -> dict[str, Sequence[Table]]:
    """{template: tables {row: seconds, None if failed}}, one table per other device or shape.

    records:  any; those accepted by ``identity`` are excluded
    limits:   current limits: failures under lower ones are ignored
    spaces:   {template: space to measure}; configurations illegal in it are omitted

    Of each template, the ``MAX_TABLES`` tables with most successes are returned, those with more first. The search
    tests their predictions against its measurements (``tensorir.tune.strategy``).
    """
    found: dict[str, dict[str, dict[int, float | None]]] = defaultdict(lambda: defaultdict(dict))
    accept = by_run(identity.accepts)
    for record in records:
        if accept(record):
            continue
        space = spaces.get(record.template)
        if space is None or record.kind != "trial" or open_again(record, limits):
            continue
        row = int(space.index(record.config))
        if row >= 0:
            found[record.template][identity_of(record)][row] = believed_time(record)

    def knowing(table: Mapping[int, float | None]) -> int:
        return -sum(seconds is not None for seconds in table.values())

    return {template: sorted(groups.values(), key=knowing)[:MAX_TABLES] for template, groups in found.items()}
