"""What the emulator's judge must not take for rounding: faults that are small beside the largest result."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.verdict import compare_results
from tensorir.interp.magnitude import narrow_sums, rounds_inside, rounds_last
from tensorir.interp.reference import evaluate, random_arguments

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
SMALL = dict(bm=64, bn=64, wm=32, wn=32, bk=32, depth=2, raster=1, staged=0)


@functools.cache
def product(act: str | None, dtype: str = "float16") -> tir.Schedule:
    """alpha A B + beta D + bias, on tensor cores."""
    w = tir.ops.matmul(m=40, n=40, k=200, dtype=dtype, bias=True, alpha=True, beta=True, act=act)
    space = w.templates["gpu_tile_mma"].space_for(tir.Target.parse("cuda -arch=sm_80"))
    return w.schedule({**space.default, **SMALL}, "gpu_tile_mma", "cuda -arch=sm_80")


def fate(s: tir.Schedule, pattern: str, new: str) -> set[str]:
    """The codes that a check of the edited text gives."""
    text, count = re.subn(pattern, new, s.source())
    assert count
    return {p.code for p in s.with_source(text).check("emulate").problems}


EPILOGUES = {
    "beta left out": (r"\bbeta \* ", ""),
    "bias left out": (r"(__half2float\(bias_lanes\[)", r"0.0f * \1"),
    "alpha on the bias": (r"__half2float\(bias_lanes\[", "alpha * __half2float(bias_lanes["),
    "the bias of a neighbour": (r"bias_lanes\[(.*?)\]", r"bias_lanes[(\1) ^ 1]"),
}


@pytest.mark.parametrize("act", [None, "gelu"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_small_terms_of_an_epilogue_count(name: str, act: str | None) -> None:
    assert fate(product(act), *EPILOGUES[name]) == {"check.wrong-result"}


@pytest.mark.parametrize(("dtype", "pattern", "new"), [
    ("float16", r"\balpha \* (c\[.*?\])", r"alpha * __half2float(__float2half_rn(\1))"),
    ("bfloat16", r"\+ 0x7fffu \+ \(\([uv] >> 16\) & 1u\)", ""),
    ("bfloat16", r"0x7fffu \+ \(\([uv] >> 16\) & 1u\)", "0x8000u"),
])  # fmt: skip
def test_rounding_twice_or_another_way_is_found(dtype: str, pattern: str, new: str) -> None:
    assert fate(product(None, dtype), pattern, new) == {"check.wrong-result"}


def each(given: str, made: str, f: Callable[[tir.Tensor], tir.Expr]) -> tir.Schedule:
    """One value a thread."""
    x = tir.placeholder((1024,), given, name="x")
    s = tir.Schedule(tir.compute((1024,), lambda i: f(x[i]), name="y"), "cuda -arch=sm_80")
    block, thread = s.split("y.i", [None, 128])
    return s.bind(block, "block.x").bind(thread, "thread.x")


@pytest.mark.parametrize(("given", "made", "pattern", "new"), [
    ("float32", "float8_e4m3", r"size \+ 0x7ffffu \+ \(\(size >> 20\) & 1u\)", "size"),
    ("float32", "float8_e4m3", r"\| 0x7f", "| 0x7e"),  # 448 instead of NaN
    ("float32", "float8_e4m3", r"\(__float_as_uint\(__uint_as_float\(size\).*?\)\);", "0u);"),
    ("float32", "float16", r"__float2half_rn\((.*?)\);",
     r"__float2half_rn(__uint_as_float(__float_as_uint(\1) & 0xffffe000u));"),
])  # fmt: skip
def test_conversions_of_numbers_of_every_size(given: str, made: str, pattern: str, new: str) -> None:
    s = each(given, made, lambda x: tir.cast(x, made))
    assert s.check("emulate")
    assert fate(s, pattern, new) == {"check.wrong-result"}


@pytest.mark.parametrize("bound", ["127", "-128"])
def test_bounds_of_integers_are_reached(bound: str) -> None:
    s = each("int32", "int8", lambda x: tir.cast(tir.where(x > 127, 127, tir.where(x < -128, -128, x)), "int8"))
    assert s.check("emulate")
    assert fate(s, rf"\? {bound}", "? 0") == {"check.wrong-result"}


def test_operands_that_are_rounded_are_found() -> None:
    """Each operand once: both as long as float32 allows would leave no room for their products."""
    s = tir.ops.matmul(m=33, n=36, k=19).schedule(
        dict(ti=8, tj=8, ri=4, rj=4, bk=8, vector=4, fragments=1, depth=1, splits=1), "gpu_tile", "cuda"
    )
    for operand in "ab":
        at = rf"(\+= .*?)({operand}_shared_register\[\w+\])"
        new = r"\1__uint_as_float(__float_as_uint(\2) & 0xffffe000u)"
        assert fate(s, at, new) == {"check.wrong-result"}


def test_a_wrong_constant_in_a_function_is_found() -> None:
    """Of arguments as large as sums of whole numbers, erf is 1 whatever is wrong."""
    assert fate(product("gelu"), r"0\.70710677f", "0.69f") == {"check.wrong-result"}


def test_half_a_warp_at_another_instruction_is_told() -> None:
    at = r"( *)(tir_ldmatrix_x4\(a_shared_warp.*)"
    assert "warp.divergent" in fate(product(None), at, r"\1if (lane < 16) { \2 } else {\n\1\2 }")


def test_a_mask_that_leaves_lanes_out_is_told() -> None:
    w = tir.ops.matmul(m=64, n=64, k=64, tb=True, dtype="bfloat16")
    s = w.schedule(None, "gpu_tile_wgmma", "cuda -arch=sm_90a")
    assert "warp.divergent" in fate(s, r"__shfl_sync\(0xffffffffu", "__shfl_sync(0xffffu")
    assert "warp.registers" in fate(s, r"registers_down<40>", "registers_down<256>")


def test_when_results_are_exact() -> None:
    a, b = tir.placeholder((8, 64), "bfloat16", name="a"), tir.placeholder((64, 8), "bfloat16", name="b")
    wide = tir.nn.matmul(a, b, accumulate="float32", name="c")
    out = tir.compute((8, 8), lambda i, j: tir.cast(wide[i, j], "bfloat16"), name="out")
    again = tir.compute((8, 8), lambda i, j: tir.cast(out[i, j], "float32") * 3.0, name="again")
    narrow = tir.nn.matmul(a, b, name="n")
    arrays = random_arguments((out,))
    assert rounds_last((out,), arrays)
    assert not rounds_last((out,), [x / 3 for x in arrays])
    assert not rounds_last((again,), arrays), "what was rounded is read again"
    assert not rounds_last((narrow,), arrays), "sums may be stored, and rounded, after any of their terms"
    assert not rounds_last((out,), [x * 256 for x in arrays], (8, 8)), "terms of more digits than are multiplied"
    assert [rounds_inside((x,)) for x in (out, again, narrow)] == [False, True, True]
    widened = tir.compute((8, 8), lambda i, j: tir.cast(narrow[i, j], "float32"), name="widened")
    assert [narrow_sums(x) for x in (out, again, narrow, widened)] == [set(), set(), {"bfloat16"}, {"bfloat16"}]
    wide = tir.nn.matmul(widened, tir.placeholder((8, 8), name="w"), name="wide")
    assert narrow_sums(wide) == set(), "a term of the wider sum would be hidden"
    (want,) = evaluate((widened,), arrays)
    assert compare_results((widened,), (want + np.abs(want).max() / 100,), (want,)), "each term is rounded to 8 bits"
    assert not compare_results((widened,), (want + np.abs(want).max() / 10,), (want,))
    assert not compare_results((widened,), (want + np.abs(want).max() / 100,), (want,), exact=True)
    (want,) = evaluate((out,), arrays)
    next_one = np.nextafter(want, np.asarray(np.inf, want.dtype))
    assert compare_results((out,), (next_one,), (want,)), "one step apart, by the order of a sum"
    assert not compare_results((out,), (next_one,), (want,), exact=True)
    off = want.copy()
    off.flat[np.argmin(np.abs(want.astype(np.float32)))] += 2
    assert not compare_results((out,), (off,), (want,)), "small beside the largest, and no rounding"
