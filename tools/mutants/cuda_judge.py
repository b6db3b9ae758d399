"""Running mutated CUDA text: each in a process of its own, since text that is wrong may do anything."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorir.check.emulate import emulate
from tensorir.check.outliers import infinities_spread, with_infinities
from tensorir.codegen.source import Source
from tensorir.errors import CompileError
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.schedule.schedule import BaseSchedule

PATIENCE = 30
"""Seconds of computing, whatever else the machine does, after which a mutant counts as one that never ends."""


@dataclass
class Result:
    """One mutant's fate. ``detector`` is empty for those that nobody noticed, ``reason`` is then why that is right.

    place: where in the text or the program, and what was changed
    """

    layer: str
    kernel: str
    kind: str
    place: str
    detector: str = ""
    code: str = ""
    reason: str = ""


@dataclass
class Trial:
    """One shape of a kernel: its text, what it runs on and what should come out."""

    source: Source
    arrays: list[np.ndarray]
    want: list[np.ndarray]
    outputs: tuple[Any, ...]

    def run(self, text: str, seed: int = 0) -> tuple[str, str] | None:
        """Who notices what about ``text``: (detector, code), None when nobody does."""
        found = apart(lambda: self._run(text, seed))
        return found if found is None or isinstance(found, tuple) else ("emulator", str(found))

    def _run(self, text: str, seed: int) -> tuple[str, str] | None:
        """Where tiles are copied by themselves, twice: they land as late as they may, and then at any time."""
        source = replace(self.source, text=text)
        for eager in (False, True)[: 1 + any(k.maps for k in source.kernels)]:
            try:
                done = emulate(source, self.arrays, seed, eager)
            except CompileError as e:
                return "compiler", e.code
            if done.problems:
                return "emulator", done.problems[0].code
            if not all(_equal(got, want) for got, want in zip(done.outputs, self.want, strict=True)):
                return "result", "check.wrong-result"
        for far in with_infinities(self.outputs, self.arrays):
            done = emulate(source, far, seed)
            if done.problems:
                return "emulator", done.problems[0].code
            if wrong := infinities_spread(self.outputs, done.outputs, far):
                return "result", wrong.code
        return None

    def on(self, arrays: list[np.ndarray]) -> Trial:
        """The same with other inputs."""
        return replace(self, arrays=arrays, want=list(evaluate(self.outputs, arrays)))


def _equal(got: np.ndarray, want: np.ndarray) -> bool:
    if got.dtype.kind == "V":  # NumPy knows no NaN in bfloat16
        got, want = got.astype(np.float32), want.astype(np.float32)
    return np.array_equal(got, want, equal_nan=got.dtype.kind == "f")


def trial(s: BaseSchedule, source: Source | None = None) -> Trial:
    """A schedule with small whole numbers as its inputs."""
    arrays = random_arguments(s.outputs, 0)
    return Trial(source or s.emitted(), arrays, list(evaluate(s.outputs, arrays)), s.outputs)


def apart(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in a child of this process; ``crash``, ``endless`` or ``raised ...`` if it gives nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            signal.setitimer(signal.ITIMER_PROF, PATIENCE)
            with os.fdopen(writer, "wb") as out, open(os.devnull, "w") as null:
                os.dup2(null.fileno(), 2)
                pickle.dump(_outcome(work), out)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as given:
        said = given.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "endless" if os.WTERMSIG(status) == signal.SIGPROF else "crash"
    return pickle.loads(said) if said else "crash"


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as e:
        return f"raised {type(e).__name__}"


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Where children that end too soon leave what they compiled."""
    folder = tempfile.TemporaryDirectory(prefix="tensorir-mutants-")
    tempfile.tempdir = folder.name
    return folder


def sampled(items: Sequence[Any], most: int, seed: str) -> list[Any]:
    """At most ``most`` of them, in order; always the same ones for a seed."""
    if len(items) <= most:
        return list(items)
    order = np.random.default_rng(list(seed.encode())).permutation(len(items))
    return [items[n] for n in sorted(order[:most])]
