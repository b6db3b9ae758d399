"""What the processor of this machine can do."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

from tensorir.codegen.dialect import AVX512

_CPUINFO = Path("/proc/cpuinfo")


@cache
def has_avx512() -> bool:
    """Whether its vectors have 64 bytes: an x86 processor with AVX-512, as far as the system says so."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        with _CPUINFO.open(encoding="ascii", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return set(flags.split()) >= set(AVX512)
