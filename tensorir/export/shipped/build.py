"""Builds the shared library of this folder: its C program, and what frameworks call it by; needs a C compiler only.

python build.py     # prints where the library is; it is made where it is missing or does not load on this machine

``CC`` in the environment names another compiler than the first of cc, gcc and clang.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OPTIONS = ("-std=c11", "-O3", "-ffp-contract=fast", "-fPIC", "-shared")
LIBRARIES = ("-lm", "-ldl", "-lpthread")
COMPILERS = ("cc", "gcc", "clang", *(f"{name}-{n}" for name in ("gcc", "clang") for n in range(30, 11, -1)))


def compiler() -> list[str] | None:
    """C compiler command; None if there is none."""
    if given := shlex.split(os.environ.get("CC", "")):
        return given if shutil.which(given[0]) else None
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    return None if found is None else [found]


def compiled(command: Sequence[str], sources: Mapping[str, bytes], extra: Sequence[str] = ()) -> bytes:
    """Compile files (name -> content; .c files are compiled) to a shared library's bytes; RuntimeError with compiler
    output.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, content in sources.items():
            (Path(folder) / name).write_bytes(content)
        units = [name for name in sources if name.endswith(".c")]
        # no other library's function of the same name is called; the kernel's threads outlive whoever unloads it
        own = ["-Wl,-Bsymbolic", "-Wl,-z,nodelete"] if sys.platform == "linux" else []
        words = [*command, *OPTIONS, *extra, *own, *units, "-o", "made.so", *LIBRARIES]
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, errors="replace", timeout=600, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{shlex.join(words)} failed:\n{done.stderr[-2000:]}")
        return (Path(folder) / "made.so").read_bytes()


def library(manifest: Mapping[str, Any] | None = None) -> Path:
    """Path of this folder's shared library, built now if missing.

    It is built in this folder, or in the user's cache if the folder is read-only. ImportError if it cannot be built.
    """
    about = (manifest or json.loads((HERE / "manifest.json").read_text(encoding="utf-8")))["library"]
    find_driver(about.get("host", ""))
    contents = {Path(name).name: (HERE / name).read_bytes() for name in about["sources"]}
    why = "it is not there"
    for path in places(about["file"], contents):
        if path.exists():
            why = unloadable(path)
            if not why:
                return path
    command = compiler()
    if command is None:
        raise ImportError(f"{about['file']}: {why}, and there is no C compiler to make it with (cc, gcc, clang, or CC)")
    try:
        made = compiled(command, contents)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise ImportError(f"{about['file']} cannot be made: {error}") from None
    for path in places(about["file"], contents):
        if path.parent == HERE and path.exists():
            continue  # shipped for another machine, and named with its digest in the manifest
        try:
            put(path, made)
        except OSError:
            continue
        if why := unloadable(path):
            raise ImportError(f"{path}: {why}")
        return path
    raise ImportError(f"{about['file']} cannot be written, neither to {HERE} nor to {cache() or 'XDG_CACHE_HOME'}")


def find_driver(host: str) -> None:
    """Make libOpenCL of pyopencl's PoCL wheel loadable, if the system has none."""
    if host != "opencl":
        return
    if not os.environ.get("TENSORIR_LIBOPENCL") and unloadable(Path("libOpenCL.so.1")):
        spec = importlib.util.find_spec("pyopencl")  # which is not imported
        for place in spec.submodule_search_locations or () if spec else ():
            for found in Path(place, ".libs").glob("libOpenCL*"):
                os.environ["TENSORIR_LIBOPENCL"], os.environ["PYOPENCL_HOME"] = str(found), str(place)
    if given := os.environ.get("TENSORIR_LIBOPENCL"):
        for found in Path(given).parent.glob("libpocl*"):
            unloadable(found)  # libOpenCL asks for it by its name alone, which finds what is loaded


def places(name: str, contents: Mapping[str, bytes]) -> Iterator[Path]:
    """Candidate paths of the library, this folder first."""
    yield HERE / name
    digest = hashlib.sha256(repr((OPTIONS, sorted(contents.items()))).encode("utf-8")).hexdigest()
    if (kept := cache()) is not None:
        yield kept / digest[:32] / name


def cache() -> Path | None:
    """Per-user cache folder; None without a home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "tensorir-export"
    except RuntimeError:
        return None


def put(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    number, scratch = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        os.chmod(scratch, 0o755)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def unloadable(path: Path) -> str:
    """Reason why the library cannot be loaded; "" if it can."""
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(library())
