"""Destination "cupy": runs CUDA text on NumPy and CuPy arrays."""

from __future__ import annotations

from tensorir.export.destination import Destination, nothing_more

DESTINATION = Destination("cupy", ("cuda",), "`FOLDER.Program()` on NumPy and CuPy arrays", nothing_more,
                          sets=True)  # fmt: skip
