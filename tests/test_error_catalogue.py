"""Every error code that the package uses is explained, every explained code is used, and the examples are true."""

import ast
import functools
import re
import shlex
import shutil
from pathlib import Path

import pytest
from error_codes import COMPOSED, composed, made_of
from parsed import PACKAGE, nodes

import tensorir as tir
from tensorir.check.verdict import Verdict
from tensorir.cli import main
from tensorir.errors.catalogue import FOLDER, close_codes, entries, explain, of_phase, phases, prelude
from tensorir.intrin.intrin import INTRINSICS, OWN, known
from tensorir.runtime.c_device import compilers

CATALOGUE = entries()
RUNNABLE = 0.85
"""At least this share of the entries has two examples that tests run."""
CODE = re.compile(r"[a-z][a-z0-9]+(?:-[a-z]+)*\.(?=[a-z-]{3})[a-z]+(?:-[a-z]+)*")
"""Phase and reason; axis names such as y.k are shorter."""

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
    "records",
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


@functools.cache
def said():
    """Strings that have the form of a code, and f-strings given as a code: each text to its place."""
    plain, made = {}, {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in nodes(file):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                plain[node.value] = f"{file}:{node.lineno}"
            elif isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                for a in node.args[:2] if MAKERS.fullmatch(name) else ():
                    if composed(a):
                        made[composed(a)] = f"{file}:{node.lineno}"
    return plain, made


def used():
    """Codes in the package: code to where it is."""
    plain, made = said()
    found = {}
    for code, place in plain.items():
        first, last = code.split(".")
        if first not in NO_CODES and last not in FILES:
            found[code] = place
    for file in PACKAGE.glob("check/emulator/*"):
        for code in re.findall(r'problem\("([a-z.-]+)"', file.read_text(encoding="utf-8")):
            found.setdefault(code, file.name)
    for text, place in made.items():
        found.update(dict.fromkeys(made_of(text), place))
    return found


def test_every_code_is_explained():
    missing = [f"{code} ({place})" for code, place in used().items() if code not in CATALOGUE]
    assert not missing, "no entry in tensorir/errors/catalogue/*.md:\n" + "\n".join(missing)


def test_every_explained_code_is_used():
    assert sorted(set(CATALOGUE) - set(used())) == []


def test_every_composed_code_is_listed():
    """f-strings that make codes are in COMPOSED, and COMPOSED holds no others."""
    assert set(said()[1]) == set(COMPOSED)


def test_every_phase_has_a_file_of_its_own():
    assert {code.split(".")[0] for code in CATALOGUE} == set(phases())
    assert all({c.split(".")[0] for c in of_phase(p)} == {p} for p in phases())


def test_no_entry_is_overlooked():
    """What the pattern of an entry does not cover would be lost, or be part of an example."""
    for phase in phases():
        text = (FOLDER / f"{phase}.md").read_text(encoding="utf-8")
        assert text.count("\nWrong:\n") == text.count("\nRight:\n") == len(of_phase(phase)), phase
        assert text.count("\n```") == 4 * len(of_phase(phase)), phase


@pytest.mark.parametrize("phase", phases())
def test_entries_are_whole(phase):
    for code, entry in of_phase(phase).items():
        assert CODE.fullmatch(code)
        assert entry.meaning.endswith((".", ")")), code
        assert entry.wrong != entry.right, code
        assert {entry.wrong.language, entry.right.language} <= {"python", "console", "text"}, code
        text = explain(code)
        assert len(text.splitlines()) >= 7, code
        assert max(map(len, text.splitlines())) <= 130, code
        assert text.startswith(code), code


def commands(text):
    """The command lines of an example in a console; files that ``$ cat FILE`` shows are written."""
    for part in re.split(r"(?m)^\$ ", text)[1:]:
        line, _, shown = part.partition("\n")
        words = shlex.split(line)
        if words[0] == "cat":
            Path(words[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(words[1]).write_text(shown + "\n", encoding="utf-8")
        else:
            yield words


def run(example, monkeypatch):
    """What an example leaves: 0, the exit code of a command, or ``v``, a verdict or problems. Errors are raised."""
    if ('target="c"' in example.text or "c:0" in example.text) and not compilers():
        pytest.skip("no C compiler")
    if "emulate" in example.text and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no C++ compiler")
    if example.language == "python":
        names = {"__name__": "<example>"}
        exec(compile(prelude() + example.text, "<example>", "exec"), names)
        return names["v"] if isinstance(names.get("v"), Verdict | tuple) else 0
    for words in commands(example.text):
        while "=" in words[0]:
            monkeypatch.setenv(*words.pop(0).split("=", 1))
        assert words.pop(0) == "tensorir"
        if code := main.run(words):
            return code
    return 0


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """``tried(example)`` runs it in an empty folder; instructions that it registers are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "1000")
    before, own = dict(known()), set(OWN)
    yield lambda example: run(example, monkeypatch)
    INTRINSICS.clear()
    INTRINSICS.update(before)
    OWN.intersection_update(own)


@pytest.mark.filterwarnings("ignore:.*launch.copied-strides")
@pytest.mark.parametrize("code", [c for c, e in CATALOGUE.items() if e.wrong.runs])
def test_examples_are_true(code, tried, capsys):
    try:
        left = tried(CATALOGUE[code].wrong)
    except tir.TensorIRError as error:
        assert code in [p.code for p in error.problems], str(error)
        assert "<example>" in str(error)  # the user's own line is named
        assert len(str(error).splitlines()) <= 12
    else:
        told = capsys.readouterr().err if isinstance(left, int) else str(left)
        assert left != 0 and re.search(rf"\b{code}\b", told), told


def lines_of(example):
    """What an example does, without its comments."""
    return re.sub(r"(?m)^# .*\n", "", example.text)


@pytest.mark.parametrize("code", {lines_of(e.right): code for code, e in CATALOGUE.items() if e.right.runs}.values())
def test_remedies_work(code, tried):
    """Once for all codes with the same remedy."""
    left = tried(CATALOGUE[code].right)
    assert left == 0 if isinstance(left, int) else left, left


def test_most_examples_run():
    """Entries of which both examples are tried, of all; they may become more."""
    both = [e for e in CATALOGUE.values() if e.wrong.runs and e.right.runs]
    print(f"{len(both)} of {len(CATALOGUE)} entries have two examples that run")
    assert len(both) / len(CATALOGUE) >= RUNNABLE


def test_close_codes():
    assert "split.covers-extent" in close_codes("split.cover-extent")
    assert all(c.startswith("bind.") for c in close_codes("bind.nonsense")[-2:])
