"""Faults in CUDA text that a run on a few small whole numbers, or a run at all, does not show: each kind is told."""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.detection import not_run, parts
from tensorir.check.emulate import emulate
from tensorir.check.exact_inputs import short
from tensorir.codegen.helpers import hopper_text
from tensorir.interp.distinct import scalar, table
from tensorir.interp.reference import evaluate, random_arguments

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
_THREADS = dict(ti=8, tj=8, ri=4, rj=4, bk=8, vector=4, fragments=1, depth=1)
_WARPS = dict(bm=64, bn=64, wm=32, wn=32, bk=32, depth=2, in_flight=1, raster=1, splits=1, atomic=0, staged=0)
_GROUPS = dict(groups=1, rows=1, bn=64, depth=3, cluster=1, raster=1, resident=1, splits=1, atomic=0, rest=0)
_HOPPER = "cuda -arch=sm_90a -units=2"


def _matmul(template: str, target: str, config: dict[str, int], **shape: object) -> tir.Schedule:
    w = tir.ops.matmul(**shape)
    space = w.templates[template].space_for(tir.Target.parse(target))
    return w.schedule({**space.default, **config}, template, target)


@functools.cache
def kernel(name: str) -> tir.Schedule:
    """Small kernels, on shapes where scalars used to be alike."""
    match name:
        case "threads":
            return _matmul("gpu_tile", "cuda", _THREADS, m=72, n=40, k=70, alpha=True, beta=True)
        case "bf16":
            return _matmul("gpu_tile_mma", "cuda -arch=sm_80", _WARPS, m=72, n=40, k=72, dtype="bfloat16", alpha=True,
                           beta=True)  # fmt: skip
        case "3xtf32" | "tf32":
            config = _WARPS | dict(bk=16)
            return _matmul("gpu_tile_mma", "cuda -arch=sm_80", config, m=40, n=40, k=72, precision=name)
        case "wgmma":
            config = _GROUPS | dict(groups=2, pingpong=1)
            return _matmul("gpu_tile_wgmma", _HOPPER, config, m=280, n=56, k=264, tb=True, dtype="bfloat16")
        case "wgmma tf32":
            shape = dict(m=72, n=72, k=72, tb=True, precision="tf32")
            return _matmul("gpu_tile_wgmma", _HOPPER, _GROUPS | dict(pingpong=0, depth=2), **shape)
        case "grouped":
            w = tir.ops.grouped_matmul(m=96, n=40, k=40, groups=3, align=32, dtype="bfloat16")
            return w.schedule({**_WARPS, "bm": 32, "wm": 16, "rest": 0}, "gpu_tile_mma", "cuda -arch=sm_80")
    raise KeyError(name)


def fate(s: tir.Schedule, pattern: str, new: str, count: int = 0) -> set[str]:
    """The codes that a check of the edited text gives."""
    text, made = re.subn(pattern, new, s.source(), count=count)
    assert made, pattern
    try:
        return {p.code for p in s.with_source(text).check("emulate").problems}
    except tir.CheckError as e:
        return {e.code}


@pytest.mark.parametrize("name", ["threads", "bf16", "3xtf32", "tf32", "wgmma", "wgmma tf32", "grouped"])
def test_what_is_emitted_is_right(name: str) -> None:
    assert kernel(name).check("emulate")
    assert kernel(name).with_source(kernel(name).source()).check("emulate")


SCALARS = {
    "exchanged": (r"alpha \* (c\[.*?\]) \+ beta \* ", r"beta * \1 + alpha * "),
    "one of them unused": (r"\bbeta \* ", "alpha * "),
    "always positive": (r"\balpha \* ", "fabsf(alpha) * "),
    "always negative": (r"\balpha \* ", "-fabsf(alpha) * "),
    "rounded": (r"\bbeta \* ", "__uint_as_float((__float_as_uint(beta) + 0x8000u) & 0xffff0000u) * "),
    "limited": (r"\bbeta \* ", "fminf(beta, 100.0f) * "),
    "limited below": (r"\bbeta \* ", "fmaxf(beta, -100.0f) * "),
    "made whole": (r"\bbeta \* ", "(float)(int)beta * "),
    "rounded to half": (r"\bbeta \* ", "__uint_as_float((__float_as_uint(beta) + 0x1000u) & 0xffffe000u) * "),
}


@pytest.mark.parametrize("name", ["threads", "bf16"])
@pytest.mark.parametrize("kind", SCALARS)
def test_scalars(name: str, kind: str) -> None:
    assert fate(kernel(name), *SCALARS[kind]) == {"check.wrong-result"}


@pytest.mark.parametrize("turn", range(12))
def test_scalars_differ_from_each_other_and_change(turn: int) -> None:
    for bits in (0, 13, 20):
        these = [scalar(n, "float32", turn, bits) for n in range(5)]
        assert len({abs(v) for v in these}) == 5 and {v > 0 for v in these} == {True, False}
        assert all(a != b and (a > 0) != (b > 0) for a, b in
                   zip(these, (scalar(n, "float32", turn + 1, bits) for n in range(5)), strict=True))  # fmt: skip
        assert all(2 <= abs(v) < 1 << max(bits, 3) and (not bits or (v % 2 and abs(v) >> bits - 1)) for v in these)
    assert {scalar(n, "uint8", turn, 20) for n in range(3)} <= set(range(256))


@pytest.mark.parametrize(("count", "limit"), [(3, 3), (1, 3), (4, 2), (6, 4), (40, 8), (5, 1000), (7, 1)])
@pytest.mark.parametrize("beyond", [False, True])
def test_tables_deal_out_every_value_and_the_extremes_first(count: int, limit: int, beyond: bool) -> None:
    wanted = set(range(limit)) | ({-1, limit} if beyond else set())
    rng = np.random.default_rng(0)
    tables = [table(rng, (count,), limit, beyond, turn).tolist() for turn in range(len(wanted))]
    assert all(set(t) <= wanted for t in tables)
    assert all(len(set(t)) == min(count, len(wanted)) for t in tables)
    assert set().union(*tables) >= ({0, limit - 1} | (wanted - set(range(limit))))
    if len(wanted) < 100:
        assert set().union(*tables) == wanted


@pytest.mark.parametrize(("pattern", "new"), [
    (r"group\[i_0\]", "group[0]"),
    (r"group\[i_0\] < 3", "true"),
    (r"0 <= group\[i_0\]", "true"),
])  # fmt: skip
def test_index_tables(pattern: str, new: str) -> None:
    assert fate(kernel("grouped"), pattern, new)


@pytest.mark.parametrize(("name", "pattern", "new", "codes"), [
    ("wgmma", r"__launch_bounds__\(384, 1\)", "__launch_bounds__(384, 2)", {"warp.registers"}),
    ("wgmma", r"__launch_bounds__\(384, 1\)", "__launch_bounds__(1024, 1)", {"warp.registers"}),
    ("wgmma", r"__launch_bounds__\(384, 1\)", "", {"warp.registers"}),
    ("wgmma", r"__launch_bounds__\(384, 1\)", "__launch_bounds__(3 * 64, 1)", {"emulate.threads"}),
    ("threads", r"__launch_bounds__\(64\)", "__launch_bounds__(16 * 2)", {"emulate.threads"}),
    ("wgmma", r"TIR_SHARED\(tir_shared, \d+\)", "TIR_SHARED(tir_shared, 1024 * 160)", {"emulate.shared"}),
    ("wgmma", r"(TIR_SHARED\(tir_shared, \d+\);)", r"\1 __shared__ float more[64];", {"emulate.shared"}),
    ("threads", r"a_shared\[\d+\];", "a_shared[20 * 1024];", {"emulate.shared"}),
])  # fmt: skip
def test_what_the_text_takes_and_its_launch_gives(name: str, pattern: str, new: str, codes: set[str]) -> None:
    assert fate(kernel(name), pattern, new) == codes


def test_each_of_several_kernels_has_its_own_shared_memory() -> None:
    s = _matmul("gpu_tile_mma", "cuda -arch=sm_80", _WARPS | dict(splits=2), m=40, n=40, k=512, dtype="float16")
    assert len(s.emitted().kernels) == 2 and s.with_source(s.source()).check("emulate")
    assert fate(s, r"a_shared\[\d+\];", "a_shared[60 * 1024];") == {"emulate.shared"}


@pytest.mark.parametrize(("name", "pattern", "new"), [
    ("bf16", r'"f"\(b\), "f"\(a\)', '"f"(a), "f"(b)'),
    ("bf16", r"cp\.async\.wait_group %0", "cp.async.wait_all"),
    ("bf16", r"there \? 16 : 0", "there ? 0 : 16"),
    ("3xtf32", r"  \w+_once\(d, small_a, big_b\);\n", ""),
    ("tf32", r"cvt\.rna\.tf32", "cvt.rn.tf32"),
    ("wgmma", r"p, 1, 1, 0, 0", "p, 1, 1, 0, 1"),
    ("wgmma", r"setp\.ne\.b32 p, (%\d+), 0", r"setp.eq.b32 p, \1, 0"),
    ("wgmma", r"(setp\.ne\.b32 p, )%\d+, 0", r"\g<1>1, 0"),
    ("wgmma", r"@p bra DONE", "@!p bra DONE"),
    ("wgmma", r"bar\.sync %0", "bar.arrive %0"),
    ("wgmma", r"<< 32 \| 1ull << 62", "<< 32 | 2ull << 62"),
    ("wgmma", r"__align__\(1024\) unsigned char", "__align__(16) unsigned char"),
    ("threads", r"(?m)^(  const int i_0 =)", '#ifdef TIR_EMULATED\n#define ONE 1\n#else\n#define ONE 2\n#endif\n\\1'),
    ("threads", r"(?m)^(  const int i_0 =)", '#if defined(__CUDA_ARCH__)\n  return;\n#endif\n\\1'),
])  # fmt: skip
def test_what_only_a_device_runs_is_named(name: str, pattern: str, new: str) -> None:
    assert fate(kernel(name), pattern, new) == {"emulate.not-run"}


@pytest.mark.parametrize(("name", "defined"), [
    ("TIR_EMULATED", "TIR_EMULATED"), ("__CUDA_ARCH__", "__CUDA_ARCH__"), ("__GNUC__", "__GNUC__"),
])  # fmt: skip
def test_a_text_does_not_decide_what_compilers_define(name: str, defined: str) -> None:
    s = kernel("threads")
    text = s.source().replace("  const int i_0 =", f"#ifndef {name}\n  return;\n#endif\n  const int i_0 =", 1)
    told = {p.code for p in s.with_source(f"{text}\n#define {defined} 1\n").check("emulate").problems}
    assert "emulate.not-run" in told or told >= {"launch.unwritten"}


@pytest.mark.parametrize("form", ["rintf({0})", "(float)(int)({0})", "({0}) + 1e-3f", "fminf({0}, 65504.0f)", "-({0})"])
def test_results_of_float32(form: str) -> None:
    w = tir.ops.matmul(m=37, n=45, k=19)
    space = w.templates["gpu_tile"].space_for(tir.Target.parse("cuda"))
    s = w.schedule({**space.default, **_THREADS}, "gpu_tile", "cuda")
    assert fate(s, r"( = )(c_register\[[^;]*\]);", rf"\1{form.format(chr(92) + '2')};") == {"check.wrong-result"}


@pytest.mark.parametrize("form", ["fminf({0}, 65504.0f)", "fmaxf({0}, -1e9f)", "(float)(double){0} * 1.0005f"])
def test_copies_of_float32(form: str) -> None:
    x = tir.placeholder((37, 24), name="x")
    s = tir.Schedule(tir.compute((37, 24), lambda i, j: x[i, 23 - j], name="y"), "cuda")
    s.bind("y.i", "block.x").bind("y.j", "thread.x")
    assert fate(s, r"( = )(x\[[^;]*\]);", rf"\1{form.format(chr(92) + '2')};") == {"check.wrong-result"}


def test_operands_are_not_shortened_where_nothing_is_exact() -> None:
    """Winograd's transforms have fractions that are no sums of powers of two; shortened to 11 bits, as half has."""
    w = tir.ops.conv2d(n=1, c=8, h=9, w=7, k=16, r=3, s=3, pad=1, layout="NHWC")
    s = w.schedule(None, "gpu_winograd", "cuda")
    short = r"__uint_as_float(__float_as_uint(\2) & 0xffffe000u)"
    assert fate(s, r"(\? )(x\[[^\]]*\])", rf"\1{short}") == {"check.wrong-result"}


def test_scalars_where_nothing_is_exact() -> None:
    w = tir.ops.matmul(m=40, n=40, k=72, dtype="float16", alpha=True, beta=True, bias=True, act="gelu")
    space = w.templates["gpu_tile_mma"].space_for(tir.Target.parse("cuda -arch=sm_80"))
    s = w.schedule({**space.default, **_WARPS}, "gpu_tile_mma", "cuda -arch=sm_80")
    for form in ("fminf(alpha, 100.0f)", "(float)(int)alpha"):
        assert fate(s, r"\balpha(?= \* c)", form) == {"check.wrong-result"}
    assert fate(s, r"(?<== )0\.0f", "-1e-20f") == {"check.wrong-result"}  # which alpha can make any number


@pytest.mark.parametrize("name", ["__cplusplus >= 201703L", "__GNUC__", "__INT_MAX__ > 0"])
def test_what_compilers_define_is_named_in_statements(name: str) -> None:
    at = r"(?m)^(  const int i_0 =)"
    assert fate(kernel("threads"), at, rf"  if ({name})\n    if (false) return;\n\1") == {"emulate.not-run"}


def test_conditions_that_a_text_decides_itself_are_run() -> None:
    at = r"(?m)^(  const int i_0 =)"
    assert fate(kernel("threads"), at, "#ifndef STEP\n#define STEP 1\n#endif\n\\1") == set()
    assert fate(kernel("threads"), at, "#define STEP 1\n#if STEP == 2\n  return;\n#endif\n\\1") == set()


def test_functions_must_be_there() -> None:
    for name, part in (("bf16", "tir_ldmatrix_x4"), ("wgmma", "tir_hold"), ("wgmma", "tir_barriers_ready")):
        at = rf"(?s)#ifndef TIR_EMULATED[^\n]*\n(?:(?!#endif).)*?\b{part}\((?:(?!#endif).)*?#endif\n"
        assert fate(kernel(name), at, "") == {"emulate.undefined"}


def test_functions_of_the_group_for_devices_are_known_one_by_one() -> None:
    """They stand in one group of conditional lines: each may go or come, and none may change."""
    text = kernel("bf16").source()
    (group,) = [p.text for p in parts(text) if p.text.startswith("#ifndef TIR_EMULATED")]
    assert len(re.findall(r"static __device__", group)) > 3
    two = group.index("static __device__", group.index("static __device__") + 1)
    assert not not_run(text.replace(group, group[: group.index("static")] + group[two:]))
    for old, new in (
        ("static", "int more;\nstatic"),
        ("%0", "%1"),
        ("#endif", "int more;\n#endif"),
        ("TED\n", "TED\n;\n"),
    ):
        assert [p.code for p in not_run(text.replace(group, group.replace(old, new, 1)))] == ["emulate.not-run"], new


def test_functions_that_the_architecture_lacks() -> None:
    s = kernel("bf16")
    brought = hopper_text("tir_async_fence")
    assert brought
    text = f"{brought}\n" + s.source().replace("  const int i_0 =", "  tir_async_fence();\n  const int i_0 =", 1)
    assert {p.code for p in s.with_source(text).check("emulate").problems} == {"emulate.lacks"}


def test_products_of_fewer_digits() -> None:
    s = kernel("3xtf32")
    brought = re.search(r"#ifndef TIR_EMULATED\n[^#]*tir_mma_m16n8k8_tf32_round[^#]*#endif\n", kernel("tf32").source())
    assert brought
    text = brought[0] + s.source().replace("  tir_mma_m16n8k8_3xtf32(c", "  tir_mma_m16n8k8_tf32(c")
    assert {p.code for p in s.with_source(text).check("emulate").problems} == {"check.wrong-result"}


def test_tiles_that_are_cut_off_and_not_rounded() -> None:
    from tensorir.check.exact_inputs import longest

    s = kernel("wgmma tf32")
    source, arrays = s.emitted(), random_arguments(s.outputs, 0)
    kernels = [replace(k, maps=tuple(replace(m, dtype=m.dtype.replace("tfloat", "float")) for m in k.maps))
               for k in source.kernels]  # fmt: skip
    for turn in (0, 1):
        run = longest(s.outputs, source, arrays, 0, turn)
        assert run.exact and run.read is not None
        (want,) = evaluate(s.outputs, run.read)
        np.testing.assert_array_equal(emulate(source, run.arrays).outputs[0], want)
        assert not np.array_equal(emulate(replace(source, kernels=tuple(kernels)), run.arrays).outputs[0], want)


@pytest.mark.parametrize("name", ["threads", "bf16"])
@pytest.mark.parametrize("start", ["1e-3f", "1e-20f"])
def test_sums_begin_at_zero(name: str, start: str) -> None:
    assert fate(kernel(name), r"(c\[[^=]*\] = )0\.0f;", rf"\g<1>{start};") == {"check.wrong-result"}


def test_a_few_zeros_where_everything_is_zero() -> None:
    s = kernel("bf16")
    run = short(s.outputs, s.emitted(), (), 3)
    (c,) = evaluate(s.outputs, run.arrays)
    assert run.exact and not np.asarray(c, np.float32)[[0, -1]].any() and np.asarray(c, np.float32).any()
    assert max(abs(float(x)) for x in run.arrays if np.ndim(x) == 0) > 2**12


@pytest.mark.parametrize(("name", "pattern", "new"), [
    ("threads", r"__align__\(16\) __shared__ float a_shared", "__shared__ float a_shared"),
    ("threads", r"__align__\(16\) __shared__ float b_shared", "__align__(8) __shared__ float b_shared"),
    ("threads", r"__align__\(16\) float b_shared_register", "float b_shared_register"),
    ("bf16", r"__align__\(16\) __shared__ unsigned short a_shared", "__shared__ unsigned short a_shared"),
    ("bf16", r"__align__\(4\) unsigned short a_shared_warp", "unsigned short a_shared_warp"),
    ("wgmma tf32", r"__align__\(1024\) __shared__ float (a_shared)", r"__align__(128) __shared__ float \1"),
])  # fmt: skip
def test_arrays_lie_as_badly_as_they_are_declared(name: str, pattern: str, new: str) -> None:
    assert fate(kernel(name), pattern, new) & {"memory.misaligned", "check.wrong-result"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("array", ["a_shared_warp", "b_shared_warp", "c"])
def test_arrays_of_a_thread_are_as_long_as_they_are_declared(dtype: str, array: str) -> None:
    """Also where instructions take their addresses."""
    s = _matmul("gpu_tile_mma", "cuda -arch=sm_80", _WARPS, m=40, n=40, k=72, dtype=dtype)
    declared = re.search(rf"(?m)^ +(?:__align__\(\d+\) )?(?!return)[\w ]+ {array}\[(\d+)\];", s.source())
    assert declared
    shorter = declared[0].replace(f"[{declared[1]}]", f"[{int(declared[1]) - 1}]")
    assert "memory.out-of-bounds" in fate(s, re.escape(declared[0]), shorter)


def test_what_lies_between_arrays_is_nobodys() -> None:
    s = kernel("threads")
    assert "memory.out-of-bounds" in fate(s, r"(b_shared \+ )(i_1 \* 32 \+ j_1 \* 4\) =)", r"\1 4 + \2", 1)


def test_arrays_of_the_user_lie_as_badly_as_kernels_allow() -> None:
    text = """extern "C" __global__ void k(const float *__restrict__ X, float *__restrict__ Y)
{
  *(float4 *)(Y + threadIdx.x * 4) = *(const float4 *)(X + threadIdx.x * 4);
}
"""
    from tensorir.codegen.source import KernelLaunch, Param, Source

    for align, codes in ((4, {"memory.misaligned"}), (16, set())):
        params = tuple(Param(n, "float32", (128,), r, align) for n, r in (("X", "input"), ("Y", "output")))
        program = Source("k", "cuda", text, params, (KernelLaunch("k", ("X", "Y"), (1, 1, 1), (32, 1, 1)),))
        found = {p.code for p in emulate(program, [np.ones(128, np.float32)], packed=True).problems}
        assert found - {"launch.unwritten"} == codes
