"""Facts of the package for its modules: version, time of loading, the display in notebooks, late imports."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

PACKAGE_VERSION = "0.1.0"
LOADED = time.time()
"""When this process began to import the package: what it keeps for others must not come from files changed since."""

html_of: Callable[[Any], str] = str
"""The HTML of a public object. The package sets it to ``show.cards.html_of``, which looks at everything."""


class Lazy:
    """A function of a module that is imported when it is first called.

    For what start-up must not pay for: the work that a command's options ask for, or what one kind of device needs. It
    is made outside of functions with both names written out, so that tests/test_circles.py sees what depends on what.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *args: object, **given: object) -> Any:
        return self.found()(*args, **given)

    def found(self) -> Callable[..., Any]:
        """The function itself."""
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return function


def reserve_standard_streams() -> None:
    """Open the null device under each of the numbers 0, 1, 2 that is closed (``>&-``, daemons).

    The next pipe or file would get that number: a child would find its own stdin there, and output of C libraries would
    end in a log.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
