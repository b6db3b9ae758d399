"""keep_term: remove reduction terms that are provably zero, keeping one per axis.

Example: the gradient of a strided convolution reads its operand with zeros inserted between the elements. Of the taps
in each residue class of the stride, all but one read only zeros, and the pixel determines that one (Dumoulin and Visin,
"A guide to convolution arithmetic for deep learning", 2016, section 4).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from tensorir.arith.affine import Arith
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_text
from tensorir.ir.build import binary, const
from tensorir.ir.dims import most
from tensorir.ir.structure import among
from tensorir.ir.text import show
from tensorir.ir.tree import Axis, Binary, Const, Expr, Iter, Load, Loop, Program, Stage, Store, Update, Var
from tensorir.ir.visit import Rewriter, substitute, uses
from tensorir.schedule.analysis import Index, caret, driven_by, index_of, need_constant, need_serial, stages_writing
from tensorir.schedule.conditions import parse
from tensorir.schedule.history import Name, S
from tensorir.schedule.primitives.reindex_zeros import at_zero
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, swap

MOST_TRIED = 4096
"""Values of axes that the proof goes through one by one."""


@primitive("Reductions")
def keep_term(self: S, axis: Name, value: str) -> S:
    """Replace the loop over a reduce axis by its one nonzero term, ``s.keep_term("C.t", "(C.i + 1) % 2")``.

    axis:  a loop over a whole reduce axis; all other terms are proved to add nothing, as they read zeros that earlier
           stages leave where a condition fails
    value: index of the term, in loops around the stage

    Zero times anything adds nothing in exact arithmetic only. Raises ScheduleError: ``keep-term.axis``,
    ``keep-term.value``, ``keep-term.counts``, ``keep-term.serial``, and codes of ``specialize`` for malformed text.
    """
    loop = self._loop(axis)
    need_text("value", value, ScheduleError)
    self._history._apply("keep_term", (loop, value), {}, lambda p: _keep_term(p, loop, value))
    return self


def _keep_term(program: Program, loop: Loop, said: str) -> Rewrite:
    index = index_of(program)
    need_serial(loop, "keep-term")
    stage, axis = _reduced(loop)
    need_constant(stage)
    own = {b: it for it, b in zip(stage.iters, stage.binds, strict=True) if isinstance(b, Var) and it is not axis}
    equal = parse(f"{loop.var.name} == ({said})", {v.name: v for v in [loop.var, *own]}, {})
    if not isinstance(equal, Binary) or equal.op != "==" or equal.a is not loop.var:
        raise _refuse("keep-term.value", f"{said!r} is no index", loop, "numbers, and other loops")
    value = substitute(equal.b, {b: it.var for b, it in own.items()})
    if uses(value, {loop.var}):
        raise _refuse(
            "keep-term.value", f"{said!r} is said by {loop.var.name} itself", loop, "numbers, and other loops"
        )
    _need_zeros(index, stage, axis, value, loop)
    left = [(it, b) for it, b in zip(stage.iters, stage.binds, strict=True) if it is not axis]
    arith = Arith({it.var: (0, max(most(it.extent), 2) - 1) for it, _ in left})
    new = stage.replace(iters=tuple(it for it, _ in left), binds=tuple(b for _, b in left),
                        body=_At(axis.var, value, arith)(stage.body))  # fmt: skip
    done = swap(program, loop, swap(program.replace(body=loop.body), stage, new).body)
    return Rewrite(done, (), {loop.var.name: f"its term at {said} was kept alone"})


def _reduced(loop: Loop) -> tuple[Stage, Iter]:
    """(stage, reduce axis) that ``loop`` iterates as a whole; raises ScheduleError if it drives other axes, or a
    part.
    """
    driven = driven_by(loop)
    told = ""
    if len(driven) != 1:
        told = f"{loop.var.name} walks {len(driven)} axes" if driven else f"{loop.var.name} walks no axis"
    elif driven[0][1].axis is not Axis.REDUCE or not isinstance(driven[0][0].body, Update):
        told = f"{loop.var.name} walks no reduce axis of {driven[0][0].name}"
    elif not among(loop.var, driven[0][0].binds) or driven[0][0].guards:
        told = f"{loop.var.name} walks a part of an axis, or {driven[0][0].name} has been scheduled already"
    if told:
        raise _refuse("keep-term.axis", told, loop, "a whole reduce axis of one stage, before other steps")
    return driven[0]


def _need_zeros(index: Index, stage: Stage, axis: Iter, value: Expr, loop: Loop) -> None:
    """Raise ScheduleError unless all other terms along ``axis`` are provably the identity."""
    axes = [axis, *(it for it in stage.iters if uses(value, {it.var}))]
    sizes = [most(it.extent) for it in axes]
    if math.prod(sizes) > MOST_TRIED:
        raise _refuse("keep-term.value", f"there are {math.prod(sizes)} cases to prove, more than {MOST_TRIED}", loop,
                      "a part of an axis: s.reindex(...) with k%2")  # fmt: skip
    body = stage.body
    assert isinstance(body, Update)
    arith = Arith({it.var: (0, most(it.extent) - 1) for it in stage.iters})
    for at in itertools.product(*map(range, sizes)):
        here: dict[Var, Expr] = {it.var: const(n) for it, n in zip(axes, at, strict=True)}
        kept = arith.simplify(substitute(value, here))
        if not isinstance(kept, Const) or not 0 <= kept.value < sizes[0]:
            raise _refuse("keep-term.value", f"{show(kept)} is no value of {loop.var.name} in {sizes[0]}", loop,
                          f"0 to {sizes[0] - 1}")  # fmt: skip
        if kept.value != at[0] and (left := next(_counting(index, body, here, arith), None)) is not None:
            case = ", ".join(f"{it.var.name} = {n}" for it, n in zip(axes, at, strict=True))
            raise _refuse("keep-term.counts", f"where {case} a term is {show(left)}, not proved to add nothing", loop,
                          "the value at which terms count")  # fmt: skip


def _counting(index: Index, body: Update, at: Mapping[Var, Expr], arith: Arith) -> Iterator[Expr]:
    """Yield the terms that may be nonzero when axes have the values ``at``, simplified."""
    for term, identity in zip(body.values, body.combiner.identity, strict=True):
        found = arith.simplify(_Made(index, arith)(substitute(term, dict(at))))
        if at_zero(found, set()) != identity.value:
            yield found


class _Made(Rewriter):
    """Rewriter: replace reads of intermediate tensors by the expressions stored there."""

    def __init__(self, index: Index, arith: Arith) -> None:
        self.index, self.arith = index, arith

    def on_Load(self, n: Load) -> Expr:
        made = stages_writing(self.index.program.body, n.buffer)
        body = made[0].body if len(made) == 1 else None
        if not isinstance(body, Store) or not all(isinstance(i, Var) for i in body.index):
            return n
        return self(substitute(body.value, dict(zip(body.index, n.index, strict=True))))  # type: ignore[no-any-return, arg-type]


class _At(Rewriter):
    """Rewriter: substitute a value for an axis in a stage's body, and normalize indices.

    An index equal to the axis gets the value as written, with its obvious range; elsewhere remainders become x - x // c
    * c, which simplifies better.
    """

    def __init__(self, axis: Var, value: Expr, arith: Arith) -> None:
        self.axis, self.value, self.arith = axis, value, arith
        self.differences = {axis: _Remainders()(value)}

    def on_Update(self, n: Update) -> Update:
        return n.replace(values=tuple(self.arith.simplify(substitute(self(v), self.differences)) for v in n.values))

    def on_Load(self, n: Load) -> Load:
        return n.replace(index=tuple(self.value if i is self.axis else self(i) for i in n.index))


class _Remainders(Rewriter):
    """Rewriter: ``x % c   ->   x - x // c * c``."""

    def on_Binary(self, n: Binary) -> Expr:
        a, b = self(n.a), self(n.b)
        return binary("-", a, binary("*", binary("//", a, b), b)) if n.op == "%" else binary(n.op, a, b)


def _refuse(code: str, message: str, at: Loop, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(at), hint=hint))
