"""What C texts compute at each width of registers: NumPy's results, no warning, nothing that C leaves undefined."""

import sys
from pathlib import Path

import numpy as np
import pytest
import test_integer_operators as integers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import tensorir as tir
from tensorir.interp.reference import evaluate, random_arguments

sys.path.insert(0, str(Path(__file__).parents[1] / "codegen"))
from test_c import COMPILERS, WIDTHS, run, target

UNDEFINED = ("-fsanitize=undefined",)
GCC = COMPILERS[0].values[0]
NEEDS_CLANG = pytest.mark.skipif(COMPILERS[1].marks[0].args[0], reason="no clang")
pytestmark = pytest.mark.skipif(not COMPILERS[0].values or COMPILERS[0].marks[0].args[0], reason="no gcc")


@pytest.fixture
def computed(tmp_path, capfd):
    """What a schedule's text computes; nothing undefined was said."""
    count = 0

    def compute(s, arrays, width=64, compiler=GCC, more=UNDEFINED):
        nonlocal count
        folder = tmp_path / str(count)
        folder.mkdir()
        count += 1
        made = run(s.emitted(target(width)), arrays, folder, compiler, width, ("-O1", *more))
        said = capfd.readouterr().err
        assert "runtime error" not in said, said[:2000]
        return made

    return compute


@pytest.mark.parametrize("dtype", [*integers.TYPES, "bool"])
def test_operators_of_one_type(dtype, computed):
    C, arrays, want, names = integers.declared(dtype, dtype)
    integers.agree(computed(tir.Schedule(C), arrays), want, names, "C")


@pytest.mark.parametrize("types", integers.MIXED, ids=":".join)
def test_operators_of_two_types(types, computed):
    C, arrays, want, names = integers.declared(*types)
    integers.agree(computed(tir.Schedule(C), arrays), want, names, "C")


@pytest.mark.parametrize("dtype", integers.TYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_operators_in_vectors(dtype, width, computed):
    C, arrays, want, names = integers.declared(dtype, dtype)
    integers.agree(computed(integers.in_vectors(C, "opencl"), arrays, width, more=()), want, names, "C")


@NEEDS_CLANG
def test_operators_in_vectors_by_the_other_compiler(computed):
    for dtype in ("int8", "int32", "uint64"):
        C, arrays, want, names = integers.declared(dtype, dtype)
        integers.agree(computed(integers.in_vectors(C, "opencl"), arrays, 32, "clang-19", ()), want, names, "C")


@pytest.mark.parametrize("seed", range(12))
def test_random_expressions(seed, computed):
    C, arrays, want = integers.drawn(seed)
    s = (integers.plain, integers.in_vectors)[seed % 2](C, "opencl")
    integers.agree(
        computed(s, arrays, (64, 32, 16)[seed % 3]), want, [str(n) for n in range(len(want))], f"seed {seed}"
    )


@NEEDS_CLANG
def test_random_expressions_by_the_other_compiler(computed):
    for seed in (1, 2):
        C, arrays, want = integers.drawn(seed)
        made = computed(integers.plain(C, "opencl"), arrays, 16, "clang-19", ())
        integers.agree(made, want, [str(n) for n in range(len(want))], f"seed {seed}")


FUNCTIONS = {
    "relu": (lambda a: tir.maximum(a, 0), lambda a: np.maximum(a, 0)),
    "third": (lambda a: tir.maximum(a / 3, a), lambda a: np.maximum(a / a.dtype.type(3), a)),
    "exp": (tir.exp, np.exp),
    "rsqrt": (lambda a: tir.rsqrt(tir.abs(a) + 1), lambda a: 1 / np.sqrt(np.abs(a) + 1)),
    "pow": (lambda a: tir.pow(tir.abs(a), 1.5), lambda a: np.abs(a) ** a.dtype.type(1.5)),
    "round": (lambda a: tir.round(a / 2), lambda a: np.round(a / 2)),
    "clamp": (lambda a: tir.minimum(tir.maximum(a, -2), 2), lambda a: np.clip(a, -2, 2)),
    "integers": (lambda a: tir.cast(tir.cast(a, "int32"), "float32"), lambda a: a.astype("int32").astype("float32")),
    "doubles": (lambda a: tir.cast(tir.cast(a, "float64") * 3, "float32"), lambda a: (a.astype("f8") * 3).astype("f4")),
    "halves": (lambda a: tir.cast(tir.cast(a * 999, "float16"), "float32"), lambda a: np.float32(np.float16(a * 999))),
    "chosen": (lambda a: tir.where(a > 0, a * 2, -a), lambda a: np.where(a > 0, a * 2, -a)),
}  # fmt: skip


def in_sixteens(*stages):
    s = tir.Schedule(list(stages))
    for stage in s.stages():
        block, _, lane = s.split(s.loops(stage.name)[0], [None, 2, 16])
        s.bind(block, "block.x").vectorize(lane)
    return s


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_in_vectors(width, dtype, computed):
    A = tir.placeholder((64,), dtype, name="A")
    s = in_sixteens(*(tir.compute((64,), lambda i, f=f: f(A[i]), name=n.upper()) for n, (f, _) in FUNCTIONS.items()))
    a = np.random.default_rng(3).integers(-9, 10, 64).astype(dtype)
    made = computed(s, (a,), width, more=())
    for got, (name, (_, numpys)) in zip(made, FUNCTIONS.items(), strict=True):
        assert_allclose(got, numpys(a), rtol=2e-6 if got.dtype == np.float32 else 1e-14, err_msg=name)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_no_number_in_vectors(width, computed):
    A = tir.placeholder((64,), name="A")
    names = ("relu", "clamp", "third")
    s = in_sixteens(*(tir.compute((64,), lambda i, f=FUNCTIONS[n][0]: f(A[i]), name=n.upper()) for n in names))
    a = np.random.default_rng(3).integers(-9, 10, 64).astype("float32")
    a[:4] = np.nan, np.inf, -np.inf, -0.0
    for got, name in zip(computed(s, (a,), width), names, strict=True):
        assert_array_equal(got, FUNCTIONS[name][1](a))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_floats_of_few_bits(dtype, computed):
    """All of them there and back, and rounded as the reference rounds."""
    A, B = tir.placeholder((512,), dtype, name="A"), tir.placeholder((512,), "float32", name="B")
    C = tir.compute((512,), lambda i: (tir.cast(A[i], "float32") * 2, tir.cast(B[i], dtype)), name="C")
    rng = np.random.default_rng(0)
    a, b = random_arguments(C, 1)
    b = (rng.standard_normal(512) * 2.0 ** rng.integers(-30, 20, 512)).astype("float32")
    with np.errstate(all="ignore"):
        want = evaluate(C, (a, b))
    bits = a.view(f"u{a.itemsize}")
    made = computed(tir.Schedule(C), (bits, b))
    assert_array_equal(made[0], want[0])
    assert_array_equal(made[1].view(bits.dtype), np.asarray(want[1]).view(bits.dtype))


@given(
    lanes=st.sampled_from([2, 4, 8, 16]), size=st.integers(3, 40), shift=st.integers(-3, 3), step=st.integers(1, 2),
    width=st.sampled_from(list(WIDTHS)),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_windows_of_padded_rows(lanes, size, shift, step, width, tmp_path_factory):
    """Vectors at any distance from the edges, of which every or every other element is taken."""
    A = tir.placeholder((3, 48), name="A")

    def element(i, j):
        k = step * j + shift
        return tir.where((k >= 0) & (k < 48), A[i, k], 0.0)

    s = tir.Schedule(tir.compute((3, size), element, name="C"))
    outer, lane = s.split("C.j", [None, lanes])
    s.bind("C.i", "block.x").unroll(outer).vectorize(lane)
    a = np.random.default_rng(0).integers(-9, 10, (3, 48)).astype("float32")
    k = step * np.arange(size) + shift
    want = np.where((k >= 0) & (k < 48), a[:, np.clip(k, 0, 47)], 0)
    (made,) = run(s.emitted(target(width)), (a,), tmp_path_factory.mktemp("k"), GCC, width, ("-O1",))
    assert_array_equal(made, want)
