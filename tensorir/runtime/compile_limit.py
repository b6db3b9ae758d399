"""Time limits on compilation, by processes that can be killed.

Compilers called as libraries cannot be interrupted. So another process compiles long texts first, and runs them once,
since some compile at the first launch; the result is loaded here from the artifact cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from tensorir.codec import encode
from tensorir.codegen.source import Source
from tensorir.errors import CompileError, refuse
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.runtime.scratch import WORKER_VARIABLE, Scratch

if TYPE_CHECKING:
    from tensorir.runtime.base import Device

COMPILE_S = 60.0
"""Default seconds of a compilation, in a search's trials too."""
LONG_TEXT = 64 << 10
"""Bytes of source text up to which a compiler in a library is trusted to end in time."""
_limit: ContextVar[float] = ContextVar("compile_limit", default=COMPILE_S)


@contextlib.contextmanager
def compile_limit(seconds: float | None) -> Iterator[None]:
    """Context manager: limit compilations inside to ``seconds``; None: keep the current limit."""
    token = None if seconds is None else _limit.set(seconds)
    try:
        yield
    finally:
        if token is not None:
            _limit.reset(token)


def run_limited(command: Sequence[str], cwd: Path, name: str, nbytes: int,
                environ: Mapping[str, str] | None = None) -> tuple[int, str]:  # fmt: skip
    """(exit status, error output) of a compiler command; its standard output is discarded.

    Past the limit (``compile_limit``; none in a worker) its process group is killed: CompileError
    ``compile.time-limit``, with the text's ``name`` and ``nbytes``. Raises OSError if it cannot be started.
    """
    limit = None if WORKER_VARIABLE in os.environ else _limit.get()
    with subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=limit is not None, env=environ,
    ) as process:  # fmt: skip
        try:
            said = process.communicate(timeout=limit)[1]
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if limit is not None else process.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            process.communicate()
            raise _too_long(name, nbytes) from None
        return process.returncode, said


def _too_long(name: str, nbytes: int) -> CompileError:
    limit = _limit.get()
    message = f"{name}: {nbytes} bytes of text were compiled for {limit:g} s, and the compiler had not ended"
    hint = f"fewer iterations unrolled, a tir.compute for values that are used often, or s.build(limit_s={4 * limit:g})"
    return refuse(CompileError, "compile.time-limit", message, hint=hint)  # type: ignore[return-value]


def need_end(source: Source, device: Device) -> None:
    """Return once a child process has compiled this text; raises CompileError ``compile.time-limit`` if it takes too
    long. For compilers in libraries, which cannot be interrupted.

    Nothing is tested for texts of up to ``LONG_TEXT`` bytes, for C, in workers, and for texts that passed before (noted
    in the artifact cache). Compile errors are left to the compilation in this process.
    """
    nbytes = len(source.text.encode())
    if nbytes <= LONG_TEXT or device.target.language == "c" or WORKER_VARIABLE in os.environ:
        return
    key = cache_key(kind="ends", source=source.sha256, device=device.identity, target=device.target.text)
    if default_cache().get(key) is not None:
        return
    with Scratch() as folder:
        (folder / "source.json").write_text(json.dumps({"device": device.name, "source": encode(source)}))
        home = str(Path(__file__).parents[2])
        paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "tensorir.runtime.compile_child", str(folder / "source.json")]
        status, _ = run_limited(
            command, folder, source.name, nbytes, {**os.environ, "PYTHONPATH": paths, WORKER_VARIABLE: "1"}
        )
    if status == 0:
        default_cache().put(key, b"ends")
