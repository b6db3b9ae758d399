"""Products of warpgroups whose first operand is in registers, where it was computed: exact, ordered, refused."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from products import ROWS, declared, held

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.intrin.hopper import wgmma_named

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def relu(a, i, k):
    return tir.maximum(a[i, k], 0)


def scaled(a, i, k, v):
    return tir.cast(tir.cast(a[i, k], "float32") * v[k], "bfloat16")


def shifted(a, i, k, v):
    """Not 0 beyond the end of k, where a is."""
    return tir.cast(tir.cast(a[i, k], "float32") - v[0], "bfloat16")


CASES = {
    "activated": ((66, 72, 264), relu, ("bfloat16",), {}),
    "int8 made bfloat16": ((100, 50, 272), lambda a, i, k: tir.cast(a[i, k], "bfloat16"), ("int8",), {}),
    "e4m3 scaled, in pairs": ((65, 64, 400), scaled, ("float8_e4m3", "float32"), {"near": True, "block": (64, 64)}),
    "shifted": ((64, 40, 72), shifted, ("bfloat16", "float32"), {"block": (64, 40), "depth": 2}),
}


def wrong(s, source=None):
    """Problems of three runs, or that one of them has another result."""
    source = source or s.emitted()
    for seed, eager in ((0, False), (1, True), (2, False)):
        arrays = random_arguments(s.outputs, seed)
        got = emulate(source, arrays, seed, eager)
        if got.problems:
            return {p.code for p in got.problems}
        if not np.array_equal(got.outputs[0], evaluate(s.outputs, arrays)[0]):
            return {"another result"}
    return set()


@emulated
@pytest.mark.parametrize("case", CASES)
def test_text_multiplies(case):
    shape, element, given, options = CASES[case]
    s = held(*shape, element, given, **options)
    assert "_bf16_rt(c, f" in s.source()
    assert not wrong(s)


@pytest.mark.parametrize("case", ["activated", "shifted"])
def test_is_proved(case):
    shape, element, given, options = CASES[case]
    verdict = held(*shape, element, given, **options).check()
    assert verdict, verdict


FAULTS = {
    "no wait": ("tir_wgmma_wait<0>();\n      tir_hold(c);", "tir_hold(c);", "memory.in-flight"),
    "registers not held": ("tir_hold(f);", "", "hold.registers"),
    "no fence": ("tir_wgmma_fence();", "", "fence.registers"),
    "a fence too early": ("tir_wgmma_fence();", "", "fence.registers"),
    "a register changed under way": ("tir_wgmma_commit();", "tir_wgmma_commit(); f[0] = 0;", "memory.in-flight"),
}


@emulated
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told(fault):
    s = held(64, 64, 192, relu, block=(64, 64))
    source, (old, new, code) = s.emitted(), FAULTS[fault]
    start = source.text.index('extern "C"')
    text = source.text[start:]
    assert text.count(old) == 1
    text = text.replace(old, new)
    if "early" in fault:
        text = text.replace("tir_barrier_wait(&full", "tir_wgmma_fence();\n      tir_barrier_wait(&full", 1)
    told = wrong(s, replace(source, text=source.text[:start] + text))
    assert code in told, told


@emulated
def test_a_stored_the_other_way_round():
    """Of 8-bit types, whose rows wgmma reads along k alone: registers are filled from either."""
    m, n, k = 64, 40, 80
    a, b = tir.placeholder((k, m), "float8_e4m3", name="a"), tir.placeholder((n, k), "float8_e4m3", name="b")
    r = tir.reduce_axis(k, name="k")
    c = tir.compute(
        (m, n), lambda i, j: tir.sum(tir.cast(a[r, i], "float32") * tir.cast(b[j, r], "float32"), axis=r), name="c"
    )
    s = tir.Schedule(c, target="cuda -arch=sm_90a")
    out = s.stage_out(c, at="root", scope="warp").name
    bi, wi, i = s.split(f"{out}.i", [None, 1, 64])
    s.reorder(bi, wi, i, f"{out}.j").bind(bi, "block.x").bind(wi, "warpgroup").compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, 4, 32])
    s.reorder(ko, kk, "c.i", "c.j", ki)
    s.stage_in("a", at=ko, scope="shared", via="tma")
    s.stage_in("b", at=ko, scope="shared", layout=ROWS.format(128, 16), via="tma")
    s.stage_in("a_shared", at=kk, scope="warp")
    s.tensorize("c.i", "wgmma.m64n40k32.e4m3.tt.rs").pipeline(ko, 2, roles={"load": 40, "compute": 232})
    assert not wrong(s)


def test_no_registers_no_product():
    s = tir.Schedule(declared(128, 64, 128, dtype="bfloat16"), target="cuda -arch=sm_90a")
    bi, wi, i = s.split("out.i", [None, 1, 64])
    s.reorder(bi, wi, i, "out.j").bind(bi, "block.x").bind(wi, "warpgroup").compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, 4, 16])
    s.reorder(ko, kk, "c.i", "c.j", ki)
    s.stage_in("a", at=ko, scope="shared", via="tma")
    s.stage_in("b", at=ko, scope="shared", layout=ROWS.format(64, 8), via="tma")
    with pytest.raises(tir.ScheduleError) as e:
        s.tensorize("c.i", "wgmma.m64n64k16.bf16.nt.rs")
    assert e.value.code == "tensorize.scope"
    assert "a_shared" in str(e.value)


@pytest.mark.parametrize(
    ("name", "there"),
    [("m64n64k16.bf16.tn.rs", True), ("m64n64k32.s8.tt.rs", True), ("m64n64k32.s8.nn.rs", False),
     ("m64n64k32.s8.tt", False), ("m4x16n64k16.bf16.nt.rs", False), ("m64n40k32.s8.nt.rs", False)],
)  # fmt: skip
def test_names(name, there):
    assert (wgmma_named(f"wgmma.{name}") is not None) == there


def test_compiles():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    for case in ("activated", "e4m3 scaled, in pairs"):
        _, element, given, _ = CASES[case]
        s = held(512, 512, 1024, element, given, block=(128, 256), depth=2, near=True)
        cubin = compile_cubin(s.source(), "sm_90a")
        assert cubin.spills == 0
        assert "C75" not in cubin.log
