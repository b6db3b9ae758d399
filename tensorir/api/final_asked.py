"""The final round as its supervisor sees it: asked for again without whoever took the worker along."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tensorir.api.limits import for_a_peer
from tensorir.codec import decode
from tensorir.tune.record import Record
from tensorir.tune.trial import CANCELLED, FinalRound, Outcome, Reply

if TYPE_CHECKING:
    from tensorir.api.channel import Channel
    from tensorir.api.questions import Final
    from tensorir.api.reference import Reference
    from tensorir.tune.spec import RunSpec

RACE_SHARE = 0.25  # of the time that the search took is worth spending on which of its finalists is fastest
LEAST_RACE_S = 1.0  # whatever the search took
LEAST_LEFT_S = 1.0  # of the budget, or there is no round


def race_s(spec: RunSpec, searched_s: float | None) -> float:
    """Return the seconds that the finalists race at most; searched_s: as for ``Measurer.final``."""
    if spec.final_s is not None:
        return spec.final_s
    if searched_s is None:
        searched_s = time.monotonic() - (spec.started or math.inf)
    return max(LEAST_RACE_S, RACE_SHARE * searched_s)


def final_round(
    channel: Channel,
    reference: Reference,
    question: Callable[[Sequence[Record], float | None], Final],
    finalists: Sequence[Record],
    remaining: float | None,
) -> FinalRound:
    """Return what a final round found; who kills the worker is out, and the others are tried again.

    question: makes the question for some finalists and the seconds left
    """
    began = time.monotonic()
    results: list[Outcome | None] = [None] * len(finalists)
    peers = True
    while open_ := [n for n, r in enumerate(results) if r is None]:
        left = None if remaining is None else remaining - (time.monotonic() - began)
        if left is not None and left < LEAST_LEFT_S:
            break
        asked = replace(question([finalists[n] for n in open_], left), peers=peers)
        late_s = None if channel.flights is None else (len(open_) + 2) * channel.flights.late_s
        reply = channel.ask(asked, left, {"baseline": for_a_peer(left)}, late_s)
        if reference.fell(reply):
            continue
        if reply.ok:
            found = decode(FinalRound, reply.answer)
            for n, outcome in zip(open_, found.results, strict=True):
                results[n] = replace(outcome, device=reply.device)
            return replace(found, results=_all(results))
        guilty = _guilty(reply, len(open_))
        if guilty is not None:
            results[open_[guilty[0]]] = guilty[1]
        elif peers and reply.status != CANCELLED.status and reply.phase == "baseline":
            peers = False  # one of them hangs or takes the worker along: the finalists are not to pay for that
        else:
            break
    return FinalRound(_all(results))


def _all(results: Sequence[Outcome | None]) -> tuple[Outcome, ...]:
    return tuple(r or CANCELLED for r in results)


def _guilty(reply: Reply, count: int) -> tuple[int, Outcome] | None:
    """The finalist that was being handled when the worker died, and what became of it; None when time ran out or nobody
    can be blamed.
    """
    phase = reply.phase.split()
    if reply.status == CANCELLED.status or len(phase) != 2 or not phase[1].isdigit() or int(phase[1]) >= count:
        return None
    hung = reply.status == "run_timeout" and phase[0] == "compile"
    return int(phase[1]), replace(reply.outcome, status="compile_timeout") if hung else reply.outcome
