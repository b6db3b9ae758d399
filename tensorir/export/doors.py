"""Framework bindings of an exported folder: a Python file each; for C programs also a C file and an argument table."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, NamedTuple

from tensorir.export.bodies import shipped_module
from tensorir.export.c_extents import coded, least, open_extents
from tensorir.export.destination import Made, Shipment
from tensorir.ir.dtypes import DTYPES, WIDENED

PARTIAL_INDEX_LIMIT = 2**63 - 1
"""The limit in the table of an argument of which only parts are indices: the function itself looks at those."""


class Codes(NamedTuple):
    """A dtype's codes in DLPack, XLA (PrimitiveType) and ONNX (TensorProto.DataType)."""

    dl: int
    xla: int
    onnx: int


CODES = {
    "bool": Codes(6, 1, 9),
    "int8": Codes(0, 2, 3), "int16": Codes(0, 3, 5), "int32": Codes(0, 4, 6), "int64": Codes(0, 5, 7),
    "uint8": Codes(1, 6, 2), "uint16": Codes(1, 7, 4), "uint32": Codes(1, 8, 12), "uint64": Codes(1, 9, 13),
    "float16": Codes(2, 10, 10), "float32": Codes(2, 11, 1), "float64": Codes(2, 12, 11),
    "bfloat16": Codes(4, 16, 16), "float8_e4m3": Codes(10, 20, 17), "float8_e5m2": Codes(12, 19, 19),
}  # fmt: skip


def program_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Manifest entry of the folder's C program: the folder's own entries overridden by those of its C body."""
    return manifest if manifest["language"] == "c" else {**manifest, **manifest["bodies"]["c"]}


def door(shipment: Shipment, name: str, entry: Mapping[str, Any], use: str) -> Made:
    """Additions for the framework binding ``name``: ``door_NAME.py`` and, if there is a C program, ``door_NAME.c`` with
    its argument table, to be compiled into the folder's library.

    entry: manifest entry, to which the C function's name is added;  use: README text, as in ``Made``
    """
    called = shipment.operator.name
    if "c" not in shipment.parts:
        return Made({f"door_{name}.py": shipped_module(f"door_{name}")}, entry, use)
    text = table(program_of(shipment.manifest), called).encode("utf-8")
    units = {file: _shipped(file) for file in (f"door_{name}.c", "door.h")} | {"door_table.h": text}
    files = {f"door_{name}.py": shipped_module(f"door_{name}"), **units}
    return Made(files, {"symbol": symbols(called)[name], **entry}, use, tuple(units))


def called_with(shipment: Shipment) -> dict[str, str]:
    """{"names": inputs, "results": outputs}, comma-separated, for Python examples in the README."""
    arguments = shipment.manifest["arguments"]
    given = ", ".join(p["name"] for p in arguments if p["role"] in ("input", "scalar"))
    return {"names": given, "results": ", ".join(p["name"] for p in arguments if p["role"] == "output")}


def _shipped(file: str) -> bytes:
    return resources("tensorir.export.shipped").joinpath(file).read_bytes()


def table(program: Mapping[str, Any], name: str) -> str:
    """Text of ``door_table.h``: the C table of a program's arguments that framework bindings (``door_NAME.c``) read.

    program: manifest entry of the C program;  name: C name of its function
    """
    given = [p for p in program["arguments"] if p["role"] in ("input", "scalar")]
    every = [*given, *(p for p in program["arguments"] if p["role"] == "output")]
    gathers, dims = program.get("gathers", ()), len(program.get("dims", ()))
    known = open_extents([*(p["shape"] for p in every), [g["limit"] for g in gathers]])
    lines = [
        f"/* The arguments of {name}; what they are is said in door.h. */",
        f'#include "{Path(program["source"]).stem}.h"',
        f'#define DOOR_NAME "{name}"',
        f"#define DOOR_KERNEL {name}",
        *([f"#define DOOR_WHY {name}_why"] if "host" in program else []),
        f"#define DOOR_ON_CUDA {int(program.get('host') == 'cuda')}",
        *(f"#define DOOR_{door.upper()} {symbol}" for door, symbol in symbols(name).items()),
        f"#define DOOR_GIVEN {len(given)}",
        f"#define DOOR_ARGUMENTS {len(every)}",
        f"#define DOOR_RANK {max(len(p['shape']) for p in every)}",
        f"#define DOOR_DIMS {dims}",
        f"#define DOOR_OPEN {len(known)}",
        *([f"#define DOOR_TOLD {name}_dims", f"#define DOOR_EXTENTS {name}_extents"] if dims else []),
        "",
    ]
    for n, p in enumerate(every):
        extents = ", ".join(str(coded(e, known)) for e in p["shape"]) or "1"
        lines.append(f"static const int64_t door_shape_{n}[] = {{{extents}}};")
        lines.append(
            f"static const char *const door_names_{n}[] = {{{', '.join(_string(str(e)) for e in p['shape']) or 0}}};"
        )
    lines += ["static const door_argument door_arguments[DOOR_ARGUMENTS] = {"]
    for n, p in enumerate(every):
        limit = coded(least(gathers, p["name"]), known)
        if not limit and any(g["param"] == p["name"] for g in gathers):
            limit = PARTIAL_INDEX_LIMIT
        lines += [f"  {_row(n, p, limit)},"]
    return "\n".join([*lines, "};", ""])


def symbols(name: str) -> dict[str, str]:
    """{framework binding: C function by which the framework finds the kernel}."""
    return {"jax": f"{name}_jax", "tvm_ffi": f"__tvm_ffi_{name}"}


def _row(n: int, p: Mapping[str, Any], limit: int) -> str:
    scalar = p["role"] == "scalar"
    stored = "float32" if scalar and p["dtype"] in WIDENED else p["dtype"]
    codes, bits = CODES[stored], DTYPES[stored].bits
    facts = (
        int(scalar),
        codes.dl,
        bits,
        codes.xla,
        codes.onnx,
        max(int(p["align"] or 1), 1),
        limit,
        len(p["shape"]),
    )
    return (
        f"{{{_string(p['name'])}, {_string(p['dtype'])}, {', '.join(map(str, facts))}, door_shape_{n}, door_names_{n}}}"
    )


def _string(text: str) -> str:
    """C string literal, quotes included, with the UTF-8 bytes of ``text``."""
    plain = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{plain}"'
