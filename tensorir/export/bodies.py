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

    suffix:  of the source file's name
    options: compiler options
    loader:  file of ``shipped`` that runs the program on NumPy arrays; written as ``loader.py`` if the language is the
             folder's first, else as ``loader_LANGUAGE.py``
    needs:   packages that the loader imports, apart from NumPy
    title:   name of the language in texts
    files:   function from a program and its C name to its files {name: content}, the source first; None: one file with
             the text, named after the source
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
    """File name for the source's text: its name cut to 60 characters, runs of others than ASCII letters and digits as
    "_" ("program" if nothing is left), and the language's suffix.
    """
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", source.name).strip("_")[:60] or "program"
    return plain + BODIES[source.language].suffix


def shipped_module(name: str, file: str | None = None) -> bytes:
    """Content of a module in ``shipped``, with appended lines that let Python import the modules of several folders in
    one process.

    name: by which the folder imports it;  file: its file in ``shipped``; None: ``NAME.py``
    """
    folder = resources("tensorir.export.shipped")
    return folder.joinpath(file or f"{name}.py").read_bytes() + of_its_folder(name).encode("utf-8")
