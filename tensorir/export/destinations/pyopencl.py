"""Destination "pyopencl": runs OpenCL text on NumPy and pyopencl arrays."""

from __future__ import annotations

from tensorir.export.destination import Destination, nothing_more

DESTINATION = Destination("pyopencl", ("opencl",), "`FOLDER.Program()` on NumPy and pyopencl arrays", nothing_more,
                          sets=True)  # fmt: skip
