"""tensorir report: reserved."""

from __future__ import annotations

import click

from tensorir.cli import common
from tensorir.cli.common import Stop


@click.command("report", context_settings={**common.SETTINGS, "ignore_unknown_options": True})
@click.argument("arguments", nargs=-1)
def command(arguments: tuple[str, ...]) -> int:
    """Make a page of a tuning log. Does not exist yet."""
    raise Stop(common.USAGE, "report does not exist yet; tensorir log stats counts, tensorir log best --json lists")
