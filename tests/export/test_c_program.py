"""C programs: compiled without a warning by what is here, clean under sanitizers, wrong when a byte is changed."""

import ctypes
import json
import platform
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tensorir as tir
from tensorir.codegen.source import Param
from tensorir.export.c_selftest import TABLE_ELEMENTS, _nearly

CLANG = next((c for c in ("clang-19", "clang") if shutil.which(c)), "clang")
COMPILERS = [pytest.param(c, marks=pytest.mark.skipif(not shutil.which(c), reason=f"{c} is not installed"))
             for c in ("gcc", CLANG)]  # fmt: skip
STRICT = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror")
LIBRARIES = ("-lm", "-ldl", "-lpthread")
pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def product():
    config = dict(panels=1, rows=0, tile=28, vectors=1, pack_a=0, unroll_k=4, pack="block")
    return tir.ops.matmul(m=33, n=20, k=17).schedule(config, "cpu_tile_column", "opencl -registers=32 -vector_bytes=64")


def convolution():
    return tir.ops.conv2d(n=1, c=6, h=11, w=9, k=8, r=3, s=3, pad=1, bias=True).schedule()


def channels_last():
    return tir.ops.conv2d(n=1, c=16, h=9, w=10, k=32, r=3, s=3, pad=1, layout="NHWC").schedule()


def depthwise():
    return tir.ops.conv2d(n=1, c=24, h=11, w=13, k=24, r=3, s=3, pad=1, groups=24).schedule()


def grouped():
    return tir.ops.conv2d(n=1, c=16, h=9, w=10, k=32, r=3, s=3, pad=1, groups=2).schedule()


def winograd():
    return tir.ops.conv2d(n=1, c=16, h=14, w=14, k=16, r=3, s=3, pad=1).schedule(template="cpu_winograd")


def packed():
    return tir.ops.matmul(m=65, n=96, k=33, prepack=True).schedule()


def images():
    return tir.ops.conv2d(n=1, c=3, h=224, w=224, k=16, r=7, s=7, stride=2, pad=3).schedule()


def meeting():
    """Blocks of 64 elements, the last of which is moved back."""
    A = tir.placeholder((101,), name="A")
    s = tir.Schedule(tir.compute((101,), lambda i: A[i] * 2, name="C"))
    s.bind(s.split("C.i", [None, 64], tail="shift")[0], "block.x")
    return s


def halves():
    return tir.ops.matmul(m=33, n=48, k=17, dtype="float16").schedule()


def scaled():
    return tir.ops.matmul(m=33, n=48, k=17, alpha=True, beta=True).schedule()


def several():
    A = tir.placeholder((33, 20), name="A")
    return tir.Schedule(tir.compute((33, 20), lambda i, j: (A[i, j] + 1, tir.cast(A[i, j] * 2, "int32")), name="C"))


def activated():
    """Functions that call functions of ours, in vectors and on single numbers."""
    return tir.ops.matmul(33, 65, 47, act="gelu").schedule(template="cpu_tile_strip")


def inexact():
    A = tir.placeholder((70, 64), name="A")
    s = tir.Schedule(tir.compute((70, 64), lambda i, j: tir.exp(A[i, j]) / 3, name="C"))
    s.bind("C.i", "block.x").vectorize(s.split("C.j", [None, 16])[1])
    return s


def gathered():
    E, rows = tir.placeholder((50, 8), name="E"), tir.placeholder((21,), "int64", name="rows")
    return tir.Schedule(tir.compute((21, 8), lambda i, j: E[rows[i], j], name="C"))


def bits():
    """What compilers warn of: what is certain for a type, operators without parentheses, shifts by any number."""
    A, B = tir.placeholder((60,), "uint8", name="A"), tir.placeholder((60,), "int32", name="B")

    def each(i):
        a, b = A[i], B[i]
        some = tir.where((a > 3) & (b < 2) | (a < b) & (b > 1), a + 1, a)
        return (a < 0, tir.minimum(b, b), a + b ^ b - 1, tir.not_equal(a < 3, b < 2), b - 1 << (b & 3), b + 1 >> b + 2,
                b << b, some, tir.abs(tir.cast(b, "int8")) ^ 3)  # fmt: skip

    return tir.Schedule(tir.compute((60,), each, name="C"))


KERNELS = (product, convolution, channels_last, depthwise, grouped, winograd, packed, meeting, halves, scaled, several,
           activated, inexact, gathered, bits)  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kernel):
        if kernel not in made:
            made[kernel] = tmp_path_factory.mktemp("c") / kernel.__name__
            kernel().export(made[kernel], to=["c"])
        return made[kernel]

    return folder


def outcome(folder, compiler, *flags, output="selftest"):
    name = f"{folder.name}.c"
    build = [compiler, *STRICT, *flags, "selftest.c", name, "-o", output, *LIBRARIES]
    built = subprocess.run(build, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[:3000]
    return subprocess.run([f"./{output}"], cwd=folder, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("compiler", COMPILERS[:1])
def test_its_own_test_passes_without_a_warning(folders, kernel, compiler):
    done = outcome(folders(kernel), compiler, *(("-O0",) if kernel is winograd else ()))
    assert done.returncode == 0 and done.stdout.strip() == f"selftest ok {kernel.__name__}", done.stderr


@pytest.mark.parametrize("kernel", [convolution, halves, activated, inexact, several], ids=lambda k: k.__name__)
@pytest.mark.parametrize("compiler", COMPILERS[1:])
def test_the_other_compiler_says_nothing_either(folders, kernel, compiler):
    assert outcome(folders(kernel), compiler).returncode == 0


@pytest.mark.parametrize("kernel", [convolution, packed, halves, gathered], ids=lambda k: k.__name__)
def test_sanitizers_say_nothing(folders, kernel):
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    done = outcome(folders(kernel), "cc", *flags, output="sanitized")
    assert done.returncode == 0 and not done.stderr, done.stderr[:3000]


@pytest.mark.parametrize("flags", [("-mno-avx512f",), ("-mno-avx2", "-mno-fma")])
def test_each_width_is_right(folders, tmp_path, flags):
    """The text that a processor with fewer features would take."""
    folder = tmp_path / "convolution"
    shutil.copytree(folders(convolution), folder)
    text = (folder / "convolution.c").read_text()
    dropped = '"avx512f"' if flags == ("-mno-avx512f",) else '"avx'
    narrower = re.sub(rf"^  if \(__builtin_cpu_supports\({dropped}.*\n", "", text, flags=re.MULTILINE)
    assert len(narrower.splitlines()) == len(text.splitlines()) - len(flags)
    (folder / "convolution.c").write_text(narrower)
    assert outcome(folder, "cc").returncode == 0


@pytest.mark.parametrize("kernel", [product, inexact, halves, several], ids=lambda k: k.__name__)
def test_a_changed_kernel_fails(folders, tmp_path, kernel):
    folder = tmp_path / kernel.__name__
    shutil.copytree(folders(kernel), folder)
    file = folder / f"{kernel.__name__}.c"
    text = file.read_text()
    begin = text.index("/* --- registers of")  # the first text, which widths may share
    changed = text[begin:].replace("k < 17", "k < 16").replace("3.0f", "3.01f").replace("+ 1.0f", "+ 1.5f")
    assert changed != text[begin:]
    file.write_text(text[:begin] + changed)
    done = outcome(folder, "cc")
    assert done.returncode == 1 and "selftest failed" in done.stderr
    assert ("should be" in done.stderr) == (kernel is inexact), "of results that are exact it has digests, no numbers"


SPOIL = "((float *)buffers[2])[0] += 1;\n  return failed == 2 ? "
ONE_WAY = {
    "in the narrowest text": ("*(float4u *)(c + out_i_1 * 20", "*(float4u *)(c + (out_i_1 > 1) * out_i_1 * 20"),
    "without a call": ("  return failed == 2 ? ", f"  if (!call) {SPOIL}"),
    "in all calls but the first": ("  return failed == 2 ? ", f"  static int n; if (n++) {SPOIL}"),
    "at odd addresses": ("  return failed == 2 ? ", f"  if ((uintptr_t)buffers[0] % 64) {SPOIL}"),
    "on the caller's threads": ("call->parallel_for(call->pool, blocks,", "call->parallel_for(call->pool, blocks - 1,"),
    "on an input": ("  return failed == 2 ? ", "  ((float *)buffers[0])[0] += 1;\n  return failed ? "),
}


@pytest.mark.parametrize("fault", ONE_WAY)
def test_a_fault_of_one_way_to_call_it_fails(folders, tmp_path, fault):
    folder = tmp_path / "product"
    shutil.copytree(folders(product), folder)
    text = (folder / "product.c").read_text()
    assert ONE_WAY[fault][0] in text
    (folder / "product.c").write_text(text.replace(*ONE_WAY[fault]))
    done = outcome(folder, "cc", "-O0", "-w")
    assert done.returncode == 1 and "selftest failed" in done.stderr


def test_the_python_side_runs_it_too(folders):
    done = subprocess.run([sys.executable, "-I", "selftest.py", "c"], cwd=folders(packed), check=False,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("selftest ok c"), done.stdout + done.stderr


WHOLE, RAGGED = {"c": 64, "h": 30, "w": 27, "k": 64}, {"c": 63, "h": 31, "w": 30, "k": 61}


def test_a_folder_is_small_and_says_nothing_of_its_maker(folders):
    for kernel in KERNELS:
        folder = folders(kernel)
        read = [f for f in folder.iterdir() if f.suffix in (".c", ".h", ".txt", ".json", ".md")]
        assert sum(f.stat().st_size for f in read) < 150_000, kernel.__name__
        assert not any("/home" in f.read_text() or "/tmp" in f.read_text() for f in read)


def with_winograd(registers, taps, sizes):
    """A convolution with all that it may end in, its target, and its configurations by Winograd's algorithm."""
    w = tir.ops.conv2d(n=1, **sizes, r=taps, s=taps, pad=taps // 2, bias=True, act="relu", residual=True, prepack=True,
                       max_error=1e-3)  # fmt: skip
    target = f"c {registers}"
    space = w.templates["cpu_winograd"].space_for(tir.Target.parse(target))
    return w, target, [space.config(n) for n in range(len(space.configs))]


@pytest.mark.parametrize("registers", ["-vector_bytes=64 -registers=32", "-vector_bytes=32", "-vector_bytes=16"])
@pytest.mark.parametrize(("taps", "tiles"), [(3, (2, 4, 6)), (5, (2, 4))])
def test_tiles_of_winograd_are_the_same_for_all_registers(registers, taps, tiles):
    _, _, configs = with_winograd(registers, taps, RAGGED)
    assert {c["m"] for c in configs} == set(tiles)


@pytest.mark.parametrize(("taps", "most", "sizes"), [(3, 6, WHOLE), (5, 4, RAGGED)])
def test_winograd_folders_are_small(tmp_path, taps, most, sizes):
    """The largest ones: planes, whose last columns are written apart, with all that a convolution may end in, and
    register tiles of two sizes; channels that fill vectors, and those that do not. They have the texts for narrower
    registers as well: folders for those alone have 105 kB.
    """
    w, target, configs = with_winograd("-vector_bytes=64 -registers=32", taps, sizes)
    largest = [c for c in configs if c["m"] == most and c["fetch"]]
    config = min(largest, key=lambda c: c["tile"])
    folder = w.schedule(config, "cpu_winograd", target).export(tmp_path / "conv", to="c")
    read = [f for f in folder.iterdir() if f.suffix in (".c", ".h", ".txt", ".json", ".md")]
    assert sum(f.stat().st_size for f in read) < 150_000


@pytest.mark.parametrize("seeds", [1, 2])
def test_all_seeds_together_look_at_as_many_elements(seeds):
    """Each has its share, of other elements."""
    size = 8 * TABLE_ELEMENTS
    rows = [np.random.default_rng(n).standard_normal((8, TABLE_ELEMENTS)) for n in range(seeds)]
    tables, _ = _nearly(Param("y", "float32", (8, TABLE_ELEMENTS), "output"), 0, rows, [1e-4] * seeds)
    (first,) = (re.findall(r"\d+", t.split("{")[1]) for t in tables if "first_0[]" in t)
    starts = [int(n) for n in first]
    seen = {n for start in starts for n in range(start, size, size * seeds // TABLE_ELEMENTS)}
    assert len(seen) == TABLE_ELEMENTS and len(set(starts)) == seeds
    text = next(t for t in tables if "const want_0[]" in t)
    assert len("".join(re.findall(r'^  "(.*)"', text, re.MULTILINE))) % TABLE_ELEMENTS == 0


def test_small_vectors_have_their_functions_once(tmp_path):
    """Every processor has registers of 16 bytes: what works on those is the same function in all texts."""
    w = tir.ops.conv2d(n=1, c=16, h=14, w=13, k=16, r=3, s=3, pad=1)
    target = tir.Target.parse("c -units=2")
    space = w.templates["cpu_winograd"].space_for(target)
    made = w.schedule({**space.default, "m": 4}, "cpu_winograd", target)
    text = (made.export(tmp_path / "one", to="c") / "one.c").read_text()
    assert text.count("tir_transpose_4x4_all(const float *from") == 1
    assert "tir_transpose_4x4_all(Y" in text and "tir_transpose_8x8_all" not in text
    assert outcome(tmp_path / "one", "cc", "-O0").returncode == 0


def test_widths_with_one_text_share_it(tmp_path):
    """Vectors of eight lanes are the same for registers of 64 bytes as for those of 32, and halves for those of 16."""
    made = tir.ops.matmul(m=33, n=20, k=17).schedule(target="c -vector_bytes=32").export(tmp_path / "one", to="c")
    text = (made / "one.c").read_text()
    assert text.count('#include "one.c"') == 2
    assert text.count("registers of 16 bytes") == text.count("registers of TIR_BYTES bytes") == 1
    assert outcome(made, "cc").returncode == 0
    begin, end = text.index("#ifdef TIR_BYTES"), text.index('#include "one.h"')
    changed = text[:begin] + text[begin:end].replace("+= a[", "+= 2 * a[") + text[end:]
    assert changed != text
    (made / "one.c").write_text(changed)
    if platform.machine() == "x86_64":
        assert outcome(made, "cc").returncode == 1, "what is shared is what runs"


class Call(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("stream", ctypes.c_void_p), ("parallel_for", ctypes.c_void_p),
                ("pool", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("threads", ctypes.c_int))  # fmt: skip


@pytest.fixture
def function(folders):
    def load(kernel):
        folder = folders(kernel)
        name = kernel.__name__
        build = ["cc", *STRICT, "-fPIC", "-shared", f"{name}.c", "-o", f"lib{name}.so", *LIBRARIES]
        subprocess.run(build, cwd=folder, check=True, timeout=300)
        load.loaded = (library := ctypes.CDLL(str(folder / f"lib{name}.so")),)
        found = library[name]
        found.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        return found

    return load


def pointers(*arrays):
    return (ctypes.c_void_p * len(arrays))(*(a if a is None else a.ctypes.data for a in arrays))


def ints(seed, *shape):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype("float32")


def test_the_callers_threads_run_the_blocks(function):
    f = function(product)
    a, b, c = ints(0, 33, 17), ints(1, 17, 20), np.full((33, 20), np.nan, "float32")
    ran = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
    body_kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)

    @kind
    def parallel_for(pool, blocks, body, state):
        ran.append((pool, blocks))
        for n in reversed(range(blocks)):
            body_kind(body)(state, n)
        return 0

    call = Call(ctypes.sizeof(Call), None, ctypes.cast(parallel_for, ctypes.c_void_p), 77, None, 2)
    assert f(ctypes.addressof(call), pointers(a, b, c)) == 0
    assert ran == [(77, 2)] and np.array_equal(c, a @ b)
    call.threads = 1
    c[:] = np.nan
    assert f(ctypes.addressof(call), pointers(a, b, c)) == 0 and len(ran) == 1 and np.array_equal(c, a @ b)


def code(folders, kernel, name):
    header = (folders(kernel) / f"{kernel.__name__}.h").read_text()
    return int(re.search(rf"{kernel.__name__.upper()}_{name} = (\d+)", header)[1])


def test_a_call_may_have_fewer_fields_but_not_none(function, folders):
    """What is behind the size is somebody else's memory; a size of 0 was forgotten, and with it all that it says."""
    f = function(packed)
    a, b, c = ints(0, 65, 33), ints(1, 33, 96), np.full((65, 96), np.nan, "float32")
    for fields in (8, 16, 24):
        call = Call(fields, None, 1 * (fields < 24), 1, 1, 2)
        assert f(ctypes.addressof(call), pointers(a, b, c)) == 0 and np.array_equal(c, a @ b)
        c[:] = np.nan
    call.size = 0
    assert f(ctypes.addressof(call), pointers(a, b, c)) == code(folders, packed, "SIZE") and np.isnan(c).all()


def test_a_workspace_is_aligned_or_refused(function, folders):
    f, library = function(packed), function.loaded[0]
    a, b, c = ints(0, 65, 33), ints(1, 33, 96), np.full((65, 96), np.nan, "float32")
    header = (folders(packed) / "packed.h").read_text()
    nbytes = int(re.search(r"packed_workspace_bytes \(\(size_t\)(\d+)\)", header)[1])
    space = np.full(nbytes + 128, 7, np.uint8)
    space = space[-space.ctypes.data % 64 :]
    call = Call(ctypes.sizeof(Call), None, None, None, space.ctypes.data + 4, 2)
    wrong = code(folders, packed, "ALIGNMENT")
    assert f(ctypes.addressof(call), pointers(a, b, c)) == wrong and np.isnan(c).all() and (space == 7).all()
    call.workspace -= 4
    assert f(ctypes.addressof(call), pointers(a, b, c)) == 0 and np.array_equal(c, a @ b)
    assert (space[nbytes:] == 7).all()
    for g in (library.packed_pack, library.packed_packed):
        g.argtypes = [ctypes.c_void_p] * 3
        assert g(None, pointers(a, b, c), space.ctypes.data + 4) == wrong


def test_threads_with_small_stacks_may_call(function):
    """The rows of the image that a block keeps take more than is left of the stack."""
    f, wrong = function(images), []

    def work():
        x, w, y = ints(0, 1, 3, 224, 224), ints(1, 16, 3, 7, 7), np.full((1, 16, 112, 112), np.nan, "float32")
        views = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3))), (7, 7), (2, 3))[:, :, ::2, ::2]
        call = Call(ctypes.sizeof(Call), None, None, None, None, 1)
        if f(ctypes.addressof(call), pointers(x, w, y)) or not np.array_equal(
            y, np.einsum("nchwrs,kcrs->nkhw", views, w)
        ):
            wrong.append(y)

    before = threading.stack_size(192 << 10)
    try:
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    finally:
        threading.stack_size(before)
    assert not wrong


MANY = """\
#include "wide.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
static float a[128 * 64], b[64 * 96], y[3][128 * 96];
static void *calls(void *to) {
  const tir_call two = {.size = sizeof two, .threads = 2};
  for (int n = 0; n < 20; ++n)
    if (wide_typed(a, b, to, &two)) return to;
  return NULL;
}
int main(void) {
  pthread_t threads[3];
  for (int n = 0; n < 128 * 64; ++n) a[n] = (float)(n % 5);
  for (int n = 0; n < 64 * 96; ++n) b[n] = (float)(n % 7);
  for (int n = 0; n < 3; ++n) pthread_create(&threads[n], NULL, calls, y[n]);
  void *failed = NULL;
  for (int n = 0; n < 3 && !failed; ++n) pthread_join(threads[n], &failed);
  puts(failed || memcmp(y[0], y[1], sizeof y[0]) || memcmp(y[0], y[2], sizeof y[0]) ? "differ" : "same");
  return 0;
}
"""


def wide():
    return tir.ops.matmul(m=128, n=96, k=64).schedule()


def in_threads(folder, compiler, main):
    """What a program says under the thread sanitizer."""
    build = [compiler, *STRICT, "-g", "-fsanitize=thread", main, f"{folder.name}.c", "-o", "threads", *LIBRARIES]
    if subprocess.run(build, cwd=folder, check=False, capture_output=True, timeout=120).returncode:
        pytest.skip(f"{compiler} has no thread sanitizer here")
    done = subprocess.run(["./threads"], cwd=folder, check=False, capture_output=True, text=True, timeout=120)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not start here")
    assert done.returncode == 0 and not done.stderr, done.stderr[:3000]
    return done.stdout.strip()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_threads_race_for_nothing(folders, compiler):
    """Callers share the threads of the kernel, and one of them has its own."""
    (folders(wide) / "many.c").write_text(MANY)
    assert in_threads(folders(wide), compiler, "many.c") == "same"


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("kernel", [meeting, packed], ids=lambda k: k.__name__)
def test_blocks_race_for_nothing(folders, kernel, compiler):
    """Every block on a thread of its own: those that meet store what the other one stores."""
    folder = folders(kernel)
    assert ("define TIR_MEETS" in (folder / f"{kernel.__name__}.c").read_text()) == (kernel is meeting)
    assert in_threads(folder, compiler, "selftest.c") == f"selftest ok {kernel.__name__}"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have other names for it")
def test_sums_of_products_are_fused_without_a_flag(folders):
    words = ["-std=c11", "-O2", "-S", "product.c", "-o", "-"]
    made = subprocess.run(["cc", *words], cwd=folders(product), check=True, capture_output=True, text=True)
    assert "vfmadd" in made.stdout


def test_errors_have_codes(function, folders):
    f = function(gathered)
    names = dict(re.findall(r"GATHERED_(\w+) = (\d)", (folders(gathered) / "gathered.h").read_text()))
    e, rows, c = ints(0, 50, 8), np.arange(21) % 50, np.empty((21, 8), "float32")
    assert f(None, pointers(e, rows, c)) == int(names["OK"]) and np.array_equal(c, e[rows])
    assert f(None, None) == int(names["NULL"]) == f(None, pointers(e, None, c))
    for bad in (-1, 50, 2**40):
        rows[20] = bad
        assert f(None, pointers(e, rows, c)) == int(names["INDEX"])
    rows[20] = 0
    odd = np.empty(21 * 8 * 4 + 1, np.uint8)[1:]
    assert f(None, pointers(e, rows, odd)) == int(names["ALIGNMENT"])


def test_calls_from_several_threads_do_not_meet(function):
    f = function(packed)
    wrong = []

    def work(n):
        a, b, c = ints(n, 65, 33), ints(n + 9, 33, 96), np.empty((65, 96), "float32")
        for _ in range(200):
            c[:] = np.nan
            if f(None, pointers(a, b, c)) or not np.array_equal(c, a @ b):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_what_is_packed_once_is_used_by_later_calls(function, folders):
    """The bytes that it says are all that it uses: what is behind them stays, and a call with them reads no weights."""
    f, library = function(packed), function.loaded[0]
    header = (folders(packed) / "packed.h").read_text()
    nbytes = int(re.search(r"packed_packed_bytes \(\(size_t\)(\d+)\)", header)[1])
    pack, run = library.packed_pack, library.packed_packed
    for g in (pack, run):
        g.argtypes = [ctypes.c_void_p] * 3
    a, b, c = ints(0, 65, 33), ints(1, 33, 96), np.empty((65, 96), "float32")
    kept = np.full(nbytes + 128, 7, np.uint8)
    kept = kept[-kept.ctypes.data % 64 :]
    assert pack(None, pointers(None, b, None), None) != 0 != pack(None, pointers(a, None, c), kept.ctypes.data)
    assert pack(None, pointers(None, b, None), kept.ctypes.data) == 0
    assert (kept[nbytes:] == 7).all() and not (kept[:nbytes] == 7).all()
    before = b.copy()
    b[:] = np.nan
    for seed in (2, 3):
        a[:] = ints(seed, 65, 33)
        assert run(None, pointers(a, b, c), kept.ctypes.data) == 0 and np.array_equal(c, a @ before)
    assert run(None, pointers(a, b, c), None) != 0
    b[:] = 2 * before
    assert f(None, pointers(a, b, c)) == 0 and np.array_equal(c, a @ b), "a plain call packs"


def test_fixed_inputs_ship_in_the_text(tmp_path):
    s = tir.ops.matmul(m=33, n=48, k=17, prepack=True).schedule()
    b = ints(1, 17, 48)
    folder = tmp_path / "fixed"
    s.build().prepack(b=b).export(folder, to=["c"])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [p["role"] for p in manifest["arguments"] if p["name"] == "b"] == ["constant"]
    assert outcome(folder, "cc").returncode == 0
    words = [sys.executable, "-I", "selftest.py"]
    done = subprocess.run(words, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    a, c = ints(0, 33, 17), np.empty((33, 48), "float32")
    build = ["cc", *STRICT, "-fPIC", "-shared", "fixed.c", "-o", "fixed.so", *LIBRARIES]
    subprocess.run(build, cwd=folder, check=True, timeout=300)
    assert ctypes.CDLL(str(folder / "fixed.so")).fixed(None, pointers(a, c)) == 0
    assert np.array_equal(c, a @ b)


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_cmake_builds_and_tests_it(folders):
    for words in (["cmake", "-B", "b"], ["cmake", "--build", "b"], ["ctest", "--test-dir", "b"]):
        subprocess.run(words, cwd=folders(product), check=True, capture_output=True, timeout=300)


def test_a_program_without_elements(tmp_path):
    """Kernels that take no array."""
    x = tir.placeholder((0, 3), name="x")
    tir.Schedule(tir.compute((0, 3), lambda i, j: x[i, j] + 1, name="y"), "c").export(tmp_path / "none", "c")
    compiler = next((c for c in ("gcc", CLANG) if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("there is no C compiler")
    done = outcome(tmp_path / "none", compiler)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("named", "called"), [("a", "a"), ("x", "x_"), ("r", "r_"), ("page", "page_")])
def test_a_name_may_be_that_of_an_argument_or_of_a_macro_of_the_system(tmp_path, named, called):
    """unistd.h has X_OK, limits.h may have PAGE_SIZE: codes of a program are called so too."""
    a = tir.placeholder((4,), name="a")
    y = tir.compute((4,), lambda i: a[i] + 1, name="y")
    folder = tir.Schedule(y, "c").export(tmp_path / named, to="c")
    words = ["cc", *STRICT, "-fsyntax-only", f"{called}.c", "selftest.c"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_a_folder_of_the_text_alone_tests_itself(tmp_path):
    s = tir.ops.matmul(m=33, n=20, k=17).schedule(target="c")
    where = s.export(tmp_path / "text", to=["source"])
    done = subprocess.run([sys.executable, "-I", str(where / "selftest.py")], capture_output=True, text=True,
                          check=False, timeout=120)  # fmt: skip
    assert done.stdout.startswith("selftest ok source:"), done.stderr
