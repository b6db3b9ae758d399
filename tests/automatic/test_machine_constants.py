"""Seconds, cycles, rates and counts of cores are stated in ``Machine`` and its records, not by rules."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tensorir

PACKAGE = Path(tensorir.__file__).parent
MODELS = ("automatic", "engines", "ops", "algorithms", "schedule", "tune/gpu_model.py")
"""What models kernels; seconds elsewhere are limits of processes and of timing."""
UNIT = re.compile(
    r"\b(seconds|cycles?|bandwidth|latency|clock|per second|per cycle|slowdown|rate|(?<!tensor )cores)\b", re.I
)
NAMED = re.compile(r"_S\b|CYCLES|_HZ\b|RATE|CLOCK|CORES|UNITS")
OF_SHAPES = re.compile(r"\b(least|maximum|exponent|share of|factor on|by which|candidate)\b", re.I)
COUNTED = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 1e3, 1e6, 1e-3}
"""Floats that count elements, bytes or operations, such as the two of a multiply-add, or convert units in texts."""


def constants(path: Path) -> Iterator[str]:
    """Constants of machines in a module: named ones, by name and by what is said of them, and literals of models."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for n, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(n, ast.Assign) and stated(n.value):
            said = ast.unparse(after) if isinstance(after, ast.Expr) else ""
            name = ast.unparse(n.targets[0])
            if NAMED.search(name) or (UNIT.search(said) and not OF_SHAPES.search(said)):
                yield name
    for f in (f for n in body for f in ast.walk(n) if isinstance(f, ast.FunctionDef)):
        if UNIT.search(ast.get_docstring(f) or "") or "seconds" in f.name:
            floats = (x.value for x in ast.walk(f) if isinstance(x, ast.Constant) and isinstance(x.value, float))
            yield from (f"{f.name}: {x}" for x in floats if x not in COUNTED)


def stated(value: ast.expr) -> bool:
    """True for numbers that are not derived from a record."""
    inside = [*ast.walk(value)]
    derived = any(isinstance(x, ast.Name) and x.id in ("CPU", "L1", "L2") for x in inside)
    return not derived and any(isinstance(x, ast.Constant) and type(x.value) in (int, float) for x in inside)


def found() -> dict[str, list[str]]:
    """{module: its constants of machines}"""
    files = [f for p in MODELS for f in ((PACKAGE / p).rglob("*.py") if (PACKAGE / p).is_dir() else [PACKAGE / p])]
    known = {str(f.relative_to(PACKAGE)): [*constants(f)] for f in sorted(files)}
    return {name: some for name, some in known.items() if some}


def test_no_rule_has_a_clock_a_rate_or_a_number_of_cores():
    assert found() == {}


if __name__ == "__main__":
    for name, some in found().items():
        print(name, *some, sep="\n  ")
