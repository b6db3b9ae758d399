"""``RunSpec``: all options of a tuning run, from a call or the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import habit, near
from tensorir.errors.needs import (
    need_bool,
    need_function,
    need_int,
    need_list,
    need_number,
    need_path,
    need_seconds,
    need_text,
    wrong,
)  # fmt: skip
from tensorir.runtime.compile_limit import COMPILE_S
from tensorir.tune.circumstances import RUN_S, Limits, available_bytes
from tensorir.tune.record import Record
from tensorir.tune.space import Space


@dataclass(frozen=True)
class RunSpec:
    """Options of a tuning run. Wrong types and values raise DeclarationError; ``budget_s`` and the time limits are
    checked by ``of`` alone, ``strategy`` and ``executor`` at the start of the run.

    trials:          configurations measured at most, usable earlier records included; None: no limit
    budget_s:        seconds of wall time from ``started`` (a ``time.monotonic()``; the call when None), final round
                     included; None: no limit
    seed, strategy:  of the search strategies; a name of ``tune.strategy.STRATEGIES``
    log:             root folder of the tuning log
    patience:        stop after so many trials in a row without a new best; None: never
    stop:            function called before each trial; True ends the search
    on_trial:        called with each new record, once it is in the log
    restrict:        conditions on knobs (``tensorir.tune.restrict``), each applied to the templates that have them
    templates:       names of the templates to search; empty for all that suit the device
    timeout, compile_timeout: seconds for one launch (or one call of the template), and for one compilation
    wait:            exclude other tunings on the same device: timings wait while another process times there
                     (searching, building and checking continue); False: time next to them
    fresh:           do not use earlier records
    top:             finalists of the last round
    executor:        a ``concurrent.futures.Executor`` or a Dask ``Client``; see ``docs/tuning.md`` for what it means
    width:           trials in flight at a time through an executor; None: as many as it has workers
    builders:        processes that make, check and compile the next configurations at once, before each is timed alone;
                     None: one for each processor core, at most 4, from 20 seconds of budget on. 1 means none, as it is
                     where the runtime does not keep on disk what it compiles (all but PoCL), for what was made in
                     this process, and with several devices
    trial_timeout:   seconds after which a trial is given to another worker (or device) as well; None: four times the
                     longest one so far, at least 30
    least_gain:      stop once the search expects its next trials to improve the best by less than this share each
                     (0.01: 1 %); strategies without a model (all but "bayes") expect nothing and continue
    final_s:         seconds that the finalists race at most before those left are called a tie; a quarter of the time
                     spent until then when None, but a second at least
    on_start:        called before the first trial with the device's description, {template: space}, and the number of
                     usable earlier records
    on_baseline:     called with the name and the seconds of the peer
    on_peer:         called with all that is known of it: name, time_s, low_s, high_s, spread (the slowest slot over the
                     fastest), and load (use of the processor by others)
    live:            in a notebook, show one cell while it runs, which becomes the table of the outcome
    """

    trials: int | None = None
    budget_s: float | None = 60.0
    seed: int = 0
    log: str = "tuning_logs"
    on_trial: Callable[[Record], object] | None = None
    executor: Any = None
    strategy: str = "bayes"
    restrict: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    timeout: float = RUN_S
    compile_timeout: float = COMPILE_S
    width: int | None = None
    builders: int | None = None
    trial_timeout: float | None = None
    wait: bool = True
    fresh: bool = False
    patience: int | None = None
    least_gain: float | None = None
    top: int = 5
    final_s: float | None = None
    started: float | None = None
    stop: Callable[[], bool] | None = None
    on_start: Callable[[Mapping[str, Any], Mapping[str, Space], int], object] | None = None
    on_baseline: Callable[[str, float], object] | None = None
    on_peer: Callable[[Mapping[str, Any]], object] | None = None
    live: bool = True

    def __post_init__(self) -> None:
        for name in ("trials", "patience", "width", "builders"):
            if getattr(self, name) is not None:
                need_int(name, getattr(self, name), 1)
        object.__setattr__(self, "seed", need_int("seed", self.seed, 0, 2**63))  # a NumPy array without axes is one
        need_int("top", self.top, 1, 50)
        need_path("log", self.log)
        need_bool("fresh", self.fresh)
        need_bool("wait", self.wait)
        need_bool("live", self.live)
        for n, condition in enumerate(need_list("restrict", self.restrict, "conditions")):
            need_text(f"restrict[{n}]", condition)
        for n, template in enumerate(need_list("templates", self.templates, "names of templates")):
            need_text(f"templates[{n}]", template)
        for name, takes in {"on_trial": 1, "stop": 0, "on_start": 3, "on_baseline": 2, "on_peer": 1}.items():
            if getattr(self, name) is not None:
                need_function(name, getattr(self, name), takes=takes)
        if self.least_gain is not None and need_number("least_gain", self.least_gain, 0.0) >= 1:
            raise wrong("least_gain", self.least_gain, "a share below 1", hint="least_gain=0.01")
        if self.started is not None:
            need_number("started", self.started)

    @property
    def limits(self) -> Limits:
        """Time limits of a measurement, with the bytes of host memory that are available now."""
        return Limits(self.compile_timeout, self.timeout, available_bytes())

    @classmethod
    def of(cls, **given: Any) -> RunSpec:
        """A RunSpec from the arguments of ``Workload.tune``: times may be strings such as "2m", the total is
        ``budget``.

        Raises DeclarationError ``tune.option`` for an argument that does not exist.
        """
        known = {f.name for f in fields(cls)} - {"budget_s"} | {"budget"}
        for name in sorted(given.keys() - known):
            remedy = habit("tune()", name) or near(name, known)
            raise refuse(
                DeclarationError, "tune.option", f"tune has no option {name!r}", hint=remedy or ", ".join(sorted(known))
            )
        made = {**given, "log": need_path("log", given["log"])} if "log" in given else dict(given)
        for name in ("restrict", "templates"):
            if isinstance(given.get(name), str):
                made[name] = (given[name],)
        if made.get("budget") is not None:
            made["budget"] = need_seconds(made["budget"])
        if "budget" in made:
            made["budget_s"] = made.pop("budget")
        return cls(**made | {name: need_seconds(given[name]) for name in _TIMES if given.get(name) is not None})


_TIMES = ("timeout", "compile_timeout", "trial_timeout", "final_s")
