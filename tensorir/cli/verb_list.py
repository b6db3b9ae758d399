"""tensorir list: operators and their parameters; of one, templates and the size of their spaces."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorir import ops
from tensorir.cli import common
from tensorir.cli.common import no_such, put, put_json
from tensorir.ops.operators import OPERATORS
from tensorir.target import preset


def run(op: str | None, space: bool, as_json: bool) -> int:
    """Print the operators; with OP, that one and its templates (with ``space``, those of each). Returns the exit
    code.
    """
    if op is not None and op not in OPERATORS:
        raise no_such("operator", op, OPERATORS)
    planned = op is not None or space
    found = [{**_declared(n), **(_planned(n) if planned else {})} for n in ([op] if op else OPERATORS)]
    if as_json:
        put_json({"schema": 1, "operators": found})
        return common.OK
    for about in found:
        given = ", ".join(f"{k}={v!r}" for k, v in about["parameters"].items())
        put(f"{about['name']}({given})\n  {about['doc']}\n  {about['command']}")
        for t in about.get("templates", ()):
            put(
                f"  template {t['name']} for {', '.join(t['kinds'])} (here {t['target']}): "
                f"{t['configs']:,} configurations, {t['legal']:,} legal"
            )
            if space:
                put("\n".join(f"    {line}" for line in t["space"].splitlines()))
    if not planned:
        put("tensorir list OP: its templates, and how many configurations each has")
    return common.OK


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    """{name: syntax tree} of a module's top-level functions, parsed without importing it (saves 1 s)."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def _declared(name: str) -> dict[str, Any]:
    """Name, summary line, {parameter: default} and example command of an operator, as JSON fields."""
    made = _functions(OPERATORS[name].module)[name]
    given = zip(made.args.args, made.args.defaults, strict=True)
    return {
        "name": name,
        "doc": inspect.cleandoc(ast.get_docstring(made) or "").split("\n")[0],
        "parameters": {a.arg: ast.literal_eval(d) for a, d in given},
        "command": OPERATORS[name].command,
    }


def _planned(name: str) -> dict[str, Any]:
    """JSON field "templates" of an operator's default workload: names, kinds of targets and sizes of their spaces."""
    templates = []
    for n, t in getattr(ops, name)().templates.items():
        target = preset("cuda", "gpu", t.needs) if t.needs else preset("opencl", t.kinds[0])
        space = t.space_for(target)
        templates.append({
            "name": n,
            "kinds": list(t.kinds),
            "configs": space.size,
            "legal": len(space.legal),
            "space": space.explain(),
            "target": target.text,
        })  # fmt: skip
    return {"templates": templates}
