"""The handler of JAX's calls in Python: OpenCL programs where no library can be made, CUDA programs on a stream.

The CUDA side meets a stand-in for CuPy in host memory, and a call frame as XLA gives it: it has not yet run on a GPU.
"""

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_stand_in import Kernel, cupy_of, loaded

import tensorir as tir
from tensorir.export.shipped import build

START = """
import sys
sys.modules["tensorir"] = None
import os
os.environ["CC"] = "/there/is/none"
import numpy as np, jax
"""


def without_compiler(monkeypatch):
    monkeypatch.setattr("tensorir.export.folder.build.compiler", lambda: None)


def python(cwd, code):
    done = subprocess.run(
        [sys.executable, "-c", START + code], cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(cwd / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def needs(*names):
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def rows():
    """y[i] = (x[at[i]] * by)."""
    x, at = tir.placeholder((5, 3), name="x"), tir.placeholder((4,), "int32", name="at")
    by = tir.scalar("by", "float16")
    return tir.compute((4, 3), lambda i, j: x[at[i], j] * by.astype("float32"), name="y")


def test_opencl_serves_where_there_is_no_compiler(monkeypatch, tmp_path):
    needs("jax", "pyopencl")
    without_compiler(monkeypatch)
    a, b = tir.placeholder((33, 17), name="a"), tir.placeholder((17, 20), name="b")
    tir.Schedule(tir.nn.matmul(a, b, name="y"), "opencl").export(tmp_path / "mm", ["pyopencl", "jax"])
    tir.Schedule(rows(), "opencl").export(tmp_path / "rows", ["pyopencl", "jax"])
    tir.Schedule(rows(), "opencl").export(tmp_path / "alone", ["jax"])
    out = python(tmp_path, """
import mm, rows, alone, threading
r = np.random.default_rng(3)
a, b = r.integers(-4, 5, (33, 17)).astype("f4"), r.integers(-4, 5, (17, 20)).astype("f4")
many, more = np.stack([a, 2 * a, -a]), np.stack([b, 3 * b])
same = lambda x, y: np.array_equal(np.asarray(x), y)
assert same(jax.jit(mm.call)(a, b), a @ b)
both = jax.vmap(jax.vmap(mm.call, in_axes=(0, None)), in_axes=(None, 0))(many, more)
assert same(both, many[None] @ more[:, None])
assert same(jax.vmap(mm.call, in_axes=(0, None))(many[:0], b), np.zeros((0, 33, 20)))
x, at = np.arange(15, dtype="f4").reshape(5, 3), np.array([4, 0, 1, 4], "i4")
assert same(rows.call(x, at, 2.0002), 2 * x[at]), "by is a float of 16 bits"
for kernel, given in ((rows.call, (x, at + 1, 1.0)), (mm.call, (a, b.T)), (alone.call, (x, at, 1.0))):
    try:
        jax.block_until_ready(kernel(*given))
    except Exception as error:
        print(str(error).split("\\n")[0])
operator = sys.modules["mm.door_jax"].operator()
try:
    jax.ffi.ffi_call(operator.target, jax.ShapeDtypeStruct((33, 20), "f4"))(a, b.T).block_until_ready()
except Exception as error:
    print(str(error).split("\\n")[0])
f, wrong = jax.jit(mm.call), []
def calls(n):
    for _ in range(200):
        if not same(f(a * n, b), n * (a @ b)): wrong.append(n)
threads = [threading.Thread(target=calls, args=(n,)) for n in range(1, 5)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not wrong
""").splitlines()  # fmt: skip
    assert "INVALID_ARGUMENT" in out[0] and "at: an index is not in 0 ... 4" in out[0]
    assert out[1] == "b: expected shape (17, 20), got (20, 17)"
    assert "libalone.so: it is not there, and there is no C compiler to make it with" in out[2]
    assert "b: expected float32 (17, 20), got an array of type 11 and shape (20, 17)" in out[3]


def called(module, handler, arrays, stream=None, leading=()):
    """XLA's call of a handler: arrays, the last one the result, as (XLA's type, array); the error's words, or None."""
    said = []

    def create(e):
        said.append(e.contents.message.decode())
        return 1

    def get(e):
        e.contents.stream = stream
        return None if stream is not None else 2

    table = module.Interface()
    kinds = dict(module.Interface._fields_)
    table.error_create, table.stream_get = kinds["error_create"](create), kinds["stream_get"](get)
    table.error_destroy = kinds["error_destroy"](lambda e: said.append(f"destroyed {e.contents.error}"))
    buffers = []
    for kind, a in arrays:
        dims = (ctypes.c_int64 * max(a.ndim, 1))(*a.shape)
        buffers.append(module.Buffer(0, None, kind, a.ctypes.data, a.ndim, dims))
    frame = module.Frame(api=ctypes.pointer(table), stage=module.EXECUTE)
    for lst, held in ((frame.args, buffers[:-1]), (frame.rets, buffers[-1:])):
        lst.count = len(held)
        lst.items = (ctypes.POINTER(module.Buffer) * len(held))(*map(ctypes.pointer, held))
    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)(ctypes.addressof(frame))
    return said


def cuda_folder(tmp_path, outputs, name, to=("jax",)):
    s = tir.Schedule(outputs, "cuda -arch=sm_80")
    return s.export(tmp_path / name, list(to))


def test_cuda_programs_run_on_the_stream_of_the_call(monkeypatch, tmp_path):
    folder = cuda_folder(tmp_path, rows(), "rows")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["jax"] == {"platforms": ["cuda"], "types": {"float32": 11, "int32": 4}}
    assert not list(folder.glob("*.so")) and not list(folder.glob("*.c"))
    assert "Not yet run on a GPU" in (folder / "README.md").read_text()

    def gather(*given):
        names = dict(zip(manifest["kernels"][0]["args"], given, strict=True))
        x, at, by, y = (names[name] for name in ("x", "at", "by", "y"))
        table = np.frombuffer((ctypes.c_float * 15).from_address(x.data.ptr), np.float32).reshape(5, 3)
        chosen = np.frombuffer((ctypes.c_int32 * 4).from_address(at.data.ptr), np.int32)
        y.host.view(np.float32)[:] = (table[chosen] * by).reshape(-1)

    kernel = Kernel(gather)
    monkeypatch.setitem(sys.modules, "cupy", cupy_of(kernel))
    module = loaded(folder, "handler_jax")
    run = module.OnStream(manifest)
    handler = module.Handler(run.about, manifest["jax"]["types"], run, stream=True)
    x, at = np.arange(30, dtype="f4").reshape(2, 5, 3), np.array([[4, 0, 1, 4]], "i4")
    by, y = np.array([2, 3], "f4"), np.zeros((2, 4, 3), "f4")
    assert called(module, handler, [(11, x), (4, at), (11, by), (11, y)], stream=99) == []
    assert np.array_equal(y, np.stack([2 * x[0, at[0]], 3 * x[1, at[0]]])) and kernel.streams == [99, 99]
    (said,) = called(module, handler, [(11, x), (4, at + 1), (11, by), (11, y)], stream=99)
    assert said.endswith("at: an index is not in 0 ... 4") and len(kernel.streams) == 2, "nothing was launched"
    (said,) = called(module, handler, [(11, x), (5, at), (11, by), (11, y)], stream=99)
    assert "at: expected int32 (4,), got an array of type 5 and shape (1, 4)" in said
    assert called(module, handler, [(11, x), (4, at), (11, by), (11, y)]) == [
        "destroyed 2", "y: XLA gives no stream for this call",
    ]  # fmt: skip
    empty = [(11, x[:0]), (4, at), (11, by[:0]), (11, y[:0])]
    assert called(module, handler, empty, stream=7) == [] and len(kernel.streams) == 2


def test_items_of_a_batch_that_are_not_aligned_are_copied_on_the_gpu(monkeypatch, tmp_path):
    x = tir.placeholder((5,), name="x")
    folder = cuda_folder(tmp_path, tir.compute((5,), lambda i: x[i] + 1, name="y"), "add")
    manifest = json.loads((folder / "manifest.json").read_text())
    for p in manifest["arguments"]:
        p["align"] = 16
    addresses = []

    def add(x, y):
        assert manifest["kernels"][0]["args"] == ["x", "y"]
        addresses.extend((x.data.ptr, y.data.ptr))
        y.host.view(np.float32)[:] = x.host.view(np.float32) + 1

    monkeypatch.setitem(sys.modules, "cupy", cupy_of(Kernel(add)))
    module = loaded(folder, "handler_jax")
    run = module.OnStream(manifest)
    handler = module.Handler(run.about, manifest["jax"]["types"], run, stream=True)
    many, made = np.arange(35, dtype="f4").reshape(7, 5), np.zeros((7, 5), "f4")
    assert called(module, handler, [(11, many), (11, made)], stream=1) == []
    assert np.array_equal(made, many + 1) and not any(n % 16 for n in addresses)


def test_a_folder_of_both_registers_both(monkeypatch, tmp_path):
    needs("jax")
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    x = tir.placeholder((5,), name="x")
    y = tir.compute((5,), lambda i: x[i] + 1, name="y")
    tir.Schedule(y, "cuda").export(tmp_path / "both", ["jax", "c"])
    tir.Schedule(y, "cuda").export(tmp_path / "gpu", ["jax"])
    assert json.loads((tmp_path / "both/manifest.json").read_text())["jax"]["platforms"] == ["cpu", "cuda"]
    assert json.loads((tmp_path / "gpu/manifest.json").read_text())["jax"]["platforms"] == ["cuda"]
    out = python(tmp_path, """
import both, gpu
assert np.array_equal(both.call(np.ones(5, "f4")), np.full(5, 2.0))
print(both.door_jax.operator().platforms)
try:
    gpu.call(np.ones(5, "f4"))
except ImportError as error:
    print(error)
""").splitlines()  # fmt: skip
    assert sorted(eval(out[0])) == ["CUDA", "cpu"] and out[1] == "the kernel is for GPUs, and JAX runs on the cpu here"


def test_structs_are_those_of_the_header(tmp_path):
    """Of the handler in C and of that in Python, against the header that jaxlib brings."""
    needs("jax")
    import jax

    if (compiler := build.compiler()) is None:
        pytest.skip("there is no C compiler")
    from tensorir.export.shipped import handler_jax as module

    pairs = {
        ("CallFrame", "Frame", "door_frame"): [("api", "api"), ("ctx", "context"), ("stage", "stage"), ("args", "args"),
                                               ("rets", "rets")],
        ("Buffer", "Buffer", "door_buffer"): [("dtype", "dtype"), ("data", "data"), ("rank", "rank"), ("dims", "dims")],
        ("Args", "List", "door_list"): [("size", "count"), ("args", "items")],
        ("Rets", "List", "door_list"): [("size", "count"), ("rets", "items")],
        ("Error_Create_Args", "Error", "door_error_args"): [("message", "message"), ("errc", "code")],
        ("Error_Destroy_Args", "Destroyed", "door_destroy_args"): [("error", "error")],
        ("Metadata", "Metadata", "door_metadata"): [("api_version", "api"), ("traits", "traits")],
        ("Metadata_Extension", "Extension", ""): [("metadata", "about")],
        ("Stream_Get_Args", "Stream", ""): [("ctx", "context"), ("stream", "stream")],
        ("Api", "Interface", "door_interface"): [("XLA_FFI_Error_Create", "error_create"),
                                                 ("XLA_FFI_Error_Destroy", "error_destroy")],
        ("Api ", "Interface", ""): [("XLA_FFI_Stream_Get", "stream_get")],
        ("Api  ", "", "door_interface"): [("XLA_FFI_ThreadPool_Schedule", "schedule"),
                                          ("XLA_FFI_ThreadPool_NumThreads", "count_threads")],
        ("ThreadPool_Schedule_Args", "", "door_schedule_args"): [("ctx", "context"), ("task", "task")],
        ("ThreadPool_NumThreads_Args", "", "door_threads_args"): [("ctx", "context"), ("num_threads", "count")],
    }  # fmt: skip
    lines, python_side = [], []
    for (theirs, mine, in_c), fields in pairs.items():
        for field, own in fields:
            offset = f"offsetof(XLA_FFI_{theirs.strip()}, {field})"
            lines += [f'_Static_assert({offset} == offsetof({in_c}, {own}), "{in_c}.{own}");'] if in_c else []
            python_side.append((getattr(getattr(module, mine), own).offset if mine else None, offset))
    text = '#include <stdio.h>\n#include "xla/ffi/api/c_api.h"\n' + declarations() + "\n".join(lines)
    shown = "\n".join(f'  printf("%ld\\n", (long){offset});' for _, offset in python_side)
    text += f'\n_Static_assert(XLA_FFI_ExecutionStage_EXECUTE == {module.EXECUTE}, "stage");\n'
    text += f'_Static_assert(XLA_FFI_Extension_Metadata == {module.METADATA}, "metadata");\n'
    (tmp_path / "layout.c").write_text(text + f"\nint main(void) {{\n{shown}\n  return 0;\n}}\n")
    line = [*compiler, "-std=c11", f"-I{jax.ffi.include_dir()}", "layout.c", "-o", "layout"]
    made = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.split()
    for number, (own, offset) in zip(map(int, printed), python_side, strict=True):
        assert own is None or own == number, offset


def declarations():
    """The structs of the door in C."""
    text = (Path(build.__file__).parent / "door_jax.c").read_text("utf-8")
    start = text.index("typedef struct door_extension")
    return text[start : text.index("static void *door_fail")]
