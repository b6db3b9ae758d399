"""The README of an exported folder."""

from __future__ import annotations

from typing import Any

_NEEDS = {"opencl": "numpy and pyopencl", "cuda": "numpy and cupy"}
_UNTRIED = (
    "\n**Not yet run on a GPU**: this text was compiled for CUDA, but no GPU was at hand when the loader was written.\n"
)
_ABOUT_MAPS = """### Tensor maps

These arguments are a `CUtensorMap` each, by value: an array, and the box of it that a kernel copies at once. A map
holds the address: another array needs another map. `tensor_maps.py` makes them. From another language:

* compile for sm_90a on Hopper (`loader.py` does so from CUDA 13 on)
* call `cuTensorMapEncodeTiled` with the address, extents, strides and boxes, these three innermost first: the array is
  row-major and contiguous, element strides are 1, no interleave, L2 promotion of 256 bytes, zeros out of range
* where `cuDriverGetVersion` gives 13010 or less and the shape has fewer than 131072 bytes, clear bit 21 of the second
  64-bit word of the map

| kernel | argument | array | dtype | shape | box | swizzle in bytes |
| --- | --- | --- | --- | --- | --- | --- |"""


def readme(m: dict[str, Any]) -> str:
    """What the folder holds and how to use it, as Markdown."""
    given = [p for p in m["arguments"] if p["role"] in ("input", "scalar")]
    results = [p for p in m["arguments"] if p["role"] == "output"]
    names = ", ".join(p["name"] for p in given)
    rows = "\n".join(_row(p) for p in m["arguments"])
    launches = "\n".join(
        f"| `{k['name']}` | {', '.join(k['args'])} | {tuple(k['grid'])} | {tuple(k['block'])} | {k['shared_bytes']} | "
        f"{'once' if k['once'] else 'each'} |"
        for k in m["kernels"]
    )
    trace = "\n".join(f"    {line}" for line in m["trace"]) or "    (none: as declared)"
    return f"""# {_plain(m["name"])}

`{m["source"]}` computes {", ".join(_signature(p) for p in results)}
from {", ".join(_signature(p) for p in given) or "nothing"}. Written by {m["made_by"]}, which is not needed here.
{_UNTRIED if m["language"] == "cuda" else ""}
## Use

Python, with {_NEEDS[m["language"]]}:

    import sys; sys.path.insert(0, "this folder")
    from loader import Program
    program = Program()
    {", ".join(p["name"] for p in results)} = program({names})
{_prepack(m)}
`python selftest.py` runs it on this machine and compares it with a reference (exit status 0 and `selftest ok`).
From another language: compile `{m["source"]}` with {" ".join(m["options"])}, and launch as below.{_wide(m)}

## Arguments

Arrays are row-major and contiguous. `workspace` is memory that the caller provides and need not fill.

| name | dtype | shape | role | alignment in bytes |
| --- | --- | --- | --- | --- |
{rows}
{_assumed(m)}{_maps(m)}
## Launches, in this order

| kernel | arguments | blocks (x, y, z) | threads (x, y, z) | shared bytes | runs |
| --- | --- | --- | --- | --- | --- |
{launches}

OpenCL's global size is blocks x threads, its local size is threads.

## Schedule

{trace}
"""


def _assumed(m: dict[str, Any]) -> str:
    """What the caller must see to; the loader checks alignments and trusts bounds."""
    rows = []
    for a in m["assumed"]:
        low = f"{a['low']} <= " if "low" in a else ""
        high = f" < {a['high']}" if "high" in a else ""
        rows += [f"* `{_plain(a['param'])}` starts at a multiple of {a['align']} bytes"] if "align" in a else []
        rows += [f"* {low}each element of `{_plain(a['param'])}`{high}, which nothing checks"] if low or high else []
    return "\n".join(["", "The kernels rely on:", "", *rows, ""]) if rows else ""


def _maps(m: dict[str, Any]) -> str:
    """How another language makes the tensor maps that kernels take."""
    maps = [(k["name"], t) for k in m["kernels"] for t in k["maps"]]
    if not maps:
        return ""
    rows = [
        f"| `{kernel}` | `{t['name']}` | `{_plain(t['array'])}` | {t['dtype']} | {_times(t['shape'])} | "
        f"{_times(t['box'])} | {t['swizzle'] or 'none'} |"
        for kernel, t in maps
    ]
    return "\n".join(["", _ABOUT_MAPS, *rows, ""])


def _wide(m: dict[str, Any]) -> str:
    if m["language"] != "opencl" or m["kind"] != "cpu":
        return ""
    return "\nOn an x86 processor with AVX-512, `-DTENSORIR_AVX512` lets PoCL use it in kernels made for it."


def _prepack(m: dict[str, Any]) -> str:
    if not m["prepack"]:
        return ""
    held = [p["name"] for p in m["arguments"] if p["name"] in m["prepack"] and p["role"] == "constant"]
    free = [n for n in m["prepack"] if n not in held]
    words = ["", "Kernels marked `once` below depend on a part of the arguments only."]
    if held:
        words.append(f"With {_named(held)} as shipped here they run when the program is made.")
    if free:
        words.append(f"Without more said they run in every call that is given {_named(free)}.")
    fixed = ", ".join(f"{_plain(n)}={_plain(n)}" for n in m["prepack"])
    words.append(f"`program.prepack({fixed})` runs them now, on arrays of yours, for a program that takes the others.")
    return "\n".join(words) + "\n"


def _named(names: list[str]) -> str:
    return ", ".join(f"`{_plain(n)}`" for n in names)


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable() and c not in "`|<>")[:200]


def _times(extents: list[int]) -> str:
    return "x".join(map(str, extents))


def _signature(p: dict[str, Any]) -> str:
    return f"`{_plain(p['name'])}` ({p['dtype']}, {'x'.join(map(str, p['shape'])) or 'a number'})"


def _row(p: dict[str, Any]) -> str:
    shape = "x".join(map(str, p["shape"])) or "-"
    return f"| `{_plain(p['name'])}` | {p['dtype']} | {shape} | {p['role']} | {p['align']} |"
