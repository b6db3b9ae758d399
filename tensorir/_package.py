"""Package-wide basics: version, import time, notebook display hook, lazy imports, standard streams."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

PACKAGE_VERSION = "0.1.0"
LOADED = time.time()
"""Time (seconds since the epoch) when this process began to import the package. Source files modified later differ from
the loaded code, so that nothing is stored in shared caches.
"""

html_of: Callable[[Any], str] = str
"""Function public object -> HTML for notebooks; the package sets it to ``show.cards.html_of``, which may import
anything.
"""


class Lazy:
    """Callable ``Lazy(module, name)`` that imports the function on its first call and forwards to it.

    Keeps start-up fast: for code that only some options or kinds of devices need. Created at module level with both
    names written out, so that tests/test_circles.py sees the dependency.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *args: object, **given: object) -> Any:
        return self.found()(*args, **given)

    def found(self) -> Callable[..., Any]:
        """Import the module and return its function."""
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return function


def reserve_standard_streams() -> None:
    """Open the null device on each closed file descriptor among 0, 1, 2 (``>&-``, daemons).

    Otherwise the next pipe or file would get that number: a child would find its own stdin there, and output of C
    libraries would end in a log.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
