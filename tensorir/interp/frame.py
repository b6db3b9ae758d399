"""``Frame``: the active threads of interpreted blocks, with their variable values as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from tensorir.ir.tree import Buffer, Loop, Stmt, Var


class KernelLike(Protocol):
    """Interface of a lowered kernel (``lower.kernel.Kernel``): the attributes that the interpreter reads."""

    @property
    def params(self) -> tuple[Buffer, ...]: ...
    @property
    def axes(self) -> tuple[Loop, ...]: ...
    @property
    def body(self) -> Stmt: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def block(self) -> tuple[int, int, int]: ...


class Frame:
    """Active threads ("lanes") of interpreted blocks, with values of variables as arrays over the lanes.

    own:    per depth of vectorized loops, the number of each lane's copy of private memory
    wanted: mask of vector elements whose values are used, per lane; None for all
    """

    __slots__ = ("block", "cache", "env", "lane", "me", "own", "wanted")

    def __init__(self, env: dict[Var, Any], lane: np.ndarray, block: np.ndarray, me: np.ndarray,
                 own: tuple[np.ndarray, ...] = ()) -> None:  # fmt: skip
        self.env, self.lane, self.block, self.me = env, lane, block, me
        self.own = own or (lane,)
        self.cache: dict[Any, Any] = {}
        self.wanted: np.ndarray | None = None

    def only(self, mask: np.ndarray) -> Frame:
        env = _Some(self.env, mask)
        lane, *deeper = [x[mask] for x in self.own]
        some = Frame(env, lane, self.block[mask], self.me[mask], (lane, *deeper))
        some.wanted = None if self.wanted is None else self.wanted[mask]
        return some

    def wanting(self, lanes: np.ndarray) -> Frame:
        """A view of this frame in which only the vector elements in the mask ``lanes`` are used."""
        some = Frame(self.env, self.lane, self.block, self.me, self.own)
        some.cache = self.cache
        some.wanted = lanes if self.wanted is None else lanes & self.wanted
        return some

    def wanted_of(self, where: np.ndarray) -> np.ndarray | None:
        """Mask, shaped like the element numbers ``where``, of those whose values are used; None for all."""
        if self.wanted is None:
            return None
        return np.broadcast_to(self.wanted, where.shape) if where.ndim == 2 else np.asarray(self.wanted.any(axis=1))

    def repeated(self, times: int, values: Mapping[Var, np.ndarray], private: bool = False) -> Frame:
        """A new frame with each lane repeated ``times`` times side by side, and with ``values`` for loop variables.

        private: True if repeated lanes have separate private memory
        """
        env = {v: np.repeat(x, times) if isinstance(x, np.ndarray) and x.ndim else x for v, x in self.env.items()}
        env.update({v: np.tile(x, len(self.lane)) for v, x in values.items()})
        lane, *deeper = [np.repeat(x, times) for x in self.own]
        if private:
            deeper.append((self.own[-1][:, None] * times + np.arange(times)).ravel())
        return Frame(env, lane, np.repeat(self.block, times), np.repeat(self.me, times), (lane, *deeper))


class _Some(dict[Var, Any]):
    """Values of variables in the lanes of a mask, selected when first read."""

    def __init__(self, every: Mapping[Var, Any], mask: np.ndarray) -> None:
        super().__init__()
        self.every, self.mask = every, mask

    def __missing__(self, v: Var) -> Any:
        x = self.every[v]
        self[v] = x = x[self.mask] if isinstance(x, np.ndarray) and x.ndim else x
        return x

    def items(self) -> Any:
        for v in dict(self.every.items()):
            self[v]
        return super().items()


Value = Callable[[Frame], Any]
Action = Callable[[Frame], None]
