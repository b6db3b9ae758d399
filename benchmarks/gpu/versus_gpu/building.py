"""From a configuration to machine code, in processes beside the one that drives the GPU."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from tensorir.codegen.source import Source

from .candidates import Listed, configurations
from .problems import Problem

PATIENCE_S = 60.0
"""Seconds to wait for one compilation, or for a list of configurations."""


@dataclass(frozen=True)
class Job:
    """One configuration of a template for a target ("cuda -arch=sm_90a")."""

    problem: Problem
    template: str
    config: Mapping[str, Any]
    target: str

    @property
    def key(self) -> str:
        return json.dumps([self.problem.name, self.template, self.config, self.target], sort_keys=True)


@dataclass(frozen=True)
class Built:
    """A program and what the compiler says of it.

    registers: of a thread, the most of its kernels;  spills: bytes stored and loaded for want of registers
    static_bytes: shared memory that each kernel declares; what it needs beyond that is passed at launch
    """

    source: Source
    cubin: bytes = field(default=b"", repr=False)
    registers: int = 0
    spills: int = 0
    static_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block, the most of the kernels."""
        return max((max(k.shared_bytes, self.static_bytes.get(k.name, 0)) for k in self.source.kernels), default=0)


class BuildFailure(Exception):
    """A configuration that could not be scheduled, emitted or compiled, and why."""


def emitted(job: Job) -> Source:
    """The text of one configuration."""
    return job.problem.workload().schedule(dict(job.config), job.template, job.target).emitted()


def compiled(job: Job, arch: str) -> Built | str:
    """Machine code, or in words why there is none: exceptions of compilers do not travel between processes."""
    try:
        from tensorir.runtime.cuda import compile_cubin

        source = emitted(job)
        cubin = compile_cubin(source.text, arch)
        static = {name: use.shared_bytes for name, use in cubin.kernels.items()}
        if missing := [k.name for k in source.kernels if k.name not in static]:
            return f"the compiler reports no kernel {', '.join(missing)}"
        return Built(source, cubin.data, cubin.registers, cubin.spills, static)
    except Exception as error:
        return in_words(error)


def listing(problem: Problem, target: str, count: int) -> Listed | str:
    """The configurations of a row, or in words why there are none: spaces take long to list, so that is done beside
    what is measured as well.
    """
    try:
        return configurations(problem, target, count)
    except Exception as error:
        return in_words(error)


def in_words(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


class Compilers:
    """Processes that list configurations and compile for one architecture, and what they were asked for."""

    def __init__(self, arch: str, processes: int) -> None:
        self.arch, self.processes = arch, processes
        self._pool: ProcessPoolExecutor | None = None
        self._asked: dict[str, Future[Built | str]] = {}
        self._lists: dict[tuple[str, int], Future[Listed | str]] = {}

    def list_ahead(self, asked: Iterable[tuple[Problem, str, int]]) -> None:
        """Start on these; ``listed`` has them."""
        for problem, target, count in asked:
            key = problem.name, count
            if key not in self._lists:
                self._lists[key] = self._submit(listing, problem, target, count)

    def listed(self, problem: Problem, target: str, count: int, wait: bool = True) -> Listed | None:
        """Template and configurations; None where they are not known yet and nobody waits, BuildFailure with the reason
        where there are none.
        """
        self.list_ahead([(problem, target, count)])
        asked = self._lists[problem.name, count]
        if not wait and not asked.done():
            return None
        try:
            found = asked.result(PATIENCE_S)
        except (TimeoutError, BrokenProcessPool):
            asked.cancel()
            found = listing(problem, target, count)  # not among what may have ended the others
        if isinstance(found, str):
            raise BuildFailure(found)
        return found

    def ahead(self, jobs: Iterable[Job]) -> None:
        """Start on these; ``built`` waits for them."""
        for job in jobs:
            if job.key not in self._asked:
                self._asked[job.key] = self._submit(compiled, job, self.arch)

    def built(self, job: Job) -> Built:
        """The program of one job; BuildFailure with the reason."""
        try:
            made = self._waited(job)
        except BrokenProcessPool:  # which job ended the process is not known: once more, with nothing beside it
            self.close()
            try:
                made = self._waited(job)
            except BrokenProcessPool:
                self.close()
                raise BuildFailure("the process that compiles it ends") from None
        if isinstance(made, str):
            raise BuildFailure(made)
        return made

    def _waited(self, job: Job) -> Built | str:
        self.ahead([job])
        asked = self._asked.pop(job.key)
        try:
            return asked.result(PATIENCE_S)
        except TimeoutError:
            asked.cancel()
            raise BuildFailure(f"not compiled within {PATIENCE_S:g} s") from None

    def close(self) -> None:
        """Forget what was asked for and end the processes; the next job starts new ones."""
        self._asked.clear()
        known = {key: asked for key, asked in self._lists.items() if asked.done() and not asked.cancelled()}
        self._lists = {key: asked for key, asked in known.items() if not asked.exception()}
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None

    def _submit(self, function: Callable[..., Any], *given: Any) -> Future[Any]:
        try:
            return self._processes().submit(function, *given)
        except BrokenProcessPool:
            self.close()
            return self._processes().submit(function, *given)

    def _processes(self) -> ProcessPoolExecutor:
        if self._pool is None:  # spawned: a fork would share the driver's state
            self._pool = ProcessPoolExecutor(self.processes, multiprocessing.get_context("spawn"))
        return self._pool
