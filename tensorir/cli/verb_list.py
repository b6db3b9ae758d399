"""tensorir list: operators, their parameters, templates and the size of their spaces."""

from __future__ import annotations

import inspect
from typing import Any

from tensorir import ops
from tensorir.cli import common
from tensorir.cli.common import no_such, put, put_json
from tensorir.target import preset


def run(op: str | None, space: bool, as_json: bool) -> int:
    """List the operators; with OP, only that one."""
    if op is not None and op not in ops.OPERATORS:
        raise no_such("operator", op, ops.OPERATORS)
    found = [_about(name, getattr(ops, name)()) for name in ([op] if op else ops.OPERATORS)]
    if as_json:
        put_json({"schema": 1, "operators": found})
        return common.OK
    for about in found:
        given = ", ".join(f"{k}={v!r}" for k, v in about["parameters"].items())
        put(f"{about['name']}({given})\n  {about['doc']}")
        for t in about["templates"]:
            put(
                f"  template {t['name']} for {', '.join(t['kinds'])} (here {t['target']}): "
                f"{t['configs']:,} configurations, {t['legal']:,} legal"
            )
            if space:
                put("\n".join(f"    {line}" for line in t["space"].splitlines()))
    return common.OK


def _about(name: str, work: Any) -> dict[str, Any]:
    function = getattr(ops, name)
    parameters = {k: p.default for k, p in inspect.signature(function).parameters.items()}
    templates = []
    for n, t in work.templates.items():
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
    return {
        "name": name,
        "doc": (inspect.getdoc(function) or "").split("\n")[0],
        "parameters": parameters,
        "templates": templates,
    }
