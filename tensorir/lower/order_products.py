"""Products that end later are waited for where their results are wanted."""

from __future__ import annotations

from tensorir.ir.tree import CommitGroup, Fence, IntrinCall, Loop, Program, Stage, Stmt, WaitGroup
from tensorir.ir.visit import Rewriter, find, sequence
from tensorir.lower.form import each_nest, lowering
from tensorir.target import Target

PRODUCTS = "products"


@lowering
def order_products(program: Program, target: Target) -> Program:
    """Around each nest of nothing but instructions of warpgroups: a fence before it, since it goes on from registers
    that threads have written, and behind it a group that is waited for.

    gives: no other statement runs while products are under way
    """
    return each_nest(program, _Order())


class _Order(Rewriter):
    def on_Loop(self, n: Loop) -> Stmt:
        return _waited(n) if _only_products(n) else self.children(n)

    def on_Stage(self, n: Stage) -> Stmt:
        return _waited(n) if _only_products(n) else n


def _only_products(s: Stmt) -> bool:
    calls = [x.body for x in find(s, Stage)]
    return bool(calls) and all(isinstance(c, IntrinCall) and c.intrin.later for c in calls)


def _waited(s: Stmt) -> Stmt:
    return sequence([Fence(PRODUCTS), s, CommitGroup(PRODUCTS), WaitGroup(0, PRODUCTS)])
