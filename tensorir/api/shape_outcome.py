"""Result of tuning several shapes: each shape's best, the portfolio of kernels, and its dispatch code."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tensorir.codec import encode, plain, travels
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_path
from tensorir.errors.shown import Shown, few_lines
from tensorir.tune.dispatch import Dispatch, DispatchKernel, aligned, follow, tree_json
from tensorir.tune.dispatch_text import c_text, python_text
from tensorir.tune.log import REPEAT_RATIO, RankedRecord, Record, key_of
from tensorir.tune.outcome import TuneOutcome
from tensorir.tune.portfolio import cover

if TYPE_CHECKING:
    from tensorir.api.work import Work


@dataclass(frozen=True, repr=False)
class ShapeResult(Shown):
    """Result for one shape.

    outcome: None if not even its default was measured, or it is refused
    choices: loadable configurations, fastest first
    refused: reason why it cannot be tuned; "" if it can
    """

    work: Work
    weight: float
    outcome: TuneOutcome | None
    choices: tuple[RankedRecord, ...] = field(repr=False)
    refused: str = ""

    @property
    def best_s(self) -> float | None:
        """Seconds of the fastest configuration, None if there is none."""
        return self.choices[0].time_s if self.choices else None

    @property
    def default_s(self) -> float | None:
        """Seconds of the default, comparable with ``best_s``; None if invalid."""
        found = None if self.outcome is None else self.outcome.default
        if found is None or not self.choices:
            return None
        mine = self.times().get(key_of(found.record))
        return None if mine is None else max(mine.against(self.choices[0]), self.choices[0].time_s)

    def comparable(self, choice: RankedRecord | None) -> float:
        """Seconds of a choice, comparable with ``best_s`` and not below it; inf for None.

        A choice timed outside of the best's final round counts as faster only beyond the error of such times.
        """
        if choice is None:
            return math.inf
        best = self.choices[0]
        doubt = 1.0 if choice.round == best.round or best.round is None else REPEAT_RATIO
        return max(choice.against(best) * doubt, best.time_s)

    def times(self) -> dict[str, RankedRecord]:
        """{key of template and configuration: choice}, the latest source of each."""
        return {key_of(c.record): c for c in reversed(self.choices)}


@travels
@dataclass(frozen=True, repr=False)
class Served(Shown):
    """A tuned shape and its kernel in the portfolio.

    workload:    title of the shape
    kernel:      index in ``Portfolio.kernels``
    best_s:      seconds of the shape's best
    time_s:      seconds of the kernel; regret: ``time_s / best_s - 1``
    tree_regret: regret of the decision tree's kernel; None if illegal here or unmeasured
    confirmed:   true if both times are from the shape's newest final round
    """

    workload: str
    weight: float
    kernel: int
    best_s: float
    time_s: float
    regret: float
    tree_regret: float | None
    confirmed: bool


@dataclass(frozen=True, repr=False)
class Portfolio(Shown):
    """The smallest set of kernels with which every shape is within ``regret`` of its best, and the assignment.

    exact:   true if provably the smallest
    records: trial of each shape's kernel, by title
    """

    dispatch: Dispatch
    regret: float
    exact: bool
    served: tuple[Served, ...]
    records: Mapping[str, Record] = field(repr=False)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        kernels = f"{len(self.kernels)} kernel{'s' * (len(self.kernels) != 1)}"
        return f"{kernels} for {len(self.served)} shapes, each within {self.regret:.1%} of its best"

    @property
    def kernels(self) -> tuple[DispatchKernel, ...]:
        """Templates and configurations of the set."""
        return self.dispatch.kernels

    @classmethod
    def of(cls, results: Sequence[ShapeResult], regret: float) -> Portfolio | None:
        """Portfolio for the shapes that have a valid configuration, others left out; None if none has."""
        known = [r for r in results if r.choices]
        if not known:
            return None
        columns = [r.times() for r in known]
        keys = list(dict.fromkeys(key for column in columns for key in column))
        times = np.array([[r.comparable(column.get(key)) for r, column in zip(known, columns, strict=True)]
                          for key in keys])  # fmt: skip
        found = cover(times, regret, [r.weight for r in known])
        few = times[list(found.rows)]
        order = np.argsort(-(few.argmin(axis=0)[None] == np.arange(len(few))[:, None]).sum(axis=1), kind="stable")
        few, names = few[order], [keys[found.rows[n]] for n in order]
        kernels = [DispatchKernel(template, config) for template, config in map(json.loads, names)]
        dispatch = Dispatch.of(kernels, aligned([r.work.parameters for r in known]), few, regret)
        served, records = [], {}
        for n, (r, column) in enumerate(zip(known, columns, strict=True)):
            kernel, best = dispatch.chosen[n], r.choices[0]
            chosen = column[names[kernel]]
            loss, by_tree = few[[kernel, follow(dispatch.tree, dispatch.shapes[n])], n] / best.time_s - 1
            records[r.work.title] = chosen.record
            served.append(
                Served(
                    r.work.title,
                    r.weight,
                    kernel,
                    best_s=best.time_s,
                    time_s=float(few[kernel, n]),
                    regret=float(loss),
                    tree_regret=float(by_tree) if math.isfinite(by_tree) else None,
                    confirmed=chosen.confirmed and best.confirmed,
                )
            )
        return cls(dispatch, regret, found.exact, tuple(served), records)

    def json(self) -> dict[str, object]:
        """Kernels, shapes and tree as plain data."""
        d = self.dispatch
        kernels = [
            {"template": k.template, "config": k.config, "shapes": [s.workload for s in self.served if s.kernel == n]}
            for n, k in enumerate(d.kernels)
        ]
        shapes = [
            {"workload": s.workload, "parameters": p, **encode(s)} for s, p in zip(self.served, d.shapes, strict=True)
        ]
        made = {"regret": self.regret, "exact": self.exact, "kernels": kernels, "shapes": shapes}
        return {**made, "fixed": d.fixed, "tree": tree_json(d.tree)}

    def files(self, name: str, device: Mapping[str, object]) -> dict[str, str]:
        """The choice as code, in Python and C, and as data: file names and texts.

        name:   of the operator
        device: as records have it
        """
        notes = [f"{s.time_s * 1e3:.4g} ms, {s.regret:.1%} over its best" for s in self.served]
        about = {key: device.get(key) for key in ("name", "platform", "driver")}
        document = {"schema": 1, "workload": name, "device": about, **self.json()}
        return {
            "choose.py": python_text(self.dispatch, self.head(), notes),
            "choose.c": c_text(self.dispatch, head=self.head()),
            "kernels.json": json.dumps(plain(document), indent=2, allow_nan=False) + "\n",
        }

    def head(self) -> list[str]:
        """Comment lines at the top of emitted files."""
        worst = max(self.served, key=lambda s: s.regret)
        trees = [s.tree_regret for s in self.served]
        tree = (
            "a kernel that was not measured there" if None in trees else f"{max(t or 0.0 for t in trees):.1%} at most"
        )
        return [
            f"Kernels: {len(self.kernels)}, for {len(self.served)} tuned shapes.",
            f"Each shape is within {self.regret:.1%} of its best; the worst loses {worst.regret:.1%}.",
            f"The decision tree alone, which other shapes go by, would cost the tuned shapes: {tree}.",
        ]


@dataclass(frozen=True, repr=False)
class SetOutcome(Shown):
    """The outcome of ``tir.tune_shapes``.

    results:   one for each shape, in order
    stopped:   ``budget``, ``trials``, ``exhausted``, ``patience``, ``gain``, ``stop``, ``interrupted``,
               ``device_lost``, ``workers``, ``log``
    portfolio: the few kernels; None when no shape has a valid one
    """

    results: tuple[ShapeResult, ...]
    stopped: str
    elapsed_s: float
    portfolio: Portfolio | None

    def __repr__(self) -> str:
        return few_lines(
            f"<SetOutcome {self.status}: {len(self.results)} shapes, stopped by {self.stopped}, {self.portfolio}>"
        )

    @property
    def outcomes(self) -> tuple[TuneOutcome, ...]:
        """TuneOutcomes of the measured shapes."""
        return tuple(r.outcome for r in self.results if r.outcome is not None)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Titles of shapes not measured for lack of time, or refused."""
        return tuple(r.work.title for r in self.results if r.outcome is None)

    @property
    def status(self) -> str:
        """``ok``, ``interrupted``, ``no_valid_config`` when a measured shape has none, ``not_tried`` without one."""
        if self.stopped == "interrupted":
            return "interrupted"
        if not self.outcomes:
            return "not_tried"
        return "ok" if all(r.choices for r in self.results if r.outcome) else "no_valid_config"

    def total_s(self, which: str = "best") -> float | None:
        """Sum of weight times seconds over all shapes, by their "best", their "kernel" of the portfolio, or their
        "default" (``which``); None if a shape has no such time.
        """
        if which == "kernel":
            served = self.portfolio.served if self.portfolio else ()
            return sum(s.weight * s.time_s for s in served) if len(served) == len(self.results) else None
        times = [(r.weight, r.best_s if which == "best" else r.default_s) for r in self.results]
        return None if any(t is None for _, t in times) else sum(w * t for w, t in times if t is not None)

    def choose(self, **parameters: object) -> dict[str, object]:
        """``{"template": …, "config": …}`` for a shape, as arguments of ``work.schedule(**…)``.

        The kernel of the tuned shape with these parameters, or by the decision tree. Raises DeclarationError for
        parameters outside what was tuned, and ``shapes.nothing`` if no shape has a valid configuration.
        """
        kernel = self._needed().dispatch.choose(**parameters)
        return {"template": kernel.template, "config": dict(kernel.config)}

    def _needed(self) -> Portfolio:
        if self.portfolio is None:
            raise refuse(DeclarationError, "shapes.nothing", "no shape of this set has a valid configuration")
        return self.portfolio

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``choose.py``, ``choose.c`` and ``kernels.json`` into a folder, which is made where it is missing.

        Returns the folder. Raises DeclarationError: ``shapes.nothing`` without a valid configuration,
        ``shapes.unwritable``.
        """
        portfolio, path = self._needed(), Path(need_path("folder", folder))
        files = portfolio.files(self.results[0].work.name, next((o.identity.device for o in self.outcomes), {}))
        try:
            path.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (path / name).write_text(text, encoding="utf-8")
        except OSError as error:
            message = f"cannot write {path}: {error.strerror or type(error).__name__}"
            raise refuse(DeclarationError, "shapes.unwritable", message) from None
        return path

    def json(self) -> dict[str, object]:
        """The outcome as JSON data, as ``tensorir tune --shapes … --json`` prints it."""
        totals = {f"{which}_s": self.total_s(which) for which in ("default", "best", "kernel")}
        return {
            "schema": 1,
            "status": self.status,
            "stopped": self.stopped,
            "results": [{**r.outcome.json(), "weight": r.weight} for r in self.results if r.outcome is not None],
            "left_out": list(self.left_out),
            "refused": {r.work.title: r.refused for r in self.results if r.refused},
            "total": totals,
            "portfolio": None if self.portfolio is None else self.portfolio.json(),
            "elapsed_s": self.elapsed_s,
        }
