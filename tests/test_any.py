"""Types of public functions say what is meant: few of them have ``Any`` in a parameter or in what they return.

A name that a module gives to a type with ``Any`` in it (``Config = dict[str, Any]``) counts as that does, wherever it
is imported. What anything may be given to is ``object``, which a type checker lets nobody use unasked.
"""

import ast
from collections.abc import Iterator

from parsed import FILES, nodes, tree

MOST = {"": 239, "ops": 22, "engines": 17, "automatic": 7}
"""Public functions with Any, outside of the folders that are named and in these; to be made less, never more."""
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def words(node: ast.AST | None) -> set[str]:
    """The names in a type, those in quotes too."""
    found: set[str] = set()
    for n in ast.walk(node) if node is not None else ():
        if isinstance(n, ast.Name | ast.Attribute):
            found.add(n.id if isinstance(n, ast.Name) else n.attr)
        elif isinstance(n, ast.Constant) and isinstance(n.value, str):
            try:
                found |= words(ast.parse(n.value, mode="eval"))
            except SyntaxError:  # a word of a Literal
                continue
    return found


def named(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names of a module that may stand for types: what is assigned to a name, but for variables of types."""
    for n in tree.body:
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
            target, value = n.targets[0].id, n.value
        elif isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.value is not None:
            if words(n.annotation) & {"Any"} - {"TypeAlias"} or "TypeAlias" not in words(n.annotation):
                continue
            target, value = n.target.id, n.value
        else:
            continue
        if not isinstance(value, ast.Call):
            yield target, value


def aliases() -> dict[str, set[str]]:
    """For each module the names that stand for a type with Any."""
    found = {module: {"Any"} for module in FILES}
    types = {module: [(name, words(value)) for name, value in named(tree(p))] for module, p in FILES.items()}
    froms = {module: [n for n in nodes(p) if isinstance(n, ast.ImportFrom)] for module, p in FILES.items()}
    while True:
        before = sum(map(len, found.values()))
        for module in FILES:
            found[module] |= {name for name, said in types[module] if said & found[module]}
            for n in froms[module]:
                if n.module in found:
                    found[module] |= {a.asname or a.name for a in n.names if a.name in found[n.module]}
        if sum(map(len, found.values())) == before:
            return found


def public(body: list[ast.stmt]) -> Iterator[FUNCTIONS]:
    """The public functions of a module, and methods of its public classes."""
    for n in body:
        if isinstance(n, FUNCTIONS) and not n.name.startswith("_"):
            yield n
        elif (isinstance(n, ast.ClassDef) and not n.name.startswith("_")) or isinstance(n, ast.If | ast.Try | ast.With):
            yield from public(n.body)


def types_of(n: FUNCTIONS) -> set[str]:
    """The names in the types of a function's parameters and of what it returns."""
    a = n.args
    given = [x for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x is not None]
    return set().union(words(n.returns), *(words(x.annotation) for x in given))


def with_any() -> dict[str, list[str]]:
    """For each folder of ``MOST`` its public functions with Any."""
    known, found = aliases(), {folder: [] for folder in MOST}
    for module, path in FILES.items():
        folder = module.split(".")[1] if module.count(".") else ""
        for n in public(tree(path).body):
            if types_of(n) & known[module]:
                found[folder if folder in MOST else ""].append(f"{module}.{n.name}:{n.lineno}")
    return found


def test_public_functions_with_any_become_fewer():
    for folder, names in with_any().items():
        assert len(names) <= MOST[folder], (
            f"{len(names)} in {folder or 'the others'}, not {MOST[folder]}:\n" + "\n".join(names)
        )


SAMPLE = """
Config = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])
N = 3
def f(x: "Mapping[str, Any]"): ...
def _g(x: Any): ...
class C:
    def m(self, *a: Any): ...
"""


def test_any_is_seen_by_whatever_name():
    sample = ast.parse(SAMPLE)
    assert [name for name, value in named(sample) if "Any" in words(value)] == ["Config"]
    assert [n.name for n in public(sample.body) if "Any" in types_of(n)] == ["f", "m"]
