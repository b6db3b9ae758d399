"""grouped_matmul: rows of groups with the matrix of their group, which data names; -1 and all else is no group."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from emulating import beyond, small_integers
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.automatic.rules.tile_gpu import ENGINES
from tensorir.check.emulate import emulate
from tensorir.engines.problems import Gemm
from tensorir.interp.reference import random_arguments
from tensorir.ops.products import blocks_of

pytestmark = pytest.mark.usefixtures("unoptimised")

AMPERE, HOPPER = "cuda -arch=sm_80", "cuda -arch=sm_90a -units=4"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
SIZES = [33, 0, 1, 64]
"""Rows of four groups: one more than a block, none, one, whole blocks."""


def work(**changed):
    return tir.ops.grouped_matmul(**{"m": 192, "n": 40, "k": 48, "groups": 4, "align": 32, **changed})


def by_hand(arrays, sizes, align):
    """Each group's rows times its matrix."""
    a, b = (np.asarray(x).astype(np.float64) for x in arrays)
    out = np.zeros((a.shape[0], b.shape[2]))
    first = 0
    for g, rows in enumerate(sizes):
        out[first : first + rows] = a[first : first + rows] @ b[g]
        first += -(-rows // align) * align
    return out


def test_table_of_sizes():
    table, first = blocks_of(SIZES, 32)
    assert table.tolist() == [0, 0, 2, 3, 3]
    assert table.dtype == np.int32
    assert first.tolist() == [0, 64, 64, 96]
    assert blocks_of(SIZES, 32, 200)[0].tolist() == [0, 0, 2, 3, 3, -1, -1]
    assert blocks_of([33, 1], 32, 65)[0].tolist() == [0, 0, 1], "the last group ends where its rows do"
    assert blocks_of(np.array([1, 0], np.uint8), 16)[0].tolist() == [0]
    assert blocks_of([], 16)[0].shape == (0,)
    assert blocks_of([2**31, 0], 2**31)[0].tolist() == [0], "as many rows as there can be"
    with pytest.raises(tir.DeclarationError, match="m=160"):
        blocks_of(SIZES, 32, 159)


def test_reference_is_group_by_group():
    w = work(n=8, k=16)
    a, b, _ = random_arguments(w.outputs, 0)
    table, first = blocks_of(SIZES, 32, 192)
    a[33:64], a[65:96] = 0, 0  # what fills blocks up
    assert np.array_equal(w.reference(a, b, table), by_hand((a, b), SIZES, 32))
    assert first[2] == 64


def test_tables_for_measuring_name_groups():
    table = work(m=16 * 500, align=16).random_inputs(1)[2]
    assert set(table.tolist()) == {0, 1, 2, 3}


def test_tables_for_checking_name_what_is_no_group():
    table = random_arguments(work(m=16 * 500, align=16).outputs, 1)[2]
    assert set(table.tolist()) == {-1, 0, 1, 2, 3, 4}


CASES = {
    "fp32": ({}, AMPERE, "gpu_tile_warp"),
    "fp32 nt, a last block of one row": (dict(tb=True, m=161, act="relu"), "cuda -arch=sm_75", "gpu_tile_warp"),
    "fp16": (dict(dtype="float16", m=190), AMPERE, "gpu_tile_mma"),
    "bf16 nt, few rows": (dict(dtype="bfloat16", tb=True, align=16, m=80), AMPERE, "gpu_tile_mma"),
    "int8": (dict(dtype="int8", tb=True, align=64), AMPERE, "gpu_tile_mma"),
    "3xtf32": (dict(precision="3xtf32", m=64), AMPERE, "gpu_tile_mma"),
    "bf16 wgmma": (dict(dtype="bfloat16", align=64, n=72, k=136, m=330), HOPPER, "gpu_tile_wgmma"),
    "fp16 wgmma nt": (dict(dtype="float16", tb=True, align=128, n=136, m=385), HOPPER, "gpu_tile_wgmma"),
    "tf32 wgmma": (dict(precision="tf32", tb=True, align=64, act="relu"), HOPPER, "gpu_tile_wgmma"),
    "tiles of 48 rows": (dict(align=48, m=100), AMPERE, "gpu_tile_warp"),
}


def is_right(w, s, seed=0, eager=False, table=None):
    """Whether the text is exact on small integers, with nothing to tell; the table as drawn, or as given."""
    source = s.emitted()
    arrays = [*small_integers(source, seed)[:2], random_arguments(w.outputs, seed)[2] if table is None else table]
    got = emulate(source, arrays, seed=seed, eager=eager)
    assert not got.problems, got.problems
    return np.array_equal(got.outputs[0], w.reference(*arrays).astype(got.outputs[0].dtype))


@emulated
@pytest.mark.parametrize("case", CASES)
def test_default_multiplies(case):
    options, target, template = CASES[case]
    w = work(**options)
    assert w.template_for(target) == template
    s = w.schedule(target=target)
    assert is_right(w, s)


@emulated
def test_rows_of_no_group_are_zero():
    w = work(dtype="bfloat16", align=64)
    assert is_right(w, w.schedule(target=HOPPER), table=np.full(w.inputs[2].shape, -1, np.int32))


@pytest.mark.parametrize("case", ["fp32", "bf16 nt, few rows", "bf16 wgmma"])
def test_default_is_proved(case):
    options, target, _ = CASES[case]
    assert work(**options).schedule(target=target).check()


@pytest.mark.parametrize(
    ("options", "target"), [(dict(dtype="float16", tb=True, act="relu", m=170), "opencl"), ({}, "opencl -kind=gpu")]
)
def test_on_other_devices(options, target):
    w = work(**options)
    arrays = random_arguments(w.outputs, 2)
    got = np.asarray(w.schedule(target=target).build("opencl:pocl")(*arrays))
    assert np.array_equal(got.astype("float64"), w.reference(*arrays).astype("float64"))


@emulated
@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["gpu_tile_warp", "gpu_tile_mma", "gpu_tile_wgmma"]), st.integers(1, 300),
       st.integers(1, 12), st.integers(1, 12), st.sampled_from([64, 128]), st.booleans())  # fmt: skip
def test_any_configuration(seed, template, m, n, k, align, tb):
    dtype = "float32" if template == "gpu_tile_warp" else "bfloat16"
    w = work(m=m, n=8 * n, k=8 * k, align=align, tb=tb, dtype=dtype)
    target = HOPPER if template == "gpu_tile_wgmma" else AMPERE
    space = w.templates[template].space_for(tir.Target.parse(target))
    config = space.config(seed % len(space.legal))
    assert is_right(w, w.schedule(config, template, target), seed, bool(seed % 2)), config


@emulated
@pytest.mark.parametrize("template", ["gpu_tile_warp", "gpu_tile_mma", "gpu_tile_wgmma"])
def test_sums_in_parts(template):
    dtype, target = ("float32", AMPERE) if template == "gpu_tile_warp" else ("bfloat16", HOPPER)
    w = work(m=100, n=40, k=264, align=64, dtype=dtype)
    small = {"gpu_tile_mma": dict(bm=64, wm=32), "gpu_tile_wgmma": dict(groups=1)}.get(template, {})
    config = w.templates[template].space_for(tir.Target.parse(target)).default
    assert is_right(w, beyond(w, {**config, **small, "splits": 2}, template, target))


@pytest.mark.parametrize(("align", "rows"), [(16, 16), (48, 16), (64, 64), (4096, 128)])
def test_blocks_have_rows_of_one_group(align, rows):
    big = dict(m=align * 64, n=4096, k=4096, align=align)
    for options, target in ((big, AMPERE), (dict(big, dtype="float16"), AMPERE), (dict(big, dtype="float16"), HOPPER)):
        w = work(**options)
        name = w.template_for(target)
        space = w.templates[name].space_for(tir.Target.parse(target))
        configs = [space.default, *map(space.config, range(0, len(space.legal), 97))]
        shape = Gemm(groups=8, **options)
        high = [ENGINES[name.removeprefix("gpu_")](c, shape, tir.Target.parse(target)).high for c in configs]
        assert all(align % n == 0 for n in high)
        if name == "gpu_tile_mma":
            assert high[0] == rows


def test_copies_are_as_wide_as_without_groups():
    text = work(dtype="float16", m=4096, n=4096, k=4096, tb=True, align=128).schedule(target=AMPERE).source()
    assert "tir_copy_async_16(b_block_shared" in text
    assert "tir_copy_async_8" not in text


def test_tiles_beyond_the_table_read_none_of_it():
    """Some blocks have one tile less: what names its group does not exist."""
    text = work(dtype="bfloat16", m=320, align=64, n=64).schedule(target=HOPPER).source()
    assert "&b_map" in text
    assert ": -1);" in text


def by_place(dtype):
    """Rows of a table that data names, copied as tiles."""
    b, at = tir.placeholder((4, 64, 64), "bfloat16", name="b"), tir.placeholder((3,), dtype, name="at")
    c = tir.compute((3, 64, 64), lambda z, i, j: b.get(at[z], i, j, fill=0), name="c")
    d = tir.compute((3, 64, 64), lambda z, i, j: c[z, i, j] * 2, name="d")
    s = tir.Schedule(d, HOPPER)
    s.bind("d.z", "block.x")
    s.stage_in("c", at="d.z", scope="shared", layout="z, r, x -> z, x/64, r, x/8%8 ^ r%8, x%8", via="tma")
    return s.compute_inline("c")


def test_places_of_tiles_have_32_bits():
    by_place("int32")
    with pytest.raises(tir.ScheduleError) as e:
        by_place("int64")  # 2**32 would be taken for 0
    assert e.value.code == "tensorize.last"


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_compiles(arch):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    w = work(m=8192, n=4096, k=4096, align=128, dtype="float32" if arch == "sm_75" else "bfloat16")
    cubin = compile_cubin(w.schedule(target=f"cuda -arch={arch}").source(), arch)
    assert cubin.spills == 0
    assert "C75" not in cubin.log


def test_what_does_not_fit():
    a, b = tir.placeholder((64, 16), name="a"), tir.placeholder((3, 16, 8), name="b")
    table = tir.placeholder((2,), "int32", name="group")
    assert tir.nn.grouped_matmul(a, b, table, align=32).shape == (64, 8)
    for wrong in (dict(tb=True), dict(align=16), dict(group=tir.placeholder((2,), "int64"))):
        with pytest.raises(tir.DeclarationError) as e:
            tir.nn.grouped_matmul(a, b, **{"group": table, "align": 32, **wrong})
        assert e.value.code == "grouped-matmul.shape", wrong


@emulated
@pytest.mark.parametrize("in_flight", [0, 1])
def test_blocks_with_nothing_to_do_read_no_table(in_flight):
    """Bands of four rows of blocks, of which there are two: addresses are computed, also of what is not copied."""
    w = work(m=128, n=64, align=64, dtype="bfloat16")
    config = dict(bm=64, bn=64, wm=32, wn=32, bk=32, depth=2, in_flight=in_flight, raster=4, splits=1, atomic=0, rest=0)
    assert is_right(w, beyond(w, {**config, "staged": 1}, "gpu_tile_mma", AMPERE))
