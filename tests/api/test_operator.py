"""Operators as they describe themselves: shapes as typed, flags, and commands that say a workload."""

import inspect

import pytest

import tensorir as tir
from tensorir.api.identity import command_for
from tensorir.cli.parse import workloads
from tensorir.ops.operators import FLAGS, OPERATORS


@pytest.mark.parametrize("name", OPERATORS)
def test_a_row_says_what_its_function_takes(name):
    o = OPERATORS[name]
    taken = inspect.signature(getattr(tir.ops, name)).parameters
    assert set(taken) == {*o.extents, *o.flags}
    assert all(flag in FLAGS for flag in o.flags)
    assert set(o.needed) <= set(o.flags) and (not o.shared or o.shared in o.flags)
    assert len(o.example.split()) == len(o.grammar.split())


@pytest.mark.parametrize("name", OPERATORS)
def test_a_command_says_the_workload_again(name):
    o = OPERATORS[name]
    told = {"groups": 2, "stride": 2, "axis": 0, "window": 4, "size": 2, "causal": True, "tb": True, "act": "relu"}
    given = {f: v for f, v in told.items() if f in o.flags}
    if "stride" in given:  # the example's filter is of all channels, or of those of a group
        given = {"stride": 3} if o.tensors else {"groups": 2}
    work = getattr(tir.ops, name)(**o.read(o.example.split(), {}), **given)
    verb, op, *words = command_for(work).split()[1:]
    shapes = words[: len(o.grammar.split())]
    flags = {w.removeprefix("--"): n for n, w in enumerate(words) if w.startswith("--")}
    options = {f: (True if FLAGS[f].kind == "switch" else words[n + 1]) for f, n in flags.items()}
    options = {f: int(v) if FLAGS[f].kind in ("int", "sides") else v for f, v in options.items()}
    assert (verb, op) == ("tune", name) and options == given
    assert workloads(op, shapes, options)[0]().title == work.title


@pytest.mark.parametrize(
    ("name", "shapes", "flags", "said"),
    [
        ("matmul", [], {}, "matmul needs one shape, MxNxK, not 0"),
        ("conv2d", ["1x2x3x4"], {}, "conv2d needs two shapes, NxCxHxW KxCxRxS, not 1"),
        ("matmul", ["3x4"], {}, "3x4 has 2 dimensions, MxNxK has 3"),
        ("matmul", ["3x4xq"], {}, "'3x4xq' is not a shape"),
        ("conv2d", ["1x64x9x9", "8x30x3x3"], {"groups": 2}, "they must agree (or 32 with 2 groups)"),
        ("conv2d", ["1x64x9x9", "8x30x3x3"], {}, "C is 64 in one shape and 30 in another: they must agree"),
    ],
)
def test_shapes_that_are_none_are_refused(name, shapes, flags, said):
    with pytest.raises(tir.DeclarationError) as e:
        OPERATORS[name].read(shapes, flags)
    assert e.value.code == "operator.shape" and said in str(e.value) and "try: " in str(e.value)


def test_channels_of_one_group_or_of_all():
    for inner in (64, 32):
        read = OPERATORS["conv2d"].read(["1x64x9x9", f"8x{inner}x3x3"], {"groups": 2})
        assert read["c"] == 64 and read["groups"] == 2
