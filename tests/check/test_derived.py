"""Instructions that users declare, in the emulator: their meaning in place of their text."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.intrin.intrin import INTRINSICS, Intrin, intrinsic, meaning, register

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def _table():
    intrinsic("opencl.dot.f32x4")
    before = dict(INTRINSICS)
    yield
    INTRINSICS.clear()
    INTRINSICS.update(before)


def dp4a(**changed):
    """Four products of bytes and their sum, declared as a user would."""
    a, b = tir.placeholder((4,), "int8", name="a"), tir.placeholder((4,), "int8", name="b")
    k = tir.reduce_axis(4, "k")
    c = tir.compute((1,), lambda _: tir.sum(tir.cast(a[k], "int32") * tir.cast(b[k], "int32"), axis=k), name="c")
    head = "static __device__ void my_dp4a(int *c, const void *a, const void *b)"
    given = dict(
        name="my.dp4a",
        semantics=meaning(c, accumulate=True),
        emit={"cuda": "my_dp4a({c}, {a}, {b});"},
        source="CUDA math API",
        align={"a": 4, "b": 4},
        needs=("sm_61",),
        prelude={"cuda": head + " { *c = __dp4a(*(int *)a, *(int *)b, *c); }"},
    )
    return register(Intrin(**{**given, **changed}))


def product(shared=False):
    a, b = tir.placeholder((16, 32), "int8", name="A"), tir.placeholder((24, 32), "int8", name="B")
    r = tir.reduce_axis(32, "r")
    c = tir.compute(
        (16, 24), lambda i, j: tir.sum(tir.cast(a[i, r], "int32") * tir.cast(b[j, r], "int32"), axis=r), name="C"
    )
    s = tir.Schedule(c, "cuda -arch=sm_80")
    bi, ti = s.split("C.i", [None, 8])
    bj, tj = s.split("C.j", [None, 8])
    s.reorder(bi, bj, ti, tj).bind(bi, "block.y").bind(bj, "block.x").bind(ti, "thread.y").bind(tj, "thread.x")
    s.stage_out("C", at=tj, scope="register")
    outer, four = s.split("C.r", [None, 4])
    if shared:
        s.stage_in("A", at=outer, scope="shared")
    return s.tensorize(four, "my.dp4a")


def test_an_instruction_of_threads():
    dp4a()
    s = product()
    assert "#ifndef TIR_EMULATED\nstatic __device__ void my_dp4a" in s.source()
    assert s.emitted().instructions == ("my.dp4a",)
    assert s.check()
    assert s.check("emulate")


def test_what_it_reads_is_watched():
    dp4a()
    source = product(shared=True).emitted()
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-5, 6, shape).astype(np.int8) for shape in ((16, 32), (24, 32))]
    assert not emulate(source, arrays).problems
    text = source.text.replace("__syncthreads();", ";")
    assert {p.code for p in emulate(replace(source, text=text), arrays).problems} >= {"race.shared"}


def test_an_instruction_of_warps():
    """One of the package's own under a user's name: the derived function gives what the emulator's does."""
    own = intrinsic("mma.m16n8k16.bf16.nt")
    text = own.prelude["cuda"].replace("#ifndef TIR_EMULATED\n", "").replace("#endif", "")
    register(replace(own, name="my.mma", prelude={"cuda": text.replace("tir_mma_m16n8k16_bf16", "my_mma")},
                     emit={"cuda": "my_mma({d}, {a}, {b});"}))  # fmt: skip
    a, b = tir.placeholder((32, 32), "bfloat16", name="a"), tir.placeholder((16, 32), "bfloat16", name="b")
    k = tir.reduce_axis(32, "k")
    c = tir.compute(
        (32, 16), lambda i, j: tir.sum(tir.cast(a[i, k], "float32") * tir.cast(b[j, k], "float32"), axis=k), name="c"
    )
    s = tir.Schedule(tir.compute((32, 16), lambda i, j: c[i, j] + 1, name="d"), "cuda -arch=sm_80")
    w, _ = s.split("d.i", [2, 16])
    s.bind(w, "warp.x").compute_at("c", w)
    ko, ki = s.split("c.k", [None, 16])
    jo, ji = s.split("c.j", [None, 8])
    s.reorder(ko, jo, "c.i", ji, ki)
    for name in "ab":
        s.stage_in(name, at=ko, scope="warp")
    s.tensorize("c.i", "my.mma")
    assert s.check("emulate")


def test_text_that_is_no_call():
    dp4a(emit={"cuda": "{c_value} += 0; my_dp4a({c}, {a}, {b});"})
    with pytest.raises(tir.CheckError) as e:
        product().check("emulate")
    assert e.value.code == "emulate.instruction"
