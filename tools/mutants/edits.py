"""Edits of texts that are kept as data, and what ``check(level="emulate")`` finds of each."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from edited_planted import tried

import tensorir as tir

Kernels = Mapping[str, Callable[[], tir.Schedule]]


def planted(text: str, edits: list[list[str]]) -> str | None:
    """The text with each edit's first place changed, or all of them; "@body NAME" is what a kernel does."""
    for old, new, *every in edits:
        if old.startswith("@body "):
            start = text.index("{", text.index(f"{old[6:]}(")) + 1
            text = text[:start] + new + text[text.index("\n}", start) + 1 :]
        elif old not in text:
            return None
        else:
            text = text.replace(old, new, -1 if every else 1)
    return text


def edits(
    path: Path, make: Mapping[str, Callable[[], tir.Schedule]], kernels: str
) -> Iterator[tuple[dict, tir.Schedule, str | None]]:
    """The rows, each with the schedule and the edited text; None where it has no place there."""
    wanted = [r for r in json.loads(path.read_text()) if kernels in r["kernel"]]
    for kernel, some in groupby(sorted(wanted, key=itemgetter("kernel")), itemgetter("kernel")):
        s = make[kernel]()
        for row in some:
            yield {key: row[key] for key in ("kernel", "about", "fate")}, s, planted(s.source(), row["edits"])


def judge_edits(doc: str, name: str, kernels: Kernels) -> int:
    """Try the rows of ``NAME.json`` on their kernels; 1 where one survives or is a false alarm."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="", help="of which the name has this in it")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    here = Path(__file__)
    wanted = edits(here.with_name(f"{name}.json"), kernels, given.kernels)
    kept = tried(wanted, here.parents[2] / "benchmarks" / "results" / f"{name}.json", given.save, 0)
    survived = [r for r in kept if r["fate"] == "seen" and r["found"] in ("passes", "void", "no place")]
    alarms = [r for r in kept if r["fate"] not in ("seen", "stricter") and r["found"].startswith("seen")]
    print(Counter((r["fate"], r["found"].split(":")[0]) for r in kept))
    for kind, some in (("survived", survived), ("false alarm", alarms)):
        print(*(f"{kind}: {r['kernel']}: {r['about']}" for r in some), sep="\n")
    return bool(survived or alarms)
