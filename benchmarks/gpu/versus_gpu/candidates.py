"""Which configurations are tried: a curated list for each template, and a search for the tier that tunes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorir as tir
from tensorir.tune.space import Space

from .problems import Problem

Config = dict[str, Any]
Listed = tuple[str, list[Config]]
"""A template and configurations of it."""
HOPELESS = 1.7
"""Times as slow as the fastest, by the model: what is curated for other shapes."""
DRAWN = 400
"""Configurations among which the model looks for fast ones, and the comparison for different ones."""

_TENSOR = ("bm", "bn", "wm", "wn", "bk", "depth", "in_flight")
# bk in bytes
_TENSOR_LARGE = (
    (128, 256, 64, 64, 64, 4, 1), (256, 128, 64, 64, 128, 3, 1), (128, 128, 64, 32, 64, 4, 1),
    (128, 256, 64, 64, 128, 3, 1), (128, 128, 64, 64, 64, 4, 1), (128, 128, 64, 32, 128, 3, 1),
    (256, 128, 64, 64, 64, 3, 1), (128, 128, 64, 32, 64, 2, 0),
)  # fmt: skip
_TENSOR_SMALL = (
    (64, 64, 32, 32, 128, 4, 1), (64, 128, 32, 64, 64, 4, 1), (128, 64, 64, 32, 64, 4, 1),
    (64, 64, 32, 16, 128, 5, 1), (64, 128, 32, 32, 128, 4, 1), (64, 64, 16, 32, 128, 6, 1),
    (128, 128, 64, 32, 128, 3, 1), (64, 64, 32, 32, 64, 2, 0),
)  # fmt: skip
_TILE = ("ti", "tj", "ri", "rj", "bk", "vector", "fragments", "depth")
_TILE_LARGE = (
    (16, 16, 8, 8, 16, 4, 1, 2), (16, 8, 8, 8, 8, 4, 1, 2), (16, 16, 8, 8, 8, 4, 0, 2), (8, 32, 16, 4, 8, 4, 1, 2),
    (32, 8, 4, 8, 16, 4, 1, 2), (16, 8, 16, 8, 8, 4, 1, 2), (16, 16, 8, 8, 8, 4, 1, 1),
)  # fmt: skip
_TILE_SMALL = (
    (16, 16, 4, 4, 32, 4, 1, 2), (8, 16, 8, 4, 16, 4, 1, 2), (16, 8, 4, 8, 16, 4, 1, 2), (8, 8, 8, 8, 16, 4, 1, 2),
    (16, 16, 2, 4, 32, 4, 1, 2), (8, 8, 4, 4, 32, 4, 1, 2), (16, 16, 4, 4, 16, 4, 1, 1),
)  # fmt: skip
_WARP = ("li", "ri", "rj", "wi", "wj", "bk", "depth", "in_flight")
_WARP_LARGE = (
    (8, 8, 8, 2, 4, 8, 2, 0), (4, 8, 16, 4, 2, 8, 2, 0), (8, 8, 8, 2, 4, 16, 2, 0), (8, 16, 8, 2, 4, 8, 2, 0),
    (4, 8, 16, 4, 2, 16, 2, 0), (8, 8, 8, 2, 4, 16, 3, 1), (8, 8, 16, 2, 2, 8, 2, 0), (4, 8, 8, 4, 2, 8, 2, 0),
)  # fmt: skip
_WARP_SMALL = (
    (8, 4, 4, 2, 2, 32, 2, 0), (8, 8, 4, 2, 2, 16, 2, 0), (8, 4, 8, 2, 2, 16, 2, 0), (8, 8, 8, 1, 2, 16, 2, 0),
    (8, 4, 4, 2, 4, 16, 2, 0), (8, 4, 8, 1, 2, 32, 2, 0), (8, 4, 4, 2, 2, 16, 4, 1),
)  # fmt: skip
_HOPPER = ("groups", "rows", "bn", "depth", "cluster", "raster", "resident")
_HOPPER_LARGE = (
    (2, 1, 256, 3, 2, 8, 1), (2, 1, 256, 3, 1, 8, 1), (2, 1, 256, 3, 2, 1, 1), (2, 1, 128, 5, 2, 8, 1),
    (2, 2, 128, 3, 1, 8, 1), (2, 1, 192, 4, 2, 8, 1), (2, 1, 192, 4, 1, 1, 1), (3, 1, 128, 4, 1, 8, 1),
    (1, 1, 256, 4, 1, 8, 1), (2, 1, 128, 5, 1, 8, 0), (2, 1, 256, 4, 2, 8, 1), (2, 1, 256, 4, 1, 16, 1),
)  # fmt: skip
_HOPPER_TURNS = ((2, 1, 128, 5, 2, 8, 1), (2, 1, 192, 4, 1, 8, 1), (2, 2, 128, 4, 1, 8, 1), (2, 1, 256, 4, 1, 8, 1))
_HOPPER_SMALL = (
    (1, 1, 64, 8, 1, 1, 1), (2, 1, 64, 6, 1, 1, 1), (1, 1, 128, 6, 1, 1, 1), (2, 1, 128, 5, 1, 1, 0),
    (1, 1, 64, 6, 1, 1, 0), (2, 1, 128, 5, 2, 1, 1), (1, 2, 64, 5, 1, 1, 1), (1, 1, 256, 4, 1, 1, 1),
)  # fmt: skip
_PLAIN = dict(raster=1, splits=1, atomic=0, rest=0, pingpong=0, cluster=1, staged=0)
"""Knobs that the lists do not name."""
_FUSED = ((64, 2, 8, 2), (64, 2, 4, 2), (32, 2, 8, 1), (32, 2, 4, 2), (64, 1, 8, 2))
SEED = 0


def template_of(work: tir.Workload, target: str, wanted: str | None = None) -> str:
    """The template that is wanted, or that suits the target best: the workload's own choice."""
    return work.template_for(target, wanted)


def curated(problem: Problem, template: str, space: Space) -> list[Config]:
    """The legal ones of configurations that are known to be sensible; none for a template that has no list."""
    plain = {name: value for name, value in _PLAIN.items() if name in space.names}
    every = ({**plain, **c} for c in _listed(problem, template))
    return [space.canonical(c) for c in every if space.index(c) >= 0]


def _listed(problem: Problem, template: str) -> Iterator[Config]:
    p = problem.parameters
    if problem.op == "matmul":
        large = min(p["m"], p["n"]) >= 1024
        if template == "gpu_tile_wgmma":
            rows = _HOPPER_LARGE if large else _HOPPER_SMALL
            for row, turns in itertools.zip_longest(rows, _HOPPER_TURNS if large else ()):
                yield dict(zip(_HOPPER, row, strict=True))
                if turns is not None:
                    yield dict(zip(_HOPPER, turns, strict=True)) | {"pingpong": 1}
        elif template == "gpu_tile_mma":
            size = {"bf16": 2, "fp16": 2, "int8": 1, "e4m3": 1}.get(problem.kind, 4)
            for row in _TENSOR_LARGE if large else _TENSOR_SMALL:
                c = dict(zip(_TENSOR, row, strict=True))
                yield {**c, "bk": c["bk"] // size, "raster": _bands(p["m"], c["bm"], large)}
        elif template == "gpu_tile_warp":
            for row in _WARP_LARGE if large else _WARP_SMALL:
                c = dict(zip(_WARP, row, strict=True))
                yield {**c, "raster": _bands(p["m"], c["wi"] * c["li"] * c["ri"], large)}
        elif template == "gpu_tile":
            yield from (dict(zip(_TILE, row, strict=True)) for row in (_TILE_LARGE if large else _TILE_SMALL))
    elif template == "gpu_winograd_fused":
        yield from (dict(zip(("bk", "depth", "bc", "places"), row, strict=True)) for row in _FUSED)
    elif template == "gpu_tile_wgmma":
        yield from (dict(zip(_HOPPER, row, strict=True)) for row in (*_HOPPER_LARGE, *_HOPPER_SMALL))
    elif template == "gpu_tile_warp":
        yield from (dict(zip(_WARP, row, strict=True)) for row in (*_WARP_LARGE[:4], *_WARP_SMALL[:4]))
    elif template == "gpu_tile":
        yield from (dict(zip(_TILE, row, strict=True)) for row in (*_TILE_LARGE, *_TILE_SMALL))


def _winograd_starts(space: Space) -> Iterator[Config]:
    """For tiles of 4 x 4 and of 2 x 2 outputs, the products that are worth trying, with the transforms of the default
    configuration where these are legal.
    """
    base = space.default
    for m in (4, 2):
        for row in (*_WARP_LARGE[:3], *_WARP_SMALL[:2]):
            wanted = base | dict(zip(_WARP, row, strict=True)) | {"m": m, "raster": 1}
            if set(wanted) == set(base) and space.index(wanted) >= 0:
                yield wanted


def _bands(m: int, high: int, large: bool) -> int:
    """Rows of blocks that are walked together: what divides them, where there are many blocks."""
    return next(n for n in (8, 4, 2, 1) if -(-m // high) % n == 0) if large else 1


def space_of(problem: Problem, target: str) -> tuple[str, Space]:
    """The template that is measured and its space, as far as it has the knobs that are asked for."""
    work = problem.workload()
    template = template_of(work, target, problem.template)
    space = work.templates[template].space_for(tir.Target.parse(target))
    return template, space.pin(**dict(problem.knobs)) if problem.knobs else space


def configurations(problem: Problem, target: str, count: int) -> Listed:
    """The template and up to ``count`` legal configurations. What is timed: the default, curated ones and those that
    the model expects to be fast in turn, then random ones. What is only compared: such as differ most.
    """
    template, space = space_of(problem, target)
    start = [space.default, *_winograd_starts(space)] if template == "gpu_winograd" else [space.default]
    rows = random.Random(SEED).sample(range(len(space.legal)), min(DRAWN, len(space.legal)))
    drawn = [space.config(r) for r in rows]
    if not problem.timed:
        return template, _different(start[:1], drawn, count)
    known = curated(problem, template, space)
    promising: list[Config] = []
    if expected_s := space.expected_s:
        promising = _promising(expected_s, drawn)
        known = [c for c in known if expected_s(c) <= HOPELESS * expected_s(promising[0])]
    turns = (c for pair in itertools.zip_longest(known, promising) for c in pair if c is not None)
    return template, _distinct([*start, *turns, *drawn])[:count]


def _promising(expected_s: Callable[[Mapping[str, Any]], float], drawn: Iterable[Config]) -> list[Config]:
    """The fastest first by the model, one of those that are the same to it."""
    times: dict[float, Config] = {}
    for c in drawn:
        times.setdefault(round(1e9 * expected_s(c)), c)
    return [times[t] for t in sorted(times)]


def _different(start: Sequence[Config], drawn: Sequence[Config], count: int) -> list[Config]:
    """``start``, then always one with as many values of knobs as possible that none before had."""
    found, left = list(start), _distinct(drawn)
    while left and len(found) < count:
        had = {item for c in found for item in c.items()}
        found.append(max(left, key=lambda c: sum(item not in had for item in c.items())))
        left = [c for c in left if c not in found]
    return found


def _distinct(configs: Iterable[Config]) -> list[Config]:
    return list({tuple(sorted(c.items())): c for c in configs}.values())


class Search:
    """Random and local search: half of a batch are neighbours of the fastest, the others drawn at random."""

    def __init__(self, problem: Problem, target: str, size: int, elite: int = 4) -> None:
        self.template, self.space = space_of(problem, target)
        self.size, self.elite, self.draw = size, elite, random.Random(SEED)
        self.asked: list[Config] = []
        self.first = configurations(problem, target, size)[1]

    def batch(self, fastest: Sequence[Mapping[str, Any]]) -> list[Config]:
        """The next configurations, none of them twice; empty when there are no more.

        fastest: what was measured, the best first
        """
        if not self.asked:
            made = self.first
        else:
            near = [c for best in fastest[: self.elite] for c in self._neighbours(best)]
            self.draw.shuffle(near)
            made = self._new(near)[: self.size // 2]
            rows = self.draw.sample(range(len(self.space.legal)), min(8 * self.size, len(self.space.legal)))
            made = self._new([*made, *(self.space.config(r) for r in rows)])[: self.size]
        self.asked += made
        return made

    def _new(self, configs: Iterable[Config]) -> list[Config]:
        return [c for c in _distinct(configs) if c not in self.asked]

    def _neighbours(self, config: Mapping[str, Any]) -> list[Config]:
        """Legal configurations that differ in one knob."""
        changed = [{**config, name: v} for name, values in zip(self.space.names, self.space.values, strict=True)
                   for v in values if v != config[name]]  # fmt: skip
        return [c for c in changed if self.space.index(c) >= 0]
