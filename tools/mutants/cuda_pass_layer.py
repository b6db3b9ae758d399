"""Layer "passes": mutants of programs between two passes, judged by the interpreter and then by the emulator."""

from __future__ import annotations

import dataclasses

from cuda_judge import Result, Trial, apart, sampled, trial
from cuda_kernels import KERNELS
from cuda_programs import AFTER, Change
from cuda_reasons import BARRIERS, of_order, of_texts

from tensorir.check.equivalence import compare_module
from tensorir.codegen.cfamily import emit
from tensorir.codegen.source import Source
from tensorir.errors import LoweringError
from tensorir.interp.numbers import Field
from tensorir.ir.tree import Program
from tensorir.lower import pipeline
from tensorir.lower.kernel import Module, module_of
from tensorir.schedule.schedule import BaseSchedule

OFTEN = 2
"""Mutants of a kernel, pass and kind."""
MORE = {"split_roles": 6}
"""Where a pass makes what many kinds of change apply to."""
SAME = "it lowers to the same text"


SOONER = "does not copy on its own"
AT_ONCE = "the copy lands at once, before it has to"


def finished(s: BaseSchedule, program: Program, behind: str) -> Module:
    """The rest of lowering."""
    names = [p.__name__ for p in pipeline.PASSES]
    for p in pipeline.PASSES[names.index(behind) + 1 :]:
        program = p(program, s.target)
    pipeline.verify(program)
    return module_of(program)


def judge(s: BaseSchedule, program: Program, behind: str) -> tuple[str, str] | Source:
    """Who notices that ``program`` is wrong: (detector, code); its text when nobody does before that runs."""
    try:
        module = finished(s, program, behind)
        problem = compare_module(module, s.outputs, Field(), 1)
        if problem is not None:
            return "interpreter", problem.code
        return emit(module, s.target)
    except LoweringError as e:
        return "legality", e.code


def changes(program: Program, behind: str) -> list[Change]:
    """All mutants of a program behind a pass, in order."""
    return [c for generate in AFTER[behind] for c in generate(program)]


def run_kernel(name: str, most: int | None = None, kinds: tuple[str, ...] = ()) -> list[Result]:
    """The fate of the mutants of one kernel's programs. ``most``: of each kind;  ``kinds``: those that begin so."""
    schedules = KERNELS[name].schedules()
    forms = [dict(pipeline.forms(s.program, s.target)) for s in schedules]
    trials = [trial(s) for s in schedules]
    out = []
    for behind in AFTER:
        every = [changes(form[behind], behind) for form in forms]
        same = len({tuple(c.kind for c in found) for found in every}) == 1
        by_kind: dict[str, list[int]] = {}
        for n, c in enumerate(every[0]):
            by_kind.setdefault(c.kind, []).append(n)
        for kind, found in by_kind.items():
            if kinds and not kind.startswith(kinds):
                continue
            for n in sampled(found, most or MORE.get(behind, OFTEN), f"{name} {behind} {kind}"):
                each = [changed[n] for changed in (every if same else every[:1])]
                result = Result("passes", name, kind, f"behind {behind}: {each[0].place}")
                _try(result, each, behind, list(zip(schedules, trials, strict=True)))
                out.append(result)
    return out


def _try(result: Result, each: list[Change], behind: str, where: list[tuple[BaseSchedule, Trial]]) -> None:
    """Fill in one mutant's fate: one change for each shape."""
    texts = []
    for seed, (c, (s, t)) in enumerate(zip(each, where, strict=False)):
        judged = apart(lambda s=s, c=c: judge(s, c.make(), behind))
        if isinstance(judged, Source):
            texts.append(judged.text)
            if _body(judged.text) == _body(t.source.text):
                continue
            judged = dataclasses.replace(t, source=judged).run(judged.text, seed)
        elif isinstance(judged, str):
            judged = "interpreter", judged
        if judged is not None:
            result.detector, result.code = judged
            return
    trials = [t for _, t in where[: len(texts)]]
    old = [t.source.text for t in trials]
    if [_body(x) for x in texts] == [_body(x) for x in old]:
        result.reason = SAME
    elif result.kind in BARRIERS:
        result.reason = of_order(trials, texts) or ""
    elif result.kind == SOONER:
        result.reason = AT_ONCE
    else:
        result.reason = of_texts(old, texts, result.kind, trials) or ""


def _body(text: str) -> str:
    return text[text.index('extern "C"') :]
