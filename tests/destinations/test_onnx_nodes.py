"""Nodes of ONNX models as workloads: what is taken means the same, and what means anything else is left."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from tensorir.errors import TensorIRError  # noqa: E402
from tensorir.ops.onnx_nodes import Left, candidates, graph_of, others  # noqa: E402

helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


def model(nodes, inputs, outputs, weights=(), opset=17):
    """Nodes as (operator, inputs, outputs, attributes); inputs as {name: shape}; weights as {name: array}."""
    made = [helper.make_node(op, i, o, **attrs) for op, i, o, attrs in nodes]
    ins = [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs.items()]
    outs = [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs]
    held = [onnx.numpy_helper.from_array(a, n) for n, a in dict(weights).items()]
    graph = helper.make_graph(made, "g", ins, outs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def found(made, **dims):
    """Match or reason of the first node that could be one."""
    return next(iter(candidates(graph_of(made, dims))))[1]


def ints(shape, seed):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def agrees(made, seed=0):
    """Whether each workload of the first node computes what ONNX says of the nodes that it stands for."""
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")  # onnx's own evaluator has faults
    graph = graph_of(made)
    (_, matches), *_ = candidates(graph)
    if isinstance(matches, Left):
        return matches.why
    given = {v.name: ints([d.dim_value for d in v.type.tensor_type.shape.dim], seed + n)
             for n, v in enumerate(made.graph.input)}  # fmt: skip
    for match in matches:
        name, shape = match.output
        whole = onnx.ModelProto()
        whole.CopyFrom(made)
        del whole.graph.output[:]
        whole.graph.output.append(helper.make_tensor_value_info(name, FLOAT, shape))
        session = ort.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
        (want,) = session.run(None, given)
        work = match.work()
        arrays = [given[n].reshape(p.shape) for (n, _), p in zip(match.inputs, work.inputs, strict=True)]
        got = work.reference(*arrays)
        assert want.shape == shape, (want.shape, shape)
        got = np.asarray(got, np.float64).reshape(shape)
        exact = match.params.get("act") in (None, "relu")
        assert np.allclose(got, want, 0, 0 if exact else 1e-5), match.params
    return [m.params for m in matches]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolutions_mean_the_same(data):
    draw = data.draw
    side = st.integers(1, 3)
    r, s, groups = draw(side), draw(side), draw(st.sampled_from([1, 1, 2, 3]))
    n, cg, kg = draw(st.integers(1, 2)), draw(side), draw(side)
    h, w = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    attrs = {"group": groups} if groups > 1 else {}
    if draw(st.booleans()):
        attrs["kernel_shape"] = [r, s]
    for name in ("strides", "dilations"):
        if draw(st.booleans()):
            one = draw(side)
            attrs[name] = [one, draw(st.sampled_from([one, one, one, 1, 2]))]
    padding = draw(st.sampled_from(["", "", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if padding == "pads":
        one = draw(st.integers(0, 2))
        attrs["pads"] = draw(st.sampled_from([[one] * 4, [one] * 4, [0, 1, 1, 0], [one, one, 0, 0]]))
    elif padding:
        attrs["auto_pad"] = padding
        if padding != "VALID":
            attrs.pop("dilations", None)  # ONNX Runtime refuses both
    bias, relu = draw(st.booleans()), draw(st.booleans())
    inputs = {"x": (n, cg * groups, h, w), "w": (kg * groups, cg, r, s)} | ({"b": (kg * groups,)} if bias else {})
    nodes = [("Conv", list(inputs), ["y"], attrs)] + ([("Relu", ["y"], ["z"], {})] if relu else [])
    try:
        made = model(nodes, inputs, ["z" if relu else "y"])
        onnx.shape_inference.infer_shapes(made, strict_mode=True)
    except Exception:  # the filter is larger than the image
        return
    said = agrees(made)
    if isinstance(said, str):
        uneven = [len(set(attrs.get(name, (1,)))) > 1 for name in ("strides", "dilations", "pads")]
        spans = {(t - 1) * d + 1 for t, d in zip((r, s), attrs.get("dilations", (1, 1)), strict=True)}
        assert any(uneven) or padding.startswith("SAME") or "result would be" in said, (said, attrs, spans)
    else:
        assert len(said) == 1 + relu and all(p["bias"] == bias for p in said)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_products_mean_the_same(data):
    draw = data.draw
    m, n, k = (draw(st.integers(1, 5)) for _ in range(3))
    if draw(st.booleans()):
        ta, tb = draw(st.booleans()), draw(st.booleans())
        attrs = {name: 1 for name, on in (("transA", ta), ("transB", tb)) if on}
        if draw(st.integers(0, 3)) == 0:
            attrs["alpha"] = 0.5
        added = draw(st.sampled_from([None, (n,), (1, n), (m, n), (m, 1), ()]))
        inputs = {"a": (k, m) if ta else (m, k), "b": (n, k) if tb else (k, n)}
        inputs |= {} if added is None else {"c": added}
        said = agrees(model([("Gemm", list(inputs), ["y"], attrs)], inputs, ["y"]))
        plain = added is None or added in ((n,), (1, n)) or (added == (m, n) and m == 1) or n == 1 == np.prod(added)
        assert isinstance(said, str) == (not plain or "alpha" in attrs), (said, inputs, attrs)
        return
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    other = draw(st.sampled_from([(), lead, (1,) * len(lead), (2, *lead)]))
    inputs = {"a": (*lead, m, k), "b": (*other, k, n)}
    said = agrees(model([("MatMul", ["a", "b"], ["y"], {})], inputs, ["y"]))
    if other in ((), lead) or (all(e == 1 for e in other) and len(other) <= len(lead)):
        assert not isinstance(said, str), said
    elif isinstance(said, str):
        assert "several of the other" in said


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_follows_means_the_same(data):
    """An Add on either side, of what is a bias, a residual or neither, then an activation."""
    draw = data.draw
    op = draw(st.sampled_from(["Conv", "MatMul", "Gemm"]))
    k, side = draw(st.sampled_from([1, 3])), draw(st.integers(1, 3))
    inputs = {"a": (2, 2, side, side), "b": (k, 2, 1, 1)} if op == "Conv" else {"a": (2, side), "b": (side, k)}
    if op == "MatMul" and draw(st.booleans()):
        inputs["a"] = (3, *inputs["a"])
    result = (2, k, side, side) if op == "Conv" else (*inputs["a"][:-1], k)
    biased = op != "MatMul" and draw(st.booleans())
    inputs |= {"c": (k,)} if biased else {}
    nodes, last, want = [(op, list(inputs), ["y"], {})], "y", [{"bias": biased, "act": None, "residual": False}]
    if draw(st.booleans()):
        shapes = [(k,), (k, 1, 1), (1, k, 1, 1), (), (1,), result, (side, side), (1, *result), (2, *result)]
        inputs["d"] = draw(st.sampled_from(shapes))
        try:
            enlarged = np.broadcast_shapes(inputs["d"], result) != result
        except ValueError:
            return
        nodes.append(("Add", draw(st.permutations(["y", "d"])), ["s"], {}))
        last, d = "s", inputs["d"]
        channels = d[-3:] == (k, 1, 1) if op == "Conv" else d[-1:] == (k,)
        if op == "Conv" and d == result:
            want.append({**want[-1], "residual": True})
        elif channels and np.prod(d) == k and len(d) <= len(result) and not biased and not enlarged:
            want.append({**want[-1], "bias": True})
    act = draw(st.sampled_from([None, "Relu", "Sigmoid", "Tanh", "Gelu"]))
    if act is not None:
        nodes.append((act, [last], ["z"], {}))
        if last == "y" or len(want) == 2:
            want.append({**want[-1], "act": act.lower()})
        last = "z"
    said = agrees(model(nodes, inputs, [last], opset=20))
    assert [{name: p.get(name, False) for name in want[0]} | {"act": p.get("act")} for p in said] == want[::-1]


def test_unknown_shapes_are_said_and_can_be_given():
    nodes = [("Conv", ["x", "w"], ["y"], {})]
    made = model(nodes, {"x": ("N", 3, 8, 8), "w": (4, 3, 3, 3)}, ["y"])
    left = found(made)
    assert isinstance(left, Left) and left.why == (
        "x is ?x3x8x8: extents that are not known (say them with --dim NAME=SIZE)"
    )
    (match,) = found(made, N=2)
    assert match.params["n"] == 2 and match.output == ("y", (2, 4, 6, 6))
    assert made.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2


def test_weights_are_shapes_only_and_computed_shapes_are_followed():
    weights = {"w": ints((40, 30, 3, 3), 1), "to": np.array([0, -1, 9, 5], np.int64)}
    nodes = [("Reshape", ["x", "to"], ["t"], {}), ("Conv", ["t", "w"], ["y"], {"pads": [1] * 4})]
    packed, match = found(model(nodes, {"x": (2, 30, 45)}, ["y"], weights))
    assert packed.params == {**match.params, "prepack": True} and packed.inputs == match.inputs
    made = model(nodes, {"x": (2, 30, 45)}, ["y"], weights)
    made.graph.input.append(helper.make_tensor_value_info("w", FLOAT, (40, 30, 3, 3)))
    assert [m.params for m in found(made)] == [match.params], "callers may give other weights"
    assert match.params["h"] == 9 and match.params["w"] == 5 and match.inputs[1] == ("w", (40, 30, 3, 3))


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([("Conv", ["x", "w"], ["y"], {}), ("Relu", ["y"], ["z"], {})], ["z", "y"]),
        ([("Conv", ["x", "w"], ["y"], {}), ("Relu", ["y"], ["z"], {}), ("Neg", ["y"], ["v"], {})], ["z", "v"]),
        ([("Conv", ["x", "w"], ["y"], {}), ("Elu", ["y"], ["z"], {})], ["z"]),
        ([("Conv", ["x", "w"], ["y"], {}), ("Add", ["y", "y"], ["z"], {})], ["z"]),
        ([("Conv", ["x", "w"], ["y"], {}), ("Gelu", ["y"], ["z"], {"approximate": "tanh"})], ["z"]),
    ],
)
def test_a_relu_is_taken_in_only_where_nothing_else_reads_the_convolution(nodes, outputs):
    made = model(nodes, {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3)}, outputs)
    assert [m.taken for m in found(made)] == [()]


def test_a_value_that_a_branch_reads_keeps_its_name():
    inner = helper.make_graph([helper.make_node("Neg", ["y"], ["v"])], "then", [], [
        helper.make_tensor_value_info("v", FLOAT, None)])  # fmt: skip
    nodes = [("Conv", ["x", "w"], ["y"], {}), ("Relu", ["y"], ["z"], {})]
    made = model(nodes, {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3)}, ["z", "u"])
    made.graph.input.append(helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, ()))
    made.graph.node.append(helper.make_node("If", ["which"], ["u"], then_branch=inner, else_branch=inner))
    assert [m.taken for m in found(made)] == [()]
    assert others(graph_of(made)) == {"Relu": 1, "If": 1}


def test_constants_of_nodes_are_packed_once_too():
    made = model([("Conv", ["x", "w"], ["y"], {})], {"x": (1, 3, 8, 8)}, ["y"])
    value = onnx.numpy_helper.from_array(ints((4, 3, 3, 3), 1), "value")
    made.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=value))
    assert [m.params.get("prepack") for m in found(made)] == [True, None]


DAMAGED = {
    "attribute": (["x", "w"], {"strides": 1}), "unknown attribute": (["x", "w"], {"fancy": 3}),
    "integer": (["x", "w"], {"auto_pad": 3}), "padding": (["x", "w"], {"auto_pad": "WIDE"}),
    "number": (["x", "w"], {"group": 1.0}), "no groups": (["x", "w"], {"group": 0}), "one input": (["x"], {}),
    "still": (["x", "w"], {"strides": [0, 0]}), "back": (["x", "w"], {"strides": [-1, -1]}),
    "none": (["x", "w"], {"dilations": [0, 0]}), "few": (["x", "w"], {"pads": [1, 1]}),
    "fewer": (["x", "w"], {"strides": [2]}), "more": (["x", "w"], {"dilations": [1, 1, 1]}),
    "taps": (["x", "w"], {"kernel_shape": [2, 2]}), "cut": (["x", "w"], {"pads": [-1] * 4}),
    "bias": (["x", "w", "w"], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_node_that_is_none_of_onnx_is_left(name):
    """And the others of the model are not."""
    inputs, attributes = DAMAGED[name]
    sides = {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3)}
    made = model([("Conv", inputs, ["y"], {}), ("Conv", ["x", "w"], ["z"], {})], sides, ["y", "z"])
    for key, value in attributes.items():
        made.graph.node[0].attribute.append(helper.make_attribute(key, value))
    (_, left), (_, others) = candidates(graph_of(made))
    assert isinstance(left, Left) and left.code in ("onnx.attributes", "onnx.shape", "conv2d.pad"), left
    assert left.why and len(left.why) < 300 and "\n" not in left.why and len(others) == 1


def test_products_with_wrong_attributes_are_left():
    for attributes in ({"transA": 1.0}, {"alpha": 1}):
        made = model([("Gemm", ["a", "b"], ["y"], {})], {"a": (3, 3), "b": (3, 3)}, ["y"])
        for key, value in attributes.items():
            made.graph.node[0].attribute.append(helper.make_attribute(key, value))
        assert isinstance(found(made), Left)


def test_domains_that_are_not_imported_do_no_harm():
    """ONNX Runtime takes such models; those without ONNX's own it does not."""
    made = model([("Conv", ["x", "w"], ["y"], {})], {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3)}, ["y", "z"])
    made.graph.node.append(helper.make_node("Strange", ["x"], ["z"], domain="of.others"))
    inner = helper.make_graph([helper.make_node("Odd", ["x"], ["v"], domain="of.more")], "then", [], [
        helper.make_tensor_value_info("v", FLOAT, None)])  # fmt: skip
    made.graph.input.append(helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, ()))
    made.graph.node.append(helper.make_node("If", ["which"], ["u"], then_branch=inner, else_branch=inner))
    assert len(found(made)) == 1 and len(made.opset_import) == 1
    del made.opset_import[:]
    with pytest.raises(TensorIRError, match="No opset import") as caught:
        graph_of(made)
    assert caught.value.code == "onnx.model"


def test_operators_of_other_domains_and_types_are_left():
    made = model([("Conv", ["x", "w"], ["y"], {})], {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3)}, ["y"])
    made.graph.node[0].domain = "com.example"
    made.opset_import.append(helper.make_opsetid("com.example", 1))
    assert list(candidates(graph_of(made))) == [] and others(graph_of(made)) == {"com.example::Conv": 1}
    made = model([("Conv", ["x", "w"], ["y"], {})], {"x": (1, 3, 8), "w": (4, 3, 3)}, ["y"])
    assert found(made).why == "its dimensions are 1: only convolutions of 2 are known"
    made = model([("MatMul", ["a", "b"], ["y"], {})], {"a": (3, 4), "b": (4, 5)}, ["y"])
    for value in made.graph.input:
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32
    assert "float32" in found(made).why
