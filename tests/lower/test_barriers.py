"""Barriers stand where threads exchange values, and nowhere else."""

import shutil

import pytest

import tensorir as tir
from tensorir import nn

SYNC = "__syncthreads();"


def given(name, *shape, dtype="float32"):
    return tir.placeholder(shape, dtype, name=name)


def softmax(rows, n):
    return nn.softmax(given("x", rows, n), -1)


def layer_norm(rows, n):
    return nn.layer_norm(given("x", rows, n), (n,), given("w", n), given("b", n))


def attention(dtype):
    return nn.attention(*(given(name, 1, 2, 32, 16, dtype=dtype) for name in "qkv"))


def convolution():
    return nn.conv2d(given("x", 1, 4, 10, 10), given("w", 8, 4, 3, 3), pad=1)


def matmul(n):
    return nn.matmul(given("a", n, n), given("b", n, n))


FEWEST = [
    (softmax(6, 70), 4), (softmax(6, 1000), 6), (layer_norm(6, 70), 4), (attention("float32"), 5),
    (attention("float16"), 6), (matmul(64), 3), (convolution(), 3),
]  # fmt: skip
"""Computations, and the barriers of their kernels for sm_80."""


def scheduled(out):
    return tir.auto_schedule(out, target="cuda -arch=sm_80")


@pytest.mark.parametrize(("out", "most"), FEWEST, ids=lambda x: getattr(x, "name", x))
def test_few(out, most):
    assert scheduled(out).source().count(SYNC) <= most


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="needs a C++ compiler")
@pytest.mark.parametrize("out", [softmax(6, 70), softmax(6, 1000), layer_norm(6, 70), matmul(64)], ids=lambda x: x.name)
def test_none_is_missing_and_none_is_too_much(out):
    s = scheduled(out)
    assert (found := s.check("emulate")), found
    parts = s.source().split(SYNC)
    for n in range(1, len(parts)):
        text = SYNC.join(parts[:n]) + SYNC.join(["", *parts[n:]])[len(SYNC) :]
        assert text.count(SYNC) == len(parts) - 2
        assert not s.with_source(text).check("emulate"), f"barrier {n} of {len(parts) - 1} orders nothing"


def copied(walk, back, read=lambda y, i: y[i]):
    """Eight threads that fill an array and read it: whose cells, ``walk`` and ``back`` say."""
    x = given("x", 32)
    y = tir.compute((32,), lambda i: x[i] + 1.0, name="y")
    z = tir.compute((32,), lambda i: read(y, i) * 2.0, name="z")
    s = tir.Schedule(z, "cuda")
    s.bind(s.split("z.i", [1, 32])[0], "block.x")
    s.compute_at("y", "z.i.0")
    s.set_scope("y", "shared")
    for loop, (factors, place) in {"y.i": walk, "z.i.1": back}.items():
        s.bind(s.split(loop, factors)[place], "thread.x")
    return s


ROWS, TURNS = ([8, 4], 0), ([4, 8], 1)
"""Four neighbours for each thread; or the eight threads next to each other, four times."""


@pytest.mark.parametrize(("walk", "back", "barriers"), [(ROWS, ROWS, 0), (TURNS, TURNS, 0), (ROWS, TURNS, 1),
                                                        (TURNS, ROWS, 1)])  # fmt: skip
def test_threads_that_read_what_they_wrote_need_none(walk, back, barriers):
    s = copied(walk, back)
    assert s.source().count(SYNC) == barriers, s.source()
    assert (found := s.check()), found


OTHERS = [
    lambda y, i: y[31 - i],
    lambda y, i: y[(i + 1) % 32],
    lambda y, i: y[i ^ 4],
    lambda y, i: y[tir.minimum(i, 30)],
    lambda y, i: y[i % 4 * 8 + i // 4],
    lambda y, i: y[i // 2],
]


def test_cells_exchanged_within_a_thread_take_none():
    s = copied(ROWS, ROWS, lambda y, i: y[i ^ 1])
    assert s.source().count(SYNC) == 0 and s.check()


@pytest.mark.parametrize("walk", [ROWS, TURNS])
@pytest.mark.parametrize("read", OTHERS)
def test_a_cell_of_another_thread_takes_one(read, walk):
    s = copied(walk, walk, read)
    assert s.source().count(SYNC) == 1, s.source()
    assert (found := s.check()), found
