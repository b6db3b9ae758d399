"""PyOpenCL: NumPy and pyopencl arrays, by the loader that OpenCL text has."""

from __future__ import annotations

from tensorir.export.destination import Destination, nothing_more

DESTINATION = Destination("pyopencl", ("opencl",), "`FOLDER.Program()` on NumPy and pyopencl arrays", nothing_more,
                          sets=True)  # fmt: skip
