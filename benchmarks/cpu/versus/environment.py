"""What the figures depend on."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")


def environment() -> dict[str, Any]:
    """Machine, system and time; versions of libraries come from the processes that use them."""
    about = _read("/proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", about, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", about, re.MULTILINE)
    has = set(flags[1].split()) if flags else set()
    return {
        "started": now(),
        "cpu": name[1] if name else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "flags": [f for f in _FLAGS if f in has],
        "system": platform.platform(),
        "commit": _commit(),
        "load": list(os.getloadavg()),
        "stolen_s": stolen(),
    }


def now() -> str:
    """The time in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def stolen() -> float:
    """Seconds that the host has taken from this machine's cores since it started (0 where it does not tell)."""
    fields = _read("/proc/stat").split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def _commit() -> str:
    here = str(Path(__file__).parent)
    try:
        done = subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
