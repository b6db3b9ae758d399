"""Finds the user's running expression in their source, so that errors can show it corrected."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable
from itertools import islice
from types import FrameType

from tensorir.errors import ours
from tensorir.errors.habits import habit

_MAX_REMEDY_CHARACTERS = 100
"""Characters of a remedy; a longer one is said in general."""


def asked() -> list[ast.AST]:
    """Syntax tree nodes of the user's running expression and all that enclose it, innermost first; [] if the source is
    unavailable or changed.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and ours(frame):
        frame = frame.f_back
    if frame is None:
        return []
    code = frame.f_code
    place = next(islice(code.co_positions(), frame.f_lasti // 2, None), None)
    text = "".join(linecache.getlines(code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return _path(tree, place) if place else []


def _path(tree: ast.AST, place: tuple[int | None, ...]) -> list[ast.AST]:
    level: list[list[ast.AST]] = [[tree]]
    while level:
        found = [p for p in level if _place(p[-1]) == place]
        if found:
            return _deepest(found[0], place)[::-1]
        level = [[*p, c] for p in level for c in ast.iter_child_nodes(p[-1]) if _holds(c, place)]
    return []


def _deepest(path: list[ast.AST], place: tuple[int | None, ...]) -> list[ast.AST]:
    """``path``, outermost node first, extended to the innermost node at ``place`` (a statement and its expression share
    it).
    """
    while same := [c for c in ast.iter_child_nodes(path[-1]) if _place(c) == place]:
        path = [*path, same[0]]
    return path


def _place(n: ast.AST) -> tuple[int | None, ...]:
    return tuple(getattr(n, x, None) for x in ("lineno", "end_lineno", "col_offset", "end_col_offset"))


def _holds(n: ast.AST, place: tuple[int | None, ...]) -> bool:
    first, last = getattr(n, "lineno", None), getattr(n, "end_lineno", None)
    return first is None or place[0] is None or (first <= place[0] <= (last or first))


def put_right(rule: Callable[[list[ast.AST]], str | None], general: str) -> str:
    """Result of ``rule`` on the user's running expression (``asked()``), corrected code; ``general`` if that is None or
    not one short line.
    """
    try:
        made = rule(asked())
    except RecursionError:  # of an expression that is nested too deep to be written again
        made = None
    return made if made and len(made) <= _MAX_REMEDY_CHARACTERS and "\n" not in made else general


def call_of(path: list[ast.AST]) -> tuple[str, list[str]]:
    """(dotted function name, argument texts) if the running expression is a call; ("", []) otherwise."""
    for n in path[:2]:
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name | ast.Attribute):
            return ast.unparse(n.func), [ast.unparse(a) for a in n.args]
    return "", []


def search_of(path: list[ast.AST]) -> str | None:
    """Corrected code for ``B in (A, B)`` on tensors: ``any(B is x for x in (A, B))``; for other expressions the
    correction of a truth test; None if no correction is known.
    """
    for n in path[:2]:
        match n:
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[among]):
                found = f"any({ast.unparse(n.left)} is x for x in {ast.unparse(among)})"
                return f"not {found}" if isinstance(n.ops[0], ast.NotIn) else found
    return truth_of(path)


def truth_of(path: list[ast.AST]) -> str | None:
    """Corrected code for a truth test on a symbolic value, with ``tir.where`` or ``tir.all_``; None if no correction is
    known.
    """
    name, given = call_of(path)
    if name in ("max", "min") and len(given) > 1:
        made = given[0]
        for g in given[1:]:
            made = f"tir.{name}imum({made}, {g})"
        return made
    if name in ("max", "min", "any", "all"):
        return f"tir.{name}(…, axis=k) over k = tir.reduce_axis(n)"
    if name == "bool" and given:
        return f'tir.cast({given[0]}, "bool")'
    for n, above in zip(path[:2], [*path[1:], None], strict=False):
        match n:
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Tuple() | ast.List() | ast.Set() as among]):
                each = [ast.unparse(ast.Compare(n.left, [ast.Eq()], [x])) for x in among.elts]
                return f"{'~' * isinstance(n.ops[0], ast.NotIn)}tir.any_({', '.join(each)})"
            case ast.UnaryOp(op=ast.Not(), operand=ast.Compare() | ast.BoolOp()):
                return f"~({ast.unparse(n.operand)})"
            case ast.UnaryOp(op=ast.Not()):
                return f"tir.equal({ast.unparse(n.operand)}, 0)"
            case ast.BoolOp():
                word = "tir.all_" if isinstance(n.op, ast.And) else "tir.any_"
                return f"{word}({', '.join(map(ast.unparse, n.values))})"
            case ast.Compare() if len(n.ops) > 1:
                sides = [n.left, *n.comparators]
                pairs = [ast.Compare(a, [op], [b]) for a, op, b in zip(sides, n.ops, sides[1:], strict=False)]
                return f"tir.all_({', '.join(map(ast.unparse, pairs))})"
        match above:
            case ast.IfExp(test=test) if test is n:
                return f"tir.where({', '.join(map(ast.unparse, (test, above.body, above.orelse)))})"
            case ast.If(test=test) | ast.While(test=test) if test is n:
                return f"tir.where({ast.unparse(test)}, value if it holds, other value)"
    return None


def number_of(path: list[ast.AST]) -> str | None:
    """Corrected code for a conversion of a symbolic value to a number (int(), math.exp(), range(), list index); None if
    no correction is known.
    """
    name, given = call_of(path)
    first = ", ".join(given)
    if name in ("int", "float"):
        return f'tir.cast({first}, "{"int32" if name == "int" else "float32"}")'
    if name == "range":
        return "k = tir.reduce_axis(n) and tir.sum(…, axis=k, where=k < bound): loops have constant extents"
    if name.startswith("math."):
        return (habit("math", name[5:]) or f"tir.{name[5:]}(x)").replace("(x)", f"({first})")
    if name.split(".")[0] in ("np", "numpy"):
        return "the tensor as it is: it has values once f = tir.Schedule(C).build() has run, f(a, b)"
    table = next((n for n in path[:2] if isinstance(n, ast.Subscript)), None)
    if table is not None:
        return f"c = tir.constant({ast.unparse(table.value)}) outside, c[{ast.unparse(table.slice)}] here"
    return None


def item_of(path: list[ast.AST]) -> str | None:
    """Correction of ``A[i][j]``: ``A[i, j]``; None for other expressions."""
    for n in path[:2]:
        if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Subscript):
            inner = item_of([n.value]) or ast.unparse(n.value)
            return f"{inner[:-1]}, {ast.unparse(n.slice)}]"
    return None


def whole_of(path: list[ast.AST]) -> str | None:
    """Correction of ``A[i / 2]``: ``A[i // 2]``; None for other expressions. Changes ``/`` to ``//`` in the node."""
    for n in path[:1]:
        if isinstance(n, ast.Subscript):
            slices = [m for m in ast.walk(n.slice) if isinstance(m, ast.BinOp) and isinstance(m.op, ast.Div)]
            for m in slices:
                m.op = ast.FloorDiv()
            return ast.unparse(n) if slices else None
    return None


_OVER = ("sum", "max", "min", "any", "all")
"""Functions of Python's that go through what they are given."""


def items_of(path: list[ast.AST]) -> str | None:
    """Correction of Python's ``sum(x)`` on an element: a reduction over an axis; None for other expressions."""
    name, given = call_of(path)
    return f"tir.{name}({given[0]}, axis=k) over k = tir.reduce_axis(n)" if name in _OVER and len(given) == 1 else None


def rows_of(path: list[ast.AST]) -> str | None:
    """Correction of Python's ``sum(A)`` on a tensor: ``A.sum(axis=0)``; None for other expressions."""
    name, given = call_of(path)
    return f"{given[0]}.{name}(axis=0)" if name in _OVER and len(given) == 1 else None
