"""Exported kernels with kernels for several calls at once."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import tensorir as tir
from tensorir.export.program import ExportError
from tensorir.export.shipped import build

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler")


def product(many=(), items=3, more=0, name="y"):
    """y = a @ b + more, of several of those in ``many``."""
    shapes = {"a": (9, 7), "b": (7, 5)}
    a, b = (tir.placeholder((items,) * (n in many) + shape, name=n) for n, shape in shapes.items())
    k = tir.reduce_axis(7)
    if not many:
        return tir.nn.matmul(a, b, name=name)
    both = (lambda n, i: a[n, i, k] if "a" in many else a[i, k]), (lambda n, j: b[n, k, j] if "b" in many else b[k, j])
    total = tir.compute((items, 9, 5), lambda n, i, j: tir.sum(both[0](n, i) * both[1](n, j), k), name="total")
    return tir.compute((items, 9, 5), lambda n, i, j: total[n, i, j] + more, name=name) if more else total


def schedule(*given, **named):
    return tir.Schedule(product(*given, **named), "c")


def test_a_folder_for_each_inside_the_kernels_own(tmp_path):
    batched = [schedule(("a", "b")), schedule(("a",), items=4)]
    folder = schedule().export(tmp_path / "mm", ["jax", "c"], batched=batched)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["batched"] == [
        {"folder": "batched_3", "items": 3, "mapped": ["a", "b"], "targets": ["jax"]},
        {"folder": "batched_4", "items": 4, "mapped": ["a"], "targets": ["jax"]},
    ]
    schedule().export(folder, "jax", batched=batched[0])
    assert (folder / "batched_3").exists() and not (folder / "batched_4").exists()


def test_vmap_of_so_many_items_calls_it(tmp_path):
    """The kernel for 3 pairs adds 1 and that for 4 of a adds 2, which tells that they ran."""
    if find_spec("jax") is None:
        pytest.skip("jax is not installed")
    d = tir.placeholder((9, 5), name="d_y")
    da = tir.Schedule(tir.nn.matmul(d, tir.placeholder((7, 5), name="b"), tb=True, name="da"), "c")
    batched = [schedule(("a", "b"), more=1), schedule(("a",), items=4, more=2)]
    folder = schedule().export(tmp_path / "mm", "jax", batched=batched, backward={"a": da})
    schedule().export(tmp_path / "plain", "jax", batched=batched[0])
    code = """
import sys
sys.modules["tensorir"] = None
import numpy as np, jax, mm, plain
same = lambda x, y: np.array_equal(np.asarray(x), y)
r = np.random.default_rng(0)
a, b = r.integers(-4, 5, (4, 9, 7)).astype("f4"), r.integers(-4, 5, (4, 7, 5)).astype("f4")
for f in (mm.call, plain.call):
    assert same(f(a[0], b[0]), a[0] @ b[0])
    assert same(jax.jit(jax.vmap(f))(a[:3], b[:3]), a[:3] @ b[:3] + 1)
    assert same(jax.vmap(f)(a, b), a @ b), "no kernel for 4 pairs"
    assert same(jax.vmap(f, in_axes=(None, 0))(a[0], b), a[0] @ b), "nor for 4 of b"
    last = jax.vmap(f, in_axes=(2, 1), out_axes=2)(np.moveaxis(a[:3], 0, 2), np.moveaxis(b[:3], 0, 1))
    assert same(last, np.moveaxis(a[:3] @ b[:3] + 1, 0, 2))
    each = jax.vmap(jax.vmap(f), in_axes=(0, None))(np.stack([a[:3], -a[:3]]), b[:3])
    assert same(each, np.stack([a[:3] @ b[:3], -a[:3] @ b[:3]]) + 1), "one call for each outer item"
assert same(jax.vmap(mm.call, in_axes=(0, None))(a, b[0]), a @ b[0] + 2)
assert same(jax.vmap(plain.call, in_axes=(0, None))(a, b[0]), a @ b[0])
slopes = jax.vmap(jax.grad(lambda a, b: (mm.call(a, b) ** 2).sum()))(a[:3], b[:3])
assert same(slopes, 2 * (a[:3] @ b[:3] + 1) @ b[:3].transpose(0, 2, 1))
try:
    jax.grad(lambda a: plain.call(a, b[0]).sum())(a[0])
except ValueError as error:
    print("cannot be differentiated" in str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr[-3000:]
    done = subprocess.run(
        [sys.executable, folder / "selftest.py", "jax"], capture_output=True, text=True, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0 and "batch of 3: y, 2 cases, exact; batch of 4" in done.stdout, done.stderr


def test_kernels_that_are_none_for_a_batch_are_refused(tmp_path):
    mixed = tir.placeholder((4, 9, 7), name="a"), tir.placeholder((3, 7, 5), name="b")
    both = tir.compute((3, 9, 5), lambda n, i, j: mixed[0][n, i, j] + mixed[1][n, 0, j], name="y")
    x = tir.placeholder((3, 9, 7), name="x")
    other = tir.compute((3, 9, 5), lambda n, i, j: x[n, i, j], name="y")
    for to, batched, message in (
        ("c", schedule(("a",)), "c cannot map a kernel"),
        ("jax", tir.Schedule(both, "c"), r"a is float32\[4, 9, 7\]"),
        ("jax", tir.Schedule(other, "c"), "takes x and gives 1 outputs"),
        ("jax", schedule(), r"y is float32\[9, 5\]"),
        ("jax", [schedule(("a",)), schedule(("b",))], "there are two kernels for 3 items"),
        ("jax", "mine", "batched is a schedule or a kernel for several items at once"),
    ):
        with pytest.raises(ExportError, match=message) as caught:
            schedule().export(tmp_path / "out", to, batched=batched)
        assert caught.value.code == "export.batched" and not (tmp_path / "out").exists()
