"""dtypes as numpy.dtype takes them and ints as operator.index does, wherever one is asked for; bits as other types."""

import json

import ml_dtypes
import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.numbers import Field, numpy_dtype
from tensorir.interp.reference import evaluate
from tensorir.ir.dtypes import DTYPES, dtype_of, promote

SPELLED = {
    "float32": ["float32", np.float32, np.dtype("float32"), "f4", "single", np.dtype("<f4")],
    "float64": ["float64", float, "double", "f8", np.double],
    "float16": ["half", np.half, "f2"],
    "bfloat16": ["bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)],
    "float8_e4m3": ["float8_e4m3", "float8_e4m3fn", ml_dtypes.float8_e4m3fn],
    "int64": [int, "int64", "i8", np.longlong],
    "int32": [np.intc, "i4"],
    "uint16": ["uint16", np.uint16, "u2"],
    "uint64": ["uint64", np.uint64, "u8"],
    "bool": [bool, "bool", np.bool_, "?"],
}
PAIRS = [(name, said) for name, ways in SPELLED.items() for said in ways]


class TorchLike:
    """What torch.float16 looks like."""

    __module__ = "torch"

    def __str__(self):
        return "torch.float16"


@pytest.mark.parametrize("name, said", PAIRS, ids=[f"{n}-{s}" for n, s in PAIRS])
def test_every_way_to_say_a_dtype(name, said):
    X = tir.placeholder((4,), said, name="X")
    assert X.dtype == name
    assert tir.scalar("a", said).dtype == name
    assert tir.compute((4,), lambda i: tir.cast(X[i], said), name="C").dtype == name
    assert tir.nn.convert(tir.placeholder((4,), name="A"), said).dtype == name
    assert tir.empty((4,), said).dtype == numpy_dtype(name)


def test_dtypes_of_other_libraries_and_none():
    assert dtype_of(TorchLike()).name == "float16"
    for wrong in (
        None,
        "index",
        ">f4",
        "f4,f4",
        "4f4",
        complex,
        object,
        ml_dtypes.float8_e4m3,
        "float31",
        3,
        [1],
        print,
    ):
        with pytest.raises(tir.DeclarationError, match=r"declare\.dtype"):
            tir.placeholder((4,), wrong)


@pytest.mark.parametrize("said", [np.float16, "half", np.dtype("float16")], ids=str)
def test_operators_take_them(said):
    ops = tir.ops
    small = dict(n=1, c=4, h=6, w=6, k=4, r=3, s=3)
    for work in (ops.matmul(m=8, n=8, k=8, dtype=said), ops.conv2d(**small, dtype=said),
                 ops.conv2d_backward_data(**small, dtype=said), ops.conv2d_backward_weight(**small, dtype=said),
                 ops.grouped_matmul(m=32, n=8, k=8, groups=2, align=16, dtype=said)):  # fmt: skip
        assert work.origin.options["dtype"] == "float16"
        assert {t.dtype for t in work.outputs} == {"float16"}
    a, b = tir.placeholder((8, 8), said, name="a"), tir.placeholder((8, 8), said, name="b")
    assert tir.nn.matmul(a, b, accumulate=np.float32).dtype == "float32"


@pytest.mark.parametrize("said", ["half", "f2", "float16"])
def test_the_command_line_takes_them(said, capsys):
    from tensorir.cli import main

    assert main.run(["show", "matmul", "8x8x8", "--dtype", said, "--target", "cuda"]) == 0
    assert "float16" in capsys.readouterr().out
    assert main.run(["show", "matmul", "8x8x8", "--dtype", f"{said}1"]) == 2
    assert "is not known" in capsys.readouterr().err


def test_promotion_is_numpys():
    plain = [n for n, d in DTYPES.items() if n != "index" and (d.kind != "f" or n in ("float16", "float32", "float64"))]
    for a in plain:
        for b in plain:
            assert promote(a, b) == np.result_type(np.dtype(a), np.dtype(b)).name, (a, b)


@pytest.mark.parametrize("number", [np.int64, np.uint8, np.array], ids=["i8", "u1", "array"])
def test_ints_of_every_kind(number):
    n = number
    A = tir.placeholder((n(16), n(16)), name="A")
    assert A.shape == (16, 16)
    assert all(type(x) is int for x in A.shape)
    k = tir.reduce_axis(n(16), name="k")
    C = tir.compute((n(16),), lambda i: tir.sum(A[i, k], axis=k), name="C")
    s = tir.Schedule(C)
    outer, _ = s.split("C.i", [None, n(4)])
    s.annotate(outer, "unroll", n(2))
    s.partition(s.split("C.k", [n(2), None])[0], [n(1)])
    s.stage_in("A", outer, "register", pad=n(1))
    assert json.loads(s.trace.to_json())
    assert tir.replay(C, s.trace.to_json()).tree() == s.tree()
    small = dict(
        n=n(1), c=n(4), h=n(6), w=n(6), k=n(4), r=n(3), s=n(3), stride=n(1), pad=n(1), dilation=n(1), groups=n(1)
    )
    ops = tir.ops
    for work in (ops.matmul(m=n(16), n=n(8), k=n(8), batch=n(2)), ops.conv2d(**small),
                 ops.conv2d_backward_data(**small), ops.conv2d_backward_weight(**small),
                 ops.grouped_matmul(n(32), n(8), n(8), n(2), n(16))):  # fmt: skip
        assert all(type(v) in (int, bool, str, float, type(None)) for v in work.origin.options.values())
        assert json.dumps(work.origin.options)
    x, w = tir.placeholder((1, 4, 6, 6), name="x"), tir.placeholder((4, 4, 3, 3), name="w")
    assert tir.nn.conv2d(x, w, stride=n(1), pad=n(1)).shape == (1, 4, 6, 6)


def test_numpy_ints_in_indices_are_as_good_as_others():
    A = tir.placeholder((64,), name="A")
    plain = tir.compute((16,), lambda i: A[i * 4 + 1], name="C")
    numpys = tir.compute((16,), lambda i: A[i * np.int64(4) + np.int64(1)], name="C")
    a = np.arange(64, dtype="float32")
    assert np.array_equal(*(evaluate((c,), [a])[0] for c in (plain, numpys)))
    texts = []
    for c in (plain, numpys):
        s = tir.Schedule(c, target="cuda")
        s.bind(s.split("C.i", [None, 8])[1], "thread.x")
        s.stage_in("A", "C.i.0", "shared")
        texts.append(s.source())
    assert texts[0] == texts[1]


# --- bits ------------------------------------------------------------------------------------------------------------

FLOATS = {"float32": "uint32", "float64": "int64", "float16": "uint16", "bfloat16": "int16", "float8_e4m3": "uint8",
          "float8_e5m2": "int8"}  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_bits_of_floats_and_back(name):
    pytest.importorskip("pyopencl")
    kind, whole = numpy_dtype(name), FLOATS[name]
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.standard_normal(90), [0.0, -0.0, 1.0, -2.0, 0.0625]]).astype(kind)
    A = tir.placeholder(x.shape, name, name="A")
    C = tir.compute(
        x.shape, lambda i: (tir.bitcast(A[i], whole), tir.bitcast(tir.bitcast(A[i], whole) ^ 1, name)), name="C"
    )
    bits = x.view(numpy_dtype(whole))
    want = [bits, (bits ^ 1).view(kind)]

    def check(got, who):
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype, who
            assert np.array_equal(g.view(numpy_dtype(whole)), w.view(numpy_dtype(whole))), who

    s = tir.Schedule(C)
    assert s.check()
    check(evaluate(C, [x]), "reference")
    check(s.build()(x), "OpenCL")
    done = emulate(tir.Schedule(C, target="cuda").emitted(), [x])
    assert not done.problems
    check(done.outputs, "CUDA")
    v = tir.Schedule(C)
    v.vectorize(v.split("C.i", [None, 4])[1])
    if DTYPES[name].bits >= 32:
        check(v.build()(x), "vectors")


def test_bits_in_the_field_are_a_function():
    f = Field()
    x = np.arange(1, 500, dtype=np.int64) * 7919
    for old, new in (("float32", "uint32"), ("float64", "uint64"), ("float16", "int16")):
        bits = f.bitcast(x, old, new)
        assert bits.dtype == np.dtype(new)
        assert np.array_equal(bits, f.bitcast(x.copy(), old, new))
        assert len(np.unique(bits)) > 490
    wide = f.bitcast(x, "float64", "uint64")
    assert len(np.unique(f.bitcast(wide, "uint64", "float64"))) == len(x)
    for n in range(64):
        assert 100 < int(((wide >> np.uint64(n)) & np.uint64(1)).sum()) < 400, n


def test_refusals_of_bits():
    X, I, U = (tir.placeholder((8,), t, name=n) for t, n in (("float32", "X"), ("int32", "I"), ("uint64", "U")))
    M = tir.placeholder((8,), "bool", name="M")
    for code, wrong in {
        "declare.bitwise": [
            lambda i: X[i] & 1, lambda i: 1 | X[i], lambda i: X[i] ^ X[i], lambda i: ~X[i], lambda i: X[i] << 1,
            lambda i: I[i] << 1.0, lambda i: M[i] & I[i], lambda i: M[i] | 1, lambda i: (i > 0) ^ I[i],
            lambda i: M[i] & i, lambda i: M[i] << 1, lambda i: U[i] & I[i], lambda i: U[i] >> I[i],
            lambda i: tir.mulhi(X[i], 2),
            lambda i: tir.mulhi(M[i], M[i]), lambda i: True & I[i],
        ],
        "declare.shift": [
            lambda i: I[i] << 32, lambda i: I[i] >> -1, lambda i: i << 32, lambda i: U[i] >> 64,
            lambda i: tir.cast(I[i], "int8") << 8,
        ],
        "declare.bitcast": [
            lambda i: tir.bitcast(X[i], "uint16"), lambda i: tir.bitcast(M[i], "uint8"),
            lambda i: tir.bitcast(I[i], "bool"),
        ],
        "declare.constant-range": [lambda i: tir.cast(I[i], "uint8") & 256, lambda i: U[i] | -1],
    }.items():  # fmt: skip
        for n, f in enumerate(wrong):
            with pytest.raises(tir.DeclarationError) as caught:
                tir.compute((8,), f, name="C")
            assert caught.value.code == code, (code, n)
            assert len(str(caught.value).splitlines()) <= 12
            assert "test_dtypes.py" in str(caught.value)


def test_conditions_stay_logical():
    A = tir.placeholder((6,), "int32", name="A")
    a = np.array([-1, 0, 1, 2, 3, 4], "int32")
    C = tir.compute((6,), lambda i: (
        tir.where((A[i] > 0) & (i < 4), 1, 0), tir.where((A[i] > 0) | ~(i < 4), 1, 0), (A[i] > 0) ^ (i < 4),
        tir.where(A[i], 1, 0), tir.all_(A[i], i > 1),
    ), name="C")  # fmt: skip
    i = np.arange(6)
    want = [((a > 0) & (i < 4)) * 1, ((a > 0) | (i >= 4)) * 1, (a > 0) ^ (i < 4), (a != 0) * 1, (a != 0) & (i > 1)]
    assert tir.Schedule(C).check()
    for got, w in zip(evaluate(C, [a]), want, strict=True):
        assert np.array_equal(got, w)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float32"])
def test_fabs_leaves_what_has_no_sign(dtype):
    A = tir.placeholder((4,), dtype, name="A")
    values = np.array([0, 1, 1, 0] if dtype in ("bool", "uint8") else [-3, 2, -1, 0]).astype(dtype)
    s = tir.Schedule(tir.compute((4,), lambda i: np.fabs(A[i]), name="y"))
    assert np.array_equal(s.build()(values), np.abs(values))
