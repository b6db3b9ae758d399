"""Definitions drawn from a seed: one to five stages of every sort, one after another, in awkward shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stages import Draw
from stages_wide import Wide

from tensorir.errors import TensorIRError

WIDE = 10_000
"""The first seed of definitions with stages of all sorts; those before are drawn from the sorts of ``Draw``."""


@dataclass
class Drawn:
    """A definition that a seed gives.

    told: what its stages are, in words
    """

    seed: int
    outputs: tuple[Any, ...] = ()
    told: list[str] = field(default_factory=list)


def drawn(seed: int) -> Drawn:
    """The definition of a seed."""
    d = Wide(seed) if seed >= WIDE else Draw(seed)
    for _ in range(d.rng.randint(1, 5)):
        fitting = [s for s in d.sorts if not d.tensors or d.tensors[-1].ndim > 0 or s in ("product", "reduction")]
        try:
            d.tensors.append(getattr(d, d.rng.choice(fitting))())
        except (TensorIRError, TypeError):  # a sort that needs a constant extent
            if d.dim is None:
                raise
            d.tensors.append(d.map())
    last = d.tensors[-1]
    ends = [t for t in d.tensors if id(t) not in d.used or t is last]
    if d.rng.random() < 0.2:
        ends = [
            t for t in d.tensors if any(t is x for x in ends) or d.rng.random() < 0.3
        ]  # what others read is a result as well
    return Drawn(seed, tuple(ends), d.told)
