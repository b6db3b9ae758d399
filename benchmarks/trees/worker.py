"""One tree's side of a comparison: answers requests, a line of JSON each, with that tree's package.

A request names a method of ``Side`` in "do" and has its arguments beside. An answer is an object: ``{"refused": code}``
where tensorir refuses, ``{"failed": words}`` where anything else goes wrong.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.errors import TensorIRError
from tensorir.interp.reference import random_arguments

Answer = dict[str, Any]


class Side:
    """What a request may ask for; ``built`` is the one kernel that is timed now."""

    def __init__(self) -> None:
        self.works: dict[str, tir.Workload] = {}
        self.built: Any = None
        self.clock: Callable[[], float] = time.perf_counter

    def about(self, core: int | None) -> Answer:
        """Where this package is. core: the one processor to run on, whose time is then that of this process alone."""
        if core is not None:
            os.sched_setaffinity(0, {core})
            self.clock = time.process_time
        return {"package": str(Path(tir.__file__).resolve().parents[1])}

    def templates(self, op: str, given: Answer, target: str) -> Answer:
        """The templates that suit a target."""
        wanted = self._target(target)
        return {"templates": [n for n, t in self._work(op, given).templates.items() if t.suits(wanted)]}

    def start(self, op: str, given: Answer, target: str) -> Answer:
        """The template that a call without further wishes begins with, and its default configuration."""
        work, wanted = self._work(op, given), self._target(target)
        name = work.template_for(wanted)
        return {"template": name, "config": dict(work.templates[name].space_for(wanted).default)}

    def draw(self, op: str, given: Answer, target: str, template: str, count: int, seed: int) -> Answer:
        """The default configuration and ``count`` others."""
        space = self._work(op, given).templates[template].space_for(self._target(target))
        rows, rng = len(space.configs), np.random.default_rng(seed)
        default = space.index(space.default)
        others = [int(r) for r in rng.permutation(rows)[: count + 1] if r != default][:count]
        return {"configs": [dict(space.default), *(dict(space.config(r)) for r in others)]}

    def emit(self, op: str, given: Answer, target: str, template: str, config: Answer) -> Answer:
        """The text, and how it is launched, without names."""
        source = self._schedule(op, given, target, template, config).emitted()
        number = {p.name: n for n, p in enumerate(source.params)}
        launches = [
            [list(k.grid), list(k.block), k.shared_bytes, k.once, k.cluster, [number[p] for p in k.params],
             [[m.dtype, m.shape, m.box, m.swizzle, m.steps, m.lower, m.upper] for m in k.maps]]
            for k in source.kernels
        ]  # fmt: skip
        params = [[p.dtype, p.shape, p.role, p.align] for p in source.params]
        return {"text": source.text, "launches": launches, "params": params}

    def inspect(
        self, op: str, given: Answer, target: str, template: str, config: Answer, emulated: bool, save: str
    ) -> Answer:
        """Resources, instructions and counted accesses of CUDA kernels, in launch order; results as ``save``.npy."""
        from tensorir.runtime.cuda import compile_cubin, sass, sass_opcodes

        s = self._schedule(op, given, target, template, config)
        source = s.emitted()
        cubin = compile_cubin(source.text, self._target(target).arch)
        text = sass(cubin)
        kernels = []
        for k in source.kernels:
            use = cubin.kernels[k.name]
            stems: Counter[str] = Counter()
            for name, times in sass_opcodes(_of_kernel(text, k.name)).items():
                stems[name.split(".")[0] + (".128" if ".128" in name else ".64" if ".64" in name else "")] += times
            stems.pop("NOP", None)
            kernels.append({
                "registers": use.registers, "spills": use.spill_bytes,
                "shared_bytes": max(k.shared_bytes, use.shared_bytes), "opcodes": stems,
            })  # fmt: skip
        return {"kernels": kernels, **(_emulated(s, save) if emulated else {})}

    def build(self, op: str, given: Answer, target: str, template: str, config: Answer, save: str) -> Answer:
        """Build on a device, run once on small whole numbers, keep it for ``slot``; results as ``save``.npy."""
        s = self._schedule(op, given, target, template, config)
        self.built = None
        arrays = random_arguments(s.outputs, 0)
        f = s.build(target)
        placed = [tir.empty(a.shape, str(a.dtype)) if a.ndim else a for a in arrays]
        for mine, a in zip(placed, arrays, strict=True):
            if a.ndim:
                mine[...] = a
        self.built = f.bind(*placed)
        self.built()
        _save(save, self.built.wait())
        return {}

    def slot(self, seconds: float, batch: float) -> Answer:
        """Seconds of a call: the median of the batches of a slot."""
        self._batch(2)
        calls = max(1, min(10_000, int(batch / max(self._batch(2), 1e-7))))
        end, found = self.clock() + seconds, list[float]()
        while not found or self.clock() < end:
            found.append(self._batch(calls))
        return {"seconds": float(np.median(found))}

    def _batch(self, calls: int) -> float:
        began = self.clock()
        for _ in range(calls):
            self.built()
        self.built.finish()
        return (self.clock() - began) / calls

    def _work(self, op: str, given: Answer) -> tir.Workload:
        key = json.dumps([op, given], sort_keys=True)
        if key not in self.works:
            self.works = {key: getattr(tir.ops, op)(**given)}
        return self.works[key]

    def _target(self, text: str) -> Any:
        from tensorir.runtime.device import open_device

        return open_device(text).target if re.match(r"\w+:\w", text) else tir.Target.parse(text)

    def _schedule(self, op: str, given: Answer, target: str, template: str, config: Answer) -> Any:
        return self._work(op, given).schedule(config, template, self._target(target))


def _of_kernel(text: str, name: str) -> str:
    parts = re.split(r"(?m)^(?=\s*//-+ \.\S+)", text)
    return "".join(p for p in parts if re.match(rf"\s*//-+ \.text\.{name}\s", p))


def _emulated(s: Any, save: str) -> Answer:
    """What the accesses of the first block cost by kind, and what the emulator found wrong."""
    from tensorir.check.emulate import emulate

    run = emulate(s.emitted(), random_arguments(s.outputs, 0))
    costs: Counter[str] = Counter()
    for t in run.traffic:
        costs[t.what] += t.units
    _save(save, run.outputs)
    return {"costs": costs, "problems": [str(p) for p in run.problems]}


def _save(path: str, results: Any) -> None:
    arrays = results if isinstance(results, tuple | list) else (results,)
    np.savez(path, *(np.asarray(a, np.complex128 if a.dtype.kind == "c" else np.float64) for a in arrays))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anything else prints is not an answer
    side = Side()
    for line in sys.stdin:
        request = json.loads(line)
        ask: Callable[..., Answer] = getattr(side, request.pop("do"))
        try:
            answer = ask(**request)
        except TensorIRError as e:
            answer = {"refused": e.code, "words": str(e)[:300]}
        except Exception as e:  # the other side goes on
            answer = {"failed": f"{type(e).__name__}: {e}"[:500]}
        out.write(json.dumps(answer, default=str) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
