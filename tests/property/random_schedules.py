"""Random computations and random schedules of them: what the property tests draw, and what the fuzzer runs by itself.

``python tests/property/random_schedules.py --seeds 0:5000`` looks for bugs, minimises each and prints it.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from computations import ZOO

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.errors import LoweringError, ScheduleError, TensorIRError
from tensorir.interp.numbers import Field, Numbers
from tensorir.ir.tree import Kind
from tensorir.schedule.rewrite import written_index

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 12)
FACTORS = (1, 2, 3, 4, 5, 8)
GPU = "opencl -kind=gpu"
TARGETS = ("opencl", GPU, "cuda")
EXPECTED_LOWERING = {
    "lower.grid-wide",
    "lower.scope-across-kernels",
    "lower.divergent-barrier",
    "lower.box",
    "lower.pad-global",
    "lower.vthread",
    "codegen.vector-storage",
}
"""Legal trees that cannot be expressed: the error says what to change."""


class Chance:
    """Where decisions come from: a seed here, hypothesis in the tests."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.rng.randrange(len(items))]


# --- cases


@dataclass
class Case:
    """What was drawn: a computation, a target, and what became of each call."""

    name: str
    extents: tuple[int, ...]
    dtype: str
    target: str
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def outputs(self) -> Any:
        return ZOO[self.name].make(*self.extents, self.dtype)

    def schedule(self) -> tir.Schedule:
        return tir.Schedule(self.outputs(), self.target)

    def __str__(self) -> str:
        lines = [f"s = tir.Schedule({self.name}{(*self.extents, self.dtype)}, {self.target!r})"]
        lines += [
            f"s.{n}({', '.join([*map(repr, a), *(f'{k}={v!r}' for k, v in o.items())])})" for n, a, o in self.calls
        ]
        return "\n".join(lines)


def draw_case(c: Chance, names: Sequence[str] = tuple(ZOO)) -> Case:
    name = c.pick(names)
    extents = tuple(c.pick(EXTENTS) for _ in range(3))
    return Case(name, extents, c.pick(ZOO[name].dtypes), c.pick(TARGETS))


# --- calls -----------------------------------------------------------------------------------------------------------

ACTIONS = (
    *("split",) * 6,
    "partition",
    *("reorder",) * 4,
    *("bind",) * 5,
    "parallel",
    *("fuse",) * 3,
    *("vectorize",) * 3,
    "unroll",
    "unroll",
    *("compute_at",) * 3,
    "compute_inline",
    "reverse_compute_inline",
    *("reverse_compute_at",) * 2,
    *("stage_in",) * 4,
    *("stage_out",) * 3,
    *("rfactor",) * 2,
    "decompose_reduction",
    "set_scope",
    "layout",
    "annotate",
    "assume",
    *("specialize",) * 2,
    *("pipeline",) * 2,
    "tile",
    *("share_out",) * 2,
    *("register_tile",) * 2,
    *("reduce_in_lanes",) * 2,
)
BINDINGS = ("block.x", "block.y", "thread.x", "thread.y", "block.z", "thread.z", "vthread", "vthread")


def draw_call(c: Chance, s: tir.Schedule) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """One call, usually a sensible one; names are those of the schedule as it is now."""
    index = s.index
    loops, stages = [n for n, x in index.loops.items() if x.kind is not Kind.INTRIN], list(index.stages)
    buffers = list(index.buffers())
    what = c.pick(ACTIONS)
    if not loops:
        what = c.pick(("compute_inline", "reverse_compute_inline", "stage_out", "set_scope", "layout"))
    loop = c.pick(loops) if loops else "none"
    stage = c.pick(stages)
    match what:
        case "split":
            factors = c.pick(
                (
                    [None, c.pick(FACTORS)],
                    [c.pick(FACTORS), None],
                    [None, c.pick(FACTORS), c.pick(FACTORS)],
                    [c.pick(FACTORS), c.pick(FACTORS)],
                )
            )
            if c.pick(range(4)) == 0:
                return what, (loop, [None, c.pick(FACTORS)]), {"tail": c.pick(("balanced", "peel", "shift", "pad"))}
            return what, (loop, factors), {"tail": "exact"} if c.pick(range(6)) == 0 else {}
        case "partition":
            return what, (loop, sorted({c.pick(EXTENTS), c.pick(EXTENTS)})), {}
        case "tile":
            two = [loop, c.pick(loops)]
            return what, tuple(two), {"factors": [c.pick(FACTORS), c.pick(FACTORS)]}
        case "share_out":
            several = [loop, c.pick(loops)] if c.pick(range(3)) == 0 else [loop]
            return what, tuple(several), {"each": c.pick((None, 2, 3, 4)), "to": c.pick(BINDINGS[:2])}
        case "register_tile":
            several = [loop, c.pick(loops)] if c.pick(range(3)) else [loop]
            lanes = c.pick((1, 2, 4))
            sizes = [*(c.pick(FACTORS) for _ in several[1:]), lanes * c.pick((1, 2))]
            return (
                what,
                tuple(several),
                {"sizes": c.pick((sizes, sizes, None)), "lanes": lanes, "terms": c.pick((1, 2))},
            )
        case "reduce_in_lanes":
            mine = [x.var.name for x in index.above(index.stages[stage])] or [loop]
            at = {"at": loop} if c.pick(range(3)) == 0 else {}
            return what, (stage, mine[-1], c.pick((2, 4))), {"vectors": c.pick((1, 2)), "joined": 2, **at}
        case "reorder":
            mine = [x.var.name for x in index.above(index.stages[stage])]
            if len(mine) < 2:
                return what, (loop, c.pick(loops)), {}
            order = list(mine)
            for _ in range(c.pick(range(1, 4))):
                i, j = c.pick(range(len(order))), c.pick(range(len(order)))
                order[i], order[j] = order[j], order[i]
            return what, tuple(order[: c.pick(range(2, len(order) + 1))]), {}
        case "fuse":
            below = index.loops[loop].body
            other = below.var.name if hasattr(below, "extent") and c.pick(range(8)) else c.pick(loops)
            return what, (loop, other), {}
        case "bind":
            return what, (loop, c.pick(BINDINGS)), {}
        case "vectorize":
            inner = [n for n, x in index.loops.items() if not any(hasattr(b, "extent") for b in (x.body,))]
            return what, (c.pick(inner) if inner and c.pick(range(6)) else loop,), {}
        case "unroll" | "parallel":
            return what, (loop,), {}
        case "prefetch":
            return what, (c.pick(buffers), loop, c.pick(loops)), {"distance": c.pick((1, 4))}
        case "pipeline":
            return what, (loop,), {}
        case "annotate":
            return what, (loop, "unroll", c.pick((1, 2, 4, 3))), {}
        case "specialize":
            return what, (loop, draw_condition(c, s, loop)), {}
        case "assume":
            facts = {"align": c.pick((4, 16, 64))} if c.pick(range(2)) else {"low": 0, "high": c.pick(EXTENTS)}
            return what, (c.pick(buffers),), facts
        case "compute_at" | "reverse_compute_at":
            return what, (stage, loop), {}
        case "compute_inline" | "reverse_compute_inline":
            return what, (stage,), {}
        case "stage_in":
            options: dict[str, Any] = {}
            buffer = c.pick(buffers)
            rank = len(index.buffers()[buffer].shape)
            if c.pick(range(3)) == 0:
                options["vector"] = c.pick((2, 4))
            if c.pick(range(3)) == 0:
                options["pad"] = c.pick((1, 4))
            if rank > 1 and c.pick(range(3)) == 0:
                options["order"] = [*range(1, rank), 0]
            elif rank and c.pick(range(3)) == 0:
                options["layout"] = draw_layout(c, rank)
            if c.pick(range(5)) == 0:
                options["cooperative"] = False
            at = "root" if c.pick(range(8)) == 0 else loop
            scope = c.pick(("shared", "shared", "register", "global"))
            return what, (buffer, at, scope), options
        case "stage_out":
            mine = [x.var.name for x in index.above(index.stages[stage])]
            at = c.pick(mine) if mine and c.pick(range(5)) else c.pick(("root", loop))
            index_map = (
                {"layout": draw_layout(c, len(written_index(index.stages[stage])))} if c.pick(range(4)) == 0 else {}
            )
            return what, (stage, at, c.pick(("register", "register", "shared", "global"))), index_map
        case "rfactor" | "decompose_reduction":
            mine = [x.var.name for x in index.above(index.stages[stage])] or [loop]
            return what, (stage, c.pick(mine)), {}
        case "set_scope":
            return what, (c.pick(buffers), c.pick(("shared", "register", "global", "auto"))), {}
        case "layout":
            buffer = c.pick(buffers)
            rank = len(index.buffers()[buffer].shape)
            return what, (buffer, draw_layout(c, rank) if rank else None), {"pad": c.pick((0, 1, 3))}
    raise AssertionError(what)


def draw_tiles(c: Chance, s: tir.Schedule) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """A tiled nest with its operands and its result staged, as people write it: calls one by one."""
    stage = c.pick(list(s.index.stages))
    outer, inner = list[str](), list[str]()
    for name in [x.var.name for x in s.index.above(s.index.stages[stage])]:
        steps = len(s.trace)
        yield "split", (name, [None, c.pick(FACTORS[1:])]), {}
        first, *rest = s.trace[-1].out if len(s.trace) > steps else [name]
        outer, inner = [*outer, first], [*inner, *rest]
    yield "reorder", (*outer, *inner), {}
    if outer:
        yield "stage_out", (stage, c.pick(outer), "register"), {}
        for buffer in list(s.index.buffers()):
            yield "stage_in", (buffer, c.pick(outer[-2:]), c.pick(("register", "shared"))), {}


def draw_condition(c: Chance, s: tir.Schedule, loop: str) -> str:
    """A condition on one or two of the loops around a body, or on an element of an input."""
    around = [x.var.name for x in s.index.above(s.index.loops[loop])] + [loop]
    inputs = [b for b in s.program.inputs if b.shape]

    def one() -> str:
        axis, n = c.pick(around), c.pick(range(5))
        if inputs and c.pick(range(4)) == 0:
            b = c.pick(inputs)
            index = ", ".join(c.pick((axis, "0")) for _ in b.shape)
            return f"{b.name}[{index}] {c.pick(('==', '>', '<=', '!='))} {n}"
        form = c.pick((axis, axis, f"{axis} % 2", f"{axis} + {c.pick(around)}", f"{axis} // 3"))
        return f"{form} {c.pick(('<', '>=', '==', '!='))} {n}"

    return c.pick((one(), one(), f"{one()} and {one()}", f"{one()} or not {one()}"))


def draw_layout(c: Chance, rank: int) -> str:
    """An index map of some dimensions in blocks, or blocks of blocks, its pieces in any order."""
    names, pieces = [f"d{n}" for n in range(rank)], []
    for d in names:
        n, m = c.pick((1, 1, 2, 3, 4)), c.pick((1, 1, 2))
        chain = [f"{d}/{n * m}", f"({d}/{n})%{m}", f"{d}%{n}"] if m > 1 and n > 1 else [f"{d}/{n}", f"{d}%{n}"]
        for piece in chain if n > 1 else [d]:
            pieces.insert(c.pick(range(len(pieces) + 1)), piece)
    if len(pieces) > 1 and c.pick(range(3)) == 0:
        onto = c.pick(range(1, len(pieces)))
        pieces[onto] += f" ^ ({pieces[0]})%2*{c.pick((1, 2))}"
    return f"{', '.join(names)} -> {', '.join(pieces)}"


class Bug(AssertionError):
    """Something that must not happen; ``key`` groups equal ones."""

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        super().__init__(f"[{key}] {text}")


def apply(s: tir.Schedule, call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> bool:
    """Make the call; False when it was refused in the proper way."""
    name, args, options = call
    before, steps = str(s), len(s.trace)
    try:
        getattr(s, name)(*args, **options)
    except ScheduleError as e:
        if str(s) != before or len(s.trace) != steps:
            raise Bug(f"{name}: refused but changed", str(e)) from None
        if len(str(e).splitlines()) > 14 or "random_schedules.py" not in str(e):
            raise Bug(f"{name}: poor message", str(e)) from None
        return False
    except Exception as e:
        raise Bug(f"{name}: {_where(e)}", traceback.format_exc(limit=-4)) from None
    return True


def _where(e: BaseException) -> str:
    tb = traceback.extract_tb(e.__traceback__)[-1]
    code = e.code if isinstance(e, TensorIRError) else ""
    return f"{type(e).__name__} {code} {tb.filename.rsplit('/', 1)[-1]}:{tb.name}"


def check(s: tir.Schedule, case: Case, device: bool = False) -> str:
    """Raise Bug unless the schedule means what its declaration says; the outcome in a word."""
    kinds = [Numbers(), Field()] if ZOO[case.name].exact else [Field()]
    for numbers in kinds:
        try:
            problem = compare(s, numbers, 1)
        except LoweringError as e:
            if e.code not in EXPECTED_LOWERING:
                raise Bug(f"lowering: {e.code}", f"{e}\n{s}") from None
            return e.code
        except Exception as e:
            raise Bug(f"lowering: {_where(e)}", f"{traceback.format_exc(limit=-5)}\n{s}") from None
        if problem is not None:
            raise Bug(f"meaning: {problem.code}", f"{problem}\n{s}")
    try:
        source = s.source()
    except LoweringError as e:
        if e.code not in EXPECTED_LOWERING:
            raise Bug(f"source: {e.code}", f"{e}\n{s}") from None
        return e.code
    except Exception as e:
        raise Bug(f"source: {_where(e)}", f"{traceback.format_exc(limit=-5)}\n{s}") from None
    for how, again in (("json", _replayed), ("python", _executed)):
        other = again(s, case)
        if str(other) != str(s) or other.source() != source:
            raise Bug(f"replay: {how}", f"{other}\n--- instead of\n{s}")
    if device:
        on_device(s, case)
    return "ok"


def _replayed(s: tir.Schedule, case: Case) -> tir.Schedule:
    return tir.replay(s.outputs, s.trace.to_json(), target=case.target)


def _executed(s: tir.Schedule, case: Case) -> tir.Schedule:
    fresh = tir.Schedule(s.outputs, case.target)
    exec(str(s.trace), {"s": fresh})
    return fresh


def on_device(s: tir.Schedule, case: Case) -> None:
    from tensorir.check.verdict import compare_results
    from tensorir.interp.reference import evaluate, random_arguments

    arrays = random_arguments(s.outputs, 3)
    try:
        got = s.build("opencl")(*arrays)
    except Exception as e:
        raise Bug(f"device: {_where(e)}", f"{e}\n{s}\n{s.source()}") from None
    verdict = compare_results(s.outputs, got if isinstance(got, tuple) else (got,), evaluate(s.outputs, arrays))
    if not verdict or (ZOO[case.name].exact and verdict.max_error):
        raise Bug("device: wrong result", f"{verdict}\n{s}\n{s.source()}")


def run_case(c: Chance, names: Sequence[str] = tuple(ZOO), calls: int = 14, device: bool = False) -> tuple[Case, str]:
    """Draw a case, call by call, and check it."""
    case = draw_case(c, names)
    s = case.schedule()
    trees = [str(s)]
    tiles = draw_tiles(c, s) if c.pick(range(4)) == 0 else iter(())
    for _ in range(calls):
        call = next(tiles, None) or draw_call(c, s)
        case.calls.append(call)
        try:
            done = apply(s, call)
        except Bug as e:
            e.case = case  # type: ignore[attr-defined]
            raise
        if not done:
            case.calls.pop()
        elif call[0] != "tile":
            trees.append(str(s))
        else:
            trees += [str(s.at(n)) for n in range(len(trees), len(s.trace) + 1)]
    try:
        outcome = check(s, case, device and case.target == "opencl")
        for n, tree in enumerate(reversed(trees)):
            if str(s) != tree:
                raise Bug("undo", f"after undo of {n} calls:\n{s}\n--- instead of\n{tree}")
            if len(s.trace):
                s.undo()
    except Bug as e:
        e.case = case  # type: ignore[attr-defined]
        raise
    return case, outcome


# --- looking for bugs ------------------------------------------------------------------------------------------------


def fails(case: Case, device: bool) -> Bug | None:
    """The bug that the case shows."""
    try:
        s = case.schedule()
        for call in case.calls:
            apply(s, call)
        check(s, case, device)
    except Bug as e:
        return e
    except Exception:
        return None
    return None


def minimise(case: Case, bug: Bug, device: bool) -> tuple[Case, Bug]:
    """Fewer calls and smaller extents with the same bug."""
    best, shown = case, bug
    again = True
    while again:
        again = False
        options = [
            Case(best.name, best.extents, best.dtype, best.target, best.calls[:n] + best.calls[n + 1 :])
            for n in reversed(range(len(best.calls)))
        ]
        options += [
            Case(best.name, (*best.extents[:d], n, *best.extents[d + 1 :]), best.dtype, best.target, best.calls)
            for d in range(3)
            for n in EXTENTS
            if n < best.extents[d]
        ]
        if best.dtype != "float32":
            options.append(Case(best.name, best.extents, "float32", best.target, best.calls))
        if best.target != "opencl":
            options.append(Case(best.name, best.extents, best.dtype, "opencl", best.calls))
        for option in options:
            found = fails(option, device)
            if found is not None and found.key == bug.key:
                best, shown, again = option, found, True
                break
    return best, shown


def main() -> None:
    """Run seeds; print each new kind of bug, minimised."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0:1000")
    parser.add_argument("--calls", type=int, default=14)
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--names", nargs="*", default=list(ZOO))
    parser.add_argument("--each", type=int, default=1, help="how many of a kind to print")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    outcomes: collections.Counter[str] = collections.Counter()
    bugs: collections.Counter[str] = collections.Counter()
    for seed in range(first, last):
        c = Chance(seed)
        try:
            _, outcome = run_case(c, given.names, c.pick(range(1, given.calls + 1)), given.device)
            outcomes[outcome] += 1
        except Bug as e:
            bugs[e.key] += 1
            if bugs[e.key] <= given.each:
                small, bug = minimise(e.case, e, given.device)  # type: ignore[attr-defined]
                print(f"=== seed {seed}\n{small}\n{str(bug)[:6000]}\n", flush=True)
    print(dict(outcomes), "\nBUGS", dict(bugs), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
