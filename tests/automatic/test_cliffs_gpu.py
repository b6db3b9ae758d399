"""Defaults on GPUs without cliffs: few rows, scans, cells and pixels are shared out to all multiprocessors."""

import itertools
import math
import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.ir.build import as_int
from tensorir.machine import machine_of
from tensorir.target import Target

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
TARGETS = ("cuda -arch=sm_80", "cuda -arch=sm_90a", "opencl -kind=gpu")


def given(shape, name="x", dtype="float32"):
    return tir.placeholder(shape, dtype, name=name)


def total(shape, axis=-1):
    x, axis = given(shape), axis % len(shape)
    k = tir.reduce_axis(shape[axis], name="k")
    rest = [n for d, n in enumerate(shape) if d != axis] or [1]
    read = (lambda i: x[k]) if len(shape) == 1 else lambda *i: x[(*i[:axis], k, *i[axis:])]
    return tir.compute(rest, lambda *i: tir.sum(read(*i), axis=k), name="total")


def product(m, n, k):
    return tir.nn.matmul(given((m, k), "a"), given((k, n), "b"), name="c")


def doubled(m, n, k):
    c = product(m, n, k)
    return tir.compute((m, n), lambda i, j: c[i, j] * 2.0, name="y")


def scanned(shape, axis=-1, **how):
    return tir.scan(given(shape), axis=axis, name="s", **how)


def segments(shape, axis=-1, **how):
    """Sums that begin again where a > 0: two states, which do not commute."""
    of = tir.combiner(
        lambda x, y: (tir.maximum(x[0], y[0]), tir.where(y[0] > 0, y[1], x[1] + y[1])),
        (-9, 0),
        "sums",
        commutative=False,
    )
    return tir.scan((given(shape, "a"), given(shape, "b")), axis=axis, op=of, name="s", **how)[1]


def segments_by_numpy(a, b):
    steps = itertools.accumulate(zip(a, b, strict=True), lambda x, y: (y[0], np.where(y[0] > 0, 0, x[1]) + y[1]))
    return np.stack([total for _, total in steps])


def largest(shape, axis=0):
    """The largest element so far and its index: two states, which commute."""
    of = tir.combiner(
        lambda x, y: (tir.maximum(x[0], y[0]), tir.where(x[0] >= y[0], x[1], y[1])), (-1e30, 0), name="largest"
    )
    return tir.scan((given(shape, "a"), given(shape, "b")), axis=axis, op=of, name="s")[1]


FEW = {
    "sums of segments": lambda: segments((1000, 1000), 0),
    "sums of long segments": lambda: segments((1_000_000,)),
    "scans of rows": lambda: tir.nn.cumsum(given((1000, 1000)), 1),
    "scans of columns": lambda: tir.nn.cumsum(given((1000, 1000)), 0),
    "a long scan": lambda: tir.nn.cumsum(given((1_000_000,)), 0),
    "few long scans of columns": lambda: tir.nn.cumsum(given((100_000, 64)), 0),
    "log-softmax": lambda: tir.nn.log_softmax(given((32, 50257)), -1),
    "softmax": lambda: tir.nn.softmax(given((32, 50257)), -1),
    "softmax of columns": lambda: tir.nn.softmax(given((16384, 64)), 0),
    "layer norm": lambda: tir.nn.layer_norm(given((8, 65536)), (65536,)),
    "pooling": lambda: tir.nn.max_pool2d(given((1, 64, 112, 112)), 3, 2, 1),
    "a sum": lambda: total((4_000_000,)),
    "few columns": lambda: total((100_000, 64), 0),
    "16 x 16 sums": lambda: product(16, 16, 65536),
    "64 x 64 sums": lambda: product(64, 64, 16384),
    "a row": lambda: product(1, 4096, 4096),
    "a column": lambda: product(4096, 1, 4096),
}


def launches(s):
    return [(math.prod(k.grid), math.prod(k.block)) for k in s.emitted().kernels]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", FEW)
def test_what_is_read_goes_to_half_of_the_multiprocessors(kind, target):
    s = tir.auto_schedule(FEW[kind](), target)
    cores = machine_of(Target.parse(target)).cores
    assert 2 * max(blocks for blocks, _ in launches(s)) >= cores
    assert not any("blocks for" in note for note in s.expected.notes)


@pytest.mark.parametrize("target", TARGETS)
def test_pooling_of_few_pixels_has_threads_for_all_multiprocessors(target):
    ((blocks, threads),) = launches(tir.auto_schedule(FEW["pooling"](), target))
    assert blocks * threads >= 128 * machine_of(Target.parse(target)).cores


@pytest.mark.parametrize("made", [
    lambda: scanned((7, 1001)), lambda: scanned((1001, 32), 0, reverse=True), lambda: scanned((3, 257, 5), 1, op="max"),
    lambda: scanned((50_003,), exclusive=True), lambda: scanned((2, 9001, 5), 1, reverse=True, exclusive=True),
    lambda: scanned((30_011, 3), 0), lambda: scanned((3, 20_011), reverse=True, op="max"),
    lambda: segments((7, 1001)), lambda: segments((30_011,), reverse=True), lambda: segments((9001, 5), 0),
    lambda: largest((30_011, 3)),
], ids=["rows", "columns", "between", "long", "long between", "long columns", "long rows", "segments",
        "long segments", "segments of columns", "largest"])  # fmt: skip
@pytest.mark.parametrize("target", TARGETS)
def test_scans_by_the_threads_of_blocks_are_right(made, target):
    s = tir.auto_schedule(made(), target)
    assert "tiled_scan" in str(s.trace)
    assert s.check()


@pytest.mark.parametrize("made", [
    lambda: tir.nn.log_softmax(given((3, 20_011)), -1), lambda: tir.nn.layer_norm(given((2, 65_537)), (65_537,)),
    lambda: tir.nn.softmax(given((16_384, 40)), 0), lambda: tir.nn.softmax(given((2, 9001, 17)), 1),
    lambda: tir.nn.softmax(given((4, 65_536), dtype="float16"), -1),
], ids=["log-softmax", "layer norm", "columns", "between", "halves"])  # fmt: skip
@pytest.mark.parametrize("target", TARGETS)
def test_rows_in_parts_are_right(made, target):
    s = tir.auto_schedule(made(), target)
    assert "rfactor" in str(s.trace)
    assert s.check()


@pytest.mark.parametrize("shape", [(1, 1, 9001), (3, 5, 16_384), (17, 31, 8209), (64, 64, 8192), (130, 1, 4099)])
@pytest.mark.parametrize("made", [product, doubled])
@pytest.mark.parametrize("target", TARGETS)
def test_products_of_few_cells_are_right(made, shape, target):
    assert tir.auto_schedule(made(*shape), target).check()


@pytest.mark.parametrize("parts", [(4_000_000,), (1 << 22,), (3, 100_003), (1, 65_536)])
def test_parts_of_few_sums_are_added_by_a_tree(parts):
    s = tir.auto_schedule(total(parts), TARGETS[0])
    assert str(s.trace).count("reduce_across") == 2
    assert s.check()


def centred(shape):
    """Twice what a row's elements have less than their maximum, plus their sum: two reductions and a map."""
    x, k = given(shape), tir.reduce_axis(shape[1], name="k")
    m = tir.compute(shape[:1], lambda i: tir.max(x[i, k], axis=k), name="m")
    t = tir.compute(shape[:1], lambda i: tir.sum(x[i, k] - m[i], axis=k), name="t")
    return tir.compute(shape, lambda i, j: (x[i, j] - m[i]) * 2.0 + t[i], name="y")


def centred_by_numpy(x):
    away = x - x.max(axis=1, keepdims=True)
    return away * 2.0 + away.sum(axis=1, keepdims=True)


@emulated
@pytest.mark.parametrize(("made", "reference", "kernels"), [
    (lambda: scanned((7, 1001)), lambda x: np.cumsum(x, 1), 1),
    (lambda: scanned((1001, 9), 0), lambda x: np.cumsum(x, 0), 1),
    (lambda: scanned((20_011,)), np.cumsum, 3),
    (lambda: scanned((9001, 5), 0, reverse=True), lambda x: np.cumsum(x[::-1], 0)[::-1], 3),
    (lambda: segments((9001, 3), 0), segments_by_numpy, 3),
    (lambda: centred((3, 20_011)), centred_by_numpy, 3),
    (lambda: total((2, 100_003)), lambda x: x.sum(1), 2),
    (lambda: product(5, 3, 9001), np.matmul, 2),
    (lambda: doubled(17, 13, 4099), lambda a, b: 2 * (a @ b), 2),
    (lambda: product(33, 1, 4097), np.matmul, 1),
], ids=["rows", "columns", "long", "long columns", "segments", "centred", "sums", "product", "epilogue",
        "column"])  # fmt: skip
def test_texts_give_numpys_results(made, reference, kernels):
    s, rng = tir.auto_schedule(made(), TARGETS[0]), np.random.default_rng(1)
    text = s.emitted()
    assert len(text.kernels) == kernels
    arrays = [rng.integers(-3, 4, tuple(map(as_int, x.shape))).astype(np.float32) for x in s.program.inputs]
    got = emulate(text, arrays)
    assert not got.problems
    assert np.array_equal(np.asarray(got.outputs[0], np.float64), reference(*(a.astype(np.float64) for a in arrays)))


def test_the_machine_of_a_gpu_is_that_of_its_architecture():
    cores = {t: machine_of(Target.parse(t)).cores for t in (*TARGETS, "cuda -arch=sm_90a -units=66")}
    assert [*cores.values()] == [108, 132, 108, 66]
    clocks = {machine_of(Target.parse(t)).clock for t in TARGETS[:2]}
    assert len(clocks) == 2


def test_few_threads_leave_a_machine_as_idle_as_few_blocks():
    machine = machine_of(Target.parse(TARGETS[0]))
    assert machine.busy(machine.cores, 1024) == 1.0
    assert machine.busy(machine.cores // 2, 1024) == 0.5
    assert machine.busy(machine.cores, 32) < 0.25
    assert machine_of(Target.parse("c -units=4")).busy(4, 1) == 1.0


@pytest.mark.parametrize("rows", [200, 10000])
def test_a_chain_that_sums_over_its_rows_is_not_cut_into_parts(rows):
    x = tir.placeholder((rows, 64), name="x")
    k, l = tir.reduce_axis(rows, name="k"), tir.reduce_axis(64, name="l")
    m = tir.compute((64,), lambda j: tir.sum(x[k, j], axis=k), name="m")
    t = tir.compute((1,), lambda i: tir.sum(m[l], axis=l), name="t")
    assert tir.auto_schedule(tir.compute((64,), lambda j: m[j] - t[0], name="y"), "cuda -arch=sm_80").check()
