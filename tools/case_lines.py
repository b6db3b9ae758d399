"""Lines of the package that each test runs, and the cases of large tests whose lines no other tests run often enough.

    TENSORIR_LINES=lines PYTHONPATH=tools python -m pytest -p case_lines --every-case     (Python 3.12 or newer)
    python tools/case_lines.py lines --out tests/cases.json

Recording takes a tenth of the suite's time: a line says once in a test that it ran (``sys.monitoring``). Of tests with
several cases, each line is then kept in several, the cheapest per line that is still needed; ``tests/conftest.py`` runs
those, with a few of the others that a seed draws, and ``--every-case`` (``.ci/long``) all. Without ``--every-case``
cases are chosen among those that a plain run has, and of folders that were not recorded nothing changes.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import resource
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TIMES = 3
"""Tests that run a line where as many can."""
SCHEDULES = frozenset({"algorithms", "automatic", "ops", "property", "warps"})
"""Folders whose tests check schedules by the same rules, templates or primitives: lines of the package tell their cases
apart. Others try texts, processes or numbers, of which no line of Python knows.
"""
CASES, SECONDS = (4, 2), (2.0, 0.5)
"""Tests with fewer cases, or of less processor time, are left whole; the second number is of those folders."""
FAULTS = frozenset(
    {"compile", "compiles", "fault", "faults", "mutants", "planted", "refused", "survives", "unseen", "wrong"}
)
"""Words in the names of tests that are left whole as well: their cases run the same lines, each with another fault, or
with another text for a compiler.
"""
TOOL = 4
"""A number that no other tool of ``sys.monitoring`` has."""


class Recorder:
    """Plugin of pytest: a JSON line for each test, with its processor time and the lines of the package that ran."""

    def __init__(self, folder: Path, package: str) -> None:
        self.out, self.package = folder / f"{os.getpid()}.jsonl", package
        self.cases = folder / f"{os.getpid()}.cases"
        self.lines: set[tuple[str, int]] = set()
        tell = self.tell = sys.monitoring
        tell.use_tool_id(TOOL, "case_lines")
        tell.register_callback(TOOL, tell.events.PY_START, self._begins)
        tell.register_callback(TOOL, tell.events.LINE, self._runs)
        tell.set_events(TOOL, tell.events.PY_START)

    def _begins(self, code: object, _: int) -> object:
        if code.co_filename.startswith(self.package):
            self.tell.set_local_events(TOOL, code, self.tell.events.LINE)
        return self.tell.DISABLE

    def _runs(self, code: object, line: int) -> object:
        self.lines.add((code.co_filename, line))
        return self.tell.DISABLE

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note all cases, before some are left out."""
        self.cases.write_text("".join(f"{item.nodeid}\n" for item in items))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.tell.restart_events()
        self.lines.clear()
        before = spent()
        done = yield
        by_file = defaultdict(list)
        for name, line in sorted(self.lines):
            by_file[name.removeprefix(self.package)].append(line)
        row = {"id": item.nodeid, "cpu": round(spent() - before, 3), "lines": by_file}
        with self.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        return done

    def pytest_unconfigure(self) -> None:
        self.tell.set_events(TOOL, 0)
        self.tell.free_tool_id(TOOL)


def spent() -> float:
    """Processor time of this process and of those that it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ["TENSORIR_LINES"])
    folder.mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(Recorder(folder, str(config.rootpath / "tensorir") + "/"))


def function_of(test: str) -> str:
    """``file::test[case]`` -> ``file::test``."""
    return test.partition("[")[0]


def case_of(test: str) -> str:
    """``file::test[case]`` -> ``case``."""
    return test.partition("[")[2].removesuffix("]")


def chosen(rows: Iterable[dict], times: int) -> dict[str, list[str]]:
    """Cases to keep of each test that is not left whole, so that ``times`` tests run each line, where as many do."""
    number: dict[tuple[str, int], int] = {}
    total = Counter[str]()
    lines, cost, names = list[frozenset[int]](), list[float](), list[str]()
    for row in rows:
        places = ((f, n) for f, some in row["lines"].items() for n in some)
        lines.append(frozenset(number.setdefault(p, len(number)) for p in places))
        cost.append(row["cpu"] + 0.02)
        names.append(row["id"])
        total[function_of(row["id"])] += row["cpu"]
    count = Counter(map(function_of, names))
    named = {function_of(name) for name in names if str(ROOT) in name}  # after a folder of this machine
    named |= {f for f in count if FAULTS & {*f.partition("::")[2].split("_")}}
    few = {f: f.split("/")[1] in SCHEDULES for f in count}
    large = {f for f in count if count[f] >= CASES[few[f]] and total[f] >= SECONDS[few[f]]} - named
    missing = Counter(n for some in lines for n in some)
    missing = Counter({n: min(times, k) for n, k in missing.items()})
    for some, name in zip(lines, names, strict=True):
        if function_of(name) not in large:
            missing.subtract(some)
    open_ = [k for k, name in enumerate(names) if function_of(name) in large]
    kept = dict[str, list[str]]((f, []) for f in sorted(large))
    for k in _cheapest(open_, lines, cost, missing):
        kept[function_of(names[k])].append(case_of(names[k]))
    for f, some in kept.items():  # what a test says of itself is seen in one case at least
        if not some:
            least = min((k for k in open_ if function_of(names[k]) == f), key=cost.__getitem__)
            some.append(case_of(names[least]))
    return {f: sorted(some) for f, some in kept.items() if len(some) < count[f]}


def numbered(kept: dict[str, list[str]], every: Iterable[str]) -> dict[str, dict]:
    """What ``tests/cases.json`` says: the cases kept and a number of ``every`` case of their tests. Where some come or
    go, all run until lines are recorded again.
    """
    cases = defaultdict[str, list[str]](list)
    for name in every:
        cases[function_of(name)].append(case_of(name))
    return {f: {"all": crc(cases[f]), "kept": some} for f, some in sorted(kept.items()) if len(some) < len(cases[f])}


def crc(cases: Iterable[str]) -> int:
    """A number of a set of cases, as ``tests/conftest.py`` makes it."""
    return zlib.crc32("\n".join(sorted(cases)).encode())


def _cheapest(
    tests: Iterable[int], lines: list[frozenset[int]], cost: list[float], missing: Counter[int]
) -> Iterator[int]:
    """Tests with the most ``missing`` lines for their time, until none is missing that they run."""
    heap = [(-len(lines[k]) / cost[k], k) for k in tests]
    heapq.heapify(heap)
    while heap:
        _, k = heapq.heappop(heap)
        gain = -sum(missing[n] > 0 for n in lines[k]) / cost[k]
        if not gain:
            continue
        if heap and gain > heap[0][0]:
            heapq.heappush(heap, (gain, k))
            continue
        missing.subtract(lines[k])
        yield k


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the lines were recorded")
    parser.add_argument("--times", type=int, default=TIMES, help="tests that run each line")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = [json.loads(line) for f in sorted(given.folder.glob("**/*.jsonl")) for line in f.open()]
    every = dict.fromkeys(name for f in given.folder.glob("**/*.cases") for name in f.read_text().splitlines())
    before = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    kept = chosen(rows, given.times)
    left_out = [r["cpu"] for r in rows if case_of(r["id"]) not in kept.get(function_of(r["id"]), [case_of(r["id"])])]
    print(
        f"{len(rows)} tests of {sum(r['cpu'] for r in rows):.0f} s: {len(left_out)} of {sum(left_out):.0f} s left out"
    )
    if given.out:
        found = _unchanged(before, rows, every) | numbered(kept, every)
        given.out.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")


def _unchanged(before: dict[str, dict], rows: Iterable[dict], every: Iterable[str]) -> dict[str, dict]:
    """What stays of the file: tests that were not recorded, and those of which a plain run has few cases already."""
    ran, cases = (Counter(map(function_of, names)) for names in ((r["id"] for r in rows), every))
    now = numbered({f: some["kept"] for f, some in before.items()}, every)
    return {f: some for f, some in before.items() if not ran[f] or (ran[f] < cases[f] and now.get(f) == some)}


if __name__ == "__main__":
    main()
