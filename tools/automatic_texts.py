"""Texts of automatic schedules of many declarations: what a change of the rules touches.

    python tools/automatic_texts.py BEFORE.json                     # in one tree
    python tools/automatic_texts.py AFTER.json --against BEFORE.json  # in another: lists what differs, and seconds

Declarations are those of ``tests/automatic`` (operators, Ansor's set, drawn ones), of the gallery and of
``benchmarks/cliffs.py``; targets are resolved ones, so that any machine gives the same texts. ``--templates`` adds the
default of every template, which takes five times as long. Nothing is drawn, compiled or timed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "automatic"), str(ROOT / "benchmarks"), str(ROOT / "examples")]

import tensorir as tir  # noqa: E402
from tensorir.errors import TensorIRError  # noqa: E402

TARGETS = {
    "c": "c -registers=32 -vector_bytes=64 -units=2",
    "opencl": "opencl -registers=32 -vector_bytes=64 -units=2",
    "sm_80": "cuda -arch=sm_80",
    "sm_90a": "cuda -arch=sm_90a",
}
FINDER = 36
"""Declarations of the cliff finder: each kind in each size once."""


def declarations() -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, function that declares it)."""
    import ansor_set
    import cliffs
    import operator_set
    from drawing import WIDE, drawn
    from gallery import NAMES

    yield from operator_set.REAL.items()
    yield from ((f"ansor {name}", lambda made=made: made) for name, made in ansor_set.operators(real=True))
    yield from ((f"gallery {n}", lambda n=n: importlib.import_module(f"gallery.{n}").OUTPUT) for n in NAMES)
    yield from ((f"drawn {n}", lambda n=n: drawn(n).outputs) for n in (*range(20), *range(WIDE, WIDE + 10)))
    yield from ((f"finder {n}", lambda n=n: cliffs.drawn(20261130, n)[2]) for n in range(FINDER))


def texts(options: argparse.Namespace) -> Iterator[tuple[str, tuple[str, float]]]:
    """(target, declaration and template; ``hashed``) of all that the options ask for."""
    asked = {key: target for key, target in TARGETS.items() if key in (options.target or TARGETS)}
    for name, declare in declarations():
        for key, target in asked.items() if re.search(options.only, name) else ():
            outputs = declare()
            yield f"{key}: {name}", hashed(lambda outputs=outputs, target=target: tir.auto_schedule(outputs, target))
            for template, made in tir.auto(outputs, target).items() if options.templates else ():

                def scheduled(made: Any = made, outputs: Any = outputs, target: str = target) -> Any:
                    s = tir.Schedule(outputs, target)
                    return made.function(s, dict(made.space_for(tir.Target.parse(target)).default)) or s

                yield f"{key}: {name}: {template}", hashed(scheduled)


def hashed(scheduled: Callable[[], Any]) -> tuple[str, float]:
    """Hash of a schedule's text, and the microseconds that its model says; an error's code and nan instead."""
    try:
        s = scheduled()
        return hashlib.sha256(s.source().encode()).hexdigest()[:16], round(s.expected.seconds * 1e6, 2)
    except TensorIRError as e:
        return e.code, math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--templates", action="store_true")
    parser.add_argument("--target", action="append", choices=TARGETS, help="all of them without it")
    parser.add_argument("--only", metavar="REGEX", default="", help="declarations")
    options = parser.parse_args()
    found = dict(texts(options))
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    before = json.loads(options.against.read_text()) if options.against else {}
    apart = [name for name in found if name in before and found[name][0] != before[name][0]]
    for name in apart:
        was, now = before[name][1], found[name][1]
        print(f"{name}: {was} -> {now} us modelled, {was / now:.2f}")
    print(f"{len(found)} texts, {len(apart)} of {len(found.keys() & before.keys())} others than before")


if __name__ == "__main__":
    main()
