"""What templates declare by themselves means what the workload declares: found where not, at small cost."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from covering import spread_over
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.api.candidate import Refused, prepare
from tensorir.api.workload import Template
from tensorir.automatic.rules.product_view import ProductView
from tensorir.check import definition
from tensorir.check.definition import TERMS_OF_COMPARISON, Samples, argument_pools, differs, differs_as_class, key_of
from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Compute, Tensor
from tensorir.interp.numbers import Field, Numbers
from tensorir.interp.reference import arguments_of, evaluate
from tensorir.ir.structure import identical
from tensorir.ir.tree import Var
from tensorir.ir.visit import Rewriter

WORKS = {
    "matmul": lambda o: o.matmul(m=21, n=19, k=17, bias=True, act="relu"),
    "matmul_f16": lambda o: o.matmul(m=64, n=64, k=32, dtype="float16"),
    "matmul_int8": lambda o: o.matmul(m=6, n=33, k=24, dtype="int8", tb=True),
    "batched": lambda o: o.matmul(m=20, n=18, k=9, batch=3),
    "grouped_matmul": lambda o: o.grouped_matmul(m=64, n=32, k=16, groups=3, dtype="float16"),
    "conv": lambda o: o.conv2d(n=2, c=5, h=9, w=8, k=19, r=3, s=3, pad=1, bias=True),
    "strided": lambda o: o.conv2d(n=1, c=4, h=13, w=11, k=17, r=3, s=3, pad=2, stride=2, dilation=2),
    "nhwc_f16": lambda o: o.conv2d(n=1, c=16, h=8, w=8, k=16, r=3, s=3, pad=1, layout="NHWC", dtype="float16"),
    "pixels": lambda o: o.conv2d(n=1, c=8, h=7, w=7, k=18, r=1, s=1),
    "depthwise": lambda o: o.conv2d(n=1, c=18, h=9, w=9, k=18, r=3, s=3, pad=1, groups=18),
    "in_groups": lambda o: o.conv2d(n=1, c=8, h=7, w=7, k=8, r=3, s=3, pad=1, groups=2),
    "dgrad": lambda o: o.conv2d_backward_data(
        n=1, c=16, h=8, w=8, k=16, r=3, s=3, pad=1, layout="NHWC", dtype="float16"
    ),
    "wgrad": lambda o: o.conv2d_backward_weight(
        n=2, c=16, h=6, w=6, k=16, r=3, s=3, pad=1, layout="NHWC", dtype="float16"
    ),
}
TARGETS = ("opencl", "opencl -kind=gpu", "cuda -arch=sm_80", "cuda -arch=sm_90a")


def every_point(shape):
    return np.stack([i.reshape(-1) for i in np.indices(shape)], axis=1) if shape else np.zeros((1, 0), np.int64)


def redeclared(work, most=2):
    """Declarations of the templates' own: (template, outputs), some of each."""
    for target in TARGETS:
        for name, template in work.templates.items():
            try:
                space = template.space_for(tir.Target.parse(target))
            except tir.TensorIRError as e:
                assert e.code in ("template.target", "space.empty")
                continue
            seen = set()
            for config in spread_over(space, 3):
                try:
                    s = work.schedule(config, name, target)
                except tir.TensorIRError as e:
                    assert e.code != "template.definition"
                    continue
                assert s.definition == work.outputs
                if not identical(s.outputs, work.outputs) and len(seen) < most and key_of(s.outputs) not in seen:
                    seen.add(key_of(s.outputs))
                    yield name, s.outputs


# --- the evaluation at single elements


@pytest.mark.parametrize("numbers", [Field(), Numbers()], ids=["field", "floats"])
@pytest.mark.parametrize("name", ["matmul", "matmul_int8", "grouped_matmul", "conv", "in_groups"])
def test_samples_are_what_the_reference_gives(name, numbers):
    outputs = WORKS[name](tir.ops).outputs
    pools = argument_pools(outputs, numbers, 3)
    lazy = Samples(outputs, pools, numbers)
    arrays = [numbers.inputs(p, a.dtype) if isinstance(a, Var) else lazy.at(a, every_point(a.shape)).reshape(a.shape)
              for a, p in zip(arguments_of(outputs), pools, strict=True)]  # fmt: skip
    for t, want in zip(outputs, evaluate(outputs, arrays, numbers), strict=True):
        assert np.array_equal(lazy.at(t, every_point(t.shape)).reshape(t.shape), want)


def test_few_elements_of_a_large_product_cost_little():
    work = tir.ops.matmul(m=4096, n=4096, k=4096)
    lazy = Samples(work.outputs, argument_pools(work.outputs, Field(), 0), Field())
    points = np.array([[0, 0], [4095, 17], [9, 4095]])
    assert len(set(lazy.at(work.outputs[0], points).tolist())) == 3
    assert lazy.work == 3 * 4096


# --- what templates declare


@pytest.mark.parametrize("name", WORKS)
def test_templates_of_operators_declare_the_definition(name):
    work = WORKS[name](tir.ops)
    for template, outputs in redeclared(work, most=6):
        assert differs(work.outputs, outputs, seed=1) == "", template


class _Mutant(Rewriter):
    """The ``wanted``-th place of an expression changed: a number, a sign, a comparison, a side of a select."""

    def __init__(self, wanted):
        self.wanted, self.at = wanted, -1

    def _here(self):
        self.at += 1
        return self.at == self.wanted

    def on_Const(self, n):
        if self._here() and n.dtype == "index":
            return n.replace(value=n.value + 1)
        return n

    def on_Binary(self, n):
        n = self.children(n)
        other = {"+": "-", "-": "+", "<": "<=", "<=": "<", "max": "min", "*": "+"}.get(n.op)
        return n.replace(op=other) if self._here() and other else n

    def on_Select(self, n):
        n = self.children(n)
        return n.a if self._here() else n


def mutated(outputs, which, place):
    """``outputs`` with a change in one of the computes behind them; None where there is no such place."""
    swap, made = {}, None

    class Moved(Rewriter):
        def on_Load(self, n):
            return n.map(self).replace(buffer=swap.get(n.buffer, n.buffer))

        on_PadLoad = on_Load

    tensors = {}
    for number, op in enumerate(computes_of(outputs)):
        bodies = tuple(Moved()(b) for b in op.bodies)
        if number == which:
            mutant = _Mutant(place)
            bodies = tuple(mutant(b) for b in bodies)
            if mutant.at < place:
                return None
        made = Compute(op.name, op.axes, op.extents, bodies)
        made.outputs = tuple(Tensor(t.name, t.shape, t.dtype, made) for t in op.outputs)
        for old, new in zip(op.outputs, made.outputs, strict=True):
            swap[old.buffer], tensors[old] = new.buffer, new
    return tuple(tensors[t] for t in outputs)


def everywhere_equal(old, new):
    pools = argument_pools(old, Field(), 0)
    sides = Samples(old, pools, Field()), Samples(new, pools, Field())
    return all(np.array_equal(sides[0].at(a, every_point(a.shape)), sides[1].at(b, every_point(b.shape)).reshape(-1))
               for a, b in zip(old, new, strict=True))  # fmt: skip


def images(n, c, h, k, r, groups=1, **how):
    """A convolution, and the same declared apart as products of filters with the pixels under their taps."""
    x, w = tir.placeholder((n, c, h, h + 1), name="x"), tir.placeholder((k, c // groups, r, r), name="w")
    y = tir.nn.conv2d(x, w, groups=groups, **how)
    (_, cg, _, _), kg, (p, q) = w.shape, k // groups, y.shape[2:]
    step, apart, pad = how.get("stride", 1), how.get("dilation", 1), how["pad"]

    def column(g, t, j):
        row, place = j // q % p * step + t // r % r * apart - pad, j % q * step + t % r * apart - pad
        return x.get(j // (p * q), g * cg + t // (r * r), row, place, fill=0)

    columns = tir.compute((groups, cg * r * r, n * p * q), column, name="columns")
    taps = tir.compute((groups, kg, cg * r * r), lambda g, i, t: w[g * kg + i, t // (r * r), t // r % r, t % r], "taps")
    t = tir.reduce_axis(cg * r * r, name="t")
    sums = tir.compute((groups, kg, n * p * q), lambda g, i, j: tir.sum(taps[g, i, t] * columns[g, t, j], axis=t), "s")
    return y, tir.compute(y.shape, lambda b, k, i, j: sums[k // kg, k % kg, (b * p + i) * q + j], name="y")


def filters(n, h, c, k):
    """The gradient of a filter of 3 x 3, and the same declared apart as products over the pixels of all results."""
    x, dy = (tir.placeholder((n, h, h, size), "float16", name=name) for size, name in ((c, "x"), (k, "dy")))
    dw = tir.nn.conv2d_backward_weight(x, dy, (3, 3), pad=1, layout="NHWC", accumulate="float32")
    t = tir.reduce_axis(n * h * h, name="t")
    grad = tir.compute((n * h * h, k), lambda t, k: dy[t // (h * h), t // h % h, t % h, k], name="grad")

    def column(r, s, t, c):
        return x.get(t // (h * h), t // h % h + (r - 1), t % h + (s - 1), c, fill=0)

    def term(r, s, k, c):
        return tir.cast(grad[t, k], "float32") * tir.cast(columns[r, s, t, c], "float32")

    columns = tir.compute((3, 3, n * h * h, c), column, name="columns")
    sums = tir.compute((3, 3, k, c), lambda r, s, k, c: tir.sum(term(r, s, k, c), axis=t), name="sums")
    return dw, tir.compute(dw.shape, lambda k, r, s, c: sums[r, s, k, c], name="dw")


APART = {
    "conv": lambda: images(n=2, c=5, h=8, k=7, r=3, pad=1),
    "strided": lambda: images(n=1, c=4, h=11, k=5, r=3, pad=2, stride=2, dilation=2),
    "depthwise": lambda: images(n=1, c=6, h=8, k=6, r=3, pad=1, groups=6),
    "in_groups": lambda: images(n=1, c=8, h=7, k=8, r=3, pad=1, groups=2),
    "wgrad": lambda: filters(n=2, h=5, c=8, k=8),
}


@pytest.mark.parametrize("name", APART)
def test_every_change_of_a_declaration_is_found_that_changes_results(name):
    """Padding off by one, a tile too short, a tap or a channel of another place …: all that a full evaluation tells."""
    definition, apart = APART[name]()
    assert not differs((definition,), (apart,))
    told = 0
    for which in range(len(computes_of((apart,)))):
        for place in range(60):
            other = mutated((apart,), which, place)
            if other is None:
                break
            equal = everywhere_equal((definition,), other)
            assert bool(differs((definition,), other)) is not equal, (which, place)
            told += not equal
    assert told > 10


def test_no_view_of_a_convolution_changes_what_is_computed(monkeypatch):
    """Axes exchanged where a rule says its view, and a filter packed by other ones, are the same sums: what a
    view may say is proved, and all else refused.
    """
    work = tir.ops.conv2d(n=1, c=5, h=7, w=8, k=6, r=3, s=3, pad=1)
    said = ProductView.walked
    assert work.schedule(template="cpu_tile_turned").check()

    def exchanged(view, *told):
        return said(replace(view, terms=("c", "s", "r")), *told)

    monkeypatch.setattr(ProductView, "walked", exchanged)
    s = work.schedule(template="cpu_tile_turned")
    assert s.definition == s.outputs == work.outputs and s.check()
    monkeypatch.setattr(ProductView, "walked", lambda view, *told: said(replace(view, terms=("c", "r")), *told))
    with pytest.raises(tir.ScheduleError) as e:
        work.schedule(template="cpu_tile_turned")
    assert e.value.code == "reindex.writes"


# --- what is compared, and how often


def product(n=16, flip=False):
    A, B = tir.placeholder((n, n), name="A"), tir.placeholder((n, n), name="B")
    return declared(A, B, n), A, B


def declared(A, B, n, change=lambda j, n: j, name="C"):
    k = tir.reduce_axis(n, name="k")
    return tir.compute((n, n), lambda i, j: tir.sum(A[i, k] * B[k, change(j, n)], axis=k), name=name)


def sly(n=16):
    C, A, B = product(n)
    other = declared(A, B, n, lambda j, n: n - 1 - j)
    return tir.Workload("sly", C, {"default": (lambda s, c: tir.Schedule(other, s.target), tir.Space(tile=[1, 2]))})


def test_another_computation_is_refused_wherever_it_is_asked_for():
    work = sly()
    for ask in (work.schedule, lambda: work.schedule({"tile": 2}), lambda: work.schedule().build()):
        with pytest.raises(tir.ScheduleError) as e:
            ask()
        assert e.value.code == "template.definition"
    with pytest.raises(Refused) as r:
        prepare(work, "default", {"tile": 1}, tir.Target.parse("opencl"))
    assert r.value.outcome.status == "illegal_schedule" and r.value.outcome.told["code"] == "template.definition"


def test_templates_of_an_operator_schedule_another_definition_or_are_refused():
    x, w = tir.placeholder((1, 8, 12, 12), name="x"), tir.placeholder((8, 8, 3, 3), name="w")
    y = tir.nn.conv2d(x, w, pad=1)
    D = tir.compute(y.shape, lambda n, k, p, q: y[n, k, p, q] * 2, name="twice")
    templates = tir.ops.conv2d(n=1, c=8, h=12, w=12, k=8, r=3, s=3, pad=1).templates
    work = tir.Workload("mine", D, templates=templates)
    s = work.schedule(template="cpu_tile_turned")
    assert s.outputs == s.definition == (D,) and s.check()
    s = work.schedule(template="cpu_winograd")
    assert not identical(s.outputs, s.definition) and s.definition == (D,) and s.check()
    mirrored = tir.nn.conv2d_backward_data(x, w, (12, 12), pad=1, name="y")
    with pytest.raises(tir.ScheduleError) as e:
        tir.Workload("mine", mirrored, templates=templates).schedule(template="cpu_winograd")
    assert e.value.code == "winograd.convolution"


@pytest.mark.parametrize("name", ["cpu_tile_column", "cpu_tile_strip"])
def test_templates_of_matmul_schedule_what_is_declared(name):
    """They declare nothing, so another product's definition is what they compute."""
    k = tir.reduce_axis(32, name="k")
    A, B = tir.placeholder((32, 32), name="a"), tir.placeholder((32, 32), name="b")
    D = tir.compute((32, 32), lambda i, j: tir.sum(tir.exp(A[i, k]) * B[k, j], axis=k), name="c")
    s = tir.Workload("mine", D, templates=tir.ops.matmul(m=32, n=32, k=32).templates).schedule(template=name)
    assert s.outputs == s.definition == (D,) and s.check()


@pytest.mark.parametrize(("shape", "dtype"), [((8, 4), "float32"), ((4, 8), "int32"), ((32,), "float32")])
def test_other_arguments_or_results_are_refused(shape, dtype):
    A = tir.placeholder((4, 8), name="A")
    C = tir.compute((4, 8), lambda i, j: A[i, j] * 2, name="C")
    B = tir.placeholder(shape, dtype, name="A")
    other = tir.compute(shape, lambda *i: B[i] * 2, name="C")
    assert "arguments" in differs((C,), (other,))


def test_axes_of_extent_1_are_no_difference():
    A = tir.placeholder((1, 4, 8), name="A")
    C = tir.compute((1, 4, 8), lambda b, i, j: A[b, i, j] * 2, name="C")
    flat = tir.compute((4, 1, 8), lambda i, b, j: 2 * A[b, i, j], name="C")
    turned = tir.compute((4, 1, 8), lambda i, b, j: 2 * A[b, i, 7 - j], name="C")
    assert differs((C,), (flat,)) == "" and differs((C,), (turned,))


def test_functions_that_the_field_does_not_see_through_are_compared_in_doubles():
    A = tir.placeholder((8,), "float64", name="A")  # e in float32 is another number
    C = tir.compute((8,), lambda i: tir.exp(A[i] + 1), name="C")
    same = tir.compute((8,), lambda i: tir.exp(A[i]) * math.e, name="C")
    near = tir.compute((8,), lambda i: tir.exp(A[i]) * 2.71, name="C")
    assert differs((C,), (same,)) == "" and differs((C,), (near,))
    assert differs((C,), (near,), most=1e-2) == "" and differs((C,), (near,), most=1e-4)


def test_sums_of_logarithms_are_compared_where_they_are_numbers():
    A, k = tir.placeholder((4, 32), name="A"), tir.reduce_axis(32)
    C, other = (tir.compute((4,), lambda i, f=f: tir.sum(f * tir.log(A[i, k]), axis=k), name="C") for f in (1, 2))
    assert differs((C,), (C,)) == "" and differs((C,), (other,))


@pytest.mark.parametrize(("factor", "right"), [(21, True), (21.0001, True), (21.001, False)])
def test_approximate_templates_may_round_as_their_workload_allows(factor, right):
    x = tir.placeholder((40,), name="x")
    y = tir.compute((40,), lambda i: x[i] * 3, name="y")
    other = tir.compute((40,), lambda i: x[i] * (1 / 7) * factor, name="y")
    by_sevenths = Template(lambda s, _: tir.Schedule(other, s.target), tir.Space(), approximate=True)
    assert (differs((y,), (other,)) != "") and (differs((y,), (other,), most=1e-5) == "") is right
    work = tir.Workload("rounded", y, {"sevenths": by_sevenths}, max_error=1e-5)
    if right:
        assert work.schedule().check()
    else:
        with pytest.raises(tir.ScheduleError, match=r"template\.definition"):
            work.schedule()


def test_a_class_is_compared_once(monkeypatch):
    asked = []
    monkeypatch.setattr(definition, "differs", lambda *a, **k: asked.append(a) or "")
    monkeypatch.setattr(definition, "_told", {})
    C, A, B = product()
    made = lambda s, c: tir.Schedule(declared(A, B, 16, name=f"C{c['name']}"), s.target) if c["name"] else None  # noqa: E731
    work = tir.Workload("w", C, {"default": (made, tir.Space(name=[0, 1, 2, 3]))})
    for name in (1, 0, 2, 3, 1):
        work.schedule({"name": name})
    assert len(asked) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.sampled_from(["n", "kx", "half", "sum", "int", "order"]))
def test_keys_tell_apart_what_differs(seed, what):
    def make(**changes):
        p = {"n": 8, "kx": 4, "half": Fraction(1, 2), "sum": True, "int": "float32", "order": False, **changes}
        A, B = tir.placeholder((p["n"], 16), p["int"], name="A"), tir.placeholder((p["n"], 16), p["int"], name="B")
        A, B = (B, A) if p["order"] else (A, B)
        k = tir.reduce_axis(p["kx"], name="k")
        fold = tir.sum if p["sum"] else tir.max
        P = tir.compute(
            (p["n"], 16), lambda i, j: A[i, j] * (2 if p["half"] == 2 else 1) + B[i, j] * 3, name=f"P{seed}"
        )
        return (tir.compute((p["n"],), lambda i: fold(P[i, k], axis=k), name="C"),)

    changed = {"n": 9, "kx": 5, "half": 2, "sum": False, "int": "int32", "order": True}[what]
    assert key_of(make()) == key_of(make())
    assert key_of(make(**{what: changed})) != key_of(make())


def test_keys_of_shared_expressions_are_short():
    A = tir.placeholder((4,), name="A")

    def deep(i):
        x = A[i]
        for _ in range(10):
            x = x * x
        return x

    one, two = (key_of((tir.compute((4,), deep, name="C"),)) for _ in range(2))
    assert one == two and len(one) < 30


def test_the_work_of_a_comparison_is_bounded(monkeypatch):
    spent = []
    real = Samples.at

    def at(self, t, points):
        found = real(self, t, points)
        spent.append(self)
        return found

    monkeypatch.setattr(Samples, "at", at)
    definition, apart = filters(n=64, h=56, c=64, k=64)
    assert differs((definition,), (apart,), seed=5) == ""
    assert TERMS_OF_COMPARISON < sum(x.work for x in set(spent[-2:])) < 3 * TERMS_OF_COMPARISON


# --- check


def test_check_compares_with_the_definition_at_every_level():
    C, A, B = product()
    for level in ("fast", "device", "emulate"):
        s = tir.Schedule(declared(A, B, 16, lambda j, n: (j + 1) % n), "cuda" if level == "emulate" else "opencl")
        assert s.definition == s.outputs
        s.definition = (C,)
        s.split("C.i", [None, 4])
        verdict = s.check(level=level)
        assert not verdict and verdict.problems[0].code == "check.definition"
        assert s.fork().definition == (C,)
        with pytest.raises(tir.CheckError) as caught:
            s.blame()
        assert caught.value.code == "blame.no-step" and "check.definition" in str(caught.value)


def test_check_of_a_template_that_declares_the_same_in_another_way():
    work = tir.ops.conv2d(n=1, c=16, h=16, w=16, k=16, r=3, s=3, pad=1)
    s = work.schedule(template="cpu_winograd")
    assert s.definition == work.outputs and not identical(work.outputs, s.outputs)
    assert s.allowed_error == work.allowed_error("cpu_winograd") is not None
    assert differs_as_class(s.definition, s.outputs, s.allowed_error) == ""
    assert s.check()
