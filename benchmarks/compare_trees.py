"""Two trees' kernels against each other: nothing that a change touches may get slower.

    python benchmarks/compare_trees.py ../before .                          # everything: see "trees/cases.py"
    python benchmarks/compare_trees.py ../before . --op conv2d --template 'cpu_tile_turned|gpu_tile_warp'
    python benchmarks/compare_trees.py ../before . --target c:0 --core 0    # processors only, timed in one thread
    python benchmarks/compare_trees.py ../before . --target 'cuda -arch=sm_90a' --case bfloat16 --configs 1
    python benchmarks/compare_trees.py ../before . --shape matmul m=16 n=1024 k=1000 tb=1 --template cpu_tile_dot
    python benchmarks/compare_trees.py ../before . --no-time --no-emulate   # texts and machine code: the fastest
    python benchmarks/compare_trees.py ../before . --renamed gpu_cores=gpu_tensor   # before=after, of a template
    python benchmarks/compare_trees.py ../before . --set resnet50 --set matmul --starts --target c:0 --passes 3

``--set`` takes the layers of a network (``tensorir/ops/shapes.py``) in both layouts, with and without weights that are
packed ahead (which is not timed), in place of the cases; ``--starts`` compares what both trees begin with, untuned. The
default of a template that is gone is compared with what the second tree begins with.

A tree is a checkout (``git worktree add ../before COMMIT``). Each has a process of its own, which imports the package
of that tree. For every workload, target and template both emit the default configuration and three that are drawn from
the first tree's space, and a row says

equal     texts and launches differ in names and comments at most: nothing else is done
better, alike    the text differs, and nothing of it is worse: on CUDA registers, spills, shared bytes, instructions
          (memory and barriers by opcode) and sectors and wavefronts as the emulator counts them; on a device ("c:0",
          "opencl:pocl") the times, interleaved slot by slot between the processes
worse     something is more than before (named), or the interval of the times' ratio ends below 0.99
wrong     results differ on small whole numbers, the emulator found a fault, or the second tree refuses what the first
          one makes
differs   the text differs, and nothing can be counted or timed there
refused   the first tree makes no such kernel

Ratios are the first tree's time over the second's: above 1 is faster. The last lines give the geometric mean of each
template, and of each class of a set, with its 95 % interval. The status is 1 where a row is wrong, counts are worse,
or a template's interval ends below 0.99; one row whose time is worse does not fail, for of twenty one is by chance. A
template that suits several targets is compared on the first of them, unless --every-target. On a machine that others
use as well, give --core 0: both run in one thread there, and what others take of it is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from trees.cases import CASES, Case, layers
from trees.judged import counts, ratio, results_apart, same_text, worse_on_cuda

HERE = Path(__file__).resolve().parent
TARGETS = ("c:0", "cuda -arch=sm_80", "cuda -arch=sm_90a")
REACHED = 0.99
"""Where the interval of the ratio of times must reach."""
Row = dict[str, Any]


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("before", type=Path, help="checkout of the tree before")
    add("after", type=Path, help="checkout of the tree after")
    add("--op", metavar="REGEX", default="", help="operators")
    add("--case", metavar="REGEX", default="", help="workloads whose title this finds")
    add("--template", metavar="REGEX", default="", help="templates, by the name before")
    add("--target", action="append", metavar="TARGET", help=f"devices and targets; {', '.join(TARGETS)} without it")
    add("--every-target", action="store_true", help="compare a template on each target that it suits")
    add("--shape", nargs="+", metavar=("OP", "NAME=VALUE"), action="append", default=[], help="this workload instead")
    add("--set", action="append", default=[], metavar="NAME", help="such as resnet50 or matmul: see layers()")
    add("--starts", action="store_true", help="compare only what both trees begin with")
    add("--passes", type=int, default=1, metavar="N", help="time a kernel so often, each time in new processes")
    add("--renamed", action="append", default=[], metavar="OLD=NEW", help="a template's names")
    add("--configs", type=int, default=3, metavar="N", help="drawn configurations besides the default")
    add("--seed", type=int, default=0)
    add("--no-time", action="store_true", help="build nothing on devices")
    add("--no-emulate", action="store_true", help="count no accesses of CUDA texts")
    add("--rounds", type=int, default=25)
    add("--slot", type=float, default=0.01, help="seconds of a slot")
    add("--batch", type=float, default=0.002, help="seconds of calls between two waits")
    add("--rest", type=float, default=0.003, help="seconds before a slot, until the other's threads sleep")
    add("--core", type=int, metavar="N", help="run on this processor alone, and count its time for these processes")
    add("--json", type=Path, metavar="FILE", help="write rows and figures")
    return parser.parse_args(given)


class Tree:
    """The process of one tree."""

    def __init__(self, path: Path, core: int | None = None) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path.resolve()), str(HERE)])}
        command = [sys.executable, "-P", "-m", "trees.worker"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        found = self.ask("about", core=core)["package"]
        if Path(found) != path.resolve():
            raise SystemExit(f"{path} has no package of its own: {found} was imported")

    def send(self, do: str, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a tree's process ended with status {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        self.send(do, **request)
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


class Comparison:
    """Both trees, and what is asked of them."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.trees = self._begun()
        self.renamed = dict(x.split("=", 1) for x in options.renamed)
        self.done: set[tuple[str, str]] = set()

    def _begun(self) -> tuple[Tree, Tree]:
        return Tree(self.options.before, self.options.core), Tree(self.options.after, self.options.core)

    def close(self) -> None:
        for tree in self.trees:
            tree.close()

    def both(self, do: str, new: dict[str, Any] | None = None, **request: Any) -> tuple[Row, Row]:
        """The answers of both; new: what is another for the second. They work at the same time."""
        for tree, own in zip(self.trees, ({}, new or {}), strict=True):
            tree.send(do, **{**request, **own})
        return self.trees[0].answer(), self.trees[1].answer()

    def case(self, case: Case, target: str) -> Iterator[Row]:
        """The rows of one workload on one target."""
        kind = "gpu" if target.startswith(("cuda", "hip")) or "-kind=gpu" in target else "cpu"
        given = case.parameters(kind)
        if given is None:
            return
        about = {"op": case.op, "given": given, "target": target}
        begun = self.trees[1].ask("start", **about)
        if self.options.starts:
            yield {**about, "class": case.of, **self.starts(about, kind, begun)}
            return
        found, after = (tree.ask("templates", **about) for tree in self.trees)
        for name in found.get("templates", ()):
            if not re.search(self.options.template, name) or (kind + case.title, name) in self.done:
                continue
            if not self.options.every_target:
                self.done.add((kind + case.title, name))
            gone = self.renamed.get(name, name) not in after.get("templates", ())
            for row in self.template({**about, "template": name}, kind, begun if gone else {}):
                yield {**row, "class": case.of}
        if "templates" not in found:
            yield {**about, "status": "refused", "detail": found.get("refused", found.get("failed"))}

    def starts(self, about: Row, kind: str, begun: Row) -> Row:
        """The row of what both trees begin with."""
        first = self.trees[0].ask("start", **about)
        if "config" not in first or "config" not in begun:
            return self._refused(*({**a, "text": ""} if "config" in a else a for a in (first, begun)))
        return {**first, "after": begun["template"], **self.configuration({**about, **first}, kind, begun)}

    def template(self, about: Row, kind: str, begun: Row) -> Iterator[Row]:
        """The rows of a template; ``begun``: what the second tree begins with, where the template is gone there."""
        seed = zlib.crc32(json.dumps(about, sort_keys=True).encode()) + self.options.seed
        count = 0 if begun else self.options.configs
        drawn = self.trees[0].ask("draw", **about, count=count, seed=seed)
        if "configs" not in drawn:
            yield {**about, "status": "refused", "detail": drawn.get("refused", drawn.get("failed"))}
        for config in drawn.get("configs", ()):
            row = {**about, "config": config}
            yield {**row, **({"after": begun.get("template")} if begun else {}), **self.configuration(row, kind, begun)}

    def configuration(self, request: Row, kind: str, begun: Row) -> Row:
        """The status of one configuration, and why; of ``begun`` in the second tree, where that is another one."""
        new = {"template": self.renamed.get(request["template"], request["template"])}
        new |= {name: begun[name] for name in ("template", "config") if name in begun}
        before, after = self.both("emit", new, **request)
        if "text" not in before or "text" not in after:
            return self._refused(before, after)
        apart = same_text(before, after)
        if not apart:
            return {"status": "equal"}
        row = {"apart": apart}
        if request["target"].startswith("cuda"):
            return {**row, **self._counted(request, new)}
        if re.match(r"\w+:\w", request["target"]) and not self.options.no_time:
            return {**row, **self._timed(request, new)}
        return {**row, "status": "differs"}

    def _refused(self, before: Row, after: Row) -> Row:
        said = [a.get("refused") or a.get("failed") or "made" for a in (before, after)]
        if "text" in before:
            return {"status": "wrong", "detail": f"after: {after.get('words') or said[1]}"}
        return {"status": "refused", "detail": f"before: {said[0]}, after: {said[1]}"}

    def _saved(self) -> tuple[Path, Path]:
        files = self.folder / "before.npz", self.folder / "after.npz"
        for file in files:
            file.unlink(missing_ok=True)
        return files

    def _counted(self, request: Row, new: Row) -> Row:
        files = self._saved()
        own = {**new, "save": str(files[1])}
        emulated = not self.options.no_emulate
        before, after = self.both("inspect", own, **request, save=str(files[0]), emulated=emulated)
        if "kernels" not in before or "kernels" not in after:
            if "kernels" in before:
                return self._refused({"text": ""}, after)
            return {"status": "differs", "detail": f"not inspected: {before.get('words') or before.get('failed')}"}
        if wrong := results_apart(*files, "winograd" in request["template"]):
            return {"status": "wrong", "detail": wrong}
        more, changed = worse_on_cuda(before, after)
        if any(x.startswith("emulator") for x in more):
            return {"status": "wrong", "detail": "; ".join(more)}
        status = "worse" if more else "better" if changed else "alike"
        return {"status": status, "detail": "; ".join([*more, *(f"({x})" for x in changed)])}

    def _timed(self, request: Row, new: Row) -> Row:
        files, passes = self._saved(), list[Any]()
        for n in range(self.options.passes):
            if n:  # where arrays lie in memory may cost a tenth, as long as a process lives
                self.close()
                self.trees = self._begun()
            before, after = self.both("build", {**new, "save": str(files[1])}, **request, save=str(files[0]))
            if before or after:
                if not before:
                    return self._refused({"text": ""}, after)
                return {"status": "differs", "detail": f"not built: {before.get('words') or before.get('failed')}"}
            if wrong := results_apart(*files, "winograd" in f"{request['template']} {new['template']}"):
                return {"status": "wrong", "detail": wrong}
            passes.append(self._rounds())
        found = ratio(passes)
        status = "worse" if found.high < REACHED else "better" if found.low > 1 / REACHED else "alike"
        detail = f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}] of {passes[0][0][0] * 1e6:.0f} us"
        return {"status": status, "detail": detail, "rounds": passes, "ratio": asdict(found)}

    def _rounds(self) -> tuple[list[float], list[float]]:
        """Seconds of a call in slots of both, in turn."""
        rounds: tuple[list[float], list[float]] = ([], [])
        for n in range(self.options.rounds):
            for side in (0, 1) if n % 2 == 0 else (1, 0):
                time.sleep(self.options.rest)
                asked = self.trees[side].ask("slot", seconds=self.options.slot, batch=self.options.batch)
                rounds[side].append(asked["seconds"])
        return rounds


def line(row: Row) -> str:
    """One row, to be read."""
    given = " ".join(f"{k}={v}" for k, v in row["given"].items())
    config = " ".join(f"{k}={v}" for k, v in row.get("config", {}).items())
    name = " -> ".join(filter(None, (row.get("template", ""), row.get("after"))))
    said = [row["status"], name, row["target"], f"{row['op']} {given}", f"({config})"]
    lines = ["  ".join(said) + (f": {row['detail']}" if row.get("detail") else "")]
    for name, words in row.get("apart", {}).items():
        lines += [f"    {'-+'[n]} {name if name != 'lines' else ''} {str(words[n])[:160]}" for n in (0, 1)]
    return "\n".join(lines)


def figures(rows: list[Row], passes: int = 1) -> dict[str, Any]:
    """The geometric mean of the ratios of each template's times, or of those of a class.

    value, low, high: of the rows that differ;  equal: rows of one text;  with_equal: of all rows, where those have 1
    """
    timed: dict[str, list[Any]] = {}
    equal: Counter[str] = Counter()
    for r in rows:
        name = r.get("class") or f"{r['op']} {r.get('template')} {r['target']}"
        equal[name] += r["status"] == "equal"
        if "rounds" in r:
            timed.setdefault(name, []).extend(r["rounds"])
    found = dict[str, Any]()
    for name, pairs in timed.items():
        own, rows_apart = ratio(pairs), len(pairs) / passes
        every = own.value ** (rows_apart / (rows_apart + equal[name]))
        found[name] = {**asdict(own), "count": len(pairs), "equal": equal[name], "with_equal": every}
    return found


def shape(words: list[str]) -> Case:
    """The workload of ``--shape OP NAME=VALUE …``."""

    def value(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    given = {k: value(v) for k, v in (w.split("=", 1) for w in words[1:])}
    flags = {"ta", "tb", "bias", "alpha", "beta", "prepack", "residual"}
    return Case(words[0], {k: bool(v) if k in flags else v for k, v in given.items()})


def told(rows: list[Row], found: dict[str, Any]) -> tuple[str, int]:
    """The last lines, and the status to end with."""
    lines = [f"{len(rows)} configurations: {dict(counts(rows))}"]
    bad = [r for r in rows if r["status"] == "wrong" or (r["status"] == "worse" and "rounds" not in r)]
    slower = [n for n, f in found.items() if f["high"] < REACHED]
    for name, f in found.items():
        lines.append(f"{name}: {f['value']:.3f} [{f['low']:.3f}, {f['high']:.3f}] of {f['count']} that differ,"
                     f" {f['with_equal']:.3f} with {f['equal']} equal"
                     + ("  SLOWER" if name in slower else ""))  # fmt: skip
    return "\n".join(lines), int(bool(bad or slower))


def compared(options: argparse.Namespace) -> Iterator[Row]:
    """All rows."""
    cases = [shape(words) for words in options.shape] + [c for name in options.set for c in layers(name)] or CASES
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        comparison = stack.enter_context(contextlib.closing(Comparison(options, Path(folder))))
        for case in cases:
            if re.search(options.op, case.op) and re.search(options.case, case.title):
                for target in options.target or TARGETS:
                    yield from comparison.case(case, target)


def main(given: list[str] | None = None) -> int:
    options, rows = arguments(given), list[Row]()
    for row in compared(options):
        rows.append(row)
        print(line(row), flush=True)
    found = figures(rows, options.passes)
    text, status = told(rows, found)
    print(text)
    if options.json:
        options.json.write_text(results(options, rows, found), encoding="utf-8")
    return status


def results(options: argparse.Namespace, rows: list[Row], found: dict[str, Any]) -> str:
    """JSON text with one row a line; of the times there are the ratios of each pass."""
    from measuring import environment

    def commit(tree: Path) -> str:
        command = ["git", "-C", str(tree), "rev-parse", "--short=8", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    about = {
        "date": time.strftime("%Y-%m-%d"), "environment": environment(), "before": commit(options.before),
        "after": commit(options.after), "passes": options.passes, "rounds": options.rounds, "core": options.core,
    }  # fmt: skip
    kept = [{k: v for k, v in r.items() if k not in ("rounds", "apart", "detail")} | (
        {"passes": [round(ratio([p]).value, 4) for p in r["rounds"]], "seconds": min(r["rounds"][0][0])}
        if "rounds" in r else {}) for r in rows]  # fmt: skip
    lines = ",\n".join(json.dumps(r) for r in kept)
    return f'{{"about": {json.dumps(about)},\n"figures": {json.dumps(found, indent=1)},\n"rows": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    sys.exit(main())
