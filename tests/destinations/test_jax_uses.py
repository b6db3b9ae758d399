"""What JAX's users do around a function: donate, loop, differentiate, shard, export; every type of element."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import tensorir as tir
from tensorir.errors import TensorIRError
from tensorir.export.shipped import build

if find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)
if build.compiler() is None:
    pytest.skip("there is no C compiler", allow_module_level=True)

START = """
import sys
sys.modules["tensorir"] = None
import numpy as np, jax, jax.numpy as jnp
same = lambda x, y: np.array_equal(np.asarray(x), np.asarray(y))
def told(f, *given):
    try:
        jax.block_until_ready(f(*given))
    except Exception as error:
        print(type(error).__name__, str(error).split("\\n")[0])
"""


def python(cwd, code):
    flags = "--xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", START + code], cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The parent of "flip", which reads its array from the other end, and of "mm", which has gradients."""
    root = tmp_path_factory.mktemp("uses")
    x = tir.placeholder((8, 8), name="x")
    flip = tir.compute((8, 8), lambda i, j: x[7 - i, j] + 1, name="y")
    a, b, d = (tir.placeholder(shape, name=n) for n, shape in (("a", (9, 7)), ("b", (7, 5)), ("d_y", (9, 5))))
    y, da = tir.nn.matmul(a, b, name="y"), tir.nn.matmul(d, b, tb=True, name="da")
    db = tir.nn.matmul(a, d, ta=True, name="db")
    flip, y, da, db = (tir.Schedule(t, "c") for t in (flip, y, da, db))
    flip.export(root / "flip", "jax")
    y.export(root / "mm", "jax", backward={"a": da, "b": db})
    return root


ARRAYS = """
import flip, mm
x = np.arange(64, dtype="f4").reshape(8, 8)
r = np.random.default_rng(0)
a, b = r.integers(-4, 5, (9, 7)).astype("f4"), r.integers(-4, 5, (7, 5)).astype("f4")
"""


def test_memory_that_is_given_away_is_not_written_before_it_is_read(folders):
    python(folders, ARRAYS + """
given = jax.device_put(x.copy())
made = jax.jit(flip.call, donate_argnums=0)(given)
assert given.is_deleted() and same(made, x[::-1] + 1)
twice = jax.jit(lambda x: flip.call(flip.call(x)), donate_argnums=0)
assert same(twice(jax.device_put(x.copy())), x + 2)
carried, sums = jax.lax.scan(lambda c, _: (flip.call(c), c.sum()), jnp.asarray(x), None, length=6)
assert same(carried, x + 6) and same(sums, [x.sum() + 64 * n for n in range(6)])
until = jax.jit(lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 10, flip.call, x))
want = x
while want[0, 0] < 10:
    want = want[::-1] + 1
assert same(until(x), want)
assert same(jax.jit(lambda p, x: jax.lax.cond(p, flip.call, lambda x: x, x))(True, x), x[::-1] + 1)
""")  # fmt: skip


def test_gradients_through_loops_and_checkpoints(folders):
    out = python(folders, ARRAYS + """
def looped(f, b):
    return jax.lax.scan(lambda c, _: (c + (f(jnp.asarray(a), b) ** 2).sum(), None), 0.0, None, length=3)[0]
assert same(*(jax.jit(jax.grad(lambda b: looped(f, b)))(b) for f in (mm.call, jnp.matmul)))
def kept(f, a, b):
    return (jax.checkpoint(lambda a, b: f(a, b) ** 2)(a, b)).sum()
assert same(*(jax.jit(jax.grad(lambda a: kept(f, a, b)))(a) for f in (mm.call, jnp.matmul)))
assert same(*(jax.jacrev(f)(a, b) for f in (mm.call, jnp.matmul)))
told(lambda: jax.jvp(mm.call, (a, b), (a, b)))
told(lambda: jax.hessian(lambda a: mm.call(a, b).sum())(a))
told(lambda: jax.grad(lambda x: flip.call(x).sum())(x))
""")  # fmt: skip
    assert "can't apply forward-mode autodiff (jvp) to a custom_vjp function" in out[0]
    assert "The FFI call to `tensorir_mm" in out[1] and "cannot be differentiated" in out[1]
    assert "The FFI call to `tensorir_flip" in out[2] and "cannot be differentiated" in out[2]


def test_several_devices(folders):
    python(folders, ARRAYS + """
assert len(jax.devices()) == 4
for device in jax.devices():
    y = jax.jit(mm.call)(jax.device_put(a, device), jax.device_put(b, device))
    assert same(y, a @ b) and y.devices() == {device}
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("d",))
whole, parts = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
many = np.stack([a * n for n in range(8)])
y = jax.jit(jax.vmap(mm.call, in_axes=(0, None)))(jax.device_put(many, parts), jax.device_put(b, whole))
assert same(y, many @ b), "gathered"
assert same(jax.jit(flip.call)(jax.device_put(x, parts)), x[::-1] + 1)
if hasattr(jax, "shard_map"):
    shard, how = jax.shard_map, {}
else:
    from jax.experimental.shard_map import shard_map as shard
    how = {"check_rep": False}  # JAX of then has no rule for foreign calls
each = shard(jax.vmap(mm.call, in_axes=(0, None)), mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"), **how)
y = jax.jit(each)(many, b)
assert same(y, many @ b) and y.sharding.is_equivalent_to(parts, 3)
""")  # fmt: skip


def test_what_looks_into_functions(folders, capfd):
    out = python(folders, ARRAYS + """
def shows(a, b):
    jax.debug.print("sum {}", mm.call(a, b).sum())
    return mm.call(a, b)
assert same(jax.jit(shows)(a, b), a @ b)
jax.effects_barrier()
seen = []
def calls(x):
    jax.debug.callback(lambda v: seen.append(v.shape), x)
    return flip.call(x)
assert same(jax.vmap(calls)(np.stack([x, x]))[1], x[::-1] + 1)
jax.effects_barrier()
assert seen == [(8, 8)] * 2
made = jax.eval_shape(mm.call, a, b)
assert made.shape == (9, 5) and made.dtype == "float32"
shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (a, b)]
assert same(jax.jit(mm.call).lower(*shapes).compile()(a, b), a @ b)
with jax.disable_jit(), jax.debug_nans(True):
    assert same(mm.call(a, b), a @ b)
told(mm.call, np.ma.masked_array(a), b)
told(mm.call, a.tolist(), b)
told(mm.call, jax.random.key(0), b)
""")  # fmt: skip
    assert out[0].startswith("sum ")
    assert out[1:] == [
        "TypeError a: expected an array of float32, got MaskedArray",
        "TypeError a: expected an array of float32, got list",
        "TypeError a: expected float32, got key<fry>",
    ]


def test_exported_functions_name_the_kernel_by_its_content(folders, tmp_path):
    if find_spec("absl") is None and not exports():
        pytest.skip("jax.export of this version needs absl")
    told = python(folders, ARRAYS + f"""
from jax import export
told(lambda: export.export(jax.jit(mm.call))(a, b))
f = jax.jit(lambda a, b: mm.call(a, b) * 2)
made = export.export(f, disabled_checks=sys.modules["mm.door_jax"].export_checks())(a, b)
open({str(tmp_path / "made")!r}, "wb").write(made.serialize())
""")  # fmt: skip
    assert "no compatibility guarantees" in told[0]
    (tmp_path / "copied").symlink_to(folders)  # another path, the same content
    python(tmp_path, f"""
from jax import export
made = export.deserialize(bytearray(open({str(tmp_path / "made")!r}, "rb").read()))
sys.path.insert(0, "copied")
import mm
mm.call
sys.modules["mm.door_jax"].operator()
a, b = np.ones((9, 7), "f4"), np.ones((7, 5), "f4")
assert same(made.call(a, b), 2 * (a @ b))
""")  # fmt: skip


def exports():
    try:
        from jax import export  # noqa: F401
    except ImportError:
        return False
    return True


def test_every_type_of_element(tmp_path):
    """Of arrays; JAX has no name for what it does not have."""
    names = ["float16", "bfloat16", "bool", "int8", "uint8", "int16", "uint16", "uint32", "float64", "int64"]
    written = []
    for name in names:
        x = tir.placeholder((5, 3), name, name="x")
        y = tir.compute((5, 3), lambda i, j, x=x: x[4 - i, j], name="y")
        try:
            tir.Schedule(y, "c").export(tmp_path / f"k_{name}", "jax")
            written.append(name)
        except TensorIRError as error:
            assert name == "float16" and error.code.startswith(("lower.", "export.")), error
    assert len(written) >= len(names) - 1
    out = python(tmp_path, f"""
from importlib import import_module
for name in {written}:
    kernel, kind = import_module("k_" + name), jnp.dtype(name)
    x = (np.arange(15).reshape(5, 3) % 2 if name == "bool" else np.arange(15).reshape(5, 3)).astype(kind)
    if name in ("float64", "int64"):
        told(kernel.call, x)
        jax.config.update("jax_enable_x64", True)
    y = jax.jit(kernel.call)(x)
    assert y.dtype == kind and same(y, x[::-1]), name
    assert same(jax.vmap(kernel.call)(np.stack([x, x[::-1]]))[1], x), name
    jax.config.update("jax_enable_x64", False)
""")  # fmt: skip
    assert [line.partition(": ")[2][:40] for line in out] == [
        f"JAX makes {name} narrower; jax.config.upd"[:40] for name in ("float64", "int64")
    ]


def test_no_elements_one_element_and_weights(tmp_path):
    x = tir.placeholder((0, 3), name="x")
    tir.Schedule(tir.compute((0, 3), lambda i, j: x[i, j] + 1, name="y"), "c").export(tmp_path / "none", "jax")
    k = tir.reduce_axis(0)
    e = tir.placeholder((4, 0), name="x")
    empty = tir.compute((4,), lambda i: tir.sum(e[i, k], k), name="y")
    tir.Schedule(empty, "c").export(tmp_path / "sums", "jax")
    z = tir.placeholder((), name="x")
    tir.Schedule(tir.compute((), lambda: z[()] * 2, name="y"), "c").export(tmp_path / "one", "jax")
    work = tir.ops.matmul(m=16, n=16, k=8, prepack=True)
    work.schedule(target="c").export(tmp_path / "packed", "jax")
    python(tmp_path, """
import none, sums, one, packed
assert none.call(np.zeros((0, 3), "f4")).shape == (0, 3)
assert jax.vmap(none.call)(np.zeros((2, 0, 3), "f4")).shape == (2, 0, 3)
assert same(jax.jit(sums.call)(np.zeros((4, 0), "f4")), np.zeros(4))
assert same(jax.vmap(sums.call)(np.zeros((3, 4, 0), "f4")), np.zeros((3, 4)))
assert same(one.call(jnp.float32(3)), 6) and same(jax.vmap(one.call)(np.arange(4, dtype="f4")), [0, 2, 4, 6])
r = np.random.default_rng(0)
a, b = r.integers(-4, 5, (16, 8)).astype("f4"), r.integers(-4, 5, (8, 16)).astype("f4")
f = jax.jit(packed.call)
assert same(f(a, b), a @ b) and same(f(a, 2 * b), 2 * (a @ b)), "weights are packed anew for others"
""")  # fmt: skip


def test_a_set_of_shapes_is_refused(tmp_path):
    """Before anything is looked for in a log."""
    works = [tir.ops.matmul(m=m, n=8, k=8) for m in (4, 8)]
    for to in ("jax", "tvm_ffi"):
        with pytest.raises(TensorIRError, match=f"{to} takes the kernel of one shape, not a set of shapes") as caught:
            tir.export_shapes(works, tmp_path / "out", to, log=tmp_path / "log")
        assert caught.value.code == "export.set" and not (tmp_path / "out").exists()
