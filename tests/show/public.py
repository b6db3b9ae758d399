"""Which classes the public interface hands to a user: derived, so that none is forgotten."""

import ast
import enum
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import is_typeddict

import tensorir


@cache
def classes() -> dict[str, list[type]]:
    """Every class of the package by its bare name; a dict with given keys is none where the program runs."""
    found: dict[str, list[type]] = {}
    for info in pkgutil.walk_packages(tensorir.__path__, "tensorir."):
        if info.name.endswith("__main__") or ".shipped" in info.name:  # what exported folders are made of
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError as error:  # a framework's side of the package, where that framework is not
            if (error.name or "").startswith("tensorir"):
                raise
            continue
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == info.name and not is_typeddict(value):
                found.setdefault(name, []).append(value)
    return found


def named(annotation: object, module: str) -> Iterator[type]:
    """The package's classes in an annotation; of several of one name, that which the module means."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    source = inspect.getsource(sys.modules[module])
    for word in re.findall(r"[A-Za-z_]\w*", text):
        found = classes().get(word, [])
        if len(found) > 1:
            here = getattr(sys.modules[module], word, None)
            found = [c for c in found if c is here or re.search(rf"from {c.__module__} import .*\b{word}\b", source)]
        yield from found


def kept(init: object) -> Iterator[str]:
    """The annotations of what ``__init__`` keeps in public attributes."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
    of = {a.arg: ast.unparse(a.annotation) for a in ast.walk(tree) if isinstance(a, ast.arg) and a.annotation}

    def public(target: ast.AST) -> bool:
        return isinstance(target, ast.Attribute) and not target.attr.startswith("_")

    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and public(node.target):
            yield ast.unparse(node.annotation)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                for t, v in zip(target.elts, node.value.elts, strict=True) if both else [(target, node.value)]:
                    if public(t):
                        yield from (of[n.id] for n in ast.walk(v) if isinstance(n, ast.Name) and n.id in of)


def gives(cls: type) -> Iterator[type]:
    """What the public attributes, properties and methods of a class give."""
    for base in cls.__mro__:
        if not base.__module__.startswith("tensorir"):
            continue
        for name, annotation in inspect.get_annotations(base).items():
            if not name.startswith("_"):
                yield from named(annotation, base.__module__)
        for name, value in vars(base).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if name == "__init__" and inspect.getsourcefile(inspect.unwrap(function)) == inspect.getsourcefile(base):
                for annotation in kept(function):
                    yield from named(annotation, base.__module__)
            if inspect.isfunction(function) and (not name.startswith("_") or name in ("__call__", "__getitem__")):
                yield from named(function.__annotations__.get("return", ""), base.__module__)


@cache
def public() -> dict[type, str]:
    """The classes of ``tir.__all__``, what its functions return, and what those give in turn; each with where from.

    Words (enumerations) are left out.
    """
    todo: list[tuple[type, str]] = []
    every = [(n, getattr(tensorir, n)) for n in tensorir.__all__]
    every += [(f"ops.{n}", getattr(tensorir.ops, n)) for n in tensorir.ops.OPERATORS]
    for name, value in every:
        if inspect.isclass(value):
            todo.append((value, f"tir.{name}"))
        elif inspect.isfunction(value):
            todo += [(c, f"tir.{name}(…)") for c in named(value.__annotations__.get("return", ""), value.__module__)]
    seen: dict[type, str] = {}
    while todo:
        cls, via = todo.pop(0)
        if cls not in seen and not issubclass(cls, enum.Enum):
            seen[cls] = via
            todo += [(c, cls.__name__) for c in gives(cls)]
    return seen
