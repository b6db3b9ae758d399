"""Every error code that the package uses is explained, every explained code is used, and the examples are true."""

import ast
import re
from pathlib import Path

import pytest

import tensorir as tir
from tensorir.cli.explain_data import CATALOGUE, PRELUDE, close_codes, explain

PACKAGE = Path(__file__).parents[1] / "tensorir"
CODE = re.compile(r"[a-z]+(?:-[a-z]+)*\.[a-z]+(?:-[a-z]+)*")

COMPOSED = {
    '"{primitive}.serial"': ("split", "fuse", "bind", "vectorize", "unroll", "annotate"),
    '"{primitive}.scheduled"': ("compute-at", "reverse-compute-at", "inline", "reverse-inline"),
    '"{primitive}.partial-reduction"': ("reverse-compute-at", "stage-out"),
    '"{primitive}.not-elementwise"': ("reverse-compute-at", "stage-out"),
    '"{primitive}.whole-axis"': ("reverse-compute-at", "stage-out"),
    '"{primitive}.guard"': ("reverse-compute-at", "stage-out"),
    '"{what}.own-buffer"': ("set-scope", "layout"),
    '"{what}.gone"': ("loop", "stage", "tensor"),
    '"{what}.unknown"': ("loop", "stage", "tensor"),
}
"""f-strings that make codes, with what fills them in."""

NO_CODES = {"block", "thread", "kernel", "cuda", "pyopencl", "tensorir", "opencl", "numpy", "importlib"}
"""First words of dotted strings that are not codes: hardware axes, files, modules, instructions."""


def literals():
    """Every dotted string of the package with its place, and every f-string that makes a code."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.name.startswith("explain_"):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        inside = {id(v) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for v in ast.walk(node)}
        for node in ast.walk(tree):
            place = f"{file.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield place, ast.unparse(node)[1:].replace("'", '"'), True
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                yield place, node.value, False


def used():
    """Codes in the package: code to where it is."""
    found = {}
    for place, text, composed in literals():
        if composed:
            for first in COMPOSED.get(text, ()):
                found[text.strip('"').replace("{primitive}", first).replace("{what}", first)] = place
        elif CODE.fullmatch(text) and text.split(".")[0] not in NO_CODES and not is_file(text):
            found[text] = place
    return found


def is_file(text):
    return text.rsplit(".", 1)[-1] in (
        "py",
        "cl",
        "cu",
        "h",
        "json",
        "jsonl",
        "md",
        "html",
        "css",
        "svg",
        "toml",
        "txt",
        "log",
    )


def test_every_code_is_explained():
    missing = {code: place for code, place in used().items() if code not in CATALOGUE}
    assert not missing, "\n".join(
        f"{code} ({place}) has no entry in tensorir/cli/explain_*.py" for code, place in missing.items()
    )


def test_every_explained_code_is_used():
    assert not set(CATALOGUE) - set(used())


def test_every_composed_code_is_listed():
    """An f-string of the form ``{word}.reason`` makes codes: it must be in COMPOSED, and COMPOSED must not rot."""
    made = {
        text for _, text, composed in literals() if composed and re.fullmatch(r'"\{(primitive|what)\}\.[a-z-]+"', text)
    }
    assert made == set(COMPOSED)


@pytest.mark.parametrize("code", CATALOGUE)
def test_entry_is_whole(code):
    entry = CATALOGUE[code]
    assert CODE.fullmatch(code)
    assert entry.meaning.endswith((".", ")"))
    assert entry.wrong
    assert entry.right
    assert entry.wrong != entry.right
    text = explain(code)
    assert len(text.splitlines()) >= 7
    assert max(map(len, text.splitlines())) <= 130
    assert text.startswith(code)


def run(code):
    names = {}
    exec(compile(PRELUDE + code, "<example>", "exec"), names)


@pytest.mark.parametrize("code", [c for c, e in CATALOGUE.items() if e.runs])
def test_examples_are_true(code):
    with pytest.raises(tir.TensorIRError) as caught:
        run(CATALOGUE[code].wrong)
    assert code in [p.code for p in caught.value.problems], str(caught.value)
    assert "<example>" in str(caught.value)  # the user's own line is named
    assert len(str(caught.value).splitlines()) <= 12


@pytest.mark.parametrize("code", [c for c, e in CATALOGUE.items() if not e.right.startswith(("#", "$"))])
def test_remedies_work(code):
    run(CATALOGUE[code].right)


def test_close_codes():
    assert "split.covers-extent" in close_codes("split.cover-extent")
    assert all(c.startswith("bind.") for c in close_codes("bind.nonsense")[-2:])
