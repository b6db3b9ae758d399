"""Planner: definition -> rules claim its stages as parts -> templates, with the parts' knobs in one search space."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from tensorir.automatic.counts import Counts, counts_of
from tensorir.automatic.facts import NO_WISHES, Graph, Nest, Wishes
from tensorir.automatic.part import CLEARLY, Config, Part
from tensorir.automatic.rules import RULES, RULES_BEFORE_INLINING, Rule
from tensorir.automatic.rules.inline import inlined
from tensorir.automatic.rules.redeclared import Redeclared, redeclared
from tensorir.engines.problems import PRECISIONS
from tensorir.errors import CompileError, Problem, ScheduleError, TensorIRError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_choice, need_number
from tensorir.expr.program import as_outputs
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import as_int
from tensorir.ir.node import Node
from tensorir.ir.once import nests
from tensorir.ir.shared import children_first
from tensorir.ir.structure import alpha_key
from tensorir.ir.tree import Buffer, Const, Expr, Kind, Loop, Program, Scope, Stage, Stmt
from tensorir.ir.visit import find, reads, sequence, swap_buffers, writes
from tensorir.lower.lowered import lowered
from tensorir.lower.pipeline import lower
from tensorir.lower.resolve_scopes import resolve_scopes
from tensorir.lower.room import may_be_full
from tensorir.machine import machine_of
from tensorir.runtime.host import target_here
from tensorir.schedule.analysis import index_of, touched_by
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate
from tensorir.tune.space import Space
from tensorir.tune.template import OneByOne, Template, need_rule

TUNED = 2
"""Maximum number of parts whose knobs are searched, by importance; the others keep their defaults."""
MOST_CONFIGURATIONS = 5000
"""Maximum legal configurations of a space with knobs of several parts."""
FULL_TARGETS = {"cpu": Target.parse("opencl"), "gpu": Target.parse("cuda -arch=sm_90a")}
"""A machine-independent target of each kind; the GPU has every feature that rules require."""


@dataclass(frozen=True)
class Refusal:
    """A part whose start failed, and the error."""

    part: Part
    problem: Problem

    @classmethod
    def of(cls, part: Part, error: TensorIRError) -> Refusal:
        """A Refusal from a part and the error that its start raised."""
        return cls(part, error.problems[0] if error.problems else Problem(error.code, str(error)))

    def __str__(self) -> str:
        said = " ".join(self.problem.message.split())
        template = f"{self.part.target.kind}_{self.part.name}"
        return f"{template} was not taken for {self.part.anchor.name}: [{self.problem.code}] {said}"


@dataclass(frozen=True)
class Plan:
    """One way to schedule a definition: stages to inline, and parts that schedule the others.

    inlined: (stage, reason) of each inlined stage
    main:    the most important part: its knobs keep their plain names
    constants: inputs that never change: stages that depend on them alone run once for all launches
    refused: parts that rules offered but whose start failed, with the errors
    redeclared: stages that other algorithms compute
    begun:   schedule by the default configuration if the planner already made it
    after_inlining: the planner's schedule with the stages ``inlined``, where every start goes on
    """

    inlined: tuple[tuple[str, str], ...]
    parts: tuple[Part, ...]
    main: Part
    constants: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = field(default=(), compare=False)
    redeclared: tuple[Redeclared, ...] = ()
    begun: BaseSchedule | None = field(default=None, repr=False, compare=False)
    after_inlining: BaseSchedule | None = field(default=None, repr=False, compare=False)

    @property
    def needs(self) -> str:
        """Feature required of the target, such as "sm_80", the latest of all parts; "" for none."""
        return max((p.needs for p in self.parts), key=lambda n: (len(n), n))

    @property
    def approximate(self) -> bool:
        """True if some part uses an algorithm that rounds otherwise than the declared one."""
        return any(p.approximate for p in self.parts)

    def schedule(self, s: BaseSchedule, config: Config) -> BaseSchedule:
        """Schedule the definition in ``s`` by a configuration of ``space()``; return ``s``.

        Reuses the planner's schedule if ``s`` is unscheduled and ``config`` the default of a plan with one part.
        """
        begun = self.begun  # by one part: its default is the plan's
        fresh = begun and not s.trace and all(map(is_, s.definition, begun.definition))
        if begun and fresh and config == self.main.space.default:
            return self._begin(s, begun)
        return self._scheduled(s, config, None)

    def _scheduled(self, s: BaseSchedule, config: Config, after_inlining: BaseSchedule | None) -> BaseSchedule:
        _redeclare(s, self.redeclared)
        for part in self.parts:
            part.declared(s, self._own(part, config))
        if after_inlining is None or s.trace:
            _inline(s, self.inlined)
        else:
            s._follow(after_inlining)
        for part in self.parts:
            part.steps(s, self._own(part, config))
        self._ahead(s)
        return s

    def start(self, s: BaseSchedule) -> None:
        """Schedule the definition in unscheduled ``s`` by the default configuration, reusing the planner's schedule."""
        if self.begun:
            self._begin(s, self.begun)
        else:
            self._scheduled(s, self.space().default, self.after_inlining)

    def _begin(self, s: BaseSchedule, begun: BaseSchedule) -> BaseSchedule:
        """Copy the planner's schedule to ``s``, mark arrays of constants ``run_once`` (``_ahead``); return ``s``."""
        s._follow(begun)
        self._ahead(s)
        return s

    def _ahead(self, s: BaseSchedule) -> None:
        """Mark intermediate arrays that depend on constants alone ``run_once``: their kernels run ahead of time, once
        for all launches.
        """
        known: set[Buffer] = {b for b in s.program.inputs if b.name in self.constants}
        if not known:
            return
        made, late = list[Buffer](), set(s.program.params)
        kernels = [(dict.fromkeys(writes(n)), {*reads(n)}) for n in nests(s.program)]
        for written, read in kernels:
            if late & {*written} or any(b.data is None and b not in written for b in read - known):
                late |= {*written}
            else:
                known |= {*written}
                made += [b for b in written if any(b in r for w, r in kernels if b not in w)]
        for buffer in dict.fromkeys(b for b in made if b not in late and not b.once):
            with s.because("what constants are packed to is made once for all launches"):
                s.run_once(buffer.name)

    @functools.cached_property
    def searched(self) -> tuple[Part, ...]:
        """Parts whose knobs are searched: the main part, and the one of most work among the others if both together
        have at most ``MOST_CONFIGURATIONS`` combinations of legal configurations.
        """
        others = sorted((p for p in self.parts if p is not self.main and p.space.names), key=lambda p: -p.work)
        if not others:
            return (self.main,)
        count, chosen = len(self.main.space.legal), [self.main]
        for part in others[: TUNED - 1]:
            count *= len(part.space.legal)
            chosen += [part] if count <= MOST_CONFIGURATIONS else []
        return tuple(chosen)

    def _called(self, part: Part, knob: str) -> str:
        stage = re.sub(r"\W", "_", part.anchor.name)
        return knob if part is self.main else f"{stage}_{knob}"

    def _own(self, part: Part, config: Config) -> dict[str, Any]:
        if part not in self.searched:
            return part.space.default
        return {k: config[self._called(part, k)] for k in part.space.names}

    def space(self) -> Space:
        """Joint search space of the searched parts; knobs of others than the main part are named ``<stage>_<knob>``.

        Expected seconds are the sum over all parts with a cost model; none if the main part has no model.
        """
        knobs, where, start = dict[str, Sequence[object]](), dict[str, Predicate](), dict[str, object]()
        for part in self.searched:
            own = part.space
            knobs |= {self._called(part, n): v for n, v in zip(own.names, own.values, strict=True)}
            start |= {self._called(part, n): v for n, v in own.default.items()}
            where |= {self._called(part, n): self._on(part, test) for n, test in own.where.items()}
        return Space(where=where, default=start, **knobs).expecting(self._expected())

    def _on(self, part: Part, test: Predicate) -> Predicate:
        if part is self.main:
            return test
        return lambda c: test(_Named(c, functools.partial(self._called, part)))

    def _expected(self) -> Callable[[Config], float] | None:
        times = [(p, t) for p in self.searched if (t := p.space.expected_s) is not None]
        if not times or times[0][0] is not self.main:
            return None
        others = (p.space for p in self.parts if p not in self.searched)
        rest = sum(space.expected_s(space.default) for space in others if space.expected_s is not None)
        return lambda c: rest + sum(t(self._own(p, c)) for p, t in times)


class _Named(dict[str, Any]):
    """View of a joint configuration by one part's own knob names."""

    def __init__(self, config: Config, called: Callable[[str], str]) -> None:
        super().__init__()
        self.config, self.called = config, called

    def __missing__(self, knob: str) -> Any:
        return self.config[self.called(knob)]


def _redeclare(s: BaseSchedule, stages: Sequence[Redeclared]) -> None:
    for stage in stages:
        stage.apply(s)


def _inline(s: BaseSchedule, stages: Sequence[tuple[str, str]]) -> None:
    """Inline ``stages``, (name, reason) each, with the reason in the trace."""
    for name, why in stages:
        with s.because(f"inline: {why}"):
            s.compute_inline(name)


def default_plan(outputs: Sequence[Tensor], target: Target) -> Plan:
    """Plan by which ``auto_schedule`` schedules ``outputs``: the first one, without making the others. Raises
    ``automatic.no-rule`` if there is none.
    """
    return next(_Planner(outputs, target, NO_WISHES).plans())


def plans(outputs: Sequence[Tensor], target: Target, wishes: Wishes = NO_WISHES) -> OneByOne[Plan]:
    """Template name -> plan, the default first; the name ends with the main part's. Plans are made lazily, and a lookup
    by name tries no parts of other names.
    """
    planner = _Planner(outputs, target, wishes)
    return OneByOne(lambda: ((planner.prefix + plan.main.name, plan) for plan in planner.plans()), planner.named)


class _Planner:
    """Generator of a definition's plans, in rounds: first with stages claimed before inlining, then without."""

    def __init__(self, outputs: Sequence[Tensor], target: Target, wishes: Wishes) -> None:
        self.outputs, self.target, self.wishes = outputs, target, wishes
        self.prefix = f"{target.kind}_"
        self.refused, self.proved = list[Refusal](), set[Hashable]()
        self.redeclared = redeclared(outputs, target)
        self._round = functools.cache(self._begun)

    def plans(self) -> Iterator[Plan]:
        """All plans, the default first. Raises ScheduleError ``automatic.no-rule`` if there is none."""
        found = False
        for one in self._rounds():
            for plan in one.plans():
                yield plan
                found = True
        if not found:
            why = "".join(f"; {r}" for r in self.refused[-1:])
            message = f"no rule schedules {self.outputs[0].name} on {self.target.text}{why}"
            raise refuse(ScheduleError, "automatic.no-rule", message, hint="a schedule by hand, or smaller extents")

    def named(self, name: str) -> Plan | None:
        """First plan of the template name ``name``; None if only other names have plans. Raises ``automatic.no-rule``
        if there is no plan at all.
        """
        if not name.startswith(self.prefix):
            return None
        own = name.removeprefix(self.prefix)
        found = next((plan for one in self._rounds() if (plan := one.named(own))), None)
        return found if found else next((None for _ in self.plans()), None)

    def _rounds(self) -> Iterator[_Round]:
        """The rounds, that of the default plan first; one that leaves vectors or cores idle is last if the other is
        expected to be clearly faster.
        """
        first = self._round(RULES_BEFORE_INLINING)
        last = self._round(()) if first and first.doubtful() else None
        if first and last and CLEARLY * last.seconds < first.seconds < math.inf:
            yield from (last, first)
        else:
            yield from filter(None, map(self._round, dict.fromkeys((RULES_BEFORE_INLINING, ()))))

    def _begun(self, whole: Sequence[Rule]) -> _Round | None:
        """The round whose first parts come from the rules ``whole``; None if these claim nothing."""
        plain = BaseSchedule(self.outputs, self.target)
        _redeclare(plain, self.redeclared)
        s = plain.fork()
        claims = _Claims(plain, plain, (), Graph(s.program, self.wishes), self.refused, self.proved)
        first = claims.claimed(whole, ())
        if whole and not first:
            return None
        kept = frozenset().union(*(p.names for p in first))
        done = tuple(inlined(s, kept))
        claims = _Claims(plain, s, done, Graph(s.program, self.wishes), self.refused, self.proved)
        return _Round(claims, first, self.redeclared)


@dataclass(frozen=True)
class _Round:
    """Plans that share their first parts; rules claim the remaining stages."""

    claims: _Claims
    first: tuple[Part, ...]
    redeclared: tuple[Redeclared, ...] = ()

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """Parts of the default plan, the first ones included; () if no stage has a part whose start works."""
        return self.claims.claimed(RULES, self.first)

    def doubtful(self) -> bool:
        """True if the round's first parts are ``scalar``, or have work for less than half of the machine's cores."""
        cores = machine_of(self.claims.plain.target).cores
        return any(part.scalar or 2 * self.claims.counts(part).blocks < cores for part in self.first)

    @property
    def seconds(self) -> float:
        """Modelled seconds of the default plan, launches included; inf if some part has no model."""
        machine = machine_of(self.claims.plain.target)
        launch = machine.call_s + machine.launch_s  # models of parts of a GPU have neither
        return sum(
            math.inf if (seconds := p.space.expected_s) is None else seconds(p.space.default) + launch
            for p in self.parts
        )

    def plans(self) -> Iterator[Plan]:
        """All plans of the round, the default first."""
        if self.parts:
            main = _most_work(self.parts)
            yield self._plan(self.parts, main)
            for other in self.claims.offered(RULES, main.anchor, self.first, lambda name: name != main.name):
                yield self._with(other)

    def named(self, name: str) -> Plan | None:
        """First plan whose main part has the name ``name``; None if there is none."""
        stages = [*self.claims.graph.nests.values()]
        if self.first or len(stages) > 1:  # the default's parts tell which stage counts most
            parts = self.claims.claimed(RULES, self.first, lowers=False)
            if not parts:
                return None
            main = _most_work(parts)
            if main.name == name:
                return self._plan(parts, main)
            stages = [main.anchor]
        found = self.claims.offered(RULES, stages[0], self.first, lambda other: other == name)
        return next((self._with(other) for other in found), None)

    def _with(self, other: Part) -> Plan:
        return self._plan(self.claims.claimed(RULES, (*self.first, other), lowers=False), other)

    def _plan(self, parts: tuple[Part, ...], main: Part) -> Plan:
        claims = self.claims
        begun = claims.begun_by.get(main) if len(parts) == 1 else None
        constants, refused = claims.graph.wishes.constants, tuple(claims.refused)
        return Plan(claims.inlined, parts, main, constants, refused, self.redeclared, begun, claims.begun)


def _most_work(parts: Sequence[Part]) -> Part:
    """The part of the most ``work``, a plan's main part; plans of other names schedule its stage otherwise."""
    return max(parts, key=lambda p: p.work)


@dataclass(frozen=True)
class _Start:
    """A part's stages scheduled by its default configuration.

    own: program of the kernels that the part has changed;  key: of parts whose start can be lowered alike
    """

    s: BaseSchedule
    own: Program
    key: Hashable


@dataclass(frozen=True)
class _Claims:
    """Claims of rules on the stages of a program.

    plain:   unscheduled program;  begun: the same with the stages ``inlined``
    refused: receives parts whose start failed
    proved:  keys of parts whose start was lowered, independent of stage names: networks repeat their layers
    scheduled: keys of parts -> kernels of their starts;  counted: keys -> counts of these
    made:    lazily generated parts, by rule and stage
    tried:   part -> True if its start works
    waiting: part -> its start, scheduled and not lowered yet
    begun_by: schedule of the whole definition by a part's start
    """

    plain: BaseSchedule
    begun: BaseSchedule
    inlined: tuple[tuple[str, str], ...]
    graph: Graph
    refused: list[Refusal]
    proved: set[Hashable]
    scheduled: dict[Hashable, Program] = field(default_factory=dict)
    counted: dict[Hashable, Counts] = field(default_factory=dict)
    made: dict[tuple[Rule, str], Iterator[Part]] = field(default_factory=dict)
    tried: dict[Part, bool] = field(default_factory=dict)
    waiting: dict[Part, _Start] = field(default_factory=dict)
    begun_by: dict[Part, BaseSchedule] = field(default_factory=dict)

    def claimed(self, rules: Sequence[Rule], given: Sequence[Part], lowers: bool = True) -> tuple[Part, ...]:
        """``given`` and one exact part for each remaining stage, last stage first, of the first rule whose start works.

        A stage without such a part is left out.
        lowers: True to require that starts can be lowered as well
        """
        parts = list(given)
        for anchor in reversed(self.graph.nests.values()):
            if any(anchor.name in p.names for p in parts):
                continue
            offered = (p for p in self.offered(rules, anchor, parts, lowers=lowers) if not p.approximate)
            if part := next(offered, None):
                parts.append(self._surer(part, offered))
        return tuple(parts)

    def _surer(self, first: Part, others: Iterator[Part]) -> Part:
        """``first``, or the first of ``others`` that is counted clearly faster, if counts contradict the model of
        ``first``.

        For maps and reductions of constant extents on CPUs; scans and operands that are packed ahead of time are not
        counted well.
        """
        model, anchor = first.space.expected_s, first.anchor
        counted = anchor.kind in ("map", "reduce") and anchor.constant
        if self.begun.target.kind != "cpu" or not counted or self.graph.wishes.constants or model is None:
            return first
        counts = self.counts(first)
        taken = counts.seconds - machine_of(self.begun.target).call_s  # which models of parts leave out
        launched = counts.kernels == 1 and 2 * counts.launch_s > taken
        if launched or taken < CLEARLY * model(first.space.default):
            return first
        faster = (p for p in others if CLEARLY * self.counts(p).seconds < counts.seconds)
        return next((p for p in faster if p.names == first.names), first)

    def offered(
        self, rules: Sequence[Rule], anchor: Nest, parts: Sequence[Part],
        wanted: Callable[[str], bool] = bool, lowers: bool = False,
    ) -> Iterator[Part]:  # fmt: skip
        """Yield parts with anchor ``anchor`` and a name accepted by ``wanted``, disjoint from ``parts``, with no
        outside readers, whose start can be scheduled, with ``lowers`` also lowered; others are added to ``refused``.
        """
        taken = frozenset().union(*(p.names for p in parts))
        for part in itertools.chain.from_iterable(self._made(rule, anchor) for rule in rules):
            if wanted(part.name) and not part.names & taken and self._alone(part) and self._works(part, lowers):
                yield part

    def _alone(self, part: Part) -> bool:
        """True if intermediate results of a part have no outside readers; arrays of the anchor and of stages that are
        ``stored`` are exempt.
        """
        others = (self.graph.nests[n] for n in part.names if n != part.anchor.name and n not in part.stored)
        inside = [n for n in others if not set(n.writes) <= set(part.anchor.writes)]
        return all(r.name in part.names for n in inside for r in self.graph.readers(n))

    def _made(self, rule: Rule, anchor: Nest) -> Iterator[Part]:
        """Parts that a rule offers for a stage, generated lazily and remembered: making one may compare many tiles."""
        key = rule, anchor.name
        found = self.made.get(key) or rule(self.graph, anchor, self.begun.target)
        self.made[key], parts = itertools.tee(found)
        return parts

    def _works(self, part: Part, lowers: bool) -> bool:
        """True if the part's start can be scheduled with other stages as declared; with ``lowers``, also lowered."""
        if part not in self.tried:
            self.tried[part] = self._starts(part)
        if lowers and (start := self.waiting.pop(part, None)):
            self.tried[part] = self._lowers(part, start)
        return self.tried[part]

    def counts(self, part: Part) -> Counts:
        """Counts of the kernels of a part's start; of parts that are alike those of the first."""
        key = self._key(part)
        if key not in self.counted:
            own = self.scheduled.get(key) or self._own(part, self._declared(part))
            self.counted[key] = counts_of(own, self.plain.target)
        return self.counted[key]

    def _own(self, part: Part, s: BaseSchedule) -> Program:
        """The kernels of a part's start, made in ``s``; those of other parts read its results from other arrays."""
        part.steps(s, part.space.default)
        return s.program if part.alone else _without(s.program, self.graph.nests.keys() - part.names, s.target)

    def _key(self, part: Part) -> Hashable:
        """Hashable key equal for parts that succeed or fail alike: stages without names, roles of their arrays, default
        configuration.
        """
        mine = [n for n in self.graph.nests.values() if n.name in part.names]
        others = [n for n in self.graph.nests.values() if n.name not in part.names]
        outside = {b for n in others for b in (*n.reads, *n.writes)}
        program = self.begun.program
        inputs, outputs = frozenset(program.inputs), frozenset(program.outputs)

        def role(x: Node) -> Hashable:
            return isinstance(x, Buffer) and (x in inputs, x in outputs, x in outside)

        stages = alpha_key([index_of(program).root_of(n.stage) for n in mine], role)
        return type(part), part.name, part.target, stages, tuple(part.space.default.items())

    def _starts(self, part: Part) -> bool:
        """True if the start of a part can be scheduled; lowered here if it may be too large, else left ``waiting``."""
        try:
            if (key := self._key(part)) in self.proved:
                return True
            s = self._declared(part)
            own = self.scheduled[key] = self._own(part, s)
        except TensorIRError as e:
            self.refused.append(Refusal.of(part, e))
            return False
        if part.alone:
            self.begun_by[part] = s
        start = _Start(s, own, key)
        large = may_be_full(s) or (not part.plainest and length_of([own.body]) > FEW_NODES)
        if large:
            return self._lowers(part, start)
        self.waiting[part] = start
        return True

    def _lowers(self, part: Part, start: _Start) -> bool:
        """True if the start of a part can be lowered."""
        try:
            module = lowered(start.s) if part.alone else lower(start.own, start.s.target)
            if not part.plainest and (length := length_of([k.body for k in module.kernels])) > MAX_NODES:
                message = f"{length} nodes with what is unrolled; a start that compiles in seconds has {MAX_NODES}"
                raise refuse(CompileError, "compile.time-limit", message, hint="fewer iterations unrolled")
        except TensorIRError as e:
            self.refused.append(Refusal.of(part, e))
            return False
        self.proved.add(start.key)
        return True

    def _declared(self, part: Part) -> BaseSchedule:
        """A new schedule in which ``part`` can start: a fork with cheap stages inlined, and with the part's own
        algorithm if it replaces the declared one.
        """
        s = self.plain.fork()
        part.declared(s, part.space.default)
        if len(s.trace) == len(self.plain.trace):
            return self.begun.fork()
        _inline(s, self.inlined)
        return s


def _without(program: Program, stages: Set[str], target: Target) -> Program:
    """Program without the kernels whose stages are all among ``stages``; arrays shared with them are global."""
    every = {n: {s.name for s in find(n, Stage)} for n in nests(program)}
    others = {b for n, names in every.items() if names <= stages for b in touched_by(n)}
    new = sequence([n for n, names in every.items() if not names <= stages])
    shared = [b for b in touched_by(new) if b in others and b not in program.params]
    if any(b.scope not in (Scope.AUTO, Scope.GLOBAL, Scope.CONSTANT) for b in shared):
        return resolve_scopes(program, target)  # which refuses it
    here = {b: b.replace(scope=Scope.GLOBAL) for b in shared if b.scope is Scope.AUTO}
    return resolve_scopes(program.replace(body=swap_buffers(new, here)), target)


@answers(ScheduleError)
def auto(
    outputs: Tensor | Sequence[Tensor], target: str | Target = "opencl", precision: str = "fp32", max_error: float = 0.0
) -> Mapping[str, Template]:
    """Templates that schedule ``outputs`` on a target, by name, the default first; the others are made lazily.

    target:    plain "opencl" is this machine's processor, as for ``auto_schedule``
    precision: of float32 products on GPUs, as in ``tir.ops.matmul``: "fp32", "tf32" or "3xtf32"
    max_error: error relative to the largest result up to which approximate templates (Winograd's for
               convolutions) follow the exact ones; 0 excludes them

    Each is an ordinary template: a function of a schedule and a configuration, and a space with named knobs. Rules
    (``tensorir/automatic/rules``) claim stages: cheap stages are inlined, sums with reuse are tiled, rows are reduced
    across lanes and threads, other stages are streamed. Results are reproducible: no rule adds floats atomically.
    Raises ScheduleError ``automatic.no-rule`` if no rule schedules the definition, ``argument.value``.
    """
    need_choice("precision", precision, PRECISIONS, ScheduleError)
    most = need_number("max_error", max_error, 0)
    found = templates_of(as_outputs(outputs), Wishes(precision, max_error=most))(target_here(target))
    next(iter(found))  # an error, where there is none
    return found


def templates_of(made: Sequence[Tensor], wishes: Wishes) -> Callable[[Target], OneByOne[Template]]:
    """Function from a target to the templates of ``auto`` for ``made`` with a workload's options, by name.

    They are made lazily: a lookup or iteration raises ``automatic.no-rule`` if no rule schedules ``made``.
    """
    known = functools.lru_cache(maxsize=8)(lambda t, _: plans(made, t, wishes))  # those of other names are equal

    def template(name: str, first: Plan, kind: str) -> Template:
        def plan(on: Target) -> Plan:
            return need_rule(known(on, on.name), name, made[0].name, on)

        return Template(
            lambda s, c: plan(s.target).schedule(s, c), lambda on: plan(on).space(), (kind,),
            first.approximate, first.needs,
        )  # fmt: skip

    def on(target: Target) -> OneByOne[Template]:
        found = known(target, target.name)

        def named(name: str) -> Template | None:
            plan = found.get(name)
            return template(name, plan, target.kind) if plan else None

        return OneByOne(lambda: ((n, template(n, plan, target.kind)) for n, plan in found.items()), named)

    return on


# How much a compiler has to read of kernels: what a start that unrolls too much is refused by.

MAX_NODES = 1 << 19
"""Maximum IR nodes of a default schedule after unrolling; compilers process about 20,000 per second."""


FEW_NODES = MAX_NODES >> 3
"""Maximum IR nodes of a scheduled program taken to be within ``MAX_NODES`` without lowering, which is slow."""


def length_of(bodies: Sequence[Stmt]) -> int:
    """IR nodes of kernels after unrolling: each counts once per iteration of its enclosing unrolled loops."""
    length, todo = 0, [(s, 1) for s in bodies]
    while todo:  # a stack: names of values are nested hundreds deep
        s, times = todo.pop()
        if isinstance(s, Loop) and s.kind is Kind.UNROLL and isinstance(s.extent, Const):
            times *= as_int(s.extent)
        length += times * (1 + len(children_first(_operands(s), _operands)))
        todo += [(c, times) for c in s.children() if isinstance(c, Stmt)]
    return length


def _operands(n: Node) -> list[Node]:
    return [c for c in n.children() if isinstance(c, Expr)]
