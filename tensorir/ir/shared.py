"""Processing expressions as graphs: each shared subexpression is visited once, without deep recursion.

Recursive functions of an expression are memoized by ``once``: n nodes cost O(n) calls, whatever the number of paths.
They recurse ``STEP`` levels at a time, so tall expressions need no deep stack.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from tensorir.ir.node import STEP, Node

P = ParamSpec("P")
R = TypeVar("R")
N = TypeVar("N", bound=Node)


class Memo(dict[Any, Any]):
    """Results by node during an outermost call; level: recursion depth"""

    __slots__ = ("descending", "level")

    def __init__(self) -> None:
        super().__init__()
        self.descending, self.level = False, 0


def steps(n: Node, done: Callable[[Node], bool]) -> list[Node]:
    """Nodes of a tall expression to process first, bottom-up, at most ``2 * STEP`` levels apart; ``done`` ones are
    omitted.
    """
    stops: set[Node] = set()
    seen: set[Node] = set()
    order: list[Node] = []
    todo = [(n, False)]
    while todo:
        e, below = todo.pop()
        if below:
            order.append(e)
            continue
        if e in seen or done(e):
            continue
        seen.add(e)
        todo.append((e, True))
        for c in e.backwards():
            if c.INNER and c.height > STEP:
                todo.append((c, False))
                if c.height // STEP < e.height // STEP:
                    stops.add(c)
    return [e for e in order if e in stops]


def children_first(roots: Iterable[N], children: Callable[[N], Iterable[N]]) -> list[N]:
    """All reachable nodes once, in postorder."""
    order: list[N] = []
    seen: set[N] = set()
    for r in roots:
        todo = [(r, False)]
        while todo:
            n, below = todo.pop()
            if below:
                order.append(n)
            elif n not in seen:
                seen.add(n)
                todo.append((n, True))
                todo += [(c, False) for c in reversed(tuple(children(n)))]
    return order


def occurrences(root: Node, bits: int) -> dict[Node, int]:
    """Number of textual occurrences of each node that ``holds`` some of ``bits``: 1, or 2 for several."""

    def below(n: Node) -> list[Node]:
        return [c for c in n.children() if c.holds & bits]

    found: dict[Node, int] = {root: 1}
    for n in reversed(children_first([root], below)):
        for c in below(n):
            found[c] = min(2, found.get(c, 0) + found[n])
    return found


class _Raised:
    """Exception stored in place of a result."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _again(found: Any) -> Any:
    if type(found) is _Raised:
        raise found.error
    return found


def once(f: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a pure recursive function on expressions, ``f(e)`` or ``f(self, e)``: memoizes by node.

    Each distinct node is computed once per outermost call (and thread); an exception is stored and raised again.
    """
    here = threading.local()

    @functools.wraps(f)
    def run(*args: Any) -> Any:
        n = args[-1]
        if not n.INNER:
            return f(*args)  # type: ignore[call-arg]
        memo: Memo | None = getattr(here, "memo", None)
        if memo is None:
            here.memo = Memo()
            try:
                return run(*args)
            finally:
                here.memo = None
        key = args if len(args) > 1 else n
        if key in memo:
            return _again(memo[key])
        if memo.level >= STEP and not memo.descending and n.height > STEP:
            memo.descending = True
            for x in steps(n, lambda x: (*args[:-1], x) in memo if len(args) > 1 else x in memo):
                with suppress(Exception):  # it is raised again where the value is needed
                    run(*args[:-1], x)
            memo.descending = False
        memo.level += 1
        try:
            found = memo[key] = f(*args)  # type: ignore[call-arg]
        except Exception as e:
            memo[key] = _Raised(e)
            raise
        finally:
            memo.level -= 1
        return found

    return run  # type: ignore[return-value]
