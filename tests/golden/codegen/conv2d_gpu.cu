// y float32[1, 16, 8, 8] from x float32[1, 8, 8, 8], w float32[16, 8, 3, 3]
// alignment in bytes: w 16, y 16
// launch y_kernel: blocks (1, 1, 1), threads (32, 2, 1), shared 12288 B
// # tile: a product of 16 x 64 sums of 72 terms
// s.reindex('y', 'n, k, p, q | c, r, s -> i = k, j = (p, q, n), k = (c, r, s)', reads={'w': 'i, k', 'x_pad': 'k, j'}, writes='i, j')
// s.reindex('y.out', 'n, k, p, q -> i = k, j = (p, q, n)')
// s.split('y.out.i', [None, 1, 16])
// s.split('y.out.j', [None, 2, 32])
// s.reorder('y.out.i.0', 'y.out.j.0', 'y.out.i.1', 'y.out.j.1', 'y.out.i.2', 'y.out.j.2')
// s.bind('y.out.i.1', 'warp.y')
// s.bind('y.out.j.1', 'warp.x')
// s.bind('y.out.i.0', 'block.y')
// s.bind('y.out.j.0', 'block.x')
// s.compute_at('y', 'y.out.j.1')
// s.set_scope('y_packed', 'warp')
// s.layout('y_packed', 'i, j -> i/4%4, j/4%8 | i/16, j/32, i%4, j%4')
// s.split('y.k', [None, 16])
// s.reorder('y.k.0', 'y.k.1', 'y.i', 'y.j')
// s.stage_in('w_packed', 'y.k.0', 'shared', vector=4, layout='i, k -> k, i/4 ^ k/4%4*2, i%4')
// s.stage_in('w_packed_shared', 'y.k.1', 'warp', layout='i, k -> i/4%4, *8 | k, i/16, i%4')
// s.stage_in('x_pad_packed', 'y.k.0', 'shared', layout='k, j -> k, j')
// s.stage_in('x_pad_packed_shared', 'y.k.1', 'warp', layout='k, j -> *4, j/4%8 | k, j/32, j%4')
// s.unroll('y.k.1')
// s.pipeline('y.k.0')
// s.compute_inline('w_packed')
// s.compute_inline('x_pad_packed')
// s.compute_inline('x_pad')

extern "C" __global__ void __launch_bounds__(64)
y_kernel(const float *__restrict__ x, const float *__restrict__ w, float *__restrict__ y)
{
  __align__(16) __shared__ float x_pad_packed_shared[1024];
  __align__(16) __shared__ float w_packed_shared[512];
  __align__(16) __shared__ float x_pad_packed_shared_1[1024];
  __align__(16) __shared__ float w_packed_shared_1[512];
  const int out_j_1 = threadIdx.y;
  const int lane = threadIdx.x;
  __align__(16) float y_packed[16];
  #pragma unroll
  for (int init_i_0 = 0; init_i_0 < 4; ++init_i_0) {
    #pragma unroll
    for (int init_j_0 = 0; init_j_0 < 4; ++init_j_0)
      y_packed[init_i_0 * 4 + init_j_0] = 0.0f;
  }
  __align__(16) float w_packed_shared_next[4];
  *(float4 *)(w_packed_shared_next) = *(const float4 *)(w + out_j_1 * 576 + lane / 4 * 72 + lane % 4 * 4);
  // not in vectors: what lanes write of w_packed_shared is not side by side
  #pragma unroll
  for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1) {
    const int ax1_e = lane / 4;
    w_packed_shared_1[lane % 4 * 128 + ax1_1 * 32 + (out_j_1 * 2 + ax1_e / 4 ^ lane % 4 * 2) * 4 + ax1_e % 4] = w_packed_shared_next[ax1_1];
  }
  float x_pad_packed_shared_next[16];
  const int x_at = out_j_1 * 32 + lane;
  for (int n = 0; n < 16; ++n) {
    const int e = n / 3;
    x_pad_packed_shared_next[n] = 1 <= out_j_1 * 4 + lane / 8 + e % 3 && out_j_1 * 4 + lane / 8 + e % 3 < 9 && 1 <= lane % 8 + n % 3 && lane % 8 + n % 3 < 9 ? x[x_at + n / 9 * 64 + e % 3 * 8 + n % 3 - 9] : 0.0f;
  }
  const int x_pad_packed_shared_at = out_j_1 * 32 + lane;
  for (int n = 0; n < 16; ++n)
    x_pad_packed_shared_1[x_pad_packed_shared_at + n * 64] = x_pad_packed_shared_next[n];
  __syncthreads();
  const int w_at = out_j_1 * 576 + lane / 4 * 72 + lane % 4 * 4;
  const int x_at2 = out_j_1 * 32 + lane;
  const int x_pad_packed_shared_at2 = out_j_1 * 32 + lane % 8 * 4;
  const int x_pad_packed_shared_at3 = out_j_1 * 32 + lane;
  const int x_pad_packed_shared_at4 = out_j_1 * 32 + lane % 8 * 4;
  const int x_pad_packed_shared_at5 = out_j_1 * 32 + lane;
  for (int k_0 = 0; k_0 < 3; ++k_0) {
    float x_pad_packed_shared_next_1[16];
    __align__(16) float w_packed_shared_next_1[4];
    if (k_0 < 2) {
      *(float4 *)(w_packed_shared_next_1) = *(const float4 *)(w + w_at + k_0 * 32 + 16);
      for (int n = 0; n < 16; ++n) {
        const int e = k_0 * 32 + n + 1;
        const int e1 = e / 3 + 2;
        x_pad_packed_shared_next_1[n] = 1 <= out_j_1 * 4 + lane / 8 + e1 % 3 && out_j_1 * 4 + lane / 8 + e1 % 3 < 9 && 1 <= lane % 8 + e % 3 && lane % 8 + e % 3 < 9 ? x[x_at2 + (k_0 * 32 + n + 7) / 9 * 64 + e1 % 3 * 8 + e % 3 + 55] : 0.0f;
      }
    }
    #pragma unroll
    for (int k_1 = 0; k_1 < 16; ++k_1) {
      __align__(16) float x_pad_packed_shared_warp[4];
      __align__(16) float w_packed_shared_warp[4];
      *(float4 *)(w_packed_shared_warp) = *(float4 *)(w_packed_shared_1 + k_1 * 32 + (lane / 8 ^ k_1 / 4 * 2) * 4);
      *(float4 *)(x_pad_packed_shared_warp) = *(float4 *)(x_pad_packed_shared_1 + x_pad_packed_shared_at2 + k_1 * 64);
      #pragma unroll
      for (int i_0 = 0; i_0 < 4; ++i_0) {
        #pragma unroll
        for (int j_0 = 0; j_0 < 4; ++j_0)
          y_packed[i_0 * 4 + j_0] += x_pad_packed_shared_warp[j_0] * w_packed_shared_warp[i_0];
      }
    }
    if (k_0 < 2) {
      // not in vectors: what lanes write of w_packed_shared is not side by side
      #pragma unroll
      for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1) {
        const int ax1_e = lane / 4;
        w_packed_shared[lane % 4 * 128 + ax1_1 * 32 + (out_j_1 * 2 + ax1_e / 4 ^ lane % 4 * 2) * 4 + ax1_e % 4] = w_packed_shared_next_1[ax1_1];
      }
      for (int n = 0; n < 16; ++n)
        x_pad_packed_shared[x_pad_packed_shared_at3 + n * 64] = x_pad_packed_shared_next_1[n];
    }
    __syncthreads();
    if (k_0 < 2) {
      float x_pad_packed_shared_next_2[16];
      __align__(16) float w_packed_shared_next_2[4];
      *(float4 *)(w_packed_shared_next_2) = k_0 * 8 + lane % 4 < 10 ? *(const float4 *)(w + w_at + k_0 * 32 + 32) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int n = 0; n < 16; ++n) {
        const int e = k_0 * 32 + n + 2;
        const int e1 = e / 3 + 1;
        x_pad_packed_shared_next_2[n] = k_0 * 32 + n < 40 && 1 <= out_j_1 * 4 + lane / 8 + e1 % 3 && out_j_1 * 4 + lane / 8 + e1 % 3 < 9 && 1 <= lane % 8 + e % 3 && lane % 8 + e % 3 < 9 ? x[x_at2 + (k_0 * 32 + n + 5) / 9 * 64 + e1 % 3 * 8 + e % 3 + 183] : 0.0f;
      }
      #pragma unroll
      for (int k_1 = 0; k_1 < 16; ++k_1) {
        __align__(16) float x_pad_packed_shared_warp_1[4];
        __align__(16) float w_packed_shared_warp_1[4];
        *(float4 *)(w_packed_shared_warp_1) = *(float4 *)(w_packed_shared + k_1 * 32 + (lane / 8 ^ k_1 / 4 * 2) * 4);
        *(float4 *)(x_pad_packed_shared_warp_1) = *(float4 *)(x_pad_packed_shared + x_pad_packed_shared_at4 + k_1 * 64);
        #pragma unroll
        for (int i_0 = 0; i_0 < 4; ++i_0) {
          #pragma unroll
          for (int j_0 = 0; j_0 < 4; ++j_0)
            y_packed[i_0 * 4 + j_0] += x_pad_packed_shared_warp_1[j_0] * w_packed_shared_warp_1[i_0];
        }
      }
      // not in vectors: what lanes write of w_packed_shared is not side by side
      #pragma unroll
      for (int ax1_1 = 0; ax1_1 < 4; ++ax1_1) {
        const int ax1_e = lane / 4;
        w_packed_shared_1[lane % 4 * 128 + ax1_1 * 32 + (out_j_1 * 2 + ax1_e / 4 ^ lane % 4 * 2) * 4 + ax1_e % 4] = w_packed_shared_next_2[ax1_1];
      }
      for (int n = 0; n < 16; ++n)
        x_pad_packed_shared_1[x_pad_packed_shared_at5 + n * 64] = x_pad_packed_shared_next_2[n];
    }
    __syncthreads();
  }
  const int y_at = lane / 8 * 256 + out_j_1 * 32 + lane % 8 * 4;
  #pragma unroll
  for (int out_i_2_0 = 0; out_i_2_0 < 4; ++out_i_2_0)
    *(float4 *)(y + y_at + out_i_2_0 * 64) = *(float4 *)(y_packed + out_i_2_0 * 4);
}
