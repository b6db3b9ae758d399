"""Gaussian process regression with scikit-optimize's kernels over fixed candidates, updated incrementally.

Numbers are those of skopt's regressor, at less work. Its ``predict`` recomputes the whole pool at every call (0.35 s
for 18,000 candidates and 100 observations); here the same posterior is extended by one row of the Cholesky factor for
each observation (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1 and appendix
A.3), which takes about a millisecond. The likelihood is computed here, for one kernel (``evidence``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from tensorir.tune.pool import Floats

SURROGATE = "Gaussian process (skopt's Matern 5/2)"

JITTER = 1e-10
"""Added to the diagonal of a covariance, as scikit-learn does."""

_Objective = Callable[[Floats], tuple[float, Floats]]


def absent() -> str:
    """Reason why scikit-optimize is unusable as far as known without importing it; "" if none."""
    return "" if "skopt" in sys.modules or find_spec("skopt") else "No module named 'skopt'"


def missing() -> str:
    """Reason why scikit-optimize is unusable; "" if usable. Imports it (1 to 3 s the first time)."""
    try:
        import skopt.acquisition
        import skopt.learning  # noqa: F401
    except Exception as error:  # a skopt too old for the installed NumPy fails with AttributeError, not ImportError
        return f"{type(error).__name__}: {error}"
    return ""


def one_thread() -> AbstractContextManager[object]:
    """Context manager that limits BLAS to one thread; without effect if threadpoolctl is not installed.

    For small matrices several threads are slower (39 ms a step against 6 with two searches on two cores), and idle
    threads spin while kernels are timed.
    """
    controller = _blas()
    limited: AbstractContextManager[Any] = nullcontext() if controller is None else controller.limit(limits=1)
    return limited


@cache
def _blas() -> Any:
    """Controller of loaded BLAS libraries' threads (threadpoolctl); None without scikit-learn."""
    try:
        library = import_module("threadpoolctl")
    except ImportError:
        return None
    return library.ThreadpoolController()


class Hyperparameters:
    """Length scales, amplitude and noise of the process, fitted by maximum a posteriori."""

    MAX_ITERATIONS = 25
    EVALUATIONS = 60  # of the likelihood, at most
    WORK = 12e6  # rows squared times dimensions times evaluations: some hundredths of a second
    SPREAD = 0.5  # standard deviation of the logarithm of a length scale, a priori

    def __init__(self, dimensions: int) -> None:
        from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self._kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(
            np.full(dimensions, 1.0), [(0.05, 20.0)] * dimensions, nu=2.5
        ) + WhiteKernel(1e-2, (1e-4, 0.3))
        # Length scales grow with the root of the dimension (Hvarfner, Hellsten, Nardi 2024, arXiv 2402.02229),
        # a log-normal prior; it keeps an unexplored knob from being declared irrelevant after ten points.
        self._center = math.log(0.5) + 0.5 * math.log(max(dimensions, 1))
        self._theta: Floats = np.array(self._kernel.theta)
        self._theta[1:-1] = self._center
        self._evaluations = self.EVALUATIONS

    def current(self) -> tuple[Any, float]:
        """(kernel without noise term, noise variance) of the last fit, or of the prior."""
        kernel = self._kernel.clone_with_theta(self._theta)
        return kernel.k1, float(kernel.k2.noise_level)

    def fit(self, x: Floats, y: Floats) -> tuple[Any, float]:
        """Fit to inputs ``x`` and standardized values ``y``, from the last optimum; returns (kernel without noise term,
        noise variance), the last ones where the matrix is not positive definite.
        """
        self._evaluations = max(3, min(self.EVALUATIONS, round(self.WORK / (len(x) ** 2 * x.shape[1]))))
        objective = partial(evidence, apart=squared_distances(x), y=y)
        theta, value = self._maximise(objective, self._theta, self._kernel.bounds)
        if math.isfinite(value):  # else no positive definite matrix at these scales: keep the last good ones
            self._theta = theta
        return self.current()

    def _maximise(self, objective: _Objective, initial: Floats, bounds: Floats) -> tuple[Floats, float]:
        """(optimum, its value) of ``objective`` and the prior, by L-BFGS from ``initial``."""
        from scipy.optimize import minimize

        def penalised(theta: Floats) -> tuple[float, Floats]:
            value, gradient = objective(theta)
            off = theta[1:-1] - self._center
            gradient[1:-1] += off / self.SPREAD**2
            return value + 0.5 * float(off @ off) / self.SPREAD**2, gradient

        options = {"maxiter": self.MAX_ITERATIONS, "maxfun": self._evaluations}
        found = minimize(penalised, initial, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return np.clip(found.x, bounds[:, 0], bounds[:, 1]), float(found.fun)


def squared_distances(x: Floats) -> Floats:
    """Squared differences of each pair of rows of ``x``: one flattened matrix for each column."""
    return np.ascontiguousarray(((x[:, None, :] - x[None]) ** 2).reshape(len(x) ** 2, x.shape[1]).T)


def evidence(theta: Floats, apart: Floats, y: Floats) -> tuple[float, Floats]:
    """(negative log marginal likelihood, its gradient) of ``y`` at points with ``squared_distances`` ``apart``.

    ``theta``: logarithms of amplitude, length scales and noise of the kernel of ``Hyperparameters``. These are the
    numbers of scikit-learn's regressor (Rasmussen and Williams, equations 2.30 and 5.9) in a sixth of its time, as it
    makes a matrix of derivatives for each column. Where the covariance is not positive definite, the value is infinite.
    """
    from scipy.linalg.lapack import dpotri

    n, inverse_squares = len(y), np.exp(-2.0 * theta[1:-1])
    amplitude, noise = math.exp(theta[0]), math.exp(theta[-1])
    r = np.sqrt(5.0 * (inverse_squares @ apart)).reshape(n, n)
    decay = amplitude * np.exp(-r)
    covariance = (1.0 + r + r * r / 3.0) * decay
    try:
        lower = np.linalg.cholesky(covariance + (noise + JITTER) * np.eye(n))
    except np.linalg.LinAlgError:
        return math.inf, np.zeros_like(theta)
    half = np.tril(dpotri(lower, lower=1)[0])
    inverse = half + np.tril(half, -1).T
    weights = inverse @ y
    value = 0.5 * float(y @ weights) + float(np.log(np.diag(lower)).sum()) + 0.5 * n * math.log(2.0 * math.pi)
    slope = inverse - np.outer(weights, weights)  # twice the derivative by the covariance
    by_scale = apart @ (slope * (1.0 + r) * decay).ravel() * inverse_squares * (5.0 / 3.0)
    by_amplitude, by_noise = float((slope * covariance).sum()), noise * float(np.trace(slope))
    return value, 0.5 * np.concatenate([[by_amplitude], by_scale, [by_noise]])


class Posterior:
    """Posterior mean and standard deviation at all candidates, updated observation by observation."""

    def __init__(self, candidates: Floats, kernel: Any, noise: float, capacity: int = 64) -> None:
        self._x, self._kernel, self._noise = candidates, kernel, noise
        self._seen: Floats = np.zeros((capacity, candidates.shape[1]))
        self._chol: Floats = np.zeros((capacity, capacity))
        self._half: Floats = np.zeros((capacity, len(candidates)))  # inv(chol) @ kernel(seen, candidates)
        self._variance: Floats = np.array(kernel.diag(candidates), dtype=np.float64)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def keep(self, n: int) -> None:
        """Drop all observed points after the first ``n``."""
        self._variance += (self._half[n : self._n] ** 2).sum(axis=0)
        self._n = min(n, self._n)

    def add(self, points: Floats) -> None:
        """Append observed points, one per row; ``condition`` supplies their values."""
        n, m = self._n, len(points)
        while n + m > len(self._seen):
            self._grow()
        low = _forward(self._chol[:n, :n], self._kernel(self._seen[:n], points)).T if n else np.zeros((m, 0))
        own = self._kernel(points) - low @ low.T
        corner = _cholesky(own, self._noise)
        self._chol[n : n + m, :n], self._chol[n : n + m, n : n + m] = low, corner
        half = _forward(corner, self._kernel(points, self._x) - low @ self._half[:n])
        self._half[n : n + m] = half
        self._variance -= np.einsum("ij,ij->j", half, half)
        self._seen[n : n + m] = points
        self._n = n + m

    def consider(self, points: Floats) -> None:
        """Append candidates, one per row."""
        half = np.zeros((len(self._half), len(points)))
        if self._n:
            half[: self._n] = _forward(self._chol[: self._n, : self._n], self._kernel(self._seen[: self._n], points))
        self._x = np.concatenate([self._x, points])
        self._half = np.concatenate([self._half, half], axis=1)
        self._variance = np.concatenate([self._variance, self._kernel.diag(points) - (half**2).sum(axis=0)])

    def condition(self, y: Floats, scale: float = 0.0) -> Conditioned:
        """The posterior given values ``y`` of the first ``len(y)`` points; ``scale``: standard deviation of ``y``, 0:
        do not rescale.

        Points beyond them are measurements in flight: they shrink the deviation and leave the mean, which is
        what telling them their own mean would do (Ginsbourger et al. 2010, "kriging believer").
        """
        m = len(y)
        center, scale = float(y.mean()), scale or float(y.std()) or 1.0
        weights = _forward(self._chol[:m, :m], (y - center) / scale)
        mean = center + scale * (weights @ self._half[:m])
        return Conditioned(mean, scale * np.sqrt(np.maximum(self._variance, 0.0)))

    def smoothed(self, y: Floats, deviation: float = math.inf) -> Floats:
        """Posterior mean at the first ``len(y)`` observed points, given their noisy values.

        deviation: upper bound on the noise's standard deviation, in units of ``y``; the rest is attributed to the
                   function
        """
        m = len(y)
        center, scale = float(y.mean()), float(y.std()) or 1.0
        noise = min(self._noise, (deviation / scale) ** 2)
        weights = _forward(self._chol[:m, :m], y - center)
        return np.asarray(y - noise * _forward(self._chol[:m, :m], weights, transposed=True))

    def _grow(self) -> None:
        n = 2 * len(self._seen)
        seen, chol, half = self._seen, self._chol, self._half
        self._seen = np.zeros((n, seen.shape[1]))
        self._chol = np.zeros((n, n))
        self._half = np.zeros((n, half.shape[1]))
        k = self._n
        self._seen[:k], self._chol[:k, :k], self._half[:k] = seen[:k], chol[:k, :k], half[:k]


class Conditioned:
    """A posterior in the interface of scikit-learn estimators, for skopt's acquisition functions."""

    def __init__(self, mean: Floats, std: Floats) -> None:
        self.mean, self.std = mean, std

    def predict(self, rows: Any, return_std: bool = True) -> tuple[Floats, Floats]:
        """(mean, standard deviation) at candidates ``rows``."""
        return self.mean[rows], self.std[rows]


def _forward(lower: Floats, b: Floats, transposed: bool = False) -> Floats:
    from scipy.linalg import solve_triangular

    out: Floats = solve_triangular(lower, b, lower=True, trans=int(transposed), check_finite=False)
    return out


def _cholesky(covariance: Floats, noise: float) -> Floats:
    """Cholesky factor of covariance + noise * identity; noise is raised for nearly equal points."""
    eye = np.eye(len(covariance))
    for more in (0.0, 1e-8, 1e-6, 1e-4):
        try:
            return np.asarray(np.linalg.cholesky(covariance + (noise + more) * eye))
        except np.linalg.LinAlgError:
            continue
    return np.asarray(np.linalg.cholesky(np.diag(np.maximum(np.diag(covariance), 0.0) + noise + 1e-4)))
