"""Imports point one way: each folder of the package may use the ones before it, never the ones after it."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from parsed import PACKAGE, tree

LAYERS = (
    "_package", "codec", "errors", "target", "prices", "gpu_devices", "machine", "ir", "arith", "expr", "nn", "intrin",
    "interp", "algorithms", "schedule", "lower", "codegen", "runtime", "check", "tune", "engines", "automatic",
    "export", "api", "ops", "cli",
)  # fmt: skip
FREE = ("__init__", "__main__", "show")
"""``tensorir/__init__.py`` names everything lazily, ``show`` may look at anything."""

READERS = ("check/emulate.py", "check/detection.py", "check/translation.py")
"""Modules that take CUDA text apart."""

MODULES = sorted(p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py"))


def layer(module: Path) -> str:
    """The layer of a file of the package, from its path."""
    return module.parts[0].removesuffix(".py")


def package_of(module: Path) -> list[str]:
    """The dotted package that a relative import in ``module`` starts from."""
    return ["tensorir", *module.parts[:-1]]


def imports(module: Path) -> Iterator[tuple[str, ast.AST, list[ast.AST]]]:
    """Every import in a file, inside functions too: dotted name, node, and the definitions around it."""

    def walk(node: ast.AST, above: list[ast.AST]) -> Iterator[tuple[str, ast.AST, list[ast.AST]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((a.name, child, above) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parts = package_of(module)
                    base = ".".join([*parts[: len(parts) - child.level + 1], *([child.module] if child.module else [])])
                if base == "tensorir":
                    yield from ((f"tensorir.{a.name}", child, above) for a in child.names)
                else:
                    yield base, child, above
            elif is_lazy_import(child):
                yield child.args[0].value, child, above  # type: ignore[attr-defined]
            inner = (
                [*above, child] if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else above
            )
            yield from walk(child, inner)

    yield from walk(tree(PACKAGE / module), [])


def is_lazy_import(node: ast.AST) -> bool:
    """``importlib.import_module("tensorir…")`` counts as an import as well, and ``Lazy("tensorir…", …)``."""
    return (
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "Lazy")
        and len(node.args) > 0
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    )


@functools.cache
def own_imports(module: Path) -> list[tuple[str, str, int, list[ast.AST]]]:
    """Imports of this package: layer, dotted name, line, and the definitions around."""
    out = []
    for name, node, above in imports(module):
        parts = name.split(".")
        if parts[0] == "tensorir" and len(parts) > 1:
            out.append((parts[1], name, node.lineno, above))  # type: ignore[attr-defined]
    return out


def test_every_module_belongs_to_a_layer():
    assert [str(m) for m in MODULES if layer(m) not in (*LAYERS, *FREE)] == []


def test_imports_only_lower_layers():
    wrong = [
        f"{module}:{line} imports {name}: {other} is above {layer(module)}"
        for module in MODULES if layer(module) in LAYERS
        for other, name, line, _ in own_imports(module)
        if other in LAYERS and LAYERS.index(other) > LAYERS.index(layer(module))
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_show_is_imported_by_cli_api_and_repr_hooks_only():
    wrong = []
    for module in MODULES:
        for other, name, line, above in own_imports(module):
            inside = [f.name for f in above if isinstance(f, ast.FunctionDef)]
            hook = inside and inside[-1].startswith("_repr_")
            if other == "show" and layer(module) not in ("show", "cli", "api", "__init__") and not hook:
                wrong.append(f"{module}:{line} imports {name} outside a _repr_ hook")
    assert not wrong, "\n".join(wrong)


def test_the_layers_are_the_folders():
    """Nothing in the list that is not in the package, so that the list cannot rot."""
    there = {layer(m) for m in MODULES}
    assert {"errors", "ir", "expr", "schedule", "lower", "codegen", "runtime", "check", "tune", "api"} <= there
    assert there - set(FREE) <= set(LAYERS)


def test_no_public_function_has_the_name_of_a_folder():
    import tensorir

    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert not folders & set(tensorir._WHERE)


def test_kernel_text_comes_from_schedules_alone():
    """Words of the dialects stand where text is printed, in the instructions, and where such text is read to be run."""
    words = re.compile(r"__kernel|__global__|\bfloat(?:4|8|16)\b|\basm\b")
    for module in MODULES:
        if module.parts[0] in ("codegen", "intrin") or str(module) in READERS:
            continue
        text = (PACKAGE / module).read_text(encoding="utf-8").replace('"float16"', "").replace("bfloat16", "")
        found = [w for w in words.findall(text) if w != "float16"]
        assert not found, f"{module}: {found}"
