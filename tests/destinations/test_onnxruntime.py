"""Kernels as custom operators of ONNX Runtime."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tensorir as tir
from tensorir.export.doors import CODES
from tensorir.export.onnx_operators import OnnxOperator, glue
from tensorir.export.shipped import build
from tensorir.interp.numbers import numpy_dtype

CALL = """\
#ifndef TIR_CALL
#define TIR_CALL
#include <stddef.h>
typedef struct tir_call {
  size_t size;
  void *stream;
  int (*parallel_for)(void *pool, size_t blocks, void (*body)(void *state, size_t block), void *state);
  void *pool, *workspace;
  int threads;
} tir_call;
#endif
"""
PRODUCT = """\
#include "NAME.h"
#include <stdint.h>
#include <string.h>
static void row(void *state, size_t i) {
  void *const *b = state;
  for (size_t j = 0; j < 20; ++j) {
    float sum = 0;
    for (size_t k = 0; k < 17; ++k) sum += ((const float *)b[0])[i * 17 + k] * ((const float *)b[1])[k * 20 + j];
    ((float *)b[2])[i * 20 + j] = sum;
  }
}
int NAME(const tir_call *call, void *const *buffers) {
  for (int n = 0; n < 3; ++n) if ((uintptr_t)buffers[n] % ALIGN) return 7;
  void *state = (void *)(uintptr_t)buffers;
  if (call && call->parallel_for) return call->parallel_for(call->pool, 33, row, state) ? 8 : 0;
  for (size_t i = 0; i < 33; ++i) row(state, i);
  return 0;
}
"""
MINMAX = """\
#include "minmax.h"
#include <stdint.h>
int minmax(const tir_call *call, void *const *b) {
  (void)call;
  const int32_t *x = b[0], at = *(const int32_t *)b[1];
  int32_t *least = b[2];
  double *scaled = b[3];
  if (at < 0) return 3;
  *least = x[0];
  for (int n = 0; n < 6; ++n) {
    if (x[n] < *least) *least = x[n];
    scaled[n] = 0.5 * x[n] + at;
  }
  return 0;
}
"""
COMPILERS = [c for c in ("gcc", "clang-19", "clang") if shutil.which(c)]
compiled = pytest.mark.skipif(not COMPILERS, reason="there is no C compiler")


def argument(name, shape, role="input", dtype="float32", align=4):
    return {"name": name, "dtype": dtype, "shape": list(shape), "role": role, "align": align}


def product(name="mm", align=4):
    """A product of 33x17 and 17x20 that wants its arguments aligned: operator, and its sources."""
    ends = [("a", (33, 17), "input"), ("b", (17, 20), "input"), ("y", (33, 20), "output")]
    op = OnnxOperator(name, name, [argument(n, s, r, align=align) for n, s, r in ends])
    text = PRODUCT.replace("NAME", name).replace("ALIGN", str(align))
    return op, {f"{name}.c": text, f"{name}.h": f"{CALL}int {name}(const tir_call *, void *const *);\n"}


def minmax():
    """Two outputs, one of them a number, and a scalar parameter."""
    op = OnnxOperator("minmax", "minmax", [
        argument("x", (2, 3), dtype="int32"), argument("at", (), "scalar", "int32"),
        argument("work", (77,), "workspace"), argument("least", (), "output", "int32"),
        argument("scaled", (3, 2), "output", "float64", 8),
    ])  # fmt: skip
    return op, {"minmax.c": MINMAX, "minmax.h": f"{CALL}int minmax(const tir_call *, void *const *);\n"}


TAKE = """\
#include "take.h"
#include <stdint.h>
int take(const tir_call *call, void *const *b) {
  (void)call;
  for (int n = 0; n < 5; ++n) ((uint8_t *)b[2])[n] = ((const uint8_t *)b[1])[((const KIND *)b[0])[n]];
  return 0;
}
"""


def take(kind, dtype):
    """Elements of a table of 7 by an index of any type."""
    op = OnnxOperator("take", "take", [
        argument("i", (5,), dtype=dtype, align=1), argument("table", (7,), dtype="uint8", align=1),
        argument("y", (5,), "output", "uint8", 1),
    ], [{"param": "i", "limit": 9, "into": "x"}, {"param": "i", "limit": 7, "into": "table"}])  # fmt: skip
    text = TAKE.replace("KIND", kind)
    return op, {"take.c": text, "take.h": f"{CALL}int take(const tir_call *, void *const *);\n"}


def library(path, domain, *made, extra=()):
    sources = {name: text for _, files in made for name, text in files.items()}
    sources[f"{path.stem}_glue.c"] = glue(domain, [op for op, _ in made])
    command = build.compiler()
    path.write_bytes(build.compiled(command, {n: t.encode() for n, t in sources.items()}, extra))
    return path


@pytest.mark.parametrize("compiler", COMPILERS or [pytest.param("", marks=compiled)])
@pytest.mark.parametrize("extra", [(), ("-fsanitize=undefined", "-fno-sanitize-recover=all")])
def test_the_text_compiles_without_a_warning(compiler, extra):
    (one, files), (two, more) = product(), minmax()
    sources = {"glue.c": glue("d", [one, two]), **files, **more}
    strict = ("-Wall", "-Wextra", "-Werror", "-pedantic")
    made = build.compiled([compiler], {n: t.encode() for n, t in sources.items()}, (*strict, *extra))
    assert b"RegisterCustomOps" in made


def session(nodes, info, libraries, weights=(), **options):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    helper = onnx.helper
    nodes = [helper.make_node(op, i, o, domain=domain, **attrs) for domain, op, i, o, attrs in nodes]
    ins, outs = ([helper.make_tensor_value_info(n, t, s) for n, t, s in values] for values in info)
    domains = {n.domain for n in nodes} - {""}
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    held = [onnx.numpy_helper.from_array(array, name) for name, array in dict(weights).items()]
    model = helper.make_model(helper.make_graph(nodes, "g", ins, outs, held), opset_imports=imports, ir_version=8)
    given = ort.SessionOptions()
    given.log_severity_level = 4
    for name, value in options.items():
        setattr(given, name, value)
    for path in libraries:
        given.register_custom_ops_library(str(path))
    return ort.InferenceSession(model.SerializeToString(), given, providers=["CPUExecutionProvider"])


FLOAT, INT, DOUBLE = 1, 6, 11
SIDES = [("a", FLOAT, (33, 17)), ("b", FLOAT, (17, 20))]


def matrices(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, s).astype(np.float32) for s in ((33, 17), (17, 20))]


@pytest.fixture
def one(tmp_path):
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    return library(tmp_path / "libmm.so", "own.mm", product())


def mm(path, inputs=SIDES, **options):
    node = ("own.mm", "mm", ["a", "b"], ["y"], {"alpha": 2.5, "note": "not read"})
    return session([node], (inputs, [("y", FLOAT, (33, 20))]), [path], **options)


@pytest.mark.parametrize("threads", [1, 3])
def test_product_on_the_sessions_threads(one, threads):
    a, b = matrices()
    run = mm(one, intra_op_num_threads=threads)
    assert np.array_equal(run.run(None, {"a": a, "b": b})[0], a @ b)
    with ThreadPoolExecutor(4) as pool:
        given = [matrices(n) for n in range(40)]
        made = pool.map(lambda g: run.run(None, {"a": g[0], "b": g[1]})[0], given)
        assert all(np.array_equal(y, g[0] @ g[1]) for y, g in zip(made, given, strict=True))


def off(a, nbytes):
    """A contiguous copy that starts ``nbytes`` after a multiple of 64."""
    memory = np.zeros(a.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + nbytes
    made = np.frombuffer(memory.data, a.dtype, a.size, start).reshape(a.shape)
    made[...] = a
    assert made.ctypes.data % 64 == nbytes
    return made


def test_feeds_and_results_at_any_address(tmp_path):
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    run = mm(library(tmp_path / "libmm.so", "own.mm", product(align=64)))
    a, b = matrices()
    for shift in (0, 4, 36, 60):
        assert np.array_equal(run.run(None, {"a": off(a, shift), "b": off(b, 4)})[0], a @ b)
    y = off(np.full((33, 20), 9, np.float32), 12)
    bound = run.io_binding()
    bound.bind_cpu_input("a", off(a, 20))
    bound.bind_cpu_input("b", b)
    bound.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    run.run_with_iobinding(bound)
    assert np.array_equal(y, a @ b)


def test_a_kernel_that_is_told_of_smaller_alignment_fails(tmp_path):
    """So that the test above can fail: the program does look at the addresses."""
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    op, files = product(align=64)
    op = OnnxOperator(op.name, op.function, [{**p, "align": 4} for p in op.arguments])
    run = mm(library(tmp_path / "libmm.so", "own.mm", (op, files)))
    a, b = matrices()
    with pytest.raises(Exception, match="mm: the program returned error 7"):
        run.run(None, {"a": off(a, 4), "b": b})


def test_wrong_shapes_and_dtypes_are_refused_by_name(one):
    run = mm(one, [("a", FLOAT, (None, None)), ("b", FLOAT, (17, 20))])
    a, b = matrices()
    with pytest.raises(Exception, match=r"mm: a: expected shape 33x17, got 17x33"):
        run.run(None, {"a": np.ascontiguousarray(a.T), "b": b})
    run = mm(one, [("a", FLOAT, None), ("b", FLOAT, (17, 20))])
    for wrong, said in ((a.ravel(), "561"), (np.float32(3), "a number"), (np.zeros((1,) * 12, np.float32), "12 dim")):
        with pytest.raises(Exception, match=f"mm: a: expected shape 33x17, got {said}"):
            run.run(None, {"a": np.asarray(wrong), "b": b})
    assert np.array_equal(run.run(None, {"a": a, "b": b})[0], a @ b)
    with pytest.raises(Exception, match=r"[Tt]ype"):
        mm(one, [("a", DOUBLE, (33, 17)), ("b", FLOAT, (17, 20))])


def test_several_operators_of_a_library_and_several_libraries_in_one_session(tmp_path):
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    paths = [
        library(tmp_path / "lib1.so", "own.two", product("mm"), minmax()),
        library(tmp_path / "lib2.so", "own.more", product("mm", 16)),
        library(tmp_path / "lib3.so", "own.mm2", product("mm2", 32)),
    ]
    nodes = [
        ("own.two", "mm", ["a", "b"], ["y"], {}), ("own.more", "mm", ["a", "b"], ["z"], {}),
        ("own.mm2", "mm2", ["a", "b"], ["v"], {}), ("", "Add", ["y", "z"], ["t"], {}),
        ("own.two", "minmax", ["x", "at"], ["least", "scaled"], {}),
    ]  # fmt: skip
    ins = [*SIDES, ("x", INT, (2, 3)), ("at", INT, None)]
    outs = [("t", FLOAT, (33, 20)), ("v", FLOAT, (33, 20)), ("least", INT, ()), ("scaled", DOUBLE, (3, 2))]
    run = session(nodes, (ins, outs), paths)
    a, b = matrices()
    x = np.array([[5, -7, 3], [8, 0, 2]], np.int32)
    for at in (np.int32(10), np.array([10], np.int32)):
        t, v, least, scaled = run.run(None, {"a": a, "b": b, "x": x, "at": np.asarray(at)})
        assert np.array_equal(t, 2 * (a @ b)) and np.array_equal(v, a @ b)
        assert least.shape == () and least == -7 and np.array_equal(scaled, 0.5 * x.reshape(3, 2) + 10)
    with pytest.raises(Exception, match="minmax: the program returned error 3"):
        run.run(None, {"a": a, "b": b, "x": x, "at": np.asarray(np.int32(-1))})
    with pytest.raises(Exception, match="minmax: at: expected shape a number, got 2"):
        run.run(None, {"a": a, "b": b, "x": x, "at": np.zeros(2, np.int32)})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_indices_out_of_range_are_refused(tmp_path, dtype):
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    path = library(tmp_path / "libtake.so", "own.take", take(f"{dtype}_t", dtype))
    kind = np.dtype(dtype)
    nodes, ends = [("own.take", "take", ["i", "table"], ["y"], {})], [("y", 2, (5,))]
    run = session(nodes, ([("i", CODES[dtype].onnx, (5,)), ("table", 2, (7,))], ends), [path])
    table = np.arange(10, 17, dtype=np.uint8)
    assert list(run.run(None, {"i": np.array([6, 0, 1, 5, 2], kind), "table": table})[0]) == [16, 10, 11, 15, 12]
    for wrong in (7, -1 if kind.kind == "i" else np.iinfo(kind).max):
        i = np.array([6, 0, 1, wrong, 2], kind)
        with pytest.raises(Exception, match=r"take: i: an index is not in 0 \.\.\. 6"):
            run.run(None, {"i": i, "table": table})


MEET = """\
#include "meet.h"
#include <stdatomic.h>
#include <time.h>
static atomic_int here;
static void block(void *state, size_t n) {
  void *const *b = state;
  struct timespec now, end;
  timespec_get(&end, TIME_UTC);
  atomic_fetch_add(&here, 1);
  do timespec_get(&now, TIME_UTC);
  while (atomic_load(&here) < 2 && (float)(now.tv_sec - end.tv_sec) < *(const float *)b[0]);
  ((float *)b[1])[n] = (float)atomic_load(&here);
}
int meet(const tir_call *call, void *const *b) {
  atomic_store(&here, 0);
  return call->parallel_for ? call->parallel_for(call->pool, 2, block, (void *)(size_t)b) : 9;
}
"""


def test_blocks_run_at_the_same_time_on_the_sessions_threads(tmp_path):
    """Each block of two waits for the other: for a minute where there are two threads, else not at all."""
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    op = OnnxOperator("meet", "meet", [argument("s", (1,)), argument("y", (2,), "output")])
    head = f"{CALL}int meet(const tir_call *, void *const *);\n"
    path = library(tmp_path / "libmeet.so", "own.meet", (op, {"meet.c": MEET, "meet.h": head}))
    for threads, seconds, want in ((1, 0, [1, 2]), (2, 60, [2, 2])):
        node = ("own.meet", "meet", ["s"], ["y"], {})
        ends = [("s", FLOAT, (1,))], [("y", FLOAT, (2,))]
        run = session([node], ends, [path], intra_op_num_threads=threads)
        assert run.run(None, {"s": np.array([seconds], np.float32)})[0].tolist() == want


PACKED = """\
#include "sum.h"
static int add(void *const *b, const float *w, float more) {
  for (int n = 0; n < 4; ++n) ((float *)b[2])[n] = ((const float *)b[0])[n] + w[n] + more;
  return 0;
}
int sum(const tir_call *call, void *const *b) { return (void)call, add(b, b[1], 1000); }
static void one(void *state, size_t n) {
  void *const *s = state;
  ((float *)s[0])[n] = 2 * ((const float *)s[1])[n];
}
int sum_pack(const tir_call *call, void *const *b, void *packed) {
  void *state[] = {packed, b[1]};
  if (b[0] || b[2] || (size_t)packed % 64 || *(const float *)b[1] < 0) return 5;
  return call->parallel_for(call->pool, 4, one, state);
}
int sum_packed(const tir_call *call, void *const *b, const void *packed) { return (void)call, add(b, packed, 0); }
"""


def test_weights_that_are_constants_are_packed_when_the_session_is_made(tmp_path):
    """Packed, the sum has twice the weights; where they are inputs, it has 1000 more."""
    pytest.importorskip("onnx", reason="onnx is not installed")
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    ends = [argument("x", (4,)), argument("w", (4,), align=64), argument("y", (4,), "output")]
    op = OnnxOperator("sum", "sum", ends, once=("w", "u"))
    names = ["int sum(const tir_call *, void *const *)", "int sum_pack(const tir_call *, void *const *, void *)",
             "int sum_packed(const tir_call *, void *const *, const void *)"]  # fmt: skip
    head = CALL + "".join(f"{n};\n" for n in names) + "#define sum_packed_bytes ((size_t)16)\n"
    path = library(tmp_path / "libsum.so", "own.sum", (op, {"sum.c": PACKED, "sum.h": head}))
    a, b = np.arange(4, dtype=np.float32) + 1, np.arange(4, dtype=np.float32) * 10 + 5
    nodes = [("own.sum", "sum", ["x", "a"], ["t"], {}), ("own.sum", "sum", ["t", "b"], ["v"], {}),
             ("own.sum", "sum", ["v", "c"], ["y"], {})]  # fmt: skip
    values = [("x", FLOAT, (4,)), ("c", FLOAT, (4,))], [("y", FLOAT, (4,))]
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        run = session(nodes, values, [path], {"a": a, "b": b}, graph_optimization_level=level)
        with ThreadPoolExecutor(4) as pool:
            made = pool.map(lambda n: run.run(None, {"x": a + n, "c": b})[0], range(40))
            assert all(np.array_equal(y, 3 * a + 3 * b + n + 1000) for n, y in enumerate(made))
    with pytest.raises(Exception, match="sum: the program returned error 5"):
        session(nodes, values, [path], {"a": -a, "b": b})
    with pytest.raises(Exception, match="sum: w: expected shape 4, got 3"):
        session(nodes, values, [path], {"a": a, "b": b[1:]})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder whose program is in C, as ``build.library`` finds it."""
    (op, files), where = product(), tmp_path / "out"
    where.mkdir()
    for name, text in {**files, "mm_onnxruntime.c": glue("own.mm", [op])}.items():
        (where / name).write_text(text)
    (where / "build.py").write_bytes((build.HERE / "build.py").read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    about = {"library": {"file": "libmm.so", "sources": ["mm.c", "mm.h", "mm_onnxruntime.c"]}}
    (where / "manifest.json").write_text(json.dumps(about))
    return where


def built(place, **env):
    done = subprocess.run(
        [sys.executable, "build.py"], cwd=place, capture_output=True, text=True, env={**os.environ, **env}, check=False
    )
    return done.stdout.strip(), done.stderr


@compiled
def test_a_library_is_made_once_and_kept(place, tmp_path):
    path, _ = built(place)
    assert path == str(place / "libmm.so")
    before = (place / "libmm.so").stat().st_mtime_ns
    assert built(place, PATH="", CC="") == (path, "") and (place / "libmm.so").stat().st_mtime_ns == before
    assert not list(place.glob(".new-*"))


@compiled
def test_a_library_of_another_machine_is_made_anew_in_the_users_cache(place, tmp_path):
    (place / "libmm.so").write_bytes(b"\x7fELF of another machine")
    path, _ = built(place)
    assert path.startswith(str(tmp_path / "cache")) and path.endswith("libmm.so")
    assert built(place, PATH="", CC="")[0] == path
    (place / "mm.c").write_text((place / "mm.c").read_text() + "\n/* changed */\n")
    assert built(place)[0] not in ("", path), "it belongs to the text that it was made of"


@compiled
def test_why_there_is_no_library(place):
    assert "there is no C compiler to make it with" in built(place, PATH="", CC="")[1]
    assert "there is no C compiler" in built(place, CC="no-such-compiler")[1]
    (place / "mm.c").write_text("int mm(void) { return nothing; }\n")
    assert "libmm.so cannot be made" in (said := built(place)[1]) and "nothing" in said


@pytest.fixture
def exported(tmp_path):
    """A product for ONNX Runtime."""
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    work = tir.ops.matmul(m=33, n=20, k=17)
    return work.schedule(target="c").export(tmp_path / "mine", "onnxruntime", name="own::prod")


def selftest(path, *targets):
    done = subprocess.run(
        [sys.executable, "selftest.py", *targets], cwd=path, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_an_exported_folder_tests_itself(exported):
    code, said = selftest(exported)
    assert code == 0 and said.startswith("selftest ok onnxruntime: "), said
    about = json.loads((exported / "manifest.json").read_text())["onnxruntime"]
    assert about == {"library": "libprod.so", "domain": "own.prod", "op": "prod"}
    assert 'options.register_custom_ops_library("libprod.so")' in (exported / "README.md").read_text()
    (exported / "libprod.so").unlink()
    assert selftest(exported)[0] == 1, "a file is missing"


def test_a_changed_kernel_fails_the_selftest(exported):
    stub = "{ (void)call; for (int n = 0; n < 660; ++n) ((float *)buffers[2])[n] = 1; return 0; }"
    text = f'#include "prod.h"\nint prod(const tir_call *call, void *const *buffers) {stub}\n'
    (exported / "prod.c").write_text(text)
    assert "prod.c was changed" in selftest(exported)[1]
    manifest = json.loads((exported / "manifest.json").read_text())
    for name in ("prod.c", "libprod.so"):
        del manifest["files"][name]
    (exported / "manifest.json").write_text(json.dumps(manifest))
    (exported / "libprod.so").unlink()
    code, said = selftest(exported, "onnxruntime")
    assert code == 1 and "elements are wrong" in said


NARROW = ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"]


@compiled
@pytest.mark.parametrize("dtype", NARROW)
def test_the_runner_takes_narrow_floats_as_bits(tmp_path, dtype, monkeypatch):
    """All patterns that are numbers or infinite go through the operator unchanged."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    wide = np.uint16 if "16" in dtype else np.uint8
    every = np.arange(np.iinfo(wide).max + 1, dtype=wide)
    size = every.nbytes
    text = f"""#include "same.h"\n#include <string.h>
int same(const tir_call *call, void *const *b) {{
  (void)call;
  memcpy(b[2], b[0], {size});
  memcpy(b[3], b[1], 4);
  return 0;
}}
"""
    where = tmp_path / "same"
    where.mkdir()
    ends = [
        argument("x", every.shape, dtype=dtype, align=1), argument("s", (), "scalar", dtype),
        argument("y", every.shape, "output", dtype, 1), argument("t", (), "output", "float32"),
    ]  # fmt: skip
    files = {
        "same.c": text, "same.h": f"{CALL}int same(const tir_call *, void *const *);\n",
        "glue.c": glue("own.same", [OnnxOperator("same", "same", ends)]),
    }  # fmt: skip
    about = {"library": "libsame.so", "domain": "own.same", "op": "same"}
    manifest = {"language": "c", "arguments": ends, "files": {}, "onnxruntime": about,
                "library": {"file": "libsame.so", "sources": list(files)}}  # fmt: skip
    for name in ("build.py", "common.py", "door_onnxruntime.py"):
        (where / name).write_bytes((build.HERE / name).read_bytes())
    for name, content in {**files, "manifest.json": json.dumps(manifest)}.items():
        (where / name).write_text(content)
    np.save(where / "every.npy", every)
    code = """
import numpy as np, door_onnxruntime
y, t = door_onnxruntime.Program()(np.load("every.npy"), 0.5)
np.save("y", y), print(t)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=where, capture_output=True, text=True, check=False)
    assert done.stdout == "0.5\n", done.stderr
    got = np.load(where / "y.npy")
    assert got.dtype == (np.float16 if dtype == "float16" else wide)
    got = got.view(wide)
    with np.errstate(invalid="ignore"):
        numbers = ~np.isnan(every.view(numpy_dtype(dtype)).astype(np.float64))
    assert np.array_equal(got[numbers], every[numbers])
    assert np.isnan(got.view(numpy_dtype(dtype)).astype(np.float64)[~numbers]).all()


ZOO = {
    "several outputs": """
        x = tir.placeholder((6, 5), name="x")
        y = tir.compute((6, 5), lambda i, j: x[i, j] + 1, name="y")
        made = y, tir.compute((6,), lambda i: x[i, 0] * 2, name="z")
    """,
    "numbers": """
        x, s, t = tir.placeholder((7,), "float16", name="x"), tir.scalar("s", "float16"), tir.scalar("t", "int64")
        made = tir.compute((7,), lambda i: tir.cast(x[i], "float32") * tir.cast(s, "float32")
                           + tir.cast(t, "float32"), name="y")
    """,
    "a gather": """
        x, i = tir.placeholder((9, 4), "float64", name="x"), tir.placeholder((5,), "int32", name="i")
        made = tir.compute((5, 4), lambda n, k: x[i[n], k], name="y")
    """,
    "bools": """
        x = tir.placeholder((3, 4, 2), "int8", name="x")
        made = tir.compute((3, 4, 2), lambda *n: x[n] > 0, name="y")
    """,
    "a number as result": """
        x = tir.placeholder((8,), "uint32", name="x")
        k = tir.reduce_axis(8)
        made = tir.compute((), lambda: tir.sum(x[k], k), name="y")
    """,
    "bfloat16": """
        x = tir.placeholder((16,), "bfloat16", name="x")
        made = tir.compute((16,), lambda i: x[i] * 2, name="y")
    """,
}


@pytest.mark.parametrize("name", ZOO)
def test_kernels_of_all_sorts_test_themselves(name, tmp_path):
    if not COMPILERS:
        pytest.skip("there is no C compiler")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    there = {"tir": tir}
    exec(textwrap.dedent(ZOO[name]), there)
    path = tir.Schedule(there["made"], "c").export(tmp_path / "k", "onnxruntime")
    code, said = selftest(path, "onnxruntime")
    assert code == 0 and said.startswith("selftest ok onnxruntime"), said
