"""The package and its documentation use the field's terms: phrases of an older way of writing stay rare.

Docstrings begin with a noun or a verb, public classes have names of their own, constants say quantity and unit.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from parsed import FILES, PACKAGE, nodes, tree

ROOT = Path(__file__).parents[1]
READ = ("tensorir/**/*.py", "tensorir/**/*.md", "docs/**/*.md", "docs/**/*.ipynb", "README.md", "CONTRIBUTING.md")
MOST = 0.25
"""Phrases per 1,000 lines, all of ``PHRASES`` together."""

SHOWN = 40
"""Places that the message of a failure lists."""

PHRASES = {
    r"beside": "next to, alongside, concurrently with, in addition to",
    r"lies?": "is, is stored in, is defined in",
    r"(?:tak(?:es?|ing)|took) turns|in turns?": "alternate, interleaved, round-robin, double-buffered, ping-pong",
    r"under way": "in flight, asynchronous, in progress",
    r"(?:go|goes|going|went|gone) on": "continue, run, keep, accumulate onto",
    r"deal(?:s|t|ing)?(?: [^\s.,;:]+){0,3} out": "distribute (iterations to threads), assign",
    r"by (?:itself|themselves)": "alone, separately, asynchronously",
    r"on (?:its|their) own": "asynchronous, separately, alone",
    r"ow(?:es?|ed)": "requires, has to",
    r"behind": "after, past the end of, followed by",
}
"""Pattern of whole words, blanks of any kind between them, to what to write instead."""

PATTERNS = {re.compile(rf"\b(?:{p})\b".replace(" ", r"\s+"), re.IGNORECASE): say for p, say in PHRASES.items()}


class Place(NamedTuple):
    """A phrase, the line where it begins, and what to write instead."""

    line: int
    phrase: str
    say: str


def phrases(text: str) -> list[Place]:
    """The phrases of ``PHRASES`` in ``text``, by line; one may run over the end of a line, in comments too."""
    plain = re.sub(r"(?m)^([ \t]*)#", r"\1 ", text)  # as long as the text is, so that places stay
    found = (
        Place(text.count("\n", 0, m.start()) + 1, " ".join(m[0].split()), say)
        for pattern, say in PATTERNS.items()
        for m in pattern.finditer(plain)
        if not m[0].isupper()  # a constant's name
    )
    return sorted(found)


def texts() -> Iterator[tuple[str, str]]:
    """Every text that is read: its path, and what it holds."""
    for path in sorted({p for pattern in READ for p in ROOT.glob(pattern)}):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_the_field_s_terms_are_used():
    read = dict(texts())
    assert {"README.md", "CONTRIBUTING.md", "tensorir/ir/tree.py", "docs/tuning.md"} <= set(read)
    lines = sum(text.count("\n") for text in read.values())
    places = [(path, place) for path, text in read.items() for place in phrases(text)]
    rate = 1000 * len(places) / lines
    shown = "\n".join(f"{path}:{p.line}: {p.phrase!r}; say: {p.say}" for path, p in places[:SHOWN])
    assert rate <= MOST, (
        f"{len(places)} phrases in {lines} lines, {rate:.2f} per 1,000 (<= {MOST}). The first:\n{shown}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "the buffer beside it", "where the tile lies", "Tiles lie here", "two buffers take turns", "Taking turns",
        "in turn", "a copy is under way", "the thread goes on", "going on", "dealt out", "by themselves",
        "deals the iterations out to threads", "on its own", "what is owed to them", "behind the last row",
    ],
)  # fmt: skip
def test_each_phrase_is_found(text):
    assert len(phrases(text)) == 1
    broken = text.replace(" ", "\n    # ")
    assert len(phrases(broken)) == 1, "a line may end inside of a phrase"


@pytest.mark.parametrize(
    "text",
    ["besides", "applies", "belief", "turns=2", "returns", "in turning", "underway_s", "going once",
     "deal with it, out of order", "by it", "on its owner", "borrowed", "flowed", "dealt cards. Out", "sides_behind",
     "2 * BESIDE"],
)  # fmt: skip
def test_other_words_are_not(text):
    assert not phrases(text)


def test_places_are_lines():
    assert [(p.line, p.phrase) for p in phrases("one\n# it goes\n# on\n\nbeside\n")] == [(2, "goes on"), (5, "beside")]


# --- names and first words

OWN = [file for name, file in sorted(FILES.items()) if ".shipped" not in name]
"""Files of the package; shipped ones name things for those who read an exported folder."""

GENERAL = {
    "ADDED", "AGAIN", "ALWAYS", "APART", "AROUND", "ASKED", "AWAY", "BEHIND", "CHEAP", "CHOSEN", "COMBINED",
    "CROWDED", "DEEP", "DEEPEST", "DOUBT", "DRAWN", "EACH", "ENDED", "EVERYTHING", "FAR", "FEW", "FEWEST",
    "FINAL", "FIRST", "GIVEN", "HALF", "HANDED", "HARM", "HELD", "HERE", "HIGH", "HOPE", "HOPELESS", "HUGE",
    "INSIDE", "JOINED", "JUDGED", "KEEP", "KEPT", "KNOWN", "LARGE", "LARGEST", "LAST", "LATE", "LEAST", "LEAVE",
    "LEFT_OVER", "LIKELY", "LIMIT", "LISTED", "LONG", "LONGEST", "LOOK", "LOOKS", "LOST", "LOW", "MADE", "MANY",
    "MEASURED", "MORE", "MOST", "NAMED", "NARROW", "NEAR", "NEARER", "NEVER", "NEW", "NEXT", "OTHER", "OURS",
    "PARTLY", "PICKED", "PLAIN", "RARE", "RECENT", "REPEATED", "REST", "ROOM", "SAME", "SECOND", "SEVERAL",
    "SHARE", "SHARED", "SHORT", "SHOWN", "SIZE", "SLOW", "SMALL", "SOUND", "SPARE", "START", "STEADY", "STRAY",
    "TALL", "THRICE", "TOGETHER", "TOLD", "TRIED", "UNEVEN", "UNTOLD", "USUAL", "WAIT", "WHOLE", "WIDE", "WIDEST",
    "WORK", "WORTH",
}  # fmt: skip
"""Words that say neither a quantity nor a unit: no constant of a module is named by one alone."""

QUESTIONS = ("What", "How", "Whether", "Whose")
SHARE_OF_QUESTIONS = 2.0
"""Percent of a folder's docstrings that begin with one of ``QUESTIONS``, at most."""


def room(file: Path) -> str:
    """The folder of a file of the package."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def constants(module: ast.Module) -> Iterator[str]:
    """The names that a module assigns at its top."""
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name):
                    yield name.id


def first_words(file: Path) -> Iterator[str]:
    """The first word of each docstring of a file."""
    for node in nodes(file):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (ast.get_docstring(node) or "").split()[:1]


def test_public_classes_have_names_of_their_own():
    places = defaultdict(list)
    for file in OWN:
        for node in nodes(file):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice, f"two classes of one name: {twice}"


def test_constants_say_quantity_and_unit():
    named = ((file, name) for file in OWN for name in constants(tree(file)))
    found = [f"{file.relative_to(PACKAGE)}: {name}" for file, name in named if name.lstrip("_") in GENERAL]
    assert not found, f"constants of one general word: {found}"


def test_docstrings_begin_with_a_noun_or_a_verb():
    words = defaultdict(Counter)
    for file in OWN:
        words[room(file)].update(word in QUESTIONS for word in first_words(file))
    share = {folder: 100 * count[True] / count.total() for folder, count in words.items() if count.total()}
    wrong = {f: f"{s:.1f} %" for f, s in share.items() if s > SHARE_OF_QUESTIONS}
    assert not wrong, f"docstrings begin with {', '.join(QUESTIONS)}: {wrong}"
