"""README, changelog and pages: their lengths, their picture and tables, and what pages show of the package."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

from tensorir.schedule.registry import PRIMITIVES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MAX_WORDS = {"README.md": 1300, "CHANGELOG.md": 600}


@pytest.fixture
def module(monkeypatch):
    """A module of docs/ by its name."""
    monkeypatch.syspath_prepend(str(DOCS))
    taken = []

    def load(name):
        taken.append(name)
        return importlib.import_module(name)

    yield load
    for name in taken:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("page", MAX_WORDS)
def test_it_is_short(page):
    words = len((ROOT / page).read_text(encoding="utf-8").split())
    assert words <= MAX_WORDS[page], f"{page} has {words} words; history is in git, figures are in docs/figures.md"


def test_the_picture_is_of_the_kernel_that_is_emitted(module, request):
    picture = module("picture")
    drawn = picture.drawing()
    if request.config.getoption("--update-golden"):
        picture.OUT.write_text(drawn, encoding="utf-8")
    assert picture.OUT.read_text(encoding="utf-8") == drawn, "python docs/picture.py draws it anew"


def test_each_step_of_the_picture_has_lines(module):
    """A pattern that the emitted text no longer has would leave a step without its lines."""
    picture = module("picture")
    lines = [line.strip() for line in picture.kernel()]
    assert [p for p in picture.numbers() if not any(re.search(p, line) for line in lines)] == []


def test_the_readme_has_the_figures_of_the_results(module):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert module("figures").readme(text) == text, "python docs/figures.py writes them anew"
    assert text.index("docs/pictures/kernel.svg") < text.index("| computation | peer |") < text.index("\n## ")


def test_every_table_of_figures_is_included(module):
    figures = module("figures")
    text = (DOCS / "figures.md").read_text(encoding="utf-8")
    assert set(re.findall(r"generated/figures/(\w+)\.inc", text)) == set(figures.PARTS)
    assert all(make().count("\n|") > 2 for make in figures.PARTS.values())


def test_primitives_show_the_tree_that_they_change(module):
    """Lines that come and go, made when the page is built."""
    page = module("generate").primitives()
    shown = {part.split("`")[1]: part for part in re.split(r"^### ", page, flags=re.M)[1:]}
    assert shown.keys() == PRIMITIVES.keys()
    assert [n for n, part in shown.items() if "```diff" not in part] == []
    assert "\n+   for C.i.0 in 3:" in shown["split"] and "\n-   for C.i in 9:" in shown["split"]


def pages():
    return sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("path", pages(), ids=lambda p: p.stem)
def test_blocks_that_print_are_executed(path):
    """Python that prints stands in cells, whose output the build shows; but for frameworks that the build lacks."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if path.stem in ("to-torch", "to-jax", "to-onnxruntime", "to-tvm-ffi"):
        return  # tests/destinations compares their output, and writes it by --update-golden
    assert [b for b in blocks if re.search(r"^\s*print\(", b, re.MULTILINE)] == []
    assert not re.search(r"^```(text|console)$", text, re.MULTILINE), "an output that nothing made"


def test_tutorials_are_numbered_in_the_order_of_the_contents():
    contents = (DOCS / "index.md").read_text(encoding="utf-8").split(":caption: Tutorials", 1)[1].split("```", 1)[0]
    titles = [re.search(r"^# (.*)", (DOCS / f"{n}.md").read_text("utf-8"), re.M)[1] for n in contents.split()]
    numbered = [int(m[1]) for t in titles if (m := re.match(r"Tutorial (\d+):", t))]
    assert numbered == list(range(1, len(numbered) + 1)) and len(numbered) > 8


NAMED = re.compile(r"`(?:python )?((?:[\w.-]+/)+[\w.-]+\.(?:py|md|json|toml))[ `]")
OTHERS = ("mm/", "doc/reading/", "WORKLOAD/")
"""Files of an exported folder, of another project, and of any log."""


@pytest.mark.parametrize("path", [*pages(), ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.stem)
def test_files_that_it_names_are_there(path):
    """Paths from the root, the package, or the benchmarks."""
    found = set(NAMED.findall(path.read_text(encoding="utf-8")))
    homes = (ROOT, ROOT / "tensorir", ROOT / "benchmarks")
    missing = [n for n in found if not any((home / n).exists() for home in homes)]
    assert [n for n in missing if not n.startswith(OTHERS) and "NAME" not in n] == []


def test_what_decides_is_where_the_page_says():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Where it is decided\n")[2].partition("\n## ")[0]
    places = re.findall(r"`([\w/]+\.py)` `(\w+)`", table)
    assert len(places) >= 30
    for path, name in places:
        body = ast.parse((ROOT / "tensorir" / path).read_text(encoding="utf-8")).body
        targets = [t for n in body if isinstance(n, ast.Assign) for t in n.targets]
        targets += [n.target for n in body if isinstance(n, ast.AnnAssign)]
        known = {getattr(n, "name", "") for n in body} | {getattr(t, "id", "") for t in targets}
        assert name in known, f"{path} has no {name}"
