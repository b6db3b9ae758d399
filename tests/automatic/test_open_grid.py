"""Declarations with several large dims have a default, and its grid ends where a launch's arrays end."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.runtime.limits import check_launches

B, N, M = (tir.dim(name, high=10**6) for name in "bnm")


def plane():
    x = tir.placeholder((N, M), name="x")
    return tir.compute((N, M), lambda i, j: x[i, j] + 1.0, name="y")


def turned():
    x = tir.placeholder((N, M), name="x")
    return tir.compute((M, N), lambda i, j: x[j, i] * 2.0, name="y")


def space():
    x = tir.placeholder((B, N, M), name="x")
    return tir.compute((B, N, M), lambda h, i, j: x[h, i, j] * 2.0, name="y")


def product():
    a, b = tir.placeholder((N, B), name="a"), tir.placeholder((B, M), name="b")
    k = tir.reduce_axis(B, name="k")
    return tir.compute((N, M), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), name="y")


def batched():
    a, b = tir.placeholder((B, N, 3), name="a"), tir.placeholder((B, 3, M), name="b")
    k = tir.reduce_axis(3, name="k")
    return tir.compute((B, N, M), lambda h, i, j: tir.sum(a[h, i, k] * b[h, k, j], axis=k), name="y")


KINDS = {
    plane: lambda x: x + 1, turned: lambda x: x.T * 2, space: lambda x: x * 2, product: np.matmul, batched: np.matmul,
}  # fmt: skip
SHAPES = {plane: [(5, 300)], turned: [(5, 300)], space: [(2, 3, 70)], product: [(5, 4), (4, 9)],
          batched: [(2, 5, 3), (2, 3, 9)]}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", ["opencl", "c"])
def test_large_dims_have_a_default_that_runs(kind, target):
    s = tir.auto_schedule(kind(), target)
    given = [np.arange(np.prod(shape), dtype="float32").reshape(shape) % 7 for shape in SHAPES[kind]]
    f = s.build()
    assert np.array_equal(f(*given), KINDS[kind](*given))
    sizes = dict(b=2, n=5, m=9)
    assert np.prod(s.emitted().at({d.name: sizes[d.name] for d in s.emitted().dims}).kernels[0].grid) <= 10


@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "cuda -arch=sm_90a", "opencl -kind=gpu"])
def test_grids_of_gpus_have_room(kind, target):
    s = tir.auto_schedule(kind(), target)
    most = s.target.max_grid
    for high in ({"b": 1, "n": 1, "m": 1}, {"b": 10**6, "n": 10**6, "m": 10**6}):
        source = s.emitted()
        grid = source.at({d.name: high[d.name] for d in source.dims}).kernels[0].grid
        assert all(n <= limit for n, limit in zip(grid, most, strict=True))
    assert np.prod(s.emitted().at({d.name: 1 for d in s.emitted().dims}).kernels[0].grid) == 1


def test_what_a_block_does_of_an_axis_without_room_is_right():
    s = tir.auto_schedule(space(), "cuda -arch=sm_80")
    assert "(n + 15) // 16" in str(s.emitted().kernels[0].grid)
    verdict = s.check("emulate", shapes=[{"h": 2, "i": 35, "j": 3}])
    assert verdict, verdict
    assert s.check()


def test_a_grid_that_only_some_launches_have_room_for_is_refused_by_those():
    x = tir.placeholder((N, M), "int8", name="x")
    y = tir.compute((N, M), lambda i, j: x[i, j] + 1, name="y")
    s = tir.Schedule(y, "opencl -max_grid=8,8,8")
    s.bind("y.i", "block.x")
    source = s.emitted()
    check_launches(source.at({"n": 8, "m": 3}), s.target)
    with pytest.raises(tir.LaunchError, match=r"block\.x has extent 9; .* allows 8") as caught:
        check_launches(source.at({"n": 9, "m": 3}), s.target)
    assert caught.value.code == "compile.grid"
    with pytest.raises(tir.ScheduleError, match="1000000 blocks"):
        tir.Schedule(y, "cuda").bind("y.i", "block.y")
