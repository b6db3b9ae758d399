"""tensorir devices: one line per device."""

from __future__ import annotations

from tensorir.cli import common
from tensorir.cli.common import put, put_json
from tensorir.runtime.device import devices


def run(as_json: bool) -> int:
    """Print the devices, each with the name to pass to --device; return the exit code, 3 if none is usable."""
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
