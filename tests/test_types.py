"""Editors see the signature of each public function: names are written out for them, and have types without Any.

``typed.py`` says what a type checker makes of calls; mypy reads it with the package.
"""

import ast
import inspect
from pathlib import Path

import pytest

import tensorir as tir

PACKAGE = Path(tir.__file__).parent


def shown(path: Path) -> dict[str, str]:
    """What a package names for type checkers: for each name the module that it is from."""
    blocks = [n for n in ast.parse(path.read_text(encoding="utf-8")).body
              if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]  # fmt: skip
    names = [(a, str(n.module)) for b in blocks for n in b.body if isinstance(n, ast.ImportFrom) for a in n.names]
    assert all(a.asname == a.name for a, _ in names), "without `as`, a name is not one of the package's own"
    return {a.name: module for a, module in names}


def test_type_checkers_are_shown_what_is_there():
    assert shown(PACKAGE / "__init__.py") == tir._WHERE | dict.fromkeys(tir._FOLDERS, "tensorir")
    assert shown(PACKAGE / "ops" / "__init__.py") == {o.name: o.module for o in tir.ops.OPERATORS.values()}


PUBLIC = {f"tir.{n}": getattr(tir, n) for n in tir._WHERE}
PUBLIC |= {f"tir.nn.{n}": getattr(tir.nn, n) for n in tir.nn.__all__}
PUBLIC |= {f"tir.ops.{n}": getattr(tir.ops, n) for n in tir.ops.OPERATORS}
FUNCTIONS = sorted(n for n, f in PUBLIC.items() if inspect.isfunction(f))


@pytest.mark.parametrize("module", ["tir", "tir.nn", "tir.ops"])
def test_every_public_function_has_types(module):
    names = [n for n in FUNCTIONS if n.rpartition(".")[0] == module]
    assert len(names) > 20
    for name in names:
        signature = inspect.signature(PUBLIC[name])
        assert signature.return_annotation not in (inspect.Signature.empty, "Any"), f"{name} returns anything"
        for p in signature.parameters.values():
            assert p.annotation not in (inspect.Parameter.empty, "Any"), f"{p.name} of {name} is anything"
