"""What stands around the work of a kernel: no definition that nothing names, one guard where several stand in a row."""

import re
from dataclasses import replace

import numpy as np
import pytest

import tensorir as tir
from tensorir.codegen.cfamily import emit
from tensorir.codegen.preamble import called
from tensorir.intrin.declare import INTRINSICS, Intrin, meaning
from tensorir.ir.build import binary
from tensorir.ir.tree import If, Loop, Store
from tensorir.ir.visit import Rewriter
from tensorir.lower.pipeline import lower

CPUS = ("c", "opencl -registers=32 -vector_bytes=64")


def definitions(text):
    """The names that a text for CPUs defines in front of its kernels, types and functions."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("//"))
    types = re.findall(r"^typedef [^;{]*?\b(\w+)(?: __attribute__\(\(vector_size[^;]*)?;", code, flags=re.M)
    return {*types, *re.findall(r"^static inline [^\n(=]*?(?:\)\) )?\w+ (tir_\w+)\(", code, flags=re.M)}


def works():
    yield tir.ops.matmul(m=128, n=192, k=100, dtype="int8")
    yield tir.ops.conv2d(n=1, c=16, h=14, w=14, k=32, r=3, s=3, pad=1)
    yield tir.ops.conv2d(n=1, c=32, h=14, w=14, k=32, r=3, s=3, pad=1, groups=32, layout="NHWC")


@pytest.mark.parametrize("target", CPUS)
def test_every_definition_is_used(target):
    for work in works():
        text = work.schedule(target=target).source()
        assert [name for name in definitions(text) if len(re.findall(rf"\b{name}\b", text)) < 2] == []


def test_helpers_of_helpers_stay():
    helpers = {
        "a": "int a() { return b(); }",
        "b": "int b() { return 1; }",
        "c": "int c() { return b(); }",
        "ptx": "int two(); int three();",
    }
    assert list(called(helpers, ["x = a();"])) == ["a", "b", "ptx"]  # of one name for several, nothing is known


class _Nest(Rewriter):
    """Each store behind two guards in a row."""

    def __init__(self, i):
        self.i = i

    def on_Store(self, n: Store):
        return If(binary("<=", 2, self.i), If(binary("<", self.i, 5), n))


@pytest.mark.parametrize("target", ["c", "opencl", "cuda"])
def test_guards_in_a_row_are_one(target):
    A = tir.placeholder((8,), name="A")
    s = tir.Schedule(tir.compute((8,), lambda i: A[i] + 1, name="C"), target)
    module = lower(s.program, s.target)
    (kernel,) = module.kernels
    loop = kernel.body
    assert isinstance(loop, Loop)
    nested = replace(module, kernels=(replace(kernel, body=_Nest(loop.var)(loop)),))
    text = emit(nested, s.target).text
    assert text.count("if (") == 1
    assert re.search(r"if \(2 <= (\w+) && \1 < 5\)", text)


def test_what_the_second_guard_reads_is_not_read_where_the_first_fails():
    A, P = tir.placeholder((8,), name="A"), tir.placeholder((4,), "int32", name="P")
    C = tir.compute((8,), lambda i: tir.where(tir.all_(i < 4, P[tir.minimum(i, 3)] > 0), A[i], 0.0), name="C")
    s = tir.Schedule(C, "c")
    s.split("C.i", [None, 3])
    assert s.check()
    p = np.array([1, 0, 2, 0], "int32")
    a = np.arange(8, dtype="float32")
    assert s.build("c:0")(a, p).tolist() == [0, 0, 2, 0, 0, 0, 0, 0]


def test_a_prelude_is_kept_whichever_of_its_functions_is_called(monkeypatch):
    """A product of tf32 has three; a user's may begin with a helper, or with a comment that looks like a call."""
    text = tir.ops.matmul(m=70, n=40, k=50, precision="tf32").schedule(target="cuda -arch=sm_80").source()
    assert " void tir_mma_m16n8k8_tf32(" in text
    a, b = tir.placeholder((4,), "int8", name="a"), tir.placeholder((4,), "int8", name="b")
    q = tir.reduce_axis(4, name="q")
    c = tir.compute((1,), lambda _: tir.sum(tir.cast(a[q], "int32") * tir.cast(b[q], "int32"), axis=q), name="c")
    own = (
        "// the sum (of four products)\n"
        "static __device__ int my_help(int x, int y, int z) { return __dp4a(x, y, z); }\n"
        "static __device__ void my_two(int *c, const void *a, const void *b) {\n"
        "  *c = my_help(*(const int *)a, *(const int *)b, *c);\n}"
    )
    made = Intrin(
        "my.two", meaning(c, accumulate=True), {"cuda": "my_two({c}, {a}, {b});"}, prelude={"cuda": own},
        align={"a": 4, "b": 4}, needs=("sm_61",), source="CUDA math API: __dp4a",
    )  # fmt: skip
    monkeypatch.setitem(INTRINSICS, made.name, made)
    X, Y, k = (
        *(tir.placeholder((n, 32), "int8", name=x) for n, x in ((8, "X"), (4, "Y"))),
        tir.reduce_axis(32, name="k"),
    )
    term = lambda i, j: tir.cast(X[i, k], "int32") * tir.cast(Y[j, k], "int32")  # noqa: E731
    s = tir.Schedule(tir.compute((8, 4), lambda i, j: tir.sum(term(i, j), axis=k), name="Z"), "cuda -arch=sm_80")
    s.bind("Z.i", "block.x").bind("Z.j", "thread.x").stage_out("Z", at="Z.j", scope="register")
    s.tensorize(s.split("Z.k", [None, 4])[1], "my.two")
    assert own in s.source()
