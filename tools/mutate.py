"""Mutants of the package: does the suite fail on a one-token change of a line that it runs?

    python tools/mutate.py LINES --draw 300 --seed 5 --out mutants.json      (LINES: of tools/case_lines.py)
    python tools/mutate.py LINES --run mutants.json [--every-case]           (again: goes on where Ctrl-C stopped it)

Lines are drawn in each folder of the package in proportion to its code. For each mutant the tests that run its line are
run, the cheapest first and at most 30 s of processor time as recorded, without --every-case only those that a plain
`pytest` runs. "survived" is a mutant that none of them fails on: the suite misses something there, or it is equivalent;
who has found that out says so in the file, "equivalent": "why" of the mutant, or "mended": "the test that kills it".
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import platform
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

from case_lines import case_of, function_of

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 30.0
"""Of the tests of one mutant, as they were recorded."""
START_S = 3.0
"""Of a run of some tests, before the first one."""
LIMIT_S = 120
"""Processor time after which a mutant hangs, which a run of the suite would show."""
SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "//", "//": "*",
    "%": "//", "and": "or", "or": "and", "True": "False", "False": "True", "min": "max", "max": "min", "any": "all",
    "all": "any", "is": "is not", "not": "", "in": "not in", "&": "|", "|": "&", "+=": "-=", "-=": "+=", "0": "1",
    "1": "2", "2": "3", "break": "continue", "continue": "break", "lower": "upper",
}  # fmt: skip
"""Tokens and what becomes of them."""
NO_PLACE = {("is", "not"), ("not", "in")}
"""Of two tokens that are one operator only the second is changed."""


def changes(source: str) -> dict[int, list[tuple[int, str, str]]]:
    """Line -> (column, token, other token) of what can be changed there; annotations and defaults of parameters are
    left alone with the whole line of a ``def``, and so are imports and decorators.
    """
    found = defaultdict[int, list[tuple[int, str, str]]](list)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for t, after in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        (row, column), text = t.start, t.line.strip()
        if t.type not in (tokenize.NAME, tokenize.OP, tokenize.NUMBER) or t.string not in SWAPS:
            continue
        if text.startswith(("def ", "class ", "import ", "from ", "@", "for ")) or "->" in text or " | None" in text:
            continue
        if (t.string, after.string) in NO_PLACE or (t.string == "*" and after.string in ("", ",", "*")):
            continue
        if t.string != "in" or not re.search(r"\bfor\b[^])}]*$", t.line[:column]):
            found[row].append((column, t.string, SWAPS[t.string]))
    return found


def recorded(folder: Path, every: bool) -> list[dict]:
    """The tests that were recorded, without cases that a plain run leaves out."""
    rows = [json.loads(line) for f in sorted(folder.glob("**/*.jsonl")) for line in f.open()]
    kept = {} if every else json.loads((ROOT / "tests/cases.json").read_text())
    return [r for r in rows if (f := function_of(r["id"])) not in kept or case_of(r["id"]) in kept[f]["kept"]]


def draw(rows: list[dict], number: int, seed: int) -> list[dict]:
    """Mutants of lines that tests run, as many of each folder as it has such lines, of all together ``number``."""
    ran = defaultdict[str, set[int]](set)
    for r in rows:
        for f, lines in r["lines"].items():
            ran[f].update(lines)
    places = defaultdict[str, list[tuple[str, int]]](list)
    able = {f: changes((ROOT / "tensorir" / f).read_text()) for f in sorted(ran)}
    for f in sorted(ran):
        places[f.partition("/")[0]] += [(f, n) for n in sorted(ran[f] & set(able[f]))]
    rng, total = random.Random(seed), sum(map(len, places.values()))
    wanted = {room: number * len(some) / total for room, some in places.items()}
    share = {room: int(w) for room, w in wanted.items()}
    for room in sorted(wanted, key=lambda r: share[r] - wanted[r])[: number - sum(share.values())]:
        share[room] += 1
    made = list[dict]()
    for room in sorted(places):
        for f, n in rng.sample(places[room], min(share[room], len(places[room]))):
            lines = (ROOT / "tensorir" / f).read_text().split("\n")
            column, old, new = rng.choice(able[f][n])
            was, lines[n - 1] = lines[n - 1], lines[n - 1][:column] + new + lines[n - 1][column + len(old) :]
            with contextlib.suppress(SyntaxError):  # a star of arguments is no product: fewer mutants by it
                ast.parse("\n".join(lines))
                made.append({"file": f, "line": n, "was": was, "is": lines[n - 1], "token": f"{old} -> {new}"})
    rng.shuffle(made)  # so that those that a stopped run has tried are of all folders
    return made


def tests_of(mutant: dict, rows: list[dict]) -> dict[str, float]:
    """The tests that run a mutant's line, the cheapest first, of ``SECONDS`` together: what each took."""
    able = sorted((r["cpu"] + 0.02, r["id"]) for r in rows if mutant["line"] in r["lines"].get(mutant["file"], ()))
    some = dict[str, float]()
    for cpu, name in able:
        if some and sum(some.values()) + cpu > SECONDS:
            break
        some[name] = cpu
    return some


def expected_s(mutants: list[dict], rows: list[dict]) -> float:
    """Processor time at most, if all mutants survive: none but a survivor needs all of its tests."""
    return sum(START_S + sum(tests_of(m, rows).values()) for m in mutants)


def commit() -> str:
    """Of the tree that the lines are of."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def counted(data: dict, key: str) -> dict:
    """``data`` with the date, Python's version, and how many mutants became what."""
    tried = ["equivalent" if "equivalent" in m else m[key].partition(":")[0] for m in data["mutants"] if key in m]
    said = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
    head = {k: v for k, v in data.items() if k != "mutants"}
    return {**head, **said, key: dict(Counter(tried).most_common()), "mutants": data["mutants"]}


def write(path: Path, data: dict) -> None:
    """At once: who stops the run finds the file as it was or as it is to be."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    part.replace(path)


def tried(mutant: dict, rows: list[dict], tree: Path) -> str:
    """What becomes of a mutant: the first test that fails on it, "survived", "hangs", "gone" (another line stands there
    now) or "no tests".
    """
    path = tree / "tensorir" / mutant["file"]
    source = path.read_text()
    lines = source.split("\n")
    if lines[mutant["line"] - 1 : mutant["line"]] != [mutant["was"]]:
        return "gone"
    tests = tests_of(mutant, rows)
    if not tests:
        return "no tests"
    lines[mutant["line"] - 1] = mutant["is"]
    path.write_text("\n".join(lines))
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))  # noqa: E731
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rf", *tests]
    env = {**os.environ, "PYTHONPATH": str(tree)}  # of the processes that tests start in other folders as well
    try:
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=4 * LIMIT_S,
            preexec_fn=limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "hangs"
    finally:
        path.write_text(source)
    if done.returncode < 0:
        return "hangs"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "survived" if not done.returncode else f"killed: {(failed or ['at import'])[0][:160]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--draw", type=int, help="mutants")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--run", type=Path, help="a file of --out; what became of each is written into it")
    parser.add_argument("--every-case", action="store_true")
    given = parser.parse_args()
    rows = recorded(given.lines, given.every_case)
    if given.draw:
        mutants = draw(rows, given.draw, given.seed)
        print(f"seed {given.seed}, at most {expected_s(mutants, rows) / 60:.0f} minutes of processor time")
        write(given.out, {"seed": given.seed, "commit": commit(), "mutants": mutants})
        return 0
    data, key = json.loads(given.run.read_text()), "every case" if given.every_case else "plain"
    left = [m for m in data["mutants"] if key not in m]
    print(f"{len(left)} mutants, at most {expected_s(left, rows) / 60:.0f} minutes of processor time", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", "__pycache__", ".venv", "build", "html"))
        for n, mutant in enumerate(data["mutants"]):
            if key in mutant:
                continue
            began = time.time()
            mutant[key] = tried(mutant, rows, tree)
            where = f"{mutant['file']}:{mutant['line']} {mutant['token']}"
            print(f"{n}: {where}: {mutant[key]} ({time.time() - began:.0f} s)", flush=True)
            write(given.run, counted(data, key))
    write(given.run, found := counted(data, key))
    print(found[key])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped: the same command goes on")
