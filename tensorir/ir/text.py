"""Prints programs as text for people, one line per loop or statement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from tensorir.ir import node
from tensorir.ir.layout import written
from tensorir.ir.marks import Partition, Remark, marks_of
from tensorir.ir.node import Node, fields_of
from tensorir.ir.once import nests, runs_once
from tensorir.ir.shared import children_first
from tensorir.ir.tree import (
    Alloc,
    Arrive,
    Await,
    Axis,
    Barrier,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    CommitGroup,
    Const,
    Expr,
    Fact,
    Fence,
    If,
    InitBarriers,
    IntrinCall,
    Iter,
    Kind,
    Layout,
    Let,
    Load,
    Loop,
    Pack,
    PadLoad,
    Pixels,
    Placed,
    Prefetch,
    Prefix,
    Program,
    Ramp,
    Reduce,
    Region,
    Role,
    Roles,
    Scope,
    Select,
    Seq,
    Shuffle,
    Stage,
    Stmt,
    Store,
    Unary,
    Update,
    Var,
    WaitGroup,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, reads, writes

_PREC = {
    "or": 1, "and": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, "|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8, "+": 9, "-": 9,
    "*": 10, "/": 10, "//": 10, "%": 10,
}  # fmt: skip
_UNARY = 11
_SYMBOL = {"sum": "+", "prod": "*"}


LONG_TEXT = 1000
"""Nodes of an expression that is written without names for its parts."""
_TALLEST_VALUE = 40  # levels of operations within one name's value
_NAMED_NODES = 8  # nodes of a subexpression that is worth a name


def show(e: Expr, outer: int = 0) -> str:
    """An expression on one line, parenthesised only where needed; what a long one has several times has a name:
    ``v1 * v1 with v1 = A[i] + …``.
    """
    if e.spread <= LONG_TEXT:
        return _show(e, outer)
    (short,), names = _named([e])
    text = _show(short, outer)
    return f"{text} with {', '.join(f'{v.name} = {_show(x)}' for v, x in names)}" if names else text


def _named(roots: Sequence[Expr]) -> tuple[list[Expr], list[tuple[Var, Expr]]]:
    """(expressions in terms of names for common subexpressions, [(name, value)]); unchanged if short."""
    if sum(e.spread for e in roots) <= LONG_TEXT:
        return list(roots), []
    order = children_first(roots, lambda n: [c for c in n.children() if isinstance(c, Expr)])
    readers = Counter(c for e in order for c in e.children())
    new: dict[Node, Expr] = {}
    size: dict[Node, int] = {}
    height: dict[Node, int] = {}
    names: list[tuple[Var, Expr]] = []
    for e in order:
        made = e.map(lambda c: new.get(c, c))
        size[e] = 1 + sum(size.get(c, 1) for c in e.children())
        height[e] = 1 + max((height.get(c, 0) for c in e.children()), default=0)
        if (readers[e] > 1 and size[e] > _NAMED_NODES) or height[e] > _TALLEST_VALUE:
            names.append((Var(f"v{len(names) + 1}", e.dtype), made))
            made, size[e], height[e] = names[-1][0], 1, 0
        new[e] = made
    return [new[r] for r in roots], names


def _show(e: Expr, outer: int = 0) -> str:
    match e:
        case Const():
            return _number(e)
        case Var():
            return e.name
        case Binary():
            if e.op in ("min", "max"):
                return f"{e.op}({_show(e.a)}, {_show(e.b)})"
            p = _PREC[e.op]
            text = f"{_show(e.a, p)} {e.op} {_show(e.b, p + 1)}"
            return f"({text})" if p < outer else text
        case Load():
            return f"{e.buffer.name}[{_list(e.index)}]"
        case PadLoad():
            return f"{e.buffer.name}.get({_list(e.index)}, fill={_show(e.fill)})"
        case Cast(a=inner, dtype="index"):
            return _show(inner, outer)
        case Cast():
            return f"{e.dtype}({_show(e.a)})"
        case Select():
            return f"where({_show(e.cond)}, {_show(e.a)}, {_show(e.b)})"
        case Call():
            return f"{e.fn}({_list(e.args)}{f', {e.dtype}' if e.fn == 'bitcast' else ''})"
        case Unary():
            return f"{'not ' if e.op == 'not' else e.op}{_show(e.a, _UNARY)}"
        case Ramp():
            return f"{_show(e.base)} .. +{e.lanes}"
        case Broadcast():
            return f"{_show(e.value)} x{e.lanes}"
        case Pack():
            return f"<{_list(e.items)}>"
        case Shuffle():
            return f"lanes {' '.join(map(str, e.picks))} of ({_show(e.a)}, {_show(e.b)})"
        case Reduce(part=Prefix() as part):
            told = "".join(f", {word}" for word in ("exclusive", "reverse") if getattr(part, word))
            return f"scan({e.combiner.name}, {_list(e.values)}, axis={part.at.name}{told})"
        case Reduce(part=Placed() as part):
            axes = ", ".join(a.name for a in e.axes)
            told = f"{_list(e.values)} at [{_list(part.index)}], axis={axes}, fill={_show(part.fill)}"
            return f"scatter({e.combiner.name}, {told})"
        case Reduce():
            return f"{e.combiner.name}({_list(e.values)}, axis={', '.join(a.name for a in e.axes)})"
    raise TypeError(type(e).__name__)


def _list(items: Iterable[Expr]) -> str:
    return ", ".join([_show(i) for i in items])


def said(e: int | Expr) -> int | str:
    """Return an extent as an int, or as text for ``ir.extents.value``."""
    if isinstance(e, Const):
        return int(e.value)
    return show(e) if isinstance(e, Expr) else e


def _number(e: Const) -> str:
    if isinstance(e.value, Fraction):
        return str(float(e.value))
    return str(float(e.value)) if e.dtype.startswith(("float", "bfloat")) else str(e.value)


def text(n: Node) -> str:
    """A program, statement or expression as text; TypeError for other nodes (``brief`` takes any)."""
    if isinstance(n, Program):
        names = [_signature(b) for b in n.params] + [f"{v.name}: {v.dtype}" for v in n.scalars]
        return "\n".join([f"def {n.name}({', '.join(names)}):", *_assumed(n), *_laid_out(n.body), *_nests(n)])
    if isinstance(n, Expr):
        return show(n)
    if isinstance(n, Stmt):
        return "\n".join(lines(n, 0))
    raise TypeError(type(n).__name__)


_BRIEF = 60  # nodes of an expression that is worth a line; shared parts count as often as they would be printed


def brief(n: Node) -> str:
    """A node in one line: signature of a program or buffer, first line of a statement, an expression of up to 60 parts
    (else its dtype), layout or promises as text; names of fields of other nodes.
    """
    match n:
        case Program():
            return f"{n.name}({', '.join(b.name for b in n.params)})"
        case Buffer():
            return _signature(n) + _layout(n)
        case Layout():
            return written(n)
        case Fact():
            return " and ".join(promises(n))
        case Seq():
            return f"of {len(n.stmts)} statements"
        case Stage():
            return n.name
        case Iter():
            return f"{n.var.name} in {show(n.extent)}, {n.axis.value}"
        case Expr():
            return show(n) if _small(n) else f"of dtype {n.dtype}, with more than {_BRIEF} parts"
        case Stmt():
            return lines(n.map(lambda c: Seq(()) if isinstance(c, Stmt) else c), 0)[0].strip()
    return fields_of(n)


node.brief_of = brief


def _small(e: Expr) -> bool:
    todo: list[Node] = [e]
    seen = 0
    while todo and seen <= _BRIEF:
        todo += todo.pop().children()
        seen += 1
    return not todo


def _nests(program: Program) -> list[str]:
    """Lines of all kernels, with a note on those that run ahead of time."""
    out: list[str] = []
    for nest, once in zip(nests(program), runs_once(program), strict=True):
        if find(nest, Loop, lambda x: bool(Partition.of(x).at)):
            nest = _Told(nest)(nest)
        first, *rest = lines(nest, 1)
        note = "" if not once else ", once" if "  # " in first else "  # once"
        out += [first + note, *rest]
    return out


def _assumed(program: Program) -> list[str]:
    """Line per argument with assumed facts."""
    return [f"  assume {' and '.join(promises(f))}" for f in program.facts]


def promises(f: Fact) -> list[str]:
    """Phrases for a Fact, one for alignment and one for the range; [] if it promises nothing."""
    out = [f"{f.buffer.name} aligned to {f.align} bytes"] if f.align else []
    if f.low is not None or f.high is not None:
        low = "" if f.low is None else f"{f.low} <= "
        out.append(f"{low}{f.buffer.name}{'' if f.high is None else f' < {f.high}'}")
    return out


def _laid_out(body: Stmt) -> list[str]:
    """Line per unallocated buffer with a layout, or with a scope not evident from its name."""
    placed = {a.buffer for a in find(body, Alloc)}
    used = dict.fromkeys([*writes(body), *reads(body)])
    said = {b: _scoped(b) + _layout(b) for b in used if b not in placed}
    return [f"  {b.name}{words}" for b, words in said.items() if words]


def _scoped(b: Buffer) -> str:
    """Scope of a buffer as text, " @shared"; "" if global, or evident from its name."""
    said = b.scope in (Scope.GLOBAL, Scope.AUTO) or (b.origin is None and b.scope.value in b.name)
    return "" if said else f" @{b.scope.value}"


def _signature(b: Buffer) -> str:
    scope = "" if b.scope is Scope.GLOBAL else f" @{b.scope.value}"
    return f"{b.name}: {b.dtype}[{_list(b.shape)}]{scope}"


def lines(s: Stmt, depth: int) -> list[str]:
    """Lines of a statement, indented by ``depth``."""
    pad = "  " * depth
    match s:
        case Seq():
            return [line for x in s.stmts for line in lines(x, depth)]
        case Loop():
            said = noted(s)
            note = f"  # {', '.join(said)}" if said else ""
            return [f"{pad}for {s.var.name} in {show(s.extent)}:{note}", *lines(s.body, depth + 1)]
        case Stage():
            return _stage(s, depth)
        case Store():
            sign = "+=" if s.adds else "="
            note = "  # later" * s.later + "  # atomic" * s.adds
            (*index, value), names = _named([*s.index, s.value])
            return [*_values(names, pad), f"{pad}{s.buffer.name}[{_list(index)}] {sign} {_show(value)}{note}"]
        case Prefetch():
            return [f"{pad}prefetch {s.buffer.name}[{_list(s.index)}]"]
        case Update():
            parts, names = _named([*s.index, *s.values])
            index, values = parts[: len(s.index)], parts[len(s.index) :]
            return [*_values(names, pad), pad + _update(s.replace(index=tuple(index), values=tuple(values)))]
        case If():
            return [f"{pad}if {show(s.cond)}:", *lines(s.then, depth + 1)]
        case Let():
            out, below = list[str](), s.body
            while isinstance(s, Let):  # there may be many, one inside the other
                (value,), names = _named([s.value])
                out += [*_values(names, pad), f"{pad}{s.var.name} = {_show(value)}"]
                s = below = s.body
            return out + lines(below, depth)
        case Alloc():
            return [f"{pad}{_signature(s.buffer)}{_layout(s.buffer)}", *lines(s.body, depth)]
        case Barrier():
            who = " of the cluster" if Scope.CLUSTER in s.scopes else ""
            turn = f" of turn {show(s.turn)}" if s.turn is not None else ""
            return [f"{pad}barrier{who}{f' of {s.threads} threads' if s.threads else ''}{turn}"]
        case CommitGroup():
            return [f"{pad}commit group{_of(s.of)}"]
        case WaitGroup():
            return [f"{pad}wait for groups{_of(s.of)} but {s.pending}"]
        case Fence():
            return [f"{pad}fence{_of(s.of)}"]
        case IntrinCall():
            signals = "".join(f" signals {_at(r.buffer, r.first)}" for r in s.signals)
            adds = "".join(f" adds if {show(e)}" for e in s.adds)
            return [f"{pad}{s.intrin.name}({', '.join(map(_region, s.operands))}){signals}{adds}"]
        case InitBarriers():
            return [f"{pad}{s.buffer.name} begin, of {s.arrivals} arrivals"]
        case Arrive():
            there = f" of block {show(s.rank)}" if s.rank is not None else ""
            return [f"{pad}arrive at {_at(s.buffer, s.index)}{there}{f' for {s.bytes} bytes' if s.bytes else ''}"]
        case Await():
            return [f"{pad}await {_at(s.buffer, s.index)} of parity {show(s.parity)}"]
        case Roles():
            return [line for r in s.roles for line in lines(r, depth)]
        case Role():
            said = [f"warpgroups from {s.first}: {s.extent}", f"{s.registers} registers"] + ["one thread"] * s.one
            said += [f"in {s.turns} turns"] if s.turns > 1 else []
            return [f"{pad}role {s.name}:  # {', '.join(said)}", *lines(s.body, depth + 1)]
    return [f"{pad}{type(s).__name__}"]


def _values(names: list[tuple[Var, Expr]], pad: str) -> list[str]:
    return [f"{pad}{v.name} = {_show(x)}" for v, x in names]


def noted(s: Loop) -> list[str]:
    """Comment words on a loop: its kind and marks."""
    said, remark = [s.kind.value] if s.kind is not Kind.SERIAL else [], Remark.of(s).why
    return said + [m.text(show) for m in marks_of(s) if not (remark and isinstance(m, Partition))]


def whole(s: Loop, threads: int) -> str:
    """Reason why lowering ignores a loop's cuts in blocks of ``threads`` threads; "" if it does not, or has none."""
    if not Partition.of(s).at or s.kind.level == "sequential" or (s.kind.level == "block" and threads == 1):
        return ""
    one = "each thread has an iteration" if s.kind.level == "thread" else f"a block of {threads} threads has one body"
    return f"no {Partition.of(s).text(show)}: {one}"


class _Told(Rewriter):
    """Rewriter: annotate loops with parts of the schedule that lowering will not carry out."""

    def __init__(self, nest: Stmt) -> None:
        found = {x.kind: x.extent for x in find(nest, Loop) if x.kind.level == "thread"}
        self.threads = math.prod(int(n.value) for n in found.values() if isinstance(n, Const))

    def on_Loop(self, n: Loop) -> Loop:
        n = self.children(n)
        return n.marked(Remark(why)) if (why := whole(n, self.threads)) else n


def _of(what: str) -> str:
    return "" if what == "copies" else f" of {what}"


def _at(b: Buffer, index: tuple[Expr, ...]) -> str:
    return f"{b.name}[{_list(index)}]"


def _layout(b: Buffer) -> str:
    return f" as {written(b.layout)}" if b.layout is not None else ""


def _region(r: Region) -> str:
    through = "" if r.pixels is None else _pixels(r.pixels)
    if len(r.first) != len(r.extents):  # flattened
        return f"{_at(r.buffer, r.first)} +{' x '.join(map(str, r.extents))}{through}"
    steps = [f" by {n}" if n > 1 else "" for n in r.steps] or [""] * len(r.extents)
    dims = (f"{show(f)} +{n}{by}" for f, n, by in zip(r.first, r.extents, steps, strict=True))
    return f"{r.buffer.name}[{', '.join(dims)}]{through}"


def _pixels(p: Pixels) -> str:
    """Text of an im2col copy's index steps."""
    sides = zip(p.shape, p.steps, p.lower, map(show, p.offset), strict=True)
    told = ", ".join(f"{n}{f' by {step}' if step > 1 else ''} from {low} + {at}" for n, step, low, at in sides)
    return f" of images of {told}"


def _stage(s: Stage, depth: int) -> list[str]:
    pad = "  " * depth
    binds = ", ".join(
        f"{i.var.name}{'+' if i.axis is Axis.REDUCE else ''}={show(b)}" for i, b in zip(s.iters, s.binds, strict=True)
    )
    where = f" where {' and '.join(show(g, 2) for g in s.guards)}" if s.guards else ""
    where += f" padded {' and '.join(show(g, 2) for g in s.padded)}" if s.padded else ""
    by = f"  # {s.intrin.name}" if s.intrin is not None else ""
    out = [f"{pad}stage {s.name}({binds}){where}:{by}"]
    if s.init is not None:
        first, *rest = lines(s.init, depth + 1)
        out += [f"{pad}  init {first.strip()}", *rest]
    return out + lines(s.body, depth + 1)


def _update(s: Update) -> str:
    at = f"[{_list(s.index)}]"
    symbol = _SYMBOL.get(s.combiner.name)
    if symbol:
        return f"{s.buffers[0].name}{at} {symbol}= {show(s.values[0])}{'  # atomic' * s.atomic}"
    names = ", ".join(b.name + at for b in s.buffers)
    return f"{names} = {s.combiner.name}({names}; {_list(s.values)})"
