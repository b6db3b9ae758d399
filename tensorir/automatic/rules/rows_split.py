"""Rows in parts on GPUs: where rows are few, several blocks share each row.

Every reduction is a kernel of partial results, which the kernel after it combines in each of its blocks: a softmax is
three kernels, whatever the length of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.rules.row_chain import Chain
from tensorir.schedule.schedule import BaseSchedule


def splittable(chain: Chain) -> bool:
    """True if a chain ends with a map over its rows, and what it computes before is one element per row, or a map that
    may be inlined.
    """
    of_rows = all(chain.within(n) == n.reduced or n.kind == "map" for n in chain.stages)
    plain = of_rows and all(len(n.writes) == 1 for n in chain.stages) and not chain.grouped and chain.anchor.constant
    return plain and bool(chain.reduced) and chain.anchor.kind == "map" and bool(chain.within(chain.anchor))


class RowsInParts:
    """Steps that schedule the chain ``chain`` with its rows in parts; maps within a row are inlined first.

    part:  function that splits the loops of a stage within a row, and returns the loop over parts
    place: function that binds the loops of a kernel, a reduction's or the last one, called by its name, and returns the
           loop in which what it needs of a row is combined
    """

    def __init__(
        self, s: BaseSchedule, chain: Chain,
        part: Callable[[Nest], str], place: Callable[[Chain, Nest, str], str],
    ) -> None:  # fmt: skip
        self.s, self.part, self.place = s, part, place
        for n in chain.stages:
            if n.kind == "map" and chain.within(n):
                s.compute_inline(n.name)
        nests = Graph(s.program).nests
        now = {n: nests[n.name] for n in (*chain.stages, chain.anchor) if n.name in nests}
        stages, places = tuple(now[n] for n in chain.stages if n in now), {now[n]: chain.places[n] for n in now}
        self.chain = replace(chain, anchor=now[chain.anchor], stages=stages, places=places)
        own = {b: n for n in stages for b in n.writes}
        self.made = {n: [own[b] for b in n.reads if b in own] for n in (*stages, self.chain.anchor)}
        self.left = {n: sum(n in needed for needed in self.made.values()) for n in stages}

    def schedule(self) -> None:
        """Schedule all stages, the last kernel first."""
        kernels = {n: str(self.s.rfactor(n.name, self.part(n)).name) for n in self.chain.reduced}
        kernels[self.chain.anchor] = self.chain.anchor.name
        for n, name in reversed(kernels.items()):
            self._combine(n, name, self.place(self.chain, n, name))

    def _combine(self, reader: Nest, name: str, at: str) -> None:
        """Compute what stage ``reader``, called ``name`` by now, reads of a row at loop ``at``."""
        for n in self.made[reader]:
            self.left[n] -= 1
            own = str(self.s.clone(n.name, for_=name).name) if self.left[n] else n.name
            self.s.compute_at(own, at, scope="register")
            if n.kind == "map":
                for before in self.made[n]:
                    self.left[before] += bool(self.left[n])
                self._combine(n, own, at)
