"""Languages of exported programs (OpenCL, CUDA, C, …): file names, compiler options, and the Python loader of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files as resources

from tensorir.codegen.source import Source
from tensorir.export.c_host import HOSTS, hosted_files
from tensorir.export.c_program import c_files
from tensorir.export.program import ExportProgram
from tensorir.tune.dispatch_text import of_its_folder


@dataclass(frozen=True)
class Body:
    """A language of exported programs.

    suffix:  of its file
    options: what its compiler is told
    loader:  file of ``shipped`` that runs it on NumPy arrays: ``loader.py`` in a folder whose first language this is,
             else ``loader_LANGUAGE.py``
    needs:   what the loader imports, apart from NumPy
    title:   how people call the language
    files:   the files of a program under the name that it has in C (see ``Operator``), the source the first; None:
             the text alone, in ``NAME`` of the source with the suffix
    """

    suffix: str
    options: tuple[str, ...]
    loader: str
    needs: tuple[str, ...]
    title: str
    files: Callable[[ExportProgram, str], Mapping[str, bytes]] | None = None


def _c_files(part: ExportProgram, called: str) -> Mapping[str, bytes]:
    return hosted_files(part, called) if part.hosted else c_files(part, called)


BODIES: dict[str, Body] = {
    "opencl": Body(".cl", HOSTS["opencl"].options, "loader_pyopencl.py", ("pyopencl",), "OpenCL C"),
    "c": Body(".c", ("-std=c11", "-O2"), "loader_c.py", (), "C11", _c_files),
    "cuda": Body(".cu", HOSTS["cuda"].options, "loader_cupy.py", ("cupy",), "CUDA C++"),
}


def file_name(source: Source) -> str:
    """A safe file name for the source's text."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", source.name).strip("_")[:60] or "program"
    return plain + BODIES[source.language].suffix


def shipped_module(name: str, file: str | None = None) -> bytes:
    """Content of a ``shipped`` module, renamed to ``name`` so that several folders can be imported in one process."""
    folder = resources("tensorir.export.shipped")
    return folder.joinpath(file or f"{name}.py").read_bytes() + of_its_folder(name).encode("utf-8")
