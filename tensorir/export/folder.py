"""Writes exported folders: sources, manifest, loaders, bindings, self-test and README."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files as resources
from math import prod
from pathlib import Path
from typing import Any

from tensorir._package import PACKAGE_VERSION
from tensorir.check.different import values_apart
from tensorir.codec import encode, small_file
from tensorir.codegen.names import identifier
from tensorir.codegen.source import Assumed, Param, Source
from tensorir.errors import TensorIRError, refuse
from tensorir.errors.needs import need_path
from tensorir.export.bodies import BODIES, file_name, shipped_module
from tensorir.export.c_header import each_time
from tensorir.export.c_host import codes
from tensorir.export.destination import Made, OperatorName, Shipment
from tensorir.export.destinations import DESTINATIONS
from tensorir.export.evidence import Evidence, gather
from tensorir.export.images import Images, architectures, compiled
from tensorir.export.options import (
    FORMAT,
    MAX_MANIFEST,
    destinations,
    existing,
    operator,
    package_of,
    programs,
    refuse_sets,
)
from tensorir.export.program import ExportError, ExportProgram
from tensorir.export.readme import readme, set_readme
from tensorir.export.shipped import build
from tensorir.expr.program import computes_of, dims_of, inputs_of
from tensorir.expr.tensor import Tensor
from tensorir.ir.dims import at
from tensorir.ir.dtypes import WIDENED
from tensorir.ir.tree import Var
from tensorir.tune.dispatch import Dispatch, Leaf
from tensorir.tune.dispatch_text import c_text


def export(
    source: Source,
    path: str | Path,
    to: str | Sequence[str],
    trace: str = "",
    *,
    outputs: Sequence[Tensor] = (),
    reference: Callable[..., object] | None = None,
    kind: str = "",
    about: Mapping[str, object] | None = None,
    max_error: float | None = None,
    name: str | None = None,
) -> Path:
    """Write ``source`` and everything needed to run and test it into the folder ``path``; return the folder.

    to:     names of destinations, see ``DESTINATIONS``; a single one may be a string
    name:   as for ``export_part``
    others: see ``ExportProgram``

    Raises as ``export_part``.
    """
    return export_part(
        ExportProgram(source, outputs, reference, trace, kind, about or {}, max_error), path, to, name=name
    )


def export_part(
    part: ExportProgram,
    path: str | Path,
    to: str | Sequence[str],
    *,
    name: str | None = None,
    others: Mapping[str, ExportProgram] | None = None,
    arch: Sequence[str] = (),
    backward: Mapping[str, ExportProgram] | None = None,
    batched: Sequence[ExportProgram] = (),
) -> Path:
    """Write ``part`` and everything needed to run and test it into the folder ``path``; return the folder.

    name:     ``NS::NAME`` of the operator, if a destination registers one; None: the folder's name
    others:   {language: program of the same computation}; languages missing there are lowered from ``part``
    arch:     CUDA architectures to compile images for, see ``images``
    backward: {input: program for its gradient}, each exported to a subfolder; see ``gradients``
    batched:  programs that compute several calls at once, each exported to a subfolder; see ``batches``

    Raises ExportError: ``export.destination``, ``export.name``, ``export.language``, ``export.arch``,
    ``export.portable``, ``export.backward``, ``export.batched``, ``export.not-empty``, ``export.unwritable``,
    ``export.no-reference``, ``export.library``, ``export.dims``, ``argument.type``, ``argument.path``; and errors of
    lowering for a destination. Files of an earlier export there are replaced, other nonempty folders refused.
    """
    need_path("path", path, ExportError)
    to = destinations(to)
    called = operator(name, path)
    asked = architectures(arch)
    needed = {language: replace(p, source=each_time(p.source)) for language, p in programs(part, to, others).items()}
    carried = [p for p in needed.values() if p.source.language == "cuda"]
    if asked and not carried:
        message = f"arch is about CUDA kernels, and none of {', '.join(to)} has one here"
        raise refuse(ExportError, "export.arch", message, hint='a schedule with target="cuda", or to without arch')
    derived, several = gradients(part.source, to, backward or {}), batches(part.source, to, batched)

    def content() -> dict[str, bytes]:
        images = compiled(carried[0], asked) if asked else None
        parts = {language: replace(p, images=images or p.images) if p.hosted else p for language, p in needed.items()}
        first = next(iter(parts.values()))
        evidence = _Evidence(first, sources=[p.source for p in parts.values()])
        manifest, files = _program(first, called.name, evidence)
        manifest = {**_head(part.source.name, to, called), **manifest}
        bodies, own = _bodies(parts, manifest, called.name, evidence)
        manifest, files = manifest | bodies, files | own
        if images is not None:
            manifest["cuda"], own = _images(replace(carried[0], hosted=False), images, called.name, evidence)
            files |= own
        manifest |= {"backward": backward_entries(to, derived)} if derived else {}
        manifest |= {"batched": batched_entries(to, several)} if several else {}
        shipment = Shipment(called, parts, manifest, package_of(Path(path)), to, evidence.whole)
        return _complete(shipment, manifest, files | evidence.files)

    stale = earlier(Path(path))
    written = _export(path, list(needed.values()), content)
    inner: dict[str, tuple[Mapping[str, ExportProgram], Sequence[str]]]
    inner = {folder_of(of): (made, differentiating(to)) for of, made in derived.items()}
    inner |= {name: (made.programs, mapping_targets(to)) for name, made in several.items()}
    for name_of, (made, which) in inner.items():
        _inside(made, written / name_of, which, f"{called}_{name_of}", asked)
    for old in stale:
        if old.name not in inner:
            remove(old)
    return written


def _bodies(
    parts: Mapping[str, ExportProgram], manifest: Mapping[str, Any], called: str, evidence: _Evidence
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """({"bodies": {language: manifest entry}}, files) of the programs after the first."""
    bodies, files = {}, dict[str, bytes]()
    for language, p in list(parts.items())[1:]:
        about, own = _program(p, called, evidence, constants=f"{language}_")
        bodies[language] = {key: value for key, value in about.items() if key in _OWN or value != manifest.get(key)}
        files |= own
    return {"bodies": bodies} if bodies else {}, files


def _inside(made: Mapping[str, ExportProgram], place: Path, to: Sequence[str], name: str, asked: Sequence[str]) -> None:
    """Export an auxiliary kernel (gradient or batch) to the subfolder ``place``, in each language of ``made``."""
    arch = asked if "cuda" in made else ()
    export_part(next(iter(made.values())), place, to, name=name, others=made, arch=arch)


MANIFEST_LINE = 120
"""Characters of a line of the manifest within which a value is written whole."""
_OWN = ("language", "source", "sources", "options", "arguments", "kernels")
"""Fields that a body always has; the rest where it is not as in the first one."""


def _images(
    part: ExportProgram, made: Images, called: str, evidence: _Evidence
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(``manifest["cuda"]``, files {name: content}) of precompiled images and the portable program."""
    stem = Path(file_name(part.source)).stem
    files = {f"{stem}_{i.arch}.{i.kind}": i.data for i in made.images}
    entry: dict[str, Any] = {"images": [i.entry(f"{stem}_{i.arch}.{i.kind}") for i in made.images]}
    if made.portable is not None:
        about, own = _program(made.portable, called, evidence, "portable_")
        entry["portable"] = about
        files |= own
    return entry | ({"missing": made.missing} if made.missing else {}), files


def export_set(
    parts: Sequence[ExportProgram],
    path: str | Path,
    to: str | Sequence[str],
    *,
    name: str,
    dispatch: Dispatch,
    files: Mapping[str, str],
    about: Mapping[str, object] | None = None,
) -> Path:
    """Write the programs of several shapes, and the choice among them, into the folder ``path``; return the folder.

    parts:    one for each shape of ``dispatch``, in its order, all of one language
    name:     of the operator
    dispatch: which kernel each shape has
    files:    ``choose.py`` and other files with the choice as code or data
    about:    further manifest entries

    Extents are compiled in, so that every shape has its own program even if shapes share a kernel's configuration.
    ``dispatch.py`` gives the program of a shape in Python, ``program.c`` its number in C. Raises as ``export``, and
    ``export.set`` for destinations that take one shape.
    """
    need_path("path", path, ExportError)
    to = destinations(to)
    refuse_sets(to)
    for one in to:
        for part in parts:
            if dims := ", ".join(d.name for d in part.source.dims):
                message = (
                    f"a set of shapes has no place for extents known at launch, such as {dims} of {part.source.name}"
                )
                raise refuse(ExportError, "export.dims", message, hint="one folder: its kernels serve every extent")
            programs(part, [one])
    called = operator(None, path)

    def content() -> dict[str, bytes]:
        made = {file: text.encode("utf-8") for file, text in files.items()}
        rows = []
        for n, (part, shape, kernel) in enumerate(zip(parts, dispatch.shapes, dispatch.chosen, strict=True)):
            evidence = _Evidence(part, f"{n:02d}_", len(parts))
            manifest, own = _program(part, called.name, evidence, f"{n:02d}_")
            rows.append({"parameters": shape, "kernel": kernel, **manifest})
            made |= own | evidence.files
        first = rows[0]
        manifest = {**_head(name, to, called), "language": first["language"], "kind": first["kind"], **(about or {})}
        manifest |= {"fixed": dispatch.fixed, "programs": rows}
        made["dispatch.py"] = shipped_module("dispatch")
        numbers = Dispatch((), dispatch.shapes, tuple(range(len(parts))), Leaf(-1))
        says = ["Programs are those of manifest.json, in its order; -1 for a shape that has none."]
        made["program.c"] = c_text(numbers, "tensorir_program", says, of="program").encode("utf-8")
        held = {first["language"]: parts[0]}
        maps = any(k.maps for p in parts for k in p.source.kernels)
        shipment = Shipment(called, held, manifest, package_of(Path(path)), to, _Evidence(parts[0]).whole)
        return _complete(shipment, manifest, made, maps)

    return _export(path, parts, content)


def _export(path: str | Path, parts: Sequence[ExportProgram], content: Callable[[], dict[str, bytes]]) -> Path:
    """Write the files that ``content()`` returns into the folder and return it; an error before that leaves the folder
    unchanged. Raises ExportError ``export.no-reference``, ``export.not-empty`` or ``export.unwritable``.
    """
    folder = Path(path)
    if not all(p.outputs for p in parts):
        raise refuse(ExportError, "export.no-reference", "nothing to test against: pass the declared outputs")
    old = existing(folder)
    made = content()
    try:
        _write(folder, made, old)
    except OSError as error:
        words = error.strerror or type(error).__name__
        raise refuse(ExportError, "export.unwritable", f"cannot write {folder}: {words}") from None
    return folder


def _head(name: str, to: Sequence[str], called: OperatorName) -> dict[str, Any]:

    made = {"format": FORMAT, "version": 1, "made_by": f"tensorir {PACKAGE_VERSION}", "name": name}
    return {**made, "operator": str(called), "targets": list(to)}


class _Evidence:
    """The self-test's expected results by tolerance (``of``, ``whole``), computed once per tolerance, and their
    files.
    """

    def __init__(self, part: ExportProgram, label: str = "", share: int = 1, sources: Sequence[Source] = ()) -> None:
        self.part, self.label, self.share = part, label, share
        self.points = points(part.outputs, sources or [part.source])
        self.made: dict[float | None, Evidence] = {}

    def of(self, max_error: float | None) -> dict[str, Any]:
        return self.whole(max_error).manifest

    def whole(self, max_error: float | None) -> Evidence:
        if max_error not in self.made:
            label = self.label + (f"{len(self.made)}_" if self.made else "")
            self.made[max_error] = gather(
                self.part.outputs, self.part.reference, label, self.share, max_error, self.points
            )
        return self.made[max_error]

    @property
    def files(self) -> dict[str, bytes]:
        return {name: data for made in self.made.values() for name, data in made.files.items()}


def _program(
    part: ExportProgram, called: str, evidence: _Evidence, label: str = "", constants: str = ""
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(manifest entry, files {name: content}) of one program.

    label:     prefix of file names;  constants: prefix of constants' files
    """
    source, body = part.source, BODIES[part.language]
    own = {file_name(source): source.text.encode("utf-8")} if body.files is None else body.files(part, called)
    made = {label + name: data for name, data in own.items()}
    text = next(iter(made))
    whole = source.at({d.name: d.high for d in source.dims})
    held = [p for p in source.params if p.role == "constant"]
    files = {p.name: f"{label}{constants}constant_{n}.bin" for n, p in enumerate(held)}
    made |= {files[p.name]: p.data or b"" for p in held}
    manifest: dict[str, Any] = {
        "name": source.name,
        "language": part.language,
        **({"host": source.language, "errors": codes(source)} if part.hosted else {}),
        "kind": part.kind or ("gpu" if source.language == "cuda" else "cpu"),
        "source": text,
        "options": list(body.options),
        **({"arch": part.arch} if part.arch else {}),
        **({} if body.files is None else {"sources": [name for name in made if name.endswith((".c", ".h"))]}),
        "arguments": [_argument(p, files) for p in source.params],
        "kernels": [encode(replace(k, once=k.once and not part.hosted)) for k in source.kernels],
        "prepack": [p.name for p in source.prepackable],
        **({"dims": [encode(d) for d in source.dims]} if source.dims else {}),
        "workspace_bytes": 0 if part.hosted else whole.workspace_bytes,
        "gathers": [encode(g) for g in source.gathers],
        **({"unique": [encode(u) for u in source.unique]} if source.unique else {}),
        **({"segments": [encode(s) for s in source.segments]} if source.segments else {}),
        "assumed": [_assumed(a) for a in source.assumed],
        "trace": part.trace.splitlines(),
        "selftest": evidence.of(part.max_error),
        **part.about,
    }
    return manifest, made


def _complete(
    shipment: Shipment, manifest: dict[str, Any], files: Mapping[str, bytes], maps: bool = False
) -> dict[str, bytes]:
    """All files of the folder {name: content}, the manifest last.

    maps: True if kernels take tensor maps
    """
    shipped = resources("tensorir.export.shipped")
    made = dict(files)
    uses: list[str] = []
    linked: list[str] = []
    runners: dict[str, str] = {}
    loaders = {language: "loader" if n == 0 else f"loader_{language}" for n, language in enumerate(shipment.parts)}
    for name in shipment.targets:
        row = DESTINATIONS[name]
        added: Made = row.make(shipment)
        made |= added.files
        manifest |= {name: dict(added.entry)} if added.entry else {}
        uses += [added.use] if added.use else []
        linked += added.library
        runners[name] = row.runner or next(loaders[one] for one in shipment.parts if one in row.takes)
    manifest["runners"] = runners
    if linked:
        manifest["library"], own = _library(shipment, manifest, linked, made)
        made |= own
    made["README.md"] = (set_readme if "programs" in manifest else readme)(manifest, shipment.package, uses).encode()
    made["__init__.py"] = shipped.joinpath("package.py").read_bytes()
    made["common.py"] = shipped.joinpath("common.py").read_bytes()
    if manifest.get("dims"):
        made["extents.py"] = resources("tensorir.ir").joinpath("extents.py").read_bytes()
    for language, name in loaders.items():
        made[f"{name}.py"] = shipped_module(name, BODIES[language].loader)
    made["selftest.py"] = shipped.joinpath("selftest.py").read_bytes()
    if "c" in shipment.parts:
        made["build.py"] = shipped.joinpath("build.py").read_bytes()
    if "cuda" in shipment.parts:
        made["cuda_images.py"] = shipped.joinpath("cuda_images.py").read_bytes()
    if maps or any(k.maps for p in shipment.parts.values() for k in p.source.kernels):
        made["tensor_maps.py"] = resources("tensorir.runtime").joinpath("tensor_maps.py").read_bytes()
    manifest["files"] = {name: {"sha256": hashlib.sha256(data).hexdigest()} for name, data in made.items()}
    made["manifest.json"] = (_json(manifest) + "\n").encode("utf-8")
    return made


def _json(value: Any, indent: str = "") -> str:
    """JSON text of ``value`` for readers: values that fit are on one line."""
    short = json.dumps(value)
    if len(indent) + len(short) <= MANIFEST_LINE or not isinstance(value, dict | list | tuple) or not value:
        return short
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(str(k))}: {_json(v, inner)}" for k, v in value.items()]
    else:
        items = [_json(v, inner) for v in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + "\n" + inner + f",\n{inner}".join(items) + "\n" + indent + end


def _library(
    shipment: Shipment, manifest: Mapping[str, Any], linked: Sequence[str], made: Mapping[str, bytes]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(manifest entry, files) of the folder's shared library, compiled now if there is a C compiler, else without the
    file. Raises ExportError ``export.library`` if compilation fails.

    linked: names of bindings' files compiled with the program
    """
    program = manifest if manifest["language"] == "c" else manifest["bodies"]["c"]
    sources = {name: made[name] for name in (*program["sources"], *linked)}
    file = f"lib{shipment.operator.name}.so"
    command = build.compiler()
    try:
        own = {} if command is None else {file: build.compiled(command, sources)}
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        message = f"the folder's library cannot be made: {error}"[:600]
        raise refuse(ExportError, "export.library", message, hint="CC=clang, or another compiler") from None
    return {"file": file, "sources": list(sources), **({"host": program["host"]} if "host" in program else {})}, own


def _argument(p: Param, constants: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": p.name,
        "dtype": p.dtype,
        "shape": list(p.shape),
        "role": p.role,
        "layout": "row-major, contiguous",
        "align": p.align,
    }
    if p.role == "constant":
        made["file"] = constants[p.name]
    if p.role == "scalar" and p.dtype in WIDENED:
        made["passed_as"] = "float32"
    return made


def _assumed(a: Assumed) -> dict[str, Any]:
    said = {"align": a.align or None, "low": a.low, "high": a.high}
    return {"param": a.param, **{k: v for k, v in said.items() if v is not None}}


def _write(folder: Path, content: Mapping[str, bytes], old: Sequence[str]) -> None:
    """Write each file atomically, the manifest last; delete the files ``old`` of an earlier export that are not
    rewritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        number, scratch = tempfile.mkstemp(prefix=".new-", dir=folder)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
            os.chmod(scratch, 0o644)
            os.replace(scratch, folder / name)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
    for name in old:
        if name not in content:
            (folder / name).unlink(missing_ok=True)


# Kernels for the gradients of an exported one, and for several calls of it at once: a folder each, inside its own.


def gradients(
    source: Source, to: Sequence[str], backward: Mapping[str, ExportProgram]
) -> dict[str, dict[str, ExportProgram]]:
    """{input: {language: program}} of gradient kernels in the languages that differentiating destinations need; {}
    without ``backward``.

    Kernels take inputs and outputs of ``source`` by name, and the incoming gradient as ``d_<output>``. Raises
    ExportError ``export.backward`` for a kernel that does not fit, and errors of lowering.
    """
    if not backward:
        return {}
    which = differentiating(to)
    if not which:
        legal = ", ".join(name for name, row in DESTINATIONS.items() if row.gradients)
        raise _unfit(
            "export.backward", f"{', '.join(to)} cannot differentiate", f"without backward, or to one of {legal}"
        )
    floats = {p.name: p for p in source.inputs if p.role == "input" and "float" in p.dtype}
    for of, part in backward.items():
        if of not in floats:
            raise _unfit(
                "export.backward",
                f"there is no gradient of {of}: no such input, or none of floats",
                ", ".join(floats) or "none",
            )
        _check(source, of, part.source)
    return {of: programs(part, which) for of, part in backward.items()}


def differentiating(to: Sequence[str]) -> tuple[str, ...]:
    """Destinations in ``to`` that support gradients."""
    return tuple(name for name in to if DESTINATIONS[name].gradients)


def folder_of(of: str) -> str:
    """Subfolder name of input ``of``'s gradient kernel."""
    return f"backward_{identifier(of)}"


def backward_entries(to: Sequence[str], found: Mapping[str, Mapping[str, ExportProgram]]) -> dict[str, Any]:
    """``manifest["backward"]``: {input: its gradient kernel's subfolder, arguments and destinations}."""
    which = list(differentiating(to))
    return {
        of: {
            "folder": folder_of(of),
            "inputs": [p.name for p in next(iter(made.values())).source.inputs],
            "targets": which,
        }
        for of, made in found.items()
    }


def _check(source: Source, of: str, gradient: Source) -> None:
    """Raise ExportError ``export.backward`` unless the kernel ``gradient`` has fitting inputs and one output like input
    ``of``.
    """
    known = {f"d_{p.name}": p for p in source.outputs if "float" in p.dtype}
    known |= {p.name: p for p in (*source.outputs, *source.inputs)}
    what = f"the kernel for the gradient of {of}"
    for p in gradient.inputs:
        if p.name not in known:
            raise _unfit("export.backward", f"{what} takes {p.name}", f"its inputs are some of {', '.join(known)}")
        _check_alike(f"{what}: its {p.name}", p, known[p.name])
    if len(gradient.outputs) != 1:
        raise _unfit("export.backward", f"{what} has {len(gradient.outputs)} outputs", "one output")
    wanted = next(p for p in source.inputs if p.name == of)
    _check_alike(f"{what}: its output", gradient.outputs[0], wanted)


def _check_alike(what: str, p: Param, known: Param) -> None:
    if (p.dtype, p.shape) != (known.dtype, known.shape):
        said = f"{what} is {p.dtype}{list(p.shape)}"
        raise _unfit("export.backward", said, f"{known.dtype}{list(known.shape)}, as {known.name} is")


@dataclass(frozen=True)
class Batch:
    """A kernel that processes ``items`` items per call.

    mapped:   inputs with one entry per item; others are shared
    programs: {language: program}
    """

    items: int
    mapped: tuple[str, ...]
    programs: Mapping[str, ExportProgram]

    @property
    def folder(self) -> str:
        return f"batched_{self.items}"


def batches(source: Source, to: Sequence[str], given: Sequence[ExportProgram]) -> dict[str, Batch]:
    """{subfolder: batch kernel} for destinations that support batching (vmap); {} without ``given``.

    Kernels take the inputs of ``source`` by name, some with a leading item dimension, and all their outputs have one.
    Raises ExportError ``export.batched`` for a kernel that does not fit, and errors of lowering.
    """
    if not given:
        return {}
    which = mapping_targets(to)
    if not which:
        legal = ", ".join(name for name, row in DESTINATIONS.items() if row.maps)
        raise _unfit("export.batched", f"{', '.join(to)} cannot map a kernel", f"without batched, or to one of {legal}")
    found: dict[str, Batch] = {}
    for part in given:
        items, mapped = _mapped(source, part.source)
        made = Batch(items, mapped, programs(part, which))
        if made.folder in found:
            raise _unfit("export.batched", f"there are two kernels for {items} items", "one of them")
        found[made.folder] = made
    return found


def mapping_targets(to: Sequence[str]) -> tuple[str, ...]:
    """Destinations in ``to`` that support batching."""
    return tuple(name for name in to if DESTINATIONS[name].maps)


def batched_entries(to: Sequence[str], found: Mapping[str, Batch]) -> list[dict[str, object]]:
    """``manifest["batched"]``: one entry per batch kernel, with its subfolder, items, mapped inputs and
    destinations.
    """
    which = list(mapping_targets(to))
    return [{"folder": name, "items": b.items, "mapped": list(b.mapped), "targets": which} for name, b in found.items()]


def _mapped(source: Source, batched: Source) -> tuple[int, tuple[str, ...]]:
    """(number of items per call, inputs with one entry per item) of a batch kernel. Raises ExportError
    ``export.batched``.
    """
    wanted = {p.name: p for p in source.inputs}
    if sorted(wanted) != sorted(p.name for p in batched.inputs) or len(source.outputs) != len(batched.outputs):
        given = ", ".join(p.name for p in batched.inputs)
        message = f"the kernel for a batch takes {given} and gives {len(batched.outputs)} outputs"
        raise _unfit(
            "export.batched", message, f"{', '.join(wanted)}, and {len(source.outputs)} outputs, as the kernel itself"
        )
    mapped = tuple(p.name for p in batched.inputs if p.shape != wanted[p.name].shape)
    first = batched.outputs[0].shape
    pairs = [(p, wanted[p.name], p.name in mapped) for p in batched.inputs]
    pairs += [(p, own, True) for p, own in zip(batched.outputs, source.outputs, strict=True)]
    for p, own, many in pairs:
        shape = (first[:1] if many else ()) + own.shape
        if (p.dtype, p.shape) != (own.dtype, shape):
            said = f"the kernel for a batch: {p.name} is {p.dtype}{list(p.shape)}"
            raise _unfit(
                "export.batched", said, f"{own.dtype}{list(shape)}, or the same extent in front of all that have one"
            )
    if not isinstance(first[0], int):
        raise _unfit(
            "export.batched", f"the kernel for a batch is for {first[0]} items, which each call decides", "an int there"
        )
    return first[0], mapped


def _unfit(code: str, message: str, hint: str) -> TensorIRError:
    return refuse(ExportError, code, message, hint=hint)


def earlier(folder: Path) -> list[Path]:
    """Subfolders of the export in ``folder``, by its manifest; [] if it holds none."""
    try:
        manifest = json.loads(small_file(folder / "manifest.json", MAX_MANIFEST))
        inner = [*manifest.get("backward", {}).values(), *manifest.get("batched", [])]
        names = [about["folder"] for about in inner]
        return [folder / name for name in names if Path(name).name == name and (folder / name).is_dir()]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return []


def remove(folder: Path) -> None:
    """Delete the files of an earlier export, and the folder if it is empty then; other folders and foreign files
    stay.
    """
    try:
        names = existing(folder)
    except ExportError:
        return
    for name in names:
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


# At which extents an exported kernel is tested where each call decides them.

MOST_WORK = 1 << 21
"""Terms and elements that a reference computes for one case of a self-test, unless the least extents need more."""
VECTOR_LANES = 16
"""Divisor where no grid says one: lanes of a vector."""
PRIMES = (7, 13, 5, 11)


def points(outputs: Sequence[Tensor], sources: Sequence[Source]) -> list[dict[str, int]]:
    """Return [{dim: value}] for self-tests: least values, primes, around multiples of tiles, largest affordable; [{}]
    without dims. Dims differ from each other in both orders if ranges allow.
    """
    dims = dims_of(outputs)
    most = largest(outputs)
    made = []
    for n in range(5):
        wanted = {}
        for k, v in enumerate(dims):
            low, high = v.bounds or (1, 1)
            tile = tile_of(v.name, sources)
            around = tile - 1 if (n + k) % 2 else tile + 1
            wanted[v] = (low, PRIMES[k % len(PRIMES)], around, tile * 2 + 1 - k % 3, high)[n]
        made.append({v.name: min(x, most[v]) for v, x in values_apart(dims, wanted).items()})
    return [dict(p) for p in dict.fromkeys(tuple(point.items()) for point in made)]


def largest(outputs: Sequence[Tensor]) -> dict[Var, int]:
    """Return {dim: largest value} so that there are at most ``MOST_WORK`` terms; the largest dims are halved until
    then, or until all are at their least values.
    """
    dims = {v: v.bounds[1] for v in dims_of(outputs) if v.bounds is not None}
    lows = {v: v.bounds[0] for v in dims if v.bounds is not None}
    while work(outputs, dims) > MOST_WORK and (free := [v for v in dims if dims[v] > lows[v]]):
        v = max(free, key=lambda v: dims[v])
        dims[v] = max(lows[v], (dims[v] + 1) // 2)
    return dims


def work(outputs: Sequence[Tensor], dims: Mapping[Var, int]) -> int:
    """Return the number of terms and elements computed, and of input elements, at given values of dims."""
    total = sum(prod(at(e, dims) for e in t.shape) for t in inputs_of(outputs))
    for op in computes_of(outputs):
        axes = {v for b in op.bodies for v in getattr(b, "axes", ())}
        total += prod(at(e, dims) for e in op.extents) * prod(at(v.extent, dims) for v in axes)
    return total


def tile_of(dim: str, sources: Sequence[Source]) -> int:
    """Return the largest number of elements along a dim that one block computes, from the divisors in kernels' grids;
    ``VECTOR_LANES`` if no grid divides it.
    """
    texts = {e for s in sources for k in s.kernels for e in k.grid if isinstance(e, str)}
    found = [
        node.right.value
        for text in texts
        for node in ast.walk(ast.parse(text, mode="eval"))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and isinstance(node.right, ast.Constant)
        and isinstance(node.right.value, int)
        and any(isinstance(x, ast.Name) and x.id == dim for x in ast.walk(node.left))
    ]  # fmt: skip
    return max(found, default=VECTOR_LANES)
