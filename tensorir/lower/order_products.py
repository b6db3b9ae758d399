"""Products and stores that end later are waited for where their results, or their sources, are wanted."""

from __future__ import annotations

from tensorir.ir.tree import CommitGroup, Fence, If, IntrinCall, Loop, Program, Seq, Stage, Stmt, WaitGroup
from tensorir.ir.visit import Rewriter, find, sequence
from tensorir.lower.form import bound_loops, each_nest, lowering, rewrap
from tensorir.target import Target

PRODUCTS, STORES = "products", "stores"


@lowering
def order_products(program: Program, target: Target) -> Program:
    """Around each nest of nothing but instructions of warpgroups: a fence before it, since it accumulates onto
    registers that threads have written, and after it a group that is waited for.

    Asynchronous stores of tiles are a group as well, which is waited for when the kernel ends, and where their source
    is written again (``insert_barriers``).

    gives: no other statement runs while products are in flight
    """
    return each_nest(program, _kernel)


def _kernel(nest: Stmt) -> Stmt:
    axes, body = bound_loops(nest)
    body = _Order()(body)
    stores = find(body, CommitGroup, lambda g: g.of == STORES)
    return rewrap(axes, sequence([body, WaitGroup(0, STORES)]) if stores else body)


class _Order(Rewriter):
    def on_Loop(self, n: Loop) -> Stmt:
        return _waited(n) if only_products(n) else _group(n) if _only_stores(n) else self.children(n)

    def on_Stage(self, n: Stage) -> Stmt:
        return _waited(n) if only_products(n) else _group(n) if _only_stores(n) else n

    def on_If(self, n: If) -> Stmt:
        return _group(n) if _only_stores(n) else self.children(n)

    def on_Seq(self, n: Seq) -> Stmt:
        return sequence([self(s) for s in n.stmts])


def only_products(s: Stmt) -> bool:
    """True when a statement does nothing but begin products of warpgroups."""
    calls = [x.body for x in find(s, Stage)]
    return bool(calls) and all(isinstance(c, IntrinCall) and c.intrin.later for c in calls)


def _only_stores(s: Stmt) -> bool:
    calls = [x.body for x in find(s, Stage)]
    return bool(calls) and all(isinstance(c, IntrinCall) and c.intrin.stores for c in calls)


def _group(s: Stmt) -> Stmt:
    return sequence([s, CommitGroup(STORES)])


def _waited(s: Stmt) -> Stmt:
    return sequence([Fence(PRODUCTS), s, CommitGroup(PRODUCTS), WaitGroup(0, PRODUCTS)])
