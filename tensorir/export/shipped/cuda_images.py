"""Selects a CUDA image for a device; plain data, shared by all loaders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

TUNED, PORTABLE = "tuned", "portable"


def number(arch: str) -> tuple[int, str]:
    """(90, "a") for "sm_90a" or "compute_90a"."""
    found = re.fullmatch(r"(?:sm|compute)_(\d+)([af]?)", arch)
    if found is None:
        raise ValueError(f"{arch!r} is no CUDA architecture")
    return int(found[1]), found[2]


def runs(arch: str, device: tuple[int, int]) -> bool:
    """True if text or PTX for ``arch`` runs on the compute capability ``device``: that or later, exactly that for
    suffix "a".
    """
    least, special = number(arch)
    own = 10 * device[0] + device[1]
    return own == least if special else own >= least


def order(
    images: Sequence[Mapping[str, Any]], texts: Mapping[str, str], device: tuple[int, int]
) -> list[tuple[str, Mapping[str, Any] | None]]:
    """[(program, image, or None for its text)] to try, the best first; RuntimeError if nothing runs.

    images: {"kind": "cubin" or "ptx", "arch", "file", "program"}
    texts:  architecture that each program's text was made for, "tuned" first
    device: compute capability, major and minor

    Order: the exact cubin, the newest PTX not above the device, the text; the tuned program before the portable one;
    architecture-specific code (sm_90a) before generic code.
    """
    own = 10 * device[0] + device[1]
    rank = {program: n for n, program in enumerate(texts)}
    cubins = [i for i in images if i["kind"] == "cubin" and number(i["arch"])[0] == own]
    cubins.sort(key=lambda i: (rank[i["program"]], not number(i["arch"])[1]))
    ptx = [i for i in images if i["kind"] == "ptx" and runs(i["arch"], device)]
    ptx.sort(key=lambda i: (-number(i["arch"])[0], rank[i["program"]], not number(i["arch"])[1]))
    plain = [(program, None) for program, arch in texts.items() if runs(arch, device)]
    found: list[tuple[str, Mapping[str, Any] | None]] = [(i["program"], i) for i in (*cubins[:1], *ptx[:1])]
    found += plain[:1]
    if not found:
        have = ", ".join(dict.fromkeys(texts.values()))
        raise RuntimeError(f"this program was made for {have}, the device is sm_{own}")
    return found
