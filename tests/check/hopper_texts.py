"""Kernels for sm_90a, written by hand, as sources that the emulator runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from tensorir.codegen.source import KernelLaunch, Param, Source, TensorMap
from tensorir.interp.numbers import numpy_dtype

PACK = """
static __device__ __forceinline__ unsigned rounded(float f) {
  unsigned u = __float_as_uint(f);
  return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
static __device__ __forceinline__ unsigned pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
"""

GEMM = (
    PACK
    + """
extern "C" __global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ TirTensorMap A_map, const __grid_constant__ TirTensorMap B_map,
     const __grid_constant__ TirTensorMap C_map)
{
  TIR_SHARED(arena, 131072);
  __shared__ unsigned long long full[3];
  __shared__ unsigned long long empty[3];
  unsigned short *const A_shared = (unsigned short *)(arena);           // 3 x 128 x 64
  unsigned short *const B_shared = (unsigned short *)(arena + 49152);   // 3 x 128 x 64
  unsigned short *const C_shared = (unsigned short *)(arena + 98304);   // 2 panels of 128 x 64
  const int role = threadIdx.y, thread = threadIdx.x;
  if (role == 0 && thread == 0) {
    for (int s = 0; s < 3; ++s) {
      tir_barrier_init(full + s, 1);
      tir_barrier_init(empty + s, 2);
    }
    tir_barriers_ready();
  }
  __syncthreads();
  if (role == 0) {
    tir_registers_down<40>();
    if (thread == 0) {
      int s = 0, phase = 0;
      for (int tile = blockIdx.x; tile < TILES_M * TILES_N; tile += gridDim.x) {
        const int m = tile / TILES_N * 128, n = tile % TILES_N * 128;
        for (int k = 0; k < STEPS; ++k) {
          tir_barrier_wait(empty + s, phase ^ 1);
          tir_barrier_expect(full + s, 32768);
          tir_tma_load(A_shared + s * 8192, &A_map, full + s, k * 64, m);
          tir_tma_load(B_shared + s * 8192, &B_map, full + s, k * 64, n);
          if (++s == 3) { s = 0; phase ^= 1; }
        }
      }
    }
  } else {
    tir_registers_up<232>();
    const int group = role - 1, warp = thread / 32, lane = thread % 32;
    float d[64];
    const unsigned long long a = tir_descriptor(A_shared + group * 4096, 16, 1024);
    const unsigned long long b = tir_descriptor(B_shared, 16, 1024);
    int s = 0, phase = 0;
    for (int tile = blockIdx.x; tile < TILES_M * TILES_N; tile += gridDim.x) {
      const int m = tile / TILES_N * 128, n = tile % TILES_N * 128;
      int last = -1;
      for (int i = 0; i < 64; ++i) d[i] = 0.0f;
      for (int k = 0; k < STEPS; ++k) {
        tir_barrier_wait(full + s, phase);
        tir_hold(d);
        tir_wgmma_fence();
        for (int kk = 0; kk < 4; ++kk)
          tir_wgmma_m64n128k16_bf16_nt(d, a + s * 1024 + kk * 2, b + s * 1024 + kk * 2);
        tir_wgmma_commit();
        tir_wgmma_wait<1>();
        if (last >= 0 && thread == 0) tir_barrier_arrive(empty + last);
        last = s;
        if (++s == 3) { s = 0; phase ^= 1; }
      }
      tir_wgmma_wait<0>();
      tir_hold(d);
      if (thread == 0) tir_barrier_arrive(empty + last);
      if (thread == 0) tir_wait_stores<0>();
      tir_sync_some(1 + group, 128);
      for (int j = 0; j < 8; ++j) {
        const int row = group * 64 + warp * 16 + lane % 16, piece = j * 2 + lane / 16;
        unsigned r[4];
        for (int i = 0; i < 4; ++i) r[i] = pack(d[8 * j + 2 * i], d[8 * j + 2 * i + 1]);
        tir_stmatrix_x4(C_shared + piece / 8 * 8192 + row * 64 + (piece % 8 ^ row % 8) * 8, r);
      }
      tir_async_fence();
      tir_sync_some(1 + group, 128);
      if (thread == 0) {
        for (int p = 0; p < 2; ++p)
          tir_tma_store(&C_map, C_shared + p * 8192 + group * 4096, n + p * 64, m + group * 64);
        tir_commit_stores();
      }
    }
    if (thread == 0) tir_wait_stores<0>();
  }
}
"""
)
"""C = A B^T in bfloat16, tiles of 128 x 128 x 64 walked by resident blocks: a warpgroup copies, two multiply."""


def source(text: str, launch: KernelLaunch, arrays: dict[str, tuple[str, Sequence[int]]]) -> Source:
    """A program of one kernel; arrays: name to type and shape, the last one is the output."""
    *_, last = arrays
    if arena := re.search(r"TIR_SHARED\(\w+, (\d+)\)", text):
        launch = replace(launch, shared_bytes=int(arena[1]) + 256)  # and barriers, which are declared
    params = [
        Param(name, dtype, tuple(shape), "output" if name == last else "input")
        for name, (dtype, shape) in arrays.items()
    ]
    return Source(launch.name, "cuda", text, tuple(params), (launch,))


def gemm(m: int, n: int, k: int, blocks: int = 2, text: str = GEMM, swizzle: int = 128) -> Source:
    """The product for one shape."""
    tiles = (-(-m // 128), -(-n // 128), -(-k // 64))
    for name, value in zip(("TILES_M", "TILES_N", "STEPS"), tiles, strict=True):
        text = text.replace(name, str(value))
    maps = (
        TensorMap("A_map", "A", "bfloat16", (m, k), (128, 64), swizzle),
        TensorMap("B_map", "B", "bfloat16", (n, k), (128, 64)),
        TensorMap("C_map", "C", "bfloat16", (m, n), (64, 64)),
    )
    grid = (min(blocks, tiles[0] * tiles[1]), 1, 1)
    launch = KernelLaunch("gemm", ("A_map", "B_map", "C_map"), grid, (128, 3, 1), 131072, maps=maps)
    shapes = {"A": ("bfloat16", (m, k)), "B": ("bfloat16", (n, k)), "C": ("bfloat16", (m, n))}
    return source(text, launch, shapes)


def small_integers(m: int, n: int, k: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Operands, and the product as the kernel rounds it."""
    rng = np.random.default_rng(m + n + k)
    a, b = rng.integers(-3, 4, (m, k)).astype("float32"), rng.integers(-3, 4, (n, k)).astype("float32")
    kind = ml_dtypes.bfloat16
    return [a.astype(kind), b.astype(kind)], (a @ b.T).astype(kind)


ONE_PRODUCT = """
extern "C" __global__ void __launch_bounds__(128)
one(const __grid_constant__ TirTensorMap A_map, const __grid_constant__ TirTensorMap B_map,
    const unsigned char *__restrict__ A, SUM *__restrict__ C)
{
  TIR_SHARED(arena, 49152);
  __shared__ unsigned long long full[1];
  unsigned int *const A_shared = (unsigned int *)(arena);
  unsigned int *const B_shared = (unsigned int *)(arena + 16384);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  if (thread == 0) {
    tir_barrier_init(full, 1);
    tir_barriers_ready();
    tir_barrier_expect(full, 8192 + B_BYTES);
    tir_tma_load(A_shared, &A_map, full, 0, 0);
    for (int n = 0; n < B_BYTES; n += 8192 * B_PANELS)
      tir_tma_load(B_shared + n / 4, &B_map, full, n / 128, 0);
  }
  __syncthreads();
  tir_barrier_wait(full, 0);
  SUM d[WIDTH / 2] = {};
  const unsigned long long a = tir_descriptor(A_shared, 8192, 1024), b = tir_descriptor(B_shared, 8192, 1024);
  unsigned int held[16];
  for (int r = 0; r < 16; ++r)
    held[r] = *(const unsigned int *)(A + (warp * 16 + g + r % 2 * 8) * 128 + r / 4 * 32 + r / 2 % 2 * 16 + t * 4);
  tir_hold(d);
  tir_hold(held);
  tir_wgmma_fence();
  for (int kk = 0; kk < 4; ++kk) PRODUCT(d, A_OPERAND, b + kk * B_STEP);
  tir_wgmma_commit();
  tir_wgmma_wait<0>();
  tir_hold(d);
  for (int j = 0; j < WIDTH / 2; ++j)
    C[(warp * 16 + g + j / 2 % 2 * 8) * WIDTH + j / 4 * 8 + t * 2 + j % 2] = d[j];
}
"""
"""Four products of one warpgroup, of operands whose rows along k are 128 bytes; A comes by its map, or in registers."""

KINDS = {"f16": "float16", "bf16": "bfloat16", "tf32": "float32", "s8": "int8", "u8": "uint8", "e4m3": "float8_e4m3",
         "e5m2": "float8_e5m2"}  # fmt: skip


def one_product(kind: str, n: int, order: str) -> tuple[Source, list[np.ndarray], np.ndarray]:
    """A source, its operands and the exact result. order: two letters as in the instructions' names."""
    dtype = numpy_dtype(KINDS[kind])
    k, whole = 128 // dtype.itemsize, kind in ("s8", "u8")
    along_m, along_n = order[0] == "t", order[1] == "n"
    panels = -(-n // 64)
    steps = {"A_OPERAND": "held + 4 * kk" if order[0] == "r" else f"a + kk * {128 if along_m else 2}",
             "B_STEP": "128" if along_n else "2", "WIDTH": str(n), "SUM": "int" if whole else "float",
             "B_BYTES": str(8192 * panels if along_n else n * 128), "B_PANELS": "1" if along_n else "8",
             "PRODUCT": f"tir_wgmma_m64n{n}k{k // 4}_{kind}_{order}"}  # fmt: skip
    text = ONE_PRODUCT
    for name, value in steps.items():
        text = text.replace(name, value)
    rng = np.random.default_rng(n)
    low, high = {"s8": (-128, 128), "u8": (0, 256)}.get(kind, (-4, 5))
    a, b = rng.integers(low, high, (64, k)), rng.integers(low, high, (n, k))
    shapes = ((k, 64) if along_m else (64, k)), ((k, n) if along_n else (n, k))
    maps = (
        TensorMap("A_map", "A", KINDS[kind], shapes[0], (64, k)),
        TensorMap("B_map", "B", KINDS[kind], shapes[1], (64, 64) if along_n else (n, k)),
    )
    made = "int32" if whole else "float32"
    launch = KernelLaunch("one", ("A_map", "B_map", "A", "C"), (1, 1, 1), (128, 1, 1), 49152, maps=maps)
    program = source(text, launch, {"A": (KINDS[kind], shapes[0]), "B": (KINDS[kind], shapes[1]), "C": (made, (64, n))})
    given = [np.ascontiguousarray(x).astype(dtype) for x in (a.T if along_m else a, b.T if along_n else b)]
    return program, given, (a @ b.T).astype(made)


MOVED = """
extern "C" __global__ void __launch_bounds__(32)
moved(const __grid_constant__ TirTensorMap X_map, const __grid_constant__ TirTensorMap Y_map,
      const __grid_constant__ TirTensorMap Z_map, float *__restrict__ Y)
{
  TIR_SHARED(arena, 65536);
  __shared__ unsigned long long full[1];
  float *const tile = (float *)(arena);
  if (threadIdx.x == 0) {
    tir_barrier_init(full, 1);
    tir_barriers_ready();
    tir_barrier_expect(full, 4 * SIZE);
    tir_tma_load(tile, &X_map, full, FROM);
  }
  __syncwarp();
  tir_barrier_wait(full, 0);
  for (int n = threadIdx.x; n < SIZE; n += 32) Y[n] = tile[n];
  if (threadIdx.x == 0) {
    tir_tma_store(&Z_map, tile, TO);
    tir_commit_stores();
    tir_wait_stores_done<0>();
  }
}
"""
"""A tile of X, as it lies in shared memory to Y, and back to another place, in Z."""

TURNED = """
extern "C" __global__ void __launch_bounds__(32)
turned(const unsigned int *__restrict__ X, short *__restrict__ Y)
{
  __align__(16) __shared__ short tile[256];
  unsigned int r[4];
  for (int m = 0; m < 4; ++m) r[m] = X[threadIdx.x * 4 + m];
  STORE(tile + threadIdx.x * 8, r);
  __syncwarp();
  for (int e = 0; e < 8; ++e) Y[threadIdx.x * 8 + e] = tile[threadIdx.x * 8 + e];
}
"""
"""Four registers of each lane to rows of four matrices of 8 x 8."""
