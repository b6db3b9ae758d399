"""C programs that launch OpenCL kernels: compiled without a warning, right on the device, on queues of the caller's."""

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from test_c_program import (
    CLANG,
    COMPILERS,
    LIBRARIES,
    STRICT,
    convolution,
    gathered,
    halves,
    packed,
    product,
    scaled,
    several,
)
from test_folder import needs_device

import tensorir as tir
from tensorir.export.folder import export_part
from tensorir.export.options import programs
from tensorir.export.shipped import build

pytestmark = [
    needs_device,
    pytest.mark.skipif(build.compiler() is None, reason="no C compiler"),
    pytest.mark.usefixtures("unoptimised"),
]
KERNELS = {"gcc": (convolution, halves, scaled, gathered), CLANG: (packed, several)}
TRIED = [pytest.param(c.values[0], k, marks=c.marks) for c in COMPILERS for k in KERNELS[c.values[0]]]


class Call(ctypes.Structure):
    """``tir_call``."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("stream", ctypes.c_void_p), ("parallel_for", ctypes.c_void_p),
        ("pool", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("threads", ctypes.c_int),
    )  # fmt: skip


def hosted(s, path, to=("c",), name=None, spoil=("", "")):
    """spoil: what of the kernels' text is something else"""
    part = s._part()
    part = replace(part, source=replace(part.source, text=part.source.text.replace(*spoil)))
    if s._workload is not None:
        part = replace(part, reference=s._workload.reference)
    return export_part(part, path, list(to), name=name, others={"c": replace(part, hosted=True)})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kernel):
        if kernel not in made:
            made[kernel] = hosted(kernel(), tmp_path_factory.mktemp("host") / kernel.__name__)
        return made[kernel]

    return folder


@pytest.fixture(scope="module")
def driver():
    """Variables by which a program finds the libOpenCL of pyopencl's wheel, where the system has none."""
    build.find_driver("opencl")
    place = os.environ.get("TENSORIR_LIBOPENCL")
    return {**os.environ, **({"LD_LIBRARY_PATH": os.path.dirname(place)} if place else {})}


def called(folder):
    """The function, of the library that the folder's loader makes; what its errors are called."""
    loader = module(folder, "loader")
    manifest = loader.common.read_manifest()
    library = loader.library({**manifest, **manifest.get("bodies", {}).get("c", {})})
    name = manifest["operator"].partition("::")[2]
    function, why = library[name], library[f"{name}_why"]
    why.restype = ctypes.c_char_p
    return function, why, manifest["errors"]


def module(folder, name):
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{name}", folder / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def pointers(*values):
    return (ctypes.c_void_p * len(values))(*values)


@pytest.mark.parametrize(("compiler", "kernel"), TRIED)
def test_its_own_test_passes_without_a_warning(folders, driver, compiler, kernel):
    folder = folders(kernel)
    command = [compiler, *STRICT, "selftest.c", f"{folder.name}.c", "-o", "selftest", *LIBRARIES]
    built = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[:3000]
    done = subprocess.run(["./selftest"], cwd=folder, env=driver, check=False, capture_output=True, text=True,
                          timeout=120)  # fmt: skip
    assert done.stdout.strip() == f"selftest ok {kernel.__name__}", done.stderr
    text = (folder / f"{folder.name}.c").read_text()
    assert "CL/cl.h" not in text and len(text) < 50_000


def test_sanitizers_say_nothing(folders, driver):
    """Of ours: the driver's own leaks are not looked for."""
    folder = folders(packed)
    flags = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    command = ["cc", *STRICT, *flags, "selftest.c", "packed.c", "-o", "sane", *LIBRARIES]
    built = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[:3000]
    done = subprocess.run(["./sane"], cwd=folder, check=False, capture_output=True, text=True, timeout=120,
                          env={**driver, "ASAN_OPTIONS": "detect_leaks=0"})  # fmt: skip
    assert done.stdout.strip() == "selftest ok packed" and "ERROR" not in done.stderr, done.stderr[-3000:]


@pytest.mark.parametrize("kernel", [product, gathered], ids=lambda k: k.__name__)
def test_the_folder_tests_itself_and_notices_a_change(folders, kernel, tmp_path):
    folder = folders(kernel)

    def run(**env):
        return subprocess.run([sys.executable, "-I", str(folder / "selftest.py"), "c"], capture_output=True, text=True,
                              check=False, timeout=120, env={**os.environ, **env})  # fmt: skip

    assert run().stdout.startswith("selftest ok c: ")
    done = run(TENSORIR_LIBOPENCL=str(tmp_path / "none.so"), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1 and "there is no such library" in done.stderr
    file = folder / f"{folder.name}.c"
    text = file.read_text()
    try:
        file.write_text(text.replace("0", "1", 1))
        assert run().returncode == 1 and "was changed" in run().stderr
    finally:
        file.write_text(text)


def test_who_gets_such_a_program():
    """GPUs' kernels, and what C cannot say; not what C can."""
    x = tir.placeholder((64,), name="x")

    def schedule(target):
        return tir.Schedule(tir.compute((64,), lambda i: x[i] + 1, name="y"), target)

    s = schedule("opencl")
    assert not programs(s._part(), ["c"])["c"].hosted
    edited = s.with_source(s.source() + "// mine")
    made = programs(edited._part(), ["c", "jax"])["c"]
    assert made.hosted and made.language == "c" and made.source.language == "opencl"
    threads = schedule("opencl")
    threads.bind("y.i", "thread.x")
    assert programs(threads._part(), ["onnxruntime", "pyopencl"])["c"].hosted
    gpu = replace(s._part(), kind="gpu")
    assert programs(gpu, ["c"])["c"].hosted


def test_blocks_with_threads_and_edited_text(tmp_path, driver):
    A, B = tir.placeholder((70, 33), name="A"), tir.placeholder((70, 33), name="B")
    s = tir.Schedule(tir.compute((70, 33), lambda i, j: A[i, j] * 2 + B[i, j], name="C"), "opencl")
    s.bind("C.i", "block.x").bind("C.j", "thread.x")
    where = s.with_source('/* "odd" \\ ??/ % ä */\n' + s.source()).export(tmp_path / "sum", to=["c", "pyopencl"])
    manifest = json.loads((where / "manifest.json").read_text())
    about = {**manifest, **manifest["bodies"]["c"]}
    assert about["host"] == "opencl" and about["workspace_bytes"] == 0 and "c" in manifest["targets"]
    done = subprocess.run([sys.executable, "-I", str(where / "selftest.py")], capture_output=True, text=True,
                          check=False, timeout=120)  # fmt: skip
    assert done.stdout.startswith("selftest ok c pyopencl:"), done.stderr
    readme = (where / "README.md").read_text()
    assert "finds the driver's library when it runs" in readme and "widest that the processor" not in readme


def test_addresses_of_any_kind(folders):
    """Odd ones, the same one twice, parts of each other: right, or refused by a code of the header."""
    function, why, errors = called(folders(several))
    memory = np.zeros(3 * 33 * 20 * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    a = memory[start + 4 : start + 4 + 33 * 20 * 4].view("f4").reshape(33, 20)
    a[:] = np.random.default_rng(1).integers(-9, 9, a.shape)
    sums, twice = np.empty_like(a), np.empty(a.shape, "i4")
    assert function(None, pointers(*(x.ctypes.data for x in (a, sums, twice)))) == 0, why()
    np.testing.assert_array_equal(sums, a + 1)
    np.testing.assert_array_equal(twice, (2 * a).astype("i4"))
    assert function(None, None) == errors["NULL"]
    assert function(None, pointers(a.ctypes.data, None, twice.ctypes.data)) == errors["NULL"]
    assert function(None, pointers(a.ctypes.data + 1, sums.ctypes.data, twice.ctypes.data)) == errors["ALIGNMENT"]
    assert b"multiple" in why()
    s = tir.ops.matmul(m=32, n=32, k=32).schedule()
    square, _, _ = called(hosted(s, folders(several).parent / "square"))
    long = np.random.default_rng(2).integers(-9, 9, 2048).astype("f4")
    out = np.empty((32, 32), "f4")
    for at in (0, 16, 512, 1024):  # both are the same memory, or share some of it
        b = long[at : at + 1024]
        assert square(None, pointers(long.ctypes.data, b.ctypes.data, out.ctypes.data)) == 0
        np.testing.assert_array_equal(out, long[:1024].reshape(32, 32) @ b.reshape(32, 32))


def test_indices_out_of_range_are_refused(folders):
    function, why, errors = called(folders(gathered))
    table, rows, out = np.ones((50, 8), "f4"), np.zeros(21, "i8"), np.full((21, 8), 7, "f4")
    given = pointers(*(x.ctypes.data for x in (table, rows, out)))
    for wrong in (-1, 50, 1 << 40):
        rows[20] = wrong
        assert function(None, given) == errors["INDEX"] and (out == 7).all() and b"index" in why()
    rows[20] = 49
    assert function(None, given) == 0 and (out == 1).all()


def test_a_queue_of_the_callers_is_not_waited_for(folders):
    """Arrays are memory of its context; each queue of it has a workspace of its own."""
    import pyopencl as cl

    function, why, errors = called(folders(packed))
    device = next(d for p in cl.get_platforms() for d in p.get_devices() if "oclgrind" not in p.name.lower())
    context = cl.Context([device])
    queues = [cl.CommandQueue(context) for _ in range(2)]
    a = np.random.default_rng(3).integers(-9, 9, (65, 33)).astype("f4")
    b = np.random.default_rng(4).integers(-9, 9, (33, 96)).astype("f4")
    flags = cl.mem_flags.READ_WRITE
    for queue in [*queues, queues[0]]:
        memory = [cl.Buffer(context, flags, n * 4) for n in (65 * 33, 33 * 96, 65 * 96)]
        for where, array in zip(memory, (a, b), strict=False):
            cl.enqueue_copy(queue, where, array)
        call = Call(ctypes.sizeof(Call), queue.int_ptr)
        assert function(ctypes.byref(call), pointers(*(m.int_ptr for m in memory))) == 0, why()
        out = np.empty((65, 96), "f4")
        cl.enqueue_copy(queue, out, memory[2])
        np.testing.assert_array_equal(out, a @ b)
    call.size = 0
    assert function(ctypes.byref(call), pointers(*(m.int_ptr for m in memory))) == errors["SIZE"]
    assert b"size" in why()
    kind = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    loose = cl.CommandQueue(context, properties=kind)
    call = Call(ctypes.sizeof(Call), loose.int_ptr)
    assert function(ctypes.byref(call), pointers(*(m.int_ptr for m in memory))) == errors["DEVICE"]
    assert b"out of order" in why()


def test_threads_take_turns(folders):
    function, _, _ = called(folders(packed))
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(10):
            a, b = rng.integers(-9, 9, (65, 33)).astype("f4"), rng.integers(-9, 9, (33, 96)).astype("f4")
            out = np.empty((65, 96), "f4")
            if function(None, pointers(*(x.ctypes.data for x in (a, b, out)))) or (out != a @ b).any():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORK = """
import os, sys
sys.path[:0] = [sys.argv[1]]
import numpy as np, loader
p = loader.Program()
x = [np.ones(i["shape"], i["dtype"]) for i in p.inputs]
p(*x)
pid = os.fork()
if not pid:
    try:
        p(*x)
    except RuntimeError as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_is_refused(folders):
    done = subprocess.run([sys.executable, "-c", FORK, str(folders(product))], capture_output=True, check=False,
                          timeout=120)  # fmt: skip
    assert done.returncode == 7, done.stderr


def test_weights_that_ship_and_others(tmp_path):
    s = tir.ops.matmul(m=8, n=16, k=12, prepack=True).schedule()
    part = s._part()
    w = np.random.default_rng(5).integers(-4, 5, (12, 16)).astype("f4")
    part = replace(part, source=part.source.fixed({"b": w.tobytes()}), reference=s._workload.reference)
    where = export_part(part, tmp_path / "fixed", ["c"], others={"c": replace(part, hosted=True)})
    program = module(where, "loader").Program()
    a = np.random.default_rng(6).integers(-4, 5, (8, 12)).astype("f4")
    np.testing.assert_array_equal(program(a), a @ w)
    other = w[::-1].copy()
    np.testing.assert_array_equal(program.prepack(b=other)(a), a @ other)
    np.testing.assert_array_equal(program(a), a @ w)
    done = subprocess.run([sys.executable, "-I", str(where / "selftest.py")], capture_output=True, text=True,
                          check=False, timeout=120)  # fmt: skip
    assert done.stdout.startswith("selftest ok c:"), done.stderr
