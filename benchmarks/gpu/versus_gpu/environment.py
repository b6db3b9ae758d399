"""What the figures of a GPU depend on."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
from typing import Any

_ASKED = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "temperature.gpu")


def gpu_environment() -> dict[str, Any]:
    """Device, driver and versions; what cannot be found out is left out."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    versions = {name: _version(name) for name in ("numpy", "torch", "cupy", "triton")}
    found = {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nvrtc": _nvrtc(),
        "nvidia_smi": _nvidia_smi(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **versions,
    }
    return {name: value for name, value in found.items() if value not in (None, "", {})}


def _version(name: str) -> str:
    try:
        return str(importlib.import_module(name).__version__)
    except Exception:  # not installed, or broken: then it does not matter which it is
        return ""


def _nvrtc() -> str:
    from tensorir.runtime.cuda import nvrtc_version

    try:
        return nvrtc_version()
    except Exception:  # said where it is needed
        return ""


def _nvidia_smi() -> dict[str, str]:
    """Clocks in MHz, power in W, where the tool is installed."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_ASKED, (part.strip() for part in done.stdout.split(",")), strict=False))
