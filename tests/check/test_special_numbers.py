"""Faults that show for special numbers only: NaNs, infinities, very small or large ones, scalars of 0 and 1."""

from __future__ import annotations

import functools
import re
import shutil

import numpy as np
import pytest
from test_numeric_limits import _map, _rows
from test_unseen_faults import kernel

import tensorir as tir
from tensorir.check.designed_inputs import with_no_numbers
from tensorir.check.outliers import infinities_spread, with_infinities
from tensorir.check.verdict import compare_results
from tensorir.interp.numbers import numpy_dtype
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.interp.rounding import rounding_of

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
BODIES = {
    "copy": lambda: _map(lambda x: x), "sum": lambda: _rows(tir.sum), "threads": lambda: kernel("threads"),
    "positive": lambda: _map(lambda x: x > 0.0), "rounded": lambda: _map(lambda x: tir.round(x * 0.5)),
    "logarithms": lambda: _rows(tir.sum, body=lambda x: tir.log(tir.abs(x) + 1.0)),
}  # fmt: skip
FAULTS = {
    ("copy", "a NaN is 0"): (r"= (x\[[^;]*);", r"= isnan(\1) ? 0.0f : \1;"),
    ("copy", "an infinity is limited"): (r"= (x\[[^;]*);", r"= isinf(\1) ? 3e38f : \1;"),
    ("copy", "very small ones are 0"): (r"= (x\[[^;]*);", r"= fabsf(\1) < 1e-30f ? 0.0f : \1;"),
    ("sum", "terms that are no numbers"): (r"\+= ([^;]*);", r"+= isfinite(\1) ? \1 : 0.0f;"),
    ("threads", "products with 0"): (r"(c\[[^=;]*\] \+= )([^;*]*) \* ([^;]*);", r"\1(\2 == 0.0f ? 0.0f : \2 * \3);"),
    ("threads", "a scalar of 0"): (r"\balpha \* ", "(alpha == 0.0f ? 1.0f : alpha) * "),
    ("threads", "a scalar of 1"): (r"\bbeta \* ", "(beta == 1.0f ? 1.5f : beta) * "),
    ("threads", "a small scalar"): (r"\balpha \* ", "(fabsf(alpha) < 1e-3f ? 0.0f : alpha) * "),
    ("positive", "true is 2"): (r"= ([^;]*x\[[^;]*);", r"= (\1) * 2;"),
    ("positive", "small ones"): (r"0\.0f < ", "1e-30f < "),
    ("positive", "a NaN is greater"): (r"0\.0f < ([^;]*);", r"!(\1 <= 0.0f);"),
    ("rounded", "by way of an integer"): (r"= rintf\(([^;]*)\);", r"= (float)(int)rintf(\1);"),
    ("logarithms", "large ones are limited"): (r"logf\(([^;]*)\);", r"logf(fminf(\1, 1e4f));"),
}  # fmt: skip


@functools.cache
def schedule(name: str) -> tir.Schedule:
    """A kernel that is right as it is."""
    s = BODIES[name]()
    assert s.with_source(s.source()).check("emulate")
    return s


@pytest.mark.parametrize(("name", "kind"), FAULTS)
def test_special_numbers_show(name: str, kind: str) -> None:
    pattern, new = FAULTS[name, kind]
    text, made = re.subn(pattern, new, schedule(name).source())
    assert made and {p.code for p in schedule(name).with_source(text).check("emulate").problems} == {
        "check.wrong-result"
    }


def test_what_is_padded_or_chosen_may_be_skipped() -> None:
    """0 times an infinity is NaN where a padded image is read, and nothing where a kernel leaves that term out."""
    x, w, k = tir.placeholder((8,), name="x"), tir.placeholder((3,), name="w"), tir.reduce_axis(3, "k")
    padded = tir.compute((10,), lambda i: tir.where((i > 0) & (i < 9), x[i - 1], 0.0), name="padded")
    y = tir.compute((8,), lambda i: tir.sum(padded[i + k] * w[k], k), name="y")
    for arrays in with_infinities((y,), random_arguments((y,), 0)):
        (declared,) = evaluate((y,), arrays)
        a, b = (np.asarray(v, np.float64) for v in arrays)
        with np.errstate(invalid="ignore"):
            ones = [[a[i + n - 1] * b[n] for n in range(3) if 0 <= i + n - 1 < 8] for i in range(8)]
            skipped = np.asarray([sum(terms) for terms in ones], np.float32)
        assert not infinities_spread((y,), (declared,), arrays) and not infinities_spread((y,), (skipped,), arrays)
        finite = np.where(np.isfinite(skipped), skipped, 3.0)
        assert infinities_spread((y,), (finite,), arrays)


def test_reductions_of_users_are_not_asked_about_nans() -> None:
    """Which element is largest depends on where parts meet as soon as one compares with nothing; of numbers it does
    not.
    """
    largest = tir.combiner(lambda a, b: tir.where(tir.abs(a) < tir.abs(b), b, a), 0, name="largest", commutative=False)
    x, r = tir.placeholder((17, 33, 3), name="x"), tir.reduce_axis(33, name="r")
    y = tir.compute((17, 3), lambda i, j: largest(x[i, r, j], axis=r), name="y")
    s = tir.auto_schedule(tir.compute((17, 3), lambda i, j: y[i, j] * y[i, j], name="z"), "cuda -arch=sm_80")
    assert s.check("emulate")
    text = s.source()
    assert "fabsf(" in text and not s.with_source(text.replace("fabsf(", "(", 1)).check("emulate")
    arrays = random_arguments(s.outputs, 0)
    assert not [*with_no_numbers(s.outputs, arrays, 0)]
    known = tir.compute((17, 3), lambda i, j: tir.max(x[i, r, j], axis=r), name="m")
    assert any(np.isnan(given[0]).any() for given in with_no_numbers((known,), arrays, 0))


def test_whole_numbers_of_rounded_sums_may_be_next_to_what_they_should_be() -> None:
    """Where each term is rounded to bfloat16 the order of terms decides; results of other terms are further away."""
    a, b, c = (tir.placeholder(of, "bfloat16", name=n) for n, of in (("a", (33, 2)), ("b", (33, 17)), ("c", (17, 24))))
    r, k = tir.reduce_axis(33, name="r"), tir.reduce_axis(17, name="k")
    p = tir.compute((2, 17), lambda i, j: tir.sum(a[r, i] * b[r, j], axis=r), name="p")
    q = tir.compute((2, 24), lambda i, j: tir.sum(p[i, k] * c[k, j], axis=k), name="q")
    s = tir.auto_schedule(tir.compute((2, 24), lambda i, j: q[i, j].astype("int32"), name="y"), "cuda -arch=sm_80")
    assert s.check("emulate")
    text = s.source()
    last = text.rindex("(int)")
    assert not s.with_source(text[:last] + "2 * (int)" + text[last + 5 :]).check("emulate")


def test_what_is_left_of_a_sum_that_cancels_has_few_digits() -> None:
    """Each of its terms was rounded to bfloat16; without one of them it is further away."""
    x, r = tir.placeholder((33,), "bfloat16", name="x"), tir.reduce_axis(33, name="r")
    y = tir.compute((1,), lambda i: tir.sum(x[r], axis=r), name="y")
    half = np.linspace(3.0, 5.0, 16)
    given = [np.concatenate([half, -half, [0.25]]).astype(numpy_dtype("bfloat16"))]
    want, bounds = evaluate((y,), given), rounding_of((y,), given)
    assert bounds is not None and float(want[0][0]) == 0.25
    for value, right in ((0.25, True), (0.75, True), (3.25, False)):
        verdict = compare_results((y,), [np.full_like(want[0], value)], want, bounds=bounds)
        assert bool(verdict) == right
