"""``ExportProgram``: a program to export, which can be lowered again for another language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorir.codegen.source import Source
from tensorir.errors import TensorIRError, refuse
from tensorir.expr.tensor import Tensor

if TYPE_CHECKING:
    from tensorir.export.images import Images


class ExportError(TensorIRError):
    """Raised if a folder cannot be exported: unknown destination, foreign files, full disk."""


@dataclass(frozen=True, eq=False)
class ExportProgram:
    """A program to export: its source, with what is needed to test it and to lower it for other targets.

    outputs:   the declarations, from which the self-test's expected results are computed
    reference: NumPy function that computes them in place of the declarations
    trace:     the schedule's steps, one per line
    kind:      "cpu" or "gpu": the kind of device that the loader prefers
    arch:      CUDA architecture that it was lowered for; "" for other languages
    about:     further manifest entries (the record, the device it was tuned on)
    max_error: allowed error of its results, as ``Workload.allowed_error``
    again:     function from a target's text ("c", "cuda -arch=sm_80", "c -vector_bytes=16") to the same computation
               lowered for it, or a TensorIRError; see ``for_target``
    hosted:    True if it ships as a C program that launches it on the driver
    images:    compiled CUDA images that such a program carries
    """

    source: Source
    outputs: Sequence[Tensor]
    reference: Callable[..., Any] | None = None
    trace: str = ""
    kind: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    max_error: float | None = None
    again: Callable[[str], ExportProgram] | None = None
    arch: str = ""
    hosted: bool = False
    images: Images | None = None

    @property
    def language(self) -> str:
        """Language of the exported files: "c" if a C host program launches the kernels, else that of the source."""
        return "c" if self.hosted else self.source.language

    def for_target(self, target: str, needed_by: str) -> ExportProgram:
        """This computation as a program for ``target``; itself if it is in that language already.

        needed_by: destination named in errors
        Raises ExportError ``export.language`` for a program without its schedule, and errors of lowering.
        """
        if self.source.language == target:
            return self
        if self.again is None:
            raise refuse(
                ExportError,
                "export.language",
                f"{needed_by} needs {target} source, this program is {self.source.language}",
                hint=f'a schedule with target="{target}"; tensorir export writes the tuned kernels of each',
            )
        return self.again(target)
