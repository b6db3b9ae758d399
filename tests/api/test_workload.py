"""Workloads: templates, targets, references, titles; and the inputs on which results are exact."""

import copy
import html
import itertools
import math
import re
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import zoo

import tensorir as tir
from tensorir.api import identity
from tensorir.api.candidate import Refused, prepare
from tensorir.api.identity import command_for, compute_digest, distance, most_like
from tensorir.api.tuning import _restricted
from tensorir.api.workload import Origin, Template, Templates, Workload
from tensorir.automatic import plan
from tensorir.errors import Problem
from tensorir.target import Target
from tensorir.tune.inputs import arguments, integer_arrays, integers
from tensorir.tune.template import OneByOne


def elementwise(expression, shape=(8,), dtype="float32", name="C"):
    A = tir.placeholder(shape, dtype, name="A")
    return tir.compute(shape, lambda i: expression(A[i]), name=name)


def two_kinds():
    C = elementwise(lambda a: a + 1)
    space = tir.Space(f=[2, 4], default={"f": 4})
    templates = {
        "gpu": Template(lambda s, c: s.bind("C.i", "thread.x"), space, kinds=("gpu",)),
        "cpu": Template(lambda s, c: s.split("C.i", [None, c["f"]]) and None, space, kinds=("cpu",)),
    }
    return Workload("two", C, templates)


def test_named_templates_alone_are_searched():
    work, target = tir.ops.matmul(m=64, n=64, k=64), Target.parse("c -vector_bytes=32")
    first, second, *_ = _restricted(work, (), (), target)
    assert [*_restricted(work, (), (second,), target)] == [second] != [first]


def test_template_follows_the_target():
    work = two_kinds()
    assert "for C.i.1 in 4" in str(work.schedule())
    assert "thread.x" in str(work.schedule(target="cuda")) and "thread.x" in str(
        work.schedule(target="opencl -kind=gpu")
    )
    assert "for C.i.1 in 2" in str(work.schedule({"f": 2}, template="cpu"))
    with pytest.raises(tir.ScheduleError) as caught:
        work.schedule(template="gpu", target="opencl")
    assert caught.value.code == "template.target" and "cpu" in str(caught.value)
    with pytest.raises(tir.ScheduleError) as caught:
        work.schedule(template="tpu")
    assert caught.value.code == "template.unknown"


def test_templates_that_are_made_late_are_a_mapping_like_others():
    """What is asked for by name is made no sooner than needed; all else is as with a dict."""
    made = []
    one, two, three = (Template(lambda s, c: None, tir.Space(n=[n])) for n in (1, 2, 3))

    def later(_):
        made.append(1)
        return {"b": two, "c": three}

    work = Workload("late", elementwise(lambda a: a + 1), Templates({"a": one}, {"cpu": later}))
    t = work.templates
    assert "a" in t and t["a"] is one and t.get("a") is one and made == []
    before, plain = t.copy(), {"a": one, "b": two, "c": three}
    assert t["b"] is two and made == [1]
    assert "d" not in t and t.get("d") is None and 3 not in t
    with pytest.raises(KeyError):
        t["d"]
    assert t == plain and plain == t and t != {"a": one} and list(t) == list(plain) and len(t) == 3
    assert repr(t).splitlines()[3] == "  c  cpu and gpu  1 configuration" and {**t} == dict(t) == plain and made == [1]
    assert list(t.values()) == [one, two, three] and copy.copy(t) == plain
    t["b"] = three
    del t["a"]
    assert t == {"b": three, "c": three} and before == plain
    other = Workload("late", elementwise(lambda a: a + 1), t)
    del other.templates["b"]
    assert "b" in t


def test_a_late_template_that_takes_no_time_is_made_alone():
    one, two, three = (Template(lambda s, c: None, tir.Space(n=[n])) for n in (1, 2, 3))
    made = []

    def later(_):
        made.append(1)
        return {"b": two, "c": three}

    t = Templates({"a": one}, {"cpu": later}, lambda: {"c": one})
    assert "c" in t and t["c"] is one and made == []
    assert list(t) == ["a", "b", "c"] and t["c"] is one and made == [1], "in its place, and the same one"


def test_a_name_that_begins_with_a_kind_makes_none_of_another():
    def never(_):
        raise AssertionError("the templates for processors are made")

    one = Template(lambda s, c: None, tir.Space())
    t = Templates({}, {"cpu": never, "gpu": lambda _: {"gpu_tile": one}})
    assert t["gpu_tile"] is one and "gpu_tile_warp" not in t
    with pytest.raises(AssertionError):
        t["tile"]


def test_later_templates_are_made_one_by_one_as_far_as_anyone_asks():
    one, two, three = (Template(lambda s, c: None, tir.Space(n=[n])) for n in (1, 2, 3))
    made = []

    def each():
        for named in (("b", two), ("b", one), ("c", three)):
            made.append(named[0])
            yield named

    t = Templates({"a": one}, {"cpu": lambda _: OneByOne(each)})
    work = Workload("late", elementwise(lambda a: a + 1), t)
    assert work.template_for("opencl") == "a" and made == []
    assert t["b"] is two and next(itertools.islice(t, 1, None)) == "b" and made == ["b"]
    assert list(t) == ["a", "b", "c"] and "d" not in t and t["b"] is two, "of equal names the first counts"
    assert work.templates == t and made == ["b", "b", "c"], "a copy makes none again"


def test_threads_that_ask_for_later_templates_lose_none():
    one = Template(lambda s, c: None, tir.Space(n=[1]))

    def each():
        yield from ((f"t{n}", one) for n in range(30))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            t = Templates({"a": one}, {"cpu": lambda _: OneByOne(each)})
            asked = [threading.Thread(target=ask, args=(t,)) for ask in (len, list, len, list)]
            for x in asked:
                x.start()
            for x in asked:
                x.join()
            assert len(list(t)) == 31
    finally:
        sys.setswitchinterval(before)
    t = Templates({"a": one}, {"cpu": lambda _: OneByOne(each)})
    assert [n for n in t if len(t)] == ["a", *(f"t{n}" for n in range(30))], "as far as they were when it began"


def test_what_is_made_one_by_one_is_copied_as_a_dict():
    found = OneByOne(lambda: iter([("a", 1), ("b", 2)]))
    assert found.copy() == copy.deepcopy(found) == {"a": 1, "b": 2} == {} | found and found
    assert not OneByOne(lambda: iter(()))


def test_what_one_by_one_fails_is_tried_again():
    failing = [True]

    def each():
        yield "a", 1
        if failing.pop():
            raise tir.ScheduleError(Problem("automatic.no-rule", "there is none"))
        yield "b", 2

    found = OneByOne(each)
    assert found["a"] == 1
    with pytest.raises(tir.ScheduleError, match="there is none"):
        len(found)
    failing.append(False)
    assert dict(found) == {"a": 1, "b": 2} and repr(found).splitlines()[1:] == ["  a", "  b"]


def test_other_templates_of_rules_are_not_planned_until_they_are_asked_for(monkeypatch):
    planned = []
    start = plan._Claims._starts
    monkeypatch.setattr(plan._Claims, "_starts", lambda self, part: planned.append(part.name) or start(self, part))
    work = tir.ops.conv2d(c=8, h=9, w=9, k=8, pad=1)
    assert work.template_for("cuda") == "gpu_tile_warp" and set(planned) == {"tile_warp"}
    assert work.template_for("opencl -registers=32 -vector_bytes=64 -units=2").startswith("cpu")
    ways = {
        "tile_column",
        "tile_strip",
        "tile_turned",
        "tile_image",
    }  # to walk the sums, of which models tell the fastest
    assert set(planned) == {"tile_warp", "stream"} | ways - {"tile_strip"}, "nor those of other names"
    grouped = tir.ops.conv2d(c=8, h=9, w=9, k=8, pad=1, groups=8)
    planned.clear()
    assert grouped.schedule(target="opencl -registers=16 -vector_bytes=32") and set(planned) == {"tile_registers"}
    assert {t.kinds for t in grouped.templates.values()} == {("cpu",), ("gpu",)} and len(set(planned)) > 1


def test_templates_for_a_target_are_those_that_rules_make_there():
    """Without shared memory for a tile of a product there are other ways, though other GPUs have tiles."""
    small = tir.Target.parse("opencl -kind=gpu -shared_bytes=64 -shared_optin_bytes=64")
    work = tir.ops.matmul(m=64, n=64, k=64)
    assert "gpu_tile" in work.templates
    name = work.template_for(small)
    assert name not in ("gpu_tile", "gpu_tile_warp") and work.schedule(target=small).check()
    assert len(work.templates) == len([*work.templates]) and work.template_for(small) == name, "also when counted"
    assert name not in [*work.templates]
    for other in (work, tir.ops.matmul(m=64, n=64, k=64)):  # and for who has the name from a record
        assert name in other.templates and other.allowed_error(name) is None
        assert other.schedule(template=name, target=small).source() == work.schedule(target=small).source()
    del work.templates["gpu_tile"]
    assert name not in work.templates and "gpu_tile" not in work.templates


def test_a_template_that_rules_do_not_make_on_a_target_is_refused_there():
    small = tir.Target.parse("opencl -shared_bytes=512 -shared_optin_bytes=512 -registers=32 -vector_bytes=64")
    work = tir.ops.conv2d(c=32, k=64, h=14, w=14, pad=1)
    assert work.schedule(template="cpu_tile_column", target=small), "panels packed by a kernel need no such memory"
    with pytest.raises(tir.ScheduleError, match=r"template\.target.*cpu_tile_image"):
        work.schedule(template="cpu_tile_image", target=small)


def test_who_asks_for_a_template_has_no_others_tried(monkeypatch):
    planned = []
    start = plan._Claims._starts
    monkeypatch.setattr(plan._Claims, "_starts", lambda self, part: planned.append(part.name) or start(self, part))
    x, y, k = tir.placeholder((64, 70)), tir.placeholder((70, 80)), tir.reduce_axis(70)
    work = tir.Workload("product", tir.compute((64, 80), lambda i, j: tir.sum(x[i, k] * y[k, j], axis=k)))
    first, *_, last = tir.auto(work.outputs, "cuda -arch=sm_80")
    planned.clear()
    assert work.schedule(template=last, target="cuda -arch=sm_80") and {f"gpu_{n}" for n in planned} <= {first, last}
    planned.clear()
    assert "gpu_none" not in work.templates and len(set(planned)) == 1, "the first, which says that rules schedule it"


@pytest.mark.parametrize("stages", [1, 2])
def test_who_asks_for_a_template_and_a_configuration_has_no_start_lowered(monkeypatch, stages):
    x, y, k = tir.placeholder((64, 70)), tir.placeholder((70, 80)), tir.reduce_axis(70)
    out = tir.compute((64, 80), lambda i, j: tir.sum(x[i, k] * y[k, j], axis=k))
    if stages == 2:
        row = tir.compute((64,), lambda i: tir.exp(out[i, 0]) + out[i, 1])
    work = tir.Workload("product", out if stages == 1 else row)
    template = work.templates["gpu_tile"]
    monkeypatch.setattr(plan, "lowered", None)
    monkeypatch.setattr(plan, "lower", None)
    for target in ("cuda -arch=sm_80", "opencl -kind=gpu"):
        space = template.space_for(tir.Target.parse(target))
        other = next(c for c in map(space.config, range(2)) if c != space.default)
        assert work.schedule(other, "gpu_tile", target).trace
    monkeypatch.undo()
    assert work.schedule(template="gpu_tile", target="cuda -arch=sm_80").check()


def test_templates_of_convolutions_that_no_rule_makes_are_those_among_all():
    work = tir.ops.conv2d(c=64, k=64, h=8, w=8, pad=1, layout="NHWC", dtype="bfloat16")
    alone = {n: work.templates[n] for n in ("gpu_tensor",)}
    assert dict(work.templates) | alone == dict(work.templates)


def test_a_change_before_the_late_templates_are_made_lasts():
    one, two = (Template(lambda s, c: None, tir.Space(n=[n])) for n in (1, 2))
    for change in (lambda t: t.update(b=one), lambda t: t.setdefault("a", one), lambda t: t.pop("b")):
        late, plain = Templates({"a": two}, {"cpu": lambda _: {"b": two}}), {"a": two, "b": two}
        change(late), change(plain)
        assert late == plain and list(late) == list(plain)


def test_loading_a_tuned_operator_makes_no_templates_for_gpus():
    """They are a half of what an operator costs to import, which every process that loads a kernel would pay."""
    script = """
import sys
import numpy
before = set(sys.modules)
import tensorir as tir
for work, here in ((tir.ops.conv2d(), "cpu_tile_column"), (tir.ops.matmul(), "cpu_tile_column")):
    assert here in work.templates, list(work.templates)
    new = set(sys.modules) - before
    assert not [m for m in new if ("gpu" in m or "hopper" in m) and m != "tensorir.gpu_devices"], new
    assert not {"difflib", "tensorir.tune.space", "tensorir.codegen.dialect"} & new, new
for work in (tir.ops.conv2d(), tir.ops.matmul()):
    assert work.templates["gpu_tile"].kinds == ("gpu",)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_configuration_is_checked_against_the_space():
    with pytest.raises(tir.DeclarationError) as caught:
        two_kinds().schedule({"f": 3})
    assert caught.value.code == "space.unknown-value"


def test_configurations_that_constraints_refuse_are_not_scheduled():
    """Wherever they come from: a call, the command line, a log."""
    asked = []
    where = {"divides": lambda c: c["tile"] % c["vector"] == 0, "small": lambda c: c["tile"] * c["vector"] < 64}
    space = tir.Space(tile=[4, 8, 16], vector=[1, 4, 8], where=where)
    work = Workload("w", elementwise(lambda a: a + 1), {"default": (lambda s, c: asked.append(c), space)})
    for config, broken, near in (
        ({"tile": 4, "vector": 8}, "'divides' refuses tile=4, vector=8", "tile=8 | vector=1 | vector=4"),
        ({"tile": 16, "vector": 8}, "'small'", "vector=1 | tile=8"),
    ):
        for ask in (lambda c=config: work.schedule(c), lambda c=config: work.schedule(c, "default", "opencl")):
            with pytest.raises(tir.DeclarationError) as caught:
                ask()
            assert caught.value.code == "space.illegal" and broken in str(caught.value)
            assert caught.value.problems[0].hint in near.split(" | ")
        with pytest.raises(Refused) as refused:
            prepare(work, "default", config, Target.parse("opencl"))
        assert refused.value.outcome.told["code"] == "space.illegal"
    assert not asked
    for row in range(len(space.legal)):
        work.schedule(space.config(row))
    assert len(asked) == len(space.legal) == 5


def test_a_refused_configuration_of_a_large_space_is_told_without_listing_it():
    space = tir.Space(**{f"x{n}": range(16) for n in range(12)}, where={"even": lambda c: c["x0"] % 2 == 0})
    with pytest.raises(tir.DeclarationError) as caught:
        space.accept(dict.fromkeys(space.names, 1))
    assert caught.value.code == "space.illegal" and "'even' refuses x0=1" in str(caught.value)
    assert space._listed is None


def test_the_source_is_for_the_architecture_of_the_schedule():
    work = tir.ops.matmul(m=512, n=512, k=512, dtype="float16")
    s = work.schedule(target="cuda -arch=sm_90a")
    assert s.source("cuda") == s.source() == s.emitted("cuda").text
    assert s.source() in html.unescape(re.sub(r"<[^>]*>", "", s._repr_html_()))


def test_devices_of_one_kind_have_spaces_of_their_own():
    """Their targets are equal; what is expected of them is not."""
    template = Template(lambda s, c: None, lambda t: tir.Space(f=[len(t.name)]))
    target = Target.parse("cuda -arch=sm_90a")
    found = [template.space_for(replace(target, name=name)).default["f"] for name in ("H100", "GH200", "H100")]
    assert found == [4, 5, 4]


def test_a_space_may_depend_on_the_target(monkeypatch):
    monkeypatch.setattr("tensorir.runtime.host.has_avx512", lambda: False)
    C = elementwise(lambda a: a + 1)

    def split(s, c):
        s.split("C.i", [None, c["f"]])

    work = Workload("w", C, {"t": (split, lambda target: tir.Space(f=[4 if target.registers < 32 else 8]))})
    assert "for C.i.1 in 4" in str(work.schedule())
    assert "for C.i.1 in 8" in str(work.schedule(target="opencl -registers=32"))
    assert work.templates["t"].space.default == {"f": 4}
    with pytest.raises(tir.DeclarationError) as caught:
        Workload("w", C, {"t": (split, lambda target: 5)}).schedule()
    assert caught.value.code == "workload.template"


def test_template_may_return_another_schedule_only():
    C = elementwise(lambda a: a + 1)
    work = Workload("w", C, {"t": (lambda s, c: s.fork(), tir.Space())})
    assert "C.i" in str(work.schedule())
    with pytest.raises(tir.ScheduleError) as caught:
        Workload("w", C, {"t": (lambda s, c: 5, tir.Space())}).schedule()
    assert caught.value.code == "template.result"


@pytest.mark.parametrize(
    "build",
    [
        lambda C: Workload("", C, {"t": (print, tir.Space())}),
        lambda C: Workload("w", C, {}),
        lambda C: Workload("w", C, {"t": print}),
        lambda C: Workload("w", C, {"t": (print, 5)}),
        lambda C: Workload("w", tir.placeholder((2,)), {"t": (print, tir.Space())}),
    ],
)
def test_wrong_declarations_are_refused(build):
    with pytest.raises(tir.DeclarationError):
        build(elementwise(lambda a: a))


def test_reference_inputs_and_flops():
    work = zoo.product(24)
    a, b = work.random_inputs(seed=3)
    assert a.shape == (24, 24) and a.dtype == np.float32 and not np.array_equal(a, b)
    assert np.array_equal(a, work.random_inputs(seed=3)[0]) and not np.array_equal(a, work.random_inputs(seed=4)[0])
    assert np.allclose(work.reference(a, b), a @ b, atol=1e-5)
    assert work.flops == 2 * 24**3 and [t.name for t in work.inputs] == ["A", "B"]
    with pytest.raises(tir.DeclarationError):
        work.reference(a)


def test_reference_of_the_user_and_several_outputs():
    A = tir.placeholder((4,), name="A")
    both = tir.compute((4,), lambda i: (A[i] + 1, A[i] * 2), name="both")
    work = Workload("w", both, {"t": (lambda s, c: None, tir.Space())}, reference=lambda a: (a + 1, a * 2), flops=7)
    assert work.flops == 7.0 and [x.tolist() for x in work.reference(np.ones(4, np.float32))] == [[2] * 4, [2] * 4]
    assert len(Workload("w", both, work.templates).reference(np.ones(4, np.float32))) == 2


def test_digest_tells_definitions_apart():
    plus, again = elementwise(lambda a: a + 1), elementwise(lambda a: a + 1)
    digests = {
        compute_digest(Workload("w", C, {"t": (print, tir.Space())}))
        for C in (
            plus, again, elementwise(lambda a: a + 2), elementwise(lambda a: a + 1, shape=(9,)),
            elementwise(lambda a: a + 1, dtype="float16"), tir.compute((2,), lambda i: tir.constant([1.0, 2.0])[i]),
            tir.compute((2,), lambda i: tir.constant([1.0, 3.0])[i]),
        )
    }  # fmt: skip
    assert len(digests) == 6


def test_titles_and_commands():
    params = {"n": 1, "c": 64, "h": 5, "w": 6, "k": 8, "r": 3, "s": 3, "stride": 2, "pad": 0, "bias": True, "act": None}
    work = zoo.product()
    assert work.title == "product n=24" and command_for(work) == "w.tune()"
    work.origin, work.operator = Origin("ops", "conv2d", params), tir.ops.conv2d().operator
    assert command_for(work) == "tensorir tune conv2d 1x64x5x6 8x64x3x3 --stride 2 --bias"
    work.origin = Origin("file", "f", {"n": 3}, "/a b.py")
    assert command_for(work, "show") == "tensorir show '/a b.py:f' --arg n=3"
    work = Workload("conv2d", elementwise(lambda a: a), work.templates, origin=("ops", "conv2d", params))
    assert work.title.startswith("conv2d n=1 c=64 h=5") and "bias=1 act=None" in work.title


def test_nearest_title():
    work = zoo.product(24)
    known = [("product n=512", "ok"), ("product n=32", "ok"), ("other n=24", "ok"), ("product n=25", "crashed")]

    def nearest(some):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                identity, "counted", lambda brief: [(SimpleNamespace(workload=t), {status: 1}) for t, status in some]
            )
            return most_like(work, None)

    assert nearest(known) == "product n=32 (distance 0.28)" and nearest(known[2:]) == ""


def test_distance_of_titles():
    assert distance("op n=7 act=None", "op n=7 act=None") == 0
    assert distance("op n=7 k=1", "op n=15 k=0") == pytest.approx(2 * math.log(2))
    assert distance("op n=7 act=None", "op n=7 act=relu") == distance("op n=7", "op n=7 x=1") == 10


@pytest.mark.parametrize(
    ("mode", "status", "code"),
    [("raise", "illegal_schedule", "template.raised"), ("illegal", "illegal_schedule", "loop")],
)
def test_prepare_maps_refusals(mode, status, code):
    with pytest.raises(Refused) as caught:
        prepare(zoo.own(), "t", {"mode": mode}, Target.parse("opencl"))
    assert caught.value.outcome.status == status and caught.value.outcome.told["code"].startswith(code)


def test_prepare_checks_and_describes():
    made = prepare(zoo.product(), "tile", {"ti": 2, "tj": 4, "out": True}, Target.parse("opencl"))
    assert made.known.check.ok and made.known.check.shapes and made.known.trace[0][0] == "split"
    assert made.known.source_sha256 == made.source.sha256


class TestExactInputs:
    def test_generator_is_fixed_for_ever(self):
        assert integers(5, -3, 3, 7).tolist() == [0, -3, 1, 3, -3]
        wide = integers(100_000, -1000, 1000, 1)
        assert wide.min() == -1000 and wide.max() == 1000 and abs(wide.mean()) < 10

    def test_widest_range_that_stays_exact(self):
        given, exact = arguments(zoo.product(24).outputs)
        high = given[0].high
        assert exact and high**2 * 24 <= 2**24 and high >= 300

    @pytest.mark.parametrize(("dtype", "n"), [("float16", 64), ("int8", 8), ("float64", 100)])
    def test_results_really_are_exact(self, dtype, n):
        A = tir.placeholder((n,), dtype, name="A")
        k = tir.reduce_axis(n, name="k")
        C = tir.compute((1,), lambda i: tir.sum(A[k] * A[k], axis=k), name="C")
        given, exact = arguments((C,))
        assert exact
        (a,) = integer_arrays(given, 1)
        work = Workload("w", C, {"t": (print, tir.Space())})
        assert float(work.reference(a)[0]) == float((a.astype(np.float64) ** 2).sum())

    @pytest.mark.parametrize("expression", [tir.exp, lambda a: a * 0.3, lambda a: a / 3, tir.sqrt])
    def test_rounding_is_noticed(self, expression):
        assert arguments((elementwise(expression),))[1] is False

    def test_indices_stay_in_range(self):
        given, _ = arguments(zoo.rich().outputs)
        by_name = {a.name: a for a in given}
        assert (by_name["index"].low, by_name["index"].high) == (0, 6) and by_name["scale"].scalar
        assert [a.name for a in given] == ["table", "index", "scale"]
