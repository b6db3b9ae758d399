"""The schedule: a program, its trace, undo and fork, and one method per primitive."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from tensorir.errors import Problem, ScheduleError, TensorIRError, user_line
from tensorir.errors.habits import answering, public, unknown
from tensorir.errors.needs import (
    need_bool,
    need_int,
    need_ints,
    need_list,
    need_mapping,
    need_names,
    need_text,
    plain_int,
    wrong,
)
from tensorir.errors.shown import Shown, Text, difference, few_lines
from tensorir.expr.program import as_outputs, program_of
from tensorir.expr.tensor import Tensor
from tensorir.intrin.intrin import Intrin, intrinsic
from tensorir.ir.text import text
from tensorir.ir.tree import Buffer, Kind, Loop, Program, Stage
from tensorir.schedule import marks as _marks
from tensorir.schedule.analysis import Index, index_of, lookup, stages_writing
from tensorir.schedule.ownership import misplaced
from tensorir.schedule.primitives import annotate as _annotate
from tensorir.schedule.primitives import assume as _assume
from tensorir.schedule.primitives import atomic as _atomic
from tensorir.schedule.primitives import binding as _binding
from tensorir.schedule.primitives import buffers as _buffers
from tensorir.schedule.primitives import cut as _cut
from tensorir.schedule.primitives import loops as _loops
from tensorir.schedule.primitives import once as _once
from tensorir.schedule.primitives import pipeline as _pipeline
from tensorir.schedule.primitives import placement as _placement
from tensorir.schedule.primitives import prefetch as _prefetch
from tensorir.schedule.primitives import reduction as _reduction
from tensorir.schedule.primitives import reindex as _reindex
from tensorir.schedule.primitives import specialize as _specialize
from tensorir.schedule.primitives import staging as _staging
from tensorir.schedule.primitives import tensorize as _tensorize
from tensorir.schedule.rewrite import Rewrite
from tensorir.schedule.stageref import AxisRef, StageRef
from tensorir.schedule.trace import Step, Trace, read_trace
from tensorir.target import Target


@answering(ScheduleError)
class Schedule(Shown):
    """How a computation runs: a loop tree that primitives rewrite, one legal step at a time.

    outputs: a tensor or a tuple of them;  target: "opencl", "cuda", "cuda -arch=sm_90a", a Target …
    definition: the outputs that it was made for, with which ``check`` compares: those of the workload where a template
                has declared the same computation in another way
    allowed_error: how far such a declaration may be off relative to the largest result; None where it means the same

    The tree is a value: ``fork`` and ``undo`` cost nothing, and a refused primitive leaves the schedule as it was.
    Loops are named ``stage.axis`` (``C.i``, parts ``C.i.0``, ``C.i.1``); every method takes names or handles.
    """

    def __init__(self, outputs: Tensor | Sequence[Tensor], target: Any = "opencl") -> None:
        self.outputs = as_outputs(outputs)
        self.definition = self.outputs
        self.allowed_error: float | None = None
        self.target = Target.parse(target)
        self._start(program_of(self.outputs))

    def _start(self, program: Program) -> None:
        self._versions: list[tuple[Program, Mapping[str, str]]] = [(program, {})]
        self._steps: list[Step] = []

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            stage = f's["{name}"]' if not name.startswith("_") and name in self.index.stages else ""
            raise unknown("schedule", name, "a Schedule", public(type(self)), stage)

    # --- looking

    @property
    def program(self) -> Program:
        """The loop tree now."""
        return self._versions[-1][0]

    @property
    def trace(self) -> Trace:
        """The steps so far."""
        return Trace(self._steps)

    def tree(self) -> Text:
        """The loop tree as text."""
        return Text(text(self.program))

    def __str__(self) -> str:
        return text(self.program)

    def __repr__(self) -> str:
        made = ", ".join(f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]" for t in self.outputs)
        last = f", the last {self._steps[-1]}" if self._steps else ""
        count = f"{len(self._steps)} step{'s' * (len(self._steps) != 1)}"
        return few_lines(f"<Schedule of {made} for {self.target}: {count}{last}; print(s) shows the loop tree>")

    def __getitem__(self, stage: Any) -> StageRef:
        return StageRef(self, self._stage(stage).name)

    def loops(self, stage: Any) -> tuple[AxisRef, ...]:
        """The loops around a stage, outermost first, without those that an instruction performs."""
        found = self._stage(stage)
        return tuple(AxisRef(x.var.name) for x in self.index.above(found) if x.kind is not Kind.INTRIN)

    def stages(self, tensor: Any = None) -> tuple[StageRef, ...]:
        """All stages, or those that write ``tensor``."""
        if tensor is None:
            return tuple(StageRef(self, n) for n in self.index.stages)
        return tuple(StageRef(self, s.name) for s in stages_writing(self.program.body, self._buffer(tensor)))

    @property
    def index(self) -> Index:
        """Loops and stages of the tree by name."""
        program = self.program
        cached: Index | None = getattr(self, "_index", None)
        if cached is None or cached.program is not program:
            self._index = cached = index_of(program)
        return cached

    # --- versions

    def fork(self) -> Self:
        """An independent copy."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._versions, other._steps = list(self._versions), list(self._steps)
        return other

    def undo(self, n: int = 1) -> Self:
        """Take back the last ``n`` calls."""
        if not 0 <= need_int("n", n, error=ScheduleError) <= len(self._steps):
            raise ScheduleError(Problem("undo.count", f"cannot undo {n} of {len(self._steps)} steps"))
        for _ in range(n):
            self._versions.pop()
            self._steps.pop()
        return self

    def at(self, step: int) -> Self:
        """A copy as it was after ``step`` calls."""
        return self.fork().undo(len(self._steps) - need_int("step", step, error=ScheduleError))

    def diff(self, other: Schedule) -> Text:
        """The trees of two schedules as a unified diff."""
        if not isinstance(other, Schedule):
            raise wrong("other", other, "a Schedule", ScheduleError)
        return difference(str(other), str(self))

    def replay(self, trace: Trace | str) -> Self:
        """Apply every step of ``trace`` (a Trace or its JSON) to this schedule."""
        if not isinstance(trace, Trace | str):
            raise wrong("trace", trace, "the trace of a Schedule, or its JSON", ScheduleError)
        for name, args, options in read_trace(trace if isinstance(trace, str) else trace.to_json()):
            if name not in PRIMITIVES:
                raise ScheduleError(Problem("trace.unknown-primitive", f"there is no primitive {name}"))
            method = getattr(self, name)
            try:
                _signature(name).bind(self, *args, **options)
            except TypeError as e:
                raise ScheduleError(Problem("trace.malformed", f"step {name} cannot be called so: {e}")) from None
            method(*args, **options)
        return self

    # --- primitives on loops

    def split(self, axis: Any, factors: Sequence[int | None], tail: str = "guard",
              names: Sequence[str] | None = None) -> tuple[AxisRef, ...]:  # fmt: skip
        """Replace a loop by a nest; returns the new axes, outermost first. See ``primitives.loops.split``."""
        loop = self._loop(axis)
        need_text("tail", tail, ScheduleError)
        names_ = None if names is None else [self._full(loop, n) for n in need_names("names", names, ScheduleError)]
        out = self._apply("split", (loop.var.name, _plain(factors)), {"tail": (tail, "guard"), "names": (names_, None)},
                          lambda p: _loops.split(p, loop, factors, tail, names_))  # fmt: skip
        return tuple(map(AxisRef, out))

    def partition(self, axis: Any, at: Sequence[int]) -> Self:
        """Cut a loop at the given iterations, each part with its own copy of the body: no guard where none is due."""
        loop = self._loop(axis)
        points = need_list("at", at, "ints", ScheduleError)
        self._apply("partition", (loop.var.name, _plain(points)), {}, lambda p: _loops.partition(p, loop, points))
        return self

    def cut(self, axis: Any, at: int) -> StageRef:
        """Make two nests of one at the root: iterations of ``axis`` below ``at``, and in a stage ``<stage>.tail`` the
        others, which is returned. Each becomes a kernel of its own, scheduled by itself.
        """
        loop, point = self._loop(axis), need_int("at", at, error=ScheduleError)
        (name,) = self._apply("cut", (loop.var.name, point), {}, lambda p: _cut.cut(p, loop, point))
        return StageRef(self, name)

    def fuse(self, *axes: Any, name: str | None = None) -> AxisRef:
        """Make one loop of directly nested ones; returns it. ``name``: what to call it."""
        loops = [self._loop(a) for a in axes]
        label = None if name is None or not loops else self._full(loops[0], need_text("name", name, ScheduleError))
        out = self._apply("fuse", [x.var.name for x in loops], {"name": (label, None)},
                          lambda p: _loops.fuse(p, *loops, name=label))  # fmt: skip
        return AxisRef(out[0])

    def reorder(self, *axes: Any) -> Self:
        """Put loops of one perfect nest into the given order, outermost first."""
        loops = [self._loop(a) for a in axes]
        self._apply("reorder", [x.var.name for x in loops], {}, lambda p: _loops.reorder(p, *loops))
        return self

    def tile(self, *axes: Any, factors: Sequence[int]) -> tuple[AxisRef, ...]:
        """Split each axis by its factor and move the inner parts inside: returns outer axes, then inner ones."""
        loops = [self._loop(a) for a in axes]
        if len(need_list("factors", factors, "ints", ScheduleError)) != len(loops):
            raise ScheduleError(
                Problem("tile.factors", f"{len(loops)} axes need {len(loops)} factors, got {len(factors)}")
            )
        with self._as_one():
            parts = [self.split(x.var.name, [None, f]) for x, f in zip(loops, factors, strict=True)]
            new = [p[0] for p in parts] + [p[1] for p in parts]
            self.reorder(*new)
        return tuple(new)

    def reindex(self, stage: Any, view: str, pad: Mapping[str, int] | None = None,
                reads: Mapping[str, str] | None = None, name: str | None = None) -> tuple[AxisRef, ...]:  # fmt: skip
        """Walk a stage by other axes of the same domain, "n, p, q, k | r, s, c -> i = (n, p, q), j = k, t = (r, s, c)",
        and pack what it reads under them, ``reads={"x": "i, t"}``. See ``primitives.reindex``; returns the new axes.
        """
        found, said = self._stage(stage), _reindex.parse_view(need_text("view", view, ScheduleError))
        ref = StageRef(self, found.name)
        loops = [self._loop(ref.axis(n)) for n in said.names]
        multiples = need_mapping("pad", {} if pad is None else pad, ScheduleError)
        padding = {k: need_int("pad", n, 1, error=ScheduleError) for k, n in multiples.items()}
        operands = need_mapping("reads", {} if reads is None else reads, ScheduleError)
        packed = {k: need_text("reads", v, ScheduleError) for k, v in operands.items()}
        buffers = {k: (self._buffer(k), [d.strip() for d in v.split(",") if d.strip()]) for k, v in packed.items()}
        label = None if name is None else need_text("name", name, ScheduleError)
        options: dict[str, tuple[Any, Any]] = {"pad": (padding, {}), "reads": (packed, {}), "name": (label, None)}
        out = self._apply("reindex", (found.name, view), options,
                          lambda p: _reindex.reindex(p, found, said, loops, padding, buffers, label))  # fmt: skip
        return tuple(map(AxisRef, out))

    def bind(self, axis: Any, to: str) -> Self:
        """Bind a loop to "block.x" … "thread.z", or deal it out to all "threads" of the block."""
        loop = self._loop(axis)
        need_text("to", to, ScheduleError)
        self._apply("bind", (loop.var.name, to), {}, lambda p: _binding.bind(p, loop, to, self.target))
        return self

    def vectorize(self, axis: Any) -> Self:
        """Run an innermost loop in vector lanes."""
        loop = self._loop(axis)
        self._apply("vectorize", (loop.var.name,), {}, lambda p: _loops.vectorize(p, loop))
        return self

    def unroll(self, axis: Any) -> Self:
        """Unroll a loop completely."""
        loop = self._loop(axis)
        self._apply("unroll", (loop.var.name,), {}, lambda p: _loops.unroll(p, loop))
        return self

    def parallel(self, axis: Any) -> Self:
        """Deal the iterations of a loop out over the cores: binds it to the first free block axis."""
        loop = self._loop(axis)
        self._apply("parallel", (loop.var.name,), {}, lambda p: _binding.parallel(p, loop, self.target))
        return self

    def specialize(self, axis: Any, cond: str) -> Self:
        """Two versions of a loop's body: where ``cond`` holds ("C.i.0 < 3", "mask[C.i.0] == 0"), and elsewhere."""
        loop = self._loop(axis)
        need_text("cond", cond, ScheduleError)
        self._apply("specialize", (loop.var.name, cond), {}, lambda p: _specialize.specialize(p, loop, cond))
        return self

    def pipeline(self, axis: Any, depth: int = 2, async_: bool = False, roles: Mapping[str, int] | None = None,
                 turns: int = 1) -> Self:  # fmt: skip
        """Copies into shared memory run ahead of the loop that uses them, into ``depth`` buffers that take turns: one
        iteration through registers, or ``async_`` on their own and ``depth`` - 1 iterations (CUDA, sm_80), or made by a
        warpgroup of their own: ``roles={"load": 40, "compute": 232}``, with the registers of a thread (sm_90a).
        ``turns``: sets of the warpgroups that compute, which take the tiles of the loop around in turns."""
        loop = self._loop(axis)
        need_int("depth", depth, 1)
        need_bool("async_", async_)
        need_int("turns", turns, 1)
        given = None if roles is None else dict(need_mapping("roles", roles, ScheduleError))
        options = {"depth": (depth, 2), "async_": (async_, False), "roles": (given, None), "turns": (turns, 1)}
        self._apply("pipeline", (loop.var.name,), options,
                    lambda p: _pipeline.pipeline(p, loop, depth, async_, self.target, given, turns))  # fmt: skip
        return self

    # --- primitives on stages

    def compute_at(self, stage: Any, consumer: Any, axis: Any = None) -> Self:
        """Move a producer into a loop of its consumer: ``s.compute_at("P", "C.i.0")`` or ``(P, C, "i.0")``."""
        found, loop = self._stage(stage), self._loop_of(consumer, axis)
        self._apply("compute_at", (found.name, loop.var.name), {}, lambda p: _placement.compute_at(p, found, loop))
        return self

    def reverse_compute_at(self, stage: Any, producer: Any, axis: Any = None) -> Self:
        """Move a consumer behind its producer inside one of the producer's loops."""
        found, loop = self._stage(stage), self._loop_of(producer, axis)
        self._apply(
            "reverse_compute_at",
            (found.name, loop.var.name),
            {},
            lambda p: _placement.reverse_compute_at(p, found, loop),
        )
        return self

    def compute_inline(self, stage: Any) -> Self:
        """Put a producer's expression where it is read."""
        found = self._stage(stage)
        self._apply("compute_inline", (found.name,), {}, lambda p: _placement.compute_inline(p, found))
        return self

    def reverse_compute_inline(self, stage: Any) -> Self:
        """Put an elementwise consumer into the stage that writes what it reads."""
        found = self._stage(stage)
        self._apply("reverse_compute_inline", (found.name,), {}, lambda p: _placement.reverse_compute_inline(p, found))
        return self

    def stage_in(self, tensor: Any, at: Any = "root", scope: str = "shared", vector: int | None = None, pad: int = 0,
                 order: Sequence[int] | None = None, cooperative: bool = True,
                 run: str = "each", layout: str | None = None, via: str = "threads") -> StageRef:  # fmt: skip
        """Copy what one iteration of ``at`` reads of ``tensor`` and read the copy there; returns the copying stage."""
        buffer, loop = self._buffer(tensor), self._place(at)
        need_text("scope", scope, ScheduleError)
        need_bool("cooperative", cooperative, ScheduleError)
        vector = None if vector is None else need_int("vector", vector, error=ScheduleError)
        order = None if order is None else need_ints("order", order, ScheduleError)
        options = {
            "vector": (vector, None),
            "pad": (pad, 0),
            "order": (_plain(order), None),
            "cooperative": (cooperative, True),
            "run": (run, "each"),
            "layout": (_map(layout), None),
            "via": (need_text("via", via, ScheduleError), "threads"),
        }
        out = self._apply(
            "stage_in",
            (buffer.name, at if loop is None else loop.var.name, scope),
            options,
            lambda p: _staging.stage_in(
                p, buffer, loop, scope, vector, pad, order, cooperative, run, layout, via, self.target
            ),
        )
        return StageRef(self, out[0])

    def stage_out(self, stage: Any, at: Any = "root", scope: str = "register", layout: str | None = None,
                  via: str = "threads", vector: int | None = None) -> StageRef:  # fmt: skip
        """Let a stage compute into a copy, written out once per iteration of ``at``; returns the copying stage."""
        found, loop = self._stage(stage), self._place(at)
        need_text("scope", scope, ScheduleError)
        lanes = None if vector is None else need_int("vector", vector, error=ScheduleError)
        options = {"layout": (_map(layout), None), "via": (need_text("via", via, ScheduleError), "threads"),
                   "vector": (lanes, None)}  # fmt: skip
        place = at if loop is None else loop.var.name
        out = self._apply("stage_out", (found.name, place, scope), options,
                          lambda p: _staging.stage_out(p, found, loop, scope, layout, via, self.target,
                                                       lanes))  # fmt: skip
        return StageRef(self, out[0])

    def set_scope(self, tensor: Any, scope: str) -> Self:
        """Keep an intermediate tensor in "shared", "register" or "global" memory."""
        buffer = self._buffer(tensor)
        need_text("scope", scope, ScheduleError)
        self._apply("set_scope", (buffer.name, scope), {}, lambda p: _buffers.set_scope(p, buffer, scope))
        return self

    def layout(self, tensor: Any, layout: str | None = None, pad: int = 0, order: Sequence[int] | None = None) -> Self:
        """Store an intermediate tensor by an index map: ``"c, h, w -> h, w, c"``, ``"k, j -> j/16, k, j%16"``."""
        buffer = self._buffer(tensor)
        order = None if order is None else need_ints("order", order, ScheduleError)
        given = (buffer.name,) if _map(layout) is None else (buffer.name, layout)
        self._apply("layout", given, {"pad": (pad, 0), "order": (_plain(order), None)},
                    lambda p: _buffers.layout(p, buffer, layout, pad, order))  # fmt: skip
        return self

    def run_once(self, tensor: Any) -> Self:
        """Make an intermediate tensor ahead of time, once for all launches on the same inputs."""
        buffer = self._buffer(tensor)
        self._apply("run_once", (buffer.name,), {}, lambda p: _once.run_once(p, buffer))
        return self

    def decompose_reduction(self, stage: Any, axis: Any) -> StageRef:
        """Give the initialisation a stage of its own right before a loop that encloses the reduction; returns it."""
        found = self._stage(stage)
        loop = self._loop_of(found.name, axis)
        out = self._apply(
            "decompose_reduction",
            (found.name, loop.var.name),
            {},
            lambda p: _reduction.decompose_reduction(p, found, loop),
        )
        return StageRef(self, out[0])

    def rfactor(self, stage: Any, axis: Any) -> StageRef:
        """Split a reduction into partial results per iteration of ``axis`` and their reduction; returns the former."""
        found = self._stage(stage)
        loop = self._loop_of(found.name, axis)
        out = self._apply("rfactor", (found.name, loop.var.name), {}, lambda p: _reduction.rfactor(p, found, loop))
        return StageRef(self, out[0])

    def atomic(self, stage: Any) -> Self:
        """Let a sum add its terms atomically, so that loops of its reduction may be bound."""
        found = self._stage(stage)
        self._apply("atomic", (found.name,), {}, lambda p: _atomic.atomic(p, found))
        return self

    def tensorize(self, axis: Any, intrin: str | Intrin) -> Self:
        """Perform the nest from ``axis`` inward by a registered hardware instruction with the same meaning."""
        loop = self._loop(axis)
        made = intrinsic(intrin)
        self._apply(
            "tensorize", (loop.var.name, made.name), {}, lambda p: _tensorize.tensorize(p, loop, made, self.target)
        )
        return self

    def annotate(self, axis: Any, key: str, value: Any) -> Self:
        """Attach a hint from a closed set to a loop (see ``primitives.annotate``)."""
        loop = self._loop(axis)
        need_text("key", key, ScheduleError)
        self._apply("annotate", (loop.var.name, key, value), {}, lambda p: _annotate.annotate(p, loop, key, value))
        return self

    def prefetch(self, tensor: Any, at: Any, ahead: Any = None, distance: int = 1) -> Self:
        """On CPUs, ask in each iteration of ``at`` for the cache lines of ``tensor`` that it will read when ``ahead``
        (a loop around it, ``at`` itself when None) is ``distance`` iterations further on.
        """
        buffer, loop = self._buffer(tensor), self._loop(at)
        around = loop if ahead is None else self._loop(ahead)
        far = need_int("distance", distance, 1, 2**31 - 1, error=ScheduleError)
        self._apply("prefetch", (buffer.name, loop.var.name, around.var.name), {"distance": (far, 1)},
                    lambda p: _prefetch.prefetch(p, buffer, loop, around, far, self.target))  # fmt: skip
        return self

    def assume(self, tensor: Any, align: int | None = None, low: int | None = None, high: int | None = None) -> Self:
        """Promise facts about an argument, on which the emitted code then relies.

        align: bytes of which its address is a multiple. Each launch checks that: a part of a device buffer that starts
               elsewhere is refused (``launch.alignment``; the buffer itself is taken to start where the runtime puts
               its own), a host array is worked on in an aligned copy (``tir.empty`` makes host arrays that need none)
        low, high: ``low <= element < high`` for every element of an index tensor. **Nobody checks it**, since looking
               at all indices is what it saves: the scan of each launch (``launch.index-range``), also in exported
               loaders, where these bounds say that all indices exist. With wrong ones a kernel reads anywhere

        There is nothing to say about aliasing: launches refuse overlapping outputs, and pointers are ``restrict``.
        """
        buffer = self._buffer(tensor)
        given = {"align": align, "low": low, "high": high}
        said = {k: None if v is None else need_int(k, v, error=ScheduleError) for k, v in given.items()}
        self._apply("assume", (buffer.name,), {k: (v, None) for k, v in said.items()},
                    lambda p: _assume.assume(p, self.outputs, buffer, **said))  # fmt: skip
        return self

    # --- machinery

    def _apply(self, name: str, args: Sequence[Any], options: Mapping[str, tuple[Any, Any]],
               act: Callable[[Program], Rewrite]) -> tuple[str, ...]:  # fmt: skip
        program, gone = self._versions[-1]
        try:
            done = act(program)
        except TensorIRError:
            raise
        except RecursionError:
            raise ScheduleError(Problem("schedule.too-deep", f"the loop tree is too deep for {name}")) from None
        marking = [s.primitive in ("tensorize", "stage_in", "stage_out") for s in self._steps]
        if any(marking) and (problem := _tensorize.unfit(done.program, program if any(marking[:-1]) else None)):
            raise ScheduleError(dataclasses.replace(problem, hint=problem.hint or f"{name} before tensorize"))
        if problem := _marks.lost(program, done.program, name):
            raise ScheduleError(problem)
        asked = {"run_once" if ("run", "once") in s.options else s.primitive for s in self._steps}
        for primitive, unfit in _MARKS.items():
            if primitive in asked and (problem := unfit(program, done.program, name)):
                raise ScheduleError(problem)
        if name in _MOVES and (problem := misplaced(done.program)):
            raise ScheduleError(problem)
        given = tuple((k, _plain(v)) for k, (v, default) in options.items() if v != default)
        step = Step(name, tuple(map(_plain, args)), given, done.new, user_line())
        told = {k: f"{v} by step {len(self._steps) + 1}, {step}" for k, v in done.gone.items()}
        self._versions.append((done.program, {**gone, **told}))
        self._steps.append(step)
        return done.new

    def _as_one(self) -> Any:
        """Undo everything when a composition is refused half way."""
        return _Whole(self)

    def _loop(self, axis: Any) -> Loop:
        name = _name_of(axis, "axis")
        found = self.index.loops.get(name)
        if found is not None and found.kind is not Kind.INTRIN:
            return found
        gone = self._versions[-1][1]
        # loops that an instruction performs are in the tree, and yet nothing can be done to them any more
        loops = {n: x for n, x in self.index.loops.items() if x.kind is not Kind.INTRIN}
        if name not in loops and name not in gone and "." not in name:
            ends = [n for n in loops if n.endswith(f".{name}")]
            if len(ends) > 1:
                raise ScheduleError(Problem("loop.ambiguous", f"{name} fits {' and '.join(ends)}", hint=f"{ends[0]!r}"))
        return lookup("loop", name, loops, gone)

    def _full(self, loop: Loop, name: str) -> str:
        return name if "." in name else f"{loop.var.name.split('.')[0]}.{name}"

    def _loop_of(self, stage: Any, axis: Any) -> Loop:
        if axis is None:
            return self._loop(stage)
        return self._loop(StageRef(self, self._stage(stage).name).axis(axis))

    def _place(self, at: Any) -> Loop | None:
        return None if isinstance(at, str) and at == "root" else self._loop(at)

    def _stage(self, stage: Any) -> Stage:
        index = self.index
        if isinstance(stage, Tensor):
            for b in index.buffers().values():  # of two tensors of one name the second has another one here
                if b.origin is stage and b.name in index.stages:
                    return index.stages[b.name]
            for s in index.stages.values():
                if s.name == stage.name or (stage.op is not None and s.name == stage.op.name):
                    return s
            return lookup("stage", stage.name, index.stages, self._versions[-1][1])
        return lookup("stage", _name_of(stage, "stage"), index.stages, self._versions[-1][1])

    def _buffer(self, tensor: Any) -> Buffer:
        table = self.index.buffers()
        if isinstance(tensor, Tensor):
            for b in table.values():
                if b.origin is tensor:
                    return b
        return lookup("tensor", _name_of(tensor, "tensor"), table, self._versions[-1][1])


class _Whole:
    def __init__(self, s: Schedule) -> None:
        self.s, self.steps = s, len(s._steps)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self.s.undo(len(self.s._steps) - self.steps)


@functools.cache
def _signature(name: str) -> inspect.Signature:
    """Of a primitive; asking Python for it takes longer than many a primitive."""
    return inspect.signature(getattr(Schedule, name))


def _name_of(x: Any, what: str) -> str:
    if isinstance(x, str):
        return x
    name = getattr(x, "name", None)
    if isinstance(name, str):
        return name
    several = ", ".join(map(repr, x)) if isinstance(x, list | tuple) and all(isinstance(y, str) for y in x) else ""
    hint = f"one by one: {several}" if several else ""
    raise wrong(what, x, f"{'an' if what == 'axis' else 'a'} {what} by name or handle", ScheduleError, hint)


def _map(layout: Any) -> str | None:
    return None if layout is None else need_text("layout", layout, ScheduleError)


def _plain(v: Any) -> Any:
    """What a step of the trace says: NumPy's ints as Python's, inside of lists too."""
    return [_plain(x) for x in v] if isinstance(v, Sequence) and not isinstance(v, str) else plain_int(v)


_MOVES = {
    "bind", "parallel", "compute_at", "reverse_compute_at", "reverse_compute_inline", "stage_in", "stage_out",
    "set_scope", "rfactor", "decompose_reduction", "atomic", "reindex",
}  # fmt: skip
"""Primitives after which some cell may be written by one thread and read by another."""

_MARKS = {"specialize": _specialize.unfit, "pipeline": _pipeline.unfit, "run_once": _once.unfit}
"""Primitives whose marks need more than to be there, and why a later one may not do what it did to them."""

PRIMITIVES = (
    "split", "partition", "cut", "fuse", "reorder", "reindex", "bind", "parallel", "vectorize", "unroll", "compute_at",
    "reverse_compute_at", "compute_inline", "reverse_compute_inline", "stage_in", "stage_out", "set_scope", "layout",
    "run_once", "decompose_reduction", "rfactor", "tensorize", "annotate", "prefetch", "pipeline",
    "assume", "specialize", "atomic",
)  # fmt: skip
"""The names that a trace may hold."""
