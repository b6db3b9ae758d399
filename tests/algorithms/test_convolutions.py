"""What Winograd's algorithm takes for a convolution: what the expressions say, whatever things are called."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.algorithms.products import convolution_of
from tensorir.check.definition import differs
from tensorir.interp.numbers import Field
from tensorir.interp.reference import evaluate, random_arguments


def tensors(n=2, c=3, h=6, w=5, k=4, r=3, s=3):
    return tir.placeholder((n, c, h, w), name="image"), tir.placeholder((k, c, r, s), name="taps")


def sums(shape, body, extents=(3, 3, 3), name="z"):
    axes = [tir.reduce_axis(n, name=f"r{n}") for n in extents]
    return tir.compute(shape, lambda a, b, c, d: tir.sum(body(a, b, c, d, *axes), axis=tuple(axes)), name=name)


def padded_where_it_is_read():
    x, w = tensors()
    return sums((2, 4, 6, 5), lambda n, k, p, q, c, r, s: x.get(n, c, p + r - 1, s + q - 1, fill=0) * w[k, c, r, s])


def filter_first():
    x, w = tensors()
    return sums((2, 4, 4, 3), lambda n, k, p, q, c, r, s: w[k, c, r, s] * x[n, c, p + r, s + q])


def an_inner_part():
    x, w = tensors(h=9, w=9)
    return sums((2, 4, 4, 3), lambda n, k, p, q, c, r, s: x[n, c, p + r + 2, s + q + 1] * w[k, c, r, s])


def more_above_than_left():
    x, w = tensors()
    far = tir.compute((2, 3, 9, 6), lambda n, c, h, w: x.get(n, c, h - 2, w - 1, fill=0), name="far")
    return sums((2, 4, 7, 4), lambda n, k, p, q, c, r, s: far[n, c, p + r, s + q] * w[k, c, r, s])


def of_what_was_computed():
    x, w = tensors()
    twice = tir.compute(x.shape, lambda *i: x[i] * 2, name="T")
    y = tir.nn.conv2d(twice, w, pad=1, name="U")
    return tir.compute(y.shape, lambda *i: tir.maximum(y[i], 0) + y[i], name="V")


def channels_last():
    x, w = tir.placeholder((2, 6, 5, 3), name="x"), tir.placeholder((4, 3, 3, 3), name="w")
    return tir.nn.conv2d(x, w, pad=1, layout="NHWC", name="anything")


def of_one_of_two():
    x, w = tensors()
    v = tir.placeholder((4, 4, 3, 3), name="v")
    return tir.nn.conv2d(tir.nn.conv2d(x, w, pad=1, name="first"), v, pad=1, name="second")


def one_pixel():
    x, w = tensors(n=1, c=1, h=1, w=1, k=1)
    return tir.nn.conv2d(x, w, pad=1)


FITS = {
    f.__name__: f for f in (padded_where_it_is_read, filter_first, an_inner_part, more_above_than_left,
                            of_what_was_computed, channels_last, one_pixel)
}  # fmt: skip


@pytest.mark.parametrize("options", [dict(tile=4), dict(tile=2, panel=8), dict(tile=6, whole=[4, 8])], ids=str)
@pytest.mark.parametrize("name", FITS)
def test_convolutions_are_found_by_what_they_read(name, options):
    out = FITS[name]()
    s = tir.Schedule(out).redeclare("winograd", **options)
    assert differs(s.definition, s.outputs) == ""
    arrays = random_arguments(s.definition, 3, Field())
    assert np.array_equal(*(evaluate(o, arrays, Field())[0] for o in (s.definition, s.outputs)))
    assert s.outputs[0].op.name == out.op.name and s.outputs[0].shape == out.shape


def test_one_of_several_is_named():
    out = of_one_of_two()
    for name in ("first", "second"):
        s = tir.Schedule(out).redeclare("winograd", tile=2, of=name)
        assert differs(s.definition, s.outputs) == "" and len(s.stages("U")) == 1
    both = tir.Schedule(out).redeclare("winograd", tile=2, of="first").redeclare("winograd", tile=4, of="second")
    assert differs(both.definition, both.outputs) == ""
    assert both.allowed_error == pytest.approx(5e-6 + 5e-5) and both.inexact_by is None
    with pytest.raises(tir.ScheduleError, match=r"redeclare\.stage.*first, second"):
        tir.Schedule(out).redeclare("winograd", tile=2)


def strided():
    x, w = tensors()
    return tir.nn.conv2d(x, w, pad=1, stride=2)


def dilated():
    x, w = tensors()
    return tir.nn.conv2d(x, w, pad=2, dilation=2)


def grouped():
    x, w = tir.placeholder((1, 4, 8, 8), name="x"), tir.placeholder((4, 2, 3, 3), name="w")
    return tir.nn.conv2d(x, w, groups=2)


def oblong():
    x, w = tensors(s=2)
    return tir.nn.conv2d(x, w)


def of_halves():
    x, w = (tir.placeholder(t.shape, "float16", name=t.name) for t in tensors())
    return tir.nn.conv2d(x, w)


def mirrored():
    x, w = tensors()
    return sums((2, 4, 4, 3), lambda n, k, p, q, c, r, s: x[n, c, p + 2 - r, q + 2 - s] * w[k, c, r, s])


def turned_filter():
    x, w = tensors()
    return sums((2, 4, 4, 3), lambda n, k, p, q, c, r, s: x[n, c, p + r, q + s] * w[k, c, s, r])


def turned_result():
    x, w = tensors()
    return sums((4, 2, 4, 3), lambda k, n, p, q, c, r, s: x[n, c, p + r, q + s] * w[k, c, r, s])


def largest():
    x, w = tensors()
    axes = [tir.reduce_axis(3, name=n) for n in "crs"]
    c, r, s = axes
    return tir.compute((2, 4, 4, 3), lambda n, k, p, q: tir.max(x[n, c, p + r, q + s] * w[k, c, r, s], axis=(c, r, s)))


def filled_with_ones():
    x, w = tensors()
    far = tir.compute((2, 3, 8, 7), lambda n, c, h, w: x.get(n, c, h - 1, w - 1, fill=1), name="far")
    return sums((2, 4, 6, 5), lambda n, k, p, q, c, r, s: far[n, c, p + r, q + s] * w[k, c, r, s])


REFUSED = {
    "strided": (strided, "stride 2"), "dilated": (dilated, "dilation 2"), "grouped": (grouped, "x is read at"),
    "oblong": (oblong, "3 x 2"), "halves": (of_halves, "float16"), "mirrored": (mirrored, "dilation -1"),
    "turned filter": (turned_filter, "not read as a filter"), "turned result": (turned_result, "layout"),
    "largest": (largest, "no sum"), "matmul": (lambda: tir.ops.matmul(m=8, n=8, k=8).outputs[0], "2 axes"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_convolution_is_refused_in_words(name):
    make, words = REFUSED[name]
    s = tir.Schedule(make())
    before = str(s)
    with pytest.raises(tir.ScheduleError) as e:
        s.redeclare("winograd", tile=2)
    assert e.value.code == "winograd.convolution" and words in str(e.value) and len(str(e.value).splitlines()) <= 12
    assert str(s) == before and s.outputs == s.definition and not s.trace


def test_padding_of_other_numbers_than_0_is_an_image_of_its_own():
    out = filled_with_ones()
    assert convolution_of(out.op).image.name == "far" and convolution_of(out.op).pad == (0, 0)
    s = tir.Schedule(out).redeclare("winograd", tile=2)
    assert differs(s.definition, s.outputs) == ""


@pytest.mark.parametrize(("code", "options"), [
    ("winograd.tile", dict(tile=3)), ("winograd.tile", dict(tile=8)), ("winograd.tile", dict(tile=0)),
    ("winograd.whole", dict(tile=2, whole=[4])), ("argument.type", dict(tile="x")),
    ("argument.type", dict(tile=2, panel=1.5)), ("argument.type", dict(tile=2, whole=4)), ("redeclare.parameters", {}),
    ("redeclare.parameters", dict(tile=2, m=4)),
    ("redeclare.stage", dict(tile=2, of="nothing")), ("argument.value", dict(tile=2, whole=[0, 4])),
])  # fmt: skip
def test_parameters_are_refused(code, options):
    s = tir.Schedule(filter_first())
    with pytest.raises(tir.ScheduleError) as e:
        s.redeclare("winograd", **options)
    assert e.value.code == code and not s.trace
