"""Exported folders: sources, manifest, loader, self-test and README that run without this package."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files as resources
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypeVar

from tensorir.codegen.codec import encode
from tensorir.codegen.source import Assumed, Param, Source
from tensorir.errors import TensorIRError, refuse
from tensorir.errors.needs import need_path, shown
from tensorir.errors.spelling import nearest
from tensorir.export.evidence import gather
from tensorir.export.readme import readme, set_readme
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import WIDENED
from tensorir.tune.dispatch import Dispatch, Leaf
from tensorir.tune.dispatch_text import c_text, of_its_folder

FORMAT = "tensorir-export"
DESTINATIONS: dict[str, tuple[str, ...]] = {
    "source": ("opencl", "cuda"),
    "pyopencl": ("opencl",),
    "cupy": ("cuda",),
}
"""Destination to the languages of source that it takes."""

_OPTIONS = {"opencl": ["-cl-std=CL1.2"], "cuda": ["--std=c++17"]}
_LOADER = {"opencl": "loader_pyopencl.py", "cuda": "loader_cupy.py"}
_SUFFIX = {"opencl": ".cl", "cuda": ".cu"}

_Made = TypeVar("_Made")


class ExportError(TensorIRError):
    """A folder that cannot be written: unknown destination, a foreign folder, no room."""


@dataclass(frozen=True)
class Part:
    """A program to ship.

    outputs:   the declarations, from which the self-test's expected results are computed
    reference: another way to compute them, in NumPy
    kind:      "cpu" or "gpu": which device the loader prefers
    about:     more for the manifest (the record, the device it was tuned on)
    max_error: what its results may be off, as ``Workload.allowed_error`` says
    """

    source: Source
    outputs: Sequence[Tensor]
    reference: Callable[..., Any] | None = None
    trace: str = ""
    kind: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    max_error: float | None = None


def export(
    source: Source,
    path: str | Path,
    to: str | Sequence[str],
    trace: str = "",
    *,
    outputs: Sequence[Tensor] = (),
    reference: Callable[..., Any] | None = None,
    kind: str = "",
    about: Mapping[str, Any] | None = None,
    max_error: float | None = None,
) -> Path:
    """Write ``source`` and everything needed to run and test it into the folder ``path``.

    to:     destinations, see ``DESTINATIONS``; one may be a string
    others: see ``Part``

    Raises ExportError: ``export.destination``, ``export.language``, ``export.not-empty``, ``export.unwritable``,
    ``export.no-reference``.
    """
    part = Part(source, outputs, reference, trace, kind, about or {}, max_error)
    need_path("path", path, ExportError)
    to = destinations(to)

    def content() -> dict[str, bytes]:
        manifest, files = _program(part)
        manifest = {**_head(source.name, to), **manifest}
        return _complete(manifest, files, [part], package_of(Path(path)))

    return _export(path, to, [part], content)


def export_set(
    parts: Sequence[Part],
    path: str | Path,
    to: str | Sequence[str],
    *,
    name: str,
    dispatch: Dispatch,
    files: Mapping[str, str],
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write the programs of several shapes, and the choice among them, into the folder ``path``.

    parts:    one for each shape of ``dispatch``, in its order, all of one language
    name:     of the operator
    dispatch: which kernel each shape has
    files:    ``choose.py`` and whatever else says the choice as code or data
    about:    more for the manifest

    What a program reads is compiled into it, so every shape has its own, whichever of the kernels it is made by.
    ``dispatch.py`` gives the program of a shape in Python, ``program.c`` its number in C. Raises as ``export``.
    """
    need_path("path", path, ExportError)
    to = destinations(to)

    def content() -> dict[str, bytes]:
        made = {file: text.encode("utf-8") for file, text in files.items()}
        rows = []
        for n, (part, shape, kernel) in enumerate(zip(parts, dispatch.shapes, dispatch.chosen, strict=True)):
            manifest, own = _program(part, f"{n:02d}_", len(parts))
            rows.append({"parameters": shape, "kernel": kernel, **manifest})
            made |= own
        first = rows[0]
        manifest = {**_head(name, to), "language": first["language"], "kind": first["kind"], **(about or {})}
        manifest |= {"fixed": dispatch.fixed, "programs": rows}
        made["dispatch.py"] = _own("dispatch", "dispatch.py")
        numbers = Dispatch((), dispatch.shapes, tuple(range(len(parts))), Leaf(-1))
        says = ["Programs are those of manifest.json, in its order; -1 for a shape that has none."]
        made["program.c"] = c_text(numbers, "tensorir_program", says, of="program").encode("utf-8")
        return _complete(manifest, made, parts, package_of(Path(path)))

    return _export(path, to, parts, content)


def _export(
    path: str | Path, to: Sequence[str], parts: Sequence[Part], content: Callable[[], dict[str, bytes]]
) -> Path:
    """Write what ``content`` makes, once all that can be refused before has been."""
    folder = Path(path)
    for name in to:
        for language in dict.fromkeys(p.source.language for p in parts):
            if language not in DESTINATIONS[name]:
                needed = " or ".join(DESTINATIONS[name])
                message = f"{name} needs {needed} source, this program is {language}"
                hint = f'a schedule with target="{needed}"; tensorir export writes the tuned kernels of both'
                raise refuse(ExportError, "export.language", message, hint=hint)
    if not all(p.outputs for p in parts):
        raise refuse(ExportError, "export.no-reference", "nothing to test against: pass the declared outputs")
    old = _existing(folder)
    made = content()
    try:
        _write(folder, made, old)
    except OSError as error:
        words = error.strerror or type(error).__name__
        raise refuse(ExportError, "export.unwritable", f"cannot write {folder}: {words}") from None
    return folder


def by_language(to: str | Sequence[str], language: str | None = None) -> dict[str | None, list[str]]:
    """The destinations by the language of the source that they take, each language a folder; None where any will do.

    What takes any goes to all. With a ``language`` that is the only one. Raises ExportError as ``export`` does for
    destinations that do not exist.
    """
    to = destinations(to)
    if language is not None:
        return {language: list(to)}
    given = dict.fromkeys(DESTINATIONS[name][0] for name in to if len(DESTINATIONS[name]) == 1)
    made: dict[str | None, list[str]] = {}
    for one in given or [None]:
        made[one] = [name for name in to if one is None or one in DESTINATIONS[name]]
    return made


def each_language(
    wanted: Mapping[str | None, Sequence[str]], make: Callable[[str | None], _Made]
) -> dict[str | None, _Made]:
    """What ``make`` gives for each language of ``by_language``, before anything is written; why there is no kernel of
    one is said with the destinations that need it.
    """
    found = {}
    for language in wanted:
        try:
            found[language] = make(language)
        except TensorIRError as error:
            raise _for_destinations(error, wanted, language) from None
    return found


def _for_destinations(
    error: TensorIRError, wanted: Mapping[str | None, Sequence[str]], language: str | None
) -> TensorIRError:
    """Why there is no kernel of ``language``, with the destinations of ``by_language`` that need one; other errors as
    they are.
    """
    only = [name for name in wanted[language] if DESTINATIONS[name] == (language,)]
    if not only or error.code not in ("export.not-tuned", "template.target"):
        return error
    first, *others = error.problems
    nothing = "" if len(wanted) == 1 else ", and nothing was written"
    words = f"{', '.join(only)} needs {language} source{nothing}: {first.message}"
    return type(error)([replace(first, message=words), *others])


def destinations(to: str | Sequence[str]) -> tuple[str, ...]:
    """Destinations as they are given, one as a string or several in a list; ``export.destination``."""
    to = (to,) if isinstance(to, str) and to else to
    legal = ", ".join(DESTINATIONS)
    if not isinstance(to, list | tuple) or not to:
        raise refuse(ExportError, "export.destination", "to is a list of destinations", hint=f"one or more of {legal}")
    for name in to:
        if not isinstance(name, str) or name not in DESTINATIONS:
            near = nearest(str(name), DESTINATIONS)
            hint = f"{near[0]} (legal: {legal})" if near else f"one of {legal}"
            raise refuse(ExportError, "export.destination", f"there is no destination {shown(name)}", hint=hint)
    return tuple(to)


def places(path: str | Path, wanted: Iterable[str | None]) -> dict[str | None, Path]:
    """The folder of each language's destinations: ``path`` itself where there is one.

    Raises ExportError ``export.not-empty`` where one of them may not be written, before anything is.
    """
    languages = list(wanted)
    if len(languages) == 1:
        found = {languages[0]: Path(path)}
    else:
        found = {language: Path(path) / str(language) for language in languages}
        if Path(path).is_dir() and (others := {p.name for p in Path(path).iterdir()} - set(map(str, languages))):
            message = f"{path} is to have a folder for each language, and holds {min(others)}"
            raise refuse(ExportError, "export.not-empty", message, hint="another folder")
    for folder in found.values():
        _existing(folder)
    return found


def _existing(folder: Path) -> list[str]:
    """The files of our own earlier export there; refuses anything else that is not empty."""
    try:
        if not folder.exists() and not folder.is_symlink():
            return []
        if not folder.is_dir():
            raise refuse(ExportError, "export.not-empty", f"{folder} is not a folder")
        if not any(folder.iterdir()):
            return []
        text = (folder / "manifest.json").read_text(encoding="utf-8")
        manifest = json.loads(text)
        if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
            names = [*manifest.get("files", {}), "manifest.json"]
            return [n for n in names if isinstance(n, str) and Path(n).name == n]
    except (OSError, ValueError, RecursionError):
        pass
    message = f"{folder} is not empty and holds no earlier export"
    raise refuse(ExportError, "export.not-empty", message, hint="another folder")


def file_name(source: Source) -> str:
    """A harmless file name for the source."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", source.name).strip("_")[:60] or "program"
    return plain + _SUFFIX[source.language]


def _head(name: str, to: Sequence[str]) -> dict[str, Any]:
    from tensorir import __version__

    return {"format": FORMAT, "version": 1, "made_by": f"tensorir {__version__}", "name": name, "to": list(to)}


def _program(part: Part, label: str = "", share: int = 1) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What a manifest says of a program, and its files; ``label`` and ``share`` as for ``gather``."""
    source, evidence = part.source, gather(part.outputs, part.reference, label, share, part.max_error)
    made: dict[str, bytes] = {label + file_name(source): source.text.encode("utf-8")}
    constants = {p.name: f"{label}constant_{n}.bin" for n, p in enumerate(source.params) if p.role == "constant"}
    made |= {constants[p.name]: p.data or b"" for p in source.params if p.role == "constant"}
    manifest: dict[str, Any] = {
        "name": source.name,
        "language": source.language,
        "kind": part.kind or ("gpu" if source.language == "cuda" else "cpu"),
        "source": label + file_name(source),
        "options": _OPTIONS[source.language],
        "arguments": [_argument(p, constants) for p in source.params],
        "kernels": [encode(k) for k in source.kernels],
        "prepack": [p.name for p in source.prepackable],
        "workspace_bytes": source.workspace_bytes,
        "gathers": [encode(g) for g in source.gathers],
        "assumed": [_assumed(a) for a in source.assumed],
        "trace": part.trace.splitlines(),
        "selftest": evidence.manifest,
        **part.about,
    }
    return manifest, made | evidence.files


def _complete(
    manifest: dict[str, Any], files: Mapping[str, bytes], parts: Sequence[Part], package: str | None
) -> dict[str, bytes]:
    """Every file of the folder; the manifest last."""
    shipped = resources("tensorir.export.shipped")
    made = dict(files)
    made["README.md"] = (set_readme if "programs" in manifest else readme)(manifest, package).encode("utf-8")
    made["__init__.py"] = shipped.joinpath("package.py").read_bytes()
    made["loader.py"] = _own("loader", _LOADER[manifest["language"]])
    made["selftest.py"] = shipped.joinpath("selftest.py").read_bytes()
    if any(k.maps for p in parts for k in p.source.kernels):
        made["tensor_maps.py"] = resources("tensorir.runtime").joinpath("tensor_maps.py").read_bytes()
    manifest["files"] = {name: {"sha256": hashlib.sha256(data).hexdigest()} for name, data in made.items()}
    made["manifest.json"] = (json.dumps(manifest, indent=2, sort_keys=False) + "\n").encode("utf-8")
    return made


def _own(name: str, file: str) -> bytes:
    """A shipped module, to be imported as ``name`` from several folders in one process."""
    return resources("tensorir.export.shipped").joinpath(file).read_bytes() + of_its_folder(name).encode("utf-8")


def package_of(folder: Path) -> str | None:
    """What imports the folder as a package, with its parent on ``sys.path`` (for the folder of a language, the parent
    of what holds both); None where its name is no module's, or is that of a module which the loader imports.
    """
    place = folder.resolve()
    names = [place.name] if place.name not in DESTINATIONS["source"] else [place.parent.name, place.name]
    taken = {*sys.stdlib_module_names, "numpy", "pyopencl", "cupy"}
    legal = all(n.isidentifier() and not iskeyword(n) for n in names) and names[0] not in taken
    return ".".join(names) if legal else None


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
