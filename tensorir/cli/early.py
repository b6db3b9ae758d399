"""tensorir tune, before it is imported: the measuring process starts first."""

from __future__ import annotations

from tensorir._package import Lazy
from tensorir.cli.common import process_start
from tensorir.tune.process import start_early

_tune = Lazy("tensorir.cli.verb_tune", "run")


def tune(device: str | None, dry_run: bool, **given: object) -> int:
    """Start the process that measures first: its imports take as long as those of this one."""
    began = process_start()
    if not dry_run and "," not in (device or ""):
        start_early("tensorir.api.worker")
    code: int = _tune(began, device=device, dry_run=dry_run, **given)
    return code
