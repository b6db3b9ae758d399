"""Nodes, promotion, folding, substitution and text."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import tensorir as tir
from tensorir.interp.numbers import numpy_dtype
from tensorir.ir.build import as_expr, binary, cast, const, select
from tensorir.ir.dtypes import DTYPES, dtype_of, from_numpy, promote
from tensorir.ir.node import NODES
from tensorir.ir.text import show, text
from tensorir.ir.tree import Alloc, Binary, Buffer, Const, Load, Loop, Scope, Seq, Store, Var
from tensorir.ir.visit import Rewriter, find, replace, sequence, substitute, uses, walk

NAMES = [n for n in DTYPES if n not in ("index", "bfloat16", "float8_e4m3", "float8_e5m2")]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(NAMES, NAMES)))
def test_promotion_is_numpys(a, b):
    want = np.result_type(np.dtype(a), np.dtype(b)).name
    if want in DTYPES:  # uint16 and uint64 are not there
        assert promote(a, b) == want
    assert promote(a, b) == promote(b, a)


@pytest.mark.parametrize("other", ["bfloat16", "float32", "float64", "bool"])
def test_promotion_of_bfloat16(other):
    want = np.result_type(ml_dtypes.bfloat16, np.dtype(other if other != "bfloat16" else ml_dtypes.bfloat16)).name
    assert promote("bfloat16", other) == want


@pytest.mark.parametrize("name", ["float8_e4m3", "float8_e5m2"])
def test_promotion_of_8_bit_floats(name):
    """As ml_dtypes has it; what that refuses is a float of 32 or 64 bits."""
    kind = numpy_dtype(name)
    for other in [n for n in DTYPES if n != "index"]:
        made = promote(name, other)
        assert made == promote(other, name)
        try:
            assert made == from_numpy(np.result_type(kind, numpy_dtype(other)).name), other
        except TypeError:
            assert made in ("float32", "float64"), other


def test_two_formats_are_called_e4m3():
    """The one without infinities is meant, whatever NumPy calls it; the other is no type of kernels."""
    for given in ("float8_e4m3", "float8_e4m3fn", ml_dtypes.float8_e4m3fn, np.dtype(ml_dtypes.float8_e4m3fn)):
        assert dtype_of(given).name == "float8_e4m3"
    with pytest.raises(tir.DeclarationError) as e:
        tir.placeholder((2,), ml_dtypes.float8_e4m3)
    assert e.value.code == "declare.dtype"
    with pytest.raises(tir.DeclarationError):
        tir.constant(np.ones(2, ml_dtypes.float8_e4m3))
    assert numpy_dtype("float8_e4m3") == ml_dtypes.float8_e4m3fn


def test_plain_integers_take_the_type_that_they_meet():
    x = Var("x", "int8")
    assert (x + 1).dtype == "int8"
    assert (1 + Var("y", "float16")).dtype == "float16"
    assert (Var("i", "index") + 1).dtype == "index"
    assert (Var("i", "index") / 2).dtype == "float32"


def test_folding_never_drops_a_nan():
    x = Var("x", "float32")
    assert isinstance(x * 0, Binary)
    assert isinstance(Var("i", "index") * 0, Const)
    assert show(Var("i", "index") * 1 + 0) == "i"
    assert select(True, x, 1) is x
    assert cast(const(3), "float32").dtype == "float32"
    assert as_expr(2.5).dtype == "float32"


def test_every_child_is_walked():
    for name, kind in NODES.items():
        assert kind.__name__ == name
        assert {n for n, _ in kind.CHILDREN} <= set(kind.FIELDS)


def test_rewriting_keeps_what_does_not_change():
    A = Buffer("A", (const(8),), "float32", Scope.GLOBAL)
    i, j = Var("i", "index"), Var("j", "index")
    tree = Loop(i, const(8), Store(A, (i,), Load(A, (i,), "float32") + 1))
    assert substitute(tree, {j: const(0)}) is tree
    assert substitute(tree.body, {i: j}) is not tree.body
    after = tree.body.replace(value=const(2.0))
    assert replace(Seq((tree, after)), {after: None}) is tree
    assert [type(n).__name__ for n in walk(tree)][:3] == ["Loop", "Const", "Store"]
    assert len(find(tree, Load)) == 1
    assert sequence([None, tree]) is tree
    assert text(tree) == "for i in 8:\n  A[i] = A[i] + 1.0"


def test_hundreds_of_nested_arrays_are_rewritten():
    """Each value of a long chain in registers is an array of its own, around all later ones."""
    buffers = [Buffer(f"b{k}", (as_expr(4),), "float32", Scope.REGISTER) for k in range(1500)]
    body = sequence([Store(b, (as_expr(0),), const(1.0, "float32")) for b in buffers])
    for b in buffers:
        body = Alloc(b, body)

    class Twos(Rewriter):
        def on_Store(self, n):
            return n.replace(value=const(2.0, "float32"))

    class Renamed(Twos):
        def on_Alloc(self, n):
            return self.within(n, lambda a, inner: Alloc(a.buffer.replace(name="c"), inner))

    for rewriter, names in ((Twos, {b.name for b in buffers}), (Renamed, {"c"})):
        made = rewriter()(body)
        assert {a.buffer.name for a in find(made, Alloc)} == names and len(find(made, Alloc)) == 1500
        assert {s.value.value for s in find(made, Store)} == {2.0}


def test_what_occurs_under_a_node_is_what_a_walk_finds():
    root = tir.ops.matmul(m=5, n=7, k=3, bias=True, act="relu").schedule(target="opencl").program.body
    names = {v for n in walk(root) for v in find(n, Var)}
    assert len(names) > 8 and len({type(n) for n in walk(root)}) > 8
    for n in walk(root):
        inside = list(walk(n))
        assert {k for k in NODES.values() if n.holds & k.BIT} == {type(x) for x in inside}
        assert [v for v in names if uses(n, {v})] == [v for v in names if any(x is v for x in inside)]


def test_another_variable_of_the_same_name_is_not_used():
    i, other = Var("i", "index"), Var("i", "index")
    assert uses(i + 1, {i}) and not uses(i + 1, {other})
    assert substitute(i + 1, {other: const(0)}).a is i


def test_a_handler_for_no_node_is_an_error():
    with pytest.raises(TypeError, match="there is no node"):
        type("Wrong", (Rewriter,), {"on_Nothing": lambda self, n: n})


def test_symbols_have_no_truth_and_no_length():
    x = Var("x", "index")
    with pytest.raises(tir.DeclarationError):
        bool(x < 3)
    with pytest.raises(TypeError):
        list(x)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda i, j: (i + j) * 2, "(i + j) * 2"),
        (lambda i, j: i - (j - 1), "i - (j - 1)"),
        (lambda i, j: i // 2 % 3, "i // 2 % 3"),
        (lambda i, j: binary("min", i, j) + 1, "min(i, j) + 1"),
        (lambda i, j: -(i + j), "-(i + j)"),
        (lambda i, j: (i < j) & (j <= 3) | (i < 1), "i < j and j <= 3 or i < 1"),
        (lambda i, j: ~(i < j), "not (i < j)"),
    ],
)
def test_text_has_the_parentheses_it_needs(make, shown):
    assert show(make(Var("i", "index"), Var("j", "index"))) == shown


def test_a_field_that_a_node_lacks_is_not_replaced():
    loop = Loop(Var("i", "index"), const(4), Seq(()))
    with pytest.raises(TypeError, match="Loop has no field depth"):
        loop.replace(depth=2)
