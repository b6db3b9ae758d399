"""The C text by which ONNX Runtime calls programs: a library of custom operators, one or several in a domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from math import prod
from typing import Any

TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16, "float8_e4m3": 17, "float8_e5m2": 19,
}  # fmt: skip
"""dtype -> ``onnx.TensorProto.DataType``."""
_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "bool": 1, "float8_e4m3": 1, "float8_e5m2": 1,
          **{f"{u}int{8 * n}": n for u in ("", "u") for n in (1, 2, 4, 8)}}  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """A function ``int NAME(const tir_call *, void *const *buffers)`` as an operator.

    name:      of the operator
    function:  in C, declared by ``function.h``
    arguments: entries of ``manifest["arguments"]``; those that the caller gives, inputs and scalars, then outputs
    """

    name: str
    function: str
    arguments: Sequence[Mapping[str, Any]]

    @property
    def inputs(self) -> list[Mapping[str, Any]]:
        return [p for p in self.arguments if p["role"] in ("input", "scalar")]

    @property
    def outputs(self) -> list[Mapping[str, Any]]:
        return [p for p in self.arguments if p["role"] == "output"]


def glue(domain: str, operators: Sequence[Operator]) -> str:
    """C that registers ``operators`` in ``domain`` where ONNX Runtime loads the library that it is linked into."""
    static = resources("tensorir.export.shipped").joinpath("onnxruntime.c").read_text(encoding="utf-8")
    values = [[*o.inputs, *o.outputs] for o in operators]
    dims = max([8, *(len(p["shape"]) for row in values for p in row)])
    rows = ",\n".join(
        f'  TIR_ORT_OP("{o.name}", {o.function}, {len(o.inputs)}, {len(o.outputs)}, tir_ort_values_{n})'
        for n, o in enumerate(operators)
    )
    return f"""\
{"".join(f'#include "{name}.h"{chr(10)}' for name in dict.fromkeys(o.function for o in operators))}
enum {{ TIR_ORT_MOST_VALUES = {max(map(len, values))}, TIR_ORT_MOST_DIMS = {dims} }};

{static}
{"".join(_values(n, o) for n, o in enumerate(operators))}
static tir_ort_op tir_ort_ops[] = {{
{rows}
}};

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
tir_ort_status RegisterCustomOps(void *options, const tir_ort_base *base);

tir_ort_status RegisterCustomOps(void *options, const tir_ort_base *base) {{
  return tir_ort_register(options, base, "{domain}", tir_ort_ops, sizeof tir_ort_ops / sizeof *tir_ort_ops);
}}
"""


def _values(number: int, operator: Operator) -> str:
    """The table of an operator's inputs and outputs."""
    values = [*operator.inputs, *operator.outputs]
    dims = "".join(
        f"static const int64_t tir_ort_dims_{number}_{n}[] = {{{', '.join(map(str, p['shape']))}}};\n"
        for n, p in enumerate(values)
        if p["shape"]
    )
    rows = ",\n".join(_row(f"tir_ort_dims_{number}_{n}" if p["shape"] else "NULL", p) for n, p in enumerate(values))
    return f"\n{dims}static const tir_ort_value tir_ort_values_{number}[] = {{\n{rows}\n}};\n"


def _row(dims: str, p: Mapping[str, Any]) -> str:
    size = _BYTES[p["dtype"]]
    return (
        f'  {{"{p["name"]}", {TYPES[p["dtype"]]}, {len(p["shape"])}, {dims}, {prod(p["shape"]) * size}, '
        f"{max(p['align'], size)}}}"
    )
