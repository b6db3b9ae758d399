"""A kernel for sm_90a whose blocks form clusters, written by hand."""

from __future__ import annotations

from hopper_texts import PACK, source

from tensorir.codegen.source import KernelLaunch, Source, TensorMap

CLUSTER_GEMM = (
    PACK
    + """
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
gemm(const __grid_constant__ TirTensorMap A_map, const __grid_constant__ TirTensorMap B_map,
     const __grid_constant__ TirTensorMap C_map)
{
  TIR_SHARED(arena, 131120);
  unsigned short *const A_shared = (unsigned short *)(arena);           // 3 x 128 x 64
  unsigned short *const B_shared = (unsigned short *)(arena + 49152);   // 3 x 128 x 64
  unsigned short *const C_shared = (unsigned short *)(arena + 98304);   // 2 panels of 128 x 64
  unsigned long long *const full = (unsigned long long *)(arena + 131072);
  unsigned long long *const empty = (unsigned long long *)(arena + 131096);
  const int role = threadIdx.y, thread = threadIdx.x, rank = blockIdx.x % CLUSTER;
  if (role == 0 && thread == 0) {
    for (int s = 0; s < 3; ++s) {
      tir_barrier_init(full + s, 1);
      tir_barrier_init(empty + s, 2 * CLUSTER);
    }
    tir_barriers_ready();
  }
  tir_meet_cluster();  // begin
  if (role == 0) {
    tir_registers_down<40>();
    if (thread == 0) {
      int s = 0, phase = 0;
      for (int tile = blockIdx.x / CLUSTER; tile < ROWS * TILES_N; tile += gridDim.x / CLUSTER) {
        const int m = (tile / TILES_N * CLUSTER + rank) * 128, n = tile % TILES_N * 128;
        for (int k = 0; k < STEPS; ++k) {
          tir_barrier_wait(empty + s, phase ^ 1);
          tir_barrier_expect(full + s, 32768);
          tir_tma_load(A_shared + s * 8192, &A_map, full + s, k * 64, m);
          tir_tma_multicast(B_shared + s * 8192 + rank * (8192 / CLUSTER), &B_map, full + s, (1 << CLUSTER) - 1,
                            k * 64, n + rank * (128 / CLUSTER));
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
    for (int tile = blockIdx.x / CLUSTER; tile < ROWS * TILES_N; tile += gridDim.x / CLUSTER) {
      const int m = (tile / TILES_N * CLUSTER + rank) * 128, n = tile % TILES_N * 128;
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
        if (last >= 0 && thread < CLUSTER) tir_barrier_arrive_at(empty + last, thread);
        last = s;
        if (++s == 3) { s = 0; phase ^= 1; }
      }
      tir_wgmma_wait<0>();
      tir_hold(d);
      if (thread < CLUSTER) tir_barrier_arrive_at(empty + last, thread);
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
  tir_sync_cluster();  // end
}
"""
)
"""C = A B^T in bfloat16: the blocks of a cluster make tiles above each other; each copies a part of B for all."""


def cluster_gemm(
    m: int, n: int, k: int, cluster: int = 2, clusters: int = 2, text: str = CLUSTER_GEMM, blocks: int | None = None
) -> Source:
    """The product for one shape. blocks: of the grid, in place of as many clusters as there is work for."""
    rows, columns, steps = -(-m // (128 * cluster)), -(-n // 128), -(-k // 64)
    words = {"CLUSTER": cluster, "ROWS": rows, "TILES_N": columns, "STEPS": steps}
    for name, value in words.items():
        text = text.replace(name, str(value))
    maps = (
        TensorMap("A_map", "A", "bfloat16", (m, k), (128, 64)),
        TensorMap("B_map", "B", "bfloat16", (n, k), (128 // cluster, 64)),
        TensorMap("C_map", "C", "bfloat16", (m, n), (64, 64)),
    )
    grid = (blocks or min(clusters, rows * columns) * cluster, 1, 1)
    launch = KernelLaunch("gemm", ("A_map", "B_map", "C_map"), grid, (128, 3, 1), 131120, maps=maps)
    shapes = {"A": ("bfloat16", (m, k)), "B": ("bfloat16", (n, k)), "C": ("bfloat16", (m, n))}
    return source(text, launch, shapes)
