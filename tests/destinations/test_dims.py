"""Kernels whose extents each call decides, in frameworks: read from shapes, symbols where these trace."""

import re
import subprocess
import sys

import pytest

import tensorir as tir


def product(prepack=False, target="c"):
    """D = relu(A @ B + c) of n rows and m columns, with workspace as large as the extents."""
    n, m = tir.dim("n", low=2, high=512), tir.dim("m", low=1, high=64)
    A, B, c = tir.placeholder((n, 8), name="A"), tir.placeholder((8, m), name="B"), tir.placeholder((m,), name="c")
    k = tir.reduce_axis(8, name="k")
    C = tir.compute((n, m), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = tir.Schedule(tir.compute((n, m), lambda i, j: tir.maximum(C[i, j] + c[j], 0.0), name="D"), target=target)
    s.bind(s.split("D.i", [None, 4], tail="peel")[0], "block.x")
    return s


def gathered(target="c"):
    """Rows of a table of n rows, and how many there are of them twice."""
    n, m = tir.dim("n", low=1, high=50), tir.dim("m", low=1, high=30)
    E, at = tir.placeholder((n, 8), name="E"), tir.placeholder((m,), "int64", name="at")
    c = tir.scalar("c")
    return tir.Schedule(tir.compute((m, 8), lambda i, j: E[at[i], j] * c, name="C"), target=target)


def packed(target="c"):
    n = tir.dim("n", low=1, high=40)
    A, W = tir.placeholder((n, 8), name="A"), tir.placeholder((8, 6), name="W")
    k = tir.reduce_axis(8, name="k")
    turned = tir.compute((6, 8), lambda j, k: W[k, j], name="turned")
    s = tir.Schedule(tir.compute((n, 6), lambda i, j: tir.sum(A[i, k] * turned[j, k], axis=k), name="Y"), target=target)
    s.run_once("turned")
    return s


KERNELS = {"product": product, "gathered": gathered, "packed": packed}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders by destination and kernel; what they hold has the kernel's name."""
    made = {}

    def folder(kernel, to):
        if (kernel, to) not in made:
            place = tmp_path_factory.mktemp(to) / kernel
            made[kernel, to] = KERNELS[kernel]().export(place, to=to, name=f"own::{kernel}")
        return made[kernel, to]

    return folder


def said(folder, code):
    """What a program prints that imports the folder, without this package."""
    start = "import sys; sys.modules['tensorir'] = None; import numpy as np\n"
    done = subprocess.run([sys.executable, "-c", start + code], cwd=folder.parent, check=False, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("to", ["torch", "onnxruntime", "tvm_ffi", "jax"])
def test_its_self_test_runs_at_several_extents(folders, to, kernel):
    pytest.importorskip(to)
    done = subprocess.run([sys.executable, "-I", "selftest.py", to], cwd=folders(kernel, to), check=False,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.stdout.startswith(f"selftest ok {to}:"), done.stdout + done.stderr
    assert int(re.search(r"(\d+) cases", done.stdout)[1]) >= 4


TORCH = """
import torch, product
op = torch.ops.own.product
def want(a, b, c): return torch.relu(a @ b + c)
def given(n, m): return [torch.randint(-4, 5, s).float() for s in ((n, 8), (8, m), (m,))]
"""


def test_an_operator_of_torch_takes_every_extent_and_refuses_others_by_name(folders):
    pytest.importorskip("torch")
    code = """
for n, m in ((2, 1), (3, 7), (512, 64), (17, 5), (2, 1)):
    x = given(n, m)
    assert torch.equal(op(*x), want(*x)), (n, m)
assert torch.equal(op(x[0].repeat(4, 1)[::2], *x[1:]), want(x[0].repeat(4, 1)[::2], *x[1:]))
for shapes in (((1, 8), (8, 3), (3,)), ((5, 8), (8, 65), (65,)), ((5, 8), (8, 3), (4,)),
               ((5, 7), (8, 3), (3,)), ((5,), (8, 3), (3,))):
    try:
        op(*map(torch.ones, shapes))
    except ValueError as error:
        print(error)
"""
    lines = said(folders("product", "torch"), TORCH + code).splitlines()
    assert lines == ["A.shape[0]: n is 2 to 512, got 1", "B.shape[1]: m is 1 to 64, got 65",
                     "m is 3 in B.shape[1] and 4 in c.shape[0]: it is one extent",
                     "A: expected shape (n, 8), got (5, 7)", "A: expected shape (n, 8), got (5,)"]  # fmt: skip


@pytest.mark.parametrize(("target", "device"), [("c", "c:0"), ("opencl", None)])
def test_what_is_built_here_is_an_operator_for_every_extent(target, device):
    torch = pytest.importorskip("torch")
    op = product(target=target).build(device).torch(f"own::here_{target}")
    for n, m in ((5, 7), (2, 1), (512, 64)):
        a, b, c = (torch.randint(-4, 5, s).float() for s in ((n, 8), (8, m), (m,)))
        assert torch.equal(op(a, b, c), torch.relu(a @ b + c))
    with pytest.raises(tir.LaunchError) as caught:
        op(a, b, c[:3].contiguous())
    assert caught.value.problems[0].code == "launch.dim-disagree"
    with pytest.raises(tir.LaunchError) as caught:
        op(a[:1].contiguous(), b, c)
    assert caught.value.problems[0].code == "launch.dim-range"


def test_torch_compiles_it_once_for_all_extents(folders):
    pytest.importorskip("torch")
    code = """
count = 0
def counting(graph, _):
    global count
    count += 1
    return graph
for backend in (counting, "aot_eager"):
    f = torch.compile(lambda *x: op(*x) + 1, dynamic=True, fullgraph=True, backend=backend)
    for n, m in ((5, 7), (9, 3), (33, 12), (512, 64)):
        x = given(n, m)
        assert torch.equal(f(*x), want(*x) + 1)
    print(count)
"""
    assert said(folders("product", "torch"), TORCH + code).split() == ["1", "1"]


def test_torch_exports_it_with_symbols(folders):
    pytest.importorskip("torch")
    code = """
class M(torch.nn.Module):
    def forward(self, a, b, c): return op(a, b, c)
n, m = torch.export.Dim("n", min=2, max=512), torch.export.Dim("m", min=1, max=64)
made = torch.export.export(M(), tuple(given(5, 7)), dynamic_shapes=({0: n}, {1: m}, {0: m}))
print(*[v.meta["val"].shape[0] for v in made.graph.nodes if "own" in str(v.target)])
for rows, columns in ((3, 11), (512, 64), (2, 2)):
    x = given(rows, columns)
    assert torch.equal(made.module()(*x), want(*x))
try:
    wide = torch.export.Dim("n", min=2, max=513)
    torch.export.export(M(), tuple(given(5, 7)), dynamic_shapes=({0: wide}, {1: m}, {0: m}))
    print("taken")
except Exception as error:
    print("512" in str(error))
"""
    first, second = said(folders("product", "torch"), TORCH + code).splitlines()
    assert re.fullmatch(r"s\d+", first) and second == "True"


def test_indices_of_torch_are_below_the_extent_at_hand(folders):
    pytest.importorskip("torch")
    code = """
import torch, gathered
table, at = torch.arange(40.).reshape(5, 8), torch.tensor([4, 0, 4])
assert torch.equal(torch.ops.own.gathered(table, at, 2.0), table[at] * 2)
try: torch.ops.own.gathered(table[:4].contiguous(), at, 2.0)
except IndexError as error: print(error)
"""
    assert said(folders("gathered", "torch"), code).startswith("at: expected indices from 0 to 3 (they index E)")


def test_torch_packs_weights_once_for_all_extents(folders):
    pytest.importorskip("torch")
    code = """
import torch, packed
from packed import door_torch
w = torch.randint(-4, 5, (8, 6)).float()
for n in (1, 7, 40, 7):
    a = torch.randint(-4, 5, (n, 8)).float()
    assert torch.equal(torch.ops.own.packed(a, w), a @ w)
kept = [p.kept for p in door_torch.torch_body.torch_kernel._packs]
print([len(k) for k in kept if k])
w[0, 0] += 1
assert torch.equal(torch.ops.own.packed(a, w), a @ w)
"""
    assert said(folders("packed", "torch"), code).strip() == "[1]"


def test_a_model_has_names_for_extents(folders):
    pytest.importorskip("onnxruntime")
    code = """
from product import door_onnxruntime as door
program = door.Program()
print([i.shape for i in program.session.get_inputs()], [o.shape for o in program.session.get_outputs()])
def given(n, m): return [np.random.default_rng(n).integers(-4, 5, s).astype("f4") for s in ((n, 8), (8, m), (m,))]
for n, m in ((2, 1), (512, 64), (33, 7)):
    a, b, c = given(n, m)
    assert np.array_equal(program(a, b, c), np.maximum(a @ b + c, 0))
for n, m, k in ((1, 3, 3), (5, 65, 65), (5, 3, 4)):
    a, b, _ = given(n, m)
    try: program(a, b, np.ones(k, "f4"))
    except Exception as error: print(str(error).rpartition("product: ")[2])
"""
    lines = said(folders("product", "onnxruntime"), code).splitlines()
    assert lines == ["[['n', 8], [8, 'm'], ['m']] [['n', 'm']]", "A.shape[0]: n is 2 to 512, got 1",
                     "B.shape[1]: m is 1 to 64, got 65",
                     "m is 3 in B.shape[1] and 4 in c.shape[0]: it is one extent"]  # fmt: skip


def test_indices_of_a_model_are_below_the_extent_at_hand(folders):
    pytest.importorskip("onnxruntime")
    code = """
from gathered import door_onnxruntime as door
program, at = door.Program(), np.array([4, 0, 4])
table = np.arange(40, dtype="f4").reshape(5, 8)
assert np.array_equal(program(table, at, 2.0), table[at] * 2)
try: program(table[:4], at, 2.0)
except Exception as error: print(error)
"""
    assert "at: an index is not in 0 ... 3" in said(folders("gathered", "onnxruntime"), code)


GIVEN = """
def given(n, m): return [np.random.default_rng(n).integers(-4, 5, s).astype("f4") for s in ((n, 8), (8, m), (m,))]
def want(a, b, c): return np.maximum(a @ b + c, 0)
"""


def test_a_function_of_tvm_ffi_takes_every_extent(folders):
    pytest.importorskip("tvm_ffi")
    code = """
from product import door_tvm_ffi as door
import tvm_ffi
call = door.load().product
for n, m in ((2, 1), (512, 64), (33, 7)):
    x, out = given(n, m), np.empty((n, m), "f4")
    call(*map(tvm_ffi.from_dlpack, (*x, out)))
    assert np.array_equal(out, want(*x))
out[:] = 5
for n, m, k, r in ((1, 3, 3, 1), (5, 65, 65, 5), (5, 3, 4, 5), (5, 7, 7, 33)):
    a, b, _ = given(n, m)
    try: call(*map(tvm_ffi.from_dlpack, (a, b, np.ones(k, "f4"), out[:r])))
    except ValueError as error: print(error)
assert (out == 5).all()
"""
    lines = said(folders("product", "tvm_ffi"), GIVEN + code).splitlines()
    assert lines == ["product: A.shape[0]: n is 2 to 512, got 1", "product: B.shape[1]: m is 1 to 64, got 65",
                     "product: m is 3 in B.shape[1] and 4 in c.shape[0]: it is one extent",
                     "product: D: expected float32 (n, m), got a tensor of another shape"]  # fmt: skip


JAX = (
    GIVEN
    + """
import jax, product
"""
)


def test_jax_traces_it_once_for_each_extent(folders):
    pytest.importorskip("jax")
    code = """
f = jax.jit(lambda *x: product.call(*x) + 1)
for n, m in ((2, 1), (512, 64), (33, 7), (2, 1)):
    x = given(n, m)
    assert np.array_equal(f(*x), want(*x) + 1)
print(f._cache_size())
x = given(5, 7)
many = np.stack([x[0] + n for n in range(6)])
got = jax.vmap(product.call, (0, None, None))(many, *x[1:])
assert np.array_equal(got, np.stack([want(a, *x[1:]) for a in many]))
for n, m, k in ((1, 3, 3), (5, 65, 65), (5, 3, 4)):
    try: f(*given(n, m)[:2], np.ones(k, "f4"))
    except ValueError as error: print(error)
"""
    lines = said(folders("product", "jax"), JAX + code).splitlines()
    assert lines == ["3", "A.shape[0]: n is 2 to 512, got 1", "B.shape[1]: m is 1 to 64, got 65",
                     "m is 3 in B.shape[1] and 4 in c.shape[0]: it is one extent"]  # fmt: skip


def test_jax_exports_it_with_symbols_and_the_kernel_looks_at_them(folders):
    pytest.importorskip("jax")
    code = """
from jax import export
from product import door_jax
n, m = export.symbolic_shape("n, m")
specs = [jax.ShapeDtypeStruct(s, np.float32) for s in ((n, 8), (8, m), (m,))]
made = export.export(jax.jit(product.call), disabled_checks=door_jax.export_checks())(*specs)
again = export.deserialize(made.serialize())
print(again.out_avals[0].shape)
for rows, columns in ((2, 1), (512, 64), (33, 7)):
    x = given(rows, columns)
    assert np.array_equal(again.call(*x), want(*x))
try: jax.block_until_ready(again.call(*given(1, 3)))
except Exception as error: print("n is 2 to 512, got 1" in str(error))
"""
    assert said(folders("product", "jax"), JAX + code).splitlines() == ["(n, m)", "True"]


@pytest.mark.parametrize("to", ["torch", "jax"])
def test_without_a_compiler_the_opencl_program_has_every_extent(tmp_path, monkeypatch, to):
    pytest.importorskip(to)
    pytest.importorskip("pyopencl")
    monkeypatch.setenv("CC", "no-compiler-of-that-name")
    folder = product(target="opencl").export(tmp_path / "product", to=["pyopencl", to], name="own::product")
    calls = {"torch": "torch.ops.own.product(*map(torch.from_numpy, x)).numpy()", "jax": "jax.jit(product.call)(*x)"}
    code = f"""
import os
os.environ |= dict(CC="no-compiler-of-that-name", XDG_CACHE_HOME={str(tmp_path)!r}, JAX_PLATFORMS="cpu")
import {to}, product
for n, m in ((2, 1), (512, 64), (33, 7)):
    x = given(n, m)
    assert np.array_equal({calls[to]}, want(*x)), (n, m)
try:
    x = given(1, 7)
    {calls[to]}
except ValueError as error: print(error)
"""
    assert said(folder, GIVEN + code).splitlines() == ["A.shape[0]: n is 2 to 512, got 1"]


def linear():
    """Y = X @ W, and the kernel for the gradient of X, of n rows both."""
    n = tir.dim("n", low=1, high=300)
    X, W = tir.placeholder((n, 8), name="X"), tir.placeholder((8, 6), name="W")
    k, j = tir.reduce_axis(8, name="k"), tir.reduce_axis(6, name="j")
    Y = tir.compute((n, 6), lambda i, j: tir.sum(X[i, k] * W[k, j], axis=k), name="Y")
    G = tir.placeholder((n, 6), name="d_Y")
    back = tir.compute((n, 8), lambda i, k: tir.sum(G[i, j] * W[k, j], axis=j), name="d_X")
    return tir.Schedule(Y, target="c"), {"X": tir.Schedule(back, target="c")}


@pytest.mark.parametrize("to", ["torch", "jax"])
def test_gradients_are_of_every_extent(tmp_path, to):
    pytest.importorskip(to)
    s, backward = linear()
    folder = s.export(tmp_path / "linear", to=to, name="own::linear", backward=backward)
    code = """
import torch, linear
for n in (1, 7, 300):
    x, w = torch.randint(-4, 5, (n, 8)).float().requires_grad_(), torch.randint(-4, 5, (8, 6)).float()
    torch.ops.own.linear(x, w).sum().backward()
    assert torch.equal(x.grad, torch.ones(n, 6) @ w.T)
def squares(x, w): return torch.ops.own.linear(x, w).square().sum()
f = torch.compile(squares, dynamic=True, backend="aot_eager", fullgraph=True)
for n in (5, 9, 300):
    x = torch.randint(-4, 5, (n, 8)).float().requires_grad_()
    f(x, w).backward()
    assert torch.equal(x.grad, 2 * (x.detach() @ w) @ w.T)
""" if to == "torch" else """
import jax, linear
for n in (1, 7, 300):
    x, w = np.random.default_rng(n).integers(-4, 5, (n, 8)).astype("f4"), np.ones((8, 6), "f4")
    assert np.array_equal(jax.grad(lambda x: linear.call(x, w).sum())(x), np.ones((n, 6), "f4") @ w.T)
"""  # fmt: skip
    said(folder, code)
    done = subprocess.run([sys.executable, "-I", "selftest.py"], cwd=folder, check=False, capture_output=True,
                          text=True, timeout=300)  # fmt: skip
    assert done.stdout.count("5 cases") == 2, done.stdout + done.stderr


def test_a_batch_is_of_so_many_items(tmp_path):
    n = tir.dim("n", low=1, high=9)
    X, many = tir.placeholder((8,), name="X"), tir.placeholder((n, 8), name="X")
    s = tir.Schedule(tir.compute((8,), lambda i: X[i] + 1, name="Y"), target="c")
    batch = tir.Schedule(tir.compute((n, 8), lambda b, i: many[b, i] + 1, name="Y"), target="c")
    with pytest.raises(tir.TensorIRError) as caught:
        s.export(tmp_path / "none", to="jax", batched=[batch])
    assert caught.value.problems[0].code == "export.batched"
