"""An executed notebook that shows each public object, rendered in a real browser; and the live cell of a tuning run."""

from pathlib import Path

import pytest
from browser import MISSING, browser, measured
from notebooks import executed, html_of, page
from public import public

HERE = Path(__file__).parent
PATH = f"import sys; sys.path.insert(0, {str(HERE)!r})"
NAMES = sorted(f"{c.__module__}.{c.__name__}" for c in public())


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """The notebook with a cell for each public class."""
    setup = f"{PATH}\nfrom public import public\nfrom specimens import specimen, specimens\nmade = specimens()\n"
    setup += "of = {f'{c.__module__}.{c.__name__}': c for c in public()}"
    return executed([setup, *(f"specimen(of[{n!r}])" for n in NAMES)], tmp_path_factory.mktemp("every")).nb


def test_each_object_shows_itself(every):
    for name, cell in zip(NAMES, every.cells[1:], strict=True):
        shown = html_of(cell)
        assert len(shown) == 1 and shown[0].startswith('<div class="tir">') and "<script" not in shown[0], name


RGB = {False: "rgb(255, 255, 255)", True: "rgb(17, 17, 17)"}


@pytest.mark.skipif(browser() is None, reason=MISSING)
@pytest.mark.parametrize(
    ("host", "width"), [("light notebook", 1000), ("dark notebook", 480), ("light page", 480), ("dark page", 1000)]
)
def test_a_browser_finds_nothing_wrong(every, host, width):
    dark = host.startswith("dark")
    if host.endswith("notebook"):
        pytest.importorskip("nbconvert", reason="nbconvert, which makes a page of a notebook, is not installed")
        text, preferred = page(every, "dark" if dark else "light"), not dark  # what the notebook says counts
    else:
        text, preferred = "".join(html_of(cell)[0] for cell in every.cells[1:]), dark
    found = measured(text, preferred, (width, 900))
    assert len(NAMES) <= found["cards"] <= len(NAMES) + 1 and found["tables"] >= 40
    assert found["svgs"] >= 2  # the samples of a Timing, the trials of a TuneOutcome
    assert set(found["background"]) == {RGB[dark]}
    assert found["folds"] >= 15 and found["open"] == 0 and found["tree"] >= 5
    assert found["mono"] == 0
    assert found["texts"] > 500 and found["contrasts"][0][0] >= 4.5, found["contrasts"]
    assert not found["wide"], found["wide"]
    if host.endswith("page"):
        assert found["page"][0] <= found["page"][1]
