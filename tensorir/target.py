"""``Target``: limits and features of a device, for schedules and lowering; parsed from text such as "cuda
-arch=sm_90a".
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, fields, replace
from math import prod

from tensorir.errors import DeclarationError, Problem, refuse
from tensorir.errors.habits import habit
from tensorir.errors.needs import need_bool, need_choice, need_int, need_ints, need_text, wrong
from tensorir.errors.shown import Shown
from tensorir.errors.spelling import nearest

_OPT_IN = {  # bytes of shared memory that one block may have when the kernel asks for it (CUDA programming guide)
    70: 98304, 72: 98304, 75: 65536, 80: 166912, 86: 101376, 87: 166912, 88: 101376, 89: 101376,
    90: 232448, 100: 232448, 101: 232448, 103: 232448, 110: 232448, 120: 101376, 121: 101376,
}  # fmt: skip
_DEFAULT_ARCH = {"cuda": "sm_80", "hip": "gfx90a"}
_EXAMPLES = '"opencl", "opencl -kind=gpu", "cuda", "cuda -arch=sm_90a", "hip", "c", or a device such as "opencl:0:0"'
LANGUAGES = ("opencl", "cuda", "hip", "c")
_NAME = re.compile(r"(opencl|cuda|hip|c)(?::([A-Za-z0-9_.]+))?(?::([A-Za-z0-9_.]+))?\Z")


@dataclass(frozen=True, repr=False)
class Target(Shown):
    """A kind of device and its limits; ``Target.parse`` makes one from text.

    language:           "opencl", "cuda", "c" or "hip" (source text only: there is no HIP runtime here)
    kind:               "cpu" or "gpu"
    arch:               "sm_80", "sm_90a" …; empty for OpenCL
    device:             "opencl:0:0", "cuda:0" … if the text names a device, else empty
    max_threads:        threads per block; max_block and max_grid bound each of (x, y, z)
    shared_bytes:       bytes of shared memory per block by default; shared_optin_bytes: with the kernel's opt-in
    fp16, fp64, int64:  True if the device has half precision, double precision, 64-bit integers
    registers:          32-bit registers of a GPU multiprocessor, vector registers of a CPU core
    thread_registers:   maximum 32-bit registers per GPU thread
    warp:               threads that run in lockstep (1 on a CPU)
    vector_bytes:       bytes of the widest load or store
    precise_math:       True to call the compiler's library for exp, log, sin … of float32: not our own text on a CPU,
                        not fast functions on a GPU
    units:              multiprocessors or cores; 0 if unknown (no device was opened)
    here:               True if its limits are those of a device of this computer (a plain name, an opened device)
    name:               label for people; neither is compared or part of ``text``

    Raises DeclarationError ``argument.type`` or ``argument.value`` for a field of another type or a negative number.
    """

    language: str
    kind: str
    arch: str = ""
    device: str = ""
    max_threads: int = 1024
    max_block: tuple[int, int, int] = (1024, 1024, 64)
    max_grid: tuple[int, int, int] = (2147483647, 65535, 65535)
    shared_bytes: int = 49152
    shared_optin_bytes: int = 49152
    registers: int = 65536
    thread_registers: int = 255
    warp: int = 32
    vector_bytes: int = 16
    fp16: bool = False
    fp64: bool = True
    int64: bool = True
    precise_math: bool = False
    units: int = 0
    here: bool = field(default=False, compare=False)
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        need_choice("language", self.language, LANGUAGES)
        need_choice("kind", self.kind, ("cpu", "gpu"))
        for f in fields(self):
            value = getattr(self, f.name)
            match f.default:
                case bool():
                    need_bool(f.name, value)
                case int():
                    need_int(f.name, value, 0)
                case tuple() if len(need_ints(f.name, value)) != 3:
                    raise wrong(f.name, value, "three ints x, y, z")
                case str() if not isinstance(value, str):
                    raise wrong(f.name, value, "a string")

    @property
    def sm(self) -> int:
        """CUDA compute capability as a number: 90 for sm_90a; 0 for OpenCL, C and HIP."""
        found = re.fullmatch(r"sm_(\d+)[af]?", self.arch)
        return int(found[1]) if found else 0

    def has(self, need: str) -> bool:
        """True if the target has a feature such as "fp16", or at least the architecture ``need``, such as "sm_80".

        A name ending in "a" ("sm_90a") must match exactly (PTX ISA, on architecture-specific features). False for
        unknown names; DeclarationError for anything but text.
        """
        least = re.fullmatch(r"sm_(\d+)(a?)", need_text("need", need, empty=True))
        if least is None:
            return bool(getattr(self, need, False))
        return self.arch == need if least[2] else self.sm >= int(least[1])

    @property
    def family(self) -> str:
        """Language whose vector and type rules apply: "cuda" for HIP, which is CUDA C++ with other headers; else
        ``language``.
        """
        return "cuda" if self.language == "hip" else self.language

    @property
    def text(self) -> str:
        """Text that ``Target.parse`` turns back into an equal target."""
        base = preset(self.language, self.kind, self.arch)
        words = [self.device or self.language]
        if self.language == "opencl" and self.kind != "cpu":
            words.append(f"-kind={self.kind}")
        if self.arch:
            words.append(f"-arch={self.arch}")
        for name in _SETTABLE:
            value = getattr(self, name)
            if value != getattr(base, name):
                words.append(f"-{name}={_write(value)}")
        return " ".join(words)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str | Target) -> Target:
        """The target described by ``text``, such as ``"cuda -arch=sm_90a"``; a Target is returned unchanged.

        No device is opened: unstated limits are those of ``preset``, also for a device's name. Raises DeclarationError
        ``target.unknown``.
        """
        if isinstance(text, Target):
            return text
        if not isinstance(text, str):
            raise _unknown(f"a target is a string or a Target, not {type(text).__name__}")
        try:
            words = shlex.split(text)
        except ValueError:
            words = []
        match = _NAME.match(words[0]) if words else None
        if match is None:
            raise _unknown(f"{text[:80]!r} is not a target", habit("target", text.strip().lower()) or _likely(text))
        options = dict(_option(word, text) for word in words[1:])
        language, device = match[1], words[0] if match[2] is not None else ""
        if language == "hip" and device:
            raise _unknown(f"{device!r} is no device: HIP is source text only here")
        if language == "c" and match[3] is not None:
            raise _unknown(f'{words[0]!r} is no device: those that run C are "c:0", "c:clang" …', "c:0")
        if language == "cuda" and (match[3] is not None or (match[2] or "0").isdigit() is False):
            raise _unknown(f'{words[0]!r} is not a CUDA device; they are named "cuda:0", "cuda:1" …', "cuda:0")
        kinds = _KINDS.get(language, ("gpu",))
        kind = options.pop("kind", kinds[0])
        if kind not in kinds:
            near = nearest(kind, kinds)
            raise _unknown(f"{language} has no kind {kind!r}", f"{language} -kind={near[0]}" if near else None)
        made = preset(language, kind, options.pop("arch", _DEFAULT_ARCH.get(language, "")))
        values = {name: _read(name, value, text) for name, value in options.items()}
        return replace(made, device=device, **values)  # type: ignore[arg-type]


_KINDS = {"opencl": ("cpu", "gpu"), "c": ("cpu",)}
_SETTABLE = tuple(
    f.name for f in fields(Target) if f.name not in ("language", "kind", "arch", "device", "here", "name")
)


def preset(language: str, kind: str, arch: str = "") -> Target:
    """Target with the default limits of a kind of device ("cpu", "gpu"), which need not be present.

    Raises DeclarationError ``target.unknown`` for an unknown architecture.
    """
    if language == "cuda":
        match = re.fullmatch(r"sm_(\d{2,3})([af]?)", arch)
        number = int(match[1]) if match else 0
        if match is None or number not in _OPT_IN or (match[2] and number < 90):
            known = [f"sm_{n}" for n in _OPT_IN]
            near, legal = "".join(f"{name}?  " for name in nearest(arch, known)), ", ".join(known)
            raise refuse(
                DeclarationError,
                "target.unknown",
                f"{arch!r} is not a CUDA architecture that tensorir knows",
                hint=f"{near}-arch= one of {legal}; an a may follow from sm_90 on",
            )
        return Target("cuda", "gpu", arch, shared_optin_bytes=_OPT_IN[number], fp16=True, name=f"CUDA {arch}")
    if language == "hip":
        if not re.fullmatch(r"gfx[0-9a-f]{3,4}", arch):
            raise _unknown(f"{arch!r} is not an AMD architecture, such as gfx90a")
        wave = 64 if arch.startswith("gfx9") else 32  # CDNA and RDNA (HIP programming guide, wavefronts)
        return Target("hip", "gpu", arch, shared_bytes=65536, shared_optin_bytes=65536, fp16=True, warp=wave,
                      name=f"HIP {arch}")  # fmt: skip
    if arch:
        raise _unknown(f"{'C' if language == 'c' else 'OpenCL'} targets have no architecture ({arch!r})")
    if language == "c":
        return replace(preset("opencl", "cpu"), language="c", max_threads=1, max_block=(1, 1, 1), name="C")
    if kind == "gpu":
        return Target("opencl", "gpu", max_threads=256, max_block=(256, 256, 256), name="OpenCL GPU")
    return Target(
        "opencl",
        "cpu",
        max_threads=4096,
        max_block=(4096, 4096, 4096),
        max_grid=(2147483647, 2147483647, 2147483647),
        shared_bytes=524288,
        shared_optin_bytes=524288,
        registers=16,
        warp=1,
        vector_bytes=32,
        name="OpenCL CPU",
    )


def beyond_limits(
    target: Target, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int,
    cluster: int = 1, arrays: str = "",
) -> list[Problem]:  # fmt: skip
    """Problems of a kernel that exceeds a target's limits: grid, threads and shared-memory bytes per block; [] if it
    fits.

    A limit of 0 is unknown and not checked; shared memory is compared with the opt-in limit.

    cluster: blocks of a cluster, which must divide the grid's x; arrays: lines for the problem that list the arrays in
    shared memory
    """
    problems = []
    where = target.name or target.text
    if (threads := prod(block)) > target.max_threads > 0:
        text = f"kernel {kernel} has blocks of {threads} threads; {where} allows {target.max_threads}"
        problems.append(Problem("compile.threads", text, hint="smaller thread extents"))
    for axis, have, most in zip("xyz", block, target.max_block, strict=True):
        if have > most > 0:
            text = f"kernel {kernel}: thread.{axis} has extent {have}; {where} allows {most}"
            problems.append(Problem("compile.threads", text, hint="smaller thread extents"))
    for axis, have, most in zip("xyz", grid, target.max_grid, strict=True):
        if have > most > 0:
            text = f"kernel {kernel}: block.{axis} has extent {have}; {where} allows {most}"
            problems.append(Problem("compile.grid", text, hint="block.x has the largest limit"))
    if grid[0] % cluster:
        text = f"kernel {kernel} has {grid[0]} blocks along x, no whole clusters of {cluster}"
        problems.append(Problem("compile.grid", text))
    if shared > target.shared_optin_bytes > 0:
        has = f"{where} has {target.shared_optin_bytes} for a block"
        text = f"kernel {kernel} needs {shared} bytes of shared memory; {has}"
        hint = "a copy at a loop further in, smaller tiles, or fewer pipeline stages"
        problems.append(Problem("compile.shared-memory", text, arrays, hint))
    return problems


def _unknown(message: str, meant: str | None = None) -> Exception:
    first = f'"{meant}"; one of ' if meant else ""
    return refuse(DeclarationError, "target.unknown", message, hint=first + _EXAMPLES)


def _likely(text: str) -> str:
    """The target or device whose misspelling ``text`` probably is; "" if none is similar."""
    first, *rest = re.split(r"(?=[\s:])", text.strip(), maxsplit=1)
    likely = [f"{language}{''.join(rest)}" for language in nearest(first, LANGUAGES)]
    likely += nearest(text, ("opencl:0:0", "cuda:0"))
    return next((name for name in likely if _NAME.match(name.split()[0])), "")


def _option(word: str, text: str) -> tuple[str, str]:
    match = re.fullmatch(r"--?([a-z0-9_]+)=(.+)", word)
    if match is None or match[1] not in ("kind", "arch", *_SETTABLE):
        names = [f"-{name}=" for name in ("kind", "arch", *_SETTABLE)]
        near = nearest(word.partition("=")[0] + "=", names)
        legal = "".join(f"{name}?  " for name in near) + " ".join(names)
        raise refuse(DeclarationError, "target.unknown", f"{word!r} in target {text[:80]!r} is no option", hint=legal)
    return match[1], match[2]


def _write(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, int) else str(value)


def _read(name: str, value: str, text: str) -> int | bool | tuple[int, ...]:
    default = getattr(Target("opencl", "cpu"), name)
    parts = value.split(",")
    wanted = len(default) if isinstance(default, tuple) else 1
    limit = 1 if isinstance(default, bool) else 2**62
    if len(parts) != wanted or not all(re.fullmatch(r"\d{1,18}", p) and int(p) <= limit for p in parts):
        shape = "three numbers x,y,z" if wanted == 3 else "0 or 1" if limit == 1 else "a number"
        raise _unknown(f"-{name}={value} in target {text[:80]!r}: expected {shape}")
    numbers = tuple(map(int, parts))
    if isinstance(default, tuple):
        return numbers
    return bool(numbers[0]) if isinstance(default, bool) else numbers[0]
