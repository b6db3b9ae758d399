"""The package and its documentation use the field's terms: phrases of an older way of writing stay rare."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

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
