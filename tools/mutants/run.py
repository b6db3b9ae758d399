"""How many wrong programs do the checks find? Every small change of every example's program, and who noticed it.

    python tools/mutants/run.py [--json] [--oclgrind] [--only NAME] [--each N] [--jobs 2]

The programs are mutated right after ``insert_barriers``, where stages, loops and multi-dimensional indices can still be
told apart, and once more in their final form, where every access has one index. A mutant is

* a barrier or an initialisation deleted,
* a loop bound, a bound of a condition, or one index of one access moved by one,
* two indices of one access swapped.

The rest of lowering then runs as usual. Detectors, in order: *legality* (a pass refuses), *interpreter* (a race, an
uninitialised read, an access out of bounds, a cell never written, a divergent barrier), *ring* (a result that differs
from the declaration's in the prime field). A mutant that survives the first shape meets the others of the ring check.

What survives all shapes counts as *equivalent* only when a second, computed experiment says why (``explain``).
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mutated_programs import PROGRAMS
from mutations import Mutant, after_barriers, final_form, idle, poisoned

from tensorir.arith.affine import Arith, Linear
from tensorir.check.equivalence import awkward_shapes, compare_module, label
from tensorir.check.resize import resize
from tensorir.errors import LoweringError, Problem, TensorIRError
from tensorir.interp.numbers import Field
from tensorir.ir.text import show, text
from tensorir.ir.tree import Expr, Load, Program, Ramp, Store, Var
from tensorir.ir.visit import Rewriter, find
from tensorir.lower import pipeline
from tensorir.lower.kernel import module_of
from tensorir.schedule.schedule import BaseSchedule

SHAPES = 8
"""Shapes of the ring check that a survivor meets."""


@dataclass
class Form:
    """One program on one shape, stopped behind ``insert_barriers`` and at the end, with its mutants by key."""

    outputs: tuple[Any, ...]
    target: Any
    early: Program
    late: Program
    mutants: dict[tuple[Any, ...], Mutant] = field(default_factory=dict)

    def all(self) -> dict[tuple[Any, ...], Mutant]:
        if not self.mutants:
            for m in (*after_barriers(self.early), *final_form(self.late)):
                self.mutants.setdefault(m.key, m)
        return self.mutants


def form_of(s: BaseSchedule) -> Form:
    """Lower ``s`` and remember the program where it is mutated."""
    program = early = s.program
    for p in pipeline.PASSES:
        program = p(program, s.target)
        if p.__name__ == "insert_barriers":
            early = program
    return Form(s.outputs, s.target, early, program)


def shapes_of(s: BaseSchedule) -> Iterator[Form]:
    """The schedule on the shapes of the ring check, small ones first."""
    seen = set()
    for extents in awkward_shapes(s):
        try:
            outputs = resize(s.began_with, extents)
            again = BaseSchedule(outputs, s.target).replay(s.trace)
        except TensorIRError:
            continue
        name = label(outputs)
        if name not in seen:
            seen.add(name)
            yield form_of(again)


def finished(form: Form, program: Program, early: bool) -> Program:
    """The rest of lowering."""
    if early:
        names = [p.__name__ for p in pipeline.PASSES]
        for p in pipeline.PASSES[names.index("insert_barriers") + 1 :]:
            program = p(program, form.target)
    return program


def judge(form: Form, program: Program, early: bool) -> tuple[str, str] | None:
    """Who notices that ``program`` is wrong: (detector, code); None when nobody does."""
    try:
        program = finished(form, program, early)
        pipeline.verify(program)
        problem: Problem | None = compare_module(module_of(program), form.outputs, Field(), 1)
    except LoweringError as e:
        return "legality", e.code
    if problem is None:
        return None
    return ("ring" if problem.code == "check.not-equal" else "interpreter"), problem.code


def explain(m: Mutant, forms: list[Form]) -> str | None:
    """Why an undetected mutant is no fault, by experiment; None when there is no such reason."""
    if m.kind == "barrier":
        return "the barrier orders nothing: no two threads touch a cell on both sides of it, on any shape"
    if m.kind == "swap" and isinstance(m.at, Store) and not find(m.at.value, (Var, Load)):
        return "every cell gets the same value, so that swapping the dimensions of a square tile only changes the order"
    here = [(form, same) for form in forms if (same := form.all().get(m.key)) is not None]
    if all(_code(form, same.make(), same.early) == _code(form, form.early, True) for form, same in here):
        return "it lowers to the same program: every access touches the same cell as before"
    for reason, worse in (
        ("what the place in question reads or writes never reaches a result, whatever it is", poisoned),
        ("the iterations in question store what the cells hold already", idle),
    ):
        tried = [
            judge(form, p, same.early)
            for form, same in here
            for p in worse(same, form.early if same.early else form.late)
        ]
        if tried and not any(tried):
            return reason
    return None


class _Cells(Rewriter):
    """Indices as sums of sorted terms, so that only what they come to matters."""

    def on_Load(self, n: Load) -> Load:
        return n.replace(index=(_sorted(self.children(n).index[0]),))

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        return n.replace(index=(_sorted(n.index[0]),))


def _sorted(i: Expr) -> Expr:
    if isinstance(i, Ramp):
        return i.replace(base=_sorted(i.base))
    form = Arith().linear(i)
    return Linear(dict(sorted(form.terms.items(), key=lambda t: show(t[0]))), form.constant).expr()


def _code(form: Form, program: Program, early: bool) -> str:
    done = finished(form, program, early)
    return text(done.replace(body=_Cells()(done.body)))


@dataclass
class Result:
    """One mutant's fate: detector is empty for survivors."""

    program: str
    text: str
    kind: str
    detector: str = ""
    code: str = ""
    reason: str = ""


def run_program(name: str, make: Callable[[], BaseSchedule], each: int | None = None) -> list[Result]:
    """The fate of all mutants of one program."""
    forms: list[Form] = []
    more = shapes_of(make())
    for form in more:
        forms.append(form)
        if len(forms) == SHAPES:
            break
    for form in forms:
        if judge(form, form.early, True) is not None:
            raise SystemExit(f"{name} is wrong before any mutation")
    first = forms[0]
    # a shape on which nothing is trivial comes first: more keys exist there
    first = max(forms[:3], key=lambda f: len(f.all()))
    others = [f for f in forms if f is not first]
    chosen = list(first.all().values())
    if each is not None:
        chosen = chosen[:: max(1, len(chosen) // each)]
    out = []
    for m in chosen:
        found = judge(first, m.make(), m.early)
        for form in others if found is None else ():
            same = form.all().get(m.key)
            if same is not None:
                found = found or judge(form, same.make(), same.early)
        if found is not None:
            out.append(Result(name, m.text, m.kind, *found))
        else:
            out.append(Result(name, m.text, m.kind, reason=explain(m, [first, *others]) or ""))
    return out


def work(task: tuple[str, int | None]) -> list[Result]:
    """One program, in a process of its own."""
    return run_program(task[0], PROGRAMS[task[0]], task[1])


def summary(results: list[Result]) -> dict[str, Any]:
    """Numbers, and what survived."""
    killed = collections.Counter(r.detector for r in results if r.detector)
    equivalent = collections.Counter(r.reason for r in results if not r.detector and r.reason)
    survived = [r for r in results if not r.detector and not r.reason]
    return {
        "schema": 1,
        "mutants": len(results),
        "killed": sum(killed.values()),
        "equivalent": sum(equivalent.values()),
        "survived": len(survived),
        "by_detector": dict(killed),
        "by_kind": dict(collections.Counter(r.kind for r in results)),
        "by_code": dict(collections.Counter(r.code for r in results if r.code)),
        "reasons": dict(equivalent),
        "survivors": [f"{r.program}: {r.text}" for r in survived],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--oclgrind", action="store_true", help="also mutate emitted OpenCL text and run it under Oclgrind"
    )
    parser.add_argument("--only", nargs="*", help="programs whose name contains one of these")
    parser.add_argument("--each", type=int, help="about this many mutants of each program")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    names = [n for n in PROGRAMS if not given.only or any(o in n for o in given.only)]
    start = time.monotonic()
    results: list[Result] = []
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for part in pool.imap_unordered(work, [(n, given.each) for n in names]):
            results += part
            if part and not given.json:
                print(
                    f"{part[0].program:32} {len(part):5} mutants, {sum(not r.detector for r in part)} not killed",
                    file=sys.stderr,
                )
    out = summary(sorted(results, key=lambda r: (r.program, r.text)))
    if given.oclgrind:
        from oclgrind_texts import text_mutants

        out["oclgrind"] = text_mutants()
    out["elapsed_s"] = round(time.monotonic() - start, 1)
    if given.json:
        print(json.dumps(out, indent=2))
    else:
        detail = ", ".join(f"{n} {k}" for k, n in sorted(out["by_detector"].items()))
        print(
            f"mutants {out['mutants']} killed {out['killed']} ({detail}) "
            f"equivalent {out['equivalent']} survived {out['survived']}"
        )
        for reason, n in out["reasons"].items():
            print(f"  equivalent {n}: {reason}")
        for line in out["survivors"]:
            print(f"  survived {line}")
        if "oclgrind" in out:
            print(f"  text mutants under Oclgrind: {out['oclgrind']}")
    sys.exit(1 if out["survived"] else 0)


if __name__ == "__main__":
    main()
