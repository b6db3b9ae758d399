"""What a first run on a GPU is to decide: how copies of tiles (TMA) lie in shared memory, what steps and corners mean.

Each probe is one small kernel whose result is a picture of shared memory, computed here as the documentation is read,
and as it could be read otherwise, so that a result tells which reading is true. The emulator runs the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tensorir.codegen.dialect import DIALECTS, SHARED_ARENA
from tensorir.codegen.helpers import helper_text
from tensorir.codegen.source import KernelLaunch, Param, Source, TensorMap

from .words import word_of

SENTINEL = 0x5A5A5A5A
"""What shared memory holds before a copy."""
SPARE = 2048
"""Bytes behind a tile that a copy has to leave alone."""
PIECE = 16
"""Bytes that a swizzle moves together."""


@dataclass(frozen=True)
class Made:
    """A kernel, its inputs and the result; others: what it would be if something were otherwise, in words."""

    source: Source
    arrays: Sequence[np.ndarray]
    want: np.ndarray
    others: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """asks: what it decides."""

    name: str
    asks: str
    make: Callable[[], Made]


_WAIT = """
#ifdef TIR_EMULATED
static int tried(unsigned long long *barrier) { tir_barrier_wait(barrier, 0); return 1; }
#else
// a barrier that never ends its phase is a result as well
static __device__ int tried(unsigned long long *barrier) {
  unsigned done = 0;
  for (int n = 0; n < 20000 && !done; ++n) {
    asm volatile("{\\n.reg .pred p;\\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0;\\nselp.b32 %0, 1, 0, p;\\n}"
                 : "=r"(done) : "r"((unsigned)__cvta_generic_to_shared(barrier)) : "memory");
    if (!done) __nanosleep(1000);
  }
  return done;
}
#endif
"""

_LOAD = """
extern "C" __global__ void __launch_bounds__(128)CLUSTER
probe(const __grid_constant__ TirTensorMap x_map, unsigned int *__restrict__ y)
{
  TIR_SHARED(arena, MEMORY);
  unsigned int *const tile = (unsigned int *)(arena);
  unsigned long long *const full = (unsigned long long *)(arena + ROOM);
  for (int n = threadIdx.x; n < ROOM / 4; n += 128) tile[n] = SENTINELu;
  if (threadIdx.x == 0) {
    tir_barrier_init(full, 1);
    tir_barriers_ready();
  }
  tir_async_fence();
  MEET
  if (threadIdx.x == 0) {
    tir_barrier_expect(full, BYTES);
    COPY
  }
  const int arrived = tried(full);
  for (int n = threadIdx.x; n < ROOM / 4; n += 128) y[blockIdx.x * WORDS + n] = tile[n];
  if (threadIdx.x == 0) y[blockIdx.x * WORDS + ROOM / 4] = arrived;
  END
}
"""
"""Shared memory after a copy, and whether as many bytes came as were announced: of each block of a cluster."""

_STORE = """
extern "C" __global__ void __launch_bounds__(128)
probe(const __grid_constant__ TirTensorMap y_map, const unsigned int *__restrict__ x)
{
  TIR_SHARED(arena, 8192);
  unsigned int *const tile = (unsigned int *)(arena);
  for (int n = threadIdx.x; n < 256; n += 128) tile[n] = x[blockIdx.x * 256 + n];
  tir_async_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    tir_tma_store(&y_map, tile, blockIdx.x % 2 * 32 - 4, blockIdx.x / 2 * 8 - 3);
    tir_commit_stores();
    tir_wait_stores<0>();
  }
}
"""
"""Tiles of 8 x 32 words to an array of 20 x 40, from three rows above it and four columns before it on."""


def _text(body: str, *needed: str) -> str:
    names, cuda = ("TirTensorMap", "TIR_SHARED", "tir_async_fence", *needed), DIALECTS["cuda"]
    return "\n".join(SHARED_ARENA if n == "TIR_SHARED" else helper_text(n, cuda) for n in names) + body


def numbered(shape: Sequence[int], dtype: str) -> np.ndarray:
    """An array whose elements differ from their neighbours, as words of whatever type."""
    kind = np.dtype(word_of(dtype))
    words = {2: np.uint16, 4: np.uint32}[kind.itemsize]
    return (np.arange(1, prod(shape) + 1) * 2654435761 % 40961 + 16640).astype(words).view(kind).reshape(shape)


def copied(x: np.ndarray, corner: Sequence[int], box: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """The tile that a copy brings: every steps-th element of the box from the corner on, 0 outside of ``x``."""
    at = [c + np.arange(0, b, s) for c, b, s in zip(corner, box, steps, strict=True)]
    inside = [(i >= 0) & (i < n) for i, n in zip(at, x.shape, strict=True)]
    clipped = [np.clip(i, 0, n - 1) for i, n in zip(at, x.shape, strict=True)]
    within = np.all(np.meshgrid(*inside, indexing="ij"), axis=0)
    return np.where(within, x[np.ix_(*clipped)], np.zeros((), x.dtype))


def laid(tile: np.ndarray, room: int, swizzle: int = 0) -> np.ndarray:
    """Words of ``room`` bytes of shared memory with a tile at its start, pieces of rows permuted by their address."""
    memory = np.full(room // 4, SENTINEL, np.uint32)
    pieces = np.ascontiguousarray(tile).view(np.uint32).reshape(-1, PIECE // 4)
    address = np.arange(len(pieces)) * PIECE
    address ^= (address >> 7 & (swizzle // PIECE - 1 if swizzle else 0)) << 4
    memory.reshape(-1, PIECE // 4)[address // PIECE] = pieces
    return memory


@dataclass(frozen=True)
class _Load:
    """A copy of a box; ``blocks`` of a cluster bring a part of its rows each, for all of them."""

    shape: tuple[int, ...]
    box: tuple[int, ...]
    corner: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle: int = 0
    dtype: str = "int32"
    blocks: int = 1

    def made(
        self,
        others: Callable[[_Load, np.ndarray], Mapping[str, np.ndarray]] | None = None,
        given: np.ndarray | None = None,
        seen: np.ndarray | None = None,
    ) -> Made:
        """others: tiles by what would be otherwise;  given: the array;  seen: what the copy is to bring of it"""
        x = numbered(self.shape, self.dtype) if given is None else given
        steps = self.steps or (1,) * len(self.box)
        tile = copied(x if seen is None else seen, self.corner, self.box, steps)
        room = -(-prod(self.box) * x.itemsize // 1024) * 1024 + SPARE  # of the box without steps
        want = self._result(tile, room, 1)
        told = others(self, x) if others else {}
        found = {words: self._result(t, room, 1) for words, t in told.items()}
        if prod(steps) > 1:
            whole = copied(x, self.corner, self.box, (1,) * len(steps))
            found["steps are not heeded: all of the box comes"] = self._result(whole, room, 0)
        return loaded(self._text(room, tile), self._map(), x, want, found, room, self.blocks)

    def _map(self) -> TensorMap:
        box = (self.box[0] // self.blocks, *self.box[1:])
        return TensorMap("x_map", "x", self.dtype, self.shape, box, self.swizzle, self.steps)

    def _result(self, tile: np.ndarray, room: int, arrived: int) -> np.ndarray:
        return pictured(tile, room, self.swizzle, arrived, self.blocks)

    def _text(self, room: int, tile: np.ndarray) -> str:
        corner = [str(c) for c in reversed(self.corner)]
        rank, call = len(corner), "tir_tma_load(tile, &x_map, full, {});"
        if self.blocks > 1:
            rows = self.box[0] // self.blocks
            corner[-1] += f" + (int)blockIdx.x * {rows}"
            place = f"tile + blockIdx.x * {tile.nbytes // 4 // self.blocks}"
            call = f"tir_tma_multicast({place}, &x_map, full, {(1 << self.blocks) - 1}, {{}});"
        how = f"tir_tma_multicast_{rank}" if self.blocks > 1 else f"tir_tma_load_{rank}"
        return loading(call.format(", ".join(corner)), how, tile.nbytes, room, self.blocks)


def loading(copy: str, how: str, nbytes: int, room: int, blocks: int) -> str:
    """The text of a kernel that makes one copy of a tile of so many bytes, by the function ``how``."""
    meet = "tir_sync_cluster();" if blocks > 1 else "__syncthreads();"
    words = {
        "CLUSTER": f" __cluster_dims__({blocks}, 1, 1)" if blocks > 1 else "",
        "MEMORY": str(room + 16), "ROOM": str(room), "SENTINEL": hex(SENTINEL), "BYTES": str(nbytes),
        "WORDS": str(room // 4 + 1), "MEET": meet, "END": meet if blocks > 1 else "", "COPY": copy,
    }  # fmt: skip
    text = _LOAD
    for name, value in words.items():
        text = text.replace(name, value)
    meeting = ["tir_sync_cluster"] if blocks > 1 else []
    return _text(_WAIT + text, "tir_barrier_init", "tir_barriers_ready", "tir_barrier_expect", how, *meeting)


def loaded(text: str, tiles: TensorMap, x: np.ndarray, want: np.ndarray, others: Mapping[str, np.ndarray], room: int,
           blocks: int = 1) -> Made:  # fmt: skip
    """Such a kernel, with its array ``x`` and what is to be seen of shared memory."""
    launch = KernelLaunch("probe", ("x_map", "y"), (blocks, 1, 1), (128, 1, 1), room + 16, maps=(tiles,))
    params = (Param("x", str(x.dtype), x.shape, "input", 16), Param("y", "uint32", want.shape, "output", 4))
    return Made(Source("probe", "cuda", text, params, (launch,)), [x], want, others)


def pictured(tile: np.ndarray, room: int, swizzle: int, arrived: int = 1, blocks: int = 1) -> np.ndarray:
    """What such a kernel tells: shared memory of each block, and whether all bytes came."""
    return np.tile(np.append(laid(tile, room, swizzle), np.uint32(arrived)), blocks)


def _stored() -> Made:
    x, y = numbered((6, 8, 32), "int32"), np.zeros((20, 40), np.int32)
    grown = x.reshape(3, 2, 8, 32).transpose(0, 2, 1, 3).reshape(24, 64)
    y[:] = grown[3:23, 4:44]
    box = TensorMap("y_map", "y", "int32", y.shape, (8, 32), 0)
    launch = KernelLaunch("probe", ("y_map", "x"), (6, 1, 1), (128, 1, 1), 8192, maps=(box,))
    params = (Param("x", "int32", x.shape, "input", 4), Param("y", "int32", y.shape, "output", 16))
    needed = ("tir_tma_store_2", "tir_commit_stores", "tir_wait_stores")
    return Made(Source("probe", "cuda", _text(_STORE, *needed), params, (launch,)), [x], y)


def to_tf32(x: np.ndarray, how: str) -> np.ndarray:
    """Floats with 10 bits of mantissa: rounded to the "nearest", halves to even; halves "away" from 0; or "cut" off."""
    u = x.view(np.uint32)
    more = {"nearest": 0xFFF + (u >> 13 & 1), "away": 0x1000, "cut": 0}[how]
    return (u + np.asarray(more, np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _rounded() -> Made:
    """Floats whose last 13 bits are halves, a little more, and a little less."""
    load = _Load((40, 96), (8, 32), (5, 11), swizzle=128, dtype="tfloat32")
    last = np.array([0x1000, 0x3000, 0x1001, 0xFFF, 0, 0x1FFF], np.uint32)
    x = (np.resize(last, 40 * 96) + (np.arange(40 * 96, dtype=np.uint32) << 13) + 0x3F800000).view(np.float32)
    x = x.reshape(load.shape)
    others = {"halves are rounded away from 0": "away", "what is too much is cut off": "cut"}
    return load.made(lambda load, x: {w: copied(to_tf32(x, how), load.corner, load.box, (1, 1))
                                      for w, how in others.items()} | {
        "nothing is rounded": copied(x, load.corner, load.box, (1, 1))}, x, to_tf32(x, "nearest"))  # fmt: skip


def _corner_in_steps(load: _Load, x: np.ndarray) -> Mapping[str, np.ndarray]:
    corner = [c * s for c, s in zip(load.corner, load.steps, strict=True)]
    return {"corners are counted in steps": copied(x, corner, load.box, load.steps)}


def _corner_inside(load: _Load, x: np.ndarray) -> Mapping[str, np.ndarray]:
    inside = copied(x, [c % s if c < 0 else c for c, s in zip(load.corner, load.steps, strict=True)], load.box,
                    load.steps)  # fmt: skip
    empty = np.zeros_like(inside)
    return {"a tile whose corner is before the array is all zeros": empty,
            "what is before the array is left out, and the rest moves up": inside}  # fmt: skip


_PLANE: dict[str, Any] = dict(shape=(40, 96), box=(8, 32))
_PIXELS: dict[str, Any] = dict(shape=(12, 20, 32), box=(8, 12, 32), steps=(2, 3, 1))

PROBES = (
    Probe("tma box", "a tile of words lies row by row", lambda: _Load(**_PLANE, corner=(5, 11)).made()),
    Probe("tma edges", "what is before and behind the array comes as zeros, and counts as bytes",
          lambda: _Load(**_PLANE, corner=(-3, -5)).made()),
    Probe("tma far edges", "likewise where nothing of the tile is in the array but its corner",
          lambda: _Load(**_PLANE, corner=(39, 95)).made()),
    *(Probe(f"tma swizzle {span}", f"pieces of 16 bytes are permuted within {span} by bits 7 and up of the address",
            lambda span=span: _Load((40, 96), (16, span // 4), (5, 11), swizzle=span).made())  # type: ignore[misc]
      for span in (32, 64, 128)),
    Probe("tma 16 bits", "rows of 64 elements of 16 bits", lambda: _Load((60, 128), (24, 64), (7, 30), swizzle=128,
                                                                        dtype="bfloat16").made()),
    Probe("tma tf32", "floats are rounded to 10 bits as they are copied, to nearest, halves to even", _rounded),
    Probe("tma large array", "an array of more than 128 KiB, whose map is not mended for old drivers",
          lambda: _Load((512, 96), (8, 32), (300, 40), swizzle=128).made()),
    Probe("tma steps", "of a box of N elements with a step s, ceil(N / s) come, packed; corners count elements",
          lambda: _Load(**_PIXELS, corner=(2, 3, 0)).made(_corner_in_steps)),
    Probe("tma steps at the edge", "with steps, elements before the array are zeros one by one",
          lambda: _Load(**_PIXELS, corner=(-1, -2, 0)).made(_corner_inside)),
    Probe("tma steps, swizzled", "rows of a tile with steps are numbered as those of one without",
          lambda: _Load(**_PIXELS, corner=(1, 1, 0), swizzle=128).made()),
    Probe("tma store", "a tile that sticks out on any side is clipped", _stored),
    Probe("tma multicast", "two blocks bring half a tile each, to both, at the same place, for both barriers",
          lambda: _Load((40, 96), (16, 32), (5, 11), swizzle=128, blocks=2).made()),
)  # fmt: skip
