"""Bytes of source in exported C folders: which kernel, template and width of registers makes the largest.

    python benchmarks/frameworks/folder_sizes.py [--only REGEX] [--configs 1] [--most 100000] [--json FILE]

The kernels are those of "destinations.py", the workloads of "trees/cases.py", the layers of well-known networks in both
layouts with all that a convolution may end in, and Winograd convolutions whose extents divide nothing. Each is written
for registers of 64, 32 and 16 bytes by every template that suits a processor: its default configuration and --configs
others, of Winograd the ones with the most text. Counted are .c, .h, .txt, .json and .md, as a reader finds them.

What a self-test expects is drawn instead of computed: its text has as many digits, and exact results, of which it has
one sum, count as inexact ones. So a size is that of the folder, or more. The status is 1 where one is above --most.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))
import destinations
from trees.cases import CASES
from versus.environment import environment, now

import tensorir as tir
from tensorir.errors import TensorIRError
from tensorir.export.folder import export_part
from tensorir.ops.shapes import SETS
from tensorir.runtime.arguments import numpy_dtype
from tensorir.tune.template import suiting

RESULTS = Path(__file__).resolve().parents[1] / "results" / "folder_sizes.json"
WIDTHS = {64: "c -vector_bytes=64 -registers=32", 32: "c -vector_bytes=32", 16: "c -vector_bytes=16"}
READ = (".c", ".h", ".txt", ".json", ".md")
ENDS = {"bias": True, "act": "relu", "residual": True}
RAGGED = [dict(n=1, c=c, h=h, w=w, k=k) for c, k in ((64, 64), (63, 61)) for h, w in ((30, 27), (31, 30), (29, 35))]
Row = dict[str, Any]
Made = tuple[str, dict[str, Any] | None, Any]
"""A template, its configuration and the schedule."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sizes of exported C folders.")
    parser.add_argument("--only", metavar="REGEX", default="", help="kernels whose names this finds")
    parser.add_argument("--configs", type=int, default=1, help="of a template, besides the default one")
    parser.add_argument("--most", type=int, default=100_000, metavar="BYTES")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    return parser.parse_args()


def works() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names, and what makes a workload or a schedule."""
    for name, make in destinations.KERNELS.items():
        if make is not None:
            yield f"twelve {name}", make
    for case in CASES:
        if (given := case.parameters("cpu")) is not None:
            yield f"case {case.title}", lambda op=case.op, given=given: getattr(tir.ops, op)(**given)
    for name, (op, layers, _) in SETS.items():
        for n, layer in enumerate(layers):
            for layout in ("NCHW", "NHWC") if op == "conv2d" else ("",):
                given = {**layer, **ENDS, "layout": layout} if layout else {**layer, "bias": True, "act": "relu"}
                yield f"{name} {n} {layout}".strip(), lambda op=op, given=given: getattr(tir.ops, op)(**given)
    for taps in (3, 5):
        for layout in ("NCHW", "NHWC"):
            for sizes in RAGGED:
                more = dict(r=taps, s=taps, pad=taps // 2, layout=layout, prepack=True, max_error=1e-3)
                title = f"winograd {'x'.join(map(str, sizes.values()))} {taps} {layout}"
                yield title, lambda given={**sizes, **more, **ENDS}: tir.ops.conv2d(**given)


def schedules(work: Any, target: str, name: str, configs: int) -> Iterator[Made]:
    """What the templates make of a workload; a schedule by itself."""
    if not isinstance(work, tir.Workload):
        yield "", None, work
        return
    parsed = tir.Target.parse(target)
    for template, made in suiting(work.templates, parsed):
        if name.startswith("winograd") and template != "cpu_winograd":
            continue
        space = made.space_for(parsed)
        every = [space.config(n) for n in range(len(space.configs))]
        if template == "cpu_winograd":
            drawn = [max((c for c in every if c["m"] == m), key=lambda c: (c["fetch"], -c["tile"]))
                     for m in sorted({c["m"] for c in every})]  # fmt: skip
        else:
            drawn = random.Random(name + template).sample(every, min(configs, len(every)))
        for config in [space.default, *(c for c in drawn if c != space.default)]:
            yield template, dict(config), work.schedule(config, template, target)


def sizes(s: Any) -> dict[str, int]:
    """Bytes of what is read of the folder, by file."""
    part = s._part()
    rng = np.random.default_rng(0)

    def drawn(*inputs: Any) -> Any:
        made = [(1000 * rng.standard_normal(t.shape)).astype(numpy_dtype(t.dtype)) for t in part.outputs]
        return made[0] if len(made) == 1 else tuple(made)

    with tempfile.TemporaryDirectory(prefix="folder-sizes-") as place:
        folder = export_part(replace(part, reference=drawn), Path(place) / "sized", ["c"], name="bench::sized")
        return {f.name: f.stat().st_size for f in folder.iterdir() if f.suffix in READ}


def rows_of(name: str, make: Callable[[], Any], configs: int) -> Iterator[Row]:
    """A row for each width, template and configuration; one where a kernel is its own schedule."""
    work = make()
    work = getattr(work, "_workload", None) or work
    for width, target in WIDTHS.items():
        for template, config, s in schedules(work, target, name, configs):
            row = {"kernel": name, "width": width, "template": template, "config": config}
            try:
                files = sizes(s)
            except TensorIRError as error:
                yield {**row, "refused": error.code}
                continue
            yield {**row, "bytes": sum(files.values()), "files": files}
        if not isinstance(work, tir.Workload):
            return


def main() -> int:
    options = arguments()
    about, rows = environment(), []
    for name, make in works():
        if re.search(options.only, name):
            rows += (made := list(rows_of(name, make, options.configs)))
            largest = max(made, key=lambda r: r.get("bytes", 0))
            print(f"{largest.get('bytes')} {name}: {largest['template']} of {largest['width']}", flush=True)
    counted = sorted((r for r in rows if "bytes" in r), key=lambda r: -r["bytes"])
    over = [r for r in counted if r["bytes"] >= options.most]
    for r in [*over, *counted[len(over) : max(10, len(over))]]:
        print(r["bytes"], r["kernel"], r["template"], r["width"], r["config"], r["files"])
    refused = sorted({(r["kernel"], r["template"], r["refused"]) for r in rows if "refused" in r})
    print(f"{len(counted)} folders, {len(over)} above {options.most} bytes; refused: {refused or 'none'}")
    kept = {"environment": {**about, "ended": now()}, "most": options.most, "folders": len(counted),
            "over": over, "largest": counted[:40], "refused": refused}  # fmt: skip
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(bool(over) or not counted)


if __name__ == "__main__":
    sys.exit(main())
