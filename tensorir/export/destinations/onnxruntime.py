"""Destination "onnxruntime": a custom-operator library for ONNX Runtime, using the session's threads."""

from __future__ import annotations

from tensorir.export.bodies import shipped_module
from tensorir.export.destination import Destination, Made, Shipment
from tensorir.export.doors import program_of
from tensorir.export.onnx_operators import OnnxOperator, glue

_USE = """\
### ONNX Runtime

With onnxruntime 1.16 or newer, on processors (1.17 or newer: on the session's threads). A model calls the kernel by a
node of the domain `{domain}`:

    node = onnx.helper.make_node("{op}", [{given}], [{results}], domain="{domain}")

The session has to know the library before it reads the model:

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library("{library}")  # with the path of this folder
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

{scalars}Attributes of the node are not read, shapes and types are those below and others are refused by name. Where the
library is missing or is for another machine, `python build.py` makes it with the C compiler that is here and says where
it is; `door_onnxruntime.register(options)` does both. Operators of several folders can be in one session: each folder
has a domain of its own, since ONNX Runtime takes a domain once. A model runs without the package `onnx`."""


def _make(shipment: Shipment) -> Made:
    called = shipment.operator
    operator = OnnxOperator.of(called.name, called.name, program_of(shipment.manifest))
    entry = {"library": f"lib{called.name}.so", "domain": f"{called.namespace}.{called.name}", "op": called.name}
    text = glue(entry["domain"], [operator]).encode("utf-8")
    files = {"door_onnxruntime.c": text, "door_onnxruntime.py": shipped_module("door_onnxruntime")}
    numbers = any(p["role"] == "scalar" for p in operator.inputs)
    use = _USE.format(
        **entry,
        given=", ".join(f'"{p["name"]}"' for p in operator.inputs),
        results=", ".join(f'"{p["name"]}"' for p in operator.outputs),
        scalars="Numbers are inputs without dimensions, or of one element. " if numbers else "",
    )
    return Made(files, entry, use, ("door_onnxruntime.c",))


DESTINATION = Destination(
    "onnxruntime", ("c",), "a library of a custom operator, on the session's threads", _make, runner="door_onnxruntime"
)
