"""tensorir doctor: what works here, and the command that mends what does not."""

from __future__ import annotations

import importlib
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import click

from tensorir.cli import common
from tensorir.cli.common import json_option, put, put_json
from tensorir.codec import encode, travels
from tensorir.errors import TensorIRError


@travels
@dataclass(frozen=True)
class Finding:
    """One line: ok is None for what is optional and absent."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""


@click.command("doctor", cls=common.Verb, context_settings=common.SETTINGS)
@json_option
def command(as_json: bool) -> int:
    """Check Python, packages, devices, compilers, the cache and the log's place; exit 3 without a usable device."""
    findings: list[Finding] = [_python()]
    for probe in (_packages, _devices, _kernel, _cuda, _search, _cache, _pocl, _log):
        findings += _guarded(probe)
    usable = any(f.name.startswith("device ") and f.ok for f in findings)
    if as_json:
        put_json({"schema": 1, "ok": usable, "checks": [encode(f) for f in findings]})
    else:
        for f in findings:
            mark = {True: "ok  ", False: "BAD ", None: "-   "}[f.ok]
            put(f"{mark} {f.name:22} {f.detail}" + (f"\n       try: {f.fix}" if f.fix and not f.ok else ""))
    return common.OK if usable else common.NO_DEVICE


def _guarded(probe: Callable[[], list[Finding]]) -> list[Finding]:
    """A probe that fails is a finding."""
    try:
        return probe()
    except TensorIRError as error:
        problem = error.problems[0]
        return [Finding(probe.__name__.strip("_"), False, problem.message[:300], problem.hint)]
    except Exception as error:
        return [Finding(probe.__name__.strip("_"), False, f"{type(error).__name__}: {error}"[:300])]


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


def _devices() -> list[Finding]:
    from tensorir.runtime.device import devices

    found = []
    for d in devices():
        if d.language in ("cuda", "c") and not d.usable:
            found.append(Finding(f"device {d.name}", None, d.reason, d.fix))
        else:
            what = d.driver if d.language == "c" else d.platform
            label = f"{d.label}, {what}{' (simulator: only by name)' if d.simulator else ''}"
            good = d.usable and not d.simulator
            found.append(Finding(f"device {d.name}", good if not d.simulator else None, d.reason or label, d.fix))
    return found


def _kernel() -> list[Finding]:
    """Compile and run one kernel on the default device, in a process of its own."""
    from tensorir.api.measurer import Measurer
    from tensorir.api.options import Options
    from tensorir.api.workload import Origin, Workload
    from tensorir.cli.probe import probe

    work: Workload = probe()
    work.origin = Origin("module", "probe", {}, "tensorir.cli.probe")
    with Measurer(work, None, Options()) as measurer:
        measurer.open()
        answer = measurer.check("only", {})
    wrong = [c for c in answer.checks if not c.ok]
    detail = "compiled, run and checked" if not wrong else f"{wrong[0].name}: {wrong[0].detail}"
    return [Finding("kernel", answer.ok, detail, "another OpenCL runtime, or --device")]


def _cuda() -> list[Finding]:
    from tensorir.codegen.dialect import CUDA_PROBE
    from tensorir.runtime.cuda import compile_cubin, nvrtc_version, sass

    try:
        number = nvrtc_version()
        cubin = compile_cubin(CUDA_PROBE, "sm_80", cache=False)
    except TensorIRError as error:
        problem = error.problems[0]
        return [Finding("nvrtc", None, problem.message[:200], problem.hint)]
    found = [Finding("nvrtc", True, f"{number}: compiles for sm_80 without a GPU")]
    try:
        sass(cubin)
        found.append(Finding("nvdisasm", True, "shows machine code"))
    except TensorIRError as error:
        found.append(Finding("nvdisasm", None, error.problems[0].message[:200], error.problems[0].hint))
    return found


def _search() -> list[Finding]:
    from tensorir.tune.gp import missing

    reason = missing()
    if reason:
        return [Finding("scikit-optimize", None, f"{reason}; 'climb' searches instead", "pip install scikit-optimize")]
    return [Finding("scikit-optimize", True, version("scikit-optimize"))]


def _cache() -> list[Finding]:
    from tensorir.runtime.cache import stat

    try:
        found = stat()
    except TensorIRError as error:
        return [Finding("cache", False, error.problems[0].message, error.problems[0].hint)]
    where = found.directory or "in memory only"
    return [
        Finding("cache", bool(found.directory) or None, f"{where}: {found.entries} entries, {found.bytes / 1e6:.1f} MB")
    ]


def _pocl() -> list[Finding]:
    from tensorir.runtime.caches import pocl_cache, pocl_files

    folder = pocl_cache()
    files = list(pocl_files(folder))
    if bad := [path for path, whole in files if not whole]:
        detail = f"{len(bad)} of {len(files)} files are damaged, and PoCL ends the process that meets one: {bad[0]}"
        return [Finding("PoCL's cache", False, detail, f"rm -r {shlex.quote(str(folder))}")]
    return [Finding("PoCL's cache", True if files else None, f"{folder}: {len(files)} files")]


def _log() -> list[Finding]:
    import os

    writable = os.access(os.getcwd(), os.W_OK)
    detail = "tuning_logs can be written here" if writable else "this folder cannot be written"
    return [Finding("log", writable, detail, "--log DIR")]
