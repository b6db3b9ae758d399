"""``tensorir doctor``'s checks of devices, compilers, packages and caches."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tensorir.api.measurer import Measurer
from tensorir.api.this_machine import probed
from tensorir.api.workload import Origin, Workload
from tensorir.cli.finding import Finding
from tensorir.codegen.dialect import CUDA_PROBE
from tensorir.errors import TensorIRError
from tensorir.expr.compute import compute, placeholder
from tensorir.machine import machine_of
from tensorir.runtime.cache import stat
from tensorir.runtime.cuda import compile_cubin, nvrtc_version, sass
from tensorir.runtime.device import devices
from tensorir.runtime.host import caches_here, target_here
from tensorir.runtime.library_caches import pocl_cache, pocl_files
from tensorir.tune.gp import missing
from tensorir.tune.space import Space
from tensorir.tune.spec import RunSpec


def find_devices() -> list[Finding]:
    """One Finding per device, with the reason if it is unusable: broken (False), or optional (None) for CUDA and C
    devices that are unusable and for simulators.
    """
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


def find_machine() -> list[Finding]:
    """The processor that plain targets mean, with where each number comes from."""
    target = target_here("c")
    machine, probe = machine_of(target), probed(target.language)
    here = (
        f"{machine.cores} cores (affinity and quota), {target.registers} vectors of {target.vector_bytes} bytes (flags)"
    )
    sizes, modelled = caches_here(), tuple(c.nbytes for c in machine.caches)
    found = f"{_kib(sizes)} (system), modelled as " if sizes else ""
    known = f"caches of {found}{_kib(modelled)}"
    rates = (
        f"{', '.join(f'{r / 1e9:.3g}' for _, r in (probe.applied(machine) if probe else machine).levels)} GB/s a core"
    )
    whence = f"probed in {probe.seconds:.1f} s, for seconds stated" if probe else "a table: no probe"
    table = f"{machine.clock / 1e9:.3g} GHz and launch times (a table, of a server)"
    return [Finding("machine", True, f"{here}, {known}, {rates} ({whence}), {table}")]


def _kib(sizes: Sequence[int]) -> str:
    return " and ".join(f"{n >> 10} KiB" for n in sizes)


def find_kernel() -> list[Finding]:
    """A Finding on compiling and running a small kernel on the default device, in a subprocess."""
    work: Workload = probe()
    work.origin = Origin("module", "probe", {}, "tensorir.cli.probes")
    with Measurer(work, None, RunSpec()) as measurer:
        measurer.open()
        answer = measurer.check("only", {})
    wrong = [c for c in answer.checks if not c.ok]
    detail = "compiled, run and checked" if not wrong else f"{wrong[0].name}: {wrong[0].detail}"
    return [Finding("kernel", answer.ok, detail, "another OpenCL runtime, or --device")]


def find_cuda() -> list[Finding]:
    """Findings on compiling a CUDA kernel with NVRTC and on disassembling it with nvdisasm; no GPU is needed."""
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


def find_search() -> list[Finding]:
    """A Finding on scikit-optimize, which the default search strategy needs."""
    reason = missing()
    if reason:
        return [Finding("scikit-optimize", None, f"{reason}; 'climb' searches instead", "pip install scikit-optimize")]
    return [Finding("scikit-optimize", True, version("scikit-optimize"))]


def find_cache() -> list[Finding]:
    """A Finding on the cache of compiled kernels: its folder, number of entries and size."""
    try:
        found = stat()
    except TensorIRError as error:
        return [Finding("cache", False, error.problems[0].message, error.problems[0].hint)]
    where = found.directory or "in memory only"
    return [
        Finding("cache", bool(found.directory) or None, f"{where}: {found.entries} entries, {found.bytes / 1e6:.1f} MB")
    ]


def find_pocl() -> list[Finding]:
    """A Finding on the compilation cache of PoCL, an OpenCL runtime: False for damaged files, None without files."""
    folder = pocl_cache()
    files = list(pocl_files(folder))
    if bad := [path for path, whole in files if not whole]:
        detail = f"{len(bad)} of {len(files)} files are damaged, and PoCL ends the process that meets one: {bad[0]}"
        return [Finding("PoCL's cache", False, detail, f"rm -r {shlex.quote(str(folder))}")]
    return [Finding("PoCL's cache", True if files else None, f"{folder}: {len(files)} files")]


def probe() -> Workload:
    """Test workload ``B[i] = A[i] * 2 + 1``."""
    A = placeholder((37,), name="A")
    B = compute((37,), lambda i: A[i] * 2 + 1, name="B")
    return Workload("probe", B, {"only": (_split, Space())})


def _split(s: Any, config: Any) -> None:
    s.split("B.i", [None, 8])
