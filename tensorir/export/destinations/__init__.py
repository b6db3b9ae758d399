"""The table of destinations; ``tensorir.export.destination`` says what a row is."""

from __future__ import annotations

from tensorir.export.destination import Destination
from tensorir.export.destinations import cupy, pyopencl, source

DESTINATIONS: dict[str, Destination] = {
    row.name: row
    for row in (
        source.DESTINATION,
        pyopencl.DESTINATION,
        cupy.DESTINATION,
    )
}
"""Name to what it is, in the order in which messages and tables list them."""
