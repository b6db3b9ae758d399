"""Modules that need each other to be understood are few, and imports inside functions have a reason.

Every import counts here: those inside functions, and those that only type checkers make.
"""

import ast
import functools
from collections import Counter
from collections.abc import Iterator

import pytest
from parsed import FILES, PACKAGE, nodes, tree

LARGEST = 3
"""Modules of the largest circle of imports; to be made less, never more."""
DEFERRED = 24
"""Import statements inside functions that name modules of this package; to be made less, never more."""
LAZY = 38
"""Calls of ``Lazy``, the one way to say outside of functions that a module is imported when it is needed."""
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def named(module: str, node: ast.AST) -> set[str]:
    """The modules of the package that an import names, or a call of ``import_module`` or ``Lazy`` with a literal."""
    if isinstance(node, ast.Import):
        return {a.name for a in node.names} & FILES.keys()
    if isinstance(node, ast.Call) and called(node) in ("import_module", "Lazy"):
        return {a.value for a in node.args[:1] if isinstance(a, ast.Constant)} & FILES.keys()
    if not isinstance(node, ast.ImportFrom):
        return set()
    above = module.split(".") if FILES[module].name == "__init__.py" else module.split(".")[:-1]
    base = ".".join([*above[: len(above) - node.level + 1], node.module or ""]) if node.level else str(node.module)
    base = base.rstrip(".")
    found = {name if (name := f"{base}.{a.name}") in FILES else base for a in node.names}
    return found & FILES.keys()


@functools.cache
def imports(module: str) -> list[tuple[str, int, bool]]:
    """What a module imports: name, line, and whether that is inside a function."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            yield from ((name, getattr(child, "lineno", 0), inside) for name in named(module, child))
            yield from walk(child, inside or isinstance(child, FUNCTIONS))

    return [*walk(tree(FILES[module]), False)]


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module, the largest first."""
    reached = {m: reach(m, arrows) for m in arrows}
    found = {tuple(sorted({m, *(n for n in reached[m] if m in reached[n])})) for m in arrows}
    return sorted((list(c) for c in found if len(c) > 1), key=len, reverse=True)


def reach(start: str, arrows: dict[str, set[str]]) -> set[str]:
    """The modules that can be reached from ``start``."""
    seen: set[str] = set()
    left = [start]
    while left:
        new = arrows[left.pop()] - seen
        seen |= new
        left += new
    return seen


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    return {m: {name for name, _, _ in imports(m)} - {m} for m in FILES}


def test_circles_are_small(arrows):
    found = circles(arrows)
    largest = found[0] if found else []
    assert len(largest) <= LARGEST, f"{len(largest)} modules import each other: {', '.join(largest)}"
    assert len(largest) == LARGEST, f"the largest circle has {len(largest)} modules now: say so in LARGEST"


def test_imports_inside_functions_are_few():
    found = {(m, line) for m in FILES for _, line, inside in imports(m) if inside}
    by_folder = Counter(FILES[m].relative_to(PACKAGE).parts[0] for m, _ in found)
    assert len(found) <= DEFERRED, f"{len(found)} imports inside functions, more than before: {dict(by_folder)}"
    assert len(found) == DEFERRED, f"{len(found)} imports inside functions now: say so in DEFERRED"


def test_modules_that_are_imported_later_are_few():
    calls = [(m, n) for m in FILES for n in nodes(FILES[m]) if isinstance(n, ast.Call) and called(n) == "Lazy"]
    hidden = [f"{m}:{n.lineno}" for m, n in calls if not named(m, n)]
    assert not hidden, f"the module is no literal, or is not there: {hidden}"
    assert len(calls) == LAZY, f"{len(calls)} calls of Lazy now: say so in LAZY"


def test_circles_are_found():
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(arrows) == [["a", "b", "c"], ["d", "e"]]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import tensorir.errors", "tensorir.errors"),
        ("from tensorir.errors import Problem", "tensorir.errors"),
        ("from tensorir import errors", "tensorir.errors"),
        ("from . import build", "tensorir.api.build"),
        ("from .build import Executable", "tensorir.api.build"),
        ("importlib.import_module('tensorir.errors')", "tensorir.errors"),
        ("Lazy('tensorir.errors', 'refuse')", "tensorir.errors"),
    ],
)
def test_imports_are_found_in_every_form(text, name):
    node = ast.parse(text).body[0]
    assert named("tensorir.api.load", node.value if isinstance(node, ast.Expr) else node) == {name}
