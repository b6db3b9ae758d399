"""What notebooks display: every public object as static HTML, and the live cell of a tuning run."""

from __future__ import annotations

import sys
from typing import Any


def html_of(x: Any) -> str:
    """The HTML of a public object: no scripts, nothing from a network, readable in a saved file."""
    from tensorir.show.cards import card_of

    if live := sys.modules.get("tensorir.show.live"):
        live.give_way(x)
    return str(card_of(x))
