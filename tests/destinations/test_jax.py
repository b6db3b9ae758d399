"""Kernels in JAX: jit, vmap, gradients, threads, refusals; each in a process without tensorir."""

import os
import subprocess
import sys
from pathlib import Path

import hand_made
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
if not hasattr(jax, "ffi"):
    pytest.skip(f"jax 0.5 or newer is needed, this is {jax.__version__}", allow_module_level=True)
if not hand_made.COMPILERS:
    pytest.skip("there is no C compiler", allow_module_level=True)

START = """
import sys
sys.modules["tensorir"] = None
import numpy as np
"""


def python(cwd, code, **env):
    """What a process prints whose folder is ``cwd``."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **env}
    done = subprocess.run(
        [sys.executable, "-c", START + code], cwd=cwd, capture_output=True, text=True, timeout=240, env=environment,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def product(monkeypatch, tmp_path):
    """The parent of a folder "mm"."""
    return hand_made.product(monkeypatch, tmp_path / "mm", ["jax"]).parent


MATRICES = """
r = np.random.default_rng(3)
a, b = r.integers(-4, 5, (33, 17)).astype("f4"), r.integers(-4, 5, (17, 20)).astype("f4")
"""


def test_jit_and_vmap(product):
    python(product, MATRICES + """
import mm
assert "jax" not in sys.modules, "import FOLDER imported a framework"
import jax, jax.numpy as jnp
same = lambda x, y: np.array_equal(np.asarray(x), y)
assert same(mm.call(a, b), a @ b) and same(mm.call(b=jnp.asarray(b), a=a), a @ b)
assert same(jax.jit(lambda a, b: mm.call(a.T, b) * 2)(jnp.asarray(a.T), b), 2 * (a @ b))
many, more = np.stack([a, 2 * a, -a]), np.stack([b, 3 * b, b])
assert same(jax.vmap(mm.call)(many, more), many @ more)
assert same(jax.vmap(mm.call, in_axes=(0, None))(many, b), many @ b)
last = jax.jit(jax.vmap(mm.call, in_axes=(None, 2), out_axes=2))(a, np.moveaxis(more, 0, 2))
assert same(last, np.moveaxis(a @ more, 0, 2))
both = jax.vmap(jax.vmap(mm.call, in_axes=(0, None)), in_axes=(None, 0))(many, more[:2])
assert same(both, many[None] @ more[:2, None])
assert same(jax.vmap(mm.call)(many[:0], more[:0]), np.zeros((0, 33, 20)))
loop = jax.lax.fori_loop(0, 5, lambda n, y: y + mm.call(a, b), jnp.zeros((33, 20)))
assert same(loop, 5 * (a @ b))
""")  # fmt: skip


def test_items_of_a_batch_that_are_not_aligned_are(product):
    """33 x 17 floats are no multiple of the 64 bytes that the program relies on, and refuses without."""
    text = (product / "mm" / "mm.c").read_text()
    assert "64)) return 7" in text and 33 * 17 * 4 % 64
    made = """
import mm, jax
many = np.stack([a * n for n in range(7)])
assert np.array_equal(np.asarray(jax.vmap(mm.call, in_axes=(0, None))(many, b)), many @ b)
"""
    python(product, MATRICES + made)


def test_many_calls_from_threads_do_not_hang(product):
    python(product, MATRICES + """
import mm, jax, threading
f, wrong = jax.jit(mm.call), []
def calls(n):
    x, want = jax.numpy.asarray(a * n), n * (a @ b)
    for k in range(2500):
        y = f(x, b)
        if k % 50 == 0 and not np.array_equal(np.asarray(y), want):
            wrong.append(n)
    y.block_until_ready()
threads = [threading.Thread(target=calls, args=(n,)) for n in range(1, 5)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not wrong
""")  # fmt: skip


def test_refusals_name_the_argument(product):
    out = python(product, MATRICES + """
import mm, jax
for given, named in [((a,), {}), ((a, b), {"c": b}), ((a,), {"a": a}), ((a, b.T), {}), ((a.astype("f8"), b), {}),
                     ((a, None), {}), ((a.astype("i4"), b), {})]:
    try:
        mm.call(*given, **named)
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
try:
    jax.grad(lambda a: mm.call(a, b).sum())(a)
except ValueError as error:
    print("differentiated" in str(error))
""")  # fmt: skip
    assert out.splitlines() == [
        "TypeError tensorir::mm takes a, b, got 1 arguments",
        "TypeError tensorir::mm takes a, b, got c",
        "TypeError tensorir::mm takes a, b, got a",
        "ValueError b: expected shape (17, 20), got (20, 17)",
        "TypeError a: expected float32, got float64",
        "TypeError b: expected an array of float32, got NoneType",
        "TypeError a: expected float32, got int32",
        "True",
    ]


def test_the_target_itself_refuses_what_is_no_argument_of_it(product):
    """Others may call what is registered; no wrong shape reaches the kernel."""
    out = python(product, MATRICES + """
import mm, jax
mm.call(a, b)
import importlib
target = importlib.import_module("mm.door_jax").operator().target
for shapes, given in [((33, 20), (a, b.T)), ((33, 20), (a,)), ((33, 20), (a.astype("i4"), b)), ((20,), (a, b)),
                      ((2, 33, 20), (np.stack([a, a, a]), b[None]))]:
    try:
        jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shapes, "float32"))(*given).block_until_ready()
    except Exception as error:
        print(str(error).split("\\n")[0])
""")  # fmt: skip
    lines = out.splitlines()
    assert len(lines) == 5 and all("INVALID_ARGUMENT" in line for line in lines), out
    assert "mm: b: expected float32 (17, 20), got an array of type 11 and rank 2" in lines[0]
    assert "mm: expected 2 arrays and 1 results, got 1 and 1" in lines[1]
    assert "mm: a: expected float32 (33, 17), got an array of type 4" in lines[2]


def test_numbers_several_outputs_and_types_of_64_bits(monkeypatch, tmp_path):
    hand_made.several(monkeypatch, tmp_path / "several", ["jax"])
    code = """
import several, jax
x = np.arange(6, dtype="i4").reshape(2, 3)
with_x64 = jax.config.update("jax_enable_x64", True)
u, v = several.call(x, 1.0002, 5, True)
assert u.dtype == "float64" and v.dtype == "int64"
assert np.array_equal(u, x * 1.0) and np.array_equal(v, x + 5), "half is a float of 16 bits"
u, v = jax.jit(several.call)(x, np.float16(0.5), np.int64(2**40), np.bool_(False))
assert np.array_equal(u, x * 0.5) and np.array_equal(v, np.full((2, 3), -1))
u, v = jax.vmap(several.call, in_axes=(None, 0, 0, None))(x, np.array([1, 2], "f2"), np.array([10, 20]), True)
assert np.array_equal(u, np.stack([x, 2 * x])) and np.array_equal(v, np.stack([x + 10, x + 20]))
for wrong in ((x, 1.0, 2.5, True), (x, 1.0, 2**70, True), (x, 1.0, 2, 7), (x, 1.0, 77, True)):
    try:
        jax.block_until_ready(several.call(*wrong))
    except Exception as error:
        print(str(error).split("\\n")[0])
jax.config.update("jax_enable_x64", False)
try:
    several.call(x, 1.0, 2, True)
except TypeError as error:
    print(error)
"""
    out = python(tmp_path, code).splitlines()
    assert out[0] == "shift: expected a int64 number, got 2.5"
    assert out[1].startswith("shift: expected a int64 number, got 118") and out[2].startswith("on: expected a bool")
    assert "several: error 5, see several.h" in out[3] and "INTERNAL" in out[3]
    assert "jax_enable_x64" in out[4]


def test_an_index_out_of_range_is_refused(monkeypatch, tmp_path):
    hand_made.gather(monkeypatch, tmp_path / "rows", ["jax"])
    out = python(tmp_path, """
import rows, jax
x = np.arange(15, dtype="f4").reshape(5, 3)
assert np.array_equal(rows.call(x, np.array([4, 0, 1, 4], "i4")), x[[4, 0, 1, 4]])
for at in ([0, 5, 0, 0], [0, 0, 0, -1]):
    try:
        jax.block_until_ready(rows.call(x, np.array(at, "i4")))
    except Exception as error:
        print(str(error).split("\\n")[0])
""")  # fmt: skip
    assert [line.partition("rows: ")[2] for line in out.splitlines()] == ["at: an index is not in 0 ... 4"] * 2


def test_the_same_folder_twice_and_two_of_one_name(monkeypatch, tmp_path):
    """What is registered is known by its content."""
    for place, size in (("one", 33), ("two", 33), ("three", 5)):
        hand_made.product(monkeypatch, tmp_path / place / "mm", ["jax"], m=size)
    python(tmp_path, MATRICES + """
import importlib
made = []
for place, size in (("one", 33), ("two", 33), ("three", 5)):
    sys.path.insert(0, place)
    [sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "mm"]
    importlib.invalidate_caches()
    made.append((importlib.import_module("mm"), size))
    assert np.array_equal(made[-1][0].call(a[:size], b), a[:size] @ b)
""")  # fmt: skip


def test_the_self_test_runs_it_and_fails_for_another_kernel(monkeypatch, tmp_path):
    folder = hand_made.product(monkeypatch, tmp_path / "mm", ["jax"])
    assert hand_made.manifest(folder)["jax"] == {
        "symbol": "mm_jax",
        "platforms": ["cpu"],
        "types": {"float32": 11},
    }

    def run():
        return subprocess.run(
            [sys.executable, str(folder / "selftest.py"), "jax"], capture_output=True, text=True, check=False, cwd="/",
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path / "cache")},
        )  # fmt: skip

    assert run().stdout.startswith("selftest ok jax")
    text = (folder / "libmm.so").read_bytes()
    (folder / "libmm.so").write_bytes(text[:-1] + b"!")
    done = run()
    assert done.returncode == 1 and "libmm.so was changed" in done.stderr
    monkeypatch.setattr(hand_made, "MATMUL", hand_made.MATMUL.replace("sum += a[t]", "sum -= a[t]"))
    hand_made.product(monkeypatch, folder, ["jax"])
    done = run()
    assert done.returncode == 1 and "selftest failed: WrongError: jax" in done.stderr


@pytest.mark.parametrize("cached", [False, True], ids=["in the folder", "in the user's cache"])
def test_a_folder_without_its_library_makes_it(monkeypatch, tmp_path, cached):
    monkeypatch.setattr("tensorir.export.folder.build.compiler", lambda: None)
    folder = hand_made.product(monkeypatch, tmp_path / "mm", ["jax"])
    assert not (folder / "libmm.so").exists() and "libmm.so" not in hand_made.manifest(folder)["files"]
    if cached:
        (folder / "libmm.so").write_bytes(b"of another machine")
    call = MATRICES + "import mm\nassert np.array_equal(mm.call(a, b), a @ b)"
    python(tmp_path, call, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (tmp_path / "cache").exists() == cached and (folder / "libmm.so").exists()


def test_why_it_cannot_run(monkeypatch, tmp_path):
    monkeypatch.setattr("tensorir.export.folder.build.compiler", lambda: None)
    hand_made.product(monkeypatch, tmp_path / "mm", ["jax"])
    out = python(tmp_path, MATRICES + """
import os, mm
os.environ["PATH"] = ""
try:
    mm.call(a, b)
except ImportError as error:
    print(error)
""", CC="")  # fmt: skip
    assert "libmm.so: it is not there, and there is no C compiler to make it with" in out


@pytest.mark.parametrize("compiler", hand_made.COMPILERS)
@pytest.mark.parametrize("checked", ["address,undefined", "thread"])
def test_the_c_side_with_tasks_that_come_late_or_never(monkeypatch, tmp_path, compiler, checked):
    """A kernel waits for its own blocks alone, and nothing is read after it has been freed."""
    folder = hand_made.product(monkeypatch, tmp_path / "mm", ["jax"])
    driver = Path(__file__).with_name("fake_xla.c")
    line = [compiler, "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-fsanitize={checked}", f"-I{folder}"]
    line += ["-fno-sanitize-recover=all", "-D_GNU_SOURCE", driver, folder / "mm.c", "-o", tmp_path / "run", "-lpthread"]
    made = subprocess.run(line, capture_output=True, text=True, check=False)
    if "cannot find" in made.stderr:
        pytest.skip(f"{compiler} has no runtime of the {checked} sanitizer")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([tmp_path / "run"], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "right\n" and done.returncode == 0, done.stderr[:2000]
