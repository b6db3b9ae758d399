"""The text itself, to be compiled and launched by whatever the user has; the folder's loader runs it for the test."""

from __future__ import annotations

from tensorir.export.bodies import BODIES
from tensorir.export.destination import Destination, nothing_more

DESTINATION = Destination(
    "source",
    tuple(BODIES),
    "the readable source, its arguments and launches",
    nothing_more,
    sets=True,
    hosts=tuple(BODIES),
)
