"""Layer "text": mutants of what is emitted, run by the emulator."""

from __future__ import annotations

import itertools

from cuda_judge import Result, apart, sampled, trial
from cuda_kernels import KERNELS
from cuda_reasons import explain
from cuda_texts import edits

MOST = {"index by one": 10, "index, numbers exchanged": 5, "bound of a loop by one": 5, "condition left out": 4,
        "bound of a condition by one": 6, "<= for <": 5, "another slot": 3, "swizzle without one term": 4,
        "barrier of another slot": 12, "the other barrier": 8, "place of a tile": 8, "arrays overlap": 6,
        "coordinate of a copy": 6, "leading step of a tile": 6, "step of a tile": 6}  # fmt: skip
"""Mutants of a kernel and kind, where there are more places than are worth trying."""
OFTEN = 4


def mutants(text: str, slots: int, most: int | None, seed: str) -> list[int]:
    """Which of ``edits`` are tried."""
    kinds: dict[str, list[int]] = {}
    for n, e in enumerate(edits(text, slots)):
        if e.of(text) != text:
            kinds.setdefault(e.kind, []).append(n)
    return sorted(itertools.chain(*(
        sampled(found, min(most or OFTEN * 4, MOST.get(kind, OFTEN)), f"{seed} {kind}") for kind, found in kinds.items()
    )))  # fmt: skip


def run_kernel(name: str, most: int | None = None, kinds: tuple[str, ...] = ()) -> list[Result]:
    """The fate of the mutants of one kernel's text. ``most``: of each kind;  ``kinds``: those that begin so."""
    kernel = KERNELS[name]
    trials = [apart(lambda s=s: trial(s)) for s in kernel.schedules()]
    for t in trials:
        assert t.run(t.source.text) is None, f"{name} is wrong before any mutation"
    every = [edits(t.source.text, kernel.slots) for t in trials]
    assert len({len(found) for found in every}) == 1, "the texts differ in numbers only"
    out = []
    for n in mutants(trials[0].source.text, kernel.slots, most, name):
        changed = [found[n] for found in every]
        if kinds and not changed[0].kind.startswith(kinds):
            continue
        result = Result("text", name, changed[0].kind, changed[0].place(trials[0].source.text))
        for seed, (t, e) in enumerate(zip(trials, changed, strict=True)):
            if found := t.run(e.of(t.source.text), seed):
                result.detector, result.code = found
                break
        else:
            result.reason = explain(changed, trials) or ""
        out.append(result)
    return out
