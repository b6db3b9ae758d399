"""Convolutions on tensor cores, and images' gradients, schedule what is declared: views of it, each a proved step."""

from dataclasses import replace

import pytest

import tensorir as tir
from tensorir.automatic.rules import conv_image
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.schedule.primitives import reindex, reindex_writes, terms

pytestmark = pytest.mark.usefixtures("scheduled_again")

TARGET = "cuda -arch=sm_80"
FORWARD = (
    {},
    dict(pad=0, layout="NCHW"),
    dict(stride=2, pad=0, r=1, s=1, w=19),
    dict(stride=2, groups=2, c=128, k=128, dtype="bfloat16", residual=True),
    dict(stride=3, dilation=2, pad=3, h=17, layout="NCHW", bias=True, act="relu"),
    dict(dtype="float32", precision="tf32", w=7, h=3, pad=0),  # one row of results
)
GRADIENTS = (
    {},
    dict(layout="NCHW", groups=2),
    dict(stride=2, h=11, w=15),
    dict(stride=3, layout="NCHW", r=4, s=2, groups=2),
    dict(dilation=2, pad=2),
)


def work(op, **changed):
    options = dict(n=1, c=64, h=9, w=20, k=64, r=3, s=3, pad=1, layout="NHWC", dtype="float16")
    return getattr(tir.ops, op)(**{**options, **changed})


CASES = [("conv2d", case) for case in FORWARD] + [("conv2d_backward_data", case) for case in GRADIENTS]


@pytest.mark.parametrize(("op", "changed"), CASES, ids=str)
def test_traces_replay_on_what_is_declared(op, changed):
    w = work(op, **changed)
    s = w.schedule(template="gpu_tensor", target=TARGET)
    assert s.definition == w.outputs and "redeclare" not in str(s.trace)
    for trace in (s.trace, s.trace.to_json()):
        again = tir.replay(w.outputs, trace, target=TARGET)
        assert again.tree() == s.tree()
        assert again.source() == s.source()


def scheduled(op, changed):
    return work(op, **changed).schedule(template="gpu_tensor", target=TARGET)


def refused_or_right(op, changed):
    try:
        return compare(scheduled(op, changed), Field(), 1) is None
    except tir.TensorIRError:
        return True


def said_otherwise(monkeypatch, method, old, new):
    """Let templates say ``new`` where they say ``old``; returns how often they did."""
    right, said = getattr(tir.Schedule, method), []

    def called(self, first, text, *args, **kwargs):
        said.append(old in text)
        return right(self, first, text.replace(old, new), *args, **kwargs)

    monkeypatch.setattr(tir.Schedule, method, called)
    return said


REFUSED = {
    "a group for another": ("conv2d", dict(groups=2), "reindex", "k/32", "k%2", "reindex.not-bijective"),
    "half of the channels": ("conv2d", dict(groups=2), "reindex", "k%32", "k%16", "reindex.not-bijective"),
    "half of the image": ("conv2d", dict(groups=2), "reindex", "c%32", "c%16", "reindex.not-bijective"),
    "another stride": ("conv2d", dict(stride=2), "reindex", "h%2", "h%3", "reindex.not-bijective"),
    "a tap left out": ("conv2d", {}, "reindex", "r, s, c -> n, p, q, k, r, s, c",
                       "r, s, c -> n, p, q, k, s, c", "reindex.not-bijective"),
    "channels among the pixels": ("conv2d", {}, "reindex", "-> n, p, q, k,", "-> n, p, q = (q, c), k,",
                                   "reindex.not-bijective"),
    "the next row": ("conv2d_backward_data", dict(stride=2), "keep_term", "dx.u + 0", "dx.u + 1", "keep-term.counts"),
    "the next column": ("conv2d_backward_data", dict(stride=3), "keep_term", "dx.v + 1", "dx.v + 2",
                        "keep-term.counts"),
    "always the first tap": ("conv2d_backward_data", dict(stride=2), "keep_term", "1 - (dx.u + 0) % 2", "0",
                             "keep-term.counts"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_wrong_views_are_refused(monkeypatch, fault):
    op, changed, method, old, new, code = REFUSED[fault]
    said = said_otherwise(monkeypatch, method, old, new)
    with pytest.raises(tir.ScheduleError) as e:
        scheduled(op, changed)
    assert e.value.code == code and any(said)


HARMLESS = {
    "rows for columns": ("conv2d", dict(h=20), "reindex", "-> n, p, q, k, r, s, c", "-> n, p = q, q = p, k, r, s, c"),
    "taps the other way": ("conv2d_backward_data", dict(groups=2), "reindex", "-r", "r"),
    "groups in between": ("conv2d", dict(groups=2), "reindex", "g = k/32, p, q, k = k%32",
                          "g = k%2, p, q, k = k/2"),
}  # fmt: skip


@pytest.mark.parametrize("way", HARMLESS)
def test_other_views_are_refused_or_mean_the_same(monkeypatch, way):
    """No view is wrong: what another one makes of the declaration does not fit the template, or is right."""
    op, changed, method, old, new = HARMLESS[way]
    said = said_otherwise(monkeypatch, method, old, new)
    assert refused_or_right(op, changed) and any(said)


PARAMETERS = [("pad", 2), ("stride", 2), ("groups", 2), ("groups", 4), ("dilation", 2), ("layout", "NCHW"), ("c", 32)]


@pytest.mark.parametrize(("name", "value"), PARAMETERS, ids=str)
def test_a_template_with_other_parameters_makes_nothing_else(monkeypatch, name, value):
    """Pad, stride, groups … are the declaration's own: a template that has them wrong schedules that or is refused."""
    right = conv_image.view
    monkeypatch.setattr(conv_image, "view", lambda s, shape, of: right(s, replace(shape, **{name: value}), of))
    assert refused_or_right("conv2d", {})


def unproved(monkeypatch):
    monkeypatch.setattr(terms, "_need_zeros", lambda *args: None)
    said_otherwise(monkeypatch, "keep_term", "dx.u + 0", "dx.u + 1")


def a_row_further(monkeypatch):
    right = reindex_writes.place

    def place(*args):
        at = list(right(*args))
        if len(at) > 2:  # not of what has been packed
            at[-3] = at[-3] + 1
        return tuple(at)

    monkeypatch.setattr(reindex_writes, "place", place)


def without_ends(monkeypatch):
    monkeypatch.setattr(reindex, "weakest", lambda conds, arith: [])


PLANTS = [(unproved, "conv2d_backward_data"), (without_ends, "conv2d_backward_data"), (a_row_further, "conv2d")]


@pytest.mark.parametrize(("plant", "op"), PLANTS, ids=[f.__name__ for f, _ in PLANTS])
def test_a_wrong_step_is_seen(monkeypatch, plant, op):
    """Checks compare with what is declared, not with what steps have made of it."""
    strided = dict(stride=2, h=11, w=15)
    assert compare(scheduled(op, strided), Field(), 1) is None
    plant(monkeypatch)
    assert not scheduled(op, strided).check()
