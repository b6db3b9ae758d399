"""How well do the models of CPU kernels order what is measured?

    python benchmarks/tuner/judge_cpu_model.py                    # judges what is on file
    python benchmarks/tuner/judge_cpu_model.py --measure          # measures what is not on file yet, then judges
    python benchmarks/tuner/judge_cpu_model.py --measure --only conv --seconds 500
    python benchmarks/tuner/judge_cpu_model.py --again            # measures all on file once more

Of each template of a task (those of ``tir.ops``, and automatic ones of bare definitions) some configurations are drawn
and those are added that its model takes for the fastest. All are timed in turn, in one process, on the same arrays, and
the least time of each counts, for other programs only ever slow a kernel down. benchmarks/results/cpu_model.jsonl has
a line for each template: its configurations and their microseconds, each time that they were measured. The judgement
goes to cpu_model.md and cpu_model.json beside it:

    repeats      Spearman of the first two measurements with each other: no model can be expected to agree better
    Spearman     of expected and measured seconds, of a template and of all templates of a task together
    first loses  what the model's first choice takes beyond the best that was measured; of equals the one that comes
                 first in the space, as values to try first do

Ends with status 1 where the medians of the tasks are not what is wanted.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "gpu")]

from judge_model import spearman  # noqa: E402
from measuring import aligned  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.errors import TensorIRError  # noqa: E402
from tensorir.interp.reference import random_arguments  # noqa: E402
from tensorir.runtime.arguments import aligned_empty  # noqa: E402
from tensorir.runtime.device import open_device  # noqa: E402
from tensorir.runtime.launch import CompiledProgram  # noqa: E402
from tensorir.tune.space import Space  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "cpu_model"
WANTED = {"spearman": 0.9, "loss": 0.25, "goal": 0.10}
DRAWN, FIRST = 24, 4
"""Configurations of a template that are drawn, and that its model likes best."""
LOOKED_AT = 4000
"""Configurations of a large space among which those are found that its model likes best."""
ROUNDS, PART = 100, 3e-4
"""Times that each configuration is timed, and the seconds that such a part takes at least."""

Config = dict[str, Any]
Timed = tuple[Config, float]


def given(name: str, *shape: int) -> tir.Tensor:
    return tir.placeholder(shape, name=name)


def depthwise() -> tir.Tensor:
    x, w = given("x", 1, 28, 28, 32), given("w", 3, 3, 32)
    r, s = tir.reduce_axis(3, name="r"), tir.reduce_axis(3, name="s")
    return tir.compute((1, 26, 26, 32), lambda n, p, q, c: tir.sum(x[n, p + r, q + s, c] * w[r, s, c], axis=(r, s)),
                       name="y")  # fmt: skip


def sums(rows: int, columns: int, down: bool) -> tir.Tensor:
    x = given("x", rows, columns)
    k = tir.reduce_axis(rows if down else columns, name="k")
    return tir.compute((columns if down else rows,), lambda i: tir.sum(x[k, i] if down else x[i, k], axis=k), name="y")


def bare() -> dict[str, tir.Tensor]:
    """Definitions without a schedule, by name."""
    nn, x = tir.nn, given("x", 512, 1024)
    return {
        "auto matmul 192x256x320": nn.matmul(given("a", 192, 320), given("b", 320, 256)),
        "auto linear 64x512x256": nn.relu(nn.linear(given("x", 64, 256), given("w", 512, 256), given("b", 512))),
        "auto conv2d 3x3 32 28x28": nn.conv2d(given("x", 1, 32, 28, 28), given("w", 32, 32, 3, 3), pad=1),
        "auto conv2d 1x1 128 14x14": nn.relu(nn.conv2d(given("x", 1, 128, 14, 14), given("w", 64, 128, 1, 1))),
        "auto depthwise 3x3 32 28x28": depthwise(),
        "auto softmax 512x1024": nn.softmax(x, 1),
        "auto layer norm 512x1024": nn.layer_norm(x, (1024,)),
        "auto gelu 512x1024": nn.gelu(x, "tanh"),
        "auto transpose 512x1024": tir.compute((1024, 512), lambda i, j: x[j, i] * 2.0, name="y"),
        "auto max pool 3x3 32 56x56": nn.max_pool2d(given("x", 1, 32, 56, 56), 3, 2, 1),
        "auto column sums 512x1024": sums(512, 1024, down=True),
        "auto row sums 64x8192": sums(64, 8192, down=False),
        "auto cumsum 512x1024": nn.cumsum(x, 1),
    }


def tasks() -> dict[str, tir.Workload]:
    """What is judged, by name."""
    ops = tir.ops
    return {
        "matmul 256": ops.matmul(256, 256, 256),
        "matmul 128x384x768": ops.matmul(128, 384, 768),
        "matmul 64x512x256 tb": ops.matmul(64, 512, 256, tb=True),
        "matmul 4x1024x512": ops.matmul(4, 1024, 512),
        "conv2d 3x3 32 28x28": ops.conv2d(1, 32, 28, 28, 32, 3, 3, pad=1),
        "conv2d 3x3 32 28x28 NHWC": ops.conv2d(1, 32, 28, 28, 32, 3, 3, pad=1, layout="NHWC"),
        "conv2d 1x1 128 14x14": ops.conv2d(1, 128, 14, 14, 64, 1, 1),
        "conv2d depthwise 3x3 32 56x56": ops.conv2d(1, 32, 56, 56, 32, 3, 3, pad=1, groups=32),
        **{name: tir.Workload(name, y) for name, y in bare().items()},
    }


def some(space: Space, rng: np.random.Generator) -> list[Config]:
    """Configurations to measure: the default, those that the model likes best, and drawn ones."""
    rows = rng.permutation(len(space.legal))[:DRAWN]
    chosen = [space.default, *map(space.config, rows), *best_liked(space, rng)]
    return list({json.dumps(c, sort_keys=True): c for c in chosen}.values())


def best_liked(space: Space, rng: np.random.Generator) -> list[Config]:
    """What the model of a space takes for the fastest of its configurations, or of some of a large one."""
    if space.expected_s is None:
        return []
    rows = np.sort(rng.permutation(len(space.legal))[:LOOKED_AT])
    return sorted(map(space.config, rows), key=space.expected_s)[:FIRST]


def arrays(work: tir.Workload) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and results that all configurations of a template have in common: where pages lie makes a difference."""
    given = [aligned(a) for a in random_arguments(work.outputs, 1)]
    return given, [aligned_empty(tuple(map(int, y.shape)), y.dtype) for y in work.outputs]


def bound(work: tir.Workload, template: str, config: Config, device: Any, used: tuple[Any, Any]) -> Any:
    """A call of a configuration on these inputs and results; None where it does not compile."""
    s = work.schedule(config, template, device.target)
    try:
        program = CompiledProgram(s.emitted(), device, cache=False)
    except TensorIRError as e:
        print(f"  {config}: {e.problems[0]}", file=sys.stderr)
        return None
    given, out = used
    return program.bind(*given, out=out[0] if len(out) == 1 else tuple(out))


def part(call: Any, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    call.finish()
    return (time.perf_counter() - began) / calls


def timed(calls: Sequence[Any]) -> list[float]:
    """The least seconds of each, timed in turn."""
    found = [min(part(call, 1) for _ in range(3)) for call in calls]
    often = [max(1, math.ceil(PART / s)) for s in found]
    for _ in range(ROUNDS):
        found = [min(least, part(call, n)) for least, call, n in zip(found, calls, often, strict=True)]
    return found


def readings(work: tir.Workload, template: str, configs: Sequence[Config], device: Any) -> dict[int, float]:
    """Microseconds of those that compile, by number."""
    used = arrays(work)
    calls = {n: call for n, c in enumerate(configs) if (call := bound(work, template, c, device, used))}
    return {n: round(s * 1e6, 2) for n, s in zip(calls, timed(list(calls.values())), strict=True)}


def measured(work: tir.Workload, template: str, device: Any) -> dict[str, Any]:
    """Configurations and their microseconds."""
    space = work.templates[template].space_for(device.target)
    configs = some(space, np.random.default_rng(0))
    us = readings(work, template, configs, device)
    rows = [[[configs[n][x] for x in space.names], us[n]] for n in us]
    return {"template": template, "names": list(space.names), "rows": rows}


def again(only: str, limit_s: float, device: Any) -> None:
    """Measure what is on file once more, and what models like best by now."""
    began, lines, every = time.monotonic(), on_file(), tasks()
    for line in lines:
        work = every.get(line["task"])
        if only not in line["task"] or time.monotonic() - began > limit_s or not work:
            continue
        if line["template"] not in work.templates:
            continue
        space = work.templates[line["template"]].space_for(device.target)
        line["rows"] = [row for row in line["rows"] if legal(space, dict(zip(line["names"], row[0], strict=True)))]
        known = [values for values, *_ in line["rows"]]
        liked = ([c[n] for n in line["names"]] for c in best_liked(space, np.random.default_rng(1)))
        line["rows"] += [[values] for values in liked if values not in known]
        configs = [dict(zip(line["names"], values, strict=True)) for values, *_ in line["rows"]]
        us = readings(work, line["template"], configs, device)
        line["rows"] = [[*row, us[n]] for n, row in enumerate(line["rows"]) if n in us]
        text = "".join(json.dumps(x) + "\n" for x in lines)
        RESULTS.with_suffix(".jsonl").write_text(text, encoding="utf-8")
        print(f"{line['task']}, {line['template']}: once more", flush=True)


def fitting(work: tir.Workload, device: Any) -> Iterator[str]:
    """The names of templates for a device."""
    yield from (name for name in work.templates if name.startswith(f"{device.target.kind}_"))


def measure(only: str, limit_s: float, device: Any) -> None:
    """Measure what is not on file yet."""
    began, known = time.monotonic(), {(line["task"], line["template"]) for line in on_file()}
    for task, work in tasks().items():
        for template in fitting(work, device) if only in task else ():
            if (task, template) in known or time.monotonic() - began > limit_s:
                continue
            line = {"task": task, **measured(work, template, device), "device": device.name}
            with RESULTS.with_suffix(".jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{task}, {template}: {len(line['rows'])} configurations", flush=True)


def on_file() -> list[dict[str, Any]]:
    path = RESULTS.with_suffix(".jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Judged:
    """How a model orders what was measured. bias: geometric mean of expected over measured; None without a model."""

    task: str
    template: str
    times: int
    spearman: float | None = None
    loss: float | None = None
    bias: float | None = None
    repeats: float | None = None


def judged(task: str, template: str, expected: Sequence[float], seconds: Sequence[float]) -> Judged:
    first = seconds[int(np.argmin(np.asarray(expected)))]
    bias = statistics.geometric_mean(e / s for e, s in zip(expected, seconds, strict=True))
    distinct = min(len(set(expected)), len(seconds)) > 2
    return Judged(task, template, len(seconds), spearman(expected, seconds) if distinct else None,
                  first / min(seconds) - 1, bias)  # fmt: skip


def judge(device: Any, only: str = "") -> tuple[list[Judged], list[Judged]]:
    """By template, and by task where there are several."""
    every, alone, together = tasks(), list[Judged](), list[Judged]()
    pairs: dict[str, list[tuple[float, float]]] = {}
    for line in on_file():
        task, template = line["task"], line["template"]
        if task not in every or template not in every[task].templates or only not in task:
            continue
        space = every[task].templates[template].space_for(device.target)
        timed = kept(space, line)
        if space.expected_s is None or not timed:
            alone.append(Judged(task, template, len(timed)))
            continue
        own = [(space.expected_s(c), s) for c, s in timed]
        twice = [us[:2] for _, *us in line["rows"] if len(us) > 1]
        repeats = spearman(*zip(*twice, strict=True)) if twice else None
        alone.append(replace(judged(task, template, *zip(*own, strict=True)), repeats=repeats))
        pairs.setdefault(task, []).extend(own)
    for task, both in pairs.items():
        together.append(judged(task, "all", *zip(*both, strict=True)))
    return alone, together


def legal(space: Space, config: Config) -> Config | None:
    """The configuration as the space has it; None where it has none such any more."""
    try:
        return space.accept(config)
    except TensorIRError:
        return None


def kept(space: Space, line: Mapping[str, Any]) -> list[Timed]:
    """What was measured and is still legal, in the order of the space: by the last measurements, which all have."""
    found, common = [], min((len(us) for _, *us in line["rows"]), default=0)
    for values, *us in line["rows"]:
        if config := legal(space, dict(zip(line["names"], values, strict=True))):
            row = [space.values[n].index(config[name]) for n, name in enumerate(space.names)]
            found.append((row, config, min(us[-common:]) * 1e-6))
    return [(c, s) for _, c, s in sorted(found, key=lambda row: row[0])]


def summary(rows: Sequence[Judged]) -> dict[str, Any]:
    """Medians, and what no model orders."""
    known, losses = [r.spearman for r in rows if r.spearman is not None], [r.loss for r in rows if r.loss is not None]
    twice = [r.repeats for r in rows if r.repeats is not None]
    return {
        "judged": len(losses),
        "times": sum(r.times for r in rows),
        "without a model": len(rows) - len(losses),
        "repeats": statistics.median(twice) if twice else None,
        "spearman": statistics.median(known),
        "loss": statistics.median(losses),
        "worst loss": max(losses),
    }


def markdown(alone: Sequence[Judged], together: Sequence[Judged]) -> str:
    lines = ["| task | template | times | repeats | Spearman | first loses | expected / measured |"]
    lines.append("|---|---|---|---|---|---|---|")
    for r in (*alone, *together):
        told = ["" if x is None else f"{x:.3f}" for x in (r.repeats, r.spearman)]
        rest = ["", ""] if r.loss is None or r.bias is None else [f"{100 * r.loss:.1f} %", f"{r.bias:.2f}"]
        lines.append(f"| {' | '.join([r.task, r.template, str(r.times), *told, *rest])} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="what is not on file yet")
    parser.add_argument("--again", action="store_true", help="what is on file once more")
    parser.add_argument("--only", default="", help="tasks whose name has this")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no template after so many")
    parser.add_argument("--device", default="opencl")
    options = parser.parse_args()
    device = open_device(options.device)
    if options.measure:
        measure(options.only, options.seconds, device)
    if options.again:
        again(options.only, options.seconds, device)
    alone, together = judge(device, options.only)
    text = markdown(alone, together)
    found = {"templates": summary(alone), "tasks": summary(together)}
    print(text + "\n" + json.dumps(found, indent=1))
    if not options.only:
        RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")
        rows = [asdict(r) for r in (*alone, *together)]
        document = {"schema": 1, "wanted": WANTED, "device": device.name, "summary": found, "rows": rows}
        RESULTS.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    by = found["tasks"]
    return int(by["spearman"] < WANTED["spearman"] or by["loss"] > WANTED["loss"])


if __name__ == "__main__":
    sys.exit(main())
