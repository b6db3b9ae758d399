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
    """A folder cannot be exported: unknown destination, foreign files, full disk."""


@dataclass(frozen=True, eq=False)
class ExportProgram:
    """A program to export: its source, with what is needed to test it and to lower it for other targets.

    outputs:   the declarations, from which the self-test's expected results are computed
    reference: another way to compute them, in NumPy
    kind:      "cpu" or "gpu": which device the loader prefers
    arch:      CUDA's architecture that it was lowered for; empty for other languages
    about:     more for the manifest (the record, the device it was tuned on)
    max_error: what its results may be off, as ``Workload.allowed_error`` says
    again:     the same computation lowered for another target, by its text ("c", "cuda -arch=sm_80"); see
               ``for_target``. It also gives this language for other limits ("c -vector_bytes=16"). It raises a
               TensorIRError where the schedule cannot be lowered so
    hosted:    it ships as a C program that launches it on the driver
    images:    what of it such a program carries compiled
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
        """Language of the exported program: "c" if a C host program launches it."""
        return "c" if self.hosted else self.source.language

    def for_target(self, target: str, needed_by: str) -> ExportProgram:
        """This computation as a program for ``target``; itself if already in that language.

        needed_by: the destination, for the message
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
