"""Destination "torch": a PyTorch operator, registered on import of the folder."""

from __future__ import annotations

from importlib.resources import files as resources

from tensorir.export.bodies import shipped_module
from tensorir.export.destination import Destination, Made, Shipment

_USE = """\
### PyTorch

    import sys; sys.path.insert(0, "{where}")
    import {package}  # registers the operator
    {results} = torch.ops.{namespace}.{name}({inputs})

Tensors go in and come out where they are; other strides are made contiguous, what else does not fit is refused by name.
It traces (`torch.compile(fullgraph=True)`, `torch.export`). {gradient}
"""


def make(shipment: Shipment) -> Made:
    """Additions for PyTorch: files that register the operator, its name, and the README's section."""
    names = ["door_torch", "torch_operator", "torch_kernel", "torch_gradients", "torch_body", "torch_c"]
    files = {f"{name}.py": shipped_module(name) for name in names}
    library = ("door_torch.c",) if "c" in shipment.parts else ()
    files |= {name: resources("tensorir.export.shipped").joinpath(name).read_bytes() for name in library}
    files["pointers.py"] = shipped_module("pointers")
    return Made(files, {"op": str(shipment.operator)}, _use(shipment), library)


def _use(shipment: Shipment) -> str:
    if shipment.package is None:
        return ""
    arguments = shipment.manifest["arguments"]
    held = ", ".join(f"`{name}`" for name in shipment.manifest.get("backward", {}))
    refused = "nput that requires a gradient is refused."
    gradient = f"It differentiates {held}; another i{refused}" if held else f"An i{refused}"
    return _USE.format(
        where="the folder that holds this one" if "." not in shipment.package else "the folder two above this one",
        package=shipment.package,
        namespace=shipment.operator.namespace,
        name=shipment.operator.name,
        inputs=", ".join(p["name"] for p in arguments if p["role"] in ("input", "scalar")),
        gradient=gradient,
        results=", ".join(p["name"] for p in arguments if p["role"] == "output"),
    )


DESTINATION = Destination(
    "torch",
    ("c", "cuda"),
    "`import FOLDER`, then `torch.ops.NS.NAME` on tensors",
    make,
    runner="door_torch",
    gradients=True,
)
