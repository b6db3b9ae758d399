"""Detects this machine's CPU features and cores."""

from __future__ import annotations

import contextlib
import math
import os
import platform
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tensorir.codegen.source import AVX512
from tensorir.target import Target

CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_CORES = Path("/sys/devices/system/cpu")


@cache
def has_avx512() -> bool:
    """True if the CPU has AVX-512 (64-byte vectors)."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return flags_here() >= set(AVX512)


def flags_here() -> set[str]:
    """CPU feature flags as the system names them; empty if unknown."""
    lines = CPUINFO.read_text(encoding="ascii", errors="replace").splitlines() if CPUINFO.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def as_here(target: Target) -> Target:
    """A CPU target with this machine's vector registers."""
    return replace(target, registers=32, vector_bytes=64) if has_avx512() else target


def target_here(given: str | Target) -> Target:
    """Target for ``given`` on this machine: plain ``"c"`` and ``"opencl"`` get this CPU's vector registers and cores.

    Schedules for it are then those that its devices here are tuned with. Other drivers than PoCL vectorize themselves,
    and their devices report 16 registers of 32 bytes.
    """
    plain = isinstance(given, str) and set(given.split()) <= {"c", "opencl", "-kind=cpu"}
    target = Target.parse(given)
    return replace(as_here(target), units=cores(), here=True) if plain else target


def cores() -> int:
    """Number of CPU cores usable by this process (affinity, container quota)."""
    may = len(_usable())
    return max(1, may if (most := _quota()) is None else min(may, math.ceil(most)))


def _usable() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def caches_here() -> tuple[int, ...]:
    """Bytes of a core's own data caches, L1 and L2; () if the system does not say, or not the same of all cores that
    this process may use.

    For people: rules read the table of ``Machine``, so that a target is scheduled alike on every machine.
    """
    found = {_caches(_CORES / f"cpu{n}" / "cache") for n in _usable()}
    return found.pop() if len(found) == 1 else ()


def _caches(folder: Path) -> tuple[int, ...]:
    units, found = {"K": 1 << 10, "M": 1 << 20}, dict[int, int]()
    with contextlib.suppress(OSError, ValueError, KeyError):
        for index in sorted(folder.glob("index*")):
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind in ("Data", "Unified") and int(level) <= 2:
                found[int(level)] = int(size[:-1]) * units[size[-1]]
        return tuple(found[level] for level in sorted(found))
    return ()


def memory_here() -> int:
    """Bytes of memory that are free, or that the control group leaves; 0 if the system does not say."""
    found = list[int]()
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        found.append(int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) << 10)
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        most, used = ((_CONTROL_GROUPS / f"memory.{n}").read_text() for n in ("max", "current"))
        found.append(int(most) - int(used))
    return max(0, min(found, default=0))


def _quota() -> float | None:
    """CPU quota of the control group (v2 or v1) in cores; None if unlimited."""
    with contextlib.suppress(OSError, ValueError):  # "max 100000": no limit
        quota, period = (_CONTROL_GROUPS / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = ((_CONTROL_GROUPS / "cpu" / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None  # -1: no limit
    return None


def name_processor(device: Any) -> None:
    """Give PoCL a processor known to its compiler, for a machine younger than its LLVM.

    LLVM 14 calls AMD's since Zen 5 "generic", and Clang refuses that. PoCL keeps it after the triple in the device.
    """
    flags, modern = flags_here(), {"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
    kin = b"x86-64" if not flags >= modern else b"znver3" if "sse4a" in flags else b"haswell"
    if "portable computing" not in device.platform.name.lower():
        return
    with contextlib.suppress(OSError), open("/proc/self/mem", "r+b", buffering=0) as memory:

        def read(address: int, count: int) -> bytes:
            with contextlib.suppress(OSError, OverflowError):  # no pointer
                return os.pread(memory.fileno(), count, address)
            return b""

        for triple, name in pairwise(memoryview(read(device.int_ptr, 2048)).cast("Q")):
            if read(triple, 7) == b"x86_64-" and read(name, 8) == b"generic\0":
                os.pwrite(memory.fileno(), kin + b"\0", name)
