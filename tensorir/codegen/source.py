"""``Source``: generated text with parameters and launches, as plain data for the runtime and export."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tensorir.codec import travels
from tensorir.errors.shown import Shown, Text, difference, few_lines
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.extents import value, values

WIDE_MACRO = "TENSORIR_AVX512"
"""Defined by whoever builds OpenCL text for a processor with AVX-512; without it the text computes the same, slower."""
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
"""Features of an x86 processor that kernels on registers of 64 bytes ask for."""


@travels
@dataclass(frozen=True, repr=False)
class Param(Shown):
    """One parameter of a generated program.

    role:  "input" and "output" are the user's arrays, "workspace" is a global buffer that the runtime allocates,
           "constant" one whose contents (``data``, little-endian bytes) ship with the program, "scalar" a value passed
           by copy (shape ``()``; with ``data`` it is fixed), "dim" an extent that a launch reads from the shapes of its
           arrays, and passes by copy
    shape: ints, or expressions of dims as text
    align: bytes of which the kernel assumes the address to be a multiple
    """

    name: str
    dtype: str
    shape: tuple[Any, ...]
    role: str
    align: int = 4
    data: bytes | None = field(default=None, repr=False)


@travels
@dataclass(frozen=True, repr=False)
class TensorMap(Shown):
    """A kernel argument by value that describes TMA tiles of an array (CUtensorMap).

    name:    of the kernel's argument;  array: the Param whose address it holds
    dtype:   of the array; "tfloat32" for a float32 array whose elements the copy rounds to tf32
    shape:   of the array, row-major, outermost first;  box: extents of a tile, its skipped elements included, in the
             same order
    swizzle: bytes of a row of the tile within which pieces of 16 bytes are permuted: 128, 64, 32, or 0 for none
    steps:   per dimension: distance of elements that the copy takes from the box (elementStrides); () for all elements
    lower, upper: of an image (n, h, w, c) copied pixel by pixel (im2col mode): row and column of the first pixel, and
                  of the end of the traversed box, from the image's end. ``box`` is (pixels, channels) then, ``steps``
                  from one pixel to the next. () for tiles that are boxes
    """

    name: str
    array: str
    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    steps: tuple[int, ...] = ()
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()


MOST_ON_STACK = 16 << 10
"""Bytes of a block's arrays on the stack of a thread, which a framework or libc may have made as small as 64 KiB."""


@travels
@dataclass(frozen=True, repr=False)
class KernelLaunch(Shown):
    """One kernel of a Source with its launch: ``grid`` blocks of ``block`` threads, both (x, y, z).

    args:    names of Params, or of ``maps``, in the order of the kernel's signature
    shared_bytes: shared memory of a block, declared in the text or allocated at launch
    once:    True if it depends on some inputs only and its results stay in workspace that no other kernel writes, so
             that one run serves all launches on the same inputs (packing of weights)
    cluster: blocks per thread-block cluster, along x; the grid's x is a multiple of it
    """

    name: str
    args: tuple[str, ...]
    grid: tuple[Any, Any, Any]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    once: bool = False
    maps: tuple[TensorMap, ...] = ()
    cluster: int = 1

    @property
    def local_bytes(self) -> int:
        """Bytes of scratch memory that a block of a C kernel receives; 0 if its arrays are on the stack."""
        return self.shared_bytes if self.shared_bytes > MOST_ON_STACK else 0

    @property
    def params(self) -> tuple[str, ...]:
        """Names of the Params that the kernel's arguments refer to, in their order; for a tensor map, its array's."""
        arrays = {m.name: m.array for m in self.maps}
        return tuple(arrays.get(a, a) for a in self.args)


def _slice_text(part: Sequence[int]) -> str:
    """A slice, given as (start, stop, step), in Python's notation: "3", "0:8:2"; ":" for ()."""
    if not part:
        return ":"
    start, stop, step = part
    if stop - start <= step:
        return str(start)
    return f"{start}:{stop}" + (f":{step}" if step > 1 else "")


@travels
@dataclass(frozen=True, repr=False)
class GatherRange(Shown):
    """Launch-time check: every element of input ``param`` must satisfy ``0 <= value < limit``, as it indexes ``into``.

    part: the elements that are checked: per dimension (start, stop, step) of a slice, or () for the whole dimension;
          just () for all
    """

    param: str
    limit: Any
    into: str
    part: tuple[tuple[int, ...], ...] = ()

    @property
    def shown(self) -> str:
        """Text for the checked elements, such as ``I[:, 0]``."""
        return f"{self.param}[{', '.join(map(_slice_text, self.part))}]" if self.part else self.param


@travels
@dataclass(frozen=True, repr=False)
class SegmentRange(Shown):
    """Launch-time check of segment offsets: along dimension ``along``, ``param`` increases by 0 to ``most`` from one
    element to the next, as the reduction axis ``axis`` has that many terms.
    """

    param: str
    along: int
    most: int
    axis: str


@travels
@dataclass(frozen=True, repr=False)
class UniquePlaces(Shown):
    """Launch-time check that all terms of a scatter into the array ``into`` have distinct targets.

    domain: extents of the scatter's axes;  shape: extents of the target cells
    index:  per dimension of the cells: (name of an input, numbers of the axes at which it is read; -1 - c for a
            constant index c); ("", (number,)) for an axis itself; ("", (-1, c)) for a constant c
    """

    into: str
    domain: tuple[Any, ...]
    index: tuple[tuple[str, tuple[int, ...]], ...]
    shape: tuple[Any, ...] = ()


@travels
@dataclass(frozen=True, repr=False)
class Assumed(Shown):
    """An unchecked promise by the caller on input ``param``: ``low <= element < high``, None for no bound.

    align: bytes of which its address is a multiple, 0 for no promise; ``Param.align`` repeats it for a check at launch
    """

    param: str
    align: int = 0
    low: int | None = None
    high: int | None = None


@travels
@dataclass(frozen=True, repr=False)
class DimRange(Shown):
    """Launch-time check of a symbolic dim: ``low <= extent <= high``."""

    name: str
    low: int
    high: int


@travels
@dataclass(frozen=True, repr=False)
class Source(Shown):
    """Generated (or edited) text of a whole program, with parameters and launches.

    language: "opencl", "cuda", "hip" or "c"
    params:   in signature order for the user: inputs, outputs; then workspace and constants
    kernels:  in launch order
    instructions: names of the hardware instructions (``intrin/``) in the text
    gathers, segments, unique, dims: checks at launch;  assumed: unchecked promises
    """

    name: str
    language: str
    text: str
    params: tuple[Param, ...]
    kernels: tuple[KernelLaunch, ...]
    gathers: tuple[GatherRange, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    instructions: tuple[str, ...] = ()
    unique: tuple[UniquePlaces, ...] = ()
    dims: tuple[DimRange, ...] = ()
    segments: tuple[SegmentRange, ...] = ()

    def __repr__(self) -> str:
        kernels = ", ".join(k.name for k in self.kernels)
        return few_lines(
            f"<Source {self.name} in {self.language}: {len(self.text.splitlines())} lines, kernels {kernels}>"
        )

    def diff(self, other: Source) -> Text:
        """Unified diff from the text of ``other`` to this one's."""
        return difference(other.text, self.text)

    @property
    def sha256(self) -> str:
        """SHA-256 of the UTF-8 text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def inputs(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if p.role == "input" or (p.role == "scalar" and p.data is None))

    @property
    def outputs(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if p.role == "output")

    @property
    def used_once(self) -> frozenset[str]:
        """Names of Params that ``once`` kernels read or write."""
        return frozenset(a for k in self.kernels if k.once for a in k.params)

    @property
    def prepackable(self) -> tuple[Param, ...]:
        """Inputs and fixed inputs that only ``once`` kernels read: while these do not change, those kernels need not
        run again.
        """
        each = {a for k in self.kernels if not k.once for a in k.params}
        return tuple(p for p in self.params if p.role in ("input", "constant") and p.name in self.used_once - each)

    @property
    def made_early(self) -> tuple[KernelLaunch, ...]:
        """``once`` kernels that depend on constants and fixed inputs only, on no array that a call passes."""
        late = {p.name for p in self.inputs}
        workspace = {p.name for p in self.params if p.role == "workspace"}
        once = [k for k in self.kernels if k.once]
        for _ in once:  # what a late one may write is late as well
            late |= {a for k in once if late & set(k.params) for a in workspace & set(k.params)}
        return tuple(k for k in once if not late & set(k.params))

    def has_indices(self, name: str) -> bool:
        """True if launches check the elements of input ``name`` as indices."""
        return (
            any(g.param == name for g in self.gathers)
            or any(s.param == name for s in self.segments)
            or any(name == n for u in self.unique for n, _ in u.index)
        )

    def fixed(self, values: Mapping[str, bytes]) -> Source:
        """Copy with inputs replaced by constants; checks of their elements are dropped, those of scatter targets stay.

        values: {input name: its elements as little-endian, row-major bytes}
        """
        params = [replace(p, role="constant", data=values[p.name]) if p.name in values else p for p in self.params]
        gathers = tuple(g for g in self.gathers if g.param not in values)
        segments = tuple(s for s in self.segments if s.param not in values)
        return replace(self, params=tuple(params), gathers=gathers, segments=segments)

    def at(self, dims: Mapping[str, int]) -> Source:
        """Copy at given values of symbolic dims: shapes and grids become ints, the text stays."""

        def fixed(p: Param) -> Param:
            if p.role == "dim":
                return replace(p, role="scalar", data=int(dims[p.name]).to_bytes(4, "little"))
            return replace(p, shape=values(p.shape, dims))

        return replace(
            self, dims=(), params=tuple(map(fixed, self.params)),
            kernels=tuple(replace(k, grid=_at(k.grid, dims)) for k in self.kernels),
            gathers=tuple(replace(g, limit=value(g.limit, dims)) for g in self.gathers),
            unique=tuple(replace(u, domain=values(u.domain, dims), shape=values(u.shape, dims)) for u in self.unique),
        )  # fmt: skip

    @property
    def workspace_bytes(self) -> int:
        return sum(_size(p) for p in self.params if p.role == "workspace")


def itemsize(dtype: str) -> int:
    """Bytes of one ``dtype`` element."""
    return DTYPES[dtype].bits // 8


def _size(p: Param) -> int:
    n = itemsize(p.dtype)
    for extent in p.shape:
        n *= extent
    return n


def _at(grid: tuple[Any, Any, Any], dims: Mapping[str, int]) -> tuple[int, int, int]:
    x, y, z = values(grid, dims)
    return x, y, z
