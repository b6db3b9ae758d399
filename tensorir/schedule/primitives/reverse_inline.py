"""reverse_compute_inline: merge an elementwise consumer into the stage whose result it reads."""

from __future__ import annotations

from tensorir.arith.affine import Arith, same
from tensorir.arith.box import side_of
from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import as_expr, binary
from tensorir.ir.dims import dims_in, most, most_of
from tensorir.ir.tree import Buffer, Expr, Iter, Load, Loop, Program, Stage, Stmt, Store, Var
from tensorir.ir.visit import find, reads, substitute
from tensorir.schedule.analysis import Index, caret, in_loops, index_of, loads_of, stages_reading, stages_writing
from tensorir.schedule.history import Name, S
from tensorir.schedule.primitives.placement import is_made_before
from tensorir.schedule.primitives.scan_epilogue import into_scan, scan_read
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import InPlace, Rewrite, accesses_to, own_nest, swap, written_index

Box = tuple[tuple[int, int], ...]
"""A box of cells: the first cell of each dimension, and the one after the last."""


@primitive("Where a stage runs", word="reverse-inline", moves=True)
def reverse_compute_inline(self: S, stage: Name) -> S:
    """Put an elementwise consumer's expression into the stage that writes what it reads (an epilogue); the consumer
    vanishes.

    That stage may also be a scan, also one over tiles: ``S[i]`` reads ``L[i // 64, i % 64]``.
    Of consumers that ``cut`` made of a concatenation or split, each goes into the stage that writes its part.
    """
    found = self._history._stage(stage)
    self._history._apply("reverse_compute_inline", (found,), {}, lambda p: _reverse_compute_inline(p, found))
    return self


def _reverse_compute_inline(program: Program, stage: Stage) -> Rewrite:
    several = not isinstance(stage.body, Store) and scan_read(program, stage) is None
    if several or stage.init is not None:
        raise _refuse("reverse-inline.pure", f"{stage.name} reduces or writes several buffers", stage)
    index = index_of(program)
    top = own_nest(index, stage, "reverse-inline", dealt=False)
    if len(find(top, Stage)) > 1:
        raise _refuse("reverse-inline.nest-shared", f"other stages live in the loops of {stage.name}", stage)
    if (scan := scan_read(program, stage)) is not None:
        is_made_before(program, stage, [scan], "reverse-inline")
        gone = {x.var.name: "its stage was inlined" for x in find(top, Loop)} | {stage.name: "it was inlined"}
        return Rewrite(swap(swap(program, top, None), scan, into_scan(stage, scan)), (), gone)
    buffer, writers = _read_by(program, stage)
    at = _places(stage, buffer)
    producer = _maker(program, index, stage, buffer, writers)
    is_made_before(program, stage, [producer, *writers], "reverse-inline")
    return _into(program, stage, top, buffer, producer, at)


def _read_by(program: Program, stage: Stage) -> tuple[Buffer, list[Stage]]:
    """(buffer that the consumer reads, stages that write it); raises ScheduleError if no plain stage writes one."""
    found = [(b, stages_writing(program.body, b)) for b in reads(stage.body) if b not in program.params]
    found = [(b, w) for b, w in found if w and all(isinstance(x.body, Store) and x.init is None for x in w)]
    if not found:
        raise _refuse("reverse-inline.producer", f"no plain stage writes what {stage.name} reads", stage,
                      hint="a reduction needs s.stage_out first: inline into its copy")  # fmt: skip
    return found[0]


def _places(stage: Stage, buffer: Buffer) -> list[tuple[Iter | None, int]]:
    """Per dimension of the buffer: (axis, offset) of the consumer's index; (None, offset) for a constant index. Raises
    ScheduleError for other indices.
    """
    axes, arith = {it.var: it for it in stage.iters}, Arith({})
    found: list[tuple[Iter | None, int]] = []
    loads = loads_of(stage, buffer)
    for of_one_dimension in zip(*(n.index for n in loads), strict=True):
        forms = [arith.linear(i) for i in of_one_dimension]
        terms = list(forms[0].terms.items())
        if not all(f.same(forms[0]) for f in forms) or not (not terms or (len(terms) == 1 and terms[0][1] == 1)):
            break
        axis = axes.get(terms[0][0]) if terms else None  # type: ignore[call-overload]
        if terms and (axis is None or any(axis is other for other, _ in found)):
            break
        found.append((axis, forms[0].constant))
    if len(found) < len(buffer.shape):
        raise _refuse(
            "reverse-inline.elementwise", f"{stage.name} does not read {buffer.name} element by element", stage
        )
    return found


def _maker(program: Program, index: Index, stage: Stage, buffer: Buffer, writers: list[Stage]) -> Stage:
    """The only stage that writes the elements read by the consumer; raises if there are others, or other readers."""
    if buffer in program.outputs:
        raise _refuse("reverse-inline.other-readers", f"{buffer.name} is used elsewhere as well", stage)
    read = _box(index, stage, loads_of(stage, buffer)[0].index, buffer)
    for other in stages_reading(program.body, buffer):
        if other is not stage and any(
            _meet(_box(index, s, at, buffer), read) for s, at in accesses_to(other, buffer) if s is other
        ):
            raise _refuse("reverse-inline.other-readers", f"{buffer.name} is used elsewhere as well", stage)
    makes = [w for w in writers if _meet(_box(index, w, written_index(w), buffer), read)]
    whole = tuple((0, n) for n in most_of(buffer))
    within = _inside(read, whole) and _in_step(stage, buffer)
    if len(makes) == 1 and within and (read == whole or _makes_only(index, makes[0], buffer, read)):
        return makes[0]
    if len(makes) > 1:
        names = " and ".join(w.name for w in makes)
        raise _refuse("reverse-inline.elementwise", f"{stage.name} reads what {names} make", stage,
                      hint="s.cut it, so that each part reads what one stage makes")  # fmt: skip
    hint = f"s.cut the loops of {makes[0].name} there, so that one nest makes that part" if makes else ""
    raise _refuse("reverse-inline.elementwise", f"{stage.name} covers only a part of {buffer.name}", stage, hint=hint)


def _makes_only(index: Index, stage: Stage, buffer: Buffer, read: Box) -> bool:
    """True if a stage writes no elements outside ``read``."""
    made = _box(index, stage, written_index(stage), buffer)
    return _inside(tuple((max(0, a), min(b, n)) for (a, b), n in zip(made, most_of(buffer), strict=True)), read)


def _in_step(stage: Stage, buffer: Buffer) -> bool:
    """True if each consumer axis has the same dim as the dimension it indexes: distinct launch-time extents may differ
    in value.
    """
    walked = [it for it, _ in _places(stage, buffer)]
    return all(
        same(it.extent, n) if it and dims_in(n, it.extent) else not dims_in(n)
        for it, n in zip(walked, buffer.shape, strict=True)
    )


def _box(index: Index, stage: Stage, at: tuple[Expr, ...], buffer: Buffer) -> Box:
    """Per dimension, (first, end) of the indices that a stage accesses in all its iterations; may exceed the array, the
    whole dimension if unknown.
    """
    loops = {x.var: (0, most(x.extent) - 1) for x in index.above(stage)}
    arith, box = Arith(loops), list[tuple[int, int]]()
    for i, n in zip(at, most_of(buffer), strict=True):
        side = side_of(in_loops(i, stage), arith, loops)
        known = side is not None and not side.first.terms
        box.append((side.first.constant, side.first.constant + side.extent) if side and known else (0, n))
    return tuple(box)


def _meet(a: Box, b: Box) -> bool:
    return all(max(x[0], y[0]) < min(x[1], y[1]) for x, y in zip(a, b, strict=True))


def _inside(a: Box, b: Box) -> bool:
    return all(y[0] <= x[0] and x[1] <= y[1] for x, y in zip(a, b, strict=True))


def _into(program: Program, stage: Stage, top: Stmt, buffer: Buffer, producer: Stage,
          places: list[tuple[Iter | None, int]]) -> Rewrite:  # fmt: skip
    """``program`` with the consumer's expression merged into the producer's store."""
    old, new = producer.body, stage.body
    assert isinstance(old, Store)
    assert isinstance(new, Store)
    at: dict[Var, Expr] = {
        it.var: binary("-", i, offset) if offset else i
        for (it, offset), i in zip(places, old.index, strict=True)
        if it is not None
    }
    for it, bind in zip(stage.iters, stage.binds, strict=True):
        if it.var not in at:
            at[it.var] = _only(stage, it, bind, top, buffer)
    store = Store(
        new.buffer, tuple(substitute(i, at) for i in new.index), _Put(buffer, old.value)(substitute(new.value, at))
    )
    gone = {x.var.name: "its stage was inlined" for x in find(top, Loop)}
    if all(s is stage for s in stages_reading(program.body, buffer)):
        gone[buffer.name] = "its reader was inlined into its producer"
    if stage.name != new.buffer.name:
        gone[stage.name] = "it was inlined"
    return Rewrite(swap(swap(program, top, None), producer, producer.replace(body=store)), (), gone)


def _only(stage: Stage, it: Iter, bind: Expr, top: Stmt, buffer: Buffer) -> Expr:
    """Constant value of a consumer axis that its read does not depend on, as in a stack; raises ScheduleError if it has
    several.
    """
    ones = {x.var: as_expr(0) for x in find(top, Loop) if most(x.extent) == 1}
    value = Arith({}).linear(substitute(bind, ones))
    if value.terms:
        raise _refuse(
            "reverse-inline.elementwise", f"{stage.name} reads {buffer.name} again along its axis {it.var.name}", stage
        )
    return as_expr(value.constant)


class _Put(InPlace):
    def __init__(self, buffer: Buffer, value: Expr) -> None:
        self.buffer, self.value = buffer, value

    def on_Load(self, n: Load) -> Expr:
        return self.put(self.value) if n.buffer is self.buffer else self.children(n)


def _refuse(code: str, message: str, stage: Stage, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(stage), hint=hint))
