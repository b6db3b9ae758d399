"""tensorir explain: the long text of an error code."""

from __future__ import annotations

import click

from tensorir.cli import common
from tensorir.cli.common import put, usage


@click.command("explain", cls=common.Verb, context_settings=common.SETTINGS)
@click.argument("code")
def command(code: str) -> int:
    """Explain an error code, such as split.covers-extent."""
    from tensorir.errors.catalogue import close_codes, explain, find

    if find(code) is None:
        near = ", ".join(close_codes(code)[:5])
        raise usage(f"there is no error code {code!r:.60}", near)
    put(explain(code))
    return common.OK
