"""conv2d and matmul: every option against the reference, from lambda to device; spaces hold only what works."""

import random

import numpy as np
import pytest

import tensorir as tir
from tensorir import nn
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.interp.reference import evaluate, random_arguments

MATMULS = [
    dict(m=17, n=31, k=5, alpha=True, beta=True, bias=True, act="relu"),
    dict(m=33, n=24, k=16, alpha=True, batch=2, tb=True),
    dict(m=20, n=20, k=9, beta=True, ta=True),
    dict(m=37, n=43, k=19, dtype="float16"),
    dict(m=9, n=43, k=7, dtype="bfloat16", bias=True),
    dict(m=37, n=40, k=19, dtype="int8"),
    dict(m=12, n=8, k=30, dtype="float64"),
]
CONVS = [
    dict(n=1, c=5, h=9, w=11, k=7, r=3, s=3, pad=1, dtype="float16", bias=True, act="relu"),
    dict(n=2, c=6, h=9, w=8, k=4, r=3, s=2, pad=1, stride=2, dtype="int8", layout="NHWC"),
    dict(n=1, c=4, h=8, w=8, k=8, r=3, s=3, pad=2, dilation=2, groups=2),
]


@pytest.mark.parametrize("act", nn.ACTIVATIONS)
def test_activations(act):
    work = tir.ops.matmul(m=9, n=8, k=7, bias=True, act=act)
    arrays = [a / 4 for a in random_arguments(work.outputs, 2)]
    want = work.reference(*arrays)
    for got in (np.asarray(work.schedule(target="opencl").build("opencl:pocl")(*arrays)),
                emulate(work.schedule(target="cuda").emitted(), arrays).outputs[0]):  # fmt: skip
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def exact(work: tir.Workload, target: str) -> bool:
    arrays = random_arguments(work.outputs, 2)
    got = np.asarray(work.schedule(target=target).build("opencl:pocl")(*arrays))
    want = work.reference(*arrays)
    return got.dtype == want.dtype and np.array_equal(got.astype("float64"), want.astype("float64"))


def alternately(options):
    """Each with one target: the device's compiler takes seconds for each."""
    return [(o, ("opencl", "opencl -kind=gpu")[n % 2]) for n, o in enumerate(options)]


@pytest.mark.parametrize(("options", "target"), [*alternately(MATMULS), (MATMULS[0], "opencl -kind=gpu")], ids=str)
def test_matmul_options(options, target):
    assert exact(tir.ops.matmul(**options), target)


@pytest.mark.parametrize(("options", "target"), [*alternately(CONVS), (CONVS[1], "opencl")], ids=str)
def test_conv2d_options(options, target):
    assert exact(tir.ops.conv2d(**options), target)


def test_results_of_8_bit_floats_are_bfloat16():
    assert exact(tir.ops.matmul(m=3, n=9, k=5, dtype="float8_e4m3", bias=True, beta=True, alpha=True), "opencl")
    assert exact(tir.ops.conv2d(n=1, c=2, h=4, w=5, k=3, dtype="float8_e5m2", bias=True, residual=True), "opencl")


@pytest.mark.parametrize("seed", range(8))
def test_any_configuration_of_any_space_is_right(seed):
    g = random.Random(seed)
    if seed % 2:
        groups = g.choice([1, 1, 2])
        work = tir.ops.conv2d(
            n=1,
            c=groups * g.randint(1, 5),
            h=g.randint(5, 11),
            w=g.randint(5, 11),
            k=groups * g.randint(1, 9),
            r=g.randint(1, 3),
            s=g.randint(1, 3),
            stride=g.randint(1, 2),
            pad=g.randint(0, 2),
            groups=groups,
            layout=g.choice(["NCHW", "NHWC"]),
        )
    else:
        work = tir.ops.matmul(
            m=g.randint(1, 40), n=g.randint(1, 40), k=g.randint(1, 20), ta=g.random() < 0.5, tb=g.random() < 0.5
        )
    for name, template in work.templates.items():
        space, target = template.space, "opencl -kind=cpu" if "cpu" in template.kinds else "cuda"
        config = space.config(g.randrange(len(space.legal)))
        assert compare(work.schedule(config, template=name, target=target), Field(), seed) is None, config


@pytest.mark.parametrize("work", [
    tir.ops.conv2d(n=1, c=16, h=14, w=14, k=16, r=3, s=3), tir.ops.matmul(m=64, n=64, k=64),
], ids=["conv2d", "matmul"])  # fmt: skip
def test_the_default_is_in_the_space_and_one_kernel_without_workspace(work):
    for template in work.templates.values():
        assert template.space.index(template.space.default) >= 0
    for target in ("opencl", "cuda"):
        source = work.schedule(target=target).emitted()
        assert len(source.kernels) == 1
        assert source.workspace_bytes == 0


def test_gpu_templates_stage_both_operands():
    for work, operands in (
        (tir.ops.matmul(m=256, n=256, k=256), ("a_shared", "b_shared")),
        (tir.ops.conv2d(n=1, c=64, h=28, w=28, k=64, r=3, s=3, pad=1), ("x_pad_packed_shared", "w_packed_shared")),
    ):
        text = work.schedule(target="cuda").source()
        assert all(f"float {name}[" in text for name in operands)


BAD = [
    (dict(stride=0), "conv2d.stride"),
    (dict(pad=-1), "conv2d.pad"),
    (dict(groups=3), "conv2d.groups"),
    (dict(h=2, r=5), "conv2d.extent"),
    (dict(c=0), "ops.extent"),
    (dict(layout="CHWN"), "conv2d.layout"),
    (dict(act="swish"), "nn.act"),
]


@pytest.mark.parametrize(("options", "code"), BAD, ids=str)
def test_bad_parameters(options, code):
    with pytest.raises(tir.DeclarationError) as caught:
        tir.ops.conv2d(**{**dict(n=1, c=4, h=8, w=8, k=4, r=3, s=3), **options})
    assert caught.value.code == code


def test_large_arrays_are_indexed_with_64_bits():
    n = 50_000
    a = tir.placeholder((n, n), name="A")
    b = tir.compute((n, n), lambda i, j: a[j, i] + 1, name="B")
    s = tir.Schedule(b)
    outer, inner = s[b].split("i", [None, 64])
    s[b].bind(outer, "block.x").bind(inner, "thread.x")
    assert "const long i_0" in s.source("opencl")
    assert "const long long i_0" in s.source("cuda")


@pytest.mark.parametrize("act", [None, "relu", "gelu", "silu", "sigmoid", "tanh"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16"])
def test_references_give_what_is_declared_for_any_activation(dtype, act):
    """Of whole numbers most activations make others, which the reference may not cut off."""
    for w in (
        tir.ops.matmul(m=3, n=5, k=4, dtype=dtype, act=act),
        tir.ops.conv2d(n=1, c=2, h=3, w=4, k=5, dtype=dtype, act=act),
        tir.ops.grouped_matmul(m=3, n=5, k=4, groups=1, dtype=dtype, act=act),
    ):
        arrays = w.random_inputs()
        (want,) = evaluate(w.outputs, arrays)
        got = w.reference(*arrays)
        assert got.dtype == want.dtype, w.title
        np.testing.assert_allclose(got.astype("float64"), want.astype("float64"), rtol=2e-3, atol=1e-6)


def test_libraries_that_add_nothing_are_no_peers_of_what_adds():
    """A residual was handed to callables of two arguments, whose error left the peer out without a word."""
    plain = dict(c=4, h=6, w=6, k=4, pad=1)
    assert tir.ops.conv2d(**plain).baselines
    for more in ("bias", "residual"):
        assert not tir.ops.conv2d(**plain, **{more: True}).baselines
