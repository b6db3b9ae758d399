"""What a schedule says of its own time."""

import math
import re

import pytest

import tensorir as tir

TARGET = "opencl -registers=32 -vector_bytes=64 -units=16"


def placeholder(*shape, name="x", dtype="float32"):
    return tir.placeholder(shape, dtype, name=name)


def product(m, n, k):
    return tir.nn.matmul(placeholder(m, k, name="a"), placeholder(k, n, name="b"), name="c")


@pytest.mark.parametrize(("made", "limit"), [
    (lambda: product(512, 512, 512), "multiply-adds"),
    (lambda: tir.compute((4096, 4096), lambda i, j: X[i, j] + 1.0, name="y"), "memory"),
    (lambda: tir.compute((512, 512), lambda i, j: tir.exp(tir.exp(tir.exp(X[i, j]))), name="y"), "arithmetic"),
    (lambda: tir.compute((8,), lambda i: X[0, i] + 1.0, name="y"), "launch"),
], ids=["product", "map", "functions", "few"])  # fmt: skip
def test_the_limit_that_binds(made, limit):
    e = tir.auto_schedule(made(), TARGET).expected
    assert (e.limit, e.notes, e.kernels) == (limit, (), 1) and 0 < e.seconds < 0.1
    assert str(e).splitlines() == [
        f"expected {e.seconds * 1e6:.3g} us in 1 kernel, bound by {limit} (modelled, not measured)"
    ]


X = placeholder(4096, 4096, name="X")


def taken(s, note):
    """A schedule after the step that a note names."""
    other, (step, _, old) = s.fork(), note.partition("; ")[2].partition(" in place of ")
    if old:
        at = [str(x) for x in s.trace].index(old)
        later, other = s.trace[at + 1 :], s.at(at)
        exec("\n".join([step, *map(str, later)]), {"s": other})
    elif step.startswith("tir.fusions"):
        first, second = re.match(r"tir.fusions\(outputs\) has (\S+) and (\S+) in one kernel", step).groups()
        rows = tir.fusions(s.definition, s.target)
        other = next(r for r in rows if (r.first, r.second) == (first, second)).schedule()
    else:
        exec(step, {"s": other})
    return other


def rows_sum(shape, name="y"):
    x, k = placeholder(*shape), tir.reduce_axis(shape[1], name="k")
    return tir.compute(shape[:1], lambda i: tir.sum(x[i, k], axis=k), name=name)


def guarded():
    """Vectors of 1001 columns with a choice in them, which may not be computed beyond the last column."""
    x = placeholder(64, 1001)
    s = tir.Schedule(tir.compute((64, 1001), lambda i, j: tir.where(x[i, j] > 0, tir.exp(x[i, j]), 0.0), name="y"), ONE)
    s.vectorize(s.split("y.j", [None, 16])[1])
    return s


def chain_of_two():
    x = placeholder(64, 64)
    z = tir.compute((64, 64), lambda i, j: x[i, j] * 2.0, name="z")
    return tir.compute((64, 64), lambda i, j: z[i, j] + 1.0, name="y")


def counted_and_added():
    """A map and a scan of it, which the automatic schedule leaves two kernels."""
    x = tir.placeholder((7,), "int32", name="x")
    z = tir.compute((7,), lambda i: tir.cast(x[i], "float32"), name="z")
    return tir.scan(z, name="y")


ONE = TARGET.replace("units=16", "units=1")


@pytest.mark.parametrize(("made", "fact", "step"), [
    (lambda: tir.Schedule(product(256, 256, 256), TARGET), "c: 1 block for 16 cores", "s.share_out('c.i')"),
    (lambda: tir.Schedule(product(64, 256, 64), ONE), "c: computed cell by cell",
     "s.register_tile('c.j', sizes=[16], lanes=16)"),
    (lambda: tir.Schedule(product(256, 256, 256), "cuda"), "c: 1 block for 108 cores", "s.share_out('c.i')"),
    (lambda: tir.Schedule(rows_sum((1, 1 << 20)), TARGET), "y: 1 block for 16 cores",
     "s.split('y.k', [16, None]); s.rfactor('y', 'y.k.0'); s.share_out('y.rf.k.0')"),
    (guarded, "y: loop y.j.1 is not in vectors: one side of a choice",
     "s.split('y.j', [None, 16], tail='shift') in place of s.split('y.j', [None, 16])"),
    (lambda: tir.Schedule(chain_of_two(), ONE), "2 kernels with", "s.compute_inline('z')"),
    (lambda: tir.auto_schedule(counted_and_added(), TARGET), "2 kernels with",
     "tir.fusions(outputs) has z and y in one kernel, by fuse_with"),
    (lambda: tir.auto_schedule(counted_and_added(), "cuda -arch=sm_90a"), "2 kernels with",
     "tir.fusions(outputs) has z and y in one kernel, by fuse_with"),
], ids=["blocks", "vectors", "gpu", "parts", "tail", "inline", "fused", "fused-gpu"])  # fmt: skip
def test_the_step_that_a_note_names_can_be_taken_and_ends_it(made, fact, step):
    s = made()
    e = s.expected
    assert len(e.notes) == len(e.facts)
    note = next(n for n in e.notes if n.startswith(fact))
    assert note.endswith(f"; {step}"), note
    other = taken(s, note)
    assert other.expected.seconds < e.seconds
    assert not [n for n in other.expected.facts if n.startswith(fact)]
    assert other.check()


def test_sums_that_wait_for_each_other():
    x, k = placeholder(64, 1 << 16), tir.reduce_axis(1 << 16, name="k")
    s = tir.Schedule(tir.compute((64,), lambda i: tir.sum(x[i, k], axis=k), name="y"), TARGET)
    s.share_out("y.i")
    assert s.expected.limit == "dependent sums"


def test_loops_that_stayed_scalar_have_their_reason():
    x = placeholder(1 << 16, dtype="int64")
    s = tir.auto_schedule(tir.compute((1 << 16,), lambda i: x[i] // 3 + x[i] // 5 + x[i] // 7, name="y"), ONE)
    (note,) = s.expected.notes
    assert note.startswith("y: loop y.") and "not in vectors: integers are divided one by one" in note
    few = tir.auto_schedule(tir.compute((1 << 6,), lambda i: x[i] // 3, name="y"), ONE)
    assert "not in vectors" in few.source() and few.expected.notes == (), "the call takes longer"


def test_a_loop_that_is_scalar_at_its_end_alone_is_not_noted():
    s = tir.auto_schedule(tir.nn.softmax(placeholder(100, 1001), -1), ONE)
    assert "not in vectors" in s.source() and s.expected.limit == "arithmetic" and s.expected.facts == ()


def test_many_launches_are_named():
    x = placeholder(4, 4)
    k = [tir.reduce_axis(4, name=f"k{i}") for i in range(4)]
    for n in range(4):
        x = tir.compute((4, 4), lambda i, j, x=x, n=n: tir.sum(x[i, k[n]] * x[k[n], j], axis=k[n]), name=f"p{n}")
    e = tir.auto_schedule(x, TARGET).expected
    assert e.limit == "launch" and e.kernels > 1 and f"{e.kernels} kernels with" in e.notes[0]
    assert "tir.fusions" in e.notes[0]


def test_a_gpu_and_symbolic_extents_have_a_time_too():
    n = tir.dim("n", high=1 << 12)
    a = tir.placeholder((n, 64), name="a")
    for target in ("cuda -arch=sm_90a", "opencl -units=4"):
        e = tir.auto_schedule(tir.compute((n, 64), lambda i, j: a[i, j] * 2.0, name="y"), target).expected
        assert math.isfinite(e.seconds) and e.seconds > 0


def test_what_runs_once_for_all_is_not_in_the_time_of_a_call():
    work = [tir.ops.matmul(m=64, n=512, k=512, prepack=p) for p in (False, True)]
    every, packed = (w.schedule(template="cpu_tile_column", target=TARGET).expected for w in work)
    assert packed.kernels == 1 and packed.seconds <= every.seconds


def test_a_cell_that_data_choose():
    x, at = placeholder(8, 8), tir.placeholder((2,), "int32", name="at")
    y = tir.compute(
        (), lambda: x[tir.minimum(tir.maximum(at[0], 0), 7), tir.minimum(tir.maximum(at[1], 0), 7)], name="y"
    )
    for s in (tir.Schedule(y, "c"), tir.auto_schedule(y, "c -units=2"), tir.auto_schedule(y, "cuda")):
        assert s.expected.limit == "launch"


def test_a_gpu_multiplies_in_many_threads():
    e = tir.ops.matmul(m=2048, n=2048, k=2048).schedule(target="cuda -arch=sm_80").expected
    assert 0.2e-3 < e.seconds < 5e-3, "19.5 TFLOP/s at most"


def test_the_repr_of_an_automatic_schedule_has_its_facts():
    s = tir.auto_schedule(counted_and_added(), TARGET)
    assert "noted in s.expected: 2 kernels with" in " ".join(repr(s).split())
    assert "s.expected" not in repr(tir.Schedule(product(64, 64, 64), TARGET)), "the user is at it"
    assert "s.expected" not in repr(tir.auto_schedule(product(512, 512, 512), TARGET)), "nothing is idle"
    assert "2 kernels with" in s._repr_html_()


def test_a_repr_raises_nothing_where_a_schedule_cannot_be_lowered():
    s = tir.auto_schedule(counted_and_added(), TARGET)
    with s.because("a rule"):
        s.set_scope("z", "register")
    with pytest.raises(tir.LoweringError):
        print(s.expected)
    assert repr(s).startswith("<Schedule of y") and "s.expected" not in repr(s)
    row = ">expected</th>"
    assert row not in s._repr_html_() and row in tir.auto_schedule(chain_of_two(), TARGET)._repr_html_()


def test_notes_are_of_the_schedule_that_was_asked():
    s = tir.Schedule(product(256, 256, 256), TARGET)
    e = s.expected
    s.share_out("c.i")
    assert e.notes[0] == "c: 1 block for 16 cores; s.share_out('c.i')" and s.expected.notes[0] != e.notes[0]


def test_rounds_in_one_lambda_cost_what_they_compute():
    a, b = tir.placeholder((1 << 16,), name="a"), tir.placeholder((1 << 16,), name="b")

    def rounds(count):
        def cell(i):
            z = a[i]
            for _ in range(count):
                z = z * z + b[i]
            return z

        return tir.auto_schedule(tir.compute((1 << 16,), cell, name="y"), "c -units=2").expected.seconds

    assert rounds(60) < 4 * rounds(20)  # not 2**40 times
