"""Convolutions as products of matrices: a view, times an engine that multiplies (``gemm_blocks``)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tensorir.engines.gemm_blocks import Blocks
from tensorir.engines.problems import Conv, Gemm
from tensorir.engines.tiles import Config, Rule
from tensorir.ops.common import Written
from tensorir.target import Target
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.legal import Predicate


class ProductTile(Written[Conv]):
    """A configuration of an engine for the product that a view makes of a convolution, and of that view.

    less: rules of the engine that do not matter to the view
    """

    less: ClassVar[Sequence[str]] = ()

    @classmethod
    @abstractmethod
    def engine(cls, p: Conv) -> type[Blocks]:
        """The engine that multiplies."""

    @property
    @abstractmethod
    def product(self) -> Gemm:
        """The product as a matmul is described."""

    @property
    def inner(self) -> Any:
        """The engine's tile."""
        return self.engine(self.p)(self.config, self.product, self.target)

    @classmethod
    def where(cls, p: Conv, target: Target) -> dict[str, Predicate]:
        def asked(rule: Rule) -> Predicate:
            return lambda c: rule(cls(c, p, target).inner)

        of_engine = {name: asked(rule) for name, rule in cls.engine(p).rules.items() if name not in cls.less}
        return {**super().where(p, target), **of_engine}

    @classmethod
    def expected(cls, p: Conv, target: Target) -> Callable[[Config], float] | None:
        if gpu_of(target) is None:
            return None
        known: dict[Gemm, Callable[[Config], float] | None] = {}

        def time(c: Config) -> float:
            tile = cls(c, p, target)
            product = tile.product
            if product not in known:
                known[product] = tile.engine(p).expected(product, target)
            seconds = known[product]
            return math.inf if seconds is None else seconds(c) + tile.beside

        return time

    @property
    def beside(self) -> float:
        """Seconds of kernels besides that of the product."""
        return 0.0
