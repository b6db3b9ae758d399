"""Exported kernels with kernels for their gradients."""

import hashlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import tensorir as tir
from tensorir.export.program import ExportError
from tensorir.export.shipped import build

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler")


def products(dtype="float32"):
    """y = a @ b, and what computes the gradients of a and b from that of y."""
    a, b = tir.placeholder((9, 7), dtype, name="a"), tir.placeholder((7, 5), dtype, name="b")
    dy = tir.placeholder((9, 5), dtype, name="d_y")
    da, db = tir.nn.matmul(dy, b, tb=True, name="da"), tir.nn.matmul(a, dy, ta=True, name="db")
    return [tir.Schedule(t, "c") for t in (tir.nn.matmul(a, b, name="y"), da, db)]


def selftest(folder, *targets):
    return subprocess.run(
        [sys.executable, str(folder / "selftest.py"), *targets], capture_output=True, text=True, check=False, cwd="/",
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip


def test_a_folder_for_each_inside_the_kernels_own(tmp_path):
    y, da, db = products()
    folder = y.export(tmp_path / "mm", ["jax", "tvm_ffi"], name="own::mm", backward={"a": da, "b": db})
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["backward"] == {
        "a": {"folder": "backward_a", "inputs": ["b", "d_y"], "targets": ["jax"]},
        "b": {"folder": "backward_b", "inputs": ["a", "d_y"], "targets": ["jax"]},
    }
    inner = json.loads((folder / "backward_a" / "manifest.json").read_text())
    assert inner["targets"] == ["jax"] and inner["operator"] == "own::mm_backward_a"
    assert "`a`, `b`" in (folder / "README.md").read_text()
    (folder / "backward_b" / "notes.txt").write_text("mine")
    y.export(folder, "jax", backward={"a": da})
    assert {p.name for p in folder.iterdir() if p.is_dir()} == {"backward_a", "backward_b"}
    assert [p.name for p in (folder / "backward_b").iterdir()] == ["notes.txt"], "only what the export wrote goes"
    y.export(folder, "jax")
    assert not (folder / "backward_a").exists()


def test_gradients_are_what_torch_computes_itself(tmp_path):
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    y, da, db = products("float64")
    folder = y.export(tmp_path / "mm", ["torch"], name="own::mm", backward={"a": da, "b": db})
    y.export(tmp_path / "partly", ["torch"], name="own::partly", backward={"a": da})
    assert "differentiates `a`; another input" in (tmp_path / "partly" / "README.md").read_text()
    done = selftest(folder, "torch")
    assert done.returncode == 0 and "gradient of a: da, 2 cases" in done.stdout, done.stderr
    code = """
import sys
sys.modules["tensorir"] = None
import torch, mm, partly
p, q = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((9, 7), (7, 5)))
assert torch.autograd.gradcheck(torch.ops.own.mm, (p, q))
torch.library.opcheck(torch.ops.own.mm.default, (p, q))
compiled = torch.compile(lambda p, q: torch.ops.own.mm(p, q).sin().sum(), fullgraph=True, backend="aot_eager")
want = torch.autograd.grad((p @ q).sin().sum(), (p, q))
assert all(map(torch.allclose, torch.autograd.grad(compiled(p, q), (p, q)), want))
assert torch.ops.own.partly(p, q.detach()).requires_grad
try:
    torch.ops.own.partly(p, q)
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("own::partly: b requires a gradient"), done.stderr


def test_gradients_are_what_jax_computes_itself(tmp_path):
    if find_spec("jax") is None:
        pytest.skip("jax is not installed")
    y, da, db = products()
    folder = y.export(tmp_path / "mm", ["jax"], backward={"a": da, "b": db})
    done = selftest(folder, "jax")
    assert done.returncode == 0 and "gradient of a: da, 2 cases, exact" in done.stdout, done.stderr
    code = """
import sys
sys.modules["tensorir"] = None
import numpy as np, jax, jax.numpy as jnp, mm
r = np.random.default_rng(0)
a, b, w = (r.integers(-4, 5, s).astype("f4") for s in ((9, 7), (7, 5), (9, 5)))
f, g = (lambda f: lambda a, b: (f(a, b) * w).sum() ** 2)(mm.call), (lambda a, b: ((a @ b) * w).sum() ** 2)
for n in (0, 1, (0, 1)):
    ours, own = (jax.jit(jax.grad(h, argnums=n))(a, b) for h in (f, g))
    assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(own)))
many = np.stack([a, 2 * a])
ours, own = (jax.vmap(jax.grad(h), in_axes=(0, None))(many, b) for h in (f, g))
assert np.array_equal(ours, own)
primals, pull = jax.vjp(mm.call, a, b)
assert np.array_equal(primals, a @ b) and np.array_equal(pull(w)[0], w @ b.T)
try:
    jax.hessian(f)(a, b)
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout, done.stderr[-3000:]


def test_the_self_test_fails_for_a_wrong_gradient(tmp_path):
    if find_spec("jax") is None:
        pytest.skip("jax is not installed")
    y, da, db = products()
    folder = y.export(tmp_path / "mm", ["jax"], backward={"a": da, "b": db})
    inner = folder / "backward_b"
    expected, manifest = inner / "expected_1_0.npy", json.loads((inner / "manifest.json").read_text())
    values = np.load(expected)
    np.save(expected, values + 1)
    manifest["files"][expected.name]["sha256"] = hashlib.sha256(expected.read_bytes()).hexdigest()
    (inner / "manifest.json").write_text(json.dumps(manifest))
    done = selftest(folder)
    assert done.returncode == 1 and "the gradient of b: jax: WrongError: db[0, 0] is" in done.stderr, done.stderr
    expected.write_bytes(b"")
    assert "expected_1_0.npy was changed" in selftest(folder).stderr


def test_kernels_that_are_none_for_the_gradient_are_refused(tmp_path):
    y, da, db = products()
    x = tir.placeholder((9, 7), name="x")
    other = tir.Schedule(tir.compute((9, 7), lambda i, j: x[i, j] * 2, name="z"), "c")
    a = tir.placeholder((9, 6), name="a")
    wide = tir.Schedule(tir.compute((9, 7), lambda i, j: a[i, 0] * 2, name="z"), "c")
    for to, backward, message in (
        ("tvm_ffi", {"a": da}, "tvm_ffi cannot differentiate"),
        ("jax", {"c": da}, r"there is no gradient of c(.|\n)*try: a, b\n"),
        ("jax", {"a": other}, "the kernel for the gradient of a takes x"),
        ("jax", {"a": wide}, r"its a is float32\[9, 6\]"),
        ("jax", {"a": db}, r"its output is float32\[7, 5\]"),
        ("jax", {"a": "da"}, "a schedule or a kernel for each input"),
        ("jax", da, "a schedule or a kernel for each input"),
    ):
        with pytest.raises(ExportError, match=message) as caught:
            y.export(tmp_path / "out", to, backward=backward)
        assert caught.value.code == "export.backward" and not (tmp_path / "out").exists()
