"""The figures of a report: what they say is inside them, whatever was measured."""

import re
from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tensorir.show.curves import WIDTH
from tensorir.show.figures import Point, Roof, importances, parallel, ratio_bar, roofline
from tensorir.tune.ratio import Ratio
from tensorir.tune.summary import Importance

RATES = st.floats(1e3, 1e16)
POINTS = st.builds(
    lambda name, x, r: Point(name, x, r, r * 0.9, r * 1.1, r / 2), st.sampled_from(["a b=1", "a <c>", "d"]),
    st.floats(1e-3, 1e5), RATES,
)  # fmt: skip


def inside(svg, width=WIDTH, height=250):
    found = re.findall(r'c?x="(-?[\d.]+)" c?y="(-?[\d.]+)"', svg)
    return found and all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in found)


@given(
    st.lists(POINTS, min_size=1, max_size=4), st.one_of(st.none(), st.builds(Roof, RATES, RATES, st.just("measured")))
)
def test_a_roofline(points, roof):
    svg = roofline(points, roof)
    assert inside(svg) and svg.count("tir-best") == len(points)
    assert "operations a byte" in svg and "rate (GFLOP/s)" in svg and "<c>" not in svg
    assert ("measured" in svg) == (roof is not None) == ("tir-roof" in svg)
    if roof is not None:
        assert "tir-roof" not in roofline(points, replace(roof, measured=False))


@given(RATES, RATES, st.floats(1e-6, 1e6))
def test_a_roof_is_the_lower_of_two(flops, moved, intensity):
    most, what = Roof(flops, moved, "").at(intensity)
    assert most == min(flops, moved * intensity) and (what == "memory") == (moved * intensity < flops)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_importances_have_their_intervals(shares):
    found = [Importance("t", f"k{n}", sorted(s)[1], 9, sorted(s)[0], sorted(s)[2]) for n, s in enumerate(shares)]
    svg = importances(found)
    assert svg.count("tir-bar") == svg.count("tir-whisker") == min(12, len(found))
    assert f"{found[0].share:.0%} ({found[0].low:.0%} to {found[0].high:.0%}), 9 trials" in svg


@given(st.floats(1e-9, 1e9), st.floats(1, 1e6))
def test_a_ratio_of_any_size_is_on_its_axis(value, factor):
    svg = ratio_bar(Ratio(value, value / factor, value * factor))
    x = float(re.search(r'cx="([\d.]+)"', svg)[1])
    assert (5 <= x <= 125 and (x < 65) == (value < 1)) or abs(value - 1) < 0.1


def test_lines_are_thinned_and_the_best_is_last():
    trials = [SimpleNamespace(id=str(n), steady_s=1e-3 * (1 + n), config={"a": n % 7, "b": n % 5})
              for n in range(1000)]  # fmt: skip
    svg = parallel(trials, range(1000), "500", lambda n: f"trial {n}")
    assert svg.count("tir-line") <= 250 and svg.count("tir-chosen") == 1
    assert svg.rfind("tir-chosen") > svg.rfind("tir-line"), "drawn over the others"
    assert 'class="tir-chosen" data-t="500"' in svg and "<title>trial 0</title>" in svg
