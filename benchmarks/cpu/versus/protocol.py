"""How the judge speaks with those who compete: each is a process, each message a line of JSON on a pipe.

    judge                                               competitor
                                                        {"ready": true, "versions": …} or {"missing": why}
    {"do": "prepare", "problem": …, "x": …, "w": …}     {"ok": true, "about": …}, {"skip": why}
    {"do": "run", "seconds": …, "batch": …}             {"times": [seconds per call, one for each batch]}
    {"do": "result", "file": …}                         {"ok": true}

Whatever goes wrong is answered with {"error": what}. A process of its own keeps one library's threads, their spinning
and its allocator away from the others.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from versus.shapes import Problem, from_json

Json = dict[str, Any]
Array = NDArray[Any]


class Skip(Exception):
    """This competitor does not do this workload; says why."""


class Missing(Exception):
    """This competitor cannot take part here; says why."""


@dataclass(frozen=True)
class Ready:
    """A workload set up to be run.

    many:   many(n) makes n calls and waits for the last
    result: the output of a call, as NCHW or as a matrix
    about:  what was chosen, for the report
    """

    many: Callable[[int], None]
    result: Callable[[], Array]
    about: Mapping[str, Any] = field(default_factory=dict)


class Competitor(Protocol):
    """What a process serves."""

    @property
    def versions(self) -> Mapping[str, str]: ...

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready: ...


# --- the competitor's side


def repeat(call: Callable[[], object]) -> Callable[[int], None]:
    """For libraries whose calls return when the work is done."""

    def many(n: int) -> None:
        for _ in range(n):
            call()

    return many


def timed(many: Callable[[int], None], seconds: float, batch: float, clock: Callable[[], float] = time.perf_counter
          ) -> list[float]:  # fmt: skip
    """Seconds per call, one figure for each batch of about ``batch`` seconds; at least three batches.

    In batches because that is how networks run: launches are queued and waited for once.
    """
    many(1)  # wakes the threads
    started = clock()
    many(1)
    calls = max(1, round(batch / max(clock() - started, 1e-9)))
    times: list[float] = []
    end = clock() + seconds
    while True:
        started = clock()
        many(calls)
        stopped = clock()
        times.append((stopped - started) / calls)
        if stopped >= end and len(times) >= 3:
            return times


def serve(make: Callable[[], Competitor]) -> None:
    """Answer the judge until the pipe closes. What libraries print goes to standard error, not into the pipe."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: Mapping[str, Any]) -> None:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    try:
        one = make()
    except (Missing, ImportError, OSError) as error:
        say({"missing": _words(error)})
        return
    say({"ready": True, "versions": dict(one.versions)})
    ready: Ready | None = None
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if message["do"] == "prepare":
                ready = None  # frees the last workload's memory first
                ready = one.prepare(from_json(message["problem"]), np.load(message["x"]), np.load(message["w"]))
                ready.many(1)
                say({"ok": True, "about": dict(ready.about)})
            elif ready is None:
                say({"error": "nothing is prepared"})
            elif message["do"] == "run":
                say({"times": timed(ready.many, message["seconds"], message["batch"])})
            else:
                np.save(message["file"], np.ascontiguousarray(ready.result()))
                say({"ok": True})
        except Skip as reason:
            say({"skip": str(reason)})
        except Exception as error:  # whatever a library raises: it is out of this workload, and the reason is kept
            say({"error": _words(error)})


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, Missing) else f"{type(error).__name__}: {text}"


# --- the judge's side


@dataclass(frozen=True)
class Spec:
    """How to start a competitor.

    name:    unique; what the report calls it
    module:  of this package, with its arguments
    ahead:   whether it packs the weights before the clock runs
    side:    "peer", "ours" or "reference"
    layouts: of ours and the reference: the layout in memory
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    side: str = "peer"
    layout: str = ""
    label: str = ""
    ahead: bool = False
    applies: Callable[[Problem], bool] = lambda _: True


class Process:
    """A competitor's process; started when first asked, and again after it died."""

    def __init__(self, spec: Spec, threads: int, folder: Path, patience: float = 120.0) -> None:
        self.spec, self._threads, self._folder, self._patience = spec, threads, folder, patience
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self.missing = ""
        self.versions: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.spec.name

    def start(self) -> bool:
        """Whether it takes part; ``missing`` says why not."""
        if self._process is None and not self.missing:
            self._launch()
        return not self.missing

    def ask(self, **message: Any) -> Json:
        """The answer; an ``error`` when the process died or took longer than the patience."""
        if not self.start():
            return {"error": self.missing}
        return self._ask(message)

    def close(self) -> None:
        if self._process is not None:
            self._end()

    def _launch(self) -> None:
        n = str(self._threads)
        home = str(Path(__file__).resolve().parents[1])
        variables = {
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "HL_NUM_THREADS"), n),
            **dict.fromkeys(("TVM_NUM_THREADS", "POCL_MAX_PTHREAD_COUNT"), n),
            "POCL_AFFINITY": "1",  # pins PoCL's threads: fewer slots at half speed
            "PYOPENCL_NO_CACHE": "1",
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self.spec.python, "-m", f"versus.{self.spec.module}", *self.spec.arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **variables}, bufsize=0,
            )  # fmt: skip
        hello = self._answer()
        self.versions = hello.get("versions", {})
        if "ready" not in hello:
            self.missing = str(hello.get("missing") or hello.get("error"))
            self.close()

    @property
    def _log(self) -> Path:
        return self._folder / f"{self.name.replace('/', '-')}.log"

    def _ask(self, message: Mapping[str, Any]) -> Json:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            return self._died()
        return self._answer()

    def _answer(self) -> Json:
        assert self._process is not None
        assert self._process.stdout is not None
        end = time.monotonic() + self._patience
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not waiting.select(max(0.0, end - time.monotonic())):
                    self._end()
                    return {"error": f"no answer within {self._patience:.0f} s"}
                got = os.read(self._process.stdout.fileno(), 1 << 16)
                if not got:
                    return self._died()
                self._rest += got
        line, self._rest = self._rest.split(b"\n", 1)
        answer: Json = json.loads(line)
        return answer

    def _died(self) -> Json:
        code = self._end()
        tail = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return {"error": " ".join([f"the process ended with {code}", *(f"({line[:200]})" for line in tail)])}

    def _end(self) -> int:
        process, self._process, self._rest = self._process, None, b""
        assert process is not None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
