"""tensorir doctor: the parts that work here, and commands that mend the others."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from tensorir._package import Lazy
from tensorir.cli import common
from tensorir.cli.common import put, put_json
from tensorir.cli.finding import Finding
from tensorir.codec import encode
from tensorir.errors import TensorIRError


def run(as_json: bool) -> int:
    """Check Python, packages, devices, compilers, the cache and the log's place, and print the findings; return the
    exit code, 3 without a usable device.
    """
    findings = [_python(), *(found for name, probe in PROBES.items() for found in _guarded(name, probe))]
    usable = any(f.name.startswith("device ") and f.ok for f in findings)
    if as_json:
        put_json({"schema": 1, "ok": usable, "checks": [encode(f) for f in findings]})
    else:
        for f in findings:
            mark = {True: "ok  ", False: "BAD ", None: "-   "}[f.ok]
            put(f"{mark} {f.name:22} {f.detail}" + (f"\n       try: {f.fix}" if f.fix and not f.ok else ""))
    return common.OK if usable else common.NO_DEVICE


def _guarded(name: str, probe: Callable[[], list[Finding]]) -> list[Finding]:
    """Findings of ``probe``; an exception becomes a failed Finding."""
    try:
        return probe()
    except TensorIRError as error:
        problem = error.problems[0]
        return [Finding(name, False, problem.message[:300], problem.hint)]
    except Exception as error:
        return [Finding(name, False, f"{type(error).__name__}: {error}"[:300])]


def _python() -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("python", sys.version_info >= (3, 11), text, "Python 3.11 or newer")


def _packages() -> list[Finding]:
    found = []
    for name, needed in (("numpy", True), ("ml_dtypes", True), ("click", True), ("pyopencl", True), ("rich", False)):
        try:
            importlib.import_module(name)
            found.append(Finding(name, True, version(name)))
        except ImportError as error:
            found.append(Finding(name, False if needed else None, str(error)[:200], f"pip install {name}"))
        except PackageNotFoundError:
            found.append(Finding(name, True, "version unknown"))
    return found


def _log() -> list[Finding]:
    writable = os.access(os.getcwd(), os.W_OK)
    detail = "tuning_logs can be written here" if writable else "this folder cannot be written"
    return [Finding("log", writable, detail, "--log DIR")]


PROBES: dict[str, Callable[[], list[Finding]]] = {
    "packages": _packages,
    "devices": Lazy("tensorir.cli.probes", "find_devices"),
    "machine": Lazy("tensorir.cli.probes", "find_machine"),
    "kernel": Lazy("tensorir.cli.probes", "find_kernel"),
    "cuda": Lazy("tensorir.cli.probes", "find_cuda"),
    "search": Lazy("tensorir.cli.probes", "find_search"),
    "cache": Lazy("tensorir.cli.probes", "find_cache"),
    "pocl": Lazy("tensorir.cli.probes", "find_pocl"),
    "log": _log,
}
"""{name of the finding if the probe itself fails: function that returns findings}; imported when called, so that a
failed import is a finding too."""
