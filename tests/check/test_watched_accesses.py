"""Every load and store of a text has its hook in what is compiled of it, with the text's line."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import tensorir as tir
from tensorir.check import emulate as emulating
from tensorir.check.emulate import emulate
from tensorir.codegen.source import Source

pytestmark = pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("objdump") and shutil.which("addr2line")),
    reason="needs a C++ compiler and binutils",
)
KINDS = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2", "float32", "float64", "int8", "uint8", "int16", "uint16",
         "int32", "uint32", "int64", "uint64")  # fmt: skip


def scheduled(dtype: str, lanes: int) -> tir.Schedule:
    """A sum of what is read from the device's memory and from shared memory, in vectors where lanes are several."""
    A, B = (tir.placeholder((16, 8), dtype, name=n) for n in "AB")
    C = tir.compute((16, 8), lambda i, j: A[15 - i, j] + B[i, j], name="C")
    s = tir.Schedule(C, target="cuda -arch=sm_89")
    o, i = s["C"].split("i", [None, 8])
    s.stage_in("A", at=o, scope="shared", vector=lanes if lanes > 1 else None)
    s.bind(o, "block.x").bind(i, "thread.x")
    if lanes > 1:
        s.vectorize(s["C"].split("j", [None, lanes])[1])
    return s


def accesses(text: str) -> tuple[Counter[int], Counter[int]]:
    """Loads and stores of arrays that are not a thread's own, by their line."""
    named = set(re.findall(r"\*(?:__restrict__ )?(\w+)[,)]", text)) | set(re.findall(r"__shared__[^;]* (\w+)\[", text))
    names = "|".join(sorted(named))
    place = re.compile(rf"\*\([\w ]+ \*\)\((?:{names})\b[^()]*\)|\b(?:{names})(?:\[[^][]*\])+")
    loads, stores = Counter[int](), Counter[int]()
    for n, line in enumerate(text.split("\n"), 1):
        if "__shared__" in line:
            continue
        found = [m.span() for m in place.finditer(line)]
        kept = [m for m in found if re.match(r" = ", line[m[1] :])]
        stores[n] += len(kept)
        loads[n] += len(found) - len(kept)
    return +loads, +stores


def hooks(source: Source) -> tuple[Counter[int], Counter[int]]:
    """Calls of what watches loads and stores, by the line of the text."""
    library = emulating._compile(source)
    made = subprocess.run(["objdump", "-d", library.path], capture_output=True, text=True, check=True).stdout
    calls = re.findall(r"^\s*([0-9a-f]+):.*<__tsan_(?:unaligned_)?(read|write)\w+", made, re.MULTILINE)
    library.learn([int(at, 16) for at, _ in calls])
    found = Counter[int](), Counter[int]()
    for at, kind in calls:
        found[kind == "write"][library.line(int(at, 16))] += 1
    return found


def unwatched(source: Source) -> list[str]:
    """Lines with more accesses than hooks."""
    lines, out = source.text.split("\n"), []
    for wanted, got in zip(accesses(source.text), hooks(source), strict=True):
        assert wanted
        out += [f"{n}: {lines[n - 1]}" for n in wanted if got[n] < wanted[n]]
    return out


@pytest.mark.parametrize(
    ("dtype", "lanes"), [*((k, 4) for k in KINDS), *((k, 1) for k in KINDS if "16" in k or "8" in k)]
)
def test_each_access_has_its_hook(dtype: str, lanes: int) -> None:
    assert not unwatched(scheduled(dtype, lanes).emitted("cuda"))


def test_what_is_counted_can_be_missed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Structures that compilers copy themselves have no hooks where they are arguments."""
    for name in ("cuda.h", "turns.h", "intrinsics.h", "hopper.h"):
        text = (emulating._FOLDER / name).read_text()
        (tmp_path / name).write_text(text.replace("  TIR_COPIED(__half, tir_half_bits)\n", "  __half() = default;\n"))
    monkeypatch.setattr(emulating, "_FOLDER", tmp_path)
    emulating._compiled.cache_clear()
    assert unwatched(scheduled("float16", 1).emitted("cuda"))
    emulating._compiled.cache_clear()


def doubled(dtype: str = "float32") -> Source:
    x = tir.placeholder((64,), dtype, name="x")
    s = tir.Schedule(tir.compute((64,), lambda i: tir.cast(x[i], "float32") * 2, "y"), target="cuda -arch=sm_80")
    return s.bind("y.i", "thread.x").emitted("cuda")


PAIR = "struct Pair { float a, b; };\n__device__ float added(Pair p) { return p.a + p.b; }\n"
HALF = "__device__ float widened(__half h) { return __half2float(h); }\n"


@pytest.mark.parametrize(("dtype", "front", "read"), [
    ("float16", "", "__half2float(x[i + FAR])"), ("float16", HALF, "widened(x[i + FAR])"),
    ("float16", "", "(float)__half_as_ushort(x[i + FAR])"),
    ("float32", PAIR, "added(((const Pair *)x)[i / 2 + FAR / 2])"),
    ("float32", "__device__ float sum(float4 v) { return v.x + v.w; }\n", "sum(((const float4 *)x)[i / 4 + FAR / 4])"),
    ("float32", "__device__ float sum(float2 v) { return v.x + v.y; }\n", "sum(((const float2 *)x)[i / 2 + FAR / 2])"),
    ("float16", "", "(float)__hmax(x[i + FAR], x[i])"), ("float16", "", "(float)(x[i + FAR] * x[i])"),
    ("float16", "", "__low2float(*(const __half2 *)(x + i / 2 * 2 + FAR))"), ("float32", "", "__ldcs(x + i + FAR)"),
    ("float32", "", "max(x[i + FAR], 0.0f)"), ("int32", "", "(float)min(x[i + FAR], 7)"),
    ("float32", "__device__ float got(const float *p) { float f; memcpy(&f, p, 4); return f; }\n", "got(x + i + FAR)"),
])  # fmt: skip
def test_values_that_functions_are_given(dtype: str, front: str, read: str) -> None:
    source = doubled(dtype)
    for far, told in ((0, set()), (64, {"memory.out-of-bounds"})):
        text = source.text.replace('extern "C"', front + 'extern "C"', 1)
        text = text.replace("* 2.0f;", f"* 2.0f + 0.0f * {read.replace('FAR', str(far))};")
        line = next(n for n, words in enumerate(text.split("\n"), 1) if "+ 0.0f *" in words)
        inside = next((n for n, words in enumerate(text.split("\n"), 1) if "memcpy" in words), line)
        problems = emulate(replace(source, text=text), [np.ones(64, dtype)]).problems
        assert {p.code for p in problems} - {"launch.unwritten"} == told, (text, problems)
        struct = next((n for n, words in enumerate(text.split("\n"), 1) if "struct" in words), line)
        assert not told or any(f"line {n} of the text" in problems[0].message for n in (line, inside, struct))


@pytest.mark.parametrize("call", [
    "sincosf(1.0f, y + i + 64, y)", "frexpf(1.0f, (int *)y + i + 64)", "modff(1.5f, y + i + 64)",
    "memset(y + i + 61, 0, 16)", "memcpy(y + i + 64, x, 4)",
])  # fmt: skip
def test_what_functions_store(call: str) -> None:
    source = doubled()
    text = source.text.replace("y[i] =", f"{call};\n  y[i] =")
    assert emulate(replace(source, text=text), [np.ones(64, "float32")]).problems[0].code == "memory.out-of-bounds"


ROUNDED = [
    ("__fadd_rz(x[i], 1e-9f)", "1"),
    ("__fadd_ru(x[i], 1e-9f)", "1 + 2**-23"), ("__fadd_rd(x[i], -1e-9f)", "1 - 2**-24"),
    ("__fmul_ru(x[i], x[i] / 3.0f * 3.0f)", "1"), ("__fdiv_rd(x[i], 3.0f)", "0x555555 * 2**-24"),
    ("__half2float(__float2half_rz(x[i] + 0.0009f))", "1"),
    ("__half2float(__float2half_ru(x[i] + 1e-6f))", "1 + 2**-10"),
    ("__half2float(__float2half_rd(x[i] * -1.0001f))", "-1 - 2**-10"),
    ("__half2float(__float2half_rz(x[i] * 1e6f))", "65504"),
    ("__half2float(__float2half_ru(x[i] * -65510.0f))", "-65504"), ("(float)__float2int_rn(x[i] * 2.5f)", "2"),
    ("(float)__float2int_rz(x[i] * -2.9f)", "-2"), ("(float)__float2int_ru(x[i] * 1e20f)", "2**31"),
    ("(float)__hfma(__float2half_rn(x[i] * 1.0625f), __float2half_rn(0x1.02p0f), __float2half_rn(0x1p-24f))",
     "1 + 73 * 2**-10"),  # in the middle of two halves, and a little more, or less: lost if rounded to a float first
    ("(float)__hfma(__float2half_rn(x[i] * 1.75f), __float2half_rn(0.572265625f), __float2half_rn(-0x1p-24f))",
     "1 + 2**-10"),
    ("(float)(__hmul(__float2half_rn(x[i] * 300.0f), __float2half_rn(300.0f)) > __float2half_rn(65504.0f))", "1"),
    ("(float)(__float2half_rn(x[i]) / __float2half_rn(3.0f) - __float2half_rn(0.333251953125f))", "0"),
    ("1.0f / (float)__hmax(__float2half_rn(-0.0f), __float2half_rn(0.0f * x[i]))", "float('inf')"),
    ("(float)__hmin(__ushort_as_half(0x7e00), __float2half_rn(x[i]))", "1"),
    ("__high2float(__hfma2(__half2half2(__float2half_rn(x[i])), __floats2half2_rn(1, 2), __float2half2_rn(3)))", "5"),
    ("__frsqrt_rn(x[i] * 4.0f)", "0.5"), ("__fdividef(x[i], 0x1.8p126f)", "0"), ("(float)__popc(255)", "8"),
    ("(float)__any_sync(0xffffffffu, i == 3) + (float)__all_sync(0xffffffffu, i < 64)", "1 if i >= 32 else 2"),
    ("__shfl_up_sync(0xffffffffu, (float)i, 1)", "i - (i % 32 > 0)"), ("(float)__byte_perm(0x0201u, 0, 0x4401)", "258"),
]  # fmt: skip


def test_functions_round_as_cuda_has_it() -> None:
    """All in one text: kernels take a second each to compile."""
    x = tir.placeholder((len(ROUNDED), 64), name="x")
    y = tir.compute((len(ROUNDED), 64), lambda n, i: x[n, i] * 2, "y")
    s = tir.Schedule(y, target="cuda -arch=sm_80").bind("y.i", "thread.x")
    source = s.emitted("cuda")
    lines = "".join(
        f"  y[{n * 64} + i] = {call.replace('x[i]', f'x[{n * 64} + i]')};\n" for n, (call, _) in enumerate(ROUNDED)
    )
    body = source.text[source.text.index("  const int i = ") :]
    text = source.text.replace(body, f"{body.splitlines()[0]}\n{lines}}}\n")
    done = emulate(replace(source, text=f"#include <cuda_fp16.h>\n{text}"), [np.ones(x.shape, "float32")])
    assert not done.problems
    for (call, want), got in zip(ROUNDED, done.outputs[0], strict=True):
        assert got.tolist() == [eval(want, {"i": i}) for i in range(64)], call
