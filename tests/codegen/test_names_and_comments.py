"""Whatever users call things, the text compiles and means the same."""

import re

import numpy as np
import pytest

import tensorir as tir

pytestmark = pytest.mark.usefixtures("unoptimised")

NAMES = [
    "float",
    "main",
    "a;rm -rf ~",
    "naïve",
    "日本",
    "x" * 10_000,
    "get_global_id",
    "__kernel",
    "1st",
    "a b",
    "int4",
    "kernel",
    "barrier",
    "i",
    "",
    "*/",
    "a\\",
    "??/",
    "a\nb",
    "-1",
    "restrict",
    "threadIdx",
    "blockIdx",
    "INFINITY",
    "NULL",
    "asm",
    "Y_kernel",
    "tir_floordiv_int",
    "convert_float4",
    "vload4",
    "__syncthreads",
    "fmaf",
    "template",
    "co_await",
    "é" * 50,
]
MACROS = """
M_PI M_E_F INFINITY NAN HUGE_VALF MAXFLOAT CHAR_BIT CHAR_MAX SCHAR_MIN UCHAR_MAX SHRT_MAX INT_MAX UINT_MAX LONG_MIN
ULONG_MAX FLT_MAX FLT_EPSILON DBL_MAX HALF_MAX FP_NAN CLK_LOCAL_MEM_FENCE CL_VERSION_1_2 cl_khr_fp64 INT32_MAX
CUDART_VERSION NULL linux unix errno RAND_MAX get_group_id get_local_id fma convert_float blockIdx threadIdx float4
"""


def declared(name, axis="i"):
    X = tir.placeholder((8, 8), name=name)
    k = tir.reduce_axis(8, name=axis)
    return tir.compute((8,), lambda r: tir.sum(X[r, k] * 2, axis=k), name=name, axes=[axis])


@pytest.mark.parametrize("name", [n for n in NAMES if n], ids=lambda n: repr(n[:20]))
def test_names_compile(name):
    pytest.importorskip("pyopencl")
    s = tir.Schedule(declared(name, name.replace(".", "_")))
    s.stage_in(s.program.inputs[0].name, at=s.loops(s.stages()[0])[0], scope="register")
    x = np.arange(64, dtype="float32").reshape(8, 8)
    assert np.array_equal(s.build()(x), 2 * x.sum(1))
    assert s.check()


@pytest.mark.parametrize("name", [n for n in NAMES if n], ids=lambda n: repr(n[:20]))
def test_names_compile_as_cuda(name):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed")
    from tensorir.runtime.cuda import compile_cubin

    assert compile_cubin(tir.Schedule(declared(name), "cuda").source(), "sm_80").data


@pytest.mark.parametrize("name", MACROS.split())
@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_names_of_macros_and_builtins_are_not_used_bare(name, target):
    """A macro would be replaced in the text, a built-in be hidden where the kernel calls it."""
    s = tir.Schedule(declared(name), target)
    s.bind(s.loops(s.stages()[0])[0], "block.x")
    text = re.sub(r"//[^\n]*|#.*", "", s.source())
    kernel = text[text.index("(") :]
    signature = kernel[: kernel.index(")")]
    assert not re.search(rf"\b{name}\b", signature), signature


@pytest.mark.parametrize("name", ["M_PI", "INT_MAX", "get_group_id", "CL_VERSION_1_2", "fma"])
def test_names_of_macros_compile(name):
    pytest.importorskip("pyopencl")
    s = tir.Schedule(declared(name))
    s.bind(s.loops(s.stages()[0])[0], "block.x")
    x = np.arange(64, dtype="float32").reshape(8, 8)
    assert np.array_equal(s.build()(x), 2 * x.sum(1))


@pytest.mark.parametrize("target", ["opencl", "c"])
def test_constants_are_called_like_no_function(target):
    """Constants are global in the text, as functions of the language and kernels are: one name for one of them."""
    if target == "opencl":
        pytest.importorskip("pyopencl")
    x, values = tir.placeholder((8,), name="x"), np.arange(8, dtype="float32")
    given = [tir.constant(values + n, name=name) for n, name in enumerate(["gamma", "step", "Y_kernel", "w-1", "w_1"])]
    y = tir.compute((8,), lambda i: sum((w[i] for w in given), x[i]), name="Y")
    assert np.array_equal(tir.Schedule(y, target).build()(values), 6 * values + 10)


def test_an_empty_name_is_refused():
    with pytest.raises(tir.DeclarationError) as caught:
        declared("")
    assert caught.value.code == "declare.name"


@pytest.mark.parametrize("made", [tir.scalar, tir.dim])
def test_two_scalars_or_dims_of_one_name_are_refused(made):
    a, b, x = made("n"), made("n"), tir.placeholder((8,), name="x")
    y = tir.compute((8,), lambda i: x[i] * tir.cast(a, "float32") + tir.cast(b, "float32"))
    with pytest.raises(tir.DeclarationError, match=r"declare\.name.* n, "):
        tir.Schedule(y)


def test_an_array_that_is_called_as_a_scalar_gets_another_name():
    a, x, values = tir.scalar("n"), tir.placeholder((8,), name="n"), np.arange(8, dtype="float32")
    s = tir.Schedule(tir.compute((8,), lambda i: x[i] * a, name="n"), "c")
    assert s.check()
    assert np.array_equal(s.build()(np.float32(3), values), 3 * values)


def test_a_stage_between_that_is_called_as_a_dim_keeps_its_name():
    n = tir.dim("n", low=1, high=8)
    x = tir.placeholder((n,), name="x")
    between = tir.compute((n,), lambda i: x[i] + 1, name="n")
    s = tir.Schedule(tir.compute((n,), lambda i: between[i] * 2, name="y"), "c")
    assert list(s.index.stages) == ["n", "y"]
    s.compute_at("n", "y", "i")
    assert s.check()
    assert np.array_equal(s.build()(np.arange(5, dtype="float32")), 2 * np.arange(1, 6, dtype="float32"))


@pytest.mark.parametrize("name", ["*/ int x; /*", "a\\\nint y;", "a\r\nint z;", "?" + "?/", "a\\"])
def test_comments_stay_comments(name):
    """The header quotes names: none of them may end it, continue it, or be more than a comment."""
    pytest.importorskip("pyopencl")
    s = tir.Schedule(declared(name))
    text = s.source()
    code = re.sub(r"//[^\n]*", "", text)
    for word in ("int x", "int y", "int z"):
        assert word not in code
    for line in text.splitlines():
        if line.startswith("//"):
            assert not line.endswith("\\")
            assert "??" not in line
            assert line.isascii()
    x = np.ones((8, 8), "float32")
    assert (s.build()(x) == 16).all()


def test_names_are_told_apart():
    A, B = tir.placeholder((4,), name="a b"), tir.placeholder((4,), name="a_b")
    s = tir.Schedule(tir.compute((4,), lambda i: A[i] - B[i], name="a-b"))
    params = re.search(r"void (\w+)\(([^)]*)\)", s.source())[2]
    names = [p.split()[-1].lstrip("*") for p in params.split(",")]
    assert len(set(names)) == 3
    pytest.importorskip("pyopencl")
    a, b = np.arange(4, dtype="float32"), np.ones(4, "float32")
    assert np.array_equal(s.build()(a, b), a - b)
