"""Scans, and non-commutative reductions, within a vector: log2(lanes) steps, each combining lanes with those before.

Algorithm: Hillis and Steele, "Data parallel algorithms", Communications of the ACM 29, 1986. It keeps the order of the
terms, so the combiner only needs to be associative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorir.ir.build import as_expr
from tensorir.ir.tree import Alloc, Broadcast, Buffer, Expr, Let, Load, Ramp, Scope, Seq, Shuffle, Stmt, Store, Var
from tensorir.ir.visit import Rewriter, find, let_all, sequence, substitute, uses


@dataclass(frozen=True, eq=False)
class LaneScan:
    """The parts of a scan loop's body, as ``expand_updates`` leaves it.

    olds, news: variables bound to the states and to the next terms;  carries, values: loads of the states, the terms
    updates: stores of the new states;  stores: of results, which read the states (from before the term if
             ``exclusive``); none for a reduction
    """

    olds: tuple[Var, ...]
    carries: tuple[Load, ...]
    news: tuple[Var, ...]
    values: tuple[Expr, ...]
    updates: tuple[Store, ...]
    stores: tuple[Store, ...]
    exclusive: bool

    @property
    def joined(self) -> tuple[Expr, ...]:
        """Expressions of the states after combining with the term."""
        return tuple(s.value for s in self.updates)


def scan_of(body: Stmt, var: Var) -> LaneScan | None:
    """Match a loop body over ``var`` as a scan; None if it is none. Stored states that are never read are dropped."""
    while isinstance(body, Alloc) and not find(body.body, Load, _of([Load(body.buffer, (), body.buffer.dtype)])):
        body = _Without(body.buffer)(body.body)
    parts = body.stmts if isinstance(body, Seq) else (body,)
    lets = [n for n, s in enumerate(parts) if isinstance(s, Let)]
    if len(lets) != 1 or lets[0] not in (0, len(parts) - 1):
        return None
    at, names = parts[lets[0]], list[Let]()
    while isinstance(at, Let):
        names.append(at)
        at = at.body
    updates = at.stmts if isinstance(at, Seq) else (at,)
    stores = [s for n, s in enumerate(parts) if n != lets[0]]
    count = len(names) // 2
    olds, news = names[:count], names[count:]
    carries = tuple(x.value for x in olds if isinstance(x.value, Load) and not uses(x.value, {var}))
    if len(olds) != len(news) or not len(carries) == len(updates) == count:
        return None
    written = tuple(s for s in (*updates, *stores) if isinstance(s, Store) and not s.adds)
    if len(written) != count + len(stores) or any(find(x.value, Load, _of(carries)) for x in news):
        return None
    if any(s.buffer is not c.buffer or uses(s.value, {var}) for s, c in zip(written, carries, strict=False)):
        return None
    return LaneScan(tuple(x.var for x in olds), carries, tuple(x.var for x in news), tuple(x.value for x in news),
                    written[:count], written[count:], lets[0] > 0)  # fmt: skip


def _of(carries: Sequence[Load]) -> Callable[[Load], bool]:
    return lambda x: any(x.buffer is c.buffer for c in carries)


class _Without(Rewriter):
    """Rewriter: remove stores to a buffer."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    def on_Store(self, n: Store) -> Stmt:
        return sequence([]) if n.buffer is self.buffer else n

    def on_Seq(self, n: Seq) -> Stmt:
        return sequence([self(s) for s in n.stmts])


class _Read(Rewriter):
    """Rewriter: results read the states of their lanes."""

    def __init__(self, states: dict[Buffer, Buffer], lane: Var) -> None:
        self.states, self.lane = states, lane

    def on_Load(self, n: Load) -> Expr:
        if n.buffer not in self.states:
            return self.children(n)
        return Load(self.states[n.buffer], (self.lane,), n.dtype)


class InLanes:
    """Builds vector statements for a scan of ``lanes`` terms.

    wide: an expression of ``var`` in all lanes, a vector;  store: a store in all lanes
    """

    def __init__(self, scan: LaneScan, var: Var, lanes: int, wide: Callable[[Expr], Expr],
                 store: Callable[[Store], Stmt]) -> None:  # fmt: skip
        self.scan, self.var, self.lanes, self.wide, self.store = scan, var, lanes, wide, store
        self.like = [c.buffer for c in scan.carries]
        self.terms, self.before, self.after = (list(map(self._vector(x), self.like)) for x in ("lanes", "before", "by"))
        self.states: dict[Buffer, Buffer] = {}

    def result(self) -> Stmt:
        """All statements of the vectorized scan."""
        made = [self._kept(b, self.wide(v)) for b, v in zip(self.terms, self.scan.values, strict=True)]
        step = 1
        while step < self.lanes:
            made += self._step(step)
            step *= 2
        states = self._made_states()
        results = [self.store(s.replace(value=_Read(self.states, self.var)(s.value))) for s in self.scan.stores]
        last: Stmt = sequence(list(self.scan.updates))
        for new, x in reversed(list(zip(self.scan.news, self.terms, strict=True))):
            last = Let(new, self._shuffle(x, x, (self.lanes - 1,)), last)
        carried = zip(self.scan.olds, self.scan.carries, strict=True)
        out = sequence([*made, let_all(carried, sequence([*states, *results, last]))])
        for b in (*self.states.values(), *self.after, *self.before, *self.terms):
            out = Alloc(b, out)
        return out

    def _step(self, step: int) -> list[Stmt]:
        """Combine each lane with the lane ``step`` before it, if there is one."""
        up = tuple(max(k - step, 0) for k in range(self.lanes))
        own = tuple(k if k < step else self.lanes + k for k in range(self.lanes))
        olds, news = (zip(v, map(self._lane, bs), strict=True)
                      for v, bs in ((self.scan.olds, self.before), (self.scan.news, self.terms)))  # fmt: skip
        both: dict[Var, Expr] = {**dict(olds), **dict(news)}
        moved = [self._kept(b, self._shuffle(x, x, up)) for b, x in zip(self.before, self.terms, strict=True)]
        joined = [self._kept(b, self.wide(substitute(r, both)))
                  for b, r in zip(self.after, self.scan.joined, strict=True)]  # fmt: skip
        if not self.scan.stores:  # of a total: the last lane reads no lane that has none so far before it
            ended = [self._kept(x, self._whole(b)) for x, b in zip(self.terms, self.after, strict=True)]
            return [*moved, *joined, *ended]
        ended = [self._kept(x, self._shuffle(x, b, own)) for x, b in zip(self.terms, self.after, strict=True)]
        return [*moved, *joined, *ended]

    def _made_states(self) -> list[Stmt]:
        """Stores of each scan state at every vector lane, for stages that read it: after the lane's term (inclusive
        scan) or before it (exclusive).
        """
        news: dict[Var, Expr] = dict(zip(self.scan.news, map(self._lane, self.terms), strict=True))
        made: list[Stmt] = []
        for old, carry, joined in zip(self.scan.olds, self.like, self.scan.joined, strict=True):
            if any(x.buffer is carry for s in self.scan.stores for x in find(s.value, Load)):
                b = self.states[carry] = self._vector("states")(carry)
                made.append(self._kept(b, self.wide(substitute(joined, news))))
                if self.scan.exclusive:
                    picks = (0, *range(self.lanes, 2 * self.lanes - 1))
                    first = Broadcast(old, self.lanes, b.dtype)
                    made.append(self._kept(b, Shuffle(first, self._whole(b), picks, b.dtype)))
        return made

    def _vector(self, what: str) -> Callable[[Buffer], Buffer]:
        shape = (as_expr(self.lanes),)
        return lambda like: Buffer(f"{like.name}_{what}", shape, like.dtype, Scope.REGISTER)

    def _kept(self, b: Buffer, value: Expr) -> Stmt:
        return Store(b, self._whole(b).index, value)

    def _shuffle(self, a: Buffer, b: Buffer, picks: tuple[int, ...]) -> Shuffle:
        return Shuffle(self._whole(a), self._whole(b), picks, a.dtype)

    def _whole(self, b: Buffer) -> Load:
        return Load(b, (Ramp(as_expr(0), self.lanes, "index"),), b.dtype)

    def _lane(self, b: Buffer) -> Load:
        return Load(b, (self.var,), b.dtype)
