"""JAX: a function for ``jax.jit``, ``jax.vmap`` and ``jax.grad``, which XLA calls without Python in between."""

from __future__ import annotations

from tensorir.export.destination import Destination, Made, Shipment
from tensorir.export.doors import called_with, door

_USE = """\
### JAX

With jax 0.5 or newer, on processors:

    {imports}
    {results} = jax.jit({call})({names})

`{call}` takes arrays of JAX or NumPy, in this order or by name, of exactly the shapes and types below: others are
refused when the function is traced. `jax.vmap` makes one call of it, which runs the kernel for each item; inputs that
are not mapped are not copied. The result is a new array. Blocks of the kernel run on XLA's own threads. {gradient}
Arrays on a GPU have to be brought here (`jax.device_put`)."""


def _make(shipment: Shipment) -> Made:
    package = shipment.package
    about = called_with(shipment)
    imports = "from door_jax import call" if package is None else f"import jax, {package}"
    call = "call" if package is None else f"{package}.call"
    held = ", ".join(f"`{name}`" for name in shipment.manifest.get("backward", {}))
    gradient = f"`jax.grad` differentiates it by {held}." if held else "It has no gradient: see `jax.custom_vjp`."
    text = _USE.format(imports=imports, call=call, gradient=gradient, **about)
    return door(shipment, "jax", {"platforms": ["cpu"]}, text)


DESTINATION = Destination("jax", ("c",), "`FOLDER.call` inside `jax.jit` and `jax.vmap`", _make,
                          runner="door_jax", gradients=True)  # fmt: skip
