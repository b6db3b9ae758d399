"""Exported folders: source, manifest, loader, self-test and README that run without this package."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from tensorir.codegen.source import Assumed, KernelLaunch, Param, Source
from tensorir.errors import TensorIRError, refuse
from tensorir.errors.needs import need_path, shown
from tensorir.export.evidence import Evidence, gather
from tensorir.export.readme import readme
from tensorir.expr.tensor import Tensor

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


class ExportError(TensorIRError):
    """A folder that cannot be written: unknown destination, a foreign folder, no room."""


def export(
    source: Source,
    path: str | Path,
    to: Sequence[str],
    trace: str = "",
    *,
    outputs: Sequence[Tensor] = (),
    reference: Callable[..., Any] | None = None,
    kind: str = "",
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``source`` and everything needed to run and test it into the folder ``path``.

    to:        destinations, see ``DESTINATIONS``
    outputs:   the declarations, from which the self-test's expected results are computed
    reference: another way to compute them, in NumPy
    kind:      "cpu" or "gpu": which device the loader prefers
    about:     more for the manifest (the record, the device it was tuned on)

    Raises ExportError: ``export.destination``, ``export.language``, ``export.not-empty``, ``export.unwritable``,
    ``export.no-reference``.
    """
    folder = Path(need_path("path", path, ExportError))
    check_names(to)
    for name in to:
        if source.language not in DESTINATIONS[name]:
            needed = " or ".join(DESTINATIONS[name])
            message = f"{name} needs {needed} source, this program is {source.language}"
            raise refuse(ExportError, "export.language", message, hint=f'a schedule with target="{needed}"')
    if not outputs:
        raise refuse(ExportError, "export.no-reference", "nothing to test against: pass the declared outputs")
    old = _existing(folder)
    content = _content(source, list(to), trace, gather(outputs, reference), kind, dict(about or {}))
    try:
        _write(folder, content, old)
    except OSError as error:
        words = error.strerror or type(error).__name__
        raise refuse(ExportError, "export.unwritable", f"cannot write {folder}: {words}") from None
    return folder


def check_names(to: Sequence[str]) -> None:
    """Refuse destinations that do not exist."""
    legal = ", ".join(DESTINATIONS)
    if not isinstance(to, list | tuple) or not to:
        raise refuse(ExportError, "export.destination", "to is a list of destinations", hint=f"one or more of {legal}")
    for name in to:
        if not isinstance(name, str) or name not in DESTINATIONS:
            near = get_close_matches(str(name), DESTINATIONS, 1)
            hint = f"{near[0]} (legal: {legal})" if near else f"one of {legal}"
            raise refuse(ExportError, "export.destination", f"there is no destination {shown(name)}", hint=hint)


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


def _content(
    source: Source, to: list[str], trace: str, evidence: Evidence, kind: str, about: dict[str, Any]
) -> dict[str, bytes]:
    """Every file of the folder; the manifest last."""
    from tensorir import __version__

    shipped = resources("tensorir.export.shipped")
    made: dict[str, bytes] = {file_name(source): source.text.encode("utf-8")}
    made["loader.py"] = shipped.joinpath(_LOADER[source.language]).read_bytes()
    made["selftest.py"] = shipped.joinpath("selftest.py").read_bytes()
    if any(k.maps for k in source.kernels):
        made["tensor_maps.py"] = resources("tensorir.runtime").joinpath("tensor_maps.py").read_bytes()
    constants = {p.name: f"constant_{n}.bin" for n, p in enumerate(source.params) if p.role == "constant"}
    made |= {constants[p.name]: p.data or b"" for p in source.params if p.role == "constant"}
    made |= evidence.files
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "made_by": f"tensorir {__version__}",
        "name": source.name,
        "to": to,
        "language": source.language,
        "kind": kind or ("gpu" if source.language == "cuda" else "cpu"),
        "source": file_name(source),
        "options": _OPTIONS[source.language],
        "arguments": [_argument(p, constants) for p in source.params],
        "kernels": [_kernel(k) for k in source.kernels],
        "prepack": [p.name for p in source.prepackable],
        "workspace_bytes": source.workspace_bytes,
        "gathers": [{"param": g.param, "limit": g.limit, "into": g.into} for g in source.gathers],
        "assumed": [_assumed(a) for a in source.assumed],
        "trace": trace.splitlines(),
        "selftest": evidence.manifest,
        **about,
    }
    made["README.md"] = readme(manifest).encode("utf-8")
    manifest["files"] = {name: {"sha256": hashlib.sha256(data).hexdigest()} for name, data in made.items()}
    made["manifest.json"] = (json.dumps(manifest, indent=2, sort_keys=False) + "\n").encode("utf-8")
    return made


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
    return made


def _kernel(k: KernelLaunch) -> dict[str, Any]:
    return {
        "name": k.name,
        "args": list(k.args),
        "grid": list(k.grid),
        "block": list(k.block),
        "shared_bytes": k.shared_bytes,
        "once": k.once,
        "maps": [asdict(m) for m in k.maps],
    }


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
