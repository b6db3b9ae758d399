"""Generates C code of an ONNX Runtime custom-operator library that calls exported functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files as resources
from typing import Any

from tensorir.export.c_extents import coded, least, open_extents
from tensorir.export.doors import CODES
from tensorir.export.shipped.common import arrays_of
from tensorir.ir.dtypes import DTYPES, WIDENED


@dataclass(frozen=True)
class OnnxOperator:
    """A C function ``int NAME(const tir_call *, void *const *buffers)`` as an operator of ONNX Runtime.

    name:      of the operator
    function:  its C name, declared by ``function.h``
    arguments: entries of ``manifest["arguments"]``: inputs and scalars, then outputs
    gathers:   entries of ``manifest["gathers"]``: which inputs are indices, and their range
    once:      arrays that kernels which run once read and write; if not empty, the function ``NAME_pack`` exists
    hosted:    True if a driver runs it; then the function ``NAME_why`` exists
    dims:      number of launch-time extents; if not 0, the functions ``NAME_dims`` and ``NAME_extents`` exist
    """

    name: str
    function: str
    arguments: Sequence[Mapping[str, Any]]
    gathers: Sequence[Mapping[str, Any]] = ()
    once: Collection[str] = ()
    hosted: bool = False
    dims: int = 0

    @classmethod
    def of(
        cls, name: str, function: str, program: Mapping[str, Any], shapes: Iterable[Sequence[int]] = ()
    ) -> OnnxOperator:
        """The operator ``name`` for a program in a manifest.

        function: its C name;  program: its manifest entry;  shapes: of inputs then outputs, in place of the program's
        """
        once = {a for k in program["kernels"] if k["once"] for a in arrays_of(k)}
        kept = {p["name"] for p in program["arguments"] if p["role"] == "workspace"} & once
        hosted, dims = "host" in program, len(program.get("dims", ()))
        made = cls(name, function, program["arguments"], program["gathers"], once if kept else (), hosted, dims)
        if not shapes:
            return made
        values = zip([*made.inputs, *made.outputs], shapes, strict=True)
        return replace(made, arguments=[{**p, "shape": list(shape)} for p, shape in values])

    @property
    def inputs(self) -> list[Mapping[str, Any]]:
        return [p for p in self.arguments if p["role"] in ("input", "scalar")]

    @property
    def open(self) -> list[str]:
        """Distinct texts (``"n + 1"``) of the extents and index limits with dims, in the order of ``NAME_extents``."""
        shapes = [p["shape"] for p in (*self.inputs, *self.outputs)]
        return open_extents([*shapes, [g["limit"] for g in self.gathers]])

    @property
    def outputs(self) -> list[Mapping[str, Any]]:
        return [p for p in self.arguments if p["role"] == "output"]


def glue(domain: str, operators: Sequence[OnnxOperator]) -> str:
    """C code that registers ``operators`` in ``domain`` when ONNX Runtime loads the library."""
    static = resources("tensorir.export.shipped").joinpath("door_onnxruntime.c").read_text(encoding="utf-8")
    values = [[*o.inputs, *o.outputs] for o in operators]
    dims = max([8, *(len(p["shape"]) for row in values for p in row)])
    extents = max(1, *(len(o.open) for o in operators))
    rows = ",\n".join(
        f'  TIR_ORT_OP("{o.name}", {o.function}, {_why(o)}, {_sized(o)}, {_packing(o)}, {len(o.inputs)}, '
        f"{len(o.outputs)}, tir_ort_values_{n})"
        for n, o in enumerate(operators)
    )
    return f"""\
{"".join(f'#include "{name}.h"{chr(10)}' for name in dict.fromkeys(o.function for o in operators))}
enum {{ TIR_ORT_MOST_VALUES = {max(map(len, values))}, TIR_ORT_MOST_DIMS = {dims} }};
enum {{ TIR_ORT_MOST_OPEN = {max(1, *(o.dims for o in operators))}, TIR_ORT_MOST_EXTENTS = {extents} }};

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


def _why(operator: OnnxOperator) -> str:
    return f"{operator.function}_why" if operator.hosted else "NULL"


def _sized(operator: OnnxOperator) -> str:
    """C initializer text: the functions for dims and extents and the number of dims, or "NULL, NULL, 0"."""
    name = operator.function
    return f"{name}_dims, {name}_extents, {operator.dims}" if operator.dims else "NULL, NULL, 0"


def _packing(operator: OnnxOperator) -> str:
    """C initializer text: the packing function, the call on packed arrays and their bytes, or "NULL, NULL, 0"."""
    name = operator.function
    return f"{name}_pack, {name}_packed, {name}_packed_bytes" if operator.once else "NULL, NULL, 0"


def _values(number: int, operator: OnnxOperator) -> str:
    """C tables of an operator's inputs and outputs; their names contain ``number``."""
    values, known = [*operator.inputs, *operator.outputs], operator.open
    shapes = [", ".join(str(coded(e, known)) for e in p["shape"]) for p in values]
    dims = "".join(
        f"static const int64_t tir_ort_dims_{number}_{n}[] = {{{shapes[n]}}};\n"
        for n, p in enumerate(values)
        if p["shape"]
    )
    rows = ",\n".join(
        _row(f"tir_ort_dims_{number}_{n}" if p["shape"] else "NULL", p, operator) for n, p in enumerate(values)
    )
    return f"\n{dims}static const tir_ort_value tir_ort_values_{number}[] = {{\n{rows}\n}};\n"


def _row(dims: str, p: Mapping[str, Any], operator: OnnxOperator) -> str:
    stored = "float32" if p["role"] == "scalar" and p["dtype"] in WIDENED else p["dtype"]
    size = DTYPES[stored].bits // 8
    limit = coded(least(operator.gathers, p["name"]), operator.open)
    once = int(p["name"] in operator.once)
    facts = (CODES[stored].onnx, len(p["shape"]), dims, size, max(p["align"], size), limit, once)
    shape = "x".join(map(str, p["shape"])) or "a number"
    return f'  {{"{p["name"]}", "{shape}", {", ".join(map(str, facts))}}}'
