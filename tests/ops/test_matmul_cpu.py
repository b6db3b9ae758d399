"""matmul on CPUs: any shape, option and configuration is exact; traces replay; defaults suit the shape."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.engines.gemm_cpu import (
    PRICES,
    element_cycles,
    packing_cycles,
    panel_cycles,
    reading_cycles,
)
from tensorir.engines.problems import Gemm
from tensorir.interp.numbers import Field
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.ir.tree import If, Select
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower
from tensorir.machine import CPU as MACHINE
from tensorir.tune.template import suiting

pytestmark = pytest.mark.usefixtures("unoptimised")

CPU = "opencl -registers=16 -vector_bytes=32 -units=2"
WIDE = "opencl -registers=32 -vector_bytes=64 -units=2"
TARGETS = st.sampled_from([CPU, WIDE])
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32")

options = st.fixed_dictionaries(
    dict(
        m=st.one_of(st.integers(1, 20), st.just(1)),
        n=st.integers(1, 50),
        k=st.integers(1, 24),
        batch=st.sampled_from([1, 1, 1, 2, 3]),
        ta=st.booleans(),
        tb=st.booleans(),
        alpha=st.booleans(),
        beta=st.booleans(),
        bias=st.booleans(),
        act=st.sampled_from([None, "relu"]),
        prepack=st.booleans(),
    )
)


def templates(work):
    return dict(suiting(work.templates, tir.Target.parse("opencl")))


def drawn(data, work, target):
    """A template and one of its configurations."""
    name = data.draw(st.sampled_from(sorted(templates(work))))
    space = work.templates[name].space_for(tir.Target.parse(target))
    return name, space.config(data.draw(st.integers(0, len(space.legal) - 1)))


def same_in_the_field(a, b):
    """Whether two declarations of the same inputs agree exactly, over the field of 2^31 - 1."""
    arrays = random_arguments((a,), 3, Field())
    return np.array_equal(evaluate((a,), arrays, Field())[0], evaluate((b,), arrays, Field())[0])


def on_device(s, work):
    """Whether the compiled kernels agree exactly on small whole numbers."""
    arrays = random_arguments(work.outputs, 3)
    got = np.asarray(s.build("opencl:pocl")(*arrays))
    want = work.reference(*arrays)
    return got.dtype == want.dtype and np.array_equal(got.astype("float64"), want.astype("float64"))


@settings(max_examples=16, deadline=None)
@given(options, TARGETS, st.data())
def test_every_configuration_of_every_template_is_exact(parameters, target, data):
    work = tir.ops.matmul(**parameters)
    name, config = drawn(data, work, target)
    s = work.schedule(config, template=name, target=target)
    assert compare(s, Field(), 1) is None  # the schedule is what it declares
    assert same_in_the_field(work.outputs[0], s.outputs[0])  # and that is the product
    again = tir.replay(s.outputs, s.trace, target=target)
    assert again.source() == s.source()


@settings(max_examples=12, deadline=None)
@given(options, st.sampled_from(DTYPES), TARGETS, st.data())
def test_and_on_the_device_in_every_type(parameters, dtype, target, data):
    work = tir.ops.matmul(**parameters, dtype=dtype)
    name, config = drawn(data, work, target)
    assert on_device(work.schedule(config, template=name, target=target), work)


AWKWARD = [
    dict(m=1, n=37, k=29), dict(m=1, n=1, k=1), dict(m=13, n=7, k=9, batch=2), dict(m=8, n=100, k=70),
    dict(m=50, n=17, k=11, bias=True, act="gelu"), dict(m=5, n=65, k=40, alpha=True, beta=True),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "ta", "tb"), [
    (p, bool((n ^ other) & 1), bool((n ^ other) & 2)) for n, p in enumerate(AWKWARD) for other in (0, 3)
], ids=str)  # fmt: skip
def test_defaults_pass_the_check(parameters, ta, tb):
    work = tir.ops.matmul(**parameters, ta=ta, tb=tb, prepack=ta != tb)
    for name, template in templates(work).items():
        assert template.space.index(template.space.default) >= 0
        assert work.schedule(template=name, target=CPU).check(level="fast"), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_default_in_every_type_on_the_device(dtype):
    for target, parameters in (
        (CPU, dict(m=13, n=37, k=21)), (WIDE, dict(m=64, n=48, k=33, tb=True)), (WIDE, dict(m=9, n=40, k=64, ta=True)),
    ):  # fmt: skip
        work = tir.ops.matmul(**parameters, dtype=dtype)
        assert on_device(work.schedule(target=target), work)


# --- prepack


def test_prepack_packs_b_once_and_says_so_in_the_name():
    work = tir.ops.matmul(m=20, n=40, k=30, prepack=True)
    assert work.parameters["prepack"] is True
    assert "prepack" not in tir.ops.matmul(m=20, n=40, k=30).parameters
    s = work.schedule(target="opencl")
    packing = [k for k in s.emitted().kernels if k.once]
    assert len(packing) == 1
    a, b = (np.arange(x.shape[0] * x.shape[1], dtype="float32").reshape(x.shape) % 5 for x in work.inputs)
    f = s.build("opencl:pocl")
    assert np.array_equal(np.asarray(f.prepack(b=b)(a)), a @ b)
    with pytest.raises(tir.DeclarationError):
        tir.ops.matmul(prepack=1)


def test_every_template_has_a_configuration_without_packing_in_each_launch_when_prepacked():
    for tb in (False, True):
        work = tir.ops.matmul(m=9, n=40, k=30, tb=tb, prepack=True)
        for name in templates(work):
            kernels = work.schedule(template=name, target=CPU).emitted().kernels
            assert sum(not k.once for k in kernels) == 1, name


# --- what the defaults look like


@pytest.mark.parametrize(("parameters", "first"), [
    (dict(m=512, n=512, k=512), "cpu_tile_column"),
    (dict(m=512, n=512, k=512, prepack=True), "cpu_tile_column"),
    (dict(m=1, n=3072, k=768), "cpu_rows_across"),
    (dict(m=32, n=4096, k=4096), "cpu_tile_strip"),
    (dict(m=32, n=4096, k=4096, prepack=True), "cpu_tile_column"),
    (dict(m=1, n=64, k=4096, tb=True), "cpu_rows"),
    (dict(m=1, n=3072, k=768, tb=True, prepack=True), "cpu_tile_column"),
    (dict(m=384, n=1, k=512), "cpu_rows"),
    (dict(m=512, n=512, k=512, tb=True), "cpu_tile_column"),
], ids=str)  # fmt: skip
def test_the_first_template_suits_the_shape(parameters, first):
    assert tir.ops.matmul(**parameters).template_for(CPU) == first


@pytest.mark.parametrize("parameters", [
    dict(m=250, n=256, k=64), dict(m=128, n=768, k=768), dict(m=4096, n=16, k=64), dict(m=8, n=3072, k=768),
    dict(m=128, n=768, k=768, prepack=True), dict(m=16, n=1024, k=512, tb=True), dict(m=40, n=40, k=40, batch=3),
], ids=str)  # fmt: skip
def test_default_blocks_fill_two_cores(parameters):
    kernel = tir.ops.matmul(**parameters).schedule(target=CPU).emitted().kernels[-1]
    assert np.prod(kernel.grid) % 2 == 0


@pytest.mark.parametrize("parameters", [
    dict(m=250, n=64, k=64), dict(m=250, n=64, k=64, ta=True), dict(m=8, n=128, k=128), dict(m=1, n=512, k=128),
], ids=str)  # fmt: skip
def test_no_guard_in_the_loops_and_named_accumulators(parameters):
    s = tir.ops.matmul(**parameters).schedule(target=CPU)
    for kernel in lower(s.program, s.target).kernels:
        assert not find(kernel.body, (If, Select))
    assert "float8 " in s.source() or "float16 " in s.source()


def test_the_model_of_a_tile():
    narrow, wide = (Gemm(m=14, n=32, k=100, vector_bytes=n) for n in (32, 64))
    assert panel_cycles(narrow, 6, 6, 2) == pytest.approx(12 * MACHINE.prices.multiply + 8 * PRICES.load)
    assert panel_cycles(wide, 14, 14, 2) == pytest.approx(28 * MACHINE.prices.multiply + 16 * PRICES.load)
    assert panel_cycles(narrow, 1, 6, 1) == MACHINE.prices.sum  # of one chain
    one_set = replace(wide, k=1024)  # of the first-level cache: 14 rows do not fit
    assert panel_cycles(one_set, 14, 14, 2) / 2 > panel_cycles(one_set, 14, 6, 4) / 4
    assert panel_cycles(narrow, 7, 6, 2) == pytest.approx(panel_cycles(narrow, 4, 4, 2) + panel_cycles(narrow, 3, 3, 2))


def test_the_model_of_what_is_read():
    p = Gemm(m=64, n=256, k=256, vector_bytes=64)
    small, large = (element_cycles(p, depth, 32, False) for depth in (128, 512))
    assert 0 == small < large  # a panel that leaves the first-level cache
    pitch = replace(p, n=1024)  # 4 KiB: rows of b fall into one set
    assert element_cycles(pitch, 128, 32, True) > element_cycles(pitch, 128, 32, False)
    assert element_cycles(replace(p, n=1016), 16, 32, True) > 0  # vectors that cross lines
    runs = replace(p, n=784, run=28)
    assert element_cycles(runs, 16, 32, True) > packing_cycles(runs, 2, False) > packing_cycles(p, 2, False)
    assert packing_cycles(replace(p, n=1000), 2, False) > packing_cycles(p, 2, False)  # half a vector at the end
    assert reading_cycles(p, 32, 0, 2) > reading_cycles(p, 64, 0, 2)  # each core reads all of b
    assert reading_cycles(p, 64, 16, 2) > reading_cycles(p, 64, 128, 2) > reading_cycles(p, 64, 0, 2)  # in runs


@pytest.mark.parametrize("parameters", [
    {}, dict(tb=True), dict(m=1), dict(n=1, batch=2), dict(m=1, tb=True, prepack=True), dict(k=1, dtype="int8"),
    dict(m=1, n=1, k=1), dict(dtype="float16", ta=True, beta=True), dict(dtype="float8_e4m3"), dict(dtype="float64"),
], ids=str)  # fmt: skip
def test_templates_that_are_known_without_rules_are_among_those_that_rules_make(parameters):
    work = tir.ops.matmul(**{"m": 40, "n": 24, "k": 32, **parameters})
    told = [name for name in ("cpu_tile_column", "cpu_tile_strip", "cpu_tile_dot") if name in work.templates]
    assert told and {*told} <= {*work.templates}
