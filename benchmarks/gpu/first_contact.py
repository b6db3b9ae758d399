"""The first minutes on a GPU: which reading of the documentation is true, and which kinds of kernels work.

python benchmarks/gpu/first_contact.py                    # on a Hopper GPU: two minutes or so
python benchmarks/gpu/first_contact.py --only '^tma'      # by name (--list prints the names, and what each decides)
python benchmarks/gpu/first_contact.py --dry              # no GPU: the same texts in the emulator

Each probe is a small kernel whose result is compared exactly. A process runs them one after another; one that hangs or
breaks the device costs ``--seconds``, and another process goes on behind it. The status is 1 where anything is not as
expected. Needs NumPy and CuPy (``--dry``: a C++ compiler).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # the package need not be installed
    sys.path.insert(0, str(ROOT))

from versus_gpu.building import in_words  # noqa: E402
from versus_gpu.pixel_probes import PIXEL_PROBES  # noqa: E402
from versus_gpu.probes import PROBES, Made, Probe  # noqa: E402
from versus_gpu.rungs import RUNGS  # noqa: E402
from versus_gpu.supervise import end  # noqa: E402

from tensorir.codegen.source import Source  # noqa: E402

AS_EXPECTED = "as expected"
BROKEN = 75
"""The status of a process whose device gives nothing any more."""
Json = dict[str, Any]
Run = Callable[[Source, Sequence[np.ndarray]], np.ndarray]


def probes(only: str | None = None) -> list[Probe]:
    """Those whose names ``only`` finds."""
    return [p for p in (*PROBES, *PIXEL_PROBES, *RUNGS) if only is None or re.search(only, p.name)]


# --- one probe


def on_device(source: Source, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The result of the first CUDA device."""
    from tensorir.runtime.launch import CompiledProgram

    return np.asarray(CompiledProgram(source, "cuda:0", cache=False)(*arrays))


def emulated(source: Source, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The result of the emulator; RuntimeError where it has something to tell."""
    from tensorir.check.emulate import emulate

    found = emulate(source, arrays)
    if found.problems:
        raise RuntimeError(found.problems[0].message)
    return found.outputs[0]


def outcome(probe: Probe, run: Run) -> str:
    """What came of it, in words; whatever goes wrong is one."""
    try:
        made = probe.make()
        return compared(made, run(made.source, made.arrays))
    except Exception as error:
        return f"failed: {in_words(error)}"


def compared(made: Made, got: np.ndarray) -> str:
    """Which of the readings of the documentation a result is, or how far it is from the expected one."""
    if _same(got, made.want):
        return AS_EXPECTED
    for words, other in made.others.items():
        if _same(got, other):
            return f"otherwise: {words}"
    differs = np.flatnonzero(_bits(got) != _bits(made.want))
    first = int(differs[0])
    told, wanted = got.ravel()[first], made.want.ravel()[first]
    return f"wrong: {len(differs)} of {got.size} elements differ, the first at {first}: {told!r} and not {wanted!r}"


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.array_equal(_bits(a), _bits(b)))


def _bits(a: np.ndarray) -> np.ndarray:
    """The words of an array, -0 being 0."""
    flat = np.ascontiguousarray(a).ravel() + np.zeros((), a.dtype)
    return flat.view(f"u{a.itemsize}")


# --- the process that holds the device, and its parent


def measure(names: Sequence[str], lines: Path) -> int:
    """Run the probes of these names on the device, with a line before and after each."""
    chosen = {p.name: p for p in probes()}
    with lines.open("a", encoding="utf-8") as file:
        for name in names:
            for line in ({"begins": name}, {"name": name, "outcome": outcome(chosen[name], on_device)}):
                print(json.dumps(line), file=file, flush=True)
            if str(line["outcome"]).startswith("failed") and not _healthy():
                return BROKEN
    return 0


def _healthy() -> bool:
    import cupy

    try:
        return int((cupy.ones(8, cupy.int32) + 1).sum()) == 16
    except Exception:  # whatever it is, no more can be had of it
        return False


def supervise(command: Sequence[str], names: Sequence[str], seconds: float, say: Callable[[Json], None]) -> None:
    """Run ``command`` with names behind it until each has an outcome, or there is no device."""
    left = list(names)
    while left:
        with tempfile.TemporaryDirectory(prefix="tensorir-contact-") as folder:
            lines = Path(folder) / "lines"
            lines.touch()
            status = _watched([*command, str(lines), *left], lines, seconds)
            found = [json.loads(x) for x in lines.read_text(encoding="utf-8").splitlines()]
        done = [x for x in found if "name" in x]
        for x in done:
            say(x)
            left.remove(x["name"])
        if any(str(x["outcome"]).startswith("failed: DeviceError") for x in done):
            print(f"there is no device to ask; {len(left)} probes are left", flush=True)
            return
        begun = next((x["begins"] for x in reversed(found) if "begins" in x), left[0] if left else "")
        if begun in left:  # it took its process along
            left.remove(begun)
            told = f"nothing came for {seconds:g} s" if status is None else f"its process ended with status {status}"
            say({"name": begun, "outcome": f"hung: {told}" if status is None else f"crashed: {told}"})


def _watched(command: Sequence[str], lines: Path, seconds: float) -> int | None:
    """Status of a process, None where it had to be ended since it wrote no line for so long."""
    child = subprocess.Popen(command, start_new_session=True)
    try:
        while (status := child.poll()) is None:
            time.sleep(0.1)
            if time.time() - lines.stat().st_mtime > seconds:
                return None
        return status
    finally:
        end(child)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", metavar="REGEX", help="probes whose names this finds")
    add("--list", action="store_true", help="print the names and what each decides, and stop")
    add("--dry", action="store_true", help="no GPU: in the emulator")
    add("--seconds", type=float, default=60.0, metavar="N", help="for each probe, its compilation included")
    add("--out", type=Path, metavar="FILE", help="write the outcomes as JSON")
    add("--child", nargs="+", metavar="FILE NAME", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    if options.child:
        status = measure(options.child[1:], Path(options.child[0]))
        os._exit(status)  # a broken context makes an orderly end fail
    chosen = probes(options.only)
    if options.list:
        print("\n".join(f"{p.name:24} {p.asks}" for p in chosen))
        return 0
    found: list[Json] = []

    def say(line: Json) -> None:
        found.append(line)
        mark = "ok" if line["outcome"] == AS_EXPECTED else "NOT"
        print(f"{mark:3} {line['name']:24} {line['outcome']}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    if options.dry:
        for p in chosen:
            say({"name": p.name, "outcome": outcome(p, emulated)})
    else:
        command = [sys.executable, str(Path(__file__).resolve()), "--child"]
        supervise(command, [p.name for p in chosen], options.seconds, say)
    wrong = [x for x in found if x["outcome"] != AS_EXPECTED]
    print(f"{len(found) - len(wrong)} of {len(found)} as expected")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
