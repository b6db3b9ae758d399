"""State of a measuring process: cached objects of one setup, and the process itself around a user's template.

A template is any Python. ``undisturbed`` puts back what it changed of the process, and refuses what it left running.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorir.api.bench import REFERENCE_FILE, REFERENCE_PHASE, TURN_PHASE, ReferenceKernel, Runner
from tensorir.api.candidate import Candidate, Progress, Refused, prepare, quiet, raised
from tensorir.api.origin import rebuild
from tensorir.api.outputs import Data
from tensorir.api.questions import Ready, Setup, Standard, Wanted
from tensorir.codec import decode
from tensorir.errors import CheckError, Problem, TensorIRError
from tensorir.runtime.device import Device, open_device
from tensorir.runtime.machine import NO_LOAD, Section
from tensorir.runtime.turns import DeviceTurns
from tensorir.tune.process import bound_memory
from tensorir.tune.record import MAX_DRIFT
from tensorir.tune.trial import Outcome

if TYPE_CHECKING:
    from tensorir.api.schedule import Schedule
    from tensorir.api.workload import Workload

COMPILE_BYTES = 8 << 30  # bytes for compiling and checking, and
MAX_ARRAY_COPIES = 20  # of inputs, outputs and intermediate arrays: more than that is a candidate out of control
MOST_BYTES = 1 << 30  # of what the reference keeps on the device,
FINISH_S = 1e-3  # that waiting for one launch may add


class State:
    """Cached objects of one setup in this process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._work: Workload | None = None
        self._device: Device | None = None
        self._data: Data | None = None
        self._kernel: tuple[str, ReferenceKernel | None] | None = None  # the reference, by its name
        self.spoilt = False  # by what a template left running
        self._turns: DeviceTurns | None = None
        self.load = NO_LOAD  # what else the machine did during the timings of the present answer
        self.drift = 1.0  # how much slower the machine was in the last trial than when the reference was timed first

    @property
    def device(self) -> Device:
        """The opened device of the setup; opened on first use, on a CPU with a limit on this process's memory."""
        if self._device is None:
            self._device = open_device(self.setup.device)
            if self._device.target.kind == "cpu":
                bound_memory(COMPILE_BYTES + MAX_ARRAY_COPIES * 8 * self.setup.elements)
        return self._device

    @property
    def turns(self) -> DeviceTurns:
        """Turns of timing on this device, shared with other processes."""
        if self._turns is None:
            self._turns = DeviceTurns(self.device.place, self.setup.title, self.setup.wait)
        return self._turns

    def waited(self) -> list[dict[str, object]]:
        """``{"pid", "workload", "seconds"}`` of each other process waited for since the last call."""
        return [] if self._turns is None else self._turns.waited()

    @contextlib.contextmanager
    def timing(self, progress: Progress) -> Iterator[None]:
        """Context manager: exclusive use of the device among tunings; other load is recorded in ``load``."""
        with self.turns.turn(lambda: progress("{} {pid} {workload}".format(TURN_PHASE, **self.turns.holder()))):
            progress("time")
            section = Section()
            try:
                with section:
                    yield
            finally:
                self.load += section.load

    def works(self) -> bool:
        """True if this process can still measure: no stray threads, device usable."""
        return not self.spoilt and (self._device is None or self._device.works())

    @property
    def work(self) -> Workload | None:
        """The recreated Workload; None if only its sources are known."""
        if self._work is None and self.setup.origin is not None:
            self._work = rebuild(self.setup.origin)
        return self._work

    def data(self, progress: Progress) -> Data:
        """Inputs and expected outputs, cached; raises CheckError ``workload.reference`` if the stored ones are gone and
        the reference is not here.
        """
        if self._data is None:
            given = self.setup
            made = Data(
                given.arguments, given.exact, given.outputs, given.folder, self._reference, continuous=given.continuous
            )
            progress("reference")
            made.fresh()
            self._data = made
        return self._data

    def _reference(self, *arrays: Any) -> Any:
        if self.work is None:
            raise CheckError(Problem("workload.reference", "the expected outputs of this workload are gone"))
        return self.work.reference(*arrays)

    def reference_kernel(self, reference: Standard | None, progress: Progress) -> ReferenceKernel | None:
        """The run's reference kernel, ready to be timed with a candidate; None where there is none or it fails."""
        if reference is None:
            return None
        if self._kernel is None or self._kernel[0] != reference.name:
            progress(REFERENCE_PHASE)
            self._kernel = (reference.name, None)  # should it fail it is not tried again
            with contextlib.suppress(Refused, TensorIRError, OSError, ValueError):
                self._kernel = (reference.name, self._made_kernel(reference))
        return self._kernel[1]

    def _made_kernel(self, reference: Standard) -> ReferenceKernel | None:
        """The reference kernel; None if too large, changed, or of another speed than recorded."""
        wanted, seconds = reference.wanted, reference.seconds
        if self.setup.origin is None:
            made = json.loads(Path(self.setup.folder, REFERENCE_FILE).read_bytes())
            wanted = replace(wanted, ready=decode(Ready, made))
        candidate = self.candidate(wanted, quiet, check=False)
        if candidate.source.sha256 != wanted.sha256 or 8 * self.setup.elements > MOST_BYTES:
            return None  # the template has been changed since, or candidates may need the room
        runner = Runner(self.device, candidate, self.data(quiet), cache=True)
        runner.bound = runner.program.bind(*runner.inputs)
        took = min(runner.once() for _ in range(3))
        if not seconds / MAX_DRIFT < took < seconds * MAX_DRIFT + FINISH_S:
            return None
        return ReferenceKernel(runner.bound, seconds)

    def rest(self) -> None:
        """Free device memory held between trials."""
        self._kernel = None

    def candidate(self, wanted: Wanted, progress: Progress, check: bool = True) -> Candidate:
        """Candidate of one configuration: its source received with the request, or made here; raises Refused if that
        fails.
        """
        if wanted.ready is not None:
            return Candidate(wanted.ready.source, wanted.ready.known, None, wanted.ready.max_error)
        assert self.work is not None
        device = self.device
        try:
            with undisturbed():
                return prepare(self.work, wanted.template, wanted.config, device.target, progress, check)
        except LeftRunning as left:
            self.spoilt = True
            detail = {"code": "template.left-running", "message": str(left), "phase": "schedule"}
            raise Refused(Outcome("illegal_schedule", detail)) from None
        except Exception:
            raise
        except BaseException as error:  # nobody interrupts this process but what runs in it
            raise Refused(raised(error)) from None

    def scheduled(self, candidate: Candidate, wanted: Wanted, progress: Progress) -> Schedule | None:
        """Schedule of a candidate, made again if another process made its source; None without a workload here. Raises
        Refused if the source differs now.
        """
        if candidate.schedule is not None or self.work is None:
            return candidate.schedule
        progress("schedule")
        again = self.candidate(replace(wanted, ready=None), quiet, check=False)
        if again.source.sha256 != candidate.source.sha256:
            detail = {"message": "the template made another source than in the builder", "phase": "schedule"}
            raise candidate.ended(Outcome("nondeterministic", detail))
        return again.schedule


# --- around a template

IDLE_PROCESSES = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""In their command lines: helpers of multiprocessing that outlive what it was used for, and sleep until the end."""
IDLE_THREADS = ("tqdm.",)
"""Modules whose threads look every few seconds whether there is something to do."""


class LeftRunning(Exception):  # an outcome of a measurement, not a failure of the program
    """A user's function left threads or processes running, which would disturb later timings.

    Sleeping helpers of libraries are tolerated.
    """


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Context manager around a user's template: restores the process's state; raises LeftRunning for new threads or
    processes that still run.

    Restored: working directory, environment, umask, resource limits, CPU affinity, timers, output streams, trace and
    profile functions, recursion limit, NumPy's error modes.

    A forked copy of this process (``os.fork``) that returns from the template is ended here, as both would answer the
    supervisor.
    """
    owner, before, threads, children = os.getpid(), _state(), set(threading.enumerate()), _children()
    try:
        yield
    finally:
        if os.getpid() != owner:
            os._exit(1)
        _put_back(before)
        mine = [f"thread {t.name}" for t in threading.enumerate() if t not in threads and not _idle_thread(t)]
        left = sorted(_children() - children)
        mine += [f"process {pid}" for pid in left if _runs(pid) and not _idle_process(pid)]
        if mine:
            raise LeftRunning(f"{', '.join(mine[:3])}{' and others' if len(mine) > 3 else ''} still running")


def _state() -> dict[str, Any]:
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "umask": mask,
        "folder": _folder(),
        "environment": dict(os.environ),
        "limits": _limits(),
        "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "streams": (sys.stdout, sys.stderr),
        "watchers": (sys.gettrace(), sys.getprofile()),
        "depth": sys.getrecursionlimit(),
        "errors": np.geterr(),
        "timers": {t: signal.getitimer(t) for t in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)},
    }


def _put_back(before: dict[str, Any]) -> None:
    trace, profile = before["watchers"]
    sys.settrace(trace)
    sys.setprofile(profile)
    sys.setrecursionlimit(before["depth"])
    sys.stdout, sys.stderr = before["streams"]
    np.seterr(**before["errors"])
    os.umask(before["umask"])
    for timer, values in before["timers"].items():
        signal.setitimer(timer, *values)
    if dict(os.environ) != before["environment"]:
        os.environ.clear()
        os.environ.update(before["environment"])
    if before["folder"] is not None and _folder() != before["folder"]:
        with contextlib.suppress(OSError):
            os.chdir(before["folder"])
    if before["cores"] is not None and os.sched_getaffinity(0) != before["cores"]:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before["cores"])
    for limit, values in _limits().items():
        if values != before["limits"][limit]:
            _set_limit(limit, before["limits"][limit])


def _folder() -> str | None:
    with contextlib.suppress(OSError):  # it was removed
        return os.getcwd()
    return None


def _limits() -> dict[int, tuple[int, int]]:
    try:
        import resource  # here, because some systems lack it
    except ImportError:
        return {}
    names = ("FSIZE", "NOFILE", "CPU", "AS", "DATA", "STACK", "NPROC")
    found = [getattr(resource, f"RLIMIT_{name}", None) for name in names]
    return {limit: resource.getrlimit(limit) for limit in found if limit is not None}


def _set_limit(limit: int, values: tuple[int, int]) -> None:
    import resource

    with contextlib.suppress(OSError, ValueError):  # what was lowered for good
        resource.setrlimit(limit, values)


def _children() -> set[int]:
    """Process ids of unreaped child processes; empty if the system cannot tell."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):  # a thread that has just ended
            found.update(int(pid) for pid in path.read_text(encoding="ascii").split())
    return found


def _idle_thread(thread: threading.Thread) -> bool:
    return thread.daemon and type(thread).__module__.startswith(IDLE_THREADS)


def _idle_process(pid: int) -> bool:
    """True if a child is a known helper and sleeps."""
    with contextlib.suppress(OSError, IndexError):
        if any(name in Path(f"/proc/{pid}/cmdline").read_bytes() for name in IDLE_PROCESSES):
            return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"S"
    return False


def _runs(pid: int) -> bool:
    """True if a child has not exited; does not reap it."""
    with contextlib.suppress(OSError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False
