"""Ahead-of-time compilation of CUDA programs: cubins for given architectures, PTX for later ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorir.errors import TensorIRError, refuse
from tensorir.errors.needs import need_list
from tensorir.export.program import ExportError, ExportProgram
from tensorir.export.shipped.cuda_images import PORTABLE, TUNED, number
from tensorir.runtime.cuda import compile_image
from tensorir.target import Target

PTX_LEVELS = (75, 80, 90)
"""PTX that is made, as far as the program runs there: compute_75 … And that of its own architecture between them."""
PORTABLE_LEVEL = 80
"""Architecture of the portable program where only special ones are asked for."""


@dataclass(frozen=True)
class DeviceImage:
    """A compiled image: ``kind`` "cubin" or "ptx"; ``program`` "tuned" or "portable"."""

    kind: str
    arch: str
    program: str
    data: bytes

    def entry(self, file: str) -> dict[str, str]:
        """Its row in ``manifest["cuda"]["images"]``."""
        return {"kind": self.kind, "arch": self.arch, "file": file, "program": self.program}


@dataclass(frozen=True)
class Images:
    """All compiled images of a CUDA program.

    portable: program for architectures that cannot run the tuned one; None if not needed
    missing:  reason why no portable program exists although it would help; "" otherwise
    """

    images: tuple[DeviceImage, ...]
    portable: ExportProgram | None = None
    missing: str = ""


def architectures(arch: Sequence[str]) -> tuple[str, ...]:
    """Validated architectures, without repetition; a string counts as one. Raises ExportError ``export.arch``,
    ``argument.type`` unless ``arch`` is a list or tuple, or ``target.unknown`` for unknown ones.
    """
    named = [arch] if isinstance(arch, str) else need_list("arch", arch, "architectures, such as sm_80", ExportError)
    given: list[str] = []
    for one in named:
        if not isinstance(one, str) or not one.startswith("sm_"):
            message = f"arch is a list of CUDA architectures, got {one!r:.60}"
            raise refuse(ExportError, "export.arch", message, hint='arch=["sm_80", "sm_90a"]')
        Target.parse(f"cuda -arch={one}")
        given.append(one)
    return tuple(dict.fromkeys(given))


def compiled(part: ExportProgram, arch: Sequence[str]) -> Images:
    """Compile a CUDA program for the architectures, plus PTX for later ones.

    Raises ExportError ``export.portable`` if an architecture needs a portable program and lowering one fails,
    CompileError ``compile.nvrtc``, DeviceError ``device.no-nvrtc``.
    """
    least, special = number(part.arch)
    others = [one for one in arch if not _runs(part.arch, one)]
    portable, missing = None, ""
    if others or special:
        level = min([number(one)[0] for one in others], default=min(PORTABLE_LEVEL, least))
        try:
            portable = _portable(part, f"cuda -arch=sm_{level}")
        except TensorIRError as error:
            first = error.problems[0].message if error.problems else str(error)
            missing = f"this program runs on {part.arch}{'' if special else ' and later'} only: {first}"
            if others:
                hint = f"arch without {', '.join(others)}, or a schedule for sm_{level}"
                message = f"no kernel for {', '.join(others)}: {missing}"
                raise refuse(ExportError, "export.portable", message[:600], hint=hint) from None
    made = []
    for one in arch:
        program, text = _text(part, portable, one)
        made.append(DeviceImage("cubin", one, program, compile_image(text, one)))
    plain = [p for p in (part, portable) if p is not None and not number(p.arch)[1]]
    own = {n for p in plain if (n := number(p.arch)[0]) > PTX_LEVELS[0]}  # NVRTC may not know earlier ones
    for level in sorted({*PTX_LEVELS, *own}):
        able = [p for p in plain if number(p.arch)[0] <= level]
        if able:
            program, text = _text(part, able[0], f"sm_{level}")
            made.append(DeviceImage("ptx", f"compute_{level}", program, compile_image(text, f"compute_{level}")))
    return Images(tuple(made), portable, missing)


def _portable(part: ExportProgram, target: str) -> ExportProgram:
    """The computation lowered for ``target``, an architecture whose code later ones run too. Raises ExportError
    ``export.portable`` if it cannot be lowered again.
    """
    if part.again is None:
        raise refuse(ExportError, "export.portable", "it came without its schedule", hint="s.export(…)")
    return part.again(target)


def _text(part: ExportProgram, portable: ExportProgram | None, arch: str) -> tuple[str, str]:
    """("tuned" or "portable", CUDA text) of the program for an architecture."""
    if portable is None or _runs(part.arch, arch):
        return TUNED, part.source.text
    return PORTABLE, portable.source.text


def _runs(made_for: str, arch: str) -> bool:
    """True if CUDA text lowered for the architecture ``made_for`` compiles for ``arch``."""
    (least, special), (given, _) = number(made_for), number(arch)
    return made_for == arch if special else given >= least
