"""Which ratios may be said."""

import pytest
from records import ME, ok

from tensorir.runtime.machine import ProcessorLoad
from tensorir.tune.ratio import Ratio, Span, without_slots


def span(time_s, width=0.02, spread=1.1):
    return Span(time_s, time_s * (1 - width), time_s * (1 + width), spread)


def test_a_steady_ratio_is_a_number():
    found = Ratio.of(span(1.7), span(1.0))
    assert found.steady and found.text("numpy") == "1.70x numpy" and found.share("numpy") == "170% of numpy"
    assert found.low < 1.7 < found.high and "doubt" not in found.json() and found.json()["steady"] is True
    assert Ratio.of(span(1.01), span(1.0)).text() == "1.01x", "as fast as each other is a statement too"


@pytest.mark.parametrize(
    ("above", "below", "load", "text", "doubt"),
    [
        (span(1.7, spread=3.1), span(1.0), None, "~1.7x (unsteady)", "slowest 3.1 times the fastest"),
        (span(1.7), span(1.0, spread=5.0), None, "~1.7x (unsteady)", "slowest 5.0 times the fastest"),
        (span(1.7, 0.3), span(1.0), None, "~1.7x (unsteady)", "anything from 1.2 to 2.2"),
        (span(1.15, 0.1), span(1.0, 0.1), None, "~1.1x (unsteady)", "does not say which is faster"),
        (
            span(1.7),
            span(1.0),
            ProcessorLoad(1.0, 0.9, 0.0, 2),
            "~1.7x (unsteady)",
            "other programs used 0.9 of 2 cores",
        ),
        (Span(50.0, 0.4, 60.0, 100.0), span(0.05), None, "unsteady", "slowest 100.0 times the fastest"),
    ],
)
def test_what_is_not_known_is_marked_or_withheld(above, below, load, text, doubt):
    found = Ratio.of(above, below, load)
    assert found.text() == text and doubt in found.doubt and not found.steady
    assert found.json()["doubt"] == found.doubt and "unsteady" in found.share("numpy")


def test_absurd_percentages_are_not_printed():
    """36 ms for a product that takes 34 us at rest: "106563% of numpy"."""
    found = Ratio.of(Span(36e-3, 36e-6, 40e-3, 1100.0), span(34e-6))
    assert found.share("numpy") == "unsteady against numpy" and found.text("numpy") == "unsteady against numpy"


def test_an_unsteady_ratio_of_more_than_ten_is_withheld():
    """Each call of a library whose threads wait for each other takes as long as other programs let it."""
    found = Ratio.of(span(20e-3), span(0.2e-3), ProcessorLoad(1.0, 1.5, 0.0, 2))
    assert found.text("torch") == "unsteady against torch" == found.share("torch")
    assert found.json()["ratio"] == pytest.approx(100)
    assert Ratio.of(span(20e-3), span(0.2e-3)).text() == "100.00x", "a slow peer may be one"


@pytest.mark.parametrize("above", [Span(1.0, 0.9, 1.1), Span(1e4, 5e-324, 8e4)])
def test_times_that_no_clock_shows_make_no_ratio(above):
    """Their quotient, or an end of its interval, is no number."""
    found = Ratio.of(above, Span(5e-324, 5e-324, 8e4))
    assert found.text("numpy") == "unsteady against numpy" and found.doubt


def test_of_records_and_documents():
    record = ok(2.0) | {"low_s": 1.5, "high_s": 2.5, "samples": [2.0, 1.0, 4.0], "drift": 3.0}
    assert Span.of(ME.record("trial", "t", {}, record)) == Span(2.0, 1.5, 2.5, 4.0, (2.0, 1.0, 4.0))
    assert Span.of_library({"name": "numpy", "time_s": 2.0, "low_s": 1.9, "high_s": 2.1, "spread": 7.0}).spread == 7.0
    assert Span.of_library({"name": "numpy", "time_s": 2.0}) == Span(2.0, 2.0, 2.0)


def in_rounds(slots, name, width=0.3):
    return Span(2.0, 2.0 * (1 - width), 2.0 * (1 + width), 1.5, tuple(slots), name)


def test_of_what_took_turns_each_round_gives_a_ratio():
    """The machine slows down by two thirds, and both alike: neither time is known well, their ratio is."""
    pace = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.65, 1.6]
    mine = in_rounds(pace, "a")
    other = in_rounds([1.1 * x for x in pace[:-1]] + [1.2 * pace[-1]], "a").scaled(1.1)
    found = Ratio.of(other, mine)
    assert found.steady and (found.low, found.value, found.high) == pytest.approx((1.1, 1.1, 1.1))
    same = Ratio.of(mine, mine)
    assert same.steady and (same.low, same.value, same.high) == (1.0, 1.0, 1.0)
    for apart in (in_rounds(other.slots, "b"), in_rounds(other.slots[:-1], "a"), in_rounds(other.slots, "")):
        assert not Ratio.of(apart.scaled(1.1), mine).steady
    few = Ratio.of(in_rounds([1.0, 1.2, 1.1], "a"), in_rounds([1.0, 1.0, 1.0], "a"))
    assert not few.steady, "three rounds hold the median in 75 of 100 cases"
    assert Ratio.of(in_rounds(pace[:3], "a"), in_rounds(pace[:3], "a")).steady


def test_documents_have_no_slots():
    assert without_slots({"name": "numpy", "time_s": 1.0, "samples": [1.0], "round": "a"}) == {
        "name": "numpy",
        "time_s": 1.0,
    }
