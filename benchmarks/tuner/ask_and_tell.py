"""Peers that ask and tell, behind the protocol of the recorded-table scorer."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

Indices = tuple[int, ...]


class ScikitOptimize:
    """scikit-optimize as its users call it: ``Optimizer`` with its defaults over ordered integer dimensions.

    An invalid or failed configuration is told the slowest time seen; its ``ask`` knows no constraints.
    """

    def __init__(self, space: Any, budget: int, seed: int, prior: Any = ()) -> None:
        from skopt import Optimizer

        dimensions = [(0, len(v) - 1) if len(v) > 1 else [0] for v in space.values]
        self.optimizer = Optimizer(dimensions, "GP", random_state=seed)
        self.slowest = 1.0

    def ask(self) -> Indices:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tuple(int(i) for i in self.optimizer.ask())

    def tell(self, row: Any, ms: float | None) -> None:
        self.slowest = max(self.slowest, ms or 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.optimizer.tell([int(i) for i in row], self.slowest if ms is None else ms)


class ScikitOptimizeOnPool:
    """scikit-optimize's regressor and expected improvement, refitted at each step, over the valid rows only."""

    START = 10

    def __init__(self, space: Any, budget: int, seed: int, prior: Any = ()) -> None:
        widths = np.array([max(1, len(v) - 1) for v in space.values])
        self.points = space.X / widths
        self.rng = np.random.default_rng(seed)
        self.seen: list[int] = []
        self.times: list[float | None] = []

    def ask(self) -> int:
        free = np.setdiff1d(np.arange(len(self.points)), self.seen)
        good = [t for t in self.times if t is not None]
        if len(self.seen) < self.START or len(good) < 2:
            return int(self.rng.choice(free))
        from skopt.acquisition import gaussian_ei
        from skopt.learning import GaussianProcessRegressor
        from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern

        y = np.array([max(good) if t is None else t for t in self.times])
        kernel = ConstantKernel(1.0, (0.01, 1000.0)) * Matern(
            np.ones(self.points.shape[1]), [(0.01, 100.0)] * self.points.shape[1], nu=2.5
        )
        model = GaussianProcessRegressor(
            kernel=kernel, normalize_y=True, noise="gaussian", n_restarts_optimizer=2, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(self.points[self.seen], y)
            gain = gaussian_ei(self.points[free], model, y_opt=float(y.min()), xi=0.01)
        return int(free[int(np.argmax(gain))])

    def tell(self, row: Any, ms: float | None) -> None:
        self.seen.append(int(row))
        self.times.append(ms)


class Optuna:
    """Optuna's TPE with its defaults over ordered integer dimensions; what cannot run is told as pruned."""

    def __init__(self, space: Any, budget: int, seed: int, prior: Any = ()) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna = optuna
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self.sizes = {name: len(v) for name, v in zip(space.params, space.values, strict=True)}
        self.trial: Any = None

    def ask(self) -> Indices:
        self.trial = self.study.ask()
        return tuple(self.trial.suggest_int(name, 0, size - 1) for name, size in self.sizes.items())

    def tell(self, row: Any, ms: float | None) -> None:
        if self.trial is None:
            return  # a row that the scorer chose after too many invalid ones
        if ms is None:
            self.study.tell(self.trial, state=self.optuna.trial.TrialState.PRUNED)
        else:
            self.study.tell(self.trial, ms)
        self.trial = None
