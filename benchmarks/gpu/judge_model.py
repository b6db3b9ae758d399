"""The static model of GPU kernels against times that others measured and published.

    python benchmarks/gpu/judge_model.py                       # prints the tables
    python benchmarks/gpu/judge_model.py --spaces DIR --save   # and writes benchmarks/results/gpu_model.{md,json}
    python benchmarks/gpu/judge_model.py --measured FILE       # what run.py measured on a GPU instead

``public_times.json`` beside this script has the times and where they come from. DIR has recorded search spaces
(``*.npz``, the format of ``benchmarks/tuner``): those of CLBlast's matrix product are judged as well.

By shape, the prediction is that of the configuration which the model itself finds best, for the shape and the kind of
kernel: which one ran is not known. ``gap_us`` is what passed between two kernels where calls were timed. By
configuration, the model orders what was measured at one shape. Where all are taken together, sizes decide the order.
No GPU is used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.engines.gemm_gpu import WarpTile
from tensorir.engines.gemm_tensor import TensorTile
from tensorir.engines.problems import Gemm
from tensorir.gpu_devices import GPUS, Gpu
from tensorir.target import Target
from tensorir.tune.gpu_model import COPY_SLOTS, MatrixProduct, Tiles, read_passes, seconds

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "gpu_model"
BYTES = {"f16": (2, 2), "tf32": (4, 4), "f32": (4, 4)}
WANTED = {"spearman": 0.98, "error": 0.15, "loss": 0.10}
CLBLAST = {"gemm_clblast__RTX_3090": "RTX 3090", "gemm_clblast__RTX_3060_laptop": "RTX 3060 Laptop"}


@dataclass(frozen=True)
class Judged:
    """One group of measurements.

    error: mean, absolute and relative;  bias: geometric mean of expected over measured
    loss:  of the configuration ranked first to the best one, the slowest of those that share the first rank
    """

    name: str
    device: str
    times: int
    spearman: float | None
    error: float
    bias: float
    loss: float | None = None


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Correlation of ranks, equal values at their mean rank; None for fewer than three."""

    def ranks(values: Sequence[float]) -> Any:
        x = np.asarray(values)
        return (x[:, None] > x).sum(axis=1) + 0.5 * (x[:, None] == x).sum(axis=1)

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1]) if len(a) > 2 else None


def judged(name: str, device: str, expected: Sequence[float], measured: Sequence[float], ranked: bool) -> Judged:
    ratio = np.asarray(expected) / np.asarray(measured)
    first = max(m for e, m in zip(expected, measured, strict=True) if e <= min(expected)) / min(measured) - 1
    return Judged(name, device, len(measured), spearman(expected, measured), float(abs(ratio - 1).mean()),
                  float(np.exp(np.log(ratio).mean())), first if ranked else None)  # fmt: skip


def warpgroup_tiles(p: MatrixProduct) -> Iterator[Tiles]:
    """What kernels of DeepGEMM's kind choose from: 64 terms at a time, as deep as shared memory allows."""
    size = p.in_bytes
    for bm in (*(b for b in (16, 32) if p.m <= b), 64, 128, 256):
        for bn in range(16, 257, 16):
            depth = min(16, (232448 - 256 - bm * bn * p.out_bytes) // ((bm + bn) * 128))
            if depth >= 2 and bm * bn <= 128 * 256:
                for cluster in (1, 2):
                    yield Tiles("wgmma", bm, bn, 128 // size, bm // (2 if bm >= 128 else 1), bn, depth, True, cluster,
                                persistent=True, raster=16)  # fmt: skip


def tiles_of(kernel: str, p: MatrixProduct, gpu: Gpu, sm: int) -> Iterable[Tiles]:
    """All that a kernel of this kind may be, in our own templates' spaces for "mma" and "threads"."""
    if kernel == "wgmma":
        return warpgroup_tiles(p)
    options = {"f16": dict(dtype="float16"), "tf32": dict(precision="tf32"), "f32": {}}[p.kind]
    target = Target.parse(f"cuda -arch=sm_{sm}")
    engine, shape = TensorTile if kernel == "mma" else WarpTile, Gemm(m=p.m, n=p.n, k=p.k, **options)
    space = engine.space(shape, target)
    return (engine(space.config(row), shape, target).model for row in range(len(space.legal)))


def best_seconds(kernel: str, p: MatrixProduct, device: str, slots: float) -> float:
    sm, gpu = GPUS[device]
    return min(seconds(p, replace(t, slots=slots), gpu) for t in tiles_of(kernel, p, gpu, sm))


def products(group: Mapping[str, Any]) -> Iterator[tuple[MatrixProduct, float]]:
    """The products of a group and the seconds that they took."""
    for values in group["rows"]:
        row = dict(zip(group["columns"], values, strict=True))
        took = row["us"] * 1e-6 if "us" in row else row["ms"] * 1e-3
        read, written = BYTES[group["kind"]]
        written = 4 if row.get("out") == "FP32" else written
        yield (
            MatrixProduct(row["m"], row["n"], row["k"], 1, group["kind"], read, written, adds=bool(row.get("acc"))),
            took,
        )


def by_shape(group: Mapping[str, Any]) -> tuple[Judged, list[dict[str, Any]]]:
    kernel, device = group["kernel"], group["device"]
    gap, slots = group.get("gap_us", 0.0) * 1e-6, group.get("slots", COPY_SLOTS)
    rows = [(p, took, best_seconds(kernel, p, device, slots) + gap) for p, took in products(group)]
    found = judged(group["name"], group["device"], [e for _, _, e in rows], [t for _, t, _ in rows], False)
    return found, [dict(m=p.m, n=p.n, k=p.k, out_bytes=p.out_bytes, adds=p.adds, measured_us=round(t * 1e6, 1),
                        expected_us=round(e * 1e6, 1)) for p, t, e in rows]  # fmt: skip


def by_configuration(group: Mapping[str, Any]) -> Judged:
    """Configurations that were measured at one shape."""
    p = MatrixProduct(group["m"], group["n"], group["k"], 1, group["kind"], *BYTES[group["kind"]])
    gpu = GPUS[group["device"]][1]
    if "library_ms" in group:  # its clock under load, by what is not judged
        gpu = replace(gpu, sustained={group["kind"]: calibrated(gpu, [(p, group["library_ms"] * 1e-3)])})
    expected, measured = [], []
    for values in group["rows"]:
        c = dict(zip(group["columns"], values, strict=True))
        measured.append(c.pop("ms") * 1e-3)
        stays = bool(c.pop("persistent"))
        given = {name: group[name] for name in ("raster", "producer", "slots") if name in group}
        t = Tiles(group["kernel"], persistent=stays, **given, **c)
        expected.append(seconds(p, t, gpu))
    return judged(f"{group['name']}, {p.m}", group["device"], expected, measured, True)


def passes(lane_places: Sequence[int], width: int) -> int:
    """Passes of 32 banks that a warp's access to ``width`` words of each lane takes, from where lanes begin.

    Of four words a quarter of the lanes go together, of two a half, and twice as many where every lane wants what a
    neighbour of it does. More than four words take several accesses of four.
    """
    whole, each = max(1, width // 4), min(width, 4)
    alike = any(all(lane_places[t] == lane_places[t ^ d] for t in range(32)) for d in (1, 2))
    together = min(32, 32 // each * (2 if alike else 1))
    total = 0
    for start in range(0, 32, together):
        banks: dict[int, set[int]] = {}
        for place in lane_places[start : start + together]:
            for word in range(place, place + each):
                banks.setdefault(word % 32, set()).add(word)
        total += max(map(len, banks.values()))
    return total * whole


def copying(each: int, lanes: int, width: int) -> float:
    """How much longer than it need a copy of CLBlast's takes, whose lanes have ``each`` neighbouring words of a row.

    Cache lines that a warp's reads are in, and passes of its writes, one after the other, over those of whole lines.
    """
    places = [lane % lanes * each for lane in range(32)]
    lines = {(lane // lanes, place // 32) for lane, place in enumerate(places)}
    return (len(lines) / min(width, 4) + passes(places, width) / width) / 2


def clblast_tiles(c: Mapping[str, int], gpu: Gpu) -> Tiles:
    """A configuration of CLBlast's product. What has no place in shared memory is not copied; it is read as if it had.

    A thread holds neighbouring rows and columns, so that lanes meet in banks; our own layouts meet in none. Where A is
    read in vectors and B in words, two of B's are read at once: the times say so, for the compiler of the time is not
    at hand, and NVRTC 13 reads even four.
    """
    tm, tn, vm, vn = c["MWG"] // c["MDIMC"], c["NWG"] // c["NDIMC"], c["VWM"], c["VWN"]
    if vm > 1 and vn == 1 and tn > 1:
        vn = 2
    rows, columns = [lane % c["MDIMC"] * tm for lane in range(32)], [lane // c["MDIMC"] * tn for lane in range(32)]
    least = 32 / gpu.lanes  # passes of an instruction of four words or fewer
    read = sum(
        each // width * max(least * max(1, width // 4), passes(places, width))
        for each, width, places in ((tm, vm, rows), (tn, vn, columns))
    )
    vector = (tm + tn) / (tm / min(vm, 4) + tn / min(vn, 4))
    both, a, b = c["MWG"] + c["NWG"], c["SA"] * c["MWG"], c["SB"] * c["NWG"]
    scatter = sum(
        words * copying(c[wide] // c[lanes], c[lanes], width)
        for words, wide, lanes, width in ((a, "MWG", "MDIMA", vm), (b, "NWG", "NDIMB", c["VWN"]))
    ) / both  # fmt: skip
    ideal = (tm + tn) * read_passes(vector, gpu)
    return Tiles("threads", c["MWG"], c["NWG"], 32, tm, tn, 1, False, vector=vector, conflicts=read / ideal,
                 scatter=scatter, slots=COPY_SLOTS * (a + b) / both)  # fmt: skip


def recorded(path: Path, device: str) -> list[Judged]:
    """A recorded space of CLBlast: the configurations that have both operands in shared memory, as our kernels do."""
    table = np.load(path)
    about = json.loads(table["meta"].tobytes())
    p, gpu = MatrixProduct(*about["problem"], kind="f32", in_bytes=4, out_bytes=4), GPUS[device][1]
    expected, measured = [], []
    for row, took in zip(table["X"], table["t"], strict=True):
        c = {n: about["values"][j][row[j]] for j, n in enumerate(about["params"])}
        if c["SA"] and c["SB"] and np.isfinite(took):
            expected.append(seconds(p, clblast_tiles(c, gpu), gpu))
            measured.append(float(took) * 1e-3)
    return [judged("CLBlast fp32, 4096", device, expected, measured, True)]


def calibrated(gpu: Gpu, rows: Sequence[tuple[MatrixProduct, float]]) -> float:
    """The share of its clock at which wgmma takes, in the mean, the seconds that were measured."""
    low, high = 0.5, 1.0
    while high - low > 0.001:
        share = (low + high) / 2
        slower = replace(gpu, sustained={"f16": share})
        logs = [np.log(min(seconds(p, t, slower) for t in warpgroup_tiles(p)) / took) for p, took in rows]
        low, high = (share, high) if np.mean(logs) > 0 else (low, share)
    return (low + high) / 2


def calibrating(data: Mapping[str, Any]) -> float:
    """By the squares that calibrate the device."""
    rows = [(MatrixProduct(n, n, n), 2e-12 * n**3 / tflops) for n, tflops in data["rows"]]
    return calibrated(GPUS[data["device"]][1], rows)


def measured(document: Mapping[str, Any]) -> list[Judged]:
    """What ``run.py`` measured, by template and type: every configuration that was exact, with a cold cache.

    loss: of the configurations ranked first in their rows, in the mean
    """
    about = next(run for run in reversed(document["runs"]) if "arch" in run)
    target = Target.parse(f"cuda -arch={about['arch']} -units={about['multiprocessors']}")
    target = replace(target, name=about["device"])
    groups: dict[str, list[list[tuple[float, float]]]] = {}
    for row in document["rows"]:
        tried = [t for t in row["tried"] if t["status"] == "exact" and t.get("screened_s")]
        if not tried:
            continue
        work = getattr(tir.ops, row["op"])(**row["parameters"])
        model = work.templates[row["template"]].space_for(target).expected_s
        if model is not None:
            pairs = [(model(t["config"]), t["screened_s"]) for t in tried]
            groups.setdefault(f"{row['op']} {row['kind']} {row['template']}", []).append(pairs)
    return [_of_rows(name, about["device"], rows) for name, rows in groups.items()]


def _of_rows(name: str, device: str, rows: Sequence[Sequence[tuple[float, float]]]) -> Judged:
    each = [judged("", "", *zip(*pairs, strict=True), True) for pairs in rows]
    whole = judged(name, device, *zip(*(pair for pairs in rows for pair in pairs), strict=True), False)
    return replace(whole, loss=sum(j.loss or 0.0 for j in each) / len(each))


def markdown(shapes: Sequence[Mapping[str, Any]], tilings: Sequence[Mapping[str, Any]]) -> str:
    def share(x: float | None) -> str:
        return "" if x is None else f"{100 * x:.1f} %"

    def plain(x: float | None) -> str:
        return "" if x is None else f"{x:.3f}"

    first = ["| measured | device | times | Spearman | mean error | expected / measured |"]
    second = ["| configurations of | device | times | Spearman | mean error | first-ranked loses |"]
    for lines, rows in ((first, shapes), (second, tilings)):
        lines.append("|---|---|---|---|---|---|")
        for r in rows:
            last = f"{r['bias']:.2f}" if r["loss"] is None else share(r["loss"])
            cells = [r["name"], r["device"], r["times"], plain(r["spearman"]), share(r["error"]), last]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*first, "", *second]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spaces", type=Path, help="folder with recorded search spaces")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="results of run.py: judge by these, print only")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}.md and .json beside the results")
    options = parser.parse_args()
    if options.measured:
        print(markdown([], [asdict(j) for j in measured(json.loads(options.measured.read_text()))]))
        return
    data = json.loads((HERE / "public_times.json").read_text())
    by_shapes = [by_shape(g) for g in data["shapes"]]
    tilings = [by_configuration(g) for g in data["tilings"]]
    pairs = [(row["expected_us"], row["measured_us"]) for _, rows in by_shapes for row in rows]
    whole = judged("all of these", "", *zip(*pairs, strict=True), False)
    for name, device in CLBLAST.items():
        if options.spaces and (options.spaces / f"{name}.npz").exists():
            tilings += recorded(options.spaces / f"{name}.npz", device)
    shapes, found = [asdict(j) for j in (*(j for j, _ in by_shapes), whole)], [asdict(j) for j in tilings]
    text = markdown(shapes, found)
    print(text)
    share, used = calibrating(data["calibration"]), GPUS[data["calibration"]["device"]][1].sustained["f16"]
    print(f"sustained share of the clock by the calibrating squares: {share:.3f}, in the table of devices: {used}")
    if options.save:
        RESULTS.with_suffix(".md").write_text(text)
        document = {"wanted": WANTED, "calibrated": round(share, 3), "shapes": shapes, "tilings": found,
                    "rows": {j.name: rows for j, rows in by_shapes[:1]}}  # fmt: skip
        RESULTS.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
