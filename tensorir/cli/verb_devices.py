"""tensorir devices: one line per device."""

from __future__ import annotations

import click

from tensorir.cli import common
from tensorir.cli.common import json_option, put, put_json


@click.command("devices", cls=common.Verb, context_settings=common.SETTINGS)
@json_option
def command(as_json: bool) -> int:
    """List the devices with the name to pass to --device."""
    from tensorir.runtime.device import devices

    found = devices()
    if as_json:
        put_json({"schema": 1, "devices": [_json(d) for d in found]})
    else:
        for d in found:
            put(str(d) + (f"\n  try: {d.fix}" if d.fix and not d.usable else ""))
    return common.OK if any(d.usable for d in found) else common.NO_DEVICE


def _json(d: object) -> dict[str, object]:
    names = ("name", "language", "kind", "label", "platform", "driver", "usable", "reason", "simulator", "fix")
    return {name: getattr(d, name) for name in names}
