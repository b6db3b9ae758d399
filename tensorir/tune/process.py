"""``Worker``: a supervised subprocess in which candidates may crash, hang or flood the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tensorir._package import reserve_standard_streams
from tensorir.codec import Json
from tensorir.errors import TensorIRError, refuse
from tensorir.runtime.library_caches import damaged_pocl_cache
from tensorir.runtime.scratch import WORKER_VARIABLE
from tensorir.tune.child import (
    HEADER_BYTES,
    MAX_FRAME,
    Handler,
    Progress,
    end_marked,
    pack,
    serve,
    unpack,
)
from tensorir.tune.circumstances import environment

__all__ = [
    "Handler",
    "Progress",
    "Worker",
    "WorkerError",
    "bound_memory",
    "claimed",
    "scrubbed_environment",
    "serve",
    "start_early",
]

TAIL_BYTES = 4096  # bytes of the candidate's own output that are kept for the report
_BOOT = (
    "import json, sys; setup = json.loads(sys.argv[1]); sys.path[:] = setup['path']; "
    "from tensorir.tune.child import main; main(setup)"
)
_KEPT_VARIABLES = frozenset(
    {"HOME", "USER", "LOGNAME", "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "SYSTEMROOT"}
    | {"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_PATH", "CUDA_HOME"}
    | {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING"}
    | {"CUDA_CACHE_PATH", "CUDA_CACHE_DISABLE", "CUDA_CACHE_MAXSIZE"}
)
_KEEP_PREFIXES = (
    "LC_",
    "XDG_",
    "OCL_ICD_",
    "OPENCL_",
    "POCL_",
    "PYOPENCL_",
    "OCLGRIND_",
    "CUPY_",
    "NVIDIA_",
    "OMP_",
    "OPENBLAS_",
    "TENSORIR_",
)
_QUIET = {"OPENBLAS_THREAD_TIMEOUT": "16"}
"""Environment that shortens the spinning of OpenBLAS's idle threads (log2 of iterations): by default 60 ms of processor
time at import and after each product, concurrent with what is timed.
"""
MOST_PHASE = 200  # characters of a phase that are kept


class WorkerError(TensorIRError):
    """The worker process could not be started or used; no candidate is to blame."""


def scrubbed_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables a worker needs; loader hooks, compiler flag injections and credentials stay out."""
    kept = {key: value for key, value in os.environ.items() if key in _KEPT_VARIABLES or key.startswith(_KEEP_PREFIXES)}
    return _QUIET | kept | dict(extra or {})


class _DiedError(Exception):
    """The worker closed its end of the pipe."""


class _GarbledError(Exception):
    """The worker sent bytes that violate the protocol."""


class Worker:
    """One measuring process, started on demand and started again after a crash or a hang.

    module:        run as ``python -m module``; it must call ``serve(handler)``
    args:          its ``sys.argv[1:]``
    path:          its ``sys.path``; the caller's own when None, so a bare checkout works
    environment:   added to the scrubbed environment
    memory_limit:  bytes of address space, None for no limit (CUDA needs terabytes of it)
    start_timeout: seconds that are waited until the module has called ``serve``

    starts:        processes started so far;  output: tail of what the last request printed
    heard:         function called with each phase that the worker reports
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str] = (),
        *,
        path: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        memory_limit: int | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        self._module, self._args, self._path = module, tuple(args), path
        self._environment, self._memory_limit, self._start_timeout = environment, memory_limit, start_timeout
        self._child: _Child | None = None
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.starts = 0  # how often a process was started; more than one means that something died
        self.output = ""  # tail of what the last request printed
        self.heard: Callable[[str], object] = str  # is told of each phase

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the running worker; None when there is none."""
        return self._child.process.pid if self._child else None

    def start(self) -> None:
        """Start the process without waiting until it is ready."""
        with self._lock:
            self._ensure()

    def request(
        self,
        message: Mapping[str, object],
        timeout: float,
        *,
        limits: Mapping[str, float] | None = None,
        cancel_after: float | None = None,
    ) -> Json:
        """Send ``message`` and return the handler's reply, or one made here if the process died, hung or was cancelled.

        timeout:      seconds for the whole request once the worker is ready
        limits:       seconds for single phases, counted from the phase's start; ``timeout`` runs
                      meanwhile, so it must be large enough for all of them
        cancel_after: seconds from now after which the request is ``cancelled`` (the budget's end);
                      start-up counts

        What died for want of room on a disk is an ``internal_error``, which says nothing about the request.

        A reply made here is ``{"status": "crashed" | "compile_timeout" | "run_timeout" | "cancelled" |
        "internal_error", "detail": {"phase": …, "output": …, …}}``; the process is gone then and the
        next request starts a new one. Any exception, KeyboardInterrupt included, kills the process
        group before it leaves. Raises WorkerError when the worker cannot even start.
        """
        if os.getpid() != self._owner:
            raise refuse(
                WorkerError,
                "worker.forked",
                "this worker belongs to the process that made it",
                hint="make a Worker per process",
            )
        with self._lock:
            cancel_at = None if cancel_after is None else time.monotonic() + cancel_after
            frame = pack({"request": message})
            try:
                return self._request(frame, timeout, limits or {}, cancel_at)
            except BaseException:
                self._drop()
                raise

    def _request(self, frame: bytes, timeout: float, limits: Mapping[str, float], cancel_at: float | None) -> Json:
        child = self._ensure()
        if not self._await_ready(child, cancel_at):
            return self._failed(child, "cancelled", {})
        child.begin(frame)
        try:
            reply = self._await_reply(child, time.monotonic() + timeout, timeout, limits, cancel_at)
        except _DiedError:
            ended = child.ended()
            return self._failed(child, "cancelled", {}) if child.cancelled else self._failed(child, "crashed", ended)
        except _GarbledError as error:
            return self._failed(child, "internal_error", {"message": f"the worker broke the protocol: {error}"})
        self.output = child.tail_text()
        return reply

    def _await_ready(self, child: _Child, cancel_at: float | None) -> bool:
        """Wait for the child's hello; False if the request was cancelled."""
        start_by = time.monotonic() + self._start_timeout
        while not child.ready:
            try:
                frame = child.receive(_earliest(start_by, cancel_at))
            except (_DiedError, _GarbledError) as error:
                if child.cancelled:
                    return False
                ended, output = child.ended(), child.tail_text()
                self._drop()
                raise refuse(
                    WorkerError,
                    "worker.start",
                    f"the measuring worker ended while starting ({ended or error})",
                    at=_last_lines(output),
                ) from None
            if frame is not None:
                child.ready = "ready" in frame
            elif cancel_at is not None and time.monotonic() >= cancel_at:
                return False
            elif time.monotonic() >= start_by:
                output = child.tail_text()
                self._drop()
                raise refuse(
                    WorkerError,
                    "worker.start",
                    f"the measuring worker was not ready after {self._start_timeout:g} s",
                    at=_last_lines(output),
                )
        return True

    def _await_reply(
        self, child: _Child, end: float, timeout: float, limits: Mapping[str, float], cancel_at: float | None
    ) -> Json:
        while True:
            limit = limits.get(child.phase)
            phase_end = None if limit is None else child.phase_began + limit
            frame = child.receive(_earliest(end, phase_end, cancel_at))
            if frame is None:
                now = time.monotonic()
                if cancel_at is not None and now >= cancel_at:
                    return self._failed(child, "cancelled", {})
                if phase_end is not None and now >= phase_end:
                    return self._failed(child, _timeout_status(child.phase), {"limit_s": limit})
                if now >= end:
                    return self._failed(child, _timeout_status(child.phase), {"limit_s": timeout})
            elif "phase" in frame:
                child.phase, child.phase_began = str(frame["phase"])[:MOST_PHASE], time.monotonic()
                self.heard(child.phase)
            elif isinstance(frame.get("reply"), dict):
                return dict(frame["reply"])
            else:
                raise _GarbledError(f"a frame with keys {sorted(frame)[:4]}")

    def _failed(self, child: _Child, status: str, detail: Json) -> Json:
        """Kill the child and return the error reply: status, and detail with its phase and last output."""
        child.kill()
        self.output = child.tail_text()
        self._child = None
        if status == "crashed" and (trouble := environment(self.output)):  # compilers abort without room for files
            status, detail = "internal_error", {**detail, "message": f"the compiler's files: {trouble}"}
        if detail.get("signal") in ("SIGABRT", "SIGBUS") and (folder := damaged_pocl_cache(self.output)) is not None:
            status, detail = "internal_error", {"message": f"PoCL's cache is damaged: rm -r {shlex.quote(str(folder))}"}
        return {"status": status, "detail": {"phase": child.phase, **detail, "output": self.output}}

    def _ensure(self) -> _Child:
        if self._child is not None and not self._child.alive():
            self._drop()  # it died idle, e.g. from a late driver thread or the system's memory killer: nobody's trial
        if self._child is None:
            self._child = _Child(self._command_setup(), self._environment)
            self.starts += 1
        return self._child

    def _command_setup(self) -> Json:
        path = [os.path.abspath(entry) for entry in (sys.path if self._path is None else self._path)]  # '' is the cwd
        return {"module": self._module, "args": self._args, "path": path, "memory_limit": self._memory_limit}

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def kill(self) -> None:
        """Kill the process group now, from any thread; a request in progress returns ``cancelled``."""
        child = self._child
        if child is not None:
            child.cancelled = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the worker: it gets a moment to exit, then its group is killed."""
        child, self._child = self._child, None
        if child is not None:
            child.close()


_early: dict[str, Worker] = {}


def start_early(module: str) -> None:
    """Start a worker for ``module`` in advance, without waiting, to be taken by the next ``claimed``."""
    _early[module] = Worker(module)
    _early[module].start()


def claimed(module: str) -> Worker:
    """Worker for ``module``: the one started by ``start_early`` if nobody has taken it yet, else a new one."""
    return _early.pop(module, None) or Worker(module)


class _Child:
    """One started worker process with its pipes."""

    def __init__(self, setup: Json, environment: Mapping[str, str] | None) -> None:
        if not sys.executable:
            raise refuse(WorkerError, "worker.no-python", "sys.executable is empty, so no worker can be started")
        reserve_standard_streams()  # descriptors 0 to 2 of the pipes would be the child's own streams
        self.ready, self.phase, self.phase_began, self._capturing = False, "start", time.monotonic(), True
        self.cancelled = False
        self._inbox, self._outbox, self._tail = bytearray(), b"", bytearray()
        request, reply, life, capture = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        theirs = (request[0], reply[1], life[0], capture[1])
        self._to, self._from, self._life, self._capture = request[1], reply[0], life[1], capture[0]
        setup = setup | {
            "fds": theirs[:3],
            "parent": os.getpid(),
            # Linux sends it when the starting *thread* ends, and only the main one lives as long as the process
            "parent_death_signal": threading.current_thread() is threading.main_thread(),
        }
        self._mark = secrets.token_hex(8)
        command = [sys.executable, "-E", "-P", "-u", "-X", "utf8", "-c", _BOOT, json.dumps(setup)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=capture[1],
                stderr=capture[1],
                pass_fds=theirs[:3],
                start_new_session=True,
                env=scrubbed_environment(environment) | {WORKER_VARIABLE: self._mark},
            )
        except BaseException as error:  # an interrupt too: closing ``life`` ends a child that did start
            close_all(self._to, self._from, self._life, self._capture)
            if not isinstance(error, OSError):
                raise
            raise refuse(WorkerError, "worker.start", f"cannot start {sys.executable}: {error.strerror}") from None
        finally:
            close_all(*theirs)
        for fd in (self._to, self._from, self._capture):
            os.set_blocking(fd, False)
        self._pidfd = pidfd(self.process.pid)
        self._cleanup = weakref.finalize(self, destroy, self.process, self._fds(), self._mark)

    def _fds(self) -> tuple[int, ...]:
        return (self._to, self._from, self._life, self._capture) + (() if self._pidfd is None else (self._pidfd,))

    def begin(self, frame: bytes) -> None:
        """Queue a request and discard earlier output."""
        self._drain_capture()
        self._tail.clear()
        self._outbox, self.phase, self.phase_began = frame, "request", time.monotonic()

    def receive(self, until: float) -> Json | None:
        """Return the next frame, None at time ``until``; raises if the child died or violated the protocol."""
        while True:
            frame = self._next_frame()
            if frame is not None:
                return frame
            wait = until - time.monotonic()
            if wait <= 0:
                return None
            poller = select.poll()
            poller.register(self._from, select.POLLIN)
            if self._capturing:
                poller.register(self._capture, select.POLLIN)
            if self._outbox:
                poller.register(self._to, select.POLLOUT)
            if self._pidfd is not None:
                poller.register(self._pidfd, select.POLLIN)
            ready = {fd for fd, _ in poller.poll(min(wait, 3600.0) * 1000 + 1)}
            if self._capture in ready:
                self._drain_capture(chunks=4)  # bounded, so that a flood cannot hide the clock
            if self._to in ready:
                self._send()
            if self._from in ready:
                self._read_reply()
            elif self._pidfd in ready:  # dead, and whoever inherited its pipe keeps it open
                raise _DiedError

    def _send(self) -> None:
        try:
            self._outbox = self._outbox[os.write(self._to, self._outbox) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._outbox = b""  # the reply pipe will say that it is dead

    def _read_reply(self) -> None:
        try:
            piece = os.read(self._from, 1 << 20)
        except BlockingIOError:
            return
        if not piece:
            raise _DiedError
        self._inbox += piece

    def _next_frame(self) -> Json | None:
        if len(self._inbox) < HEADER_BYTES:
            return None
        size = int.from_bytes(self._inbox[:HEADER_BYTES], "big")
        if size > MAX_FRAME:
            raise _GarbledError(f"a frame of {size} bytes")
        if len(self._inbox) < HEADER_BYTES + size:
            return None
        body = bytes(self._inbox[HEADER_BYTES : HEADER_BYTES + size])
        del self._inbox[: HEADER_BYTES + size]
        try:
            return unpack(body)
        except ValueError as error:
            raise _GarbledError(str(error)) from None

    def _drain_capture(self, chunks: int = 64) -> None:
        with contextlib.suppress(OSError):  # BlockingIOError: nothing left
            for _ in range(chunks):
                piece = os.read(self._capture, 1 << 16)
                if not piece:  # it closed its own output; poll would report that for ever
                    self._capturing = False
                    return
                self._tail += piece
                del self._tail[:-TAIL_BYTES]

    def tail_text(self) -> str:
        """The candidate's last output, escaped for terminals and records."""
        text = bytes(self._tail).decode("utf-8", "replace")
        return "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)

    def alive(self) -> bool:
        """True if the process has not exited; an exited one is not reaped."""
        return not self._exited()

    def _exited(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def ended(self) -> Json:
        """The end of the process: ``{"signal": name}`` or ``{"exit": code}``; killed first if only its pipe closed."""
        end = time.monotonic() + 0.5  # a moment passes between closing its files and becoming waitable
        while not self._exited() and time.monotonic() < end:
            time.sleep(0.002)
        self._drain_capture()
        self.kill()
        code = self.process.returncode
        if code is None or code >= 0:
            return {"exit": code}
        try:
            return {"signal": signal.Signals(-code).name}
        except ValueError:
            return {"signal": str(-code)}

    def kill(self) -> None:
        self._drain_capture()
        self._cleanup()

    def close(self) -> None:
        close_all(self._to)
        end = time.monotonic() + 1.0
        while not self._exited() and time.monotonic() < end:
            self._drain_capture()
            time.sleep(0.005)
        self._to = -1
        self._cleanup.detach()
        destroy(self.process, self._fds(), self._mark)


def _earliest(*times: float | None) -> float:
    return min(t for t in times if t is not None)


def _timeout_status(phase: str) -> str:
    """Status of a timeout in ``phase``: ``compile_timeout`` or ``run_timeout``."""
    return "compile_timeout" if phase == "compile" else "run_timeout"


def _last_lines(text: str, count: int = 6) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


# The process group of a worker: ended as a whole, and waited for.


def destroy(process: subprocess.Popen[bytes], fds: tuple[int, ...], mark: str) -> None:
    """Kill the process group, then reap (reaping first could free the group number for others)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    end_marked(mark, process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a process stuck in a driver call cannot be waited for
        process.wait(2.0)
        _group_gone(process.pid)
    close_all(*fds)


def _group_gone(pgid: int, seconds: float = 0.5) -> None:
    """Wait up to ``seconds`` until killed processes of the group have exited."""
    end = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < end:
            os.killpg(pgid, 0)
            if not any_runs(pgid):
                return
            time.sleep(0.002)


def any_runs(pgid: int) -> bool:
    """True if a process of the group has not exited, or the system cannot tell.

    An exited process stays in its group until its parent reaps it. The guardian's parent is init, which may reap late
    in a container, or never.
    """
    stats = list(Path("/proc").glob("[0-9]*/stat"))
    for stat in stats:
        with contextlib.suppress(OSError):  # it has just gone
            state, _, group = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            if int(group) == pgid and state not in "ZX":
                return True
    return not stats


def close_all(*fds: int) -> None:
    """Close descriptors, whether or not they are open."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def pidfd(pid: int) -> int | None:
    """Descriptor that becomes readable when process ``pid`` ends; None on systems without such descriptors."""
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    return None


def bound_memory(nbytes: int) -> None:
    """Limit this process to ``nbytes`` beyond its present private memory, where supported.

    A candidate that exceeds it gets an error, instead of exhausting the machine. Private writable memory counts;
    address space reserved by drivers does not. If the machine's memory is exhausted, the system kills this process
    first.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # here, because some systems lack it

        with open("/proc/self/status", encoding="ascii") as file:
            now = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = now + nbytes
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
