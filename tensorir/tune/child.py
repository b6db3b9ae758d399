"""The worker's side of the measuring protocol: framing, start-up guards and the serving loop.

A frame is a 4-byte big-endian length and one JSON document in UTF-8. The worker runs arbitrary code (the user's Python,
generated kernels, vendor drivers), so the protocol has separate pipes, and output of that code is redirected.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Mapping

from tensorir.codec import Json, plain
from tensorir.runtime.scratch import WORKER_VARIABLE

Progress = Callable[[str], None]
Handler = Callable[[Json, Progress], Json]

MAX_FRAME = 16 * 1024 * 1024  # no honest message comes near; a longer one is a wild write into our pipe
HEADER_BYTES = 4
_PR_SET_PDEATHSIG = 1
_channel: tuple[int, int] | None = None


def pack(message: Mapping[str, object]) -> bytes:
    """Frame of ``message`` as bytes: length, then JSON; raises ValueError if it is too long for the protocol."""
    body = json.dumps(plain(message), allow_nan=False).encode("utf-8", "backslashreplace")
    if len(body) > MAX_FRAME:
        raise ValueError(f"a message of {len(body)} bytes exceeds the {MAX_FRAME} of the worker protocol")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def unpack(body: bytes) -> dict[str, object]:
    """Message (a JSON object) in a frame's ``body``, its length left out; raises ValueError for any other content."""
    try:
        message = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


def serve(handler: Handler) -> None:
    """Answer requests with ``handler(message, progress)`` until the supervisor closes the pipe.

    ``progress(phase)`` tells the supervisor the current phase ("schedule", "check", "compile",
    "run" …), so that a hang is reported as what it is. The handler's exceptions become an
    ``internal_error`` reply (MemoryError: ``resource_limit``): the worker stays usable. Raises RuntimeError in a
    process that no Worker started.
    """
    if _channel is None:
        raise RuntimeError("serve() only works in a process started by tensorir.tune.process.Worker")
    source, sink = _channel
    _write(sink, pack({"ready": os.getpid()}))
    while (message := _read(source)) is not None:
        _write(sink, _answer(handler, message["request"], sink))


def _answer(handler: Handler, message: Json, sink: int) -> bytes:
    """Frame with the handler's reply to one request, or with an ``internal_error`` if the handler raised."""
    phase = "request"

    def progress(name: str) -> None:
        nonlocal phase
        phase = name
        _write(sink, pack({"phase": name}))

    try:
        reply = pack({"reply": handler(message, progress)})
    except MemoryError:
        reply = pack({"reply": {"status": "resource_limit", "detail": {"limit": "host memory", "phase": phase}}})
    except BaseException as error:  # sys.exit() in a user's schedule must not look like a crash
        lines = traceback.format_exception(error)
        detail = {
            "message": f"{type(error).__name__}: {error}"[:2000],
            "phase": phase,
            "traceback": "".join(lines)[-4000:],
        }
        reply = pack({"reply": {"status": "internal_error", "detail": detail}})
    with contextlib.suppress(Exception):  # user's code may have replaced or closed them
        sys.stdout.flush()
        sys.stderr.flush()
    return reply


def _read(fd: int) -> Json | None:
    """Return the next message, None at the end of the pipe."""
    header = _read_exactly(fd, HEADER_BYTES)
    if header is None:
        return None
    body = _read_exactly(fd, int.from_bytes(header, "big"))
    return None if body is None else unpack(body)


def _read_exactly(fd: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        piece = os.read(fd, min(count - len(parts), 1 << 20))
        if not piece:
            return None
        parts += piece
    return bytes(parts)


def _write(fd: int, frame: bytes) -> None:
    try:
        view = memoryview(frame)
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:  # the supervisor is gone; nobody wants this process any more
        os._exit(1)


def main(setup: Json) -> None:
    """Set up the process that ``Worker`` started and run its module as ``__main__``."""
    global _channel  # noqa: PLW0603 - the pipes belong to the process
    source, sink, life = setup["fds"]
    _guardian(life, (0, 1, 2, source, sink))
    if setup["parent_death_signal"] and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != setup["parent"]:  # it died before the call above could take effect
            os._exit(1)
    for fd in (source, sink):
        os.set_inheritable(fd, False)  # compilers started by a driver must not hold our pipes open
    _limit(setup["memory_limit"])
    faulthandler.enable()
    _channel = (source, sink)
    sys.argv = [setup["module"], *setup["args"]]
    runpy.run_module(setup["module"], run_name="__main__", alter_sys=True)


def _guardian(life: int, others: tuple[int, ...]) -> None:
    """Fork a process that only waits for the supervisor's end and then kills this process group.

    The kernel's parent-death signal does not reach compilers that a driver started, and a Python
    thread cannot act while native code holds the interpreter lock. The guardian is forked before
    anything else is loaded, and as a member of the group it keeps the group's number from being reused.
    """
    if os.fork():
        os.close(life)
        return
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for fd in others:
            os.close(fd)
        while os.read(life, 1):
            pass
        end_marked(os.environ.get(WORKER_VARIABLE, ""), os.getpgrp())
    finally:
        os.killpg(0, signal.SIGKILL)


def end_marked(mark: str, group: int) -> None:
    """Kill processes that a candidate started outside the worker's process group, found by ``mark`` in their
    environment.

    Those inside are not looked at: reading the environment of one that hangs in a driver may take for ever.
    """
    wanted = f"{WORKER_VARIABLE}={mark}".encode()
    for _ in range(3):  # some may just be starting others
        found = [pid for pid in _outside(group) if mark and wanted in _environment(pid).split(b"\0")]
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _outside(group: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with contextlib.suppress(OSError):  # it has gone
                if pid != os.getpid() and os.getpgid(pid) != group:
                    found.append(pid)
    return found


def _environment(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # it has gone, or is another user's
        return file.read()
    return b""


def _limit(memory: int | None) -> None:
    """Disable core dumps (gigabytes each); limit address space to ``memory`` bytes unless None."""
    import resource  # here, because some systems lack it

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
