// y float32[1, 16, 8, 8] from x float32[1, 8, 8, 8], w float32[16, 8, 3, 3]
// alignment in bytes: w 16, y 16
// launch y_kernel: blocks (1, 1, 1), threads (16, 16, 1), shared 16384 B
// # tile: a product of 16 x 64 sums of 72 terms
// s.reindex('y', 'n, k, p, q | c, r, s -> i = k, j = (p, q, n), k = (c, r, s)', reads={'w': 'i, k', 'x_pad': 'k, j'}, writes='i, j')
// s.reindex('y.out', 'n, k, p, q -> i = k, j = (p, q, n)')
// s.split('y.out.i', [None, 16, 4])
// s.split('y.out.j', [None, 16, 4])
// s.reorder('y.out.i.0', 'y.out.j.0', 'y.out.i.1', 'y.out.j.1', 'y.out.i.2', 'y.out.j.2')
// s.bind('y.out.i.0', 'block.y')
// s.bind('y.out.j.0', 'block.x')
// s.bind('y.out.i.1', 'thread.y')
// s.bind('y.out.j.1', 'thread.x')
// s.compute_at('y', 'y.out.j.1')
// s.split('y.k', [None, 16])
// s.reorder('y.k.0', 'y.k.1', 'y.i', 'y.j')
// s.stage_in('w_packed', 'y.k.0', 'shared', vector=4, layout='i, k -> k, i')
// s.stage_in('x_pad_packed', 'y.k.0', 'shared', layout='k, j -> k, j')
// s.compute_inline('w_packed')
// s.compute_inline('x_pad_packed')
// s.stage_in('w_packed_shared', 'y.k.1', 'register')
// s.split('w_packed_shared_register.ax0', [None, 4])
// s.reorder('w_packed_shared_register.ax0.0', 'w_packed_shared_register.ax1', 'w_packed_shared_register.ax0.1')
// s.vectorize('w_packed_shared_register.ax0.1')
// s.stage_in('x_pad_packed_shared', 'y.k.1', 'register')
// s.split('x_pad_packed_shared_register.ax1', [None, 4])
// s.reorder('x_pad_packed_shared_register.ax0', 'x_pad_packed_shared_register.ax1.0', 'x_pad_packed_shared_register.ax1.1')
// s.vectorize('x_pad_packed_shared_register.ax1.1')
// s.unroll('y.i')
// s.unroll('y.j')
// s.unroll('y.k.1')
// s.split('y.out.j.2', [None, 4])
// s.unroll('y.out.j.2.0')
// s.vectorize('y.out.j.2.1')
// s.unroll('y.out.i.2')
// s.pipeline('y.k.0')
// s.compute_inline('x_pad')

__kernel __attribute__((reqd_work_group_size(16, 16, 1)))
void y_kernel(__global const float *restrict x, __global const float *restrict w, __global float *restrict y)
{
  __local float x_pad_packed_shared[1024] __attribute__((aligned(16)));
  __local float w_packed_shared[1024] __attribute__((aligned(16)));
  __local float x_pad_packed_shared_1[1024] __attribute__((aligned(16)));
  __local float w_packed_shared_1[1024] __attribute__((aligned(16)));
  const int out_i_1 = get_local_id(1);
  const int out_j_1 = get_local_id(0);
  float y_packed[16] __attribute__((aligned(16)));
  #pragma unroll
  for (int init_i = 0; init_i < 4; ++init_i) {
    #pragma unroll
    for (int init_j = 0; init_j < 4; ++init_j)
      y_packed[init_i * 4 + init_j] = 0.0f;
  }
  float w_packed_shared_next[4] __attribute__((aligned(16)));
  *(float4 *)(w_packed_shared_next) = out_i_1 * 4 + out_j_1 / 4 < 16 ? *(__global const float4 *)(w + out_i_1 * 288 + out_j_1 / 4 * 72 + out_j_1 % 4 * 4) : (float4)(0.0f);
  const int w_packed_shared_at = out_j_1 % 4 * 256 + out_i_1 * 4 + out_j_1 / 4;
  // not in vectors: what lanes write of w_packed_shared is not side by side
  #pragma unroll
  for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1)
    w_packed_shared_1[w_packed_shared_at + ax1_1 * 64] = w_packed_shared_next[ax1_1];
  float x_pad_packed_shared_next[4];
  const int x_at = out_i_1 % 4 * 16 + out_j_1;
  for (int n = 0; n < 4; ++n) {
    const int e = n * 4 + out_i_1 / 4;
    const int e1 = e / 3;
    x_pad_packed_shared_next[n] = 1 <= out_i_1 % 4 * 2 + out_j_1 / 8 + e1 % 3 && out_i_1 % 4 * 2 + out_j_1 / 8 + e1 % 3 < 9 && 1 <= out_j_1 % 8 + e % 3 && out_j_1 % 8 + e % 3 < 9 ? x[x_at + e / 9 * 64 + e1 % 3 * 8 + e % 3 - 9] : 0.0f;
  }
  const int x_pad_packed_shared_at = out_j_1 + out_i_1 * 16;
  for (int n = 0; n < 4; ++n)
    x_pad_packed_shared_1[x_pad_packed_shared_at + n * 256] = x_pad_packed_shared_next[n];
  barrier(CLK_LOCAL_MEM_FENCE);
  const int w_at = out_i_1 * 288 + out_j_1 / 4 * 72 + out_j_1 % 4 * 4;
  const int x_at2 = out_i_1 % 4 * 16 + out_j_1;
  const int w_packed_shared_at2 = out_j_1 % 4 * 256 + out_i_1 * 4 + out_j_1 / 4;
  const int x_pad_packed_shared_at2 = out_j_1 + out_i_1 * 16;
  const int w_packed_shared_at3 = out_j_1 % 4 * 256 + out_i_1 * 4 + out_j_1 / 4;
  const int x_pad_packed_shared_at3 = out_j_1 + out_i_1 * 16;
  for (int k_0 = 0; k_0 < 3; ++k_0) {
    float x_pad_packed_shared_next_1[4];
    float w_packed_shared_next_1[4] __attribute__((aligned(16)));
    if (k_0 < 2) {
      *(float4 *)(w_packed_shared_next_1) = out_i_1 * 4 + out_j_1 / 4 < 16 ? *(__global const float4 *)(w + w_at + k_0 * 32 + 16) : (float4)(0.0f);
      for (int n = 0; n < 4; ++n) {
        const int e = k_0 * 32 + n * 4 + out_i_1 / 4 + 1;
        const int e1 = e / 3 + 2;
        x_pad_packed_shared_next_1[n] = 1 <= out_i_1 % 4 * 2 + out_j_1 / 8 + e1 % 3 && out_i_1 % 4 * 2 + out_j_1 / 8 + e1 % 3 < 9 && 1 <= out_j_1 % 8 + e % 3 && out_j_1 % 8 + e % 3 < 9 ? x[x_at2 + (k_0 * 32 + n * 4 + out_i_1 / 4 + 7) / 9 * 64 + e1 % 3 * 8 + e % 3 + 55] : 0.0f;
      }
    }
    #pragma unroll
    for (int k_1 = 0; k_1 < 16; ++k_1) {
      float x_pad_packed_shared_register[4] __attribute__((aligned(16)));
      float w_packed_shared_register[4] __attribute__((aligned(16)));
      *(float4 *)(w_packed_shared_register) = *(__local float4 *)(w_packed_shared_1 + k_1 * 64 + out_i_1 * 4);
      *(float4 *)(x_pad_packed_shared_register) = *(__local float4 *)(x_pad_packed_shared_1 + k_1 * 64 + out_j_1 * 4);
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int j = 0; j < 4; ++j)
          y_packed[i * 4 + j] += x_pad_packed_shared_register[j] * w_packed_shared_register[i];
      }
    }
    if (k_0 < 2) {
      // not in vectors: what lanes write of w_packed_shared is not side by side
      #pragma unroll
      for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1)
        w_packed_shared[w_packed_shared_at2 + ax1_1 * 64] = w_packed_shared_next_1[ax1_1];
      for (int n = 0; n < 4; ++n)
        x_pad_packed_shared[x_pad_packed_shared_at2 + n * 256] = x_pad_packed_shared_next_1[n];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (k_0 < 2) {
      float x_pad_packed_shared_next_2[4];
      float w_packed_shared_next_2[4] __attribute__((aligned(16)));
      *(float4 *)(w_packed_shared_next_2) = out_i_1 * 4 + out_j_1 / 4 < 16 && k_0 * 8 + out_j_1 % 4 < 10 ? *(__global const float4 *)(w + w_at + k_0 * 32 + 32) : (float4)(0.0f);
      for (int n = 0; n < 4; ++n) {
        const int e = k_0 * 32 + n * 4 + out_i_1 / 4 + 2;
        const int e1 = e / 3 + 1;
        x_pad_packed_shared_next_2[n] = k_0 * 32 + n * 4 + out_i_1 / 4 < 40 && 1 <= out_i_1 % 4 * 2 + out_j_1 / 8 + e1 % 3 && out_i_1 % 4 * 2 + out_j_1 / 8 + e1 % 3 < 9 && 1 <= out_j_1 % 8 + e % 3 && out_j_1 % 8 + e % 3 < 9 ? x[x_at2 + (k_0 * 32 + n * 4 + out_i_1 / 4 + 5) / 9 * 64 + e1 % 3 * 8 + e % 3 + 183] : 0.0f;
      }
      #pragma unroll
      for (int k_1 = 0; k_1 < 16; ++k_1) {
        float x_pad_packed_shared_register_1[4] __attribute__((aligned(16)));
        float w_packed_shared_register_1[4] __attribute__((aligned(16)));
        *(float4 *)(w_packed_shared_register_1) = *(__local float4 *)(w_packed_shared + k_1 * 64 + out_i_1 * 4);
        *(float4 *)(x_pad_packed_shared_register_1) = *(__local float4 *)(x_pad_packed_shared + k_1 * 64 + out_j_1 * 4);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
          #pragma unroll
          for (int j = 0; j < 4; ++j)
            y_packed[i * 4 + j] += x_pad_packed_shared_register_1[j] * w_packed_shared_register_1[i];
        }
      }
      // not in vectors: what lanes write of w_packed_shared is not side by side
      #pragma unroll
      for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1)
        w_packed_shared_1[w_packed_shared_at3 + ax1_1 * 64] = w_packed_shared_next_2[ax1_1];
      for (int n = 0; n < 4; ++n)
        x_pad_packed_shared_1[x_pad_packed_shared_at3 + n * 256] = x_pad_packed_shared_next_2[n];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const int y_at = out_i_1 * 256 + out_j_1 * 4;
  #pragma unroll
  for (int out_i_2 = 0; out_i_2 < 4; ++out_i_2)
    if (out_i_1 * 4 + out_i_2 < 16)
      *(__global float4 *)(y + y_at + out_i_2 * 64) = *(float4 *)(y_packed + out_i_2 * 4);
}
