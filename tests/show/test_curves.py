"""Axes have marks that say something, and every measurement is inside the picture."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tensorir.show.curves import HEIGHT, MAX_DOTS, WIDTH, best_so_far, marks, samples

TIMES = st.lists(st.one_of(st.none(), st.floats(1e-7, 1e3)), min_size=1, max_size=50)


@given(st.floats(1e-3, 1e3), st.floats(1.02, 1e9), st.booleans())
def test_an_axis_has_a_few_round_marks(low, factor, logarithmic):
    found = marks(low, low * factor, logarithmic)
    assert 2 <= len(found) <= 7 and found == sorted(found)
    assert all(low * 0.999 <= m <= low * factor * 1.001 for m in found)
    assert logarithmic or len({f"{b - a:.3g}" for a, b in pairwise(found)}) <= 1


def inside(svg):
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    return all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places), places


@given(TIMES)
def test_the_curve_of_a_run(seconds):
    svg = best_so_far(seconds)
    known = [t for t in seconds if t is not None]
    assert bool(svg) == bool(known)
    if known:
        fine, dots = inside(svg)
        assert fine and len(dots) == len(known)
        assert "trial</text>" in svg and re.search(r"time \((?:s|ms|µs)\)</text>", svg)
        heights = [float(y) for y in re.findall(r"[ V]([\d.]+)", re.search(r'tir-curve" d="(.*?)"', svg)[1])]
        assert heights == sorted(heights)  # pixels grow downwards: the best only falls
        assert len(heights) == len({min(known[: n + 1]) for n in range(len(known))})


def test_times_that_are_none_draw_no_axis_without_extent():
    assert "<svg" in best_so_far([5e-324]) and "<svg" in best_so_far([1e-3, None], 0, str, ("numpy", 5e-324))


@given(TIMES, st.data())
def test_the_best_is_marked_and_everything_says_what_it_is(seconds, data):
    known = [n for n, t in enumerate(seconds) if t is not None]
    if not known:
        return
    chosen = data.draw(st.sampled_from(known))
    svg = best_so_far(seconds, chosen, lambda n: f"trial {n} <", ("numpy", data.draw(st.floats(1e-7, 1e3))))
    fine, dots = inside(svg)
    assert fine and len(dots) == len(known) + 1 and svg.count("tir-ring") == 1
    assert svg.count("tir-fail") == len(seconds) - len(known) and svg.count("<title>") == len(seconds) + 1
    assert "<title>trial 0 &lt;</title>" in svg


@given(st.lists(st.floats(1e-7, 10), min_size=1, max_size=50))
def test_samples_with_their_median(seconds):
    middle = sorted(seconds)[len(seconds) // 2]
    fine, dots = inside(samples(seconds, min(seconds), middle, max(seconds)))
    assert fine and len(dots) == len(seconds)


def test_a_long_run_is_thinned():
    svg = best_so_far([1e-3 / (n + 1) for n in range(5000)])
    assert svg.count("<circle") <= MAX_DOTS and len(svg) < 400_000
