"""Start of ``tensorir tune``: launches the measuring process before the slow imports."""

from __future__ import annotations

from tensorir._package import Lazy
from tensorir.cli.common import process_start
from tensorir.tune.process import start_early

_tune = Lazy("tensorir.cli.verb_tune", "run")


def tune(device: str | None, dry_run: bool, **given: object) -> int:
    """Run ``tensorir tune``; return the exit code. The measuring process starts before the slow imports, except for
    several devices and dry runs.
    """
    began = process_start()
    if not dry_run and "," not in (device or ""):
        start_early("tensorir.api.worker")
    code: int = _tune(began, device=device, dry_run=dry_run, **given)
    return code
