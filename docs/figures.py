"""Tables of figures, read off benchmarks/results/: the README's, and the pages' on the home page and docs/figures.md.

python docs/figures.py

writes the README's between its two marks. Each ratio is the peer's time over ours, so that 2 means twice as fast as the
peer; of several shapes it is the geometric mean.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
MARKS = ("<!-- figures -->", "<!-- figures end -->")
SLASH = "\u00a0/\u00a0"
"""Between the two figures of a cell, in one line."""

LIBRARIES = "fastest of NumPy, PyTorch, ONNX Runtime"


NAMES = {"rgb": "demosaic", "smooth": "bilateral grid", "Y": "convolution with a learned mask"}
"""Outputs of examples/stencils, by what they are."""


class Ratio(NamedTuple):
    """How many times as fast as the peer: the mean, the worst shape's, the number of shapes."""

    mean: float
    worst: float
    shapes: int


@cache
def result(name: str) -> Any:
    """What a benchmark wrote."""
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))


def shapes_of(title: str, name: str = "cpu_untuned") -> Ratio:
    """A figure of benchmarks/cpu/run.py."""
    found = next(f for f in result(name)["figures"] if f["title"] == title)
    worst = found["worst"]["ratio"] if found["worst"] else found["value"]
    return Ratio(found["value"], worst, found["workloads"])


def all_rows(name: str) -> Ratio:
    """The rows of a benchmark that times each computation next to its fastest peer."""
    ratios = [row["ratio"] for row in result(name)["rows"]]
    return Ratio(geometric_mean(ratios), min(ratios), len(ratios))


def row_operators() -> Ratio:
    """Softmax, norms and sums on the OpenCL device."""
    found = result("rows")
    return Ratio(
        found["geomeans"]["opencl"]["all"], min(r["opencl"]["ratio"] for r in found["rows"]), len(found["rows"])
    )


class Line(NamedTuple):
    """A line of the table: computation, peer, and where its ratios are."""

    computation: str  # with a place for the number of shapes
    peer: str
    ratios: dict[str, Callable[[], Ratio]]


def both(title: str, name: str = "cpu_untuned") -> dict[str, Callable[[], Ratio]]:
    """A figure in both layouts of images."""
    return {x: lambda x=x: shapes_of(f"{title}, {x}", name) for x in ("NCHW", "NHWC")}


LINES = [
    Line("ResNet-50: {} convolutions", "ONNX Runtime",
         both("ResNet-50, sum of all convolutions against ONNX Runtime")),
    Line("ResNet-50: {} shapes", LIBRARIES, both("ResNet-50 layers, best style")),
    Line("VGG-16, AlexNet: {} shapes", "the same", both("VGG + AlexNet, best style")),
    Line("MobileNet: {} depthwise", "the same", both("MobileNet v1 depthwise")),
    Line("{} matmuls, packed in each call", "the same", {
        "": lambda: shapes_of("matmul squares + BERT, all packing timed")}),
    Line("{} softmax, norms, sums, by hand", "PyTorch, eager or compiled", {"": row_operators}),
    Line("{} computations that no library has", "NumPy", {"": lambda: all_rows("automatic_lambdas")}),
    Line("{} stencils on images", "fastest of NumPy, SciPy, PyTorch",
         {"": lambda: all_rows("stencils")}),
]  # fmt: skip


def table() -> str:
    """The short table."""
    out = ["| computation | peer | times as fast as the peer | worst |", "|---|---|---|---|"]
    for line in LINES:
        ratios = [read() for read in line.ratios.values()]
        mean = SLASH.join(f"**{r.mean:.2f}**" for r in ratios)
        worst = SLASH.join(f"{r.worst:.2f}" for r in ratios if r.worst != r.mean)
        computation = line.computation.format(max(r.shapes for r in ratios))
        out.append(f"| {computation} | {line.peer} | {mean} | {worst} |")
    return "\n".join(out) + "\n"


def rows_of(name: str) -> Iterable[tuple[str, float, float, float]]:
    """Computation, ratio, and its 95 % interval."""
    for row in result(name)["rows"]:
        yield NAMES.get(row["computation"], row["computation"]), row["ratio"], row["low"], row["high"]


def ratios(lines: Iterable[tuple[str, float, float, float]]) -> str:
    """A table of ratios with their intervals."""
    out = ["| computation | times as fast as the peer | 95 % interval |", "|---|---|---|"]
    return "\n".join([*out, *(f"| {w} | {r:.2f} | {low:.2f} to {high:.2f} |" for w, r, low, high in lines)]) + "\n"


def cpu(name: str, chosen: str = ".") -> str:
    """The figures of a run of benchmarks/cpu/run.py whose titles match."""
    out = ["| shapes | number | times as fast as the peer | 95 % interval | worst shape |", "|---|---|---|---|---|"]
    for f in result(name)["figures"]:
        worst = f"{f['worst']['ratio']:.2f} `{f['worst']['workload']}`" if f["worst"] else ""
        if (f["item"] or "packing timed" in f["title"]) and re.search(chosen, f["title"]):
            interval = f"{f['low']:.2f} to {f['high']:.2f}"
            out.append(f"| {f['title']} | {f['workloads']} | {f['value']:.2f} | {interval} | {worst} |")
    return "\n".join(out) + "\n"


def search() -> str:
    """Time of the best configuration found, over that of the optimum."""
    budgets = result("tuner_score")["setting"]["budgets"]
    out = ["| strategy | " + " | ".join(f"{n} trials" for n in budgets) + " |", "|---|" + "---|" * len(budgets)]
    for name, found in result("tuner_score")["tuners"].items():
        means = [f"{found['summary'][str(n)]['geomean']:.3f}" for n in budgets]
        out.append(f"| {name} | {' | '.join(means)} |")
    prior = result("tuner_score_prior")["tuners"]["Bayes"]["summary"]
    means = [f"{prior[str(n)]['geomean']:.3f}" if str(n) in prior else "" for n in budgets]
    return "\n".join([*out, f"| Bayes, with other devices' tables as priors | {' | '.join(means)} |"]) + "\n"


def alexnet() -> str:
    """Tuned kernels next to NumPy, and what tuning gained."""
    out = ["| layer | times as fast as NumPy | times as fast as the default |", "|---|---|---|"]
    rows = result("alexnet_cpu")["rows"]
    return (
        "\n".join(
            [*out, *(f"| {r['layer']} | {r['baseline_over_best']:.1f} | {r['default_over_best']:.2f} |" for r in rows)]
        )
        + "\n"
    )


def where(name: str) -> str:
    """Processor, cores and date of a run, as far as it noted them."""
    about = result(name)["environment"]
    parts = [about.get("cpu", ""), f"{about.get('cores', about.get('cpus'))} cores", about.get("started", "")[:10]]
    return ", ".join(p for p in parts if p)


def rows() -> str:
    """Geometric means of each operator on both devices."""
    means = result("rows")["geomeans"]
    out = ["| operator | times as fast as PyTorch: OpenCL | C |", "|---|---|---|"]
    lines = [f"| `{op}` | {means['opencl'][op]:.2f} | {means['c:0'][op]:.2f} |" for op in means["opencl"]]
    return "\n".join([*out, *lines]) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "table": table,
    "untuned": lambda: f"{where('cpu_untuned')}.\n\n{cpu('cpu_untuned')}",
    "tuned": lambda: "\n".join(
        f"{where(n)}.\n\n{cpu(n, '3x3')}" for n in ("cpu_resnet50_3x3_nchw", "cpu_resnet50_3x3_nhwc")
    ),
    "alexnet": alexnet,
    "lambdas": lambda: ratios(rows_of("automatic_lambdas")),
    "stencils": lambda: ratios(rows_of("stencils")),
    "rows": rows,
    "search": search,
}


def write(folder: Path) -> None:
    """Write each table as a file that pages include."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PARTS.items():
        path, text = folder / f"{name}.inc", make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def readme(text: str) -> str:
    """The README with today's table between its marks."""
    first, last = MARKS
    return re.sub(f"{first}.*?{last}", lambda _: f"{first}\n{table()}{last}", text, flags=re.DOTALL)


if __name__ == "__main__":
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    print(table())
