// y float32[1, 6, 6, 5] from x float32[1, 6, 6, 4], w float32[5, 3, 3, 4]
// alignment in bytes: x 16, w 16
// launch y_kernel: blocks (1, 2, 1), threads (32, 2, 1), shared 8192 B
// # tile: a product of 36 x 5 sums of 36 terms
// s.reindex('y', 'n, p, q, k | r, s, c -> i = (n, p, q), j = k, k = (r, s, c)', reads={'x_pad': 'i, k', 'w': 'j, k'}, writes='i, j')
// s.reindex('y.out', 'n, p, q, k -> i = (n, p, q), j = k')
// s.split('y.out.i', [None, 1, 32])
// s.split('y.out.j', [None, 2, 16])
// s.reorder('y.out.i.0', 'y.out.j.0', 'y.out.i.1', 'y.out.j.1', 'y.out.i.2', 'y.out.j.2')
// s.bind('y.out.i.1', 'warp.y')
// s.bind('y.out.j.1', 'warp.x')
// s.bind('y.out.i.0', 'block.y')
// s.bind('y.out.j.0', 'block.x')
// s.compute_at('y', 'y.out.j.1')
// s.set_scope('y_packed', 'warp')
// s.layout('y_packed', 'i, j -> i/4%8, j/4%4 | i/32, j/16, i%4, j%4')
// s.split('y.k', [None, 16])
// s.reorder('y.k.0', 'y.k.1', 'y.i', 'y.j')
// s.stage_in('x_pad_packed', 'y.k.0', 'shared', vector=4, layout='i, k -> k, i/4 ^ k/4%4*2, i%4')
// s.stage_in('x_pad_packed_shared', 'y.k.1', 'warp', layout='i, k -> i/4%8, *4 | k, i/32, i%4')
// s.stage_in('w_packed', 'y.k.0', 'shared', vector=4, layout='j, k -> k, j/4 ^ k/4%4*2, j%4')
// s.stage_in('w_packed_shared', 'y.k.1', 'warp', layout='j, k -> *8, j/4%4 | k, j/16, j%4')
// s.unroll('y.k.1')
// s.pipeline('y.k.0')
// s.compute_inline('x_pad_packed')
// s.compute_inline('w_packed')
// s.compute_inline('x_pad')

extern "C" __global__ void __launch_bounds__(64)
y_kernel(const float *__restrict__ x, const float *__restrict__ w, float *__restrict__ y)
{
  __align__(16) __shared__ float w_packed_shared[512];
  __align__(16) __shared__ float x_pad_packed_shared[512];
  __align__(16) __shared__ float w_packed_shared_1[512];
  __align__(16) __shared__ float x_pad_packed_shared_1[512];
  const int out_i_0 = blockIdx.y;
  const int out_j_1 = threadIdx.y;
  const int lane = threadIdx.x;
  float y_packed[16];
  #pragma unroll
  for (int init_i_0 = 0; init_i_0 < 4; ++init_i_0) {
    #pragma unroll
    for (int init_j_0 = 0; init_j_0 < 4; ++init_j_0)
      y_packed[init_i_0 * 4 + init_j_0] = 0.0f;
  }
  __align__(16) float x_pad_packed_shared_next[8];
  const int x_at = out_i_0 * 128 + out_j_1 * 32 + lane / 4 * 4;
  for (int n = 0; n < 2; ++n) {
    const int e = lane % 4;
    const int e1 = out_i_0 * 32 + n * 16 + out_j_1 * 8 + lane / 4;
    *(float4 *)(x_pad_packed_shared_next + n * 4) = e1 < 36 && 1 <= e1 / 6 % 6 + e / 3 && 1 <= e1 % 6 + e % 3 && e1 % 6 + e % 3 < 7 ? *(const float4 *)(x + x_at + e / 3 * 24 + e % 3 * 4 + n * 64 - 28) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  for (int n = 0; n < 2; ++n) {
    // not in vectors: what lanes write of x_pad_packed_shared is not side by side
    #pragma unroll
    for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1) {
      const int ax1_e = lane / 4;
      x_pad_packed_shared_1[lane % 4 * 128 + ax1_1 * 32 + (n * 4 + out_j_1 * 2 + ax1_e / 4 ^ lane % 4 * 2) * 4 + ax1_e % 4] = x_pad_packed_shared_next[n * 4 + ax1_1];
    }
  }
  __align__(16) float w_packed_shared_next[8];
  const int w_at = out_j_1 * 288 + lane / 4 * 36 + lane % 4 * 4;
  for (int n = 0; n < 2; ++n)
    *(float4 *)(w_packed_shared_next + n * 4) = n * 16 + out_j_1 * 8 + lane / 4 < 5 ? *(const float4 *)(w + w_at + n * 576) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int n = 0; n < 2; ++n) {
    // not in vectors: what lanes write of w_packed_shared is not side by side
    #pragma unroll
    for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1) {
      const int ax1_e = lane / 4;
      w_packed_shared_1[lane % 4 * 128 + ax1_1 * 32 + (n * 4 + out_j_1 * 2 + ax1_e / 4 ^ lane % 4 * 2) * 4 + ax1_e % 4] = w_packed_shared_next[n * 4 + ax1_1];
    }
  }
  __syncthreads();
  const int x_at2 = out_i_0 * 128 + out_j_1 * 32 + lane / 4 * 4;
  const int w_at2 = out_j_1 * 288 + lane / 4 * 36 + lane % 4 * 4;
  for (int k_0 = 0; k_0 < 2; ++k_0) {
    __align__(16) float w_packed_shared_next_1[8];
    __align__(16) float x_pad_packed_shared_next_1[8];
    if (k_0 < 1) {
      for (int n = 0; n < 2; ++n) {
        const int e = k_0 * 8 + lane % 4 + 1;
        const int e1 = out_i_0 * 32 + n * 16 + out_j_1 * 8 + lane / 4;
        *(float4 *)(x_pad_packed_shared_next_1 + n * 4) = e1 < 36 && e1 / 6 % 6 + e / 3 < 6 && 1 <= e1 % 6 + e % 3 && e1 % 6 + e % 3 < 7 ? *(const float4 *)(x + x_at2 + e / 3 * 24 + e % 3 * 4 + n * 64 - 4) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
      for (int n = 0; n < 2; ++n)
        *(float4 *)(w_packed_shared_next_1 + n * 4) = n * 16 + out_j_1 * 8 + lane / 4 < 5 ? *(const float4 *)(w + w_at2 + n * 576 + k_0 * 32 + 16) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    #pragma unroll
    for (int k_1 = 0; k_1 < 16; ++k_1) {
      __align__(16) float w_packed_shared_warp[4];
      __align__(16) float x_pad_packed_shared_warp[4];
      *(float4 *)(x_pad_packed_shared_warp) = *(float4 *)(x_pad_packed_shared_1 + k_1 * 32 + (lane / 4 ^ k_1 / 4 * 2) * 4);
      *(float4 *)(w_packed_shared_warp) = *(float4 *)(w_packed_shared_1 + k_1 * 32 + (out_j_1 * 4 + lane % 4 ^ k_1 / 4 * 2) * 4);
      #pragma unroll
      for (int i_0 = 0; i_0 < 4; ++i_0) {
        #pragma unroll
        for (int j_0 = 0; j_0 < 4; ++j_0)
          y_packed[i_0 * 4 + j_0] += x_pad_packed_shared_warp[i_0] * w_packed_shared_warp[j_0];
      }
    }
    if (k_0 < 1) {
      for (int n = 0; n < 2; ++n) {
        // not in vectors: what lanes write of x_pad_packed_shared is not side by side
        #pragma unroll
        for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1) {
          const int ax1_e = lane / 4;
          x_pad_packed_shared[lane % 4 * 128 + ax1_1 * 32 + (n * 4 + out_j_1 * 2 + ax1_e / 4 ^ lane % 4 * 2) * 4 + ax1_e % 4] = x_pad_packed_shared_next_1[n * 4 + ax1_1];
        }
      }
      for (int n = 0; n < 2; ++n) {
        // not in vectors: what lanes write of w_packed_shared is not side by side
        #pragma unroll
        for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1) {
          const int ax1_e = lane / 4;
          w_packed_shared[lane % 4 * 128 + ax1_1 * 32 + (n * 4 + out_j_1 * 2 + ax1_e / 4 ^ lane % 4 * 2) * 4 + ax1_e % 4] = w_packed_shared_next_1[n * 4 + ax1_1];
        }
      }
    }
    __syncthreads();
    if (k_0 < 1) {
      __align__(16) float w_packed_shared_next_2[8];
      __align__(16) float x_pad_packed_shared_next_2[8];
      for (int n = 0; n < 2; ++n) {
        const int e = k_0 * 8 + lane % 4 + 2;
        const int e1 = out_i_0 * 32 + n * 16 + out_j_1 * 8 + lane / 4;
        *(float4 *)(x_pad_packed_shared_next_2 + n * 4) = e1 < 36 && k_0 * 8 + lane % 4 < 1 && e1 / 6 % 6 + e / 3 < 5 && 1 <= e1 % 6 + e % 3 && e1 % 6 + e % 3 < 7 ? *(const float4 *)(x + x_at2 + e / 3 * 24 + e % 3 * 4 + n * 64 + 20) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
      for (int n = 0; n < 2; ++n)
        *(float4 *)(w_packed_shared_next_2 + n * 4) = n * 16 + out_j_1 * 8 + lane / 4 < 5 && k_0 * 8 + lane % 4 < 1 ? *(const float4 *)(w + w_at2 + n * 576 + k_0 * 32 + 32) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      #pragma unroll
      for (int k_1 = 0; k_1 < 16; ++k_1) {
        __align__(16) float w_packed_shared_warp_1[4];
        __align__(16) float x_pad_packed_shared_warp_1[4];
        *(float4 *)(x_pad_packed_shared_warp_1) = *(float4 *)(x_pad_packed_shared + k_1 * 32 + (lane / 4 ^ k_1 / 4 * 2) * 4);
        *(float4 *)(w_packed_shared_warp_1) = *(float4 *)(w_packed_shared + k_1 * 32 + (out_j_1 * 4 + lane % 4 ^ k_1 / 4 * 2) * 4);
        #pragma unroll
        for (int i_0 = 0; i_0 < 4; ++i_0) {
          #pragma unroll
          for (int j_0 = 0; j_0 < 4; ++j_0)
            y_packed[i_0 * 4 + j_0] += x_pad_packed_shared_warp_1[i_0] * w_packed_shared_warp_1[j_0];
        }
      }
      for (int n = 0; n < 2; ++n) {
        // not in vectors: what lanes write of x_pad_packed_shared is not side by side
        #pragma unroll
        for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1) {
          const int ax1_e = lane / 4;
          x_pad_packed_shared_1[lane % 4 * 128 + ax1_1 * 32 + (n * 4 + out_j_1 * 2 + ax1_e / 4 ^ lane % 4 * 2) * 4 + ax1_e % 4] = x_pad_packed_shared_next_2[n * 4 + ax1_1];
        }
      }
      for (int n = 0; n < 2; ++n) {
        // not in vectors: what lanes write of w_packed_shared is not side by side
        #pragma unroll
        for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1) {
          const int ax1_e = lane / 4;
          w_packed_shared_1[lane % 4 * 128 + ax1_1 * 32 + (n * 4 + out_j_1 * 2 + ax1_e / 4 ^ lane % 4 * 2) * 4 + ax1_e % 4] = w_packed_shared_next_2[n * 4 + ax1_1];
        }
      }
    }
    __syncthreads();
  }
  const int y_at = out_i_0 * 160 + lane / 4 * 20 + out_j_1 * 16 + lane % 4 * 4;
  #pragma unroll
  for (int out_i_2_0 = 0; out_i_2_0 < 4; ++out_i_2_0)
    if (out_i_0 * 32 + lane / 4 * 4 + out_i_2_0 < 36) {
      // not in vectors: its condition differs from lane to lane
      #pragma unroll
      for (int out_j_2_0 = 0; out_j_2_0 < 4; ++out_j_2_0)
        if (out_j_1 * 16 + lane % 4 * 4 + out_j_2_0 < 5)
          y[y_at + out_i_2_0 * 5 + out_j_2_0] = y_packed[out_i_2_0 * 4 + out_j_2_0];
    }
}
