"""Export options: validated destinations, operator names and folders; the program lowered for each wanted language."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypeVar

from tensorir.codec import small_file
from tensorir.codegen.names import identifier
from tensorir.errors import TensorIRError, refuse
from tensorir.errors.needs import shown
from tensorir.errors.spelling import nearest
from tensorir.export.bodies import BODIES
from tensorir.export.c_host import HOSTS
from tensorir.export.destination import OperatorName
from tensorir.export.destinations import DESTINATIONS
from tensorir.export.program import ExportError, ExportProgram

FORMAT = "tensorir-export"
NAMESPACE = "tensorir"
RELOWERED_LANGUAGES = ("c",)
"""Languages that a kernel tuned in another one serves as well, where the log has none of them."""

_Made = TypeVar("_Made")


def destinations(to: str | Sequence[str]) -> tuple[str, ...]:
    """Destination names from a list or comma-separated string, without repetition. Raises ExportError
    ``export.destination`` for unknown ones, or if there are none.
    """
    to = [word.strip() for word in to.split(",") if word.strip()] if isinstance(to, str) else to
    legal = ", ".join(DESTINATIONS)
    if not isinstance(to, list | tuple) or not to:
        raise refuse(ExportError, "export.destination", "to is a list of destinations", hint=f"one or more of {legal}")
    for name in to:
        if not isinstance(name, str) or name not in DESTINATIONS:
            near = nearest(name if isinstance(name, str) else "", DESTINATIONS)
            hint = f"{near[0]} (legal: {legal})" if near else f"one of {legal}"
            raise refuse(ExportError, "export.destination", f"there is no destination {shown(name)}", hint=hint)
    return tuple(dict.fromkeys(to))


def refuse_sets(to: str | Sequence[str]) -> None:
    """Raise ``export.set`` for destinations that take a single shape only."""
    for one in destinations(to):
        if not DESTINATIONS[one].sets:
            legal = ", ".join(name for name, row in DESTINATIONS.items() if row.sets)
            message = f"{one} takes the kernel of one shape, not a set of shapes"
            hint = f"one of {legal}; or each shape in a folder of its own"
            raise refuse(ExportError, "export.set", message, hint=hint)


def operator(name: str | None, path: str | Path) -> OperatorName:
    """The kernel's registered name, from ``NS::NAME`` or NAME; None: from the folder's name.

    Raises ExportError ``export.name`` if it is no C identifier, or taken.
    """
    if name is None:
        return OperatorName(NAMESPACE, _legal_name(Path(path).resolve().name))
    words = name.split("::") if isinstance(name, str) else []
    words = [NAMESPACE, *words] if len(words) == 1 else words
    legal = [_legal(words[0]), _legal_name(words[1])] if len(words) == 2 else ["mine", "conv"]
    if words != legal:
        message = f"name is NS::NAME, two identifiers that C, its library and Python leave free, got {shown(name)}"
        raise refuse(ExportError, "export.name", message, hint=f'name="{"::".join(legal)}"')
    return OperatorName(*words)


_WORDS = """
abort abs access acos acosh alarm alloca asin asinh atan atan2 atanh atof atoi atol basename bcmp bcopy brk bsearch
bzero calloc canonicalize cbrt chdir chown chroot clock clone close copysign cosh crypt ctime daemon difftime div drem
dup erfc execv exit exp10 expm1 fdim ffs finite fmod fork fprintf free frexp fsync gamma getenv hypot ilogb index
initstate j0 j1 jn kill labs ldexp ldiv lgamma link llabs log10 log1p logb lrint lround lseek malloc memchr memcmp
memcpy memmem memmove memset mktemp mktime modf nan nanosleep nearbyint nextafter nice open pathconf pause pipe pread
putenv pwrite qsort raise rand random read readlink realloc remainder remove remquo rename revoke rewind rindex rmdir
roundeven sbrk scalb scalbn select setstate signal significand sincos sinh sleep snprintf sprintf srand srandom strlen
swab symlink sync syscall system tan tempnam tgamma time trunc truncate unlink usleep valloc vfork wait write y0 y1 yn
"""
_C_LIBRARY = frozenset(_WORDS.split())
"""Functions that C programs, or what is linked with them, have already: a second one is called in their place."""
_C_PROGRAM = re.compile(r"call|buffers|door_\w+|(?i:[rwxf]|page)")
"""Names that exported C programs use, and those whose codes are macros of systems: R_OK, PAGE_SIZE."""


def _legal(word: str) -> str:
    """``word`` turned into an identifier of C, C++ and Python."""
    found = identifier(word)
    return f"{found}_" if iskeyword(found) else found


def _legal_name(word: str) -> str:
    """``word`` turned into a C function name that does not clash with the C library."""
    found = _legal(word)
    return f"{found}_" if found in _C_LIBRARY or _C_PROGRAM.fullmatch(found) else found


def programs(
    part: ExportProgram, to: Sequence[str], others: Mapping[str, ExportProgram] | None = None
) -> dict[str, ExportProgram]:
    """{language: program} for the destinations ``to``: ``part``, ``others``, and ``part`` lowered again for
    destinations that can run neither.

    Raises ExportError ``export.language``, and errors of lowering.
    """
    found = {part.source.language: part, **(others or {})}
    for name in to:
        takes = DESTINATIONS[name].takes
        if not any(language in found for language in takes):
            found[takes[0]] = _again(part, takes[0], name, to)
    return {lang: one for lang, one in found.items() if any(lang in DESTINATIONS[name].takes for name in to)}


def _again(part: ExportProgram, language: str, needed_by: str, to: Sequence[str]) -> ExportProgram:
    """``part`` lowered for ``language``. For C, a program for a GPU, or one that cannot be lowered to C, is launched by
    a C host program instead if all destinations accept that.

    needed_by: destination named in errors
    """
    source = part.source.language
    hosted = language == "c" and all(source in d.hosts for d in map(DESTINATIONS.__getitem__, to) if "c" in d.takes)
    if not hosted or source not in HOSTS:
        return part.for_target(language, needed_by)
    if part.kind != "gpu":
        with contextlib.suppress(TensorIRError):
            return part.for_target(language, needed_by)
    return replace(part, hosted=True)


def by_language(to: str | Sequence[str], language: str | None = None) -> dict[str | None, list[str]]:
    """{language: destinations that take it}. Languages are those that are the only one of some destination; the key
    None, for any language, stands for all destinations if there are no such languages.

    language: if given, the result has this one entry, with all destinations
    Raises ExportError as ``export`` does for unknown destinations.
    """
    to = destinations(to)
    if language is not None:
        return {language: list(to)}
    given = dict.fromkeys(DESTINATIONS[name].takes[0] for name in to if len(DESTINATIONS[name].takes) == 1)
    made: dict[str | None, list[str]] = {}
    for one in given or [None]:
        made[one] = [name for name in to if one is None or one in DESTINATIONS[name].takes]
    return made


def each_language(
    wanted: Mapping[str | None, Sequence[str]], make: Callable[[str | None], _Made]
) -> dict[str | None, _Made]:
    """{language: make(language)}; nothing is written here. Raises the errors of ``make``, those of code
    ``export.not-tuned`` or ``template.target`` with the destinations that need the language.
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
    """``error``, its message extended by the destinations that need the missing language; other errors unchanged."""
    only = [name for name in wanted[language] if DESTINATIONS[name].takes == (language,)]
    if not only or error.code not in ("export.not-tuned", "template.target"):
        return error
    first, *others = error.problems
    nothing = "" if len(wanted) == 1 else ", and nothing was written"
    words = f"{', '.join(only)} needs {language} source{nothing}: {first.message}"
    return type(error)([replace(first, message=words), *others])


def places(path: str | Path, wanted: Iterable[str | None]) -> dict[str | None, Path]:
    """{language: folder}: ``path`` itself for a single language, else its subfolders.

    Raises ExportError ``export.not-empty``, before anything is written, if a folder may not be written.
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
        existing(folder)
    return found


MAX_MANIFEST = 64 << 20
"""Bytes of an earlier export's manifest that are read; ours have some thousands."""


def existing(folder: Path) -> list[str]:
    """Names of the files of an earlier export in ``folder``; [] if it is empty or missing. Raises ExportError
    ``export.not-empty`` for other folders.
    """
    try:
        if not folder.exists() and not folder.is_symlink():
            return []
        if not folder.is_dir():
            raise refuse(ExportError, "export.not-empty", f"{folder} is not a folder")
        if not any(folder.iterdir()):
            return []
        manifest = json.loads(small_file(folder / "manifest.json", MAX_MANIFEST))
        if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
            names = [*manifest.get("files", {}), "manifest.json"]
            names += [manifest["library"].get("file")] if isinstance(manifest.get("library"), dict) else []
            return [n for n in names if isinstance(n, str) and Path(n).name == n]
    except (OSError, ValueError, RecursionError):
        pass
    message = f"{folder} is not empty and holds no earlier export"
    raise refuse(ExportError, "export.not-empty", message, hint="another folder")


def package_of(folder: Path) -> str | None:
    """Name by which Python imports the folder, with its parent on ``sys.path``; None if its name is no module name or
    shadows an imported module.
    """
    place = folder.resolve()
    names = [place.name] if place.name not in BODIES else [place.parent.name, place.name]
    frameworks: set[Any] = {*DESTINATIONS, *(needed for body in BODIES.values() for needed in body.needs)} - {"source"}
    taken = {*sys.stdlib_module_names, "numpy"} | frameworks
    legal = all(n.isidentifier() and not iskeyword(n) for n in names) and names[0] not in taken
    return ".".join(names) if legal else None
