"""Every error code of the package, explained: ``tensorir explain CODE`` and the documentation's error index.

To add a code, add an Entry to the dict of its phase (``explain_declare``, ``explain_schedule``, ``explain_stages``,
``explain_warps``, ``explain_hopper``, ``explain_ahead``, ``explain_build``, ``explain_run``,
``explain_models``);
``tests/test_error_catalogue.py`` says which codes of the package have none, and runs the examples.
"""

from __future__ import annotations

import textwrap

from tensorir.cli.explain_ahead import AHEAD
from tensorir.cli.explain_build import BUILD
from tensorir.cli.explain_declare import DECLARE
from tensorir.cli.explain_entry import PRELUDE, Entry
from tensorir.cli.explain_hopper import HOPPER
from tensorir.cli.explain_models import MODELS
from tensorir.cli.explain_run import RUN
from tensorir.cli.explain_schedule import SCHEDULE
from tensorir.cli.explain_stages import STAGES
from tensorir.cli.explain_warps import WARPS
from tensorir.errors.spelling import nearest

__all__ = ["CATALOGUE", "PRELUDE", "Entry", "close_codes", "explain"]

CATALOGUE: dict[str, Entry] = {**DECLARE, **SCHEDULE, **STAGES, **WARPS, **HOPPER, **AHEAD, **BUILD, **RUN, **MODELS}
"""Code to Entry, by phase."""


def explain(code: str, width: int = 100) -> str:
    """The text of ``tensorir explain CODE``: what the code means, an example of it and the remedy."""
    entry = CATALOGUE[code]
    lines = [code, "", *textwrap.wrap(entry.meaning, width), "", "Refused:"]
    lines += textwrap.indent(entry.wrong, "    ").splitlines()
    lines += ["", "Instead:", *textwrap.indent(entry.right, "    ").splitlines()]
    if entry.runs:
        lines += ["", "Both start from:", *textwrap.indent(PRELUDE, "    ").splitlines()]
    return "\n".join(lines)


def close_codes(code: str, n: int = 5) -> list[str]:
    """Codes that look like ``code``, and those of the same phase, for a did-you-mean."""
    phase = code.split(".", 1)[0]
    near = nearest(code, CATALOGUE, n, cutoff=0.5)
    mine = [c for c in CATALOGUE if c.split(".", 1)[0] == phase]
    return list(dict.fromkeys([*near[: n - 2], *mine, *near]))[:n]
