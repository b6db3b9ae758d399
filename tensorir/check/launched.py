"""What a launch gives a kernel, what the compiled text says that it takes, and what devices allow of both."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from tensorir.check.translation import attribute_of, head_of
from tensorir.codegen.cfamily import DECLARED_SHARED
from tensorir.codegen.source import KernelLaunch, TensorMap
from tensorir.errors import CheckError, Problem, refuse
from tensorir.intrin.hopper import MOST_REGISTERS
from tensorir.runtime.tensor_maps import KINDS

THREADS = 1024
"""Threads of a block, as on every GPU."""
CLUSTER = 8
"""Blocks of a cluster that every device with clusters takes."""
MAP_BYTES = struct.calcsize("<4s3IQ16I5i20x")
"""Bytes of a tensor map, which is aligned to 64."""


@dataclass(frozen=True)
class Told:
    """What the compiled text says of a kernel.

    threads, blocks:     of a block, and of a multiprocessor, as ``__launch_bounds__`` has them; 0 where it does not
    at_launch, declared: bytes of its arrays in shared memory that come at launch, and of the others
    """

    threads: int
    blocks: int
    at_launch: int
    declared: int


def first_registers(told: Told) -> int:
    """Of each thread when it begins, as ptxas gives them out where warpgroups ask for others; 0 where it gives none."""
    return min(255, MOST_REGISTERS // (told.threads * max(told.blocks, 1))) // 8 * 8 if told.threads else 0


def check_kernel(k: KernelLaunch, text: str) -> None:
    """What a kernel is launched with is a launch, and its maps are its own."""
    if k.block[0] * k.block[1] * k.block[2] > THREADS:
        raise refuse(CheckError, "emulate.threads", f"{k.name} has more than {THREADS} threads a block")
    head = head_of(text, k.name)
    if head and (bare := re.search(r"(?<!__grid_constant__ )\bTirTensorMap (\w+)", head[0])):
        message = f"the address of the tensor map {bare[1]} is that of a copy of each thread without __grid_constant__"
        raise refuse(CheckError, "emulate.map", message)


def does_not_fit(k: KernelLaunch, told: Told) -> Problem | None:
    """Why a launch does not give a kernel what its text takes: someone may have edited it."""
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


def cluster_of(text: str, kernel: str) -> tuple[int, ...]:
    """What ``__cluster_dims__`` says in front of the name of a kernel."""
    found = re.search(rf"__cluster_dims__\(([\d,\s]+)\)[^;{{}}]*?\b{re.escape(kernel)}\s*\(", text)
    dims = [int(n) for n in found[1].split(",")] if found else []
    if not found and (said := attribute_of(text, kernel, "__cluster_dims__")):
        message = f"{kernel} has clusters of ({', '.join(said)}): numbers are understood here"
        raise refuse(CheckError, "emulate.cluster", message)
    return (*dims, 1, 1, 1)[:3]


def check_cluster(k: KernelLaunch, dims: tuple[int, ...]) -> None:
    """The blocks of a kernel make clusters that can be run here; CheckError ``emulate.cluster``."""
    if not 1 <= dims[0] <= CLUSTER or dims[1:] != (1, 1):
        wrong = f"has clusters of {dims}: up to {CLUSTER} blocks along x run here"
    elif k.grid[0] % dims[0]:
        wrong = f"has {k.grid[0]} blocks along x, which make no whole clusters of {dims[0]}"
    else:
        return
    raise refuse(CheckError, "emulate.cluster", f"{k.name} {wrong}")


# --- tensor maps


def check_map(m: TensorMap) -> None:
    """The limits of cuTensorMapEncodeTiled and Im2col, and a row of the box as wide as its swizzle, as everyone has it.

    It ignores a step in the last dimension, which is refused here.
    """
    if m.dtype not in KINDS:
        raise refuse(CheckError, "emulate.map", f"a tensor map has elements that the driver knows; {m.name} is {m}")
    size = KINDS[m.dtype][1]
    row, span = m.box[-1] * size if m.box else 0, m.swizzle
    wrong = _broken_corners(m) if m.lower or m.upper else _broken_box(m)
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


def _broken_corners(m: TensorMap) -> str:
    """What is wrong with the map of an image that is gone through pixel by pixel."""
    if not (len(m.shape) == 4 and len(m.box) == len(m.lower) == len(m.upper) == 2):
        return "of pixels has 4 dimensions, a box of pixels and channels, and two corners of row and column"
    if not (1 <= m.box[0] <= 1024 and 1 <= m.box[1] <= 256):
        return "of pixels has a box of 1 to 1024 pixels and 1 to 256 channels"
    if not all(-128 <= n <= 127 for n in (*m.lower, *m.upper)):
        return "of pixels has corners of -128 to 127"
    return ""


def encoded(m: TensorMap) -> bytes:
    """The TirTensorMap that the kernel is given, what copies.h reads, before anyone knows where its array is."""
    about = (b"map ", len(m.shape), KINDS[m.dtype][1], m.swizzle, 0)
    inner = [(*reversed(v), 1, 1, 1, 1, 1)[:5] for v in (m.shape, m.box, m.steps)]
    numbers = (*inner[0], *inner[1], *inner[2], m.dtype == "tfloat32")
    corners = (1, *reversed(m.lower), *reversed(m.upper)) if m.lower else (0,) * 5
    return struct.pack("<4s3IQ16I5i20x", *about, *numbers, *corners)
