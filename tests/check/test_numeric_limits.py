"""Faults that numbers of a middling size do not show: integers of few bits, limits, NaNs, identities, small floats."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.designed_inputs import with_offsets, with_too_large_floats
from tensorir.interp.reference import random_arguments

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
_RIGHT = set[str]()
"""Texts that a check has nothing to say of."""
WHOLE = ("int8", "uint8", "int16", "int32", "uint32", "int64")


def _bound(y: tir.Tensor) -> tir.Schedule:
    s = tir.Schedule(y, "cuda")
    for loop, to in zip(y.op.axes, ("block.x", "thread.x"), strict=False):
        s.bind(f"y.{loop.name}", to)
    return s


def _map(body, dtype: str = "float32") -> tir.Schedule:
    x = tir.placeholder((9, 24), dtype, name="x")
    return _bound(tir.compute((9, 24), lambda i, j: body(x[i, 23 - j]), name="y"))


def _rows(reduce, dtype: str = "float32", body=lambda x: x) -> tir.Schedule:
    x, k = tir.placeholder((9, 24), dtype, name="x"), tir.reduce_axis(24, "k")
    return _bound(tir.compute((9,), lambda i: reduce(body(x[i, k]), k), name="y"))


def _product(dtype: str) -> tir.Schedule:
    k = tir.reduce_axis(24, "k")
    a, b = tir.placeholder((9, 24), dtype, name="a"), tir.placeholder((24, 7), dtype, name="b")
    return _bound(tir.compute((9, 7), lambda i, j: tir.sum(a[i, k] * b[k, j], k), name="y"))


def _quantised(x):
    return tir.cast(tir.maximum(tir.minimum(tir.round(x * 0.5), 127.0), -128.0), "int8")


def fate(s: tir.Schedule, pattern: str, new: str) -> set[str]:
    """The codes that a check of the edited text gives, where that of the text as it is gives none."""
    if s.source() not in _RIGHT:
        assert s.with_source(s.source()).check("emulate")
        _RIGHT.add(s.source())
    text, made = re.subn(pattern, new, s.source())
    assert made, pattern
    return {p.code for p in s.with_source(text).check("emulate").problems}


@pytest.mark.parametrize("dtype", WHOLE)
def test_integers_keep_all_their_bits(dtype: str) -> None:
    info = np.iinfo(dtype)
    for form in (f"min((long long){{0}}, {info.max - 1}LL)", f"max((long long){{0}}, {info.min + 1}LL)"):
        assert fate(_map(lambda x: x, dtype), r"(x\[[^\]]*\])(?=;)", form.format(r"\1")) == {"check.wrong-result"}


@pytest.mark.parametrize(("dtype", "form"), [
    ("int64", "(long long)(int)({0})"), ("int64", "(long long)(double)({0})"), ("int32", "(int)(float)({0})"),
    ("int32", "(short)({0})"), ("uint32", "({0}) & 0x7fffffffu"),
])  # fmt: skip
def test_sums_of_integers_are_made_in_their_type(dtype: str, form: str) -> None:
    s = _rows(tir.sum, dtype)
    assert fate(s, r"(y\[i\]) \+= ([^;]*);", "\\1 = " + form.format("\\1 + \\2") + ";") == {"check.wrong-result"}


@pytest.mark.parametrize(("dtype", "form"), [
    ("int32", "({0} << 12 >> 12)"), ("int32", "(short){0}"), ("uint32", "({0} & 0xffffu)"),
    ("int8", "max((int){0}, -127)"),
])  # fmt: skip
def test_products_of_integers_take_all_bits(dtype: str, form: str) -> None:
    assert fate(_product(dtype), r"(\ba\[[^\]]*\])", form.format(r"\1")) == {"check.wrong-result"}


@pytest.mark.parametrize(("pattern", "new"), [
    (r"tir_min_float\((rintf\([^()]*\)), 127.0f\)", r"\1"),
    (r"tir_max_float\((tir_min_float\(rintf\([^()]*\), 127.0f\)), -128.0f\)", r"\1"),
    (", -128.0f", ", -127.0f"), (", 127.0f", ", 126.0f"),
])  # fmt: skip
def test_limits_of_what_is_quantised(pattern: str, new: str) -> None:
    assert fate(_map(_quantised), pattern, new) == {"check.wrong-result"}


def test_floats_are_no_larger_than_conversions_allow() -> None:
    x = tir.placeholder((9, 24), name="x")
    for body, most in ((lambda v: tir.cast(v, "int8"), 2**5), (_quantised, 2**20)):
        y = tir.compute((9, 24), lambda i, j, body=body: body(x[i, j]), name="y")
        (found,) = with_too_large_floats((y,), random_arguments((y,), 0)) or [np.zeros(1)]
        assert np.abs(found).max() in (4 * most, 0.0) and (body is _quantised) == bool(found.any())


@pytest.mark.parametrize("new", ["fmaxf(", "max("])
def test_a_maximum_keeps_nans(new: str) -> None:
    relu = _map(lambda x: tir.maximum(x, 0.0))
    assert fate(relu, r"(?<== )tir_max_float\(", new) == {"check.wrong-result"}
    assert fate(_rows(tir.max), r"(?<== )tir_max_float\(", new) == {"check.wrong-result"}


@pytest.mark.parametrize(("reduce", "sign"), [(tir.max, "-"), (tir.min, "")])
@pytest.mark.parametrize("start", ["1e9f", "3e38f", "3.4028235e38f"])
def test_a_maximum_begins_with_infinity(reduce, sign: str, start: str) -> None:
    assert fate(_rows(reduce), rf"= {sign}__int_as_float\(0x7f800000\)", f"= {sign}{start}") == {"check.wrong-result"}


def test_combiners_that_begin_with_a_number_are_right() -> None:
    largest = tir.combiner(tir.maximum, identity=-1e30)
    assert _rows(largest).check("emulate")


@pytest.mark.parametrize("least", ["1e-3f", "1e-7f", "1e-12f"])
def test_small_floats_are_not_zero(least: str) -> None:
    form = rf"(fabsf(\1) < {least} ? 0.0f : \1)"
    assert fate(_map(lambda x: x * 3.0), r"(x\[[^\]]*\])", form) == {"check.wrong-result"}


def test_clamped_places_are_found_with_any_integers() -> None:
    t, x = tir.placeholder((9,), "int32", name="t"), tir.placeholder((12, 24), name="x")
    s = _bound(tir.compute((9, 24), lambda i, j: x[tir.maximum(tir.minimum(t[i], 11), 0), j], name="y"))
    assert s.check("emulate") and s.with_source(s.source()).check("emulate")


def _softmax() -> tir.Schedule:
    x, k, n = tir.placeholder((9, 24), name="x"), tir.reduce_axis(24, "k"), tir.reduce_axis(24, "n")
    m = tir.compute((9,), lambda i: tir.max(x[i, k], k), name="m")
    z = tir.compute((9,), lambda i: tir.sum(tir.exp(x[i, n] - m[i]), n), name="z")
    s = tir.Schedule(tir.compute((9, 24), lambda i, j: tir.exp(x[i, j] - m[i]) / z[i], name="y"), "cuda")
    return s.bind("m.i", "block.x").bind("z.i", "block.x").bind("y.i", "block.x")


@pytest.mark.parametrize(("pattern", "new"), [
    (r"expf\((x\[[^\]]*\]) - m\[i\]\)", r"expf(\1)"), (r"-__int_as_float\(0x7f800000\)", "0.0f"),
])  # fmt: skip
def test_what_is_subtracted_before_an_exponential(pattern: str, new: str) -> None:
    assert fate(_softmax(), pattern, new) == {"check.wrong-result"}


def test_offsets_leave_results_that_are_numbers() -> None:
    for body, some in ((tir.exp, False), (tir.tanh, True), (lambda v: tir.sqrt(tir.maximum(v, 0.0)), True)):
        x = tir.placeholder((9, 24), name="x")
        y = tir.compute((9, 24), lambda i, j, body=body: body(x[i, j]), name="y")
        found = list(with_offsets((y,), random_arguments((y,), 0)))
        assert bool(found) == some and all(np.abs(v).min() > 100 for (v,) in found)


@pytest.mark.parametrize("least", ["1e-5f", "1e-9f", "1e-13f"])
def test_small_results_of_functions_are_not_zero(least: str) -> None:
    form = rf"= (\1 < {least} ? 0.0f : \1);"
    assert fate(_softmax(), r"= (__expf\([^;]*\) / z\[i\]);", form) == {"check.wrong-result"}


@pytest.mark.parametrize(("body", "pattern", "new"), [
    (lambda x: 1.0 / (1.0 + tir.exp(-x)), r"(?<== )(1\.0f / [^;]*);", r"fmaxf(\1, 1e-7f);"),
    (tir.exp, r"(?<== )(__expf\([^;]*\));", r"\1 + 1e-9f;"),
    (lambda x: tir.exp(x) / 3.0, r"(?<== )([^;]*expf[^;]*);", r"__uint_as_float(__float_as_uint(\1) & 0xfffffe00u);"),
])  # fmt: skip
def test_small_results_of_functions_keep_their_digits(body, pattern: str, new: str) -> None:
    assert fate(_map(body), pattern, new) == {"check.wrong-result"}
