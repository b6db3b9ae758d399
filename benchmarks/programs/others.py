"""Examples of Loopy, Exo, Helion, Kernel Tuner and Hannk, and loops that every array language is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from programs import Array, Inputs, Peers, axes, program

import tensorir as tir


@program("loop/mandelbrot")
def mandelbrot(given: Inputs) -> tuple[Any, Peers]:
    """Rounds that each point stays within the circle, of 50."""
    n, rounds = 256, 50
    x, y = np.meshgrid(np.linspace(-2, 1, n, dtype="float32"), np.linspace(-1.5, 1.5, n, dtype="float32"))
    cr, ci = given.of("cr", x), given.of("ci", y)
    z = tir.compute((n, n), lambda i, j: (cr[i, j], ci[i, j], tir.cast(0, "int32")), name="z0")
    for t in range(rounds):

        def step(i: Any, j: Any, z: Any = z) -> Any:
            re, im, count = z[0][i, j], z[1][i, j], z[2][i, j]
            stays = re * re + im * im <= 4.0
            return (
                tir.where(stays, re * re - im * im + cr[i, j], re),
                tir.where(stays, 2.0 * re * im + ci[i, j], im),
                count + tir.where(stays, 1, 0),
            )

        z = tir.compute((n, n), step, name=f"z{t + 1}")

    def by_numpy(cr: Array, ci: Array) -> Array:
        re, im, count = cr, ci, np.zeros(cr.shape, "int32")
        for _ in range(rounds):
            stays = re * re + im * im <= 4
            re, im = np.where(stays, re * re - im * im + cr, re), np.where(stays, 2 * re * im + ci, im)
            count += stays
        return count

    def by_torch(cr: torch.Tensor, ci: torch.Tensor) -> torch.Tensor:
        re, im, count = cr, ci, torch.zeros(cr.shape, dtype=torch.int32)
        for _ in range(rounds):
            stays = re * re + im * im <= 4
            re, im = torch.where(stays, re * re - im * im + cr, re), torch.where(stays, 2 * re * im + ci, im)
            count += stays
        return count

    return z[2], {"numpy": by_numpy, "torch": by_torch}
