"""Destination "tvm_ffi": a TVM-FFI module with one function on DLPack tensors."""

from __future__ import annotations

from tensorir.export.destination import Destination, Made, Shipment
from tensorir.export.doors import called_with, door

_USE = """\
### TVM-FFI

    import tvm_ffi
    module = tvm_ffi.load_module("{library}")  # the absolute path of it
    module.{function}({names}, {results})

Outputs are the last arguments, arrays of yours (destination passing, as compiled functions of TVM have it). Tensors of
NumPy, PyTorch and whatever else gives DLPack are taken where they are, {where}, row-major and contiguous. Anything
else is refused by name: TypeError for types, ValueError for shapes, strides, devices and outputs that overlap another
argument, IndexError for indices. Where `{library}` is missing, or was made for another machine, `python build.py` makes
it and prints where it is."""


_WHERE = {
    False: "on the CPU",
    True: "on a GPU, by kernels on TVM-FFI's\ncurrent stream that are not waited for (not yet run on a GPU), or on the "
    "CPU, by copies; indices on the CPU alone",
}
"""Kernels for GPUs or not -> where the folder runs."""


def _make(shipment: Shipment) -> Made:
    name = shipment.operator.name
    about = {"library": f"lib{name}.so", "function": name}
    on_gpus = shipment.parts["c"].source.language == "cuda"
    return door(shipment, "tvm_ffi", about, _USE.format(where=_WHERE[on_gpus], **about, **called_with(shipment)))


DESTINATION = Destination(
    "tvm_ffi", ("c",), "a library for `tvm_ffi.load_module`, outputs as last arguments", _make, runner="door_tvm_ffi",
    hosts=("opencl", "cuda"),
)  # fmt: skip
