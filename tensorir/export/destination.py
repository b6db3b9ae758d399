"""Interface of export destinations (frameworks that run an exported folder).

To add one, write ``tensorir/export/destinations/NAME.py`` with one ``Destination`` and a row in ``DESTINATIONS`` of
``destinations/__init__.py``. Nothing else knows its name. The pieces:

* The folder holds one program for each *language* that its destinations take (``bodies.BODIES``: opencl, cuda, c …);
  the first one is described at the top of ``manifest.json``, others under ``manifest["bodies"][LANGUAGE]`` with the
  same fields. ``Destination.takes`` lists languages in order of preference. A program that is not of one of them is
  lowered again by ``ExportProgram.for_target``, once for the folder; what a destination may use in addition where the
  folder has it, it finds in ``shipment.parts``.
* ``make(shipment)`` returns ``Made``: files (name -> bytes; a shipped module by ``shipped_module``), the entry
  ``manifest[NAME]`` and the README's lines. Files of the programs themselves (``C.cl``, ``NAME.c``) are the body's.
* ``runner`` is the module of the folder by which ``selftest.py`` runs the destination. It has ``Program(manifest=…)``
  with ``inputs``, ``outputs`` (entries of ``manifest["arguments"]``), ``manifest``, and ``__call__`` on NumPy arrays
  and numbers in the order of ``inputs``, which returns an array or a tuple; narrow floats are their bits (uint16,
  uint8). ``missing()`` of the module says why it cannot run on this machine, "" where it can; a module that cannot
  be imported counts as missing too. Where a Program has ``run``, ``filled``, ``inside`` and ``read`` (see
  ``loader_pyopencl.py``) its buffers are put between canaries. None: by the loader of the first language.
* ``import FOLDER`` imports ``door_torch.py`` where the folder has it and torch is installed; ``FOLDER.call`` is
  ``call`` of ``door_jax.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorir.export.evidence import Evidence
from tensorir.export.program import ExportProgram


@dataclass(frozen=True)
class OperatorName:
    """Registered name ``NS::NAME`` of the operator; both parts are C identifiers."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}"


@dataclass(frozen=True)
class Shipment:
    """Input for a destination's ``make``.

    operator: name of the operator
    parts:    {language: program}, the folder's first one first
    manifest: contents so far: arguments, self-test, bodies; no file digests
    package:  Python module name of the folder, None if its name is not legal
    targets:  names of all destinations written
    evidence: function from a tolerance (``ExportProgram.max_error``) to the self-test's expected results
    """

    operator: OperatorName
    parts: Mapping[str, ExportProgram]
    manifest: Mapping[str, Any]
    package: str | None
    targets: tuple[str, ...]
    evidence: Callable[[float | None], Evidence]


@dataclass(frozen=True)
class Made:
    """The files and facts that a destination adds to a folder.

    files: name -> content
    entry: ``manifest[NAME]``; no entry if empty
    use:   Markdown for its section of the README: how to call the kernel; no section if empty
    library: names of those files, headers too, that are compiled with the C program into the folder's shared library
             (``manifest["library"]``): at export if there is a compiler, else by ``build.library()`` on the user's
             machine
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    entry: Mapping[str, Any] = field(default_factory=dict)
    use: str = ""
    library: tuple[str, ...] = ()


@dataclass(frozen=True)
class Destination:
    """One framework, or other place, that kernels are exported to.

    takes:  languages of source that it runs, the preferred one first
    about:  a line for tables and help: what its user gets
    runner: module of the folder that runs it in the self-test; None: the loader of its language
    sets:   True if a folder of several shapes can have it
    gradients: True if it differentiates, by kernels in subfolders: ``manifest["backward"]``
    maps:   True if it maps over a batch, by kernels for several items in subfolders: ``manifest["batched"]``
    hosts:  languages of programs that it can use in place of C, launched by a C program; see ``ExportProgram.hosted``
    """

    name: str
    takes: tuple[str, ...]
    about: str
    make: Callable[[Shipment], Made]
    runner: str | None = None
    sets: bool = False
    gradients: bool = False
    maps: bool = False
    hosts: tuple[str, ...] = ("opencl",)


def nothing_more(shipment: Shipment) -> Made:
    """Empty additions: ``make`` of destinations that need no files beyond the program and its loader."""
    return Made()
