"""Runs untrusted code in a separate process until it has passed once: edited text, user instructions, imported
binaries.

Untrusted code may store anywhere, never end or exhaust memory. In the separate process, this gives an error with its
reason instead of ending the session. Passed code is remembered by all that it depends on (text, launches, device) and
then runs in this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorir.api.questions import Failed, Guarded, Output, Ran, Request, Setup
from tensorir.codec import decode, encode
from tensorir.codegen.source import Param, Source
from tensorir.errors import (
    CheckError,
    CompileError,
    DeviceError,
    LaunchError,
    LoweringError,
    Problem,
    TensorIRError,
    refuse,
)
from tensorir.runtime.arguments import numpy_dtype
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.runtime.device import Device
from tensorir.runtime.launch import CompiledProgram
from tensorir.runtime.scratch import WORKER_VARIABLE, Scratch
from tensorir.tune.inputs import ArgumentRange
from tensorir.tune.process import Worker
from tensorir.tune.trial import Reply

WORKER_MODULE = "tensorir.api.worker"
LIMIT_S = 30.0
"""Seconds that a run may take where the caller does not say."""
COMPILE_S = 120.0
SETUP_S = 120.0
HARM_CODES = ("launch.out-of-bounds", "launch.input-written")
"""Codes of problems that keep a text out of the user's process."""
_SIGNALS = {
    "SIGSEGV": "memory that belongs to nobody, or a stack overflow", "SIGBUS": "memory that belongs to nobody",
    "SIGABRT": "memory spoilt or exhausted", "SIGFPE": "a whole number divided by zero",
    "SIGILL": "a trap, or an instruction that the processor lacks",
    "SIGKILL": "the system's memory was exhausted, perhaps",
    "host memory": "more than it may have",
}  # fmt: skip
_HINT = 'text whose indices and pointers stay in its arrays; for CUDA, s.check(level="emulate") has the line'
_KINDS = {k.__name__: k for k in (CompileError, LaunchError, DeviceError, LoweringError, CheckError)}

_workers: dict[int, Worker] = {}  # by process: a fork must not touch that of its parent
_passed: set[str] = set()
_lock = threading.Lock()


def needs_proof(source: Source, edited: bool) -> bool:
    """True for text not entirely generated here, or machine code not compiled here."""
    from tensorir.intrin.intrin import OWN

    return edited or not OWN.isdisjoint(source.instructions) or _is_imported(source)


def note_imported(source_sha256: str) -> None:
    """Mark a source's machine code in the artifact cache as imported, to be proven before it runs here."""
    default_cache().put(_imported_key(source_sha256), b"imported")


def _is_imported(source: Source) -> bool:
    return default_cache().get(_imported_key(source.sha256)) is not None


def _imported_key(source_sha256: str) -> str:
    return cache_key(kind="imported", source=source_sha256)


def has_passed(source: Source, device: Device) -> bool:
    """True if this text already ran harmlessly on this device; always true in a measuring process."""
    if WORKER_VARIABLE in os.environ:
        return True
    key = _key(source, device)
    return not _is_imported(source) and (key in _passed or default_cache().get(key) is not None)


def _key(source: Source, device: Device) -> str:
    digest = hashlib.sha256(json.dumps(encode(source), sort_keys=True).encode()).hexdigest()
    return cache_key(kind="passed", source=digest, device=device.identity, target=device.target.text)


def prove(source: Source, device: Device, arrays: Callable[[], Sequence[object]], limit_s: float = LIMIT_S) -> None:
    """Return once the text has run harmlessly in another process on inputs from ``arrays()``; raises otherwise.

    Raises what ``run_guarded`` raises, and LaunchError for what a run between canaries shows.
    """
    if has_passed(source, device):
        return
    _, problems = run_guarded(source, device, arrays(), limit_s)
    if harm := [p for p in problems if p.code in HARM_CODES]:
        raise LaunchError(harm)


def run_guarded(
    source: Source, device: Device, arrays: Sequence[object], limit_s: float = LIMIT_S
) -> tuple[Any, tuple[Problem, ...]]:
    """(results, problems) of a run with guard bytes, in another process if the text has not passed.

    limit_s: seconds for the run
    Raises what compiling and running raise; LaunchError ``launch.crashed``, ``launch.time-limit``; CompileError
    ``compile.crashed``, ``compile.time-limit``.
    """
    if has_passed(source, device):
        return CompiledProgram(source, device).run_guarded(*arrays)
    with Scratch("unproven") as folder:
        for n, (p, array) in enumerate(zip(source.inputs, arrays, strict=True)):
            _write(folder / f"input-{n}", np.asarray(array, numpy_dtype(p.dtype)))
        reply = _ask(_request(source, device, folder), device, limit_s)
        if not reply.ok:
            raise _failure(reply, source, limit_s)
        results = tuple(_read(folder / f"output-{n}", p) for n, p in enumerate(source.outputs))
    problems = decode(Ran, reply.answer).problems
    if not any(p.code in HARM_CODES for p in problems):
        key = _key(source, device)
        _passed.add(key)
        default_cache().put(key, b"passed")
        default_cache().discard(_imported_key(source.sha256))
    return results[0] if len(results) == 1 else results, problems


def answer(device: Device, source: Source, folder: Path, progress: Callable[[str], None]) -> Reply:
    """Reply of the other process: runs the text on the folder's arrays and stores results there."""
    progress("compile")
    try:
        program = CompiledProgram(source, device)
        arrays = [_read(folder / f"input-{n}", p) for n, p in enumerate(source.inputs)]
        progress("run")
        got, problems = program.run_guarded(*arrays)
    except TensorIRError as error:
        kind = next((name for name, k in _KINDS.items() if isinstance(error, k)), "CheckError")
        found = Failed(kind, tuple(error.problems), getattr(error, "log", ""))
        return Reply("refused", answer=encode(found))
    for n, array in enumerate(got if isinstance(got, tuple) else (got,)):
        _write(folder / f"output-{n}", array)
    return Reply("ok", answer=encode(Ran(tuple(problems))))


def _write(path: Path, array: Any) -> None:
    path.write_bytes(np.ascontiguousarray(array).tobytes())


def _read(path: Path, p: Param) -> Any:
    return np.fromfile(path, np.uint8).view(numpy_dtype(p.dtype)).reshape(p.shape)


def _request(source: Source, device: Device, folder: Path) -> Request:
    given = tuple(ArgumentRange(p.name, p.dtype, p.shape, 0, 0) for p in source.inputs)
    made = tuple(Output(p.name, p.dtype, p.shape) for p in source.outputs)
    shapes = [[p.shape for p in some] for some in (given, made)]
    setup = Setup(f"unproven {device.name} {shapes}", device.name, given, made)
    return Request.of(Guarded(source, str(folder)), setup)


def _ask(request: Request, device: Device, limit_s: float) -> Reply:
    """The worker's reply; a crash in a reused worker is retried once in a fresh one."""
    with _lock:
        worker = _workers.setdefault(os.getpid(), Worker(WORKER_MODULE))
    limits = {"setup": SETUP_S, "compile": COMPILE_S, "run": limit_s}
    starts, message = worker.starts, encode(request)
    reply = Reply.of(worker.request(message, sum(limits.values()), limits=limits))
    if reply.status == "crashed" and worker.starts == starts:
        reply = Reply.of(worker.request(message, sum(limits.values()), limits=limits))
    # what has done harm may have done more than was seen; and a context on a GPU takes memory there
    harmed = reply.answer is not None and bool(reply.answer.get("problems"))
    if reply.last or harmed or device.target.language != "opencl":
        worker.close()
    return reply


def _failure(reply: Reply, source: Source, limit_s: float) -> TensorIRError:
    """The error for a text whose run did not finish."""
    if reply.status == "refused":
        found = decode(Failed, reply.answer)
        kind = _KINDS[found.kind]
        return CompileError(found.problems, found.log) if kind is CompileError else kind(found.problems)
    detail = reply.told
    compiling = reply.phase == "compile"
    kind, doing = (CompileError, "was compiled") if compiling else (LaunchError, "ran")
    if reply.status.endswith("_timeout"):
        code = "compile.time-limit" if compiling else "launch.time-limit"
        message = (
            f"{source.name}: the text {doing} for {detail['limit_s']:g} s in a process of its own and had not ended"
        )
        more = "" if compiling else f", or limit_s={4 * limit_s:g} for one that takes long"
        return kind(Problem(code, message, hint=f"a loop that ends{more}"))
    if reply.status not in ("crashed", "resource_limit"):
        message = f"the process for text that has not passed did not answer: {detail.get('message', reply.status)}"
        return refuse(CheckError, "check.not-run", message)
    ended = detail.get("signal") or detail.get("limit") or f"exit status {detail.get('exit')}"
    ended += f", {_SIGNALS[ended]}" if ended in _SIGNALS else ""
    message = f"{source.name}: the process in which the text {doing} ended with {ended}; nothing of it ran in this one"
    said = "; ".join(line for line in str(detail.get("output", "")).splitlines() if line.startswith("LLVM ERROR"))
    code = "compile.crashed" if compiling else "launch.crashed"
    return kind(Problem(code, message + (f"; it said: {said:.300}" if said else ""), hint=_HINT))
