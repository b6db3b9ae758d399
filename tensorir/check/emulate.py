"""Run emitted CUDA text with no GPU: compiled by the system's C++ compiler, line by line, each CUDA thread a fiber.

``emulator/cuda.h`` supplies what the text names, ``emulator/runtime.cpp`` runs it and watches every access: what two
threads touch with no barrier between, reads of shared memory that nobody wrote, accesses out of bounds (of arrays in
registers too), barriers that not all threads reach. What a GPU does on its own (copies, products of warpgroups) happens
as late as the text allows. It counts what requests to memory cost. What is emulated are the documented semantics, not
a processor: rounding of special functions, weak memory orders and timing are not modelled; blocks run one after
another, those of a cluster at once.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorir.check.apart import EndedError, apart
from tensorir.check.derived import derived
from tensorir.check.launched import (
    check_cluster,
    check_kernel,
    check_map,
    cluster_of,
    does_not_fit,
    encoded,
    first_registers,
    told_by,
)
from tensorir.check.prepared import attribute_of, is_placed, prepared, section_of
from tensorir.codegen.dialect import DIALECTS
from tensorir.codegen.expressions import c_type
from tensorir.codegen.source import KernelLaunch, Param, Source
from tensorir.errors import CheckError, CompileError, Problem, refuse
from tensorir.interp.numbers import numpy_dtype
from tensorir.ir.dtypes import DTYPES, WIDENED
from tensorir.runtime.cache import cache_key, default_cache

POISON = 0xFF
"""Every byte of what a kernel has yet to write: NaN, -1."""
RED_ZONE = 4096
"""Bytes on each side of an array that belong to nobody."""
MAP_ALIGN = 16
"""Of the address of an array with a tensor map."""
OWN_BYTES = 512 << 10
"""Of arrays that a thread has to itself, on every GPU (CUDA C++ Programming Guide, local memory)."""
SECONDS = 300.0
"""Of processor time that a run may take where its caller does not say."""
BYTES = 8 << 30
"""That a run may take, and 64 times its arrays: what is watched of each cell is kept."""
COMPILE_SECONDS = 600.0
_ENDED = {
    "SIGFPE": "a whole number divided by zero, or the least one by -1",
    "SIGSEGV": "memory that belongs to nobody", "SIGBUS": "memory that belongs to nobody",
    "SIGABRT": "no memory left, or a check of the C library",
    "SIGILL": "a trap, or an instruction that the processor lacks",
}  # fmt: skip

_FOLDER = Path(__file__).with_name("emulator")
_TYPES = DIALECTS["cuda"].types
_GRANULES = {_TYPES[name]: min(2, kind.bits.bit_length() - 4) for name, kind in DTYPES.items()}
"""log2 of the bytes of a watched cell: a word, less where its neighbours may belong to other threads."""


@dataclass(frozen=True)
class Traffic:
    """What one place of the text asked of memory, on the first block.

    line:     of the emitted text, from 1; 0 where it is not known
    what:     "shared read" or "write", "global read", "write" or "add" (atomic);  width: bytes a thread
    requests: of whole warps;  lanes: threads that took part in them; products of warpgroups read eight rows at once, of
              16 bytes each
    units:    wavefronts of shared memory, or sectors of 32 bytes of global memory, and ``ideal``: the fewest that the
              bytes asked for take; more means bank conflicts, or accesses that do not coalesce
    """

    line: int
    what: str
    width: int
    requests: int
    lanes: int
    units: int
    ideal: int


@dataclass(frozen=True)
class Emulated:
    """What a run gave: the outputs, everything that was wrong, and the traffic."""

    outputs: list[np.ndarray]
    problems: tuple[Problem, ...]
    traffic: tuple[Traffic, ...]


def emulate(
    source: Source,
    arrays: Sequence[np.ndarray],
    seed: int = 0,
    eager: bool = False,
    limit_s: float = SECONDS,
    packed: bool = False,
) -> Emulated:
    """Compile ``source`` (CUDA) for the CPU and run all its kernels on ``arrays``, the inputs in signature order.

    The text runs in a fork of this process. If that crashes, or is not at its end in time, the problem is
    ``emulate.crashed`` or ``emulate.time``, with the line of the text where it was.

    seed:  of the order in which threads run; what is ordered by barriers does not depend on it
    eager: copies of tiles may land before anyone must wait for them, and not only then; threads that come to a barrier
           that counts may stay behind all others
    limit_s: seconds of processor time
    packed: arrays begin at odd multiples of what the kernels know of their addresses, and not of 256 bytes
    Raises CheckError ``emulate.no-compiler``, ``emulate.threads``, ``emulate.own-memory``, ``emulate.shared``,
    ``emulate.cluster`` or ``emulate.map``, CompileError ``emulate.compile``.
    """
    for k in source.kernels:
        check_kernel(k, source.text)
        check_cluster(k, cluster_of(source.text, k.name))
        for m in k.maps:
            check_map(m)
    runtime = _runtime()
    library = _compile(source)
    run = _Run(runtime, library, source, arrays, packed)
    try:
        found = apart(lambda pipe: run.all(pipe, seed, eager), limit_s, BYTES + 64 * run.nbytes)
    except EndedError as ended:
        found = {"ended": str(ended)}
    if "ended" in found:
        return Emulated(run.outputs(), (_ended(found, library, limit_s),), ())
    if "refused" in found:
        raise CheckError(Problem(*found["refused"]))
    problems = [*_problems(found["problems"], library), *run.unwritten(found["unwritten"])]
    return Emulated(run.outputs(), tuple(problems), tuple(_traffic(found["sites"], library)))


class _Run:
    """The arrays of a run, between red zones, and its launches."""

    def __init__(
        self, runtime: ctypes.CDLL, library: _Library, source: Source, arrays: Sequence[np.ndarray], packed: bool
    ) -> None:
        self.runtime, self.library, self.source = runtime, library, source
        text = re.sub(r"#define[^\n]*", "", source.text)  # memory that comes at launch is bytes there, and more below
        words = re.findall(r"__shared__ (?:__align__\(\d+\) )?((?:un)?(?:signed )?\w+) ", text)
        words += re.findall(r"((?:un)?(?:signed )?\w+) \*const \w+ = \(", text)
        made = [_TYPES[p.dtype] for p in source.params if p.role in ("output", "workspace")]
        self.granule = min((_GRANULES.get(w, 2) for w in (*words, *made)), default=2)
        given = dict(zip((p.name for p in source.inputs), arrays, strict=True))
        mapped = {m.array for k in source.kernels for m in k.maps}
        self.memory = {
            p.name: _placed(p, given.get(p.name), max(p.align, MAP_ALIGN * (p.name in mapped)) * packed)
            for p in source.params
            if p.role != "constant"
        }
        self.nbytes = sum(m.nbytes for m in self.memory.values())
        runtime.tir_reset()
        for p in source.params:
            if p.role in ("input", "output", "workspace"):
                array = self.memory[p.name]
                writable = int(p.role != "input")
                runtime.tir_array(
                    _address(array), ctypes.c_uint64(array.nbytes), p.name.encode(), writable, self.granule
                )

    def all(self, pipe: int, seed: int, eager: bool) -> dict[str, Any]:
        """Run all kernels, and what is known then; how a signal ended it goes to the pipe."""
        library = ctypes.CDLL(str(self.library.path))
        for k in self.source.kernels:
            if (wrong := does_not_fit(k, told_by(library, k))) is not None:
                return {"refused": [wrong.code, wrong.message, "", wrong.hint]}
        for k in self.source.kernels:
            self.runtime.tir_catch(getattr(library, f"tir_entry_{k.name}"), pipe)
            self.launch(library, k, seed, eager)
        told = [self.runtime.tir_problem(n).decode() for n in range(self.runtime.tir_problems())]
        unwritten = [self.runtime.tir_unwritten(_address(self.memory[p.name])) for p in self.source.outputs]
        numbers = (ctypes.c_uint64 * 6)()
        sites = [[self.runtime.tir_site(n, numbers).decode(), *map(int, numbers)]
                 for n in range(self.runtime.tir_sites())]  # fmt: skip
        return {"problems": told, "unwritten": unwritten, "sites": sites}

    def launch(self, library: ctypes.CDLL, k: KernelLaunch, seed: int, eager: bool) -> None:
        """Run one kernel to its end."""
        given = {**self.memory, **{m.name: encoded(m, self.memory[m.array]) for m in k.maps}}
        pointers = (ctypes.c_void_p * len(k.args))(*(given[a].ctypes.data for a in k.args))
        cluster, told = cluster_of(self.source.text, k.name), told_by(library, k)
        shape = (ctypes.c_uint32 * 11)(
            *k.grid, *k.block, self.granule, eager, cluster[0], self.library.own, first_registers(told)
        )
        image = (ctypes.c_void_p(told.shared), ctypes.c_uint64(told.shared_bytes))
        listed = (ctypes.c_void_p(told.arrays), ctypes.c_uint64(told.count if self.library.placed else 0))
        entry = getattr(library, f"tir_entry_{k.name}")
        self.runtime.tir_launch(entry, pointers, shape, *image, *listed, ctypes.c_uint64(seed))

    def unwritten(self, nbytes: Sequence[int]) -> Iterator[Problem]:
        """Outputs that no thread filled."""
        for p, left in zip(self.source.outputs, nbytes, strict=True):
            if left:
                count = left // numpy_dtype(p.dtype).itemsize
                yield Problem(
                    "launch.unwritten", f"{p.name}: {count} of {self.memory[p.name].size} elements were never written"
                )

    def outputs(self) -> list[np.ndarray]:
        """The results in the order of the source."""
        return [self.memory[p.name].reshape(p.shape).copy() for p in self.source.outputs]


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _placed(p: Param, given: np.ndarray | None, align: int) -> np.ndarray:
    """A contiguous array between red zones, ``align`` bytes behind a multiple of 256: the given one, or poison."""
    narrow = p.role == "scalar" and p.dtype in WIDENED  # kernels take those as float
    kind = np.dtype(np.float32) if narrow else numpy_dtype(p.dtype)
    size = kind.itemsize * int(np.prod(p.shape, dtype=np.int64))
    raw = np.frombuffer(mmap.mmap(-1, size + 2 * RED_ZONE + 512), np.uint8)  # which forks share
    raw[...] = POISON
    start = RED_ZONE + -(raw.ctypes.data + RED_ZONE) % 256 + (align % 256 if p.shape else 0)
    array = raw[start : start + size].view(kind)
    if given is not None:
        array[...] = np.asarray(given).astype(kind).ravel()
    return array


# --- compiling


def _compiler() -> str:
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        raise refuse(
            CheckError, "emulate.no-compiler", "running CUDA text on the CPU needs a C++ compiler", hint="install g++"
        )
    return found


_RUNTIME = (
    "runtime.cpp",
    "world.h",
    "fibers.h",
    "counts.h",
    "watch.h",
    "instructions.h",
    "barriers.h",
    "clusters.h",
    "copies.h",
    "wgmma.h",
)
_HOPPER = re.compile(
    r"\bTirTensorMap\b|\btir_(barrier|tma_|wgmma_|async_fence|descriptor|registers_|sync_some|(sync|meet)_cluster"
    r"|commit_stores|wait_stores)"
)


@functools.cache
def _runtime() -> ctypes.CDLL:
    """The emulator itself, compiled when it is first wanted and kept with other compiled kernels."""
    compiler = _compiler()
    text = "".join((_FOLDER / name).read_text() for name in _RUNTIME)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    key = cache_key(kind="emulator", compiler=version, source=text)
    built = default_cache().get(key)
    with tempfile.TemporaryDirectory(prefix="tensorir-emulator-") as name:
        target = Path(name) / "runtime.so"
        if built is None:
            flags = ["-std=c++17", "-O3", "-fPIC", "-shared", "-o", str(target), str(_FOLDER / "runtime.cpp")]
            _run([compiler, *flags])
            default_cache().put(key, target.read_bytes())
        else:
            target.write_bytes(built)
        library = ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)  # the kernels' calls are found here
    library.tir_problem.restype = library.tir_site.restype = ctypes.c_char_p
    library.tir_unwritten.restype = ctypes.c_uint64
    return library


@functools.cache
def _accepts(flag: str) -> bool:
    """Whether the compiler knows a flag: GCC 12 and Clang 8 do what is asked for here."""
    command = [_compiler(), flag, "-fsyntax-only", "-x", "c++", os.devnull]
    with tempfile.TemporaryDirectory(prefix="tensorir-emulate-") as folder:  # some flags write a file
        return subprocess.run(command, capture_output=True, check=False, cwd=folder).returncode == 0


class _Library:
    """The kernels of a text, compiled, each with an entry that takes an array of pointers; kept for several runs.

    path:   a file, as long as the library is known
    own:    bytes that a thread has to itself
    placed: whether all arrays in shared memory are known to the emulator one by one
    """

    def __init__(self, made: bytes, own: int, placed: bool) -> None:
        folder = tempfile.mkdtemp(prefix="tensorir-emulate-")
        weakref.finalize(self, _remove, folder, os.getpid())
        self.path, self.own, self.placed = Path(folder) / "k.so", own, placed
        self.path.write_bytes(made)
        self._lines = dict[int, int]()

    def learn(self, places: Sequence[int]) -> None:
        """Look several places up at once, where the system has ``addr2line``."""
        tool = shutil.which("addr2line")
        new = [p for p in dict.fromkeys(places) if p and p not in self._lines]
        if tool is None or not new:
            return
        self._lines.update(dict.fromkeys(new, 0))
        command = [tool, "-a", "-i", "-e", str(self.path), *map(hex, new)]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        place = 0
        for line in found.splitlines():
            if line.startswith("0x"):
                place = int(line, 16)
            elif match := re.search(r"k\.cpp:(\d+)", line):  # the first line of the text, from the inside out
                self._lines[place] = self._lines.get(place) or int(match[1])

    def line(self, place: int) -> int:
        """The line of the text for a place in the compiled kernel; 0 where it is not known."""
        return self._lines.get(place, 0)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # forks know the library too
        shutil.rmtree(folder, ignore_errors=True)


def _compile(source: Source) -> _Library:
    """The library of the kernels."""
    text = prepared(source)
    declared, defined = derived(source)
    clusters = any(cluster_of(text, k.name)[0] > 1 for k in source.kernels)
    library = _compiled(text, _entries(source), declared, defined, clusters)
    if not library.path.exists():  # someone has tidied the folder for temporary files
        _compiled.cache_clear()
        library = _compiled(text, _entries(source), declared, defined, clusters)
    if library.own > OWN_BYTES:
        message = f"{source.name} has {library.own} bytes for each thread alone, in its registers and behind them"
        raise refuse(CheckError, "emulate.own-memory", f"{message}; GPUs have room for {OWN_BYTES}",
                     hint="smaller tiles, or more threads for them")  # fmt: skip
    return library


@functools.lru_cache(maxsize=8)  # one text is run on several inputs, in several orders
def _compiled(text: str, entries: str, declared: str, defined: str, clusters: bool) -> _Library:
    """The library of ``text``, whose line numbers it tells."""
    compiler = _compiler()
    gcc = "clang" not in Path(compiler).name  # whose "bounds" are one check; of clang's two, one traps
    bounds = "bounds" if gcc else "array-bounds"
    watch = f"-fsanitize=thread,{bounds},object-size,alignment"  # runtime.cpp has what these call
    common = ["-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-nostdinc++", "-undef"]
    sizes = sorted({int(n) for n in re.findall(r"\btir_wgmma_m64n(\d+)k", text)})
    common.append("-DTIR_WGMMA_SIZES=" + " ".join(f"TIR_WGMMA_SIZE({n})" for n in sizes if n in range(8, 257, 8)))
    flags = ["-g", watch, *(["-DTIR_CLUSTERS"] if clusters else [])]
    if _accepts("-mlong-double-64"):  # as on devices
        common.append("-mlong-double-64")
    if _accepts("-fstack-usage"):
        flags.append("-fstack-usage")
    if _accepts("-ftrivial-auto-var-init=pattern"):  # sums that nobody has begun are no zeros
        flags.append("-ftrivial-auto-var-init=pattern")
    if gcc:
        flags.append("-fno-tree-sra")  # it would split the vector accesses that are counted
        flags.append(
            "-fno-tree-loop-im"
        )  # it would keep cells in registers, and read before the loop what no turn does
        flags.append("-fno-var-tracking")  # lines are asked for, values of variables are not
    with tempfile.TemporaryDirectory(prefix="tensorir-emulate-") as name:
        folder = Path(name)
        (folder / "k.cpp").write_text("\n".join([text, entries]))
        (folder / "derived.h").write_text(declared)
        names = [_FOLDER / "cuda.h", *([_FOLDER / "hopper.h"] if _HOPPER.search(text) else []), folder / "derived.h"]
        header = [word for name in names for word in ("-include", str(name))]
        objects = [str(folder / "k.cpp")]
        if defined:  # what these read is no business of the watch
            (folder / "derived.cpp").write_text(defined)
            objects.append(str(folder / "derived.o"))
            _run([compiler, *common, *header, "-c", str(folder / "derived.cpp"), "-o", objects[1]])
        # without the libraries that sanitizers bring along; those of C come with the runtime
        alone = ["-shared", "-nodefaultlibs"]
        _run([compiler, *common, *flags, *header, *alone, *objects, "-o", str(folder / "k.so")])
        stacks = [line.split("	")[1] for file in folder.glob("*.su") for line in file.read_text().splitlines()]
        return _Library((folder / "k.so").read_bytes(), max(map(int, stacks), default=0), is_placed(text))


def _entries(source: Source) -> str:
    lines = [_ARGUMENTS]
    for k in source.kernels:
        maps = {m.name for m in k.maps}
        scalars = {p.name: c_type(p.dtype, DIALECTS["cuda"]) for p in source.params if p.role == "scalar"}
        kinds = ["TirTensorMap" if n in maps else scalars.get(n, "") for n in k.args]
        args = [f"tir_value<{c}>{{a[{n}]}}" if c else f"tir_pointer{{a[{n}]}}" for n, c in enumerate(kinds)]
        lines.append(f'static_assert(tir_parameters({k.name}) == {len(args)}, "as many as the launch gives");')
        entry = f'extern "C" __attribute__((no_sanitize("thread"))) void tir_entry_{k.name}(void** a)'
        lines.append(f"{entry} {{ {k.name}({', '.join(args)}); }}")
        said = (*attribute_of(source.text, k.name, "__launch_bounds__"), "0", "0")
        bounds = [f"(unsigned long long)({x})" for x in said[:2]]
        lines.append(_TOLD.format(kernel=k.name, section=section_of(source, k), bounds=", ".join(bounds)))
    return "\n".join(lines)


_ARGUMENTS = """
struct tir_pointer { void *p; template <class T> operator T *() const { return (T *)p; } };
// A launch copies the bytes of an argument: it converts nothing, as a call does, and knows no defaults.
template <class T> struct tir_value {
  const void *p;
  operator const T &() const { return *(const T *)p; }
  template <class Other> operator Other() const = delete;
};
template <class... P> constexpr int tir_parameters(void (*)(P...)) { return sizeof...(P); }
"""
_TOLD = """
extern "C" {{
extern unsigned char __start_{section}[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_{section}[] __attribute__((weak, visibility("hidden")));
extern unsigned char __start_at_{section}[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_at_{section}[] __attribute__((weak, visibility("hidden")));
void tir_told_{kernel}(unsigned long long *to) {{
  const unsigned long long told[] = {{
      {bounds}, (unsigned long long)__start_{section}, (unsigned long long)__stop_{section},
      (unsigned long long)__start_at_{section}, (unsigned long long)__stop_at_{section}}};
  for (int n = 0; n < 6; ++n) to[n] = told[n];
}}
}}
"""


def _run(command: list[str]) -> None:
    plain = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain, timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        message = f"the C++ compiler was not done with the CUDA text after {COMPILE_SECONDS:g} s"
        raise refuse(CompileError, "emulate.compile", message) from None
    if done.returncode:
        raise CompileError(
            Problem("emulate.compile", f"the C++ compiler refused the CUDA text: {done.stderr[:300]}"),
            done.stderr[:4096],
        )


# --- what happened, in words


def _ended(found: dict[str, Any], library: _Library, limit_s: float) -> Problem:
    """How a run ended that did not come to its end; ``found`` is what runtime.cpp says of a signal."""
    how, at = found["ended"], _place(found.get("at", ""))
    library.learn([at])
    where = f" (thread {found['thread']} of block {found['block']}" if "thread" in found else ""
    where += f", line {library.line(at)} of the text" if library.line(at) else ""
    where += ")" if where else ""
    if how == "SIGXCPU":
        message = f"the text was not at its end after {limit_s:g} s of processor time{where}"
        return Problem("emulate.time", message, hint="a loop that ends")
    return Problem("emulate.crashed", f"the text ended its process: {how}, {_ENDED.get(how, 'no signal known')}{where}")


def _problems(found: Sequence[str], library: _Library) -> list[Problem]:
    told = []
    for text in found:
        code, first, second, message = text.split("|", 3)
        told.append((code, _place(first), _place(second), message))
    library.learn([p for _, at, other, _ in told for p in (at, other)])
    out = []
    for code, at, other, message in told:
        if code == "warp.divergent" and other and library.line(at) == library.line(other):
            continue  # one place, of which the compiler has made several
        where = f" (line {library.line(at)} of the text" if library.line(at) else ""
        if where:
            where += f"; the other access: line {library.line(other)})" if library.line(other) else ")"
        out.append(Problem(code, message + where))
    return out


def _place(text: str) -> int:
    return int(text[1:], 16) if text.startswith("@") else 0


def _traffic(sites: Sequence[Any], library: _Library) -> list[Traffic]:
    found = [(place, (what, *rest)) for what, place, *rest in sites if rest[1]]
    library.learn([place for place, _ in found])
    return sorted((Traffic(library.line(place), *rest) for place, rest in found), key=lambda t: (t.line, t.what))
