"""CuPy: NumPy and CuPy arrays, by the loader that CUDA text has."""

from __future__ import annotations

from tensorir.export.destination import Destination, nothing_more

DESTINATION = Destination("cupy", ("cuda",), "`FOLDER.Program()` on NumPy and CuPy arrays", nothing_more,
                          sets=True)  # fmt: skip
