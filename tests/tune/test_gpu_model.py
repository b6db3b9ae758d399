"""The static model of GPU kernels: every term reacts in the right direction, and what it ranks first is sensible."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import tensorir as tir
from tensorir.gpu_devices import GPUS, gpu_of
from tensorir.target import Target
from tensorir.tune.baseline import Climber, RandomSearch
from tensorir.tune.gpu_model import MatrixProduct, Tiles, dram_bytes, explain, resident, seconds, spilling
from tensorir.tune.pool import HOPELESS_RATIO, Pool
from tensorir.tune.strategy import Bayes

H100 = GPUS["H100"][1]
A100 = GPUS["A100"][1]
SQUARE = MatrixProduct(4096, 4096, 4096)
HOPPER = Tiles("wgmma", 128, 256, 64, 64, 256, depth=3, cluster=2, persistent=True, raster=16)
CORES = Tiles("mma", 128, 128, 32, 64, 32, depth=4)
THREADS = Tiles("threads", 128, 128, 8, 8, 8, depth=2, copies=False)
FP32 = MatrixProduct(4096, 4096, 4096, kind="f32", in_bytes=4, out_bytes=4)
KINDS = [(SQUARE, HOPPER, H100), (SQUARE, CORES, A100), (FP32, THREADS, A100)]
SIZES = (1, 7, 64, 100, 129, 256, 512, 1000, 1024, 2048, 4096, 5000, 8192, 20000)


def hopper_tiles():
    for bm in (64, 128, 256):
        for bn in (64, 96, 128, 192, 256):
            for consumers in (1, 2, 3):
                for cluster in (1, 2):
                    depth = (232448 - bm * bn * 2) // ((bm + bn) * 128)
                    rows = bm // consumers
                    if bm % consumers or rows % 64 or rows * bn > 64 * 256 or depth < 2:
                        continue
                    yield Tiles("wgmma", bm, bn, 64, rows, bn, min(depth, 8), True, cluster, persistent=True, raster=16)


@pytest.mark.parametrize("n", [4096, 8192])
def test_the_best_hopper_tile_is_the_one_that_people_found(n):
    best = min(hopper_tiles(), key=lambda t: seconds(MatrixProduct(n, n, n), t, H100))
    assert (best.bm, best.bn) in ((128, 256), (256, 128))
    assert best.cluster == 2
    assert 650e12 < 2 * n**3 / seconds(MatrixProduct(n, n, n), best, H100) < 989e12


@pytest.mark.parametrize(("p", "t", "gpu"), KINDS, ids=lambda x: getattr(x, "kind", ""))
@pytest.mark.parametrize("axis", ["m", "n", "k", "batch"])
def test_a_larger_problem_is_never_faster(p, t, gpu, axis):
    times = [seconds(replace(p, **{axis: size}), t, gpu) for size in SIZES]
    assert times == sorted(times)


@pytest.mark.parametrize(("p", "t", "gpu"), KINDS, ids=lambda x: getattr(x, "kind", ""))
@pytest.mark.parametrize("size", [512, 3000, 4096])
@pytest.mark.parametrize(
    "what", ["units", "clock", "dram", "l2_bytes", "l2_rate", "l2_port", "shared_rate", "issue", "threads_rate"]
)
def test_a_better_device_is_never_slower(p, t, gpu, size, what):
    p = replace(p, m=size, n=size)
    more = [int(getattr(gpu, what) * f) if isinstance(getattr(gpu, what), int) else getattr(gpu, what) * f
            for f in (0.5, 0.75, 1, 1.1, 1.5, 2, 4)]  # fmt: skip
    times = [seconds(p, t, replace(gpu, **{what: value})) for value in more]
    assert all(a >= b * (1 - 1e-9) for a, b in pairwise(times))


def test_latencies_and_conflicts_cost():
    for p, t, gpu in KINDS:
        assert seconds(p, t, replace(gpu, dram_latency=4000.0)) > seconds(p, t, gpu)
        assert seconds(replace(p, m=256), replace(t, depth=1), gpu) > seconds(replace(p, m=256), t, gpu)
    assert seconds(FP32, replace(THREADS, conflicts=8.0), A100) > seconds(FP32, THREADS, A100)
    assert seconds(FP32, replace(THREADS, scatter=64.0), A100) > seconds(FP32, THREADS, A100)


def test_a_step_has_a_price_of_its_own():
    alone, beside = replace(CORES, depth=4, bk=64), replace(CORES, depth=2, bk=32)
    assert (resident(SQUARE, alone, A100), resident(SQUARE, beside, A100)) == (1, 2)
    for t in (alone, beside):
        assert seconds(SQUARE, replace(t, bk=t.bk // 2, depth=2 * t.depth), A100) > seconds(SQUARE, t, A100)
        assert seconds(SQUARE, replace(t, slots=40.0), A100) > seconds(SQUARE, t, A100)
    triton = Tiles("wgmma", 128, 128, 64, 128, 128, depth=3, producer=False)
    assert seconds(SQUARE, replace(triton, bk=32, depth=6), H100) > 1.05 * seconds(SQUARE, triton, H100)


def test_blocks_side_by_side_fill_what_one_leaves_idle():
    one, two = replace(CORES, registers=255), replace(CORES, registers=128)
    assert (resident(SQUARE, one, A100), resident(SQUARE, two, A100)) == (1, 2)
    assert seconds(SQUARE, two, A100) < 0.95 * seconds(SQUARE, one, A100)


def test_half_the_units_that_load_cost_words_read_one_by_one():
    ada, words = GPUS["RTX 3090"][1], replace(THREADS, vector=1)
    more = replace(ada, lanes=32)
    assert seconds(FP32, words, more) < 0.9 * seconds(FP32, words, ada)
    assert seconds(FP32, THREADS, more) == seconds(FP32, THREADS, ada)


def test_what_results_are_added_to_is_waited_for():
    large = MatrixProduct(32768, 4096, 512, out_bytes=4)
    added, beside = replace(large, adds=True), replace(HOPPER, depth=2, turns=2)
    read_s = 4 * large.m * large.n / H100.dram
    tiles = replace(HOPPER, depth=2)
    assert seconds(added, tiles, H100) > seconds(large, tiles, H100) + read_s
    assert seconds(added, beside, H100) < seconds(added, tiles, H100)


def test_power_lowers_the_clock():
    cool = replace(H100, sustained={})
    assert 0.75 < seconds(SQUARE, HOPPER, cool) / seconds(SQUARE, HOPPER, H100) < 0.9
    assert seconds(FP32, THREADS, cool) == seconds(FP32, THREADS, H100)


def test_more_work_for_the_same_result_costs():
    assert seconds(replace(SQUARE, terms=3, kind="tf32", in_bytes=4), CORES, A100) > seconds(
        replace(SQUARE, kind="tf32", in_bytes=4), CORES, A100
    )
    assert seconds(replace(SQUARE, k=256, adds=True), HOPPER, H100) > seconds(replace(SQUARE, k=256), HOPPER, H100)
    assert seconds(replace(SQUARE, k=256, out_bytes=4), HOPPER, H100) > seconds(replace(SQUARE, k=256), HOPPER, H100)


def test_a_partial_last_wave_costs_a_whole_one():
    tiles = replace(HOPPER, cluster=1)
    whole, one_more = (MatrixProduct(128 * 132 * 4, 256, 8192), MatrixProduct(128 * (132 * 4 + 1), 256, 8192))
    assert explain(one_more, tiles, H100).waves == explain(whole, tiles, H100).waves + 1
    assert seconds(one_more, tiles, H100) > 1.08 * seconds(whole, tiles, H100)


def test_occupancy():
    assert resident(FP32, THREADS, A100) == 2, "registers: 128 of each of 256 threads"
    assert resident(SQUARE, replace(CORES, depth=6, bk=64), A100) == 1, "shared memory"
    assert resident(SQUARE, HOPPER, H100) == 1
    assert spilling(FP32, THREADS, A100) == 1.0
    assert spilling(FP32, Tiles("threads", 256, 256, 8, 16, 16, copies=False), A100) > 1.0


def test_what_the_cache_keeps_is_read_once():
    small = MatrixProduct(1024, 1024, 1024)
    assert dram_bytes(small, CORES, A100, 1) == 3 * 2 * 1024**2
    large = MatrixProduct(16384, 16384, 16384)
    assert dram_bytes(large, CORES, A100, 1) > 2 * dram_bytes(large, replace(CORES, raster=8), A100, 1)
    assert dram_bytes(replace(small, apart=(1.0, 0.25)), CORES, A100, 1) == 2.25 * 2 * 1024**2, "pixels under four taps"


def test_devices_by_name_and_by_architecture():
    assert gpu_of(Target.parse("cuda -arch=sm_90a")).name == "H100 SXM"
    named = replace(Target.parse("cuda -arch=sm_90a"), name="NVIDIA H200 (sm_90a)", units=100)
    assert (gpu_of(named).name, gpu_of(named).units) == ("H200 SXM", 100)
    assert gpu_of(Target.parse("cuda -arch=sm_80")).dram < 2e12
    assert gpu_of(replace(Target.parse("cuda -arch=sm_80"), name="NVIDIA A100-SXM4-80GB")).dram > 2e12
    assert gpu_of(replace(Target.parse("cuda -arch=sm_86"), name="NVIDIA T400")).name == "RTX A6000", "not a T4"
    assert gpu_of(Target.parse("cuda -arch=sm_100")) is None
    assert gpu_of(Target.parse("opencl -kind=gpu")) is None


MATMULS = [
    (dict(dtype="bfloat16"), "sm_90a"),
    (dict(dtype="float8_e4m3", tb=True), "sm_90a"),
    (dict(dtype="float16"), "sm_80"),
    ({}, "sm_86"),
    ({}, "sm_80"),
]


@pytest.mark.parametrize(("options", "arch"), MATMULS)
def test_spaces_of_matmul_have_the_model_and_keep_their_rows(options, arch):
    work, target = tir.ops.matmul(4096, 4096, 4096, **options), Target.parse(f"cuda -arch={arch}")
    space = work.templates[work.template_for(target)].space_for(target)
    slow = Pool.of(space).slowness
    assert slow.min() == 1.0
    assert slow[space.index(space.default)] < 1.5, "the default of large shapes is among the promising"
    plain = tir.Space(where=space.where, **dict(zip(space.names, space.values, strict=True)))
    assert (plain.legal == space.legal).all()
    knob = space.names[0]
    assert space.pin(**{knob: space.default[knob]}).expected_s is space.expected_s
    template, unknown = work.templates[work.template_for(target)], Target.parse("cuda -arch=sm_100")
    if template.suits(unknown):
        assert template.space_for(unknown).expected_s is None


def a_space():
    return tir.Space(x=list(range(1, 21)), y=list(range(1, 11))).expecting(
        lambda c: 1e-3 * (1 + abs(c["x"] - 7) + c["y"])
    )


@pytest.mark.parametrize("strategy", [Bayes, Climber])
def test_what_is_hopeless_comes_last(strategy):
    if strategy is Bayes:
        pytest.importorskip("skopt")
    space = a_space()
    search, pool = strategy(space, seed=1), Pool.of(space)
    order = []
    for _ in range(60):
        (row,) = search.ask()
        search.tell(row, 2 * space.expected_s(space.config(row)) + 1e-6 * (row % 17))  # much like the model
        order.append(row)
    hopeful = int((~pool.hopeless).sum())
    assert 10 < hopeful < 60
    assert not pool.hopeless[order[:hopeful]].any()
    assert pool.hopeless[order[hopeful:]].all(), "and then it does come"
    assert len(set(order)) == 60


def test_the_search_starts_with_the_best_expected():
    pytest.importorskip("skopt")
    space = a_space().expecting(lambda c: 1e-3 * (10 + abs(c["x"] - 7) + c["y"]))
    search, pool = Bayes(space, seed=0), Pool.of(space)
    search.tell(space.index(space.default), 1.0)
    first = search.ask(5)
    assert pool.slowness[first[0]] == 1.0
    assert sum(pool.slowness[first] <= 1.25) >= 3
    assert (np.diff(pool.slowness[first[:2]]) > 0).all(), "in its order, and no two of one time"


def test_random_search_is_not_guided():
    space = a_space()
    asked = RandomSearch(space, seed=0).ask(40)
    assert asked == RandomSearch(tir.Space(x=list(range(1, 21)), y=list(range(1, 11))), seed=0).ask(40)
    assert Pool.of(space).hopeless[asked].any()


@pytest.mark.parametrize("model", [lambda c: float("nan"), lambda c: -1.0])
def test_a_model_without_times_changes_nothing(model):
    pool = Pool.of(tir.Space(x=[1, 2, 3]).expecting(model))
    assert (pool.slowness == 1).all()
    assert not pool.hopeless.any()
    assert HOPELESS_RATIO > 1
