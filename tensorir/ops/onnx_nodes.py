"""ONNX nodes matched to workloads of ``tensorir.ops``: matches, and reasons why other nodes stay as they are.

A node matches if its shapes are known and an operator computes exactly the same. A following Add and activation become
its epilogue if they are the only readers. Kernels are chosen elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from tensorir import ops
from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.export.program import ExportError
from tensorir.nn.sides import sides_of, texts_of

if TYPE_CHECKING:
    from tensorir.api.workload import Workload

DTYPES = {1: "float32", 10: "float16", 11: "float64"}
"""``onnx.TensorProto.DataType`` -> dtype, of the supported types."""
ACTIVATIONS = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Gelu": "gelu"}
"""ONNX operator -> ``act`` of a workload."""
_KNOWN_NODES = ("Conv", "Gemm", "MatMul")
_SMALL_ELEMENTS = 1024  # elements of an initializer that shapes may be computed from

Shape = tuple[int, ...]


class _Other(Exception):  # the answer of a function, not a failure
    """Raised for a node that matches no workload: error code and reason."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True)
class OnnxTensor:
    """A value of an ONNX graph: element type as ONNX number, and shape with -1 for unknown extents."""

    type: int
    shape: Shape

    @property
    def known(self) -> bool:
        return all(n >= 0 for n in self.shape)


@dataclass(frozen=True)
class Match:
    """A node that a workload can replace.

    op, params: operator of ``tensorir.ops`` and its parameters
    node:       index of the node in the graph
    inputs:     names and shapes of graph values, in the order of the workload's arguments
    output:     name and shape of the graph value
    taken:      indices of following nodes that become its epilogue
    """

    op: str
    params: Mapping[str, Any]
    node: int
    inputs: tuple[tuple[str, Shape], ...]
    output: tuple[str, Shape]
    taken: tuple[int, ...] = ()

    def work(self) -> Workload:
        """Declare the workload; raises its TensorIRError if the parameters are unsupported."""
        made: Workload = getattr(ops, self.op)(**self.params)
        return made


@dataclass(frozen=True)
class Left:
    """A node that stays as it is, with the error code and the reason."""

    node: int
    code: str
    why: str


@dataclass
class OnnxGraph:
    """A model's main graph: value name -> type and shape, number of readers, index of the last reader.

    constants: names of weights that no caller can replace
    """

    model: Any
    values: dict[str, OnnxTensor]
    readers: Counter[str] = field(default_factory=Counter)
    reader: dict[str, int] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()

    @property
    def nodes(self) -> Sequence[Any]:
        nodes: Sequence[Any] = self.model.graph.node
        return nodes

    def tensor(self, name: str) -> OnnxTensor:
        """Type and shape of the value ``name``; raises _Other if an extent is unknown."""
        found = self.values.get(name)
        if found is None:
            raise _Other("onnx.shape", f"the shape of {name} is not known")
        if not found.known:
            text = "x".join("?" if n < 0 else str(n) for n in found.shape)
            raise _Other("onnx.shape", f"{name} is {text}: extents that are not known (say them with --dim NAME=SIZE)")
        return found


def graph_of(model: Any, dims: Mapping[str, int] | None = None) -> OnnxGraph:
    """The main graph of a model, with all inferred shapes.

    dims: symbolic extent -> size, written into ``model`` in place (``fix_dims``)
    Raises ExportError ``onnx.model`` if shape inference fails.
    """
    fix_dims(model, dims or {})
    values = _inferred(model)
    readers = Counter(name for node in model.graph.node for name in node.input)
    readers.update(name for node in model.graph.node for name in _captured(node))
    readers.update(value.name for value in model.graph.output)
    reader = {name: number for number, node in enumerate(model.graph.node) for name in node.input}
    weights = {w.name for w in model.graph.initializer} - {value.name for value in model.graph.input}
    weights |= {name for node in model.graph.node if node.op_type == "Constant" for name in node.output}
    constants = frozenset(weights)
    return OnnxGraph(model, values, readers, reader, constants)


def fix_dims(model: Any, dims: Mapping[str, int]) -> set[str]:
    """Replace symbolic extents of inputs, outputs and values by sizes in place; return all symbolic names found."""
    met = set()
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                met.add(dim.dim_param)
                if dim.dim_param in dims:
                    dim.dim_value = dims[dim.dim_param]
    return met


def candidates(graph: OnnxGraph) -> Iterator[tuple[int, list[Match] | Left]]:
    """(node index, matches or ``Left``) of each Conv, Gemm and MatMul node; the match with the longest epilogue
    first.
    """
    for number, node in enumerate(graph.nodes):
        if node.domain not in ("", "ai.onnx") or node.op_type not in _KNOWN_NODES:
            continue
        try:
            _need_valid(graph, node)
            yield number, list(_possible(_matches(graph, number)))
        except _Other as why:
            yield number, Left(number, why.code, str(why))


def others(graph: OnnxGraph) -> Counter[str]:
    """Operator -> number of its nodes, for operators that are never replaced."""
    names = ((n.domain, n.op_type) for n in graph.nodes)
    return Counter(f"{d}::{op}" if d else op for d, op in names if d not in ("", "ai.onnx") or op not in _KNOWN_NODES)


def _need_valid(graph: OnnxGraph, node: Any) -> None:
    """Raise _Other unless the node conforms to ONNX: number of inputs and outputs, names and types of attributes."""
    from onnx import checker

    context = type(checker.DEFAULT_CONTEXT)()
    context.ir_version = graph.model.ir_version
    context.opset_imports = {o.domain: o.version for o in graph.model.opset_import}
    try:
        checker.check_node(node, context)
    except checker.ValidationError as error:
        first = str(error).strip().partition("\n")[0]
        raise _Other("onnx.attributes", f"onnx refuses it: {first:.200}") from None


def _possible(matches: Iterable[Match]) -> Iterator[Match]:
    """The matches whose workload can be declared; raises _Other with the first error if none can."""
    refused: TensorIRError | None = None
    found = 0
    for match in matches:
        try:
            match.work()
        except TensorIRError as error:
            refused = refused or error
        else:
            found += 1
            yield match
    if refused is not None and not found:
        raise _Other(refused.problems[0].code, refused.problems[0].message)


def _matches(graph: OnnxGraph, number: int) -> Iterator[Match]:
    node = graph.nodes[number]
    find = {"Conv": _conv, "Gemm": _gemm, "MatMul": _matmul}[node.op_type]
    plain = find(graph, number, node)
    for match in (_with_added(graph, plain), plain):
        if match is not None:
            acts = _with_activation(graph, match)
            for found in (match,) if acts is None else (acts, match):
                yield from _packings(graph, found)


def _packings(graph: OnnxGraph, match: Match) -> Iterator[Match]:
    """The match with constant weights packed ahead of time, if they are constants, then the match itself."""
    if match.inputs[1][0] in graph.constants:
        yield replace(match, params={**match.params, "prepack": True})
    yield match


def _after(graph: OnnxGraph, match: Match) -> tuple[int, Any] | None:
    """(index, node) of the only reader of the match's result; None for no or several readers, a model output, or a node
    of another domain.
    """
    value = match.output[0]
    if graph.readers[value] != 1 or value not in graph.reader:
        return None
    number = graph.reader[value]
    node = graph.nodes[number]
    return (number, node) if node.domain in ("", "ai.onnx") else None


def _with_added(graph: OnnxGraph, match: Match) -> Match | None:
    """The match extended by a following Add of a bias, or for conv2d of a residual of equal shape; None without one."""
    number, node = _after(graph, match) or (0, None)
    if node is None or node.op_type != "Add":
        return None
    _, result = match.output
    name = next(n for n in node.input if n != match.output[0])
    found = graph.values.get(name)
    if found is None or not found.known or len(found.shape) > len(result):
        return None
    conv = match.op == "conv2d"
    along = match.params["k" if conv else "n"]
    channels = found.shape[-3:] == (along, 1, 1) if conv else found.shape[-1:] == (along,)
    if found.shape == result and conv:
        params, given = {**match.params, "residual": True}, (*match.inputs, (name, found.shape))
    elif channels and prod(found.shape) == along and not match.params.get("bias"):
        params, given = {**match.params, "bias": True}, (*match.inputs, (name, found.shape))
    else:
        return None
    return Match(match.op, params, match.node, given, (node.output[0], result), (*match.taken, number))


def _with_activation(graph: OnnxGraph, match: Match) -> Match | None:
    """The match extended by a following activation; None if there is none."""
    number, node = _after(graph, match) or (0, None)
    act = None if node is None else ACTIVATIONS.get(node.op_type)
    if node is None or act is None or _attributes(node).get("approximate", b"none") != b"none":
        return None
    output = node.output[0], match.output[1]
    return Match(match.op, {**match.params, "act": act}, match.node, match.inputs, output, (*match.taken, number))


def _conv(graph: OnnxGraph, number: int, node: Any) -> Match:
    x, w, dtype = _operands(graph, node)
    if len(x.shape) != 4 or len(w.shape) != 4:
        raise _Other("onnx.shape", f"its dimensions are {len(x.shape) - 2}: only convolutions of 2 are known")
    given = _attributes(node)
    (n, c, h, wide), (k, cg, r, s) = x.shape, w.shape
    groups = given.get("group", 1)
    if groups < 1 or c != cg * groups or k % groups or list(given.get("kernel_shape", (r, s))) != [r, s]:
        raise _Other(
            "onnx.shape",
            f"its attributes do not fit {node.input[0]} {_text(x.shape)} and {node.input[1]} {_text(w.shape)}",
        )
    strides, dilations = list(given.get("strides", (1, 1))), list(given.get("dilations", (1, 1)))
    for name, values in (("strides", strides), ("dilations", dilations)):
        if len(values) != 2 or min(values) < 1:
            raise _Other("onnx.attributes", f"{name} are {values}: 2 numbers from 1 on are meant")
    pads = _pads(given, (h, wide), (r, s), strides, dilations)
    try:
        sides = sides_of(2, strides, pads, dilations)
    except DeclarationError as error:
        raise _Other("onnx.attributes", error.problems[0].message) from None
    bias = _bias(graph, node, 2, k)
    params = dict(n=n, c=c, h=h, w=wide, k=k, r=r, s=s, **texts_of(sides), groups=groups, dtype=dtype,
                  bias=bool(bias))  # fmt: skip
    p, q = (side.results(size, taps) for side, size, taps in zip(sides, (h, wide), (r, s), strict=True))
    inputs = ((node.input[0], x.shape), (node.input[1], w.shape), *bias)
    return _match("conv2d", params, number, inputs, node, (n, k, p, q))


def _pads(given: Mapping[str, Any], sizes: Shape, taps: Shape, strides: Sequence[int], dilations: Sequence[int]
          ) -> list[int]:  # fmt: skip
    """[rows before, columns before, rows after, columns after]: numbers of padding zeros."""
    automatic = given.get("auto_pad", b"NOTSET").decode()
    if automatic in ("NOTSET", ""):
        pads = list(given.get("pads", (0, 0, 0, 0)))
        if len(pads) != 4:
            raise _Other("onnx.attributes", f"pads are {pads}: 4 numbers are meant")
        return pads
    if automatic == "VALID":
        return [0, 0, 0, 0]
    if automatic not in ("SAME_UPPER", "SAME_LOWER"):
        raise _Other("onnx.attributes", f"auto_pad is {automatic:.40}: no padding of ONNX")
    spans = [(t - 1) * d + 1 for t, d in zip(taps, dilations, strict=True)]
    total = [max((-(-n // st) - 1) * st + e - n, 0) for n, st, e in zip(sizes, strides, spans, strict=True)]
    less, more = [t // 2 for t in total], [-(-t // 2) for t in total]
    return [*less, *more] if automatic == "SAME_UPPER" else [*more, *less]


def _matmul(graph: OnnxGraph, number: int, node: Any) -> Match:
    a, b, dtype = _operands(graph, node)
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise _Other("onnx.shape", f"it multiplies {_text(a.shape)} by {_text(b.shape)}: only matrices are known")
    *lead, m, k = a.shape
    n = b.shape[-1]
    params: dict[str, Any] = dict(n=n, k=k, dtype=dtype)
    result = (*lead, m, n)
    if prod(b.shape[:-2]) == 1 and len(b.shape) <= len(a.shape):
        params["m"] = prod(lead) * m
    elif list(b.shape[:-2]) == lead:
        params |= dict(m=m, batch=prod(lead))
    else:
        raise _Other(
            "onnx.shape", f"{_text(a.shape)} by {_text(b.shape)}: matrices of one are used with several of the other"
        )
    inputs = ((node.input[0], a.shape), (node.input[1], b.shape))
    return _match("matmul", params, number, inputs, node, result)


def _gemm(graph: OnnxGraph, number: int, node: Any) -> Match:
    a, b, dtype = _operands(graph, node)
    given = _attributes(node)
    ta, tb = bool(given.get("transA", 0)), bool(given.get("transB", 0))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise _Other("onnx.shape", f"it multiplies {_text(a.shape)} by {_text(b.shape)}: only matrices are known")
    (m, k), (kb, n) = a.shape[:: -1 if ta else 1], b.shape[:: -1 if tb else 1]
    added = len(node.input) > 2 and node.input[2]
    if given.get("alpha", 1.0) != 1.0 or (added and given.get("beta", 1.0) != 1.0):
        raise _Other(
            "onnx.attributes", f"alpha is {given.get('alpha', 1.0):g}, beta {given.get('beta', 1.0):g}: only 1 is known"
        )
    if k != kb:
        raise _Other("onnx.shape", f"its attributes do not fit {_text(a.shape)} and {_text(b.shape)}")
    bias = _bias(graph, node, 2, n)
    params = dict(m=m, n=n, k=k, ta=ta, tb=tb, dtype=dtype, bias=bool(bias))
    inputs = ((node.input[0], a.shape), (node.input[1], b.shape), *bias)
    return _match("matmul", params, number, inputs, node, (m, n))


def _bias(graph: OnnxGraph, node: Any, place: int, extent: int) -> tuple[tuple[str, Shape], ...]:
    """((name, shape),) of the bias input; () if there is none. Raises _Other for other shapes than (extent,)."""
    if len(node.input) <= place or not node.input[place]:
        return ()
    name = node.input[place]
    found = graph.tensor(name)
    if prod(found.shape) != extent or (found.shape and found.shape[-1] != extent):
        raise _Other("onnx.shape", f"what is added, {name}, is {_text(found.shape)}: only {extent} numbers are known")
    return ((name, found.shape),)


def _operands(graph: OnnxGraph, node: Any) -> tuple[OnnxTensor, OnnxTensor, str]:
    a, b = (graph.tensor(name) for name in node.input[:2])
    if a.type not in DTYPES or a.type != b.type:
        raise _Other("onnx.dtype", f"it is of ONNX types {a.type} and {b.type}; {', '.join(DTYPES.values())} are known")
    if 0 in (*a.shape, *b.shape):
        raise _Other("onnx.shape", "it works on no elements")
    return a, b, DTYPES[a.type]


def _match(op: str, params: dict[str, Any], number: int, inputs: tuple[tuple[str, Shape], ...], node: Any,
           shape: Shape) -> Match:  # fmt: skip
    if 0 in shape or any(n < 0 for n in shape):
        raise _Other("onnx.shape", f"its result would be {_text(shape)}")
    return Match(op, params, number, inputs, (node.output[0], shape))


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "a number"


def _captured(node: Any) -> Iterator[str]:
    """Names of values read by subgraphs of a node."""
    for a in node.attribute:
        for inner in (a.g, *a.graphs):
            for each in inner.node:
                yield from each.input
                yield from _captured(each)
            yield from (value.name for value in inner.output)


def domains(graph: Any) -> Iterator[str]:
    """Domains of all nodes of a graph, subgraphs included."""
    for node in graph.node:
        yield node.domain
        for a in node.attribute:
            for inner in (a.g, *a.graphs):
                yield from domains(inner)


def _inferred(model: Any) -> dict[str, OnnxTensor]:
    """Value name -> type and shape, by ONNX shape inference; large weights are left out of its input, since models may
    exceed its limit.
    """
    import onnx

    try:
        made = onnx.shape_inference.infer_shapes(_without_weights(model), data_prop=True).graph
    except Exception as error:  # of several classes, by version
        words = " ".join(str(error).split())
        raise refuse(ExportError, "onnx.model", f"the shapes of the model do not follow: {words:.300}") from None
    found = {v.name: _tensor(v) for v in (*made.value_info, *made.input, *made.output)}
    values = {name: t for name, t in found.items() if t is not None}
    return values | {w.name: OnnxTensor(w.data_type, tuple(w.dims)) for w in model.graph.initializer}


def _without_weights(model: Any) -> Any:
    """A copy of the model with graph inputs in place of large initializers."""
    import onnx

    light = onnx.ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import,
                            functions=model.functions)  # fmt: skip
    known = {o.domain for o in model.opset_import} | {""}
    for domain in dict.fromkeys(d for d in domains(model.graph) if d not in known):
        light.opset_import.append(onnx.helper.make_opsetid(domain, 1))  # ONNX Runtime does not need it
    light.graph.name = model.graph.name or "graph"
    for name in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, name).extend(getattr(model.graph, name))
    held = {value.name for value in model.graph.input}
    for weight in model.graph.initializer:
        if prod(weight.dims) <= _SMALL_ELEMENTS:
            light.graph.initializer.append(weight)
        elif weight.name not in held:
            light.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    return light


def _tensor(value: Any) -> OnnxTensor | None:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    return OnnxTensor(kind.elem_type, tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim))
