"""Compiles CUDA text with NVRTC to cubins and parses ptxas reports; needs no GPU or driver.

NVRTC (through the copy that CuPy brings) compiles; the options, the log and the cubin are ours, so the registers and
spills of a candidate are known before any GPU sees it, and the cubin can be shipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorir.errors import CompileError, DeviceError, Problem, refuse
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.runtime.library_caches import ensure_cache
from tensorir.runtime.scratch import Scratch

_LOG_BYTES = 4096
_PIP = 'pip install cupy-cuda13x "cuda-toolkit[nvrtc,cudart,crt,nvdisasm]==13.*"'


@dataclass(frozen=True)
class KernelUse:
    """Resource usage of a kernel as reported by ptxas: registers and bytes of stack per thread, static shared bytes and
    barriers per block; spill_bytes: stores plus loads, per thread
    """

    registers: int = 0
    spill_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    barriers: int = 0


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, compiler log, and resource usage by kernel.

    registers, shared_bytes: of the worst kernel;  spills: spill bytes of all kernels together
    """

    data: bytes = field(repr=False)
    arch: str
    log: str = field(repr=False)
    kernels: dict[str, KernelUse]
    cached: bool = field(default=False, compare=False)

    @property
    def registers(self) -> int:
        return max((k.registers for k in self.kernels.values()), default=0)

    @property
    def spills(self) -> int:
        return sum(k.spill_bytes for k in self.kernels.values())

    @property
    def shared_bytes(self) -> int:
        return max((k.shared_bytes for k in self.kernels.values()), default=0)


def load_cupy() -> ModuleType:
    """Import cupy; raises DeviceError ``device.no-cupy`` if that fails."""
    ensure_cache("CUPY_CACHE_DIR", "~/.cupy/kernel_cache")
    try:
        return importlib.import_module("cupy")
    except (ImportError, OSError) as error:
        raise refuse(DeviceError, "device.no-cupy", f"cupy cannot be imported ({error})", hint=_PIP) from None


def compile_cubin(text: str, arch: str = "sm_80", options: tuple[str, ...] = (), *, cache: bool = True) -> Cubin:
    """Compile CUDA C++ for ``arch`` ("sm_90a"), or take it from the artifact cache. Needs no GPU.

    A kernel without a stated number of blocks per multiprocessor is compiled again for one block if registers are
    spilled; the smaller spill wins. Raises CompileError ``compile.nvrtc`` with the log, DeviceError ``device.no-cupy``
    and ``device.no-nvrtc``.
    """
    nvrtc, version = _nvrtc()
    arguments = [f"--gpu-architecture={arch}", "--std=c++17", "-lineinfo", "--ptxas-options=-v", *options]
    headers = _include_folders()  # their versions are in the key: cubins travel to machines that have them elsewhere
    key = cache_key(
        kind="cubin", source=text, options=arguments, headers=list(headers.values()), nvrtc=version, again="spilled"
    )
    arguments += [f"-I{folder}" for folder in headers]
    stored = _unpack(default_cache().get(key)) if cache else None
    if stored is not None:
        log, data = stored
    else:
        log, data = _without_spills(nvrtc, text, arguments, arch)
        if cache:
            default_cache().put(key, json.dumps(log).encode() + b"\n" + data)
    return Cubin(data, arch, log, parse_ptxas(log), cached=stored is not None)


def compile_image(text: str, arch: str) -> bytes:
    """Compile CUDA C++ to machine code for "sm_90a", or to PTX for "compute_80", to be shipped. Needs no GPU.

    Raises CompileError ``compile.nvrtc``, DeviceError ``device.no-cupy`` and ``device.no-nvrtc``.
    """
    nvrtc, _ = _nvrtc()
    arguments = [f"--gpu-architecture={arch}", "--std=c++17", *(f"-I{folder}" for folder in _include_folders())]
    return _without_spills(nvrtc, text, [*arguments, "--ptxas-options=-v"], arch)[1]


def nvrtc_version() -> str:
    """NVRTC's version, such as ``"13.4"``; raises DeviceError ``device.no-cupy`` or ``device.no-nvrtc``."""
    return _nvrtc()[1]


def _nvrtc() -> tuple[Any, str]:
    cupy = load_cupy()
    try:
        nvrtc = cupy.cuda.nvrtc
        major, minor = nvrtc.getVersion()
    except Exception as error:  # (the library is loaded here, and each loader has its own exception)
        raise refuse(DeviceError, "device.no-nvrtc", f"NVRTC cannot be loaded ({error})", hint=_PIP) from None
    return nvrtc, f"{major}.{minor}"


def _include_folders() -> dict[str, str]:
    """{include folder: version} of the CUDA headers and CuPy's libcu++, in search order."""
    cupy = load_cupy()
    within = Path(str(cupy.__file__)).parent / "_core/include/cupy"
    bundled = sorted(within.glob("_cuda/cuda-*"), reverse=True)  # CuPy 13: the header of halves, by major version
    found = {}
    if (folder := _toolkit_headers()) is not None:  # text without headers compiles all the same
        text = (folder / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
        version = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
        found[str(folder)] = f"cudart {version[1] if version else folder}"
    elif bundled:
        found[str(bundled[0])] = f"cupy {cupy.__version__}"
    if (libcudacxx := within / "_cccl/libcudacxx").is_dir():
        found[str(libcudacxx)] = f"cupy {cupy.__version__}"
    return found


def _toolkit_headers() -> Path | None:
    """First folder with CUDA's fp16 and runtime headers; None if none."""
    wanted = ("cuda_fp16.h", "cuda_runtime_api.h")
    return next((f for f in _toolkit_folders() if all((f / name).is_file() for name in wanted)), None)


def _toolkit_folders() -> Iterator[Path]:
    """Candidate CUDA header folders: NVRTC's wheel, a named toolkit, pip wheels, the default toolkit."""
    try:
        wheel = importlib.import_module("cuda.pathfinder").find_nvidia_header_directory("cudart")
    except Exception:  # not installed, or one that does not know headers
        wheel = None
    if wheel:
        yield Path(wheel)
    for toolkit in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if toolkit:
            yield Path(toolkit, "include")
    spec = importlib.util.find_spec("nvidia")  # what PyTorch's wheels bring, and the toolkit's
    for folder in spec.submodule_search_locations or () if spec else ():
        for name in ("cu13", "cuda_runtime"):
            yield Path(folder, name, "include")
    yield Path("/usr/local/cuda/include")


def _without_spills(nvrtc: Any, text: str, arguments: list[str], arch: str) -> tuple[str, bytes]:
    """Compiler log and cubin. Spilling kernels are recompiled with one block per multiprocessor; the smaller spill
    wins.
    """
    log, data = _compile(nvrtc, text, arguments, arch)
    spilled = {name: use.spill_bytes for name, use in parse_ptxas(log).items() if use.spill_bytes}
    alone, asked = text, any("maxrregcount" in x for x in arguments)
    for name in () if asked else spilled:
        alone = re.sub(rf"\b__launch_bounds__\((\d+)\)(\s+{name}\s*\()", r"__launch_bounds__(\1, 1)\2", alone)
    if alone == text:
        return log, data
    again = _compile(nvrtc, alone, arguments, arch)
    less = sum(use.spill_bytes for use in parse_ptxas(again[0]).values()) < sum(spilled.values())
    return again if less else (log, data)


def _compile(nvrtc: Any, text: str, arguments: list[str], arch: str) -> tuple[str, bytes]:
    program = nvrtc.createProgram(text, "kernel.cu", [], [])
    try:
        try:
            nvrtc.compileProgram(program, arguments)
            get = nvrtc.getPTX if arch.startswith("compute_") else nvrtc.getCUBIN
            data: bytes = get(program)
        except nvrtc.NVRTCError as error:
            raise _compile_error(text, arch, nvrtc.getProgramLog(program) or str(error)) from None
        log: str = nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)
    if arch.startswith("compute_"):
        return log, data.encode() if isinstance(data, str) else data
    return log, data + b"\0" * (-len(data) % 8)  # CuPy 14.2 drops the last byte, which nvdisasm misses


def _compile_error(text: str, arch: str, log: str) -> CompileError:
    lines = log.splitlines()
    first = next((x for x in lines if "error" in x), lines[0] if lines else "the compiler gave no reason")
    place = re.search(r"kernel\.cu\((\d+)\)", first)
    source, at = text.splitlines(), ""
    if place and 1 <= int(place[1]) <= len(source):
        at = f"{int(place[1]):4d} | {source[int(place[1]) - 1][:160]}"
    return CompileError(Problem("compile.nvrtc", f"{arch}: {first.strip()[:500]}", at), log=log[:_LOG_BYTES])


def _unpack(payload: bytes | None) -> tuple[str, bytes] | None:
    if payload is None:
        return None
    line, _, data = payload.partition(b"\n")
    try:
        log = json.loads(line)
    except ValueError:
        return None
    return (log, data) if isinstance(log, str) else None


def parse_ptxas(log: str) -> dict[str, KernelUse]:
    """Registers, spills, stack, shared memory and barriers by kernel, from ``--ptxas-options=-v``."""
    found: dict[str, dict[str, int]] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '([^']+)'", line):
            entry = function = match[1]
            found[entry] = {}
        elif match := re.search(r"Function properties for (\S+)", line):
            function = match[1]
        elif not entry:
            continue
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            use = found[entry]  # a function that was not inlined counts for the kernel that calls it
            use["stack_bytes"] = use.get("stack_bytes", 0) + int(match[1])
            use["spill_bytes"] = use.get("spill_bytes", 0) + int(match[2]) + int(match[3])
        elif function == entry and (match := re.search(r"Used (\d+) registers", line)):
            found[entry]["registers"] = int(match[1])
            for name, pattern in (("barriers", r"used (\d+) barriers"), ("shared_bytes", r"(\d+) bytes smem")):
                if part := re.search(pattern, line):
                    found[entry][name] = int(part[1])
    return {name: KernelUse(**use) for name, use in sorted(found.items())}


def sass(cubin: Cubin | bytes, *flags: str) -> str:
    """Disassembly by nvdisasm; flags such as ``-g`` (source lines) or ``-plr`` (live registers).

    Raises DeviceError ``device.no-nvdisasm``, CompileError ``compile.sass`` for bytes that are no cubin.
    """
    data = cubin.data if isinstance(cubin, Cubin) else cubin
    tool = _nvdisasm()
    with Scratch() as folder:
        path = folder / "kernel.cubin"
        path.write_bytes(data)
        try:
            done = subprocess.run(
                [tool, "-c", *flags, str(path)], capture_output=True, text=True, check=False, timeout=120
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise refuse(DeviceError, "device.no-nvdisasm", f"nvdisasm did not run: {error}") from None
    if done.returncode:
        reason = done.stderr.strip().replace(str(path), "the cubin")[:500]
        raise refuse(CompileError, "compile.sass", f"nvdisasm cannot read the cubin: {reason}")
    return done.stdout


def _nvdisasm() -> str:
    try:
        tool = importlib.import_module("cuda.pathfinder").find_nvidia_binary_utility("nvdisasm")
    except ImportError:
        tool = None
    if not tool:
        raise refuse(DeviceError, "device.no-nvdisasm", "nvdisasm is not installed", hint=_PIP)
    return str(tool)


_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


def sass_opcodes(cubin: Cubin | bytes | str, kernel: str | None = None) -> dict[str, int]:
    """{opcode with its width (``LDG.E.128``): occurrences in the text}, most frequent first; of one kernel, or of all
    (None). {} for a kernel that is not there.

    The read-only cache hint (``.CONSTANT``) is left out: it follows from ``const __restrict__``, not from the schedule.

    ``cubin`` may also be the text that ``sass`` returned.
    """
    text = cubin if isinstance(cubin, str) else sass(cubin)
    counts: Counter[str] = Counter()
    section = ""
    for line in text.splitlines():
        if match := re.match(r"//-+ (\S+)\s+-+", line.strip()):
            section = match[1]
        elif kernel not in (None, section.removeprefix(".text.")) or "@!PT" in line:  # @!PT: a dummy that never runs
            continue
        elif match := _INSTRUCTION.search(line):
            counts[match[1].removesuffix(".CONSTANT")] += 1
    return dict(counts.most_common())
