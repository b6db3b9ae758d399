"""Destination "jax": a function for ``jax.jit``, ``jax.vmap`` and ``jax.grad``, called by XLA without Python."""

from __future__ import annotations

from dataclasses import replace

from tensorir.export.bodies import shipped_module
from tensorir.export.destination import Destination, Made, Shipment
from tensorir.export.doors import CODES, called_with, door

PLATFORMS = {"c": "cpu", "cuda": "cuda"}
"""JAX's platforms of programs, by language."""

_USE = """\
### JAX

With jax 0.5 or newer, on {where}:

    {imports}
    {results} = jax.jit({call})({names})

`{call}` takes arrays of JAX or NumPy, in this order or by name, of exactly the shapes and types below: others are
refused when the function is traced. `jax.vmap` makes one call of it, which runs the kernel for each item; inputs that
are not mapped are not copied. The result is a new array. {gradient}
{how}"""

_HOW = {
    "c": "On processors, blocks of the kernel run on XLA's own threads. Where there is no library for a machine nor\n"
    "a compiler, the folder's OpenCL program is called by pyopencl instead if it has one.",
    "cuda": "On GPUs, kernels are launched by cupy on the stream of the call. Not yet run on a GPU.",
}


def _make(shipment: Shipment) -> Made:
    package = shipment.package
    about = called_with(shipment)
    imports = "from door_jax import call" if package is None else f"import jax, {package}"
    call = "call" if package is None else f"{package}.call"
    held = ", ".join(f"`{name}`" for name in shipment.manifest.get("backward", {}))
    gradient = f"`jax.grad` differentiates it by {held}." if held else "It has no gradient: see `jax.custom_vjp`."
    platforms = {PLATFORMS[language]: how for language, how in _HOW.items() if language in shipment.parts}
    where = " and ".join({"cpu": "processors", "cuda": "GPUs (with cupy)"}[one] for one in platforms)
    text = _USE.format(
        imports=imports, call=call, gradient=gradient, where=where, how="\n".join(platforms.values()), **about
    )
    arguments = shipment.manifest["arguments"]
    stored = {p.get("passed_as", p["dtype"]) for p in arguments if p["role"] in ("input", "scalar", "output")}
    types = {dtype: CODES[dtype].xla for dtype in sorted(stored)}
    made = door(shipment, "jax", {"platforms": list(platforms), "types": types}, text)
    return replace(
        made, files={**made.files, **{f"{name}.py": shipped_module(name) for name in ("handler_jax", "pointers")}}
    )


DESTINATION = Destination("jax", ("c", "cuda"), "`FOLDER.call` inside `jax.jit` and `jax.vmap`", _make,
                          runner="door_jax", gradients=True, maps=True)  # fmt: skip
