"""What modules ask about the package: its version, when it was loaded, and how notebooks show its objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PACKAGE_VERSION = "0.1.0"
LOADED = time.time()
"""When this process began to import the package: what it keeps for others must not come from files changed since."""

html_of: Callable[[Any], str] = str
"""The HTML of a public object. The package sets it to ``tensorir.show.html_of``, which looks at everything."""
