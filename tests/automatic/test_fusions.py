"""The advisor on fusions: what is legal and why not, what it saves, and in which order it advises."""

import re
from dataclasses import replace

import numpy as np
import pytest

import tensorir as tir
from tensorir.automatic.counts import counts_of
from tensorir.cli import main
from tensorir.errors import ScheduleError
from tensorir.machine import machine_of
from tensorir.tune.ratio import Ratio

TARGETS = ("opencl", "cuda -arch=sm_80")
MACHINE = machine_of(tir.Target.parse("opencl"))


def placeholder(*shape, name="A"):
    return tir.placeholder(shape, name=name)


def chain(n=256):
    A = placeholder(n, n)
    P = tir.compute((n, n), lambda i, j: tir.exp(A[i, j]), name="P")
    return tir.compute((n, n), lambda i, j: P[i, j] * 2, name="Y")


def row(table, first, second):
    (found,) = [r for r in table if (r.first, r.second) == (first, second)]
    return found


def test_a_chain_is_one_kernel_and_its_intermediate_is_neither_written_nor_read():
    r = row(tir.fusions(chain()), "P", "Y")
    assert (r.kind, r.legal, r.recommended, r.code) == ("vertical", True, True, "")
    assert r.saved_bytes == 2 * 256 * 256 * 4
    assert (r.before.kernels, r.after.kernels) == (2, 1)
    assert r.before.nbytes == 4 * 256 * 256 * 4
    assert 1.1 < r.gain < 2.1
    s = r.schedule()
    assert type(s) is tir.Schedule
    assert s.check()
    assert s.source().count("__kernel __attribute__") == 1
    a = np.random.default_rng(0).standard_normal((256, 256), "float32")
    np.testing.assert_allclose(s.build()(a), np.exp(a) * 2, rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_every_legal_way_of_softmax_is_right_and_says_so_in_its_trace(target):
    table = tir.fusions(tir.nn.softmax(placeholder(18, 67), -1), target)
    assert sum(r.legal for r in table) >= 3
    for r in table:
        for way in r.ways:
            s = r.schedule(way)
            assert s.check("fast"), (r, way)
            assert all(": " in step.why for step in s.trace)
            assert tir.replay(s.definition, s.trace, s.target).tree() == s.tree()


def test_a_reduction_is_not_inlined_and_each_refusal_is_kept_by_its_way():
    A, k = placeholder(64, 128), tir.reduce_axis(128, name="k")
    P = tir.compute((64,), lambda i: tir.sum(A[i, k], axis=k), name="P")
    Y = tir.compute((64, 128), lambda i, j: A[i, j] - P[i], name="Y")
    r = row(tir.fusions(Y), "P", "Y")
    assert r.refused["compute_inline"].code == "inline.pure"
    assert set(r.ways) == {"rows", "compute_at", "fuse_with"}
    with pytest.raises(ScheduleError) as e:
        r.schedule("compute_inline")
    assert e.value.code == "inline.pure"


def test_what_cannot_be_one_kernel_has_the_code_of_our_own_error():
    """All rows of the largest are needed before the first cell of the last stage."""
    A, k = placeholder(16, 32), tir.reduce_axis((16), name="k")
    P = tir.compute((16, 32), lambda i, j: tir.exp(A[i, j]), name="P")
    T = tir.compute((32,), lambda j: tir.max(P[k, j], axis=k), name="T")
    S = tir.compute((16, 32), lambda i, j: P[i, j] / T[j], name="S")
    table = tir.fusions((S, P))
    r = row(table, "P", "S")
    assert not any(r.kind == "vertical" and r.second == "T" and r.first == "S" for r in table)
    assert r.refused["fuse_with"].code == "fuse-with.between", "T is made between them, of all rows"
    t = row(table, "P", "T")
    assert "compute-at.other-readers" in {p.code for p in t.refused.values()}


def test_an_illegal_pair_raises_its_error_and_saves_nothing():
    A = placeholder(8, 8)
    S = tir.scan(A, axis=0, op="sum", name="S")
    k = tir.reduce_axis(8, name="k")
    Y = tir.compute((8,), lambda j: tir.sum(S[7 - k, 7 - j], axis=k), name="Y")
    r = row(tir.fusions((Y, S)), "S", "Y")
    assert not r.legal
    assert (r.saved_bytes, r.gain, r.saved_s, r.way, r.recommended) == (0, 0.0, 0.0, "", False)
    assert r.code == r.problem.code == "fuse-with.dependence"
    assert r.code in str(r)
    for call in (r.schedule, r.pair):
        with pytest.raises(ScheduleError) as e:
            call()
        assert e.value.code == r.code
    assert r.pair(fused=False).check(), "the pair apart can always be made"


def test_stages_of_one_input_read_it_once():
    A, k, q = placeholder(64, 256), tir.reduce_axis(256, name="k"), tir.reduce_axis(256, name="q")
    S = tir.compute((64,), lambda i: tir.sum(A[i, k], axis=k), name="S")
    M = tir.compute((64,), lambda i: tir.max(A[i, q], axis=q), name="M")
    r = row(tir.fusions((S, M)), "S", "M")
    assert (r.kind, r.way) == ("horizontal", "fuse_with")
    assert r.saved_bytes == 64 * 256 * 4
    assert r.schedule().check()


def test_kernels_of_nothing_in_common_gain_a_launch_and_no_byte():
    A, B = placeholder(64, name="A"), placeholder(64, name="B")
    P = tir.compute((64,), lambda i: A[i] + 1, name="P")
    Q = tir.compute((64,), lambda i: B[i] * 2, name="Q")
    r = row(tir.fusions((P, Q)), "P", "Q")
    assert r.saved_bytes == 0
    assert r.launch_bound
    assert r.saved_s == pytest.approx(MACHINE.least_s, rel=0.2)
    assert r.recommended, "two of them take nearly twice as long"
    assert "gains a launch" in r.verdict
    assert replace(r, measured=Ratio(1.01, 0.9, 1.1)).verdict == "saves a launch: measure it"
    large = row(tir.fusions(chain(2048)), "P", "Y")
    assert not large.launch_bound


def test_parts_of_a_concatenation_are_stored_where_it_has_them():
    A, B = placeholder(16, 32, name="A"), placeholder(24, 32, name="B")
    P = tir.compute((16, 32), lambda i, j: tir.exp(A[i, j]), name="P")
    Q = tir.compute((24, 32), lambda i, j: tir.tanh(B[i, j]), name="Q")
    Y = tir.compute((40, 32), lambda i, j: tir.where(i < 16, P[i, j], Q[i - 16, j]), name="Y")
    table = tir.fusions(Y)
    for name in ("P", "Q"):
        r = row(table, name, "Y")
        assert "reverse_compute_inline" in r.ways
        s = r.pair(way="reverse_compute_inline")
        assert s.check()
        stored = [x for x in str(s).splitlines() if x.strip().startswith("Y[")]
        assert len(stored) == 2, "both parts go to Y"
        assert r.schedule("reverse_compute_inline").check()


def test_a_producer_that_others_need_is_computed_again_and_still_written():
    A = placeholder(64, 64)
    P = tir.compute((64, 64), lambda i, j: A[i, j] * 2, name="P")
    Y = tir.compute((64, 64), lambda i, j: P[i, j] + 1, name="Y")
    Z = tir.compute((64, 64), lambda i, j: P[i, j] * P[j, i], name="Z")
    r = row(tir.fusions((Y, Z)), "P", "Y")
    s = r.schedule("compute_inline")
    assert {x.name for x in s.stages()} >= {"P", "Z"}
    assert s.check()
    alone = r.pair(fused=False)
    assert [t.name for t in alone.outputs] == ["P", "Y"], "P is a result of the pair as well"


def test_a_pair_alone_is_given_what_others_make():
    A = placeholder(32, 32)
    stages = [A]
    for n in range(3):
        x = stages[-1]
        stages.append(tir.compute((32, 32), lambda i, j, x=x: x[i, j] * 2 + x.get(i - 1, j), name=f"S{n}"))
    r = row(tir.fusions(stages[-1]), "S1", "S2")
    s = r.pair()
    assert [t.name for t in tir.expr.program.inputs_of(s.outputs)] == ["S0"]
    x = np.random.default_rng(0).integers(-3, 4, (32, 32)).astype("float32")
    above = lambda v: np.vstack([np.zeros((1, 32), "float32"), v[:-1]])  # noqa: E731
    y = x * 2 + above(x)
    assert np.array_equal(s.build()(x), y * 2 + above(y))


def test_rows_stand_in_the_order_of_what_they_save_and_illegal_ones_last():
    A = placeholder(128, 256)
    table = tir.fusions(tir.nn.layer_norm(A, (256,)))
    saved = [r.saved_s for r in table if r.legal]
    assert len(saved) >= 2
    assert saved == sorted(saved, reverse=True)
    legal = [r.legal for r in table]
    assert legal == sorted(legal, reverse=True)
    lines = str(table).splitlines()
    assert lines[0].split() == ["first", "second", "kind", "saved", "before", "after", "gain", "measured", "advice"]
    assert len(lines) == 1 + len(table)
    page = table._repr_html_()
    assert "<script" not in page
    assert all(r.first in page and r.second in page for r in table)
    assert re.fullmatch(r"<Fusions: \d+ pairs, \d+ legal, \d+ recommended>", repr(table))


def test_computing_again_costs_what_is_computed():
    """An exponential for each of three neighbours: inlining computes three times as many."""
    A = placeholder(258, 258)
    P = tir.compute((258, 258), lambda i, j: tir.exp(A[i, j]), name="P")
    Y = tir.compute((256, 256), lambda i, j: P[i, j] + P[i + 1, j] + P[i + 2, j], name="Y")
    r = row(tir.fusions(Y), "P", "Y")
    assert r.ways["compute_inline"] > r.before.seconds, "no gain"
    assert r.way == "compute_at"
    assert r.schedule().check()


def test_more_than_stays_near_is_refused():
    A, t = placeholder(512, 512), tir.placeholder((64,), "int32", name="t")
    P = tir.compute((512, 512), lambda i, j: tir.exp(A[i, j]), name="P")
    Y = tir.compute((64, 512), lambda i, j: P[t[i], j], name="Y")
    r = row(tir.fusions(Y), "P", "Y")
    assert r.refused["compute_at"].code == "fusions.room"
    with pytest.raises(ScheduleError) as e:
        r.schedule("compute_at")
    assert e.value.code == "fusions.room"
    assert r.schedule("compute_inline").check()


def test_counts_are_those_of_the_tree():
    s = tir.Schedule(chain(256))
    s.compute_inline("P")
    _, lane = s.split("Y.j", [None, 16])
    s.vectorize(lane)
    found = counts_of(s.program, s.target)
    assert (found.kernels, found.nbytes, found.launch_s) == (1, 2 * 256 * 256 * 4, MACHINE.launch_s)
    slow = tir.Schedule(chain(256))
    slow.compute_inline("P")
    one = counts_of(slow.program, slow.target)
    assert one.nbytes == found.nbytes
    fixed = MACHINE.call_s + MACHINE.launch_s
    assert 3 < (one.seconds - fixed) / (found.seconds - fixed) < 16, "two vectors of 32 bytes for 16 cells"
    slow.bind("Y.i", "block.x")
    assert counts_of(slow.program, slow.target).seconds < 0.7 * one.seconds, "on two cores"
    short = counts_of(tir.Schedule(chain(8)).program, slow.target)
    assert short.launch_s == pytest.approx(2 * MACHINE.least_s, rel=0.2), "until the next one can begin"


def test_measuring_gives_an_interval_and_the_advice_follows_it():
    table = tir.fusions(chain(64), measure=True, rounds=3)
    (r,) = table
    assert 0 < r.measured.low <= r.measured.value <= r.measured.high
    assert r.recommended == (r.measured.value >= 1.02 and r.measured.low >= 1.0)
    assert f"{r.measured.value:.2f} [" in str(table)
    assert tir.fusions(chain(64))[0].measured is None


def test_wrong_arguments_are_refused():
    with pytest.raises(tir.TensorIRError) as e:
        tir.fusions(chain(8), measure="yes")
    assert e.value.code == "argument.type"
    with pytest.raises(tir.TensorIRError) as e:
        tir.fusions(placeholder(3))
    assert e.value.code == "declare.output"
    with pytest.raises(tir.TensorIRError) as e:
        tir.fusions(chain(8))[0].schedule("by magic")
    assert e.value.code == "argument.value"


@pytest.mark.parametrize("target", TARGETS)
def test_scatters_scans_and_dims_have_rows(target):
    n = tir.dim("n", low=1, high=64)
    A = tir.placeholder((n, 16), name="A")
    P = tir.compute((n, 16), lambda i, j: A[i, j] * 2, name="P")
    S = tir.scan(P, axis=1, op="sum", name="S")
    at = tir.placeholder((n,), "int32", name="at")
    H = tir.scatter((8,), over=(n,), index=lambda t: (at[t],), value=lambda t: S[t, 15], op="sum", fill=0, name="H")
    table = tir.fusions(H, target)
    assert {(r.first, r.second) for r in table} >= {("P", "S"), ("S", "H")}
    for r in table:
        for way in r.ways:
            assert r.schedule(way).check(), (r, way)


@pytest.mark.parametrize("target", TARGETS)
def test_a_number_made_of_a_sum_has_a_row(target):
    x, k = placeholder(64), tir.reduce_axis(64, name="k")
    mean = tir.compute((), lambda: tir.sum(x[k], axis=k) / 64, name="mean")
    table = tir.fusions(tir.compute((), lambda: mean[()] * 2.0, name="twice"), target)
    assert table and not any("compute_at" in r.ways for r in table if r.second == "twice")
    for r in table:
        for way in r.ways:
            assert r.schedule(way).check(), (r, way)


def test_parts_that_another_one_was_taken_for_are_told(capsys, tmp_path):
    X = placeholder(18, 67)
    r = row(tir.fusions(tir.nn.layer_norm(X, (67,)), TARGETS[1]), "layer_norm_sum", "layer_norm_squares")
    (said,) = r.untaken
    assert "fuse_with" in r.ways and said.startswith("gpu_fuse_with was not taken for layer_norm_squares: [fuse-with.")
    mine = tmp_path / "norm.py"
    mine.write_text(
        "import tensorir as tir\n\n\ndef norm():\n    A = tir.placeholder((18, 67), name='A')\n"
        "    return tir.nn.layer_norm(A, (67,))\n"
    )
    asked = ["show", f"{mine}:norm", "--target", TARGETS[1], "--why-schedule"]
    for more, told in (((), False), (("--fusions",), True)):
        main.run([*asked, *more])
        assert (f"# layer_norm_sum and layer_norm_squares: {said}" in capsys.readouterr().out) == told
