"""tensorir against the CPU libraries installed here, interleaved; see README.md beside this file.

python benchmarks/cpu/run.py                                        # everything, about twenty minutes
python benchmarks/cpu/run.py --only 'r1_3x3|square_256' --rounds 5
python benchmarks/cpu/run.py --peer-python PATH                     # the peers live in another environment
python benchmarks/cpu/run.py --show benchmarks/results/cpu_X.json   # the report of an earlier run again
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from versus import document, ours, peak, picture, report
from versus.environment import environment, now, stolen
from versus.handwritten import LABELS
from versus.peers import PEERS, does
from versus.protocol import Process, Spec
from versus.rounds import Pace, compete
from versus.shapes import Conv, Matmul, Problem, all_problems, chosen, to_json

RESULTS = Path(__file__).resolve().parents[1] / "results"
LAYOUTS = ("NCHW", "NHWC")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time tensorir against the CPU libraries installed here.")
    add = parser.add_argument
    add("--only", metavar="REGEX", help="workloads whose names this finds (--list shows the names)")
    add("--extra", action="store_true", help="also the layers of VGG-16 that are left out otherwise")
    add("--list", action="store_true", help="print the workloads and stop")
    add("--layout", choices=LAYOUTS, help="one layout of convolutions instead of both")
    add("--variants", type=_words, default=tuple(ours.VARIANTS), help="of ours: " + ",".join(ours.VARIANTS))
    add("--peers", type=_words, default=tuple(PEERS), help="any of " + ",".join(PEERS))
    add("--peer-python", default=sys.executable, metavar="PATH", help="the interpreter that has the peers")
    add("--reference", type=Path, metavar="DIR", help="a folder of hand-written kernels as one more competitor")
    add("--log", default="benchmarks/tuning_logs", metavar="DIR", help="where the tuned configurations are")
    add("--tune", metavar="BUDGET", help="tune each variant of each workload first, for 90s, 5m …")
    add("--rounds", type=int, default=7)
    add("--slot", type=float, default=0.05, help="seconds of a slot")
    add("--batch", type=float, default=0.004, help="seconds of calls between two waits; 0 waits after each call")
    add("--rest", type=float, default=0.04, help="seconds before a slot, until other libraries' threads sleep")
    add("--threads", type=int, default=os.cpu_count())
    add("--patience", type=float, default=180.0, help="seconds to wait for an answer of a process")
    add("--json", type=Path, metavar="FILE", help="default: benchmarks/results/cpu_TIME.json")
    add("--picture", type=Path, metavar="FILE", help="PNG or SVG; default: beside the JSON")
    add("--show", type=Path, metavar="FILE", help="report on an earlier run and stop")
    found = parser.parse_args(given)
    for name, known in (("variants", ours.VARIANTS), ("peers", PEERS)):
        if wrong := [n for n in getattr(found, name) if n not in known]:
            parser.error(f"--{name}: {', '.join(wrong)} is none of {', '.join(known)}")
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def main() -> int:
    options = arguments()
    if options.show:
        found = json.loads(options.show.read_text(encoding="utf-8"))
        print(report.text(found))
        _draw(found, options.picture)
        return 0
    problems = chosen(options.only, options.extra)
    if options.list or not problems:
        print("\n".join(p.name for p in problems or all_problems()), file=sys.stdout if problems else sys.stderr)
        return 0 if problems else 2
    options.log = str(Path(options.log).resolve())
    away = ours.unavailable()
    variants = [v for label, v in ours.VARIANTS.items() if label in options.variants and label not in away]
    if options.tune:
        _tune(problems, variants, options)
    return _run(options, problems, specs(options, variants, problems), away)


# --- who takes part


def specs(options: argparse.Namespace, variants: Sequence[ours.Variant], problems: Sequence[Problem]) -> list[Spec]:
    """Everyone who has something to do on one of the workloads."""
    found = [_peer(name, options) for name in options.peers]
    found += [_ours(v, layout, options.log) for v in variants for layout in _layouts(options)]
    if options.reference:
        folder = options.reference.resolve()
        found += [_reference(label, folder) for label in LABELS if LABELS[label][0] in _layouts(options)]
    return [s for s in found if any(s.applies(p) for p in problems)]


def _layouts(options: argparse.Namespace) -> tuple[str, ...]:
    """Matrix products have none, which is a name like others."""
    return ("", *((options.layout,) if options.layout else LAYOUTS))


def _fits(problem: Problem, layout: str) -> bool:
    return isinstance(problem, Conv if layout else Matmul)


def _peer(name: str, options: argparse.Namespace) -> Spec:
    _, ahead, at_home = PEERS[name]
    python = sys.executable if at_home else options.peer_python
    return Spec(name, "peers", (name,), python, label=name, ahead=ahead, applies=lambda p: does(name, p))


def _ours(variant: ours.Variant, layout: str, log: str) -> Spec:
    name = f"ours:{variant.label}" + (f"/{layout}" if layout else "")
    return Spec(
        name, "ours", (variant.label, layout, log), side="ours", layout=layout, label=variant.label,
        ahead=variant.ahead, applies=lambda p: _fits(p, layout) and variant.applies(p),
    )  # fmt: skip


def _reference(label: str, folder: Path) -> Spec:
    layout, style = LABELS[label]
    return Spec(
        f"hand:{label}", "handwritten", (str(folder), label), side="reference", layout=layout, label=label,
        ahead=style != "timed",
        applies=lambda p: _fits(p, layout) and (style != "winograd" or (isinstance(p, Conv) and p.winograd)),
    )  # fmt: skip


# --- what happens


def _tune(problems: Sequence[Problem], variants: Sequence[ours.Variant], options: argparse.Namespace) -> None:
    for problem in problems:
        for variant in variants:
            for layout in _layouts(options):
                if _fits(problem, layout) and variant.applies(problem):
                    told = ours.tune(problem, layout, variant.label, options.log, options.tune)
                    print(f"tune {problem.name} {variant.label} {layout}: {told}", flush=True)


@dataclass
class Hall:
    """The processes, and the folder that they share with the judge."""

    competitors: list[Process]
    peak: Process
    folder: Path

    def close(self) -> None:
        for process in (*self.competitors, self.peak):
            process.close()


def _run(options: argparse.Namespace, problems: Sequence[Problem], who: Sequence[Spec], away: dict[str, str]) -> int:
    pace = Pace(options.rounds, options.slot, options.batch, options.rest)
    found = environment()
    with tempfile.TemporaryDirectory(prefix="versus-") as folder:
        hall = _hall(who, options, Path(folder))
        try:
            doc = _document(found, options, pace, hall, away)
            path = options.json or RESULTS / f"cpu_{found['started'][:16].replace('-', '').replace(':', '')}.json"
            print(report.head(doc), flush=True)
            for problem in problems:
                _workload(problem, hall, pace, doc)
                document.save(doc, path)  # what is measured is kept, whatever happens to the rest
        finally:
            hall.close()
    doc["environment"] |= {"ended": now(), "load_end": list(os.getloadavg()), "stolen_s": stolen() - found["stolen_s"]}
    doc["figures"] = report.figures_json(doc)
    document.save(doc, path)
    print(f"\n{report.text(doc)}\n\n{path}")
    _draw(doc, options.picture or path.with_suffix(".png"))
    return int(any(name.startswith("ours:") for row in doc["rows"] for name in row["excluded"]))


def _hall(who: Sequence[Spec], options: argparse.Namespace, folder: Path) -> Hall:
    processes = [Process(s, options.threads, folder, options.patience) for s in who]
    for process in processes:
        process.start()
    return Hall(processes, Process(Spec("peak", "peak"), options.threads, folder, options.patience), folder)


def _document(
    found: dict[str, Any], options: argparse.Namespace, pace: Pace, hall: Hall, away: dict[str, str]
) -> dict[str, Any]:
    settings = {"threads": options.threads, **asdict(pace), "only": options.only, "tune": options.tune}
    return {
        "schema": 1,
        "environment": found,
        "settings": settings,
        "competitors": {p.name: document.competitor(p.spec, p.versions, p.missing) for p in hall.competitors},
        "unavailable": away,
        "peak": None,
        "rows": [],
    }


def _workload(problem: Problem, hall: Hall, pace: Pace, doc: dict[str, Any]) -> None:
    asked = [p for p in hall.competitors if not p.missing and p.spec.applies(problem)]
    _measure_peak(problem, hall, pace, doc)
    outcome = compete(problem, asked, pace, hall.folder)
    doc["rows"].append(document.row(outcome))
    print(report.progress(document.rows(doc)[-1]), flush=True)
    for name, why in outcome.excluded.items():
        print(f"{'':24} {name}: {why}", flush=True)


def _measure_peak(problem: Problem, hall: Hall, pace: Pace, doc: dict[str, Any]) -> None:
    """One slot before each workload: the fastest of the run is the peak."""
    if doc["peak"] is None:
        files = [hall.folder / "none.npy"] * 2
        peak.nothing(files[0])
        answer = hall.peak.ask(do="prepare", problem=to_json(problem), x=str(files[0]), w=str(files[1]))
        if "ok" not in answer:
            return
        doc["peak"] = {"gflops": 0.0, "slots_gflops": []}
    found = hall.peak.ask(do="run", seconds=pace.seconds, batch=pace.batch).get("times")
    if found:
        best = doc["peak"]
        best["gflops"] = max(best["gflops"], peak.FLOPS / min(found) / 1e9)
        best["slots_gflops"].append(peak.FLOPS / sorted(found)[len(found) // 2] / 1e9)


def _draw(doc: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        print(path if picture.draw(doc, path) else "no picture: matplotlib is not installed, or there are no ratios")


if __name__ == "__main__":
    sys.exit(main())
