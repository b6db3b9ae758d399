"""Kernels for sm_90a in the emulator: exact where they are right, and what is wrong with them told."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hopper_texts import GEMM, MOVED, TURNED, gemm, one_product, small_integers, source

import tensorir as tir
from tensorir.check.emulate import Emulated, emulate
from tensorir.codegen.source import KernelLaunch, TensorMap

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
SHAPE = (256, 128, 256)
"""Two tiles for one block, and more steps than stages: everything is used again."""


@pytest.mark.parametrize("shape", [(128, 128, 64), (256, 256, 320), (200, 136, 104), (56, 72, 40)])
def test_product_is_exact(shape: tuple[int, int, int]) -> None:
    arrays, want = small_integers(*shape)
    got = emulate(gemm(*shape), arrays)
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], want)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("seed", range(1, 3))
def test_any_order_gives_the_same(seed: int, eager: bool) -> None:
    arrays, want = small_integers(*SHAPE)
    got = emulate(gemm(*SHAPE, blocks=1), arrays, seed, eager)
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], want)


def test_barriers_may_come_at_launch_too() -> None:
    text = GEMM.replace("arena, 131072", "arena, 131120")
    for n, name in enumerate(("full", "empty")):
        given = f"unsigned long long *const {name} = (unsigned long long *)(arena + {131072 + 24 * n});"
        text = text.replace(f"__shared__ unsigned long long {name}[3];", given)
    arrays, want = small_integers(*SHAPE)
    got = emulate(gemm(*SHAPE, text=text), arrays)
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], want)


def test_traffic() -> None:
    arrays, _ = small_integers(*SHAPE)
    got = emulate(gemm(*SHAPE, blocks=1), arrays)
    units = {what: sum(t.units for t in got.traffic if t.what == what) for what in ("global read", "global write")}
    assert units == {"global read": 2 * 2 * 128 * 256 * 2 // 32, "global write": 256 * 128 * 2 // 32}
    assert all(t.units == t.ideal for t in got.traffic)


# --- planted faults: the text before, behind it, and what must be told; "" where the result must be wrong


def without(words: str) -> tuple[str, str]:
    return words, ";"


WAIT_FULL, WAIT_EMPTY = "tir_barrier_wait(full + s, phase);", "tir_barrier_wait(empty + s, phase ^ 1);"
RELEASE = "if (last >= 0 && thread == 0) tir_barrier_arrive(empty + last);"
MEET = "tir_sync_some(1 + group, 128);"
PRODUCT = "tir_wgmma_m64n128k16_bf16_nt(d, a + s * 1024 + kk * 2, b + s * 1024 + kk * 2);"
PLANTED: dict[str, tuple[str, str, str]] = {
    "no wait for a tile": (*without(WAIT_FULL), "memory.in-flight"),
    "no wait for a free place": (*without(WAIT_EMPTY), "memory.in-flight"),
    "fewer bytes announced than come": ("full + s, 32768", "full + s, 16384", "memory.in-flight"),
    "other bytes announced than come": ("full + s, 32768", "full + s, 16400", "barrier.stuck"),
    "more bytes announced than come": ("full + s, 32768", "full + s, 32784", "barrier.stuck"),
    "the consumer's parity": (WAIT_FULL, WAIT_FULL.replace("phase", "phase ^ 1"), "memory.in-flight"),
    "the producer's parity": (WAIT_EMPTY, WAIT_EMPTY.replace("phase ^ 1", "phase"), "barrier.stuck"),
    "no parity": (WAIT_FULL, WAIT_FULL.replace("phase", "2 + phase"), "barrier.misused"),
    "a place let go before it is read": (
        RELEASE,
        "if (thread == 0) tir_barrier_arrive(empty + s);",
        "memory.in-flight",
    ),
    "no wait before a place is let go": (*without("tir_wgmma_wait<1>();"), "memory.in-flight"),
    "no wait before sums are used": (*without("tir_wgmma_wait<0>();"), "memory.in-flight"),
    "sums not held behind the wait": (
        "tir_wgmma_wait<0>();\n      tir_hold(d);",
        "tir_wgmma_wait<0>();",
        "hold.registers",
    ),
    "sums not held in front of a fence": (
        "tir_hold(d);\n        tir_wgmma_fence();",
        "tir_wgmma_fence();",
        "hold.registers",
    ),
    "sums held behind the fence alone": (
        "tir_hold(d);\n        tir_wgmma_fence();",
        "tir_wgmma_fence();\n        tir_hold(d);",
        "fence.registers",
    ),
    "sums set behind their hold": (
        "tir_hold(d);\n        tir_wgmma_fence();",
        "tir_hold(d);\n        if (k == 0) d[63] = 0.0f;\n        tir_wgmma_fence();",
        "hold.registers",
    ),
    "some sums not held behind the wait": (
        "tir_wgmma_wait<0>();\n      tir_hold(d);",
        "float *const some = d;\n      tir_wgmma_wait<0>();\n      tir_hold(*(float(*)[60])some);",
        "hold.registers",
    ),
    "no fence of registers": (*without("tir_wgmma_fence();"), "fence.registers"),
    "a register set behind its fence": (
        "tir_wgmma_fence();",
        "tir_wgmma_fence(); if (k == 0) d[63] = 0.0f;",
        "fence.registers",
    ),
    "products that are no group": (*without("tir_wgmma_commit();"), "memory.in-flight"),
    "rows eight too far apart": ("A_shared + group * 4096, 16, 1024", "A_shared + group * 4096, 16, 2048", ""),
    "a wrong step along k": ("a + s * 1024 + kk * 2", "a + s * 1024 + kk * 4", ""),
    "a tile that is not aligned": (
        "A_shared + group * 4096, 16",
        "A_shared + group * 4096 + 64, 16",
        "memory.misaligned",
    ),
    "a tile out of bounds": ("b + s * 1024", "b + s * 8192", "memory.out-of-bounds"),
    "no tile": (PRODUCT, PRODUCT.replace("b + s * 1024 + kk * 2", "kk"), "wgmma.operand"),
    "tiles that differ": (PRODUCT, PRODUCT.replace("a +", "a + thread / 64 * 64 +"), "wgmma.operand"),
    "no fence of what was written": (*without("tir_async_fence();"), "fence.async"),
    "a fence by others than who wrote": (
        "tir_async_fence();\n      " + MEET,
        MEET + " tir_async_fence();",
        "fence.async",
    ),
    "no wait before a tile is written again": (*without("if (thread == 0) tir_wait_stores<0>();"), "memory.in-flight"),
    "no meeting before a tile is written again": (*without(MEET), "race.shared"),
    "no meeting before a tile is stored": ("tir_async_fence();\n      " + MEET, "tir_async_fence();", "race.shared"),
    "stores that are no group": (*without("tir_commit_stores();"), "memory.in-flight"),
    "no wait at the end": (
        "    if (thread == 0) tir_wait_stores<0>();\n  }\n}",
        "  }\n}",
        "memory.unfinished",
    ),
    "an arrival too many": ("tir_barrier_init(full + s, 1)", "tir_barrier_init(full + s, 2)", "barrier.stuck"),
    "arrivals that are too few": (
        "tir_barrier_init(empty + s, 2)",
        "tir_barrier_init(empty + s, 1)",
        "memory.in-flight",
    ),
    "more arrivals than set up": (
        "tir_barrier_expect(full + s, 32768);",
        "tir_barrier_expect(full + s, 32768); tir_barrier_arrive(full + s);",
        "barrier.misused",
    ),
    "a barrier that is not set up": (*without("tir_barrier_init(empty + s, 2);"), "barrier.uninitialised"),
    "a barrier that is set up twice": (
        "tir_barrier_init(full + s, 1);",
        "tir_barrier_init(full + s, 1); tir_barrier_init(full + s, 1);",
        "barrier.misused",
    ),
    "barriers that the units do not know": (*without("tir_barriers_ready();"), "barrier.uninitialised"),
    "barriers that others do not know": (*without("__syncthreads();"), "barrier.uninitialised"),
    "barriers where a tile lies": (
        "__shared__ unsigned long long empty[3];",
        "unsigned long long *const empty = (unsigned long long *)(arena + 49152 - 24);",
        "barrier.misused",
    ),
    "sums that nobody begins": ("for (int i = 0; i < 64; ++i) d[i] = 0.0f;", ";", ""),
    "a product of some": (PRODUCT, f"if (thread != 5) {PRODUCT}", "warp.divergent"),
    "a product for some": ("int last = -1;", "int last = -1; if (thread == 99) break;", "warp.divergent"),
    "two groups at one barrier": (MEET, "tir_sync_some(1, 128);", "barrier.misused"),
    "a group at the other's barrier": (
        "tir_async_fence();\n      " + MEET,
        "tir_async_fence();\n      tir_sync_some(2 - group, 128);",
        "barrier.misused",
    ),
    "a meeting of some": (MEET, MEET.replace("128", "96"), "barrier.misused"),
    "a copy to no multiple of 128 bytes": ("A_shared + s * 8192,", "A_shared + 8 + s * 8192,", "memory.misaligned"),
    "a copy to nowhere": ("A_shared + s * 8192,", "A_shared + 65536 + s * 8192,", "memory.out-of-bounds"),
    "too many coordinates": ("full + s, k * 64, m)", "full + s, k * 64, m, 0)", "tma.map"),
    "a load that nobody waits for": (
        "tir_barriers_ready();",
        """__shared__ unsigned long long spare[1];
    tir_barrier_init(spare, 1);
    tir_barriers_ready();
    tir_tma_load(C_shared, &A_map, spare, 0, 0);""",
        "memory.unfinished",
    ),
    "no such number of registers": ("registers_down<40>", "registers_down<20>", "warp.registers"),
    "too many registers": ("registers_up<232>", "registers_up<248>", "warp.registers"),
    "registers that nobody leaves": (*without("tir_registers_down<40>();"), "warp.registers"),
    "sums that are too few": ("float d[64];", "float d[60];", "memory.out-of-bounds"),
}


def planted(name: str, seed: int = 0, eager: bool = False) -> tuple[Emulated, np.ndarray]:
    before, behind, _ = PLANTED[name]
    assert before in GEMM
    arrays, want = small_integers(*SHAPE)
    return emulate(gemm(*SHAPE, blocks=1, text=GEMM.replace(before, behind, 1)), arrays, seed, eager), want


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_told(name: str) -> None:
    code = PLANTED[name][2]
    got, want = planted(name)
    if not code:
        assert not np.array_equal(got.outputs[0], want)
        return
    told = [p for p in got.problems if p.code == code]
    assert told, got.problems
    if shutil.which("addr2line"):
        assert re.search(r"line \d+ of the text", told[0].message)


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("name", ["no wait for a tile", "no wait for a free place", "a place let go before it is read"])
def test_copies_that_land_early_hide_nothing(name: str, seed: int) -> None:
    """What is there in time by luck is a race all the same."""
    got, _ = planted(name, seed, eager=True)
    assert {p.code for p in got.problems} & {"race.shared", "memory.in-flight", "memory.uninitialised"}


@pytest.mark.parametrize("change", [
    (WAIT_EMPTY, "tir_barrier_wait(empty + (s + 1) % 3, phase ^ 1);"),
    (RELEASE, "if (last >= 0 && thread == 0) tir_barrier_arrive(empty + (last + 2) % 3);"),
])  # fmt: skip
def test_a_hang_of_those_who_are_late_is_found(change: tuple[str, str]) -> None:
    """Places are let go before they are filled for the first time, which only a loader that is late meets."""
    assert change[0] in GEMM
    arrays, _ = small_integers(*SHAPE)
    text = GEMM.replace(*change)
    told = [p.code for seed in range(8) for p in emulate(gemm(*SHAPE, text=text), arrays, seed, eager=True).problems]
    assert "barrier.stuck" in told


def test_reads_of_products_are_counted() -> None:
    """Pieces of eight rows at once: swizzled rows of 128 bytes have them in different banks."""
    arrays, _ = small_integers(*SHAPE)
    reads = [t for t in emulate(gemm(*SHAPE, blocks=1), arrays).traffic if t.what == "shared read" and t.width == 16]
    products = 2 * 2 * 16  # tiles, warpgroups, steps of 16
    assert sum(t.ideal for t in reads if t.lanes == 8 * t.requests) == products * (64 + 128) // 8 * 2
    assert all(t.units == t.ideal for t in reads)


def test_a_map_without_the_swizzle_is_wrong() -> None:
    arrays, want = small_integers(*SHAPE)
    got = emulate(gemm(*SHAPE, swizzle=0), arrays)
    assert not got.problems
    assert not np.array_equal(got.outputs[0], want)


@pytest.mark.parametrize(
    "wrong",
    [
        {"swizzle": 64},
        {"box": (128, 512)},
        {"box": (128,)},
        {"shape": (256, 252)},
        {"box": (128, 4), "swizzle": 0},
        {"steps": (9, 1)},
        {"steps": (0, 1)},
        {"steps": (1, 2)},
        {"steps": (2,)},
        {"steps": (2, 1), "box": (257, 64)},
    ],
)
def test_maps_that_no_device_takes(wrong: dict[str, object]) -> None:
    source = gemm(*SHAPE)
    (k,) = source.kernels
    bad = replace(source, kernels=(replace(k, maps=(replace(k.maps[0], **wrong), *k.maps[1:])),))
    with pytest.raises(tir.CheckError) as caught:
        emulate(bad, small_integers(*SHAPE)[0])
    assert caught.value.code == "emulate.map"


@pytest.mark.parametrize(
    ("words", "instead", "code"),
    [
        ("TIR_SHARED(arena, 131072)", "TIR_SHARED(arena, 135168)", "emulate.shared"),
        ("__launch_bounds__(384", "__launch_bounds__(256", "emulate.threads"),
        ("const __grid_constant__ TirTensorMap B_map", "const TirTensorMap B_map", "emulate.map"),
    ],
)
def test_text_that_its_launch_does_not_fit(words: str, instead: str, code: str) -> None:
    """As a user's edit of it makes it: the launch stays that of the schedule."""
    source = gemm(*SHAPE)
    assert words in source.text
    with pytest.raises(tir.CheckError) as caught:
        emulate(replace(source, text=source.text.replace(words, instead)), small_integers(*SHAPE)[0])
    assert caught.value.code == code


def test_who_waits_where_is_told() -> None:
    got, _ = planted("more bytes announced than come")
    (first, *_) = [p.message for p in got.problems if "128 the first" in p.message]
    assert "256 of 384 threads of block 0 (128 the first) wait for parity 0 of the barrier at byte" in first
    assert "in phase 0: 0 of 1 arrivals and 16 bytes are missing" in first


# --- one instruction at a time

PRODUCTS = [
    *((kind, order) for kind in ("f16", "bf16") for order in ("nt", "nn", "tt", "tn", "rt", "rn")),
    *((kind, order) for kind in ("tf32", "s8", "u8", "e4m3", "e5m2") for order in ("nt", "rt")),
]


SIZES = [("bf16", "tn", 8), ("f16", "rn", 256), ("tf32", "nt", 200), ("u8", "rt", 256)]


@pytest.mark.parametrize(("kind", "order", "n"), [*((*p, 96) for p in PRODUCTS), *SIZES])
def test_products(kind: str, order: str, n: int) -> None:
    program, arrays, want = one_product(kind, n, order)
    got = emulate(program, arrays)
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], want)


def test_registers_that_a_product_reads_are_left_alone() -> None:
    program, arrays, _ = one_product("bf16", 64, "rt")
    text = program.text.replace("tir_wgmma_commit();", "tir_wgmma_commit(); held[thread % 16] = 1;")
    assert {p.code for p in emulate(replace(program, text=text), arrays).problems} == {"memory.in-flight"}


def test_tf32_drops_bits() -> None:
    program, arrays, _ = one_product("tf32", 8, "nt")
    want = arrays[0] @ arrays[1].T
    got = emulate(
        program, [arrays[0] + np.copysign(2.0**-11, arrays[0]).astype("float32") * (arrays[0] != 0), arrays[1]]
    )
    np.testing.assert_array_equal(got.outputs[0], want)


def test_maps_that_round_to_tf32() -> None:
    program, arrays, _ = one_product("tf32", 8, "nt")
    (k,) = program.kernels
    rounding = replace(program, kernels=(replace(k, maps=tuple(replace(m, dtype="tfloat32") for m in k.maps)),))
    draw = np.random.default_rng(7)
    given = [draw.standard_normal(a.shape).astype("float32") for a in arrays]
    given[0][0, :4] = 1 + 2.0**-11, 1 + 3 * 2.0**-11, 2 - 2.0**-12, -(1 + 2.0**-11)  # ties to even, and a carry
    given[1][:, :4] = np.eye(8, 4)
    nearest = [(b + 0xFFF + (b >> 13 & 1) & 0xFFFFE000).view("float32") for b in (a.view("uint32") for a in given)]
    assert list(nearest[0][0, :4]) == [1, 1 + 2.0**-9, 2, -1]
    got = emulate(rounding, given)
    assert not got.problems
    want = nearest[0].astype("float64") @ nearest[1].T.astype("float64")
    np.testing.assert_allclose(got.outputs[0], want, rtol=0, atol=1e-5)
    error = np.abs(got.outputs[0] - given[0].astype("float64") @ given[1].T.astype("float64")).max()
    cut_off = np.abs(emulate(program, given).outputs[0] - given[0].astype("float64") @ given[1].T).max()
    assert error < cut_off


TILES = [
    ((40,), (16,), (28,), (3,)),
    ((9, 20), (4, 8), (-1, 16), (6, -2)),
    ((5, 6, 16), (2, 3, 8), (4, -2, 5), (0, 1, 8)),
    ((3, 4, 5, 12), (2, 2, 3, 8), (1, 3, -1, 8), (-1, 0, 1, 2)),
    ((2, 3, 4, 5, 8), (2, 1, 3, 2, 4), (1, 2, 2, 4, -1), (0, 1, 1, 2, 3)),
]
STEPPED = [
    ((9, 20), (6, 8), (-1, 16), (3, -2), (2, 1)),
    ((12, 9, 16), (5, 8, 8), (-3, 2, 5), (0, 1, 8), (3, 8, 1)),
    ((3, 9, 11, 12), (1, 4, 7, 8), (1, -3, 3, 0), (-1, 0, 1, 2), (1, 4, 2, 1)),
]
"""Boxes of no multiple of their step as well: what is copied then is rounded up."""


@pytest.mark.parametrize(("shape", "box", "start", "to", "steps"), [*((*t, (1,) * len(t[0])) for t in TILES), *STEPPED])
def test_tiles_of_any_rank(
    shape: tuple[int, ...], box: tuple[int, ...], start: tuple[int, ...], to: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    """Zeros come from beyond the array, and nothing goes there."""
    x = np.arange(1, 1 + np.prod(shape), dtype="float32").reshape(shape)
    padded = np.pad(x, 8)
    tile = padded[tuple(slice(8 + s, 8 + s + b, by) for s, b, by in zip(start, box, steps, strict=True))]
    stepped = () if max(steps) == 1 else steps
    maps = tuple(TensorMap(f"{name}_map", name, "float32", shape, box, 0, stepped) for name in "XYZ")
    words = {
        "SIZE": str(tile.size),
        "FROM": ", ".join(map(str, reversed(start))),
        "TO": ", ".join(map(str, reversed(to))),
    }
    text = MOVED
    for name, value in words.items():
        text = text.replace(name, value)
    launch = KernelLaunch("moved", ("X_map", "Y_map", "Z_map", "Y"), (1, 1, 1), (32, 1, 1), maps=maps)
    program = source(text, launch, {"X": ("float32", shape), "Z": ("float32", shape), "Y": ("float32", tile.shape)})
    program = replace(
        program, params=tuple(replace(p, role="output" if p.name in "YZ" else "input") for p in program.params)
    )
    got = emulate(program, [x])
    z, y = got.outputs
    np.testing.assert_array_equal(y, tile)
    inside = np.zeros(shape, bool)
    back = np.full(padded.shape, np.nan, "float32")
    place = tuple(slice(8 + s, 8 + s + b, by) for s, b, by in zip(to, box, steps, strict=True))
    back[place] = tile
    want = back[tuple(slice(8, -8) for _ in shape)]
    inside = ~np.isnan(want)
    np.testing.assert_array_equal(z[inside], want[inside])
    assert np.isnan(z[~inside]).all()
    assert [p.code for p in got.problems] == ["launch.unwritten"]
    assert f"{np.count_nonzero(~inside)} of {z.size}" in got.problems[0].message


@pytest.mark.parametrize("turned", [False, True])
def test_stmatrix(turned: bool) -> None:
    x = np.arange(256, dtype="int16").reshape(32, 4, 2)  # lane, matrix, which of two
    want = x.transpose(1, 0, 2).reshape(4, 8, 8)
    launch = KernelLaunch("turned", ("X", "Y"), (1, 1, 1), (32, 1, 1))
    text = TURNED.replace("STORE", "tir_stmatrix_x4_trans" if turned else "tir_stmatrix_x4")
    program = source(text, launch, {"X": ("uint32", (128,)), "Y": ("int16", (4, 8, 8))})
    got = emulate(program, [x.reshape(-1).view("uint32")])
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], want.transpose(0, 2, 1) if turned else want)
