"""The run's reference: the configuration that all others are timed alternately with, chosen and kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from pathlib import Path
from typing import Any

from tensorir.api.bench import LONG_S, REFERENCE_FILE, REFERENCE_PHASE
from tensorir.api.candidate import Refused
from tensorir.api.expected import save_json
from tensorir.api.questions import Standard, Wanted
from tensorir.codec import encode, plain
from tensorir.tune.log import Record, key_of
from tensorir.tune.record import key_text
from tensorir.tune.trial import Outcome, Trial

MOST_LEVELS = 5  # earlier trials that are made again to see whether their source is still the same


class Reference:
    """Chooses the reference: of the log an earlier trial, else the default once it was measured.

    make:    what a worker must know of a configuration; raises Refused where it cannot be made
    digests: the SHA-256 of the sources that the templates make now of some records
    folder:  of the expected outputs; every trial names the reference, so a source that was made here is stored there
    """

    def __init__(
        self,
        make: Callable[[str, Mapping[str, Any]], Wanted],
        digests: Callable[[Sequence[Record]], Sequence[str | None]],
        folder: str,
    ) -> None:
        self._make, self._digests, self._folder = make, digests, folder
        self._default = ""  # the configuration that others are timed with once it was measured
        self._levels: list[Record] = []  # trials of earlier runs that they can be timed with instead
        self.chosen: Standard | None = None

    def known(self, default: Trial, levels: Sequence[Record]) -> None:
        """Take over usable trials of the log, whether or not they count in this run, and which is the default.

        Others are timed with one of them, the default or else the earliest, so that all drifts of the log are on the
        level of that one's trial; where there is none, with the default once it was measured.
        """
        self._default = key_text([default.template, default.config])
        short = (r for r in levels if r.status == "ok" and r.steady_s < LONG_S)
        template, config = default.template, plain(default.config)
        self._levels = nsmallest(
            MOST_LEVELS, short, key=lambda r: (r.config != config or r.template != template, r.started)
        )

    def standard(self, templates: Container[str]) -> Standard | None:
        """Return the reference; of earlier trials, one whose source is still the same."""
        while self.chosen is None and self._levels:
            record = self._levels.pop(0)
            if record.template in templates and self._digests([record]) == [record.source_sha256]:
                self._default = key_of(record)
                self.measured(record.template, record.config, record.steady_s, record.source_sha256)
        return self.chosen

    def stands_in(self, template: str, config: Mapping[str, object]) -> None:
        """What was measured is the default, or stands in for it, unless there is a reference."""
        if self.chosen is None:
            self._default = key_text([template, config])

    def measured(self, template: str, config: Mapping[str, object], seconds: float, sha256: str | None) -> None:
        """A valid trial took so long: the default becomes the reference, unless it takes too long to be one."""
        is_default = key_text([template, config]) == self._default
        if self.chosen is not None or not is_default or seconds >= LONG_S:
            return
        with contextlib.suppress(Refused, OSError):  # an old record may be of what cannot be made any more
            wanted = self._make(template, config)
            if wanted.ready is not None:
                save_json(Path(self._folder, REFERENCE_FILE), encode(wanted.ready))
            self.chosen = Standard(replace(wanted, ready=None, sha256=sha256), seconds)

    def fell(self, outcome: Outcome) -> bool:
        """Whether the worker ended while it made the reference, which is then given up for good."""
        fell = outcome.phase == REFERENCE_PHASE
        if fell:
            self.chosen, self._default, self._levels = None, "", []
        return fell
