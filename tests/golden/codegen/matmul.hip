// c float32[64, 64] from a float32[64, 32], b float32[32, 64]
// alignment in bytes: a 16, b 16, c 16
// launch c_kernel: blocks (1, 1, 1), threads (16, 16, 1), shared 16384 B
// # tile: a product of 64 x 64 sums of 32 terms
// s.stage_out('c', 'root', 'register')
// s.split('c.out.i', [None, 16, 4])
// s.split('c.out.j', [None, 16, 4])
// s.reorder('c.out.i.0', 'c.out.j.0', 'c.out.i.1', 'c.out.j.1', 'c.out.i.2', 'c.out.j.2')
// s.bind('c.out.i.0', 'block.y')
// s.bind('c.out.j.0', 'block.x')
// s.bind('c.out.i.1', 'thread.y')
// s.bind('c.out.j.1', 'thread.x')
// s.compute_at('c', 'c.out.j.1')
// s.split('c.k', [None, 16])
// s.reorder('c.k.0', 'c.k.1', 'c.i', 'c.j')
// s.stage_in('a', 'c.k.0', 'shared', vector=4, layout='i, k -> k, i')
// s.stage_in('b', 'c.k.0', 'shared', vector=4, layout='k, j -> k, j')
// s.stage_in('a_shared', 'c.k.1', 'register')
// s.split('a_shared_register.ax0', [None, 4])
// s.reorder('a_shared_register.ax0.0', 'a_shared_register.ax1', 'a_shared_register.ax0.1')
// s.vectorize('a_shared_register.ax0.1')
// s.stage_in('b_shared', 'c.k.1', 'register')
// s.split('b_shared_register.ax1', [None, 4])
// s.reorder('b_shared_register.ax0', 'b_shared_register.ax1.0', 'b_shared_register.ax1.1')
// s.vectorize('b_shared_register.ax1.1')
// s.unroll('c.i')
// s.unroll('c.j')
// s.unroll('c.k.1')
// s.split('c.out.j.2', [None, 4])
// s.unroll('c.out.j.2.0')
// s.vectorize('c.out.j.2.1')
// s.unroll('c.out.i.2')
// s.pipeline('c.k.0')
#include <hip/hip_runtime.h>

extern "C" __global__ void __launch_bounds__(256)
c_kernel(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c)
{
  __attribute__((aligned(16))) __shared__ float b_shared[1024];
  __attribute__((aligned(16))) __shared__ float a_shared[1024];
  __attribute__((aligned(16))) __shared__ float b_shared_1[1024];
  __attribute__((aligned(16))) __shared__ float a_shared_1[1024];
  const int out_i_1 = threadIdx.y;
  const int out_j_1 = threadIdx.x;
  __attribute__((aligned(16))) float c_register[16];
  #pragma unroll
  for (int init_i = 0; init_i < 4; ++init_i) {
    #pragma unroll
    for (int init_j = 0; init_j < 4; ++init_j)
      c_register[init_i * 4 + init_j] = 0.0f;
  }
  __attribute__((aligned(16))) float a_shared_next[4];
  *(float4 *)(a_shared_next) = *(const float4 *)(a + out_i_1 * 128 + out_j_1 / 4 * 32 + out_j_1 % 4 * 4);
  const int a_shared_at = out_j_1 % 4 * 256 + out_i_1 * 4 + out_j_1 / 4;
  // not in vectors: what lanes write of a_shared is not side by side
  #pragma unroll
  for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1)
    a_shared_1[a_shared_at + ax1_1 * 64] = a_shared_next[ax1_1];
  float4 b_shared_next[1];
  b_shared_next[0] = *(const float4 *)(b + out_i_1 * 64 + out_j_1 * 4);
  *(float4 *)(b_shared_1 + out_i_1 * 64 + out_j_1 * 4) = b_shared_next[0];
  __syncthreads();
  float4 b_shared_next_1[1];
  __attribute__((aligned(16))) float a_shared_next_1[4];
  *(float4 *)(a_shared_next_1) = *(const float4 *)(a + out_i_1 * 128 + out_j_1 / 4 * 32 + out_j_1 % 4 * 4 + 16);
  b_shared_next_1[0] = *(const float4 *)(b + out_i_1 * 64 + out_j_1 * 4 + 1024);
  #pragma unroll
  for (int k_1 = 0; k_1 < 16; ++k_1) {
    __attribute__((aligned(16))) float b_shared_register[4];
    __attribute__((aligned(16))) float a_shared_register[4];
    *(float4 *)(a_shared_register) = *(float4 *)(a_shared_1 + k_1 * 64 + out_i_1 * 4);
    *(float4 *)(b_shared_register) = *(float4 *)(b_shared_1 + k_1 * 64 + out_j_1 * 4);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      #pragma unroll
      for (int j = 0; j < 4; ++j)
        c_register[i * 4 + j] += a_shared_register[i] * b_shared_register[j];
    }
  }
  const int a_shared_at2 = out_j_1 % 4 * 256 + out_i_1 * 4 + out_j_1 / 4;
  // not in vectors: what lanes write of a_shared is not side by side
  #pragma unroll
  for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1)
    a_shared[a_shared_at2 + ax1_1 * 64] = a_shared_next_1[ax1_1];
  *(float4 *)(b_shared + out_i_1 * 64 + out_j_1 * 4) = b_shared_next_1[0];
  __syncthreads();
  float4 b_shared_next_2[1];
  float a_shared_next_2[4];
  #pragma unroll
  for (int k_1 = 0; k_1 < 16; ++k_1) {
    __attribute__((aligned(16))) float b_shared_register_1[4];
    __attribute__((aligned(16))) float a_shared_register_1[4];
    *(float4 *)(a_shared_register_1) = *(float4 *)(a_shared + k_1 * 64 + out_i_1 * 4);
    *(float4 *)(b_shared_register_1) = *(float4 *)(b_shared + k_1 * 64 + out_j_1 * 4);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      #pragma unroll
      for (int j = 0; j < 4; ++j)
        c_register[i * 4 + j] += a_shared_register_1[i] * b_shared_register_1[j];
    }
  }
  const int c_at = out_i_1 * 256 + out_j_1 * 4;
  #pragma unroll
  for (int out_i_2 = 0; out_i_2 < 4; ++out_i_2)
    *(float4 *)(c + c_at + out_i_2 * 64) = *(float4 *)(c_register + out_i_2 * 4);
}
