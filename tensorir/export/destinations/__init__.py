"""``DESTINATIONS``: table of all export destinations."""

from __future__ import annotations

from tensorir.export.destination import Destination
from tensorir.export.destinations import c, cupy, jax, onnxruntime, pyopencl, source, torch, tvm_ffi

DESTINATIONS: dict[str, Destination] = {
    row.name: row
    for row in (
        source.DESTINATION,
        pyopencl.DESTINATION,
        cupy.DESTINATION,
        c.DESTINATION,
        torch.DESTINATION,
        jax.DESTINATION,
        onnxruntime.DESTINATION,
        tvm_ffi.DESTINATION,
    )
}
"""Name to what it is, in the order in which messages and tables list them."""
