"""Pass: insert fences, commits and waits for asynchronous warpgroup products (wgmma) and TMA stores."""

from __future__ import annotations

from tensorir.ir.tree import CommitGroup, Fence, If, IntrinCall, Loop, Program, Seq, Stage, Stmt, WaitGroup
from tensorir.ir.visit import Rewriter, find, has, sequence
from tensorir.lower.form import bound_loops, each_nest, lowering, rewrap
from tensorir.target import Target

PRODUCTS, STORES = "products", "stores"


@lowering
def order_products(program: Program, target: Target) -> Program:
    """Order asynchronous operations: wgmma nest -> fence; nest; commit; wait. TMA store nest -> nest; commit.

    Stores are awaited at the kernel's end, and before their source is overwritten (``insert_barriers``).

    gives: no other statement runs while products are in flight
    """
    return each_nest(program, _kernel)


def _kernel(nest: Stmt) -> Stmt:
    if not has(nest, IntrinCall):
        return nest
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
    """True if ``s`` consists of warpgroup products (wgmma) only."""
    calls = [x.body for x in find(s, Stage)]
    return bool(calls) and all(isinstance(c, IntrinCall) and c.intrin.later for c in calls)


def _only_stores(s: Stmt) -> bool:
    calls = [x.body for x in find(s, Stage)]
    return bool(calls) and all(isinstance(c, IntrinCall) and c.intrin.stores for c in calls)


def _group(s: Stmt) -> Stmt:
    return sequence([s, CommitGroup(STORES)])


def _waited(s: Stmt) -> Stmt:
    return sequence([Fence(PRODUCTS), s, CommitGroup(PRODUCTS), WaitGroup(0, PRODUCTS)])
