"""The user's Workload: a computation and its templates, plus tuning and loading in one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tensorir.api.operator import Origin
from tensorir.api.work import Work
from tensorir.errors import DeclarationError
from tensorir.errors.habits import answering, public, unknown
from tensorir.errors.needs import need_bool, need_path
from tensorir.tune.template import Template, Templates

if TYPE_CHECKING:
    from tensorir.api.build import Executable
    from tensorir.runtime.device import Device
    from tensorir.tune.outcome import TuneOutcome
    from tensorir.tune.record import Record

__all__ = ["Origin", "Template", "Templates", "Workload"]


@answering(DeclarationError)
class Workload(Work):
    """``tir.Workload("my_op", outputs, templates={"default": (function, tir.Space(tile=[1, 2, 4]))})``.

    outputs:    a tensor or a tuple of them
    templates:  name to ``(function, space)`` or Template; the first that suits the target is the default one. In
                place of the space a function of the target may make it. None: those that ``tir.auto`` makes of the
                declaration, for every kind of target
    reference:  ``reference(*arrays)`` in NumPy; without it the declarations themselves are evaluated
    flops:      operations of one run, estimated from the declarations when None
    baselines:  name to ``callable(*arrays)``: peers to measure next to the result
    max_error:  error relative to the largest output that approximate templates may have; None: what rounding in the
                outputs' type explains
    parameters: what distinguishes workloads of one name; part of the title and of the log's folder
    origin:     how a worker process can make this workload again. Without it (in a notebook) the templates run in
                the calling process; candidates are compiled and run in the worker all the same, but a template
                function that hangs or crashes then hangs or crashes the caller
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise unknown("workload", name, "a Workload", public(Workload))

    def tune(
        self,
        device: str | Device | Sequence[str | Device] | None = None,
        trials: int | None = None,
        budget: str | float | None = "60s",
        seed: int = 0,
        log: str = "tuning_logs",
        on_trial: Callable[[Record], object] | None = None,
        executor: object = None,
        **options: object,
    ) -> TuneOutcome:
        """Search for the fastest configuration; every candidate is checked and timed in a worker process.

        device:   one by name, the first that is usable when None; several of the same kind, each with a worker
        trials:   configurations in total, the default and usable earlier records included
        budget:   wall time, "90s", "5m" or seconds; None for no limit
        on_trial: called with each new record
        executor: a ``concurrent.futures.Executor``, or a Dask ``Client``, whose processes measure instead of a local
                  worker, as many trials at a time as it has workers. That they do not disturb each other is the
                  caller's to see to: one worker for each device or machine
        options:  ``strategy restrict templates timeout compile_timeout trial_timeout width wait fresh patience
                  least_gain top final_s started stop live``, see ``tensorir.tune.spec.RunSpec``

        Ctrl-C returns the best so far (``status`` "interrupted"). A notebook shows one cell that is renewed twice a
        second, and in the end holds the table of the outcome; ``live=False`` for none.
        """
        from tensorir.api.tuning import tune
        from tensorir.show.live import Single, watched
        from tensorir.tune.spec import RunSpec

        given = {"trials": trials, "budget": budget, "seed": seed, "log": log, "on_trial": on_trial}
        made = RunSpec.of(**given, executor=executor, **options)
        return watched(Single(self, made), made, lambda heard: tune(self, device, heard))

    def load(self, device: str | Device | None = None, log: str = "tuning_logs", nearest: bool = False) -> Executable:
        """The best tuned kernel for this device, built and checked here; never tunes.

        nearest: where this shape is not tuned, build it with the configuration of the nearest tuned shape that is legal
                 here; ``f.nearest`` then says which that is and its distance

        The check against the reference is made by the first load of a machine code on a device, and remembered.
        Raises NotTuned with what to run and the nearest tuned shape.
        """
        from tensorir.api.load import load

        return load(self, device, need_path("log", log), need_bool("nearest", nearest))
