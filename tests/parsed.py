"""Syntax trees of files, parsed once for all tests that look at the package's text."""

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tensorir"
FILES = {
    ".".join(["tensorir", *p.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__"): p
    for p in PACKAGE.rglob("*.py")
}
"""The package's files by the names of their modules."""


@functools.cache
def tree(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree, parents first."""
    return tuple(ast.walk(tree(file)))
