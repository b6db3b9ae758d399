"""tensorir against cuBLAS, cuDNN and Triton on a GPU, every kernel compared exactly first; see README.md beside this.

python benchmarks/gpu/run.py                                         # the quick tier, less than eight minutes
python benchmarks/gpu/run.py --tier check                            # every template compared, nothing timed
python benchmarks/gpu/run.py --tier full --minutes 9 --out F.json    # and again with --resume until nothing is left
python benchmarks/gpu/run.py --tier tune --minutes 8                 # search a few shapes
python benchmarks/gpu/run.py --dry                                   # no GPU: emulate everything at tiny sizes
python benchmarks/gpu/run.py --show F.json                           # the table of an earlier run
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # the package need not be installed
    sys.path.insert(0, str(ROOT))

from versus_gpu.building import in_words  # noqa: E402
from versus_gpu.device import Device, Pace  # noqa: E402
from versus_gpu.lists import TIERS, problems  # noqa: E402
from versus_gpu.results import Progress, Results, now, replace_file  # noqa: E402
from versus_gpu.rows import Plan  # noqa: E402
from versus_gpu.runner import run  # noqa: E402
from versus_gpu.supervise import supervise  # noqa: E402
from versus_gpu.table import markdown  # noqa: E402

from tensorir.runtime.host import cores  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
MINUTES = {"check": 8.0, "quick": 8.0, "tune": 8.0}
COUNTS = {"check": 3, "quick": 8, "full": 8, "tune": 24}
MOST_COMPILERS = 32  # each imports CuPy
ROUNDS = {"check": 7, "quick": 7, "full": 15, "tune": 15}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tier", choices=TIERS, default="quick")
    add("--minutes", type=float, metavar="N", help="start no new row after that, 8; full: no limit")
    add("--only", metavar="REGEX", help="problems whose names this finds (--list shows the names)")
    add("--list", action="store_true", help="print the problems and stop")
    add("--configurations", type=int, metavar="N", help="of each row; of each batch of the search")
    add("--rounds", type=int, metavar="N", help="samples of each competitor")
    add(
        "--out", type=Path, metavar="FILE", help="default: benchmarks/results/gpu_TIER.json; the table is .md beside it"
    )
    add("--resume", action="store_true", help="keep the rows that are in the file already")
    add("--dry", action="store_true", help="no GPU: emulate the kernels at tiny sizes, time nothing")
    compilers = min(MOST_COMPILERS, max(1, cores() - 2))
    add("--compilers", type=int, default=compilers, metavar="N", help="processes that compile")
    add("--show", type=Path, metavar="FILE", help="print the table of an earlier run and stop")
    add("--child-until", type=float, help=argparse.SUPPRESS)
    found = parser.parse_args(given)
    if found.configurations is None:
        found.configurations = 2 if found.dry else COUNTS[found.tier]
    found.out = found.out or RESULTS / f"gpu_{'dry_' if found.dry else ''}{found.tier}.json"
    return found


def main(given: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if given is None else given)
    options = arguments(words)
    if options.show:
        print(markdown(Results.load(options.show).document))
        return 0
    if options.list:
        print("\n".join(p.name for p in problems(options.tier, options.only, options.dry)))
        return 0
    if options.child_until is not None:
        status = measure(options, options.child_until)
        sys.stdout.flush()
        os._exit(status)  # a broken context makes an orderly end fail
    minutes = options.minutes if options.minutes is not None else MINUTES.get(options.tier)
    until = math.inf if minutes is None or (options.dry and options.minutes is None) else time.time() + 60 * minutes
    results = Results.load(options.out) if options.resume else Results(options.out)
    results.save()
    if options.dry:
        status = measure(options, until)
        Progress(options.out).clear()
    else:
        command = [sys.executable, str(Path(__file__).resolve()), *words, "--child-until", repr(until)]
        status = supervise(command, results, until)
    text = markdown(Results.load(options.out).document)
    replace_file(options.out.with_suffix(".md"), text)
    print(f"\n{text}\n{options.out}")
    return status


def measure(options: argparse.Namespace, until: float) -> int:
    """Make rows in this process."""
    found = problems(options.tier, options.only, options.dry)
    results = Results.load(options.out)
    try:
        device = _device(options)
    except Exception as error:  # no torch, no driver: nothing can be had, and the table says why
        results.document["runs"].append({"started": now(), "tier": options.tier, "failed": in_words(error)})
        results.save()
        print(f"there is no device: {in_words(error)}", flush=True)
        return 2
    try:
        results.document["runs"].append(_run(options, device))
        results.save()
        left = sum(p.name not in results.done for p in found)
        return run(found, device, results, _plan(options, left, until), until)
    finally:
        device.close()


def _plan(options: argparse.Namespace, rows: int, until: float) -> Plan:
    pace = Pace(rounds=options.rounds or ROUNDS[options.tier])
    if options.tier != "tune":
        return Plan(options.configurations, pace)
    each = (until - time.time()) / max(rows, 1) if math.isfinite(until) else 60.0
    return Plan(options.configurations, pace, 0.0 if options.dry else max(0.0, each - 10.0))


def _device(options: argparse.Namespace) -> Device:
    if options.dry:
        from versus_gpu.dry import Dry

        return Dry()
    from versus_gpu.gpu import Gpu

    return Gpu(options.compilers)


def _run(options: argparse.Namespace, device: Device) -> dict[str, Any]:
    """What the figures of this process depend on."""
    return {"started": now(), "tier": options.tier, "commit": _commit(), **device.environment()}


def _commit() -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
