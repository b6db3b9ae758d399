"""Run emitted CUDA text with no GPU: compiled by the system's C++ compiler, line by line, each CUDA thread a fiber.

``emulator/cuda.h`` defines the names used by the text. ``emulator/runtime.cpp`` runs it and checks every access: data
races between threads without a barrier, reads of unwritten shared memory, out-of-bounds accesses (also of register
arrays), barriers not reached by all threads. Asynchronous work (copies, warpgroup products) happens as late as the text
allows. Costs of memory requests are counted. The documented semantics are emulated, not a processor: rounding of
special functions, weak memory orders and timing are not modelled. Blocks run one after another, except those of a
cluster, which run concurrently.
"""

from __future__ import annotations

import errno
import functools
import math
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from tensorir.check.detection import intrinsics
from tensorir.check.translation import cluster_of, derived, entries, head_of, is_placed, prepared
from tensorir.codec import travels
from tensorir.codegen.cfamily import DECLARED_SHARED
from tensorir.codegen.dialect import DIALECTS
from tensorir.codegen.source import KernelLaunch, Param, Source, TensorMap
from tensorir.errors import CheckError, CompileError, Problem, refuse
from tensorir.interp.numbers import numpy_dtype
from tensorir.intrin.hopper import MOST_REGISTERS
from tensorir.ir.dtypes import DTYPES, WIDENED
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.runtime.scratch import Scratch
from tensorir.runtime.tensor_maps import TENSOR_MAP_TYPES

MAP_ALIGN = 16
"""Of the address of an array with a tensor map."""
OWN_BYTES = 512 << 10
"""Of arrays that a thread has to itself, on every GPU (CUDA C++ Programming Guide, local memory)."""
DEFAULT_LIMIT_S = 300.0
"""Of processor time that a run may take where its caller does not say."""
MEMORY_BYTES = 8 << 30
"""That a run may take, and 64 times its arrays: what is watched of each cell is kept."""
COMPILE_SECONDS = 600.0
WALL_PER_CPU_SECOND = 30.0  # seconds that may pass for each of processor time: the machine may be busy with others
BUSY_FILE_S = 5.0  # seconds that a program which was just written may be held by other children that are about to begin
POISON_BYTE = 0xFF
"""Every byte of what a kernel has yet to write: NaN, -1."""
RED_ZONE = 4096
"""Bytes on each side of an array that belong to nobody."""
_ENDINGS = {
    "SIGFPE": "a whole number divided by zero, or the least one by -1",
    "SIGSEGV": "memory that belongs to nobody", "SIGBUS": "memory that belongs to nobody",
    "SIGABRT": "no memory left, or a check of the C library",
    "SIGILL": "a trap, or an instruction that the processor lacks",
}  # fmt: skip

NO_CONTRACTION = "-ffp-contract=off"
"""Each operation rounds: a text that means a fused one says ``fma``."""
_FOLDER = Path(__file__).with_name("emulator")
_TYPES = DIALECTS["cuda"].types
_GRANULES = {_TYPES[name]: min(2, kind.bits.bit_length() - 4) for name, kind in DTYPES.items()}
"""log2 of the bytes of a watched cell: a word, less where its neighbours may belong to other threads."""


@travels
@dataclass(frozen=True)
class Traffic:
    """Memory traffic of one load or store in the text, over the first block.

    line:     line number in the emitted text, from 1; 0 if unknown
    what:     "shared read" or "write", "global read", "write" or "add" (atomic);  width: bytes per thread
    requests: number of warp-wide requests;  lanes: threads that took part; warpgroup products count one per 8 rows of
              16 bytes
    units:    shared-memory wavefronts, or 32-byte sectors of global memory;  ideal: the fewest for the same bytes. More
              means bank conflicts or uncoalesced accesses
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
    """Outcome of a run: output arrays in signature order, problems found, memory traffic per access in the text."""

    outputs: list[np.ndarray]
    problems: tuple[Problem, ...]
    traffic: tuple[Traffic, ...]


def emulate(
    source: Source,
    arrays: Sequence[np.ndarray],
    seed: int = 0,
    eager: bool = False,
    limit_s: float = DEFAULT_LIMIT_S,
    packed: bool = False,
) -> Emulated:
    """Compile ``source`` (CUDA) for the CPU and run all its kernels on ``arrays``, the inputs in signature order.

    The text runs in a separate process. If it crashes or exceeds its time, the result has a problem ``emulate.crashed``
    or ``emulate.time`` with the line of the text where it was.

    seed:    of the order in which threads run; right kernels give the same results for all
    eager:   True: asynchronous tile copies may complete before a thread waits for them, not only at the wait, and
             threads at an mbarrier may be delayed until all others have run
    limit_s: seconds of processor time
    packed:  True: arrays start at the least alignment that the kernels declare, rather than at multiples of 256 bytes
    Raises CheckError ``emulate.no-compiler``, ``emulate.threads``, ``emulate.own-memory``, ``emulate.shared``,
    ``emulate.cluster`` or ``emulate.map``, CompileError ``emulate.compile``.
    """
    for k in source.kernels:
        check_kernel(k, source.text)
        check_cluster(k, cluster_of(source.text, k.name))
        for m in k.maps:
            check_map(m)
    library = _compile(source)
    with _Run(library, source, arrays, packed) as run:
        try:
            for k in source.kernels:
                if (wrong := does_not_fit(k, run.told(limit_s)[k.name])) is not None:
                    raise CheckError(wrong)
            found = run.all(seed, eager, limit_s)
        except EndedError as ended:
            return Emulated(run.outputs(), (_ended(ended.args, library, limit_s),), ())
    problems = [*_problems(found["problem"], library), *run.unwritten(found["unwritten"])]
    return Emulated(run.outputs(), tuple(problems), tuple(_traffic(found["site"], library)))


# --- a process of its own


class EndedError(Exception):
    """Raised if a program ended prematurely. args[0]: the signal (SIGXCPU for its time limit), exit status or missing
    file; further args: details printed by the program.
    """


def run_isolated(command: Sequence[str], seconds: float, files: Sequence[int] = ()) -> list[str]:
    """Run ``command``; return its output lines without the last, ``done``.

    seconds: processor time that it may take;  files: file descriptors that it inherits
    Raises EndedError.
    """
    try:
        ended = _begun(command, min(WALL_PER_CPU_SECOND * seconds, 1e6), files)
    except subprocess.TimeoutExpired:
        raise EndedError(signal.SIGXCPU.name) from None
    lines = ended.stdout.decode("utf-8", "replace").splitlines()
    if lines and lines[-1] == "done":
        return lines[:-1]
    if lines and lines[-1].startswith("ended|"):
        raise EndedError(*lines[-1].split("|")[1:])
    code = ended.returncode
    raise EndedError(signal.Signals(-code).name if code < 0 else f"exit status {code}")


def _begun(command: Sequence[str], wall: float, files: Sequence[int]) -> subprocess.CompletedProcess[bytes]:
    until = time.monotonic() + BUSY_FILE_S
    while True:
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=wall, pass_fds=files, check=False
            )
        except OSError as error:  # a child of another thread still has the file as it was written
            if error.errno != errno.ETXTBSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


class SharedArrays:
    """Named arrays in one shared-memory file. Arrays and the gaps between them are first filled with poison bytes; each
    starts ``align`` bytes past a multiple of 256.

    file: the file's descriptor;  size: its bytes;  place: offset of each array in it;  arrays: flat NumPy views by name
    """

    def __init__(self, wanted: Mapping[str, tuple[np.dtype, int, int]]) -> None:
        self.place, self.size = dict[str, int](), 0
        for name, (kind, count, align) in wanted.items():
            self.place[name] = self.size + RED_ZONE + align % 256
            self.size += -(-(kind.itemsize * count + 2 * RED_ZONE + 512) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._open = _nameless()
        self.file = self._open.fileno()
        os.truncate(self.file, self.size)
        raw = np.frombuffer(mmap.mmap(self.file, self.size), np.uint8)
        raw[...] = POISON_BYTE
        self.arrays = {
            name: raw[self.place[name] :][: kind.itemsize * count].view(kind)
            for name, (kind, count, _) in wanted.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()  # the arrays stay as long as someone has them


def _nameless() -> IO[bytes]:
    """An anonymous file: in memory if the system has ``memfd_create``, else a temporary file on disk."""
    try:
        return os.fdopen(os.memfd_create("tensorir"), "r+b", buffering=0)
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()


class _Run(SharedArrays):
    """One emulator run: arrays in shared memory, tensor maps that point to them, and kernel launches."""

    def __init__(self, library: _Library, source: Source, arrays: Sequence[np.ndarray], packed: bool) -> None:
        self.library, self.source = library, source
        text = re.sub(r"#define[^\n]*", "", source.text)  # memory that comes at launch is bytes there, and more below
        words = re.findall(r"__shared__ (?:__align__\(\d+\) )?((?:un)?(?:signed )?\w+) ", text)
        words += re.findall(r"((?:un)?(?:signed )?\w+) \*const \w+ = \(", text)
        made = [_TYPES[p.dtype] for p in source.params if p.role in ("output", "workspace")]
        self.granule = min((_GRANULES.get(w, 2) for w in (*words, *made)), default=2)
        maps = {m.name: m for k in source.kernels for m in k.maps}
        mapped = {m.array for m in maps.values()}
        params = [p for p in source.params if p.role != "constant"]
        wanted = {p.name: _wanted(p, packed, p.name in mapped) for p in params}
        super().__init__({**wanted, **{name: (np.dtype(np.uint8), MAP_BYTES, 0) for name in maps}})
        self.nbytes = sum(self.arrays[p.name].nbytes for p in params)
        for p, given in zip(source.inputs, arrays, strict=True):
            self.arrays[p.name][...] = np.asarray(given).astype(self.arrays[p.name].dtype).ravel()
        for p in params:
            if p.data is not None:  # a number that the source fixes
                self.arrays[p.name][...] = np.frombuffer(p.data, self.arrays[p.name].dtype)
        for m in maps.values():
            self.arrays[m.name][...] = np.frombuffer(encoded(m), np.uint8)

    def _apart(self, limit_s: float, words: Sequence[object], files: Sequence[int] = ()) -> dict[str, list[str]]:
        """Run the emulator process with arguments ``words``; return its output lines by their first word ("told",
        "problem", "unwritten", "site"). Raises EndedError.
        """
        limits = int(min(limit_s, 1e6)) + 1, MEMORY_BYTES + 64 * self.nbytes
        found: dict[str, list[str]] = {"told": [], "problem": [], "unwritten": [], "site": []}
        command = [str(w) for w in (_program().path, self.library.path, *limits, *words)]
        for kind, said in (line.split("|", 1) for line in run_isolated(command, limit_s, files)):
            found[kind].append(said)
        return found

    def told(self, limit_s: float) -> dict[str, Told]:
        """{kernel name: facts of the compiled kernel}; the emulator process is asked once per library."""
        names = [k.name for k in self.source.kernels]
        if not self.library.told:
            lines = self._apart(limit_s, [w for name in names for w in ("tell", name)])["told"]
            found = (Told(*map(int, line.split("|"))) for line in lines)
            self.library.told = dict(zip(names, found, strict=True))
        return self.library.told

    def all(self, seed: int, eager: bool, limit_s: float) -> dict[str, list[str]]:
        """Run all kernels; the emulator's lines by first word, without it: "problem", "unwritten", "site", "told"."""
        words: list[object] = ["memory", self.file, self.size]
        words += ["all", self.granule, self.library.own, int(eager), seed, int(self.library.placed)]
        for p in self.source.params:
            if p.role in ("input", "output", "workspace"):
                size, written = self.arrays[p.name].nbytes, int(p.role != "input")
                words += ["array", _word(p.name), self.place[p.name], size, written]
        for k in self.source.kernels:
            for m in k.maps:
                words += ["map", self.place[m.name], self.place[m.array]]
        for k in self.source.kernels:
            cluster, registers = cluster_of(self.source.text, k.name)[0], first_registers(self.told(limit_s)[k.name])
            words += ["launch", k.name, *k.grid, *k.block, cluster, registers]
            words += [len(k.args), *(self.place[a] for a in k.args)]
        return self._apart(limit_s, words, [self.file])

    def unwritten(self, said: Sequence[str]) -> Iterator[Problem]:
        """Yield a Problem for each output with elements that no thread wrote.

        said: the emulator's lines ``name|…|bytes not written``
        """
        left = {name: int(nbytes) for name, _, nbytes in (line.rpartition("|") for line in said)}
        for p in self.source.outputs:
            if nbytes := left[_word(p.name)]:
                count = nbytes // numpy_dtype(p.dtype).itemsize
                yield Problem(
                    "launch.unwritten", f"{p.name}: {count} of {self.arrays[p.name].size} elements were never written"
                )

    def outputs(self) -> list[np.ndarray]:
        """Copies of the output arrays, in the order of the source's outputs."""
        return [self.arrays[p.name].reshape(p.shape).copy() for p in self.source.outputs]


def _wanted(p: Param, packed: bool, mapped: bool) -> tuple[np.dtype[Any], int, int]:
    """(NumPy dtype, number of elements, byte offset from a multiple of 256) of the array for parameter ``p``.

    packed: False: offset 0;  mapped: True if a tensor map points to it
    """
    narrow = p.role == "scalar" and p.dtype in WIDENED  # kernels take those as float
    kind = np.dtype(np.float32) if narrow else numpy_dtype(p.dtype)
    align = max(p.align, MAP_ALIGN * mapped) * packed if p.shape else 0
    return kind, math.prod(p.shape), align


# --- compiling


def _compiler() -> str:
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        raise refuse(
            CheckError, "emulate.no-compiler", "running CUDA text on the CPU needs a C++ compiler", hint="install g++"
        )
    return found


_RUNTIME = (
    "runtime.cpp", _TABLE := "functions.cpp", "world.h", "fibers.h", "counts.h", "watch.h", "instructions.h",
    "barriers.h", "clusters.h", "copies.h", "wgmma.h", "process.h",
)  # fmt: skip
_HOPPER = re.compile(
    r"\bTirTensorMap\b|\btir_(barrier|tma_|wgmma_|async_fence|descriptor|registers_|sync_some|(sync|meet)_cluster"
    r"|commit_stores|wait_stores)"
)


def _program() -> _File:
    """The emulator's executable file, compiled once per process, or again if the temporary file was deleted."""
    if not _built().path.exists():  # someone has tidied the folder for temporary files
        _built.cache_clear()
    return _built()


@functools.cache
def _built() -> _File:
    """The emulator's executable, taken from the kernel cache or compiled; one file per process."""
    # kernels find the hooks, and functions of C, in the program
    flags = ("-O3", "-rdynamic", "-Wl,--no-as-needed", "-lm", "-ldl")
    return _File("emulator", _made("emulator", ("runtime.cpp", _TABLE), _RUNTIME, flags))


@functools.cache
def table_library() -> _File:
    """Shared library with the emulator's mathematical functions only, for use by the interpreter."""
    return _File("functions.so", _made("functions", (_TABLE,), (_TABLE,), ("-O3", "-shared", "-fPIC", "-lm")))


def _made(kind: str, compiled: Sequence[str], read: Sequence[str], flags: Sequence[str]) -> bytes:
    """Bytes of an executable or shared library built from the emulator's sources, from the kernel cache if present.

    compiled: files passed to the compiler;  read: files whose text is part of the cache key
    """
    compiler = _compiler()
    text = "".join((_FOLDER / name).read_text() for name in read)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    every = ["-std=c++17", NO_CONTRACTION, *flags]
    key = cache_key(kind=kind, compiler=version, source=text, flags=every)
    built = default_cache().get(key)
    if built is None:
        with Scratch("emulator") as folder:
            target = folder / kind
            _run([compiler, *(str(_FOLDER / name) for name in compiled), *every, "-o", str(target)])
            built = target.read_bytes()
        default_cache().put(key, built)
    return built


@functools.cache
def _accepts(flag: str) -> bool:
    """True if the C++ compiler accepts ``flag`` (GCC 12 and Clang 8 accept all used here)."""
    command = [_compiler(), flag, "-fsyntax-only", "-x", "c++", os.devnull]
    with Scratch("emulate") as folder:  # some flags write a file
        return subprocess.run(command, capture_output=True, check=False, cwd=folder).returncode == 0


class _File:
    """A temporary executable file, deleted with this object."""

    def __init__(self, name: str, made: bytes) -> None:
        self._scratch = Scratch("emulate")
        self.path = self._scratch.path / name
        self.path.write_bytes(made)
        self.path.chmod(0o700)


class _Library(_File):
    """The compiled kernels of a text, reused over runs; each kernel has an entry that takes an array of pointers.

    own:    bytes of local memory per thread
    placed: true if every shared-memory array is registered with the emulator
    told:   {kernel name: facts}; empty until asked for
    """

    def __init__(self, made: bytes, own: int, placed: bool) -> None:
        super().__init__("k.so", made)
        self.own, self.placed = own, placed
        self.told = dict[str, Told]()
        self._lines = dict[int, int]()

    def learn(self, places: Sequence[int]) -> None:
        """Look up the source lines of code addresses ``places`` by one ``addr2line`` call, for later calls of ``line``.

        Does nothing if ``addr2line`` is not installed.
        """
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
        """Source line of code address ``place``, from 1; 0 if unknown."""
        return self._lines.get(place, 0)


@functools.lru_cache(maxsize=8)
def _written(source: Source) -> tuple[str, str, str, str, bool]:
    """Arguments of ``_compiled`` for a source: (C++ text, text of kernel entries, declarations and definitions of user
    instructions, True if a kernel has clusters).
    """
    text = prepared(source)
    return text, entries(source), *derived(source), any(cluster_of(text, k.name)[0] > 1 for k in source.kernels)


def _compile(source: Source) -> _Library:
    """Compile the kernels of ``source`` into a library; those of the last eight texts are kept.

    Raises CheckError ``emulate.own-memory`` for kernels with more local memory per thread than GPUs have.
    """
    written = _written(source)
    library = _compiled(*written)
    if not library.path.exists():  # someone has tidied the folder for temporary files
        _compiled.cache_clear()
        library = _compiled(*written)
    if library.own > OWN_BYTES:
        message = f"{source.name} has {library.own} bytes for each thread alone, in registers and local memory"
        raise refuse(CheckError, "emulate.own-memory", f"{message}; GPUs have room for {OWN_BYTES}",
                     hint="smaller tiles, or more threads for them")  # fmt: skip
    return library


@functools.lru_cache(maxsize=8)  # one text is run on several inputs, in several orders
def _compiled(text: str, entries: str, declared: str, defined: str, clusters: bool) -> _Library:
    """Compile ``text`` with race and bounds instrumentation into a library with line numbers."""
    compiler = _compiler()
    gcc = "clang" not in Path(compiler).name  # whose "bounds" are one check; of clang's two, one traps
    bounds = "bounds" if gcc else "array-bounds"
    watch = f"-fsanitize=thread,{bounds},object-size,alignment"  # runtime.cpp has what these call
    # no store is left out or moved out of its loop: more is watched, and compiled in two thirds of the time of -O1
    common = ["-std=c++17", "-Og", NO_CONTRACTION, "-w", "-fPIC", "-fno-strict-aliasing", "-nostdinc++", "-undef"]
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
        flags.append("-fno-tree-loop-im")  # cells would be in registers, or read before a loop that no turn reads
        flags.append("-fno-var-tracking")  # lines are asked for, values of variables are not
    with Scratch("emulate") as folder:
        (folder / "k.cpp").write_text("\n".join([text, entries]))
        (folder / "derived.h").write_text(declared)
        names = [_FOLDER / "cuda.h", *([_FOLDER / "hopper.h"] if _HOPPER.search(text) else [])]
        asked = intrinsics().intersection(re.findall(r"\b__\w+", text)) or "__half" in text  # which has operators
        names += [_FOLDER / "intrinsics.h"] if asked else []
        names.append(folder / "derived.h")
        header = [word for name in names for word in ("-include", str(name))]
        turns = ["-include", str(_FOLDER / "turns.h")]  # the last one: no other header has its loops counted
        objects = [str(folder / "k.cpp")]
        if defined:  # what these read is no business of the watch
            (folder / "derived.cpp").write_text(defined)
            objects.append(str(folder / "derived.o"))
            _run([compiler, *common, *header, "-c", str(folder / "derived.cpp"), "-o", objects[1]])
        # without the libraries that sanitizers bring along; those of C come with the runtime
        alone = ["-shared", "-nodefaultlibs"]
        _run([compiler, *common, *flags, *header, *turns, *alone, *objects, "-o", str(folder / "k.so")])
        stacks = [line.split("	")[1] for file in folder.glob("*.su") for line in file.read_text().splitlines()]
        return _Library((folder / "k.so").read_bytes(), max(map(int, stacks), default=0), is_placed(text))


def _word(name: str) -> str:
    """``name`` with blanks and ``%`` percent-encoded, as one word of the emulator's protocol."""
    return re.sub(r"[\s%]", lambda m: f"%{ord(m[0]):x}", name)


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


def _ended(said: Sequence[str], library: _Library, limit_s: float) -> Problem:
    """A Problem for a run ended by a signal.

    said: signal name, code addresses, thread and block, as the process printed them
    """
    how, places = said[0], [_place(x) for x in said[1:3]]
    library.learn(places)
    line = next((n for n in map(library.line, places) if n), 0)
    where = f" (thread {said[3]} of block {said[4]}" if len(said) > 4 else ""
    where += f", line {line} of the text" if line else ""
    where += ")" if where else ""
    if how == "SIGXCPU":
        message = f"the text was not at its end after {limit_s:g} s of processor time{where}"
        return Problem("emulate.time", message, hint="a loop that ends")
    how += f", {_ENDINGS[how]}" if how in _ENDINGS else ""
    return Problem("emulate.crashed", f"the text ended its process: {how}{where}")


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


def _traffic(sites: Sequence[str], library: _Library) -> list[Traffic]:
    found = []
    for site in sites:
        place, what, *numbers = site.split("|")
        width, requests, lanes, units, ideal = map(int, numbers)
        if requests:
            found.append((_place(place), (what, width, requests, lanes, units, ideal)))
    library.learn([place for place, _ in found])
    return sorted((Traffic(library.line(place), *rest) for place, rest in found), key=lambda t: (t.line, t.what))


# What a launch gives a kernel, what the compiled text says that it takes, and what devices allow of both.

BLOCK_THREADS = 1024
"""Threads of a block, as on every GPU."""
CLUSTER_BLOCKS = 8
"""Blocks of a cluster that every device with clusters takes."""
MAP_BYTES = struct.calcsize("<4s3IQ16I5i20x")
"""Bytes of a tensor map, which is aligned to 64."""


@dataclass(frozen=True)
class Told:
    """Facts of a compiled kernel.

    threads:   most threads per block, from ``__launch_bounds__``; 0 without it
    blocks:    least blocks per multiprocessor, from ``__launch_bounds__``; 0 without it
    at_launch: bytes of dynamic shared memory that its arrays take;  declared: bytes of static shared memory
    """

    threads: int
    blocks: int
    at_launch: int
    declared: int


def first_registers(told: Told) -> int:
    """Registers per thread at launch, as ptxas assigns them to a kernel that redistributes registers between warpgroups
    (``setmaxnreg``); 0 without known block size.
    """
    return min(255, MOST_REGISTERS // (told.threads * max(told.blocks, 1))) // 8 * 8 if told.threads else 0


def check_kernel(k: KernelLaunch, text: str) -> None:
    """Raise CheckError ``emulate.threads`` for too many threads per block, ``emulate.map`` for a tensor-map parameter
    without ``__grid_constant__``.
    """
    if k.block[0] * k.block[1] * k.block[2] > BLOCK_THREADS:
        raise refuse(CheckError, "emulate.threads", f"{k.name} has more than {BLOCK_THREADS} threads a block")
    head = head_of(text, k.name)
    if head and (bare := re.search(r"(?<!__grid_constant__ )\bTirTensorMap (\w+)", head[0])):
        message = f"the address of the tensor map {bare[1]} is that of a copy of each thread without __grid_constant__"
        raise refuse(CheckError, "emulate.map", message)


def does_not_fit(k: KernelLaunch, told: Told) -> Problem | None:
    """Problem ``emulate.threads`` or ``emulate.shared`` if the launch has more threads or less shared memory than the
    text declares, as after an edit, or the text declares over ``DECLARED_SHARED`` bytes statically; else None.
    """
    threads, takes = k.block[0] * k.block[1] * k.block[2], told.at_launch + told.declared
    if told.threads and told.threads < threads:
        message = f"{k.name} is launched with {threads} threads a block, and its text is for up to {told.threads}"
        return Problem("emulate.threads", message, hint=f"__launch_bounds__({threads})")
    if told.declared > DECLARED_SHARED:
        message = (
            f"{k.name} declares {told.declared} bytes of shared memory; more than {DECLARED_SHARED} come at launch"
        )
        return Problem("emulate.shared", message, hint="smaller tiles, or what a schedule asks for")
    if told.at_launch and takes > k.shared_bytes:
        message = f"{k.name} is launched with {k.shared_bytes} bytes of shared memory, its text takes {takes}"
        return Problem("emulate.shared", message, hint="what a schedule asks for is what is launched")
    return None


# --- clusters


def check_cluster(k: KernelLaunch, dims: tuple[int, ...]) -> None:
    """Raise CheckError ``emulate.cluster`` unless the kernel's blocks form complete clusters of a supported size."""
    if not 1 <= dims[0] <= CLUSTER_BLOCKS or dims[1:] != (1, 1):
        wrong = f"has clusters of {dims}: up to {CLUSTER_BLOCKS} blocks along x run here"
    elif k.grid[0] % dims[0]:
        wrong = f"has {k.grid[0]} blocks along x, which make no whole clusters of {dims[0]}"
    else:
        return
    raise refuse(CheckError, "emulate.cluster", f"{k.name} {wrong}")


# --- tensor maps


def check_map(m: TensorMap) -> None:
    """Raise CheckError ``emulate.map`` for a tensor map beyond the limits of cuTensorMapEncodeTiled and Im2col, or with
    box rows wider than the swizzle.

    CUDA ignores the stride of the last dimension; any other than 1 is refused here.
    """
    if m.dtype not in TENSOR_MAP_TYPES:
        raise refuse(CheckError, "emulate.map", f"a tensor map has elements that the driver knows; {m.name} is {m}")
    size = TENSOR_MAP_TYPES[m.dtype][1]
    row, span = m.box[-1] * size if m.box else 0, m.swizzle
    wrong = _broken_pixels(m) if m.lower or m.upper else _broken_box(m)
    if not wrong and (span not in (0, 32, 64, 128) or row % 16 or (span and row != span)):
        wrong = "has rows of multiples of 16 bytes in its box, or of its swizzle of 32, 64 or 128 bytes"
    elif m.steps and not (len(m.steps) == len(m.shape) and m.steps[-1] == 1 and all(1 <= s <= 8 for s in m.steps)):
        wrong = wrong or "has steps of 1 to 8 elements, as many as dimensions, and 1 in the last one"
    elif len(m.shape) > 1 and m.shape[-1] * size % 16:
        wrong = wrong or "has rows of multiples of 16 bytes in its array"
    if wrong:
        raise refuse(CheckError, "emulate.map", f"a tensor map {wrong}; {m.name} is {m}")


def _broken_box(m: TensorMap) -> str:
    if not 1 <= len(m.box) == len(m.shape) <= 5:
        return "has 1 to 5 dimensions, its box as many"
    return "" if all(1 <= b <= 256 for b in m.box) else "has a box of 1 to 256 elements along each dimension"


def _broken_pixels(m: TensorMap) -> str:
    """First violated limit of an im2col map as text: ranks, pixels and channels of the box, corners; "" if none."""
    if not (len(m.shape) == 4 and len(m.box) == len(m.lower) == len(m.upper) == 2):
        return "of pixels has 4 dimensions, a box of pixels and channels, and two corners of row and column"
    if not (1 <= m.box[0] <= 1024 and 1 <= m.box[1] <= 256):
        return "of pixels has a box of 1 to 1024 pixels and 1 to 256 channels"
    if not all(-128 <= n <= 127 for n in (*m.lower, *m.upper)):
        return "of pixels has corners of -128 to 127"
    return ""


def encoded(m: TensorMap) -> bytes:
    """Bytes of the struct ``TirTensorMap`` read by the emulator's copies.h, with 0 for the array's address."""
    about = (b"map ", len(m.shape), TENSOR_MAP_TYPES[m.dtype][1], m.swizzle, 0)
    inner = [(*reversed(v), 1, 1, 1, 1, 1)[:5] for v in (m.shape, m.box, m.steps)]
    numbers = (*inner[0], *inner[1], *inner[2], m.dtype == "tfloat32")
    corners = (1, *reversed(m.lower), *reversed(m.upper)) if m.lower else (0,) * 5
    return struct.pack("<4s3IQ16I5i20x", *about, *numbers, *corners)
