"""reindex: other axes of the same domain, and operands packed under them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.ir.text import show
from tensorir.ir.tree import Load, Select, Stage
from tensorir.ir.visit import find


def conv(n=2, c=3, h=5, w=4, k=5, r=3, pad=1, stride=1):
    x, f = tir.placeholder((n, c, h, w), name="x"), tir.placeholder((k, c, r, r), name="f")
    return tir.nn.conv2d(x, f, pad=pad, stride=stride)


def small(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype("float32")


AS_PRODUCT = "n, k, p, q | c, r, s -> i = (n, p, q), j = k, t = (c, r, s)"


def run(s, *arrays):
    return s.build()(*arrays)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"pad": {"i": 16}},
        {"pad": {"i": 16, "j": 4, "t": 8}},
        {"reads": {"x_pad": "i, t"}},
        {"reads": {"x_pad": "t, i", "f": "t, j"}, "pad": {"i": 16, "j": 4, "t": 8}},
        {"pad": {"c": 8, "t": 5}},
        {"reads": {"x_pad": "t, i", "f": "t, j"}, "pad": {"c": 4}},
        {"writes": "j, i", "reads": {"x_pad": "t, i", "f": "t, j"}, "pad": {"c": 8, "q": 3, "k": 4}},
        {"writes": "i, j"},
        {"writes": "jo = j/4, i, ji = j%4", "name": "sums", "pad": {"i": 16, "j": 4, "t": 8}},
        {"writes": "j, i", "reads": {"x_pad": "t, i", "f": "t, j"}, "pad": {"i": 16, "j": 4, "t": 8}},
    ],
    ids=str,
)
def test_a_convolution_as_a_product(how):
    y = conv()
    s = tir.Schedule(y)
    assert s.reindex("y", AS_PRODUCT, **how) == ("y.i", "y.j", "y.t")
    assert s.check() and s.definition == s.outputs
    arrays = small(2, 3, 5, 4), small(5, 3, 3, 3, seed=1)
    want = run(tir.Schedule(y), *arrays)
    assert np.array_equal(run(s, *arrays), want)
    again = tir.replay(y, s.trace.to_json())
    assert str(again) == str(s) and again.source() == s.source()
    if "x_pad" in how.get("reads", {}):
        s.compute_inline("x_pad")
        assert s.check() and np.array_equal(run(s, *arrays), want)


def test_loops_stay_and_a_copy_lies_in_parts_of_axes():
    """Other stages can be placed as if nothing had been: no loop is scheduled by it."""
    C = tir.nn.matmul(tir.placeholder((7, 9), "float16", name="A"), tir.placeholder((9, 10), "float16", name="B"),
                      accumulate="float32")  # fmt: skip
    s = tir.Schedule(C)
    packed = {"A": "i, k", "B": "jo = j/4, k, ji = j%4"}
    assert s.reindex("C", "i, j | k -> i, j, k", reads=packed, dtype="float32") == ("C.i", "C.j", "C.k")
    copies = [x.body.buffer for x in find(s.program, Stage)[:2]]
    assert [(x.name, [n.value for n in x.shape]) for x in copies] == [("A_packed", [7, 9]), ("B_packed", [3, 9, 4])]
    assert {x.dtype for x in copies} == {"float32"}
    s.stage_out("C", at="root", scope="register")
    s.compute_at("C", "C.out.i")
    a, b = small(7, 9).astype("float16"), small(9, 10, seed=1).astype("float16")
    assert s.check() and np.array_equal(run(s, a, b), a.astype("float32") @ b.astype("float32"))


def test_one_of_several_reads_of_an_array_is_packed():
    x, c = tir.placeholder((7, 9), name="x"), tir.reduce_axis(9, name="c")
    y = tir.compute((7, 7), lambda i, j: tir.sum((x[i, c] - x[j, c]) * (x[i, c] - x[j, c]), axis=c), name="y")
    s, a = tir.Schedule(y), small(7, 9)
    s.reindex("y", "i, j | c -> i, j, c", reads={"x[j,c]": "c, j"})
    assert "(x[i, c] - x_j_c_packed[c, j]) * (x[i, c] - x_j_c_packed[c, j])" in str(s.tree())
    s.compute_inline("x_j_c_packed")
    assert s.check() and np.array_equal(run(s, a), ((a[:, None] - a[None]) ** 2).sum(-1))
    assert tir.replay(y, s.trace, s.target).source() == s.source()


def test_a_read_in_the_place_of_another_one_is_packed():
    x, at = tir.placeholder((7, 9), name="x"), tir.placeholder((7,), "int32", name="at")
    c = tir.reduce_axis(9, name="c")
    s = tir.Schedule(tir.compute((7, 7), lambda i, j: tir.sum(x[at[i], c] * x[j, c], axis=c), name="y"))
    a, rows = small(7, 9), np.array([3, 1, 6, 0, 3, 5, 2], "int32")
    s.reindex("y", "i, j | c -> i, j, c", reads={"at": "i", "x[j, c]": "c, j"})
    s.reindex("y", "i, j | c -> i, j, c", reads={"x[at_packed[i], c]": "c, i"})
    assert "x_at_packed_i_c_packed[c, i] * x_j_c_packed[c, j]" in str(s.tree())
    assert s.check() and np.array_equal(run(s, a, rows), a[rows] @ a.T)


def test_the_stage_keeps_its_domain():
    s = tir.Schedule(conv())
    before = find(s.program, Stage)[-1]
    s.reindex("y", AS_PRODUCT)
    after = find(s.program, Stage)[-1]
    assert [it.var.name for it in after.iters] == [it.var.name for it in before.iters]
    assert after.body is before.body and not after.guards


def test_a_packed_operand_is_named_and_run_ahead_of_time():
    s = tir.Schedule(conv())
    s.reindex("y", AS_PRODUCT, reads={"f": "j, t"}, name="panels")
    assert [x.name for x in s.stages()] == ["x_pad", "panels", "y"]
    s.run_once("panels")
    assert s.check()


def test_what_is_packed_lies_in_its_array():
    """Beyond the end of a padded axis an index may be outside of what is read: there are zeros there."""
    A, k = tir.placeholder((7, 5), name="A"), tir.reduce_axis(5, name="k")
    C = tir.compute((7,), lambda i: tir.sum(A[i, k], axis=k), name="C")
    s = tir.Schedule(C)
    s.reindex("C", "i | k -> i = i, k = k", pad={"i": 8, "k": 8}, reads={"A": "i, k"})
    assert s.check()
    a = small(7, 5)
    assert np.array_equal(run(s, a), a.sum(1))


def test_packed_operands_have_zeros_where_a_padded_axis_ends():
    """An element beyond the end of a part of an axis may lie in what is read: there are zeros there too."""
    x, w = tir.placeholder((35,), name="x"), tir.placeholder((3, 5, 7), name="w")
    k, m = tir.reduce_axis(5, name="k"), tir.reduce_axis(7, name="m")
    C = tir.compute((3,), lambda i: tir.sum(x[k * 7 + m] * w[i, k, m], axis=[k, m]), name="C")
    s = tir.Schedule(C)
    s.reindex("C", "i | k, m -> i, t = (k, m)", pad={"m": 8}, reads={"x": "t", "w": "i, t"})
    assert "x_packed[t] = where(t % 8 < 7, x[" in str(s) and "w_packed[i, t] = where(t % 8 < 7, w[" in str(s)
    assert s.check()


def test_reads_where_a_condition_holds():
    A = tir.placeholder((6, 4), name="A")
    C = tir.compute((6, 6), lambda i, j: A.get(i - 1, j - 1, fill=2), name="C")
    s = tir.Schedule(C)
    s.reindex("C", "i, j -> t = (j, i)", reads={"A": "t"})
    assert s.check()
    want = np.full((6, 6), 2, "float32")
    a = small(6, 4)
    want[1:, 1:5] = a[:5]
    assert np.array_equal(run(s, a), want)


def test_further_steps_after_it():
    y = conv(n=1, c=4, h=9, w=7, k=8)
    s = tir.Schedule(y)
    i, j, _ = s["y"].reindex(AS_PRODUCT, reads={"x_pad": "i, t"})
    s.compute_inline("x_pad")
    out = s.stage_out("y", scope="register", at=i)
    s.split(j, [None, 4])
    s.bind(i, "block.x")
    assert out.name == "y.out" and s.check()
    arrays = small(1, 4, 9, 7), small(8, 4, 3, 3, seed=1)
    assert np.array_equal(run(s, *arrays), run(tir.Schedule(y), *arrays))


def test_outer_loops_stay_where_they_are():
    A = tir.placeholder((3, 4, 5), name="A")
    s = tir.Schedule(tir.compute((3, 4, 5), lambda b, i, j: A[b, i, j] * 2, name="C"))
    s.reindex("C", "i, j -> t = (j, i)")
    assert [str(x) for x in s.loops("C")] == ["C.b", "C.t"]
    s.reindex("C", "b -> b0 = b/2, b1 = b%2")
    assert [str(x) for x in s.loops("C")] == ["C.b0", "C.b1", "C.t"]
    assert s.check() and np.array_equal(run(s, a := small(3, 4, 5)), 2 * a)


def test_a_result_by_its_new_axes_is_a_domain():
    """Tiles are boxes of the new axes; a term beyond the end is no term, by the zeros of what is packed."""
    y = conv(n=2, c=3, h=7, w=8, k=5, stride=2)
    s = tir.Schedule(y)
    s.reindex("y", AS_PRODUCT, {"t": 8}, {"x_pad": "t, i", "f": "t, j"}, name="sums", writes="i, j")
    stage = next(x for x in find(s.program, Stage) if x.name == "y")
    assert [it.var.name for it in stage.iters] == ["i", "j", "t"] and not stage.guards
    assert [show(v) for v in stage.body.index] == ["i", "j"]
    assert not find(stage.body, Select)
    assert [x.name for x in s.stages()][-2:] == ["y", "y.out"]
    block, _ = s.split("y.i", [None, 4])
    s.stage_out("y", at=block, scope="register")
    arrays = small(2, 3, 7, 8), small(5, 3, 3, 3, seed=1)
    assert s.check() and np.array_equal(run(s, *arrays), run(tir.Schedule(y), *arrays))


def test_an_intermediate_in_another_order_is_read_there():
    y = conv(n=2, c=3, h=7, w=8, k=5, stride=2)
    s = tir.Schedule(y)
    view = "n, c, h, w -> n, a = h%2, b = w%2, h = h/2, w = w/2, c"
    s.reindex("x_pad", view, writes="n, a, b, h, w, c", name="image")
    read = next(x for st in find(s.program, Stage) for x in find(st.body, Load) if x.buffer.name == "image")
    assert [show(i) for i in read.index] == ["n", "r % 2", "s % 2", "p + r // 2", "q + s // 2", "c"]
    arrays = small(2, 3, 7, 8), small(5, 3, 3, 3, seed=1)
    want = run(tir.Schedule(y), *arrays)
    assert s.check() and np.array_equal(run(s, *arrays), want)
    s.compute_inline("x_pad")
    assert s.check() and np.array_equal(run(s, *arrays), want)


def test_cells_that_nobody_reads_have_a_condition_where_they_would_read_nothing():
    A = tir.placeholder((1, 40), "float16", name="A")
    P = tir.compute((1, 40), lambda i, j: A[i, j] * 2, name="P")
    s = tir.Schedule(tir.compute((1, 40), lambda i, j: P[i, j] + 1, name="C"))
    for name in "PC":
        s.reindex(name, "i, j -> i, j", {"j": 64}, writes="i, j")
    first, second, _ = (x.body.value for x in find(s.program, Stage))
    assert isinstance(first, Select) and not find(second, Select), "A has 40 columns, and P has 64 now"
    a = small(1, 40).astype("float16")
    assert s.check() and np.array_equal(run(s, a), a * 2 + 1)


def test_taps_are_counted_backwards():
    """The gradient of an image is a convolution with the filter turned by half a turn."""
    dy, w = tir.placeholder((1, 5, 6, 4), name="dy"), tir.placeholder((4, 3, 3, 2), name="w")
    s = tir.Schedule(tir.nn.conv2d_backward_data(dy, w, (5, 6), pad=1, layout="NHWC"))
    s.reindex("dx", "n, h, w, c | k, -r, -s -> n, h, w, c, r, s, k", reads={"w": "r, s, c, k"}, writes="n, h, w, c")
    at = {x.buffer.name: [show(i) for i in x.index] for st in find(s.program, Stage) for x in find(st.body, Load)}
    assert at["dy_spread"] == ["n", "h + r", "w + s", "k"]
    assert at["w"] == ["k", "2 - r", "2 - s", "c"]
    assert s.check()


def test_an_intermediate_in_the_type_of_its_readers():
    A = tir.placeholder((6, 5), "float16", name="A")
    P = tir.compute((6, 5), lambda i, j: A[i, j] + A[i, 0], name="P")
    C = tir.compute((5, 6), lambda i, j: tir.cast(P[j, i], "float32") * 2, name="C")
    s = tir.Schedule(C)
    s.reindex("P", "i, j -> i, j", writes="j, i", dtype="float32")
    assert [x.dtype for st in find(s.program, Stage) for x in find(st.body, Load)][-1] == "float32"
    a = small(6, 5).astype("float16")
    assert s.check() and np.array_equal(run(s, a), run(tir.Schedule(C), a))


def test_several_results_of_one_stage():
    A, k = tir.placeholder((9, 10), name="A"), tir.reduce_axis(10, name="k")
    C = tir.compute((9,), lambda i: tir.argmax(A[i, k], axis=k), name="C")
    s = tir.Schedule(C)
    stage = s.stages()[0].name
    s.reindex(stage, "i | k -> o = i/4, l = i%4, k", writes="l, o")
    a = small(9, 10)
    assert s.check() and np.array_equal(run(s, a), run(tir.Schedule(C), a))


def test_what_has_one_element_is_packed_and_kept_as_that():
    scale, x, k = tir.placeholder((), name="scale"), tir.placeholder((8,), name="x"), tir.reduce_axis(8, name="k")
    total = tir.compute((), lambda: tir.sum(scale[()] * x[k], axis=k), name="total")
    out = tir.compute((4,), lambda i: total[()] + i, name="out")
    for outputs in (total, out):
        s = tir.Schedule(outputs)
        s.reindex("total", "| k -> t = k", pad={"t": 3}, reads={"scale": "", "x": "t"}, writes="")
        assert "scale_packed[] = scale[]\n" in s.tree() and "[] += scale_packed[] * x_packed[t]\n" in s.tree()
        assert s.check() and tir.Schedule(outputs).replay(s.trace).tree() == s.tree()
        got = run(s, np.array(2, "float32"), np.arange(8, dtype="float32"))
        assert np.array_equal(got, 56 + np.arange(4) if outputs is out else 56)
    with pytest.raises(tir.ScheduleError) as e:
        tir.Schedule(out).reindex("out", "i -> t = i", writes="")
    assert e.value.code == "reindex.writes"


@pytest.mark.parametrize("first", ["i, j", "-i, j", "i, -j", "-i, -j"])
@pytest.mark.parametrize("pad", [{}, {"i": 2}, {"j": 2}, {"t": 4}])
@pytest.mark.parametrize("then", [{}, {"t": 7}, {"z": 4}])
def test_axes_that_are_counted_backwards_twice(first, pad, then):
    A = tir.placeholder((5, 3), name="A")
    s = tir.Schedule(tir.compute((5, 3), lambda i, j: A[4 - i, 2 - j] * 2, name="C"))
    s.reindex("C", f"{first} -> t = (i, j)", pad=pad)
    s.reindex("C", "-t -> z = t", pad=then)
    assert s.check(), s.check()
    assert np.array_equal(run(s, small(5, 3)), small(5, 3)[::-1, ::-1] * 2)


@st.composite
def views(draw):
    """A view of axes a, b, c of a domain: parts of them, in any order, grouped in any way, perhaps padded."""
    extents = draw(st.tuples(*[st.integers(1, 9)] * 3))
    pieces = []
    for name in "abc":
        inner = draw(st.sampled_from([1, 1, 2, 3, 4]))
        pieces += [name] if inner == 1 else [f"{name}/{inner}", f"{name}%{inner}"]
    pieces = draw(st.permutations(pieces))
    ends = sorted(draw(st.sets(st.integers(1, len(pieces) - 1)))) if len(pieces) > 1 else []
    groups = [pieces[m:n] for m, n in zip([0, *ends], [*ends, len(pieces)], strict=True)]
    said = ", ".join(f"v{n} = ({', '.join(g)})" if len(g) > 1 else f"v{n} = {g[0]}" for n, g in enumerate(groups))
    names = [f"v{n}" for n in range(len(groups))]
    pad = draw(st.dictionaries(st.sampled_from([*names, *"abc"]), st.integers(1, 5), max_size=3))
    text = f"{', '.join(draw(st.sampled_from([v, f'-{v}'])) for v in 'abc')} -> {said}"
    return extents, text, pad, *(draw(st.booleans()) and draw(packings(names)) for _ in range(2))


@st.composite
def packings(draw, names):
    """How a copy is indexed: new axes, parts of them, or several joined, in any order."""
    dims = []
    for name in names:
        inner = draw(st.sampled_from([1, 1, 2, 3]))
        dims += [name] if inner == 1 else [f"{name}o = {name}/{inner}", f"{name}i = {name}%{inner}"]
    if len(names) > 1 and draw(st.booleans()):
        dims = [d for d in dims if d not in names[:2] and d.split(" ")[0][:-1] not in names[:2]]
        dims.append(f"t = ({names[0]}, {names[1]})")
    return draw(st.permutations(dims))


@settings(max_examples=50, deadline=None)
@given(views())
def test_any_view_of_any_domain(given):
    extents, text, pad, packed, kept = given
    A = tir.placeholder(extents, "int32", name="A")
    C = tir.compute(extents, lambda a, b, c: A[a, b, c] * 3 + a - b + c, name="C")
    s = tir.Schedule(C)
    D = tir.compute((extents[1], extents[0], extents[2]), lambda i, j, k: C[j, i, k] * 2 + k, name="D")
    for out in (C, D):
        s = tir.Schedule(out)
        s.reindex("C", text, pad=pad, reads={"A": ", ".join(packed)} if packed else None,
                  writes=", ".join(kept) if kept else None)  # fmt: skip
        differs = compare(s, Field(), 0)
        assert not differs, f"{differs}\n{s}"


@settings(max_examples=50, deadline=None)
@given(views(), st.sampled_from(["sum", "max", "prod"]), st.sampled_from(["", "-"]))
def test_any_view_of_any_reduction(given, op, backwards):
    extents, text, pad, _, kept = given
    spatial = [n for n in ("v0", "v1", "v2", "v3", "v4", "v5") if f"{n} = " in text]
    A, k = tir.placeholder((*extents, 3), "int32", name="A"), tir.reduce_axis(3, name="k")
    C = tir.compute(extents, lambda a, b, c: getattr(tir, op)(A[a, b, c, k] + a, axis=k), name="C")
    s = tir.Schedule(C)
    text = text.replace("c ->", f"c | {backwards}k -> t = k,")
    s.reindex("C", text, pad={**pad, "t": 4}, reads=None, writes=", ".join(kept or spatial))
    differs = compare(s, Field(), 0)
    assert not differs, f"{differs}\n{s}"


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
@pytest.mark.parametrize(("view", "axes"), [("k = (i, j)", "k"), ("a = i/2, b = (i%2, j)", "a, b"), ("j, i", "j, i")])
def test_a_stage_without_cells_is_walked_in_any_order(shape, view, axes):
    x = tir.placeholder(shape, name="x")
    s = tir.Schedule(tir.compute(shape, lambda i, j: x[i, j] * 2, name="Y"))
    s.reindex("Y", f"i, j -> {view}", reads={"x": axes})
    assert s.check() and s.build()(np.zeros(shape, "float32")).shape == shape
