"""Blocks of clusters in the emulator: exact where they are right, and what is wrong with them told."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from cluster_texts import CLUSTER_GEMM, cluster_gemm
from hopper_texts import small_integers, source

import tensorir as tir
from tensorir.check.emulate import Emulated, emulate
from tensorir.codegen.source import KernelLaunch

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
SHAPE = (256, 256, 256)
"""Two pairs of tiles for one cluster, and more steps than stages: everything is used again."""
CASES = [(2, (256, 128, 64)), (2, (512, 256, 320)), (2, (200, 136, 104)), (4, (512, 256, 200)), (4, (72, 40, 200))]


@pytest.mark.parametrize(("cluster", "shape"), CASES)
def test_product_is_exact(cluster: int, shape: tuple[int, int, int]) -> None:
    arrays, want = small_integers(*shape)
    got = emulate(cluster_gemm(*shape, cluster=cluster), arrays)
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], want)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("seed", range(1, 3))
def test_any_order_gives_the_same(seed: int, eager: bool) -> None:
    arrays, want = small_integers(*SHAPE)
    got = emulate(cluster_gemm(*SHAPE, clusters=1), arrays, seed, eager)
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], want)


def test_traffic_is_that_of_the_first_block() -> None:
    arrays, _ = small_integers(*SHAPE)
    got = emulate(cluster_gemm(*SHAPE, clusters=1), arrays)
    units = {what: sum(t.units for t in got.traffic if t.what == what) for what in ("global read", "global write")}
    assert units == {"global read": 2 * (128 + 64) * 256 * 2 // 32, "global write": 256 * 128 * 2 // 32}
    assert all(t.units == t.ideal for t in got.traffic)


# --- planted faults: the text before, behind it, and what must be told; "" where the result must be wrong

BEGIN, END = "tir_meet_cluster();  // begin", "tir_sync_cluster();  // end"
ARRIVE = "if (last >= 0 && thread < CLUSTER) tir_barrier_arrive_at(empty + last, thread);"
LAST = "if (thread < CLUSTER) tir_barrier_arrive_at(empty + last, thread);"
MULTICAST = "tir_tma_multicast(B_shared + s * 8192 + rank * (8192 / CLUSTER), &B_map, full + s, (1 << CLUSTER) - 1,"
PLANTED: dict[str, tuple[str, str, str]] = {
    "no meeting at the start": (BEGIN, "__syncthreads();", "barrier.uninitialised"),
    "barriers that the cluster does not know": ("tir_barriers_ready();", ";", "barrier.uninitialised"),
    "barriers that are made known too late": (
        "    tir_barriers_ready();\n  }\n  " + BEGIN,
        "  }\n  tir_meet_cluster();\n  if (role == 0 && thread == 0) tir_barriers_ready();",
        "barrier.uninitialised",
    ),
    "no meeting at the end": (END, "", "cluster.ended"),
    "a meeting at the end that waits for no arrivals": (END, "tir_meet_cluster();", "cluster.ended"),
    "a meeting of some": (END, "if (role > 0) tir_sync_cluster();", "barrier.divergent"),
    "a meeting of one block": (BEGIN, "if (rank == 0) tir_meet_cluster();", "barrier.divergent"),
    "own arrivals alone are counted": ("init(empty + s, 2 * CLUSTER)", "init(empty + s, 2)", "memory.in-flight"),
    "own arrivals alone are made": (ARRIVE, ARRIVE.replace(", thread);", ", rank);"), "memory.in-flight"),
    "arrivals at one block": (ARRIVE, ARRIVE.replace("thread < CLUSTER", "thread == 0"), "barrier.stuck"),
    "arrivals that are too many": (ARRIVE, f"{ARRIVE} {ARRIVE}", "memory.in-flight"),
    "arrivals at no block": (ARRIVE, ARRIVE.replace(", thread);", ", thread + 1);"), "cluster.rank"),
    "a tile for no other": (MULTICAST, MULTICAST.replace("(1 << CLUSTER) - 1", "1 << rank"), "barrier.stuck"),
    "a tile for others alone": (MULTICAST, MULTICAST.replace("(1 << CLUSTER) - 1", "1 << 1 - rank"), "barrier.stuck"),
    "a tile for no block": (MULTICAST, MULTICAST.replace("(1 << CLUSTER) - 1", "0"), "cluster.rank"),
    "a tile for blocks that are not there": (MULTICAST, MULTICAST.replace("CLUSTER)", "CLUSTER + 1)"), "cluster.rank"),
    "the other half of a tile": ("n + rank * (128 / CLUSTER)", "n + (1 - rank) * (128 / CLUSTER)", ""),
    "the other half of a place": ("s * 8192 + rank * (8192", "s * 8192 + (1 - rank) * (8192", ""),
    "the same half of a place": ("s * 8192 + rank * (8192 / CLUSTER)", "s * 8192", "memory.in-flight"),
    "a whole tile of each": ("s * 8192 + rank * (8192 / CLUSTER)", "s * 8192 + rank * 8192", "memory.uninitialised"),
    "no wait for a free place": ("tir_barrier_wait(empty + s, phase ^ 1);", ";", "memory.in-flight"),
    "no wait before a place is let go": ("tir_wgmma_wait<1>();", ";", "memory.in-flight"),
    "a place let go before it is read": (
        ARRIVE,
        "if (thread < CLUSTER) tir_barrier_arrive_at(empty + s, thread);",
        "memory.in-flight",
    ),
    "a tile beyond shared memory": ("b + s * 1024", "b + s * 4096", "memory.out-of-bounds"),
    "memory of another block": ("d[i] = 0.0f;", "d[i] = A_shared[67584];", "memory.out-of-bounds"),
    "results of two blocks in one place": ("n + p * 64, m + group * 64)", "n + p * 64, group * 64)", "race.global"),
    "a declared array": ("d[i] = 0.0f;", "{ __shared__ float x[1]; d[i] = x[0]; }", "memory.out-of-bounds"),
    "a copy that comes when its block has ended": (
        END,
        "tir_sync_cluster(); if (rank + role + thread == 0) tir_tma_multicast(C_shared, &A_map, full, 2, 0, 0);",
        "memory.unfinished",
    ),
    "an arrival that comes when its block has ended": (
        END,
        "tir_sync_cluster(); if (rank + role + thread == 0) tir_barrier_arrive_at(empty, 1);",
        "cluster.ended",
    ),
}


def planted(before: str, behind: str, seed: int = 0, eager: bool = False) -> tuple[Emulated, np.ndarray]:
    assert before in CLUSTER_GEMM
    arrays, want = small_integers(*SHAPE)
    text = CLUSTER_GEMM.replace(before, behind, 1)
    return emulate(cluster_gemm(*SHAPE, clusters=1, text=text), arrays, seed, eager), want


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_told(name: str) -> None:
    before, behind, code = PLANTED[name]
    got, want = planted(before, behind)
    if not code:
        assert not np.array_equal(got.outputs[0], want)
        return
    told = [p for p in got.problems if p.code == code]
    assert told, got.problems
    if shutil.which("addr2line"):
        assert re.search(r"line \d+ of the text", told[0].message)


RACES = [
    "own arrivals alone are counted",
    "own arrivals alone are made",
    "no wait for a free place",
    "a place let go before it is read",
    "the same half of a place",
]


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("name", RACES)
def test_copies_that_land_early_hide_nothing(name: str, seed: int) -> None:
    """What is there in time by luck is a race all the same."""
    got, _ = planted(*PLANTED[name][:2], seed, eager=True)
    assert {p.code for p in got.problems} & {"race.shared", "memory.in-flight", "barrier.stuck"}


LUCK = [
    "no meeting at the start",
    "no meeting at the end",
    "a meeting at the end that waits for no arrivals",
    "a copy that comes when its block has ended",
    "an arrival that comes when its block has ended",
]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("name", LUCK)
def test_what_comes_out_right_by_luck_is_told(name: str, seed: int, eager: bool) -> None:
    got, want = planted(*PLANTED[name][:2], seed, eager)
    np.testing.assert_array_equal(got.outputs[0], want)
    assert {p.code for p in got.problems} == {PLANTED[name][2]}


def test_blocks_are_named() -> None:
    told = {p.code: p.message for p in planted(*PLANTED["no meeting at the end"][:2])[0].problems}
    assert re.search(r"block 1 may end before thread (128|129|256|257) of block 0 arrives", told["cluster.ended"])
    told = {p.code: p.message for p in planted(*PLANTED["no meeting at the start"][:2])[0].problems}
    words = "of block 0, which thread 0 of block 0 has set up with no meeting of the cluster between (block 1)"
    assert words in told["barrier.uninitialised"]
    told = {p.code: p.message for p in planted(*PLANTED["a meeting of some"][:2])[0].problems}
    words = (
        "256 of 384 threads of block 0 (128 the first) wait for the rest of the cluster; 256 of the cluster have ended"
    )
    assert words in told["barrier.divergent"]


def test_a_wait_for_the_last_arrivals_does_for_a_meeting_at_the_end() -> None:
    last = "        }\n      }\n    }\n  } else {"
    assert last in CLUSTER_GEMM
    drain = """        }
      }
      for (int i = 0; i < 3; ++i) {
        tir_barrier_wait(empty + s, phase ^ 1);
        if (++s == 3) { s = 0; phase ^= 1; }
      }
    }
  } else {"""
    arrays, want = small_integers(*SHAPE)
    text = CLUSTER_GEMM.replace(last, drain).replace(END, "")
    got = emulate(cluster_gemm(*SHAPE, clusters=1, text=text), arrays)
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], want)


@pytest.mark.parametrize(
    ("dims", "blocks"), [("2, 1, 1", 3), ("1, 2, 1", 2), ("16, 1, 1", 16), ("2, 1, 2", 4), ("0, 1, 1", 2)]
)
def test_clusters_that_do_not_run(dims: str, blocks: int) -> None:
    text = CLUSTER_GEMM.replace("__cluster_dims__(CLUSTER, 1, 1)", f"__cluster_dims__({dims})")
    with pytest.raises(tir.CheckError) as caught:
        emulate(cluster_gemm(*SHAPE, text=text, blocks=blocks), small_integers(*SHAPE)[0])
    assert caught.value.code == "emulate.cluster"


SWAPPED = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(48)
swapped(const int *__restrict__ X, int *Y, int *__restrict__ Z)
{
  TIR_SHARED(arena, 192);
  int *const tile = (int *)(arena);
  const int n = threadIdx.x;
  tir_copy_async_4(tile + n, X + blockIdx.x * 48 + n);
  tir_commit_copies();
  tir_wait_copies<0>();
  __syncthreads();
  Y[blockIdx.x * 48 + n] = __shfl_xor_sync(0xffffffffu, tile[47 - n], 1);
  tir_sync_cluster();
  Z[blockIdx.x * 48 + n] = Y[(blockIdx.x ^ 1) * 48 + n];
}

extern "C" __global__ void __launch_bounds__(48)
turned(const int *__restrict__ X, int *__restrict__ Y)
{
  __shared__ int tile[48];
  tile[threadIdx.x] = X[blockIdx.x * 48 + threadIdx.x];
  __syncthreads();
  Y[blockIdx.x * 48 + threadIdx.x] = tile[47 - threadIdx.x];
}
"""
"""Blocks of one warp and a half, which read what the other of their cluster wrote; and a kernel without clusters."""


def swapped(text: str = SWAPPED) -> tuple[Emulated, list[np.ndarray]]:
    x = np.arange(192, dtype="int32")
    first = KernelLaunch("swapped", ("X", "Y", "Z"), (4, 1, 1), (48, 1, 1), 192)
    second = KernelLaunch("turned", ("Z", "T"), (4, 1, 1), (48, 1, 1))
    arrays = dict.fromkeys("XYZT", ("int32", (192,)))
    program = source(text, first, arrays)
    params = tuple(replace(p, role="output" if p.name != "X" else "input") for p in program.params)
    got = emulate(replace(program, params=params, kernels=(first, second)), [x])
    y = x.reshape(4, 48)[:, 47 - (np.arange(48) ^ 1)]
    z = y[[1, 0, 3, 2]]
    return got, [y, z, z[:, ::-1]]


def test_blocks_of_any_size_and_kernels_of_both_kinds() -> None:
    got, want = swapped()
    assert not got.problems
    np.testing.assert_array_equal([a.reshape(4, 48) for a in got.outputs], want)


@pytest.mark.parametrize(
    ("before", "behind", "code"),
    [
        ("  tir_sync_cluster();\n", "  __syncthreads();\n", "race.global"),
        ("  tir_sync_cluster();\n", "  tir_meet_cluster();\n", "race.global"),
        ("blockIdx.x ^ 1", "blockIdx.x ^ 3", "race.global"),
        ("  __syncthreads();\n  Y", "  Y", "race.shared"),
        ("tile + n, X", "tile + n + 1, X", "memory.out-of-bounds"),
        ("tile[47 - n]", "tile[1200 + n]", "memory.out-of-bounds"),
    ],
)
def test_what_is_wrong_in_small_blocks_is_told(before: str, behind: str, code: str) -> None:
    assert before in SWAPPED
    assert code in {p.code for p in swapped(SWAPPED.replace(before, behind, 1))[0].problems}
