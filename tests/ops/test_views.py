"""Templates that walk the declared computation by other axes: traces replay on it, and what is wrong is seen."""

from __future__ import annotations

import pytest

import tensorir as tir
from tensorir.schedule.primitives import reindex, reindex_writes
from tensorir.schedule.primitives.reindex_view import Bijection

pytestmark = pytest.mark.usefixtures("scheduled_again")

WGMMA, SM80, SM90 = "gpu_tile_wgmma", "cuda -arch=sm_80", "cuda -arch=sm_90a"
PLAIN, GROUPED = dict(c=8, h=6, w=7, k=12), dict(n=2, c=32, h=7, w=6, k=64, groups=2, stride=2)
CASES = [
    ("conv2d", "gpu_tile_warp", SM80, dict(**PLAIN, pad=1, bias=True)),
    ("conv2d", "gpu_tile_warp", SM80, dict(**GROUPED, layout="NHWC", act="relu", residual=True)),
    ("conv2d", "gpu_tile_warp", SM80, dict(n=2, c=13, h=5, w=6, k=20, pad=2, dilation=2, prepack=True)),
    ("conv2d", "gpu_tile_windows", SM80, dict(c=9, h=6, w=7, k=9, pad=1, groups=9, stride=2, bias=True)),
    ("conv2d", "gpu_tile_windows", SM80, dict(c=16, h=6, w=5, k=16, groups=16, layout="NHWC", dtype="float16")),
    (
        "conv2d_backward_weight",
        WGMMA,
        SM90,
        dict(c=40, h=5, w=6, k=8, pad=1, layout="NHWC", dtype="float16"),
    ),
    (
        "conv2d_backward_weight",
        WGMMA,
        SM90,
        dict(n=2, c=128, h=4, w=5, k=128, r=1, s=2, groups=2, layout="NHWC", dtype="bfloat16"),
    ),
    (
        "conv2d",
        WGMMA,
        SM90,
        dict(n=2, c=64, h=9, w=7, k=64, pad=1, layout="NHWC", dtype="float16", act="relu", bias=True, residual=True),
    ),
    (
        "conv2d",
        WGMMA,
        SM90,
        dict(n=2, c=32, h=5, w=7, k=64, pad=1, stride=2, layout="NHWC", precision="tf32"),
    ),
    (
        "conv2d_backward_data",
        WGMMA,
        SM90,
        dict(n=2, c=128, h=5, w=7, k=128, r=2, groups=2, pad=1, layout="NHWC", dtype="bfloat16"),
    ),
    ("conv2d_backward_weight", "gpu_tensor", SM80, dict(n=6, c=16, h=6, w=9, k=16, pad=1, precision="tf32")),
    (
        "conv2d_backward_weight",
        "gpu_tensor",
        SM80,
        dict(n=2, c=16, h=16, w=16, k=32, r=1, s=2, groups=2, layout="NHWC", dtype="float16"),
    ),
    ("conv2d_backward_weight", "gpu_tensor", SM80, dict(c=8, h=33, w=32, k=16, r=2, s=2, stride=2, dtype="bfloat16")),
]
CHANGED = {("conv2d_backward_weight", "gpu_tensor"): dict(parts=2)}
"""Of a template's default configuration."""


MADE = {}
"""Workloads whose templates were made before anything was planted: rules leave out what is refused."""


def made(op, template, target, params):
    work = MADE.setdefault(repr((op, params)), getattr(tir.ops, op)(**params))
    default = work.templates[template].space_for(tir.Target.parse(target)).default
    config = {**default, **CHANGED.get((op, template), {})}
    return work, work.schedule(config, template=template, target=target)


def said(case):
    op, template, _, params = case
    return f"{op}-{template}-{params}"


@pytest.mark.parametrize("case", CASES, ids=said)
def test_a_trace_replays_on_the_declaration(case):
    work, s = made(*case)
    assert s.definition == work.outputs
    again = tir.replay(work.outputs, s.trace.to_json(), target=case[2])
    assert again.tree() == s.tree() and again.source() == s.source()


@pytest.mark.parametrize("case", CASES, ids=said)
def test_it_computes_what_is_declared(case):
    assert made(*case)[1].check()


WRONG = {
    "reindex.not-bijective": [
        (", k = (r, s, c)", ", k = (r, c)"), ("(n, p, q)", "(n, q)"), ("k%32", "k%16"), ("k/32", "k/64"),
        ("(n, p, q)", "(n, p, q, c)"),
    ],
    "reindex.syntax": [("(r, s, c)", "(r, r, s, c, t)")],
    "reindex.axes": [(" | ", ", ")],
}  # fmt: skip


@pytest.mark.parametrize(("code", "right", "wrong"), [(c, *pair) for c, pairs in WRONG.items() for pair in pairs])
def test_a_wrong_view_is_refused(monkeypatch, code, right, wrong):
    seen, right_one = [], tir.Schedule.reindex

    def planted(self, stage, view, *more, **how):
        seen.append(view)
        return right_one(self, stage, view.replace(right, wrong), *more, **how)

    monkeypatch.setattr(tir.Schedule, "reindex", planted)
    with pytest.raises(tir.ScheduleError) as e:
        made(*CASES[1])
    assert right in seen[-1] and e.value.code == code


def test_an_operand_that_is_packed_under_too_few_axes_is_refused(monkeypatch):
    right_one = tir.Schedule.reindex

    def planted(self, stage, view, pad=None, reads=None, **how):
        return right_one(self, stage, view, pad, {k: v.replace("z, ", "") for k, v in (reads or {}).items()}, **how)

    monkeypatch.setattr(tir.Schedule, "reindex", planted)
    with pytest.raises(tir.ScheduleError, match=r"reindex\.reads"):
        made(*CASES[1])


def test_a_wrong_tap_is_seen(monkeypatch):
    """Columns that are said one further, where they are packed and where sums are read."""
    assert made(*CASES[1])[1].check()
    packed, place = reindex._Reindex._own_axes, reindex_writes.place

    def further(at, extents):
        return (*at[:-1], (at[-1] + 1) % extents)

    with monkeypatch.context() as m:
        m.setattr(reindex._Reindex, "_own_axes", lambda self, names: (  # of the image and not of the filter
            further(packed(self, names), self.padded["k"]) if "i" in names else packed(self, names)))  # fmt: skip
        assert not made(*CASES[1])[1].check()
    with monkeypatch.context() as m:
        m.setattr(reindex_writes, "place", lambda d, cell, arith: further(
            place(d, cell, arith), d.kept.size(d.kept.new[-1])))  # fmt: skip
        assert not made(*CASES[1])[1].check()
    assert made(*CASES[1])[1].check()


def test_a_wrong_way_back_is_refused(monkeypatch):
    """Axes joined in another order than they are taken apart: the proof is of both ways."""
    assert made(*CASES[1])[1].check()
    back = Bijection.back

    def turned(self, axes):
        return [(old + 1) % n for old, n in zip(back(self, axes), self.extents, strict=True)]

    monkeypatch.setattr(Bijection, "back", turned)
    with pytest.raises(tir.ScheduleError, match=r"reindex\.not-bijective"):
        made(*CASES[1])
