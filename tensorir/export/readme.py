"""Generates the README of an exported folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorir.export.bodies import BODIES

_UNTRIED = (
    "\n**Not yet run on a GPU**: this text was compiled for CUDA, but no GPU was at hand when the loader was written.\n"
)
_ABOUT_MAPS = """### Tensor maps

These arguments are a `CUtensorMap` each, by value: an array, and the box of it that a kernel copies at once. A map
holds the address: another array needs another map. `tensor_maps.py` makes them. From another language:

* compile for sm_90a on Hopper (`loader.py` does so from CUDA 13 on)
* call `cuTensorMapEncodeTiled` with the address, extents, strides, boxes and element strides (steps), these four
  innermost first: the array is row-major and contiguous, no interleave, L2 promotion of 256 bytes, zeros out of range
* where a row has corners (lower to upper, of rows and columns): call `cuTensorMapEncodeIm2col` with them, columns
  first, and with the box as pixels per column x channels per pixel
* where `cuDriverGetVersion` gives 13010 or less and the shape has fewer than 131072 bytes, clear bit 21 of the second
  64-bit word of the map

| kernel | argument | array | dtype | shape | box | steps | swizzle in bytes | corners |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""

_ABOUT_ARRAYS = """\
Arrays are row-major and contiguous. `workspace` is memory that the caller provides and need not fill. The Python loader
copies NumPy arrays to the device in each call, strided ones by way of a contiguous copy; arrays on the device are used
where they are, and refused where their strides or alignment do not fit."""
_ABOUT_SIZES = "OpenCL's global size is blocks x threads, its local size is threads.\n"
_ARGUMENTS = """\
| name | dtype | shape | role | alignment in bytes |
| --- | --- | --- | --- | --- |"""
_LAUNCHES = """\
| kernel | arguments | blocks (x, y, z) | threads (x, y, z) | shared bytes | runs |
| --- | --- | --- | --- | --- | --- |"""


def readme(m: dict[str, Any], package: str | None, uses: Sequence[str] = ()) -> str:
    """Markdown text of a folder's README.

    m: the manifest;  package: name by which Python imports the folder, or None;  uses: sections from destinations
    """
    results = [p for p in m["arguments"] if p["role"] == "output"]
    return f"""# {_plain(m["name"])}

`{m["source"]}` computes {_signatures(m)}. Written by {m["made_by"]}, which is not needed here.
{_untried(m)}
## Use

Python, with {_needs(m)}:

{_import(package, "loader", "Program")}
    {", ".join(p["name"] for p in results)} = program({_names(m)})
{_another(package, "loader", "Program")}
{_prepack(m)}
`python selftest.py` runs it on this machine and compares it with a reference (exit status 0 and `selftest ok`).
From another language: compile `{m["source"]}` with {" ".join(m["options"])}, and launch as below.{_wide(m)}
{_uses(uses)}{_images(m)}
## Arguments

{_ABOUT_ARRAYS}

{_arguments(m)}
{_assumed(m)}{_maps(m)}
## Launches, in this order

{_launches(m)}

{_ABOUT_SIZES if m["language"] == "opencl" else ""}
## Schedule

{_schedule(m)}
{"".join(_body(m | body, package) for body in m.get("bodies", {}).values())}"""


def _untried(m: dict[str, Any]) -> str:
    return _UNTRIED if "cuda" in (m["language"], m.get("host")) else ""


def set_readme(m: dict[str, Any], package: str | None, uses: Sequence[str] = ()) -> str:
    """Markdown text of the README of a folder with several shapes."""
    programs = m["programs"]
    first = programs[0]
    called = ", ".join(f"{name}={value!r}" for name, value in _asked(m, first).items())
    shapes = "\n".join(_shape(m, n, p) for n, p in enumerate(programs))
    fixed = " ".join(f"{_plain(name)}={_plain(str(value))}" for name, value in m["fixed"].items())
    few = "the fewest" if m["exact"] else "perhaps not the fewest,"
    return f"""# {_plain(m["name"])}: {len(programs)} shapes

{len({p["kernel"] for p in programs})} kernels (templates and configurations), {few} with which each shape was found
within {m["regret"]:.1%} of its best. Extents are compiled in, so that each shape has a source of its own.
Written by {m["made_by"]}, which is not needed here.
{_untried(m)}
## Use

Python, with {_needs(m)}:

{_import(package, "dispatch", "Programs")}
    program = programs({called})  # compiled when first asked for, then kept
    {", ".join(p["name"] for p in first["arguments"] if p["role"] == "output")} = program({_names(first)})
{_another(package, "dispatch", "Programs")}
For a shape that is not below this raises ValueError, which says what kernel the decision tree has for it: the template
and configuration to make it by. `choose.py` alone gives these, `choose.c` (`tensorir_choose`) their number in
`kernels.json`.

`python selftest.py` runs every shape by way of the choice on this machine and compares it with a reference (exit status
0 and `selftest ok`). From another language: `program.c` (`tensorir_program`) gives the number of a shape's program
below; compile its source with {" ".join(first["options"])}, and launch as its section says.{_wide(m)}
{_uses(uses)}
## Shapes

Times are those of {_plain(str(m["device"].get("name")))}, where the kernels were chosen.
{fixed and f"All have {fixed}."}

| program | parameters | kernel | source | ms | over its best |
| --- | --- | --- | --- | --- | --- |
{shapes}

{_ABOUT_ARRAYS}
{_ABOUT_SIZES if m["language"] == "opencl" else ""}
{"".join(_section(n, p) for n, p in enumerate(programs))}"""


def _needs(m: dict[str, Any]) -> str:
    return " and ".join(["numpy", *BODIES[m["language"]].needs])


def _uses(uses: Sequence[str]) -> str:
    return "".join(f"\n{use.strip()}\n" for use in uses)


def _images(m: dict[str, Any]) -> str:
    """Paragraph on precompiled CUDA images; "" if the folder has none."""
    about = m.get("cuda")
    if about is None:
        return ""
    rows = "\n".join(f"| `{i['file']}` | {i['kind']} | {i['arch']} | {i['program']} |" for i in about["images"])
    words = [
        "The loader takes the image of the device's own architecture, else the newest PTX that is not above it, else"
    ]
    words.append("compiles the text (`cuda_images.py` is the rule).")
    if "portable" in about:
        words.append(f"The portable program, `{about['portable']['source']}`, runs where the tuned one does not; its")
        words.append('launches are in `manifest.json` under `["cuda"]["portable"]`.')
    if "missing" in about:
        words.append(f"There is no image for other architectures: {_plain(about['missing'])}.")
    return (
        "\n## Images\n\n"
        + "\n".join(words)
        + f"""

| file | kind | architecture | program |
| --- | --- | --- | --- |
{rows}
"""
    )


def _body(m: dict[str, Any], package: str | None) -> str:
    """README section on the same program in one more of the export's languages.

    m: the manifest, with that language's entries;  package: name by which Python imports the folder, or None
    """
    module = f"loader_{m['language']}"
    return f"""
## In {BODIES[m["language"]].title}: `{m["source"]}`
{_untried(m)}
Python, with {_needs(m)}, otherwise as above:

{_import(package, module, "Program", module)}

Compile it with {" ".join(m["options"])}.

{_arguments(m)}
{_assumed(m)}{_maps(m)}
{_launches(m)}

{_trace(m)}
"""


def _import(package: str | None, module: str, name: str, inside: str = "") -> str:
    """Python lines that import the class ``name`` and call it.

    inside: submodule of the package that has the class; "": the package itself
    """
    made = f"    {name.lower()} = "
    if package is None:
        return f'    import sys; sys.path.insert(0, "this folder")\n    from {module} import {name}\n{made}{name}()'
    where = "the folder that holds this one" if "." not in package else "the folder two above this one"
    package = f"{package}.{inside}" if inside else package
    return f'    import sys; sys.path.insert(0, "{where}")\n    import {package}\n{made}{package}.{name}()'


def _another(package: str | None, module: str, name: str) -> str:
    """Paragraph with another way to import the class; "" if the folder is no package."""
    if package is None:
        return ""
    return f"\n`from {module} import {name}` does as well, with this folder itself first on `sys.path`.\n"


def _asked(m: dict[str, Any], p: dict[str, Any]) -> dict[str, Any]:
    """Parameters of program ``p`` that differ between the folder's shapes: {name: value}."""
    return {name: value for name, value in p["parameters"].items() if name not in m["fixed"]}


def _shape(m: dict[str, Any], n: int, p: dict[str, Any]) -> str:
    said = " ".join(f"{_plain(name)}={_plain(str(value))}" for name, value in _asked(m, p).items())
    return f"| {n} | {said} | {p['kernel']} | `{p['source']}` | {p['time_s'] * 1e3:.4g} | {p['regret']:.1%} |"


def _section(n: int, p: dict[str, Any]) -> str:
    """README section on program number ``n`` of several."""
    return f"""
## Program {n}: `{p["source"]}`

Computes {_signatures(p)}.
{_prepack(p)}
{_arguments(p)}
{_assumed(p)}{_maps(p)}
{_launches(p)}

{_trace(p)}
"""


def _signatures(m: dict[str, Any]) -> str:
    results = [p for p in m["arguments"] if p["role"] == "output"]
    given = [p for p in m["arguments"] if p["role"] in ("input", "scalar")]
    ranges = "".join(f", where `{d['name']}` is {d['low']} to {d['high']}" for d in m.get("dims", ()))
    return f"{', '.join(map(_signature, results))}\nfrom {', '.join(map(_signature, given)) or 'nothing'}{ranges}"


def _names(m: dict[str, Any]) -> str:
    return ", ".join(p["name"] for p in m["arguments"] if p["role"] in ("input", "scalar"))


def _arguments(m: dict[str, Any]) -> str:
    return "\n".join([_ARGUMENTS, *map(_row, m["arguments"])])


def _launches(m: dict[str, Any]) -> str:
    rows = (
        f"| `{k['name']}` | {', '.join(k['args'])} | {tuple(k['grid'])} | {tuple(k['block'])} | {k['shared_bytes']} | "
        f"{'once' if k['once'] else 'each'} |"
        for k in m["kernels"]
    )
    return "\n".join([_LAUNCHES, *rows])


def _schedule(m: dict[str, Any]) -> str:
    """Sentence on where the schedule's steps are, or that there are none."""
    return "Its steps are `trace` in `manifest.json`." if m["trace"] else "None: as declared."


def _trace(m: dict[str, Any]) -> str:
    return "\n".join(f"    {line}" for line in m["trace"]) or "    (none: as declared)"


def _assumed(m: dict[str, Any]) -> str:
    """Paragraph on assumptions of the kernels: alignments are checked by the loader, bounds are trusted; "" without
    any.
    """
    rows = []
    for a in m["assumed"]:
        low = f"{a['low']} <= " if "low" in a else ""
        high = f" < {a['high']}" if "high" in a else ""
        rows += [f"* `{_plain(a['param'])}` starts at a multiple of {a['align']} bytes"] if "align" in a else []
        rows += [f"* {low}each element of `{_plain(a['param'])}`{high}, which nothing checks"] if low or high else []
    return "\n".join(["", "The kernels rely on:", "", *rows, ""]) if rows else ""


def _maps(m: dict[str, Any]) -> str:
    """Paragraph and table with facts to encode the kernels' tensor maps from other languages; "" without tensor
    maps.
    """
    maps = [(k["name"], t) for k in m["kernels"] for t in k["maps"]]
    if not maps:
        return ""
    rows = [
        f"| `{kernel}` | `{t['name']}` | `{_plain(t['array'])}` | {t['dtype']} | {_times(t['shape'])} | "
        f"{_times(t['box'])} | {_times(t['steps'] or [1] * len(t['box']))} | {t['swizzle'] or 'none'} |{_corners(t)} |"
        for kernel, t in maps
    ]
    return "\n".join(["", _ABOUT_MAPS, *rows, ""])


def _corners(t: dict[str, Any]) -> str:
    if not t["lower"]:
        return ""
    lower, upper = (", ".join(map(str, t[corner])) for corner in ("lower", "upper"))
    return f" {lower} to {upper}"


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
    dtype = f"{p['dtype']}, passed as {p['passed_as']}" if "passed_as" in p else p["dtype"]
    return f"| `{_plain(p['name'])}` | {dtype} | {shape} | {p['role']} | {p['align']} |"
