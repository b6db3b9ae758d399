"""Every error code that the package uses is explained, every explained code is used, and the examples are true."""

import ast
import functools
import re
from pathlib import Path

import pytest

import tensorir as tir
from tensorir.cli.explain_data import CATALOGUE, PRELUDE, close_codes, explain
from tensorir.runtime.c_device import compilers

PACKAGE = Path(__file__).parents[1] / "tensorir"
CODE = re.compile(r"[a-z][a-z0-9]+(?:-[a-z]+)*\.(?=[a-z-]{3})[a-z]+(?:-[a-z]+)*")
"""Phase and reason; axis names such as y.k are shorter."""

COMPOSED = {
    "{primitive}.serial": (
        "split",
        "partition",
        "fuse",
        "bind",
        "parallel",
        "vectorize",
        "unroll",
        "annotate",
        "pipeline",
        "reindex",
    ),
    "{mark}.lost": ("annotate", "partition", "specialize"),
    "{primitive}.scheduled": ("compute-at", "reverse-compute-at", "inline", "reverse-inline"),
    "{primitive}.partial-reduction": ("reverse-compute-at",),
    "{primitive}.not-elementwise": ("reverse-compute-at", "stage-out"),
    "{primitive}.whole-axis": ("reverse-compute-at", "stage-out"),
    "{primitive}.guard": ("reverse-compute-at", "stage-out"),
    "{what}.own-buffer": ("set-scope", "layout"),
    "{what}.gone": ("loop", "stage", "tensor"),
    "{what}.unknown": ("loop", "stage", "tensor"),
    "{primitive}.via": ("stage-in", "stage-out"),
    "{primitive}.vector": ("stage-in", "stage-out"),
    "{primitive}.tile-copy": ("stage-in", "stage-out"),
    "{primitive}.room": ("compute-at", "reverse-compute-at", "stage-in", "stage-out", "prefetch"),
    "{primitive}.made-later": ("reverse-compute-at", "reverse-inline"),
    "{primitive}.scattered": ("reverse-compute-at", "stage-out"),
    "tensorize.{code}": ("one-stage", "dialect", "needs", "same-meaning", "tail", "warp", "scope"),
    "race.{place}": ("shared", "global"),
    "conv2d.{name}": ("stride", "dilation", "groups"),
    "{op}.precision": ("conv2d", "grouped-matmul", "matmul"),
    "intrin.{code}": ("meaning", "text", "fragment"),
}
"""f-strings that make codes, with what fills them in."""

MAKERS = re.compile(r"Problem|\w*(refuse|fail)")
"""Functions whose first or second argument is a code."""

NO_CODES = (
    "block",
    "thread",
    "kernel",
    "cuda",
    "pyopencl",
    "ai",
    "tensorir",
    "opencl",
    "numpy",
    "importlib",
    "svg",
    "font",
    "shared",
)
"""First words of dotted strings that are not codes: axes, files, modules, instructions, settings of figures, other
tools' words."""

FILES = (
    "py",
    "c",
    "cl",
    "cu",
    "cpp",
    "json",
    "jsonl",
    "md",
    "html",
    "css",
    "svg",
    "toml",
    "txt",
    "log",
    "npy",
    "bin",
    "max",
    "cubin",
    "ptx",
    "dll",
)


def trees():
    for file in sorted(PACKAGE.rglob("*.py")):
        if not file.name.startswith("explain_"):
            yield file.relative_to(PACKAGE), ast.parse(file.read_text(encoding="utf-8"))


def f_string(node):
    """The text of an f-string, its fields in braces."""
    return "".join(v.value if isinstance(v, ast.Constant) else f"{{{ast.unparse(v.value)}}}" for v in node.values)


@functools.cache
def said():
    """Strings that have the form of a code, and f-strings given as a code: each text to its place."""
    plain, composed = {}, {}
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                plain[node.value] = f"{file}:{node.lineno}"
            elif isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                for a in node.args[:2] if MAKERS.fullmatch(name) else ():
                    if isinstance(a, ast.JoinedStr) and re.fullmatch(r"[\w{}.-]+\.[\w{}-]+", f_string(a)):
                        composed[f_string(a)] = f"{file}:{node.lineno}"
    return plain, composed


def used():
    """Codes in the package: code to where it is."""
    plain, composed = said()
    found = {}
    for code, place in plain.items():
        first, last = code.split(".")
        if first not in NO_CODES and last not in FILES:
            found[code] = place
    for file in PACKAGE.glob("check/emulator/*"):
        for code in re.findall(r'problem\("([a-z.-]+)"', file.read_text(encoding="utf-8")):
            found.setdefault(code, file.name)
    for text, place in composed.items():
        for word in COMPOSED.get(text, ()):
            found[re.sub(r"\{\w+\}", word, text)] = place
    return found


def test_every_code_is_explained():
    missing = [f"{code} ({place})" for code, place in used().items() if code not in CATALOGUE]
    assert not missing, "no entry in tensorir/cli/explain_*.py:\n" + "\n".join(missing)


def test_every_explained_code_is_used():
    assert sorted(set(CATALOGUE) - set(used())) == []


def test_every_composed_code_is_listed():
    """f-strings that make codes are in COMPOSED, and COMPOSED holds no others."""
    assert set(said()[1]) == set(COMPOSED)


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
    if 'target="c"' in code and ".build()" in code and not compilers():
        pytest.skip("no C compiler")
    names = {}
    exec(compile(PRELUDE + code, "<example>", "exec"), names)


@pytest.mark.parametrize("code", [c for c, e in CATALOGUE.items() if not e.wrong.startswith(("#", "$"))])
def test_examples_are_true(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tir.TensorIRError) as caught:
        run(CATALOGUE[code].wrong)
    assert code in [p.code for p in caught.value.problems], str(caught.value)
    assert "<example>" in str(caught.value)  # the user's own line is named
    assert len(str(caught.value).splitlines()) <= 12


@pytest.mark.parametrize("code", [c for c, e in CATALOGUE.items() if not e.right.startswith(("#", "$"))])
def test_remedies_work(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(CATALOGUE[code].right)


def test_close_codes():
    assert "split.covers-extent" in close_codes("split.cover-extent")
    assert all(c.startswith("bind.") for c in close_codes("bind.nonsense")[-2:])
