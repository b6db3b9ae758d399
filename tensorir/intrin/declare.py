"""Hardware instructions as data: what one means in the loop tree, what it needs, and the text to emit.

An instruction is declared once and describes itself. Its meaning is a computation like any other, written with the same
lambdas; ``tensorize`` matches that meaning, the interpreter runs it, languages without the instruction print it as
loops, and the conformance test of the table compares it with what the device does. Users declare their own the same
way::

    import tensorir as tir
    from tensorir.intrin.intrin import Intrin, meaning, register

    a, b = tir.placeholder((4,), name="a"), tir.placeholder((4,), name="b")
    c = tir.compute((4,), lambda n: tir.sqrt(a[n]) * b[n], name="c")
    register(Intrin(
        name="my.sqrt-mul.f32x4",
        semantics=meaning(c),
        emit={"opencl": "vstore4(sqrt(vload4(0, {a})) * vload4(0, {b}), 0, {c});"},
        source="OpenCL C 3.0, 6.15.2 and 6.15.7",
    ))
    s.tensorize("C.j.1", "my.sqrt-mul.f32x4")

Text is a format string over the operands. For an operand ``a``:

    {a}         the address of its first element, such as ``A + i * 64``
    {a_space}   the address-space qualifier of pointers to it, such as ``__global ``
    {a_value}   its first element as an expression; it can be assigned to
    {a_vector}  the whole of a one-dimensional operand as one vector; on CPUs it can be assigned to
    {a_stride}  elements from one row to the next of a two-dimensional operand

Some instructions are run by the 32 threads of a warp together. They say which thread (lane) holds which element of an
operand, and in which of its registers: ``fragments={"a": "i, k -> i%8, k/2%4 | k/8, i/8, k%2"}`` puts element (i, k)
into lane ``i%8 * 4 + k/2%4``, there into register ``k/8 * 4 + i/8 * 2 + k%2``; ``{a}`` is then the first of the
thread's own registers. Nothing after the bar, ``"i, k -> i, k |"``, is one element for each lane. Of an operand in
shared memory, ``addresses`` says in the same way which lane gives the address of which run of neighbours, and
``{a}`` is the thread's own address.

Instructions of warpgroups distribute elements to 128 lanes. They read shared memory by a descriptor:
of an operand among ``descriptors``, ``{a}`` is that of its tile, which must be stored in swizzled rows of 128 bytes.
They are ``later`` (asynchronous): the threads do not wait, and lowering waits for them where their results are wanted;
``{adds}`` is a further argument, with its comma, where the first of a sum of products begins with 0. Of an operand
among ``maps``, ``{a_map}`` is the tensor map of its array and ``{a_at}`` where the tile begins, innermost first;
``{barrier}`` is told when the copy has come.

What the text calls may be brought along as a ``prelude``. If the text is one call of such a function on all operands,
the emulator of CUDA text runs the instruction's meaning in its place.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tensorir.errors import DeclarationError, ScheduleError, refuse
from tensorir.errors.needs import need_bool, need_int, need_mapping, need_name, need_names, need_text, wrong
from tensorir.expr.program import as_outputs, program_of
from tensorir.expr.reducers import simple_combiner
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import as_int, binary, const
from tensorir.ir.layout import COLLECTIVES, lane_places, written
from tensorir.ir.layout_text import parse_layout
from tensorir.ir.tree import Buffer, Expr, Layout, Load, Loop, Program, Region, Stage, Stmt, Store, Update, Var
from tensorir.ir.visit import Rewriter, find, reads, substitute, writes
from tensorir.target import Target

MOST_DIMS = 5
"""Of an array of which whole tiles are copied, and of a tile (CUDA driver API, cuTensorMapEncodeTiled)."""
FIELDS = ("space", "value", "vector", "stride", "map", "at")


@dataclass(frozen=True, eq=False)
class Intrin:
    """A hardware instruction: definition, requirements and emitted text; the module describes how to declare one.

    semantics: a program over operand buffers (its inputs, then its output) that computes exactly what the instruction
               does: loops around one Store or Update; see ``meaning``
    emit:      {language ("opencl"), or language and kind of device ("opencl.cpu", tried first): text}
    source:    the section of the manual
    align:     {operand: bytes to which its address must be aligned}
    needs:     required features of the target: names of fields of ``Target`` such as "fp16", or a least architecture
               such as "sm_80"
    fragments: {operand: which lane of the warp holds which elements}, for instructions that a warp executes together
    addresses: {operand in shared memory: which lane gives the address of which run of neighbours}
    prelude:   {language: definitions of functions that the text calls}, emitted before the kernels
    descriptors: operands in shared memory that are stored in swizzled rows and addressed by a descriptor
    maps:      operands in global memory of which one thread copies a whole tile, with zeros beyond the array (TMA)
    later:     True if it is asynchronous: results exist only after a wait
    blocks:    number of blocks of a cluster that receive the same tile

    Raises DeclarationError: ``intrin.meaning``, ``intrin.text``, ``intrin.fragment``.
    """

    name: str
    semantics: Program
    emit: Mapping[str, str]
    source: str
    align: Mapping[str, int] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    fragments: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    prelude: Mapping[str, str] = field(default_factory=dict)
    descriptors: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    later: bool = False
    blocks: int = 1

    def __post_init__(self) -> None:
        need_name("name", self.name)
        if not isinstance(self.semantics, Program):
            raise wrong("semantics", self.semantics, "a program", hint="meaning(tensor)")
        for language, text in need_mapping("emit", self.emit).items():
            need_text(f"emit[{language!r}]", text)
        for operand, size in need_mapping("align", self.align).items():
            need_int(f"align[{operand!r}]", size, 1)
        need_text("source", self.source)
        need_names("needs", self.needs)
        touched = {*reads(self.semantics.body), *writes(self.semantics.body)}
        if not isinstance(self.statement, Store | Update) or len(writes(self.statement)) != 1:
            raise self._refuse("meaning", "the meaning is not loops around one Store or Update", "use meaning(tensor)")
        if len(self.outputs) != 1 or touched - set(self.operands):
            raise self._refuse("meaning", "the meaning uses buffers that are not its operands")
        for b in self.operands:
            most = MOST_DIMS if self.maps else 3 if self.descriptors or self.addresses else 2
            if not 1 <= len(b.shape) <= most:
                message = f"operand {b.name} has {len(b.shape)} dimensions; operands have 1 to {most}"
                raise self._refuse("meaning", message, "a scalar operand is an array of shape (1,)")
        for language, text in self.emit.items():
            self._check_text(language, text)
        for language, text in need_mapping("prelude", self.prelude).items():
            need_text(f"prelude[{language!r}]", text)
        self._check_warp()

    def _check_warp(self) -> None:
        for which in ("fragments", "addresses"):
            given = need_mapping(which, getattr(self, which))
            for operand, text in given.items():
                need_text(f"{which}[{operand!r}]", text)
                if operand not in {b.name for b in self.operands}:
                    raise self._refuse("fragment", f"{which} names {operand}, which is none of its operands")
        shared = sorted(set(self.fragments) & set(self.addresses))
        if shared:
            raise self._refuse("fragment", f"{shared[0]} is in registers or in memory, not both")
        if not self.fragments:
            if self.addresses:
                raise self._refuse("fragment", "no operand is in the registers of a warp", "fragments={…}")
            return
        for b in self.operands:
            layout = self.held.get(b) or self.addressed.get(b)
            if b.name in self.descriptors:
                continue
            if layout is None:
                message = f"{b.name} is held by no lane, and a warp runs the instruction together"
                raise self._refuse("fragment", message, f"fragments={{{b.name!r}: …}}, or addresses")
            lanes = {lane for lane, _ in lane_places(layout, b.dims)}
            if lanes != set(range(self.lanes)):
                raise self._refuse(
                    "fragment", f"{written(layout)} distributes {b.name} to {len(lanes)} lanes, not {self.lanes}"
                )

    @cached_property
    def held(self) -> Mapping[Buffer, Layout]:
        """{operand: its fragment layout, parsed}, for operands in registers of warps."""
        return self._parsed(self.fragments)

    @cached_property
    def addressed(self) -> Mapping[Buffer, Layout]:
        """{operand: its address layout, parsed}, for operands in shared memory addressed by lanes."""
        return self._parsed(self.addresses)

    def _parsed(self, texts: Mapping[str, str]) -> Mapping[Buffer, Layout]:
        out: dict[Buffer, Layout] = {}
        for b in self.operands:
            if b.name in texts:
                try:
                    out[b] = parse_layout(texts[b.name], len(b.shape), b.name, fragment=True)
                except ScheduleError as e:
                    raise self._refuse("fragment", e.problems[0].message, e.problems[0].hint) from None
        return out

    @property
    def by_warp(self) -> bool:
        """True if the threads of a warp or warpgroup execute the instruction together."""
        return bool(self.fragments)

    @property
    def stores(self) -> bool:
        """True if the instruction copies tiles to global memory."""
        return bool(self.maps) and self.outputs[0].name in self.maps

    @cached_property
    def lanes(self) -> int:
        """Number of threads that execute the instruction together: 1, 32 or 128."""
        if not self.fragments:
            return 1
        warp, group = COLLECTIVES
        dealt = {lane for b, layout in self.held.items() for lane, _ in lane_places(layout, b.dims)}
        return group if max(dealt) >= warp else warp

    def _check_text(self, language: str, text: str) -> None:
        legal = {b.name for b in self.operands} | {f"{b.name}_{f}" for b in self.operands for f in FIELDS}
        legal |= {"barrier"} if self.maps else {"adds"} if self.later else set()
        try:
            names = fields_of(text)
        except ValueError as e:
            message = f"the {language} text is no format string: {e}"
            raise self._refuse("text", message, "write braces of C as {{ and }}") from None
        if unknown := [n for n in names if n not in legal]:
            message = f"the {language} text has {{{unknown[0]}}}, which is nothing of its operands"
            raise self._refuse("text", message, f"one of {', '.join(sorted(legal))}")
        for b in self.operands:
            if f"{b.name}_vector" in names and (len(b.shape) != 1 or b.dims[0] not in (2, 4, 8, 16)):
                raise self._refuse("text", f"{b.name} has shape {b.dims}: that is no vector", f"{{{b.name}_value}}")

    def _refuse(self, code: str, message: str, hint: str = "") -> Exception:
        return refuse(DeclarationError, f"intrin.{code}", f"{self.name}: {message}", hint=hint)

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """Buffers of the definition: inputs, then the output (an operand both read and written appears once, as the
        output).
        """
        return self.semantics.params

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The operands that are written."""
        made = writes(self.semantics.body)
        return tuple(b for b in self.operands if b in made)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Loops of its definition, outermost first."""
        return tuple(find(self.semantics.body, Loop))

    @cached_property
    def statement(self) -> Store | Update:
        """Innermost statement of the definition."""
        at: Stmt = self.semantics.body
        while isinstance(at, Loop):
            at = at.body
        return at  # type: ignore[return-value]

    def text_for(self, target: Target) -> str | None:
        """Template of the emitted text for a target; None if its language lacks the instruction."""
        return self.emit.get(f"{target.language}.{target.kind}", self.emit.get(target.language))

    def lacks(self, target: Target) -> str | None:
        """The first of ``needs`` that the target does not meet; None if it meets all."""
        return next((need for need in self.needs if not target.has(need)), None)

    def inline(self, regions: tuple[Region, ...]) -> Stmt:
        """Loops around a Store that compute a call of the instruction on ``regions``, one region per operand.

        Regions have one index per dimension, as in a schedule, or one flattened index with strides.
        """
        onto = _Onto(dict(zip(self.operands, regions, strict=True)))
        fresh: dict[Var, Expr] = {x.var: x.var.replace() for x in self.loops}  # several calls may stand in one program
        out: Stmt = onto(substitute(_as_store(self.statement), fresh))
        for x in reversed(self.loops):
            var = fresh[x.var]
            assert isinstance(var, Var)
            out = Loop(var, x.extent, out)
        return out


def _as_store(s: Store | Update) -> Store:
    """``s``, an Update rewritten as a Store of the combined value."""
    if isinstance(s, Store):
        return s
    buffer = s.buffers[0]
    joined: dict[Var, Expr] = {s.combiner.old[0]: Load(buffer, s.index, buffer.dtype), s.combiner.new[0]: s.values[0]}
    return Store(buffer, s.index, substitute(s.combiner.result[0], joined))


class _Onto(Rewriter):
    """Rewriter that replaces accesses to an instruction's operands by accesses to regions."""

    def __init__(self, regions: Mapping[Buffer, Region]) -> None:
        self.regions = regions

    def _at(self, r: Region, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        lead = len(r.extents) - len(index)
        assert not r.steps, "only copies of tiles take steps, and these have no meaning to inline"
        if not r.strides:
            return (*r.first[:lead], *(binary("+", f, i) for f, i in zip(r.first[lead:], index, strict=True)))
        out = r.first[0]
        for i, stride in zip(index, r.strides[lead:], strict=True):
            out = binary("+", out, binary("*", i, stride))
        return (out,)

    def on_Load(self, n: Load) -> Load:
        n = self.children(n)
        r = self.regions[n.buffer]
        return Load(r.buffer, self._at(r, n.index), n.dtype)

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        r = self.regions[n.buffer]
        return Store(r.buffer, self._at(r, n.index), n.value)


def fields_of(text: str) -> list[str]:
    """Names of the fields, in braces, of an instruction's text, in order, with repetitions; ValueError if it is no
    format string.
    """
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]


def meaning(output: Tensor, accumulate: bool = False) -> Program:
    """The semantics of an instruction that computes ``output`` from placeholders; operands are named after the tensors.

    accumulate: True if the result is added to the output's old content; required for reductions, as instructions add
                their sums to it

    Raises DeclarationError (``intrin.meaning``) for several computations, or a reduction without ``accumulate``.
    """
    program = program_of(as_outputs(output))
    need_bool("accumulate", accumulate)
    stages = find(program.body, Stage)
    stage, body = stages[0], stages[0].body
    if len(stages) != 1 or not isinstance(body, Store | Update):
        message = f"{output.name} takes several computations; an instruction is one"
        raise refuse(DeclarationError, "intrin.meaning", message)
    if isinstance(body, Update) and not accumulate:
        message = f"{output.name} reduces, and instructions that reduce add to what their output holds"
        raise refuse(DeclarationError, "intrin.meaning", message, hint=f"meaning({output.name}, accumulate=True)")
    if isinstance(body, Store) and accumulate:
        body = Update((body.buffer,), body.index, (body.value,), simple_combiner("sum", body.buffer.dtype))
    loops = find(program.body, Loop)
    once: dict[Var, Expr] = {x.var: const(0) for x in loops if as_int(x.extent) == 1}
    binds = {it.var: substitute(b, once) for it, b in zip(stage.iters, stage.binds, strict=True)}
    nest: Stmt = substitute(body, binds)
    for x in reversed([x for x in loops if x.var not in once]):
        nest = x.replace(body=nest)
    return program.replace(body=nest)


INTRINSICS: dict[str, Intrin] = {}
"""Those that are known so far: ``intrin.known`` has all."""


def ship(intrin: Intrin) -> Intrin:
    """Register an instruction under its name and return it."""
    INTRINSICS[intrin.name] = intrin
    return intrin
