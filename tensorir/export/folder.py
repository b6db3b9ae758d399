"""Exported folders: sources, manifest, loaders, self-test and README that run without this package."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from tensorir._package import PACKAGE_VERSION
from tensorir.codec import encode
from tensorir.codegen.source import Assumed, Param, Source
from tensorir.errors import refuse
from tensorir.errors.needs import need_path
from tensorir.export import batches as batch
from tensorir.export.asked import FORMAT, destinations, existing, operator, package_of, programs, refuse_sets
from tensorir.export.bodies import BODIES, file_name, shipped_module
from tensorir.export.c_header import each_time
from tensorir.export.c_host import codes
from tensorir.export.destination import Made, Operator, Shipment
from tensorir.export.destinations import DESTINATIONS
from tensorir.export.evidence import Evidence, gather
from tensorir.export.gradients import differentiating, earlier, entries, folder_of, gradients, remove
from tensorir.export.images import Images, architectures, compiled
from tensorir.export.part import ExportError, Part
from tensorir.export.points import points
from tensorir.export.readme import readme, set_readme
from tensorir.export.shipped import build
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import WIDENED
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
    """Write ``source`` and everything needed to run and test it into the folder ``path``.

    to:     destinations, see ``DESTINATIONS``; one may be a string
    name:   as for ``export_part``
    others: see ``Part``

    Raises as ``export_part``.
    """
    return export_part(Part(source, outputs, reference, trace, kind, about or {}, max_error), path, to, name=name)


def export_part(
    part: Part,
    path: str | Path,
    to: str | Sequence[str],
    *,
    name: str | None = None,
    others: Mapping[str, Part] | None = None,
    arch: Sequence[str] = (),
    backward: Mapping[str, Part] | None = None,
    batched: Sequence[Part] = (),
) -> Path:
    """Write ``part`` and everything needed to run and test it into the folder ``path``.

    name:     ``NS::NAME`` of the operator, where a destination registers one; by the folder's name when None
    others:   programs of the same computation in other languages, which are taken before one is lowered again
    arch:     CUDA architectures for which images are made, see ``images``
    backward: by input, the program for its gradient; see ``gradients``. Each has a folder inside this one
    batched:  programs for several calls at once; see ``batches``. Likewise

    Raises ExportError: ``export.destination``, ``export.name``, ``export.language``, ``export.arch``,
    ``export.portable``, ``export.backward``, ``export.batched``, ``export.not-empty``, ``export.unwritable``,
    ``export.no-reference``; and what lowering for a destination raises.
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
    derived, several = gradients(part.source, to, backward or {}), batch.batches(part.source, to, batched)

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
        manifest |= {"backward": entries(to, derived)} if derived else {}
        manifest |= {"batched": batch.entries(to, several)} if several else {}
        shipment = Shipment(called, parts, manifest, package_of(Path(path)), to, evidence.whole)
        return _complete(shipment, manifest, files | evidence.files)

    stale = earlier(Path(path))
    written = _export(path, list(needed.values()), content)
    inner: dict[str, tuple[Mapping[str, Part], Sequence[str]]]
    inner = {folder_of(of): (made, differentiating(to)) for of, made in derived.items()}
    inner |= {name: (made.programs, batch.mapping(to)) for name, made in several.items()}
    for name_of, (made, which) in inner.items():
        _inside(made, written / name_of, which, f"{called}_{name_of}", asked)
    for old in stale:
        if old.name not in inner:
            remove(old)
    return written


def _bodies(
    parts: Mapping[str, Part], manifest: Mapping[str, Any], called: str, evidence: _Evidence
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What the manifest says of programs in other languages than the first one, and the files of these."""
    bodies, files = {}, dict[str, bytes]()
    for language, p in list(parts.items())[1:]:
        about, own = _program(p, called, evidence, constants=f"{language}_")
        bodies[language] = {key: value for key, value in about.items() if key in _OWN or value != manifest.get(key)}
        files |= own
    return {"bodies": bodies} if bodies else {}, files


def _inside(made: Mapping[str, Part], place: Path, to: Sequence[str], name: str, asked: Sequence[str]) -> None:
    """Write the folder of a kernel that belongs to another, in each language of ``made``."""
    arch = asked if "cuda" in made else ()
    export_part(next(iter(made.values())), place, to, name=name, others=made, arch=arch)


MANIFEST_LINE = 120
"""Characters of a line of the manifest within which a value is written whole."""
_OWN = ("language", "source", "sources", "options", "arguments", "kernels")
"""What a body always says of itself; the rest where it is not as in the first one."""


def _images(part: Part, made: Images, called: str, evidence: _Evidence) -> tuple[dict[str, Any], dict[str, bytes]]:
    """``manifest["cuda"]``, and the files that it names."""
    stem = Path(file_name(part.source)).stem
    files = {f"{stem}_{i.arch}.{i.kind}": i.data for i in made.images}
    entry: dict[str, Any] = {"images": [i.entry(f"{stem}_{i.arch}.{i.kind}") for i in made.images]}
    if made.portable is not None:
        about, own = _program(made.portable, called, evidence, "portable_")
        entry["portable"] = about
        files |= own
    return entry | ({"missing": made.missing} if made.missing else {}), files


def export_set(
    parts: Sequence[Part],
    path: str | Path,
    to: str | Sequence[str],
    *,
    name: str,
    dispatch: Dispatch,
    files: Mapping[str, str],
    about: Mapping[str, object] | None = None,
) -> Path:
    """Write the programs of several shapes, and the choice among them, into the folder ``path``.

    parts:    one for each shape of ``dispatch``, in its order, all of one language
    name:     of the operator
    dispatch: which kernel each shape has
    files:    ``choose.py`` and whatever else says the choice as code or data
    about:    more for the manifest

    What a program reads is compiled into it, so every shape has its own, whichever of the kernels it is made by.
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


def _export(path: str | Path, parts: Sequence[Part], content: Callable[[], dict[str, bytes]]) -> Path:
    """Write what ``content`` makes, once all that can be refused before has been."""
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


def _head(name: str, to: Sequence[str], called: Operator) -> dict[str, Any]:

    made = {"format": FORMAT, "version": 1, "made_by": f"tensorir {PACKAGE_VERSION}", "name": name}
    return {**made, "operator": str(called), "targets": list(to)}


class _Evidence:
    """The self-test's expected results, computed once for all programs of a computation that are as exact."""

    def __init__(self, part: Part, label: str = "", share: int = 1, sources: Sequence[Source] = ()) -> None:
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
    part: Part, called: str, evidence: _Evidence, label: str = "", constants: str = ""
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What a manifest says of a program, and its files.

    label:     what the names of files begin with;  constants: those of constants, too
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
    """Every file of the folder; the manifest last."""
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
    """JSON to be read: what fits on a line is on one."""
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
    """What the manifest says of the folder's shared library; and itself where there is a compiler here."""
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
    """Each file whole or not at all, the manifest last; what an earlier export left and this one lacks goes."""
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
