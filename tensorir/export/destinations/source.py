"""Destination "source": kernel text alone, for the user's own compiler and launcher; the self-test uses the folder's
loader.
"""

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
