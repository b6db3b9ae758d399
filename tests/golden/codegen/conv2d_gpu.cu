// y float32[1, 16, 8, 8] from x float32[1, 8, 8, 8], w float32[16, 8, 3, 3]
// launch y_kernel: blocks (2, 1, 1), threads (32, 8, 1), shared 6336 B
// s.stage_out('y', 'root', 'register')
// s.split('y.out.k', [None, 8, 4])
// s.split('y.out.p', [None, 4, 1])
// s.split('y.out.q', [None, 8, 2])
// s.reorder('y.out.n', 'y.out.k.0', 'y.out.p.0', 'y.out.q.0', 'y.out.k.1', 'y.out.p.1', 'y.out.q.1', 'y.out.k.2', 'y.out.p.2', 'y.out.q.2')
// s.fuse('y.out.p.0', 'y.out.q.0')
// s.fuse('y.out.p.1', 'y.out.q.1')
// s.bind('y.out.n', 'block.z')
// s.bind('y.out.k.0', 'block.y')
// s.bind('y.out.p.0&out.q.0', 'block.x')
// s.bind('y.out.k.1', 'thread.y')
// s.bind('y.out.p.1&out.q.1', 'thread.x')
// s.compute_at('y', 'y.out.p.1&out.q.1')
// s.split('y.c', [None, 4])
// s.reorder('y.n', 'y.c.0', 'y.c.1', 'y.r', 'y.s', 'y.k', 'y.p', 'y.q')
// s.unroll('y.k')
// s.unroll('y.p')
// s.unroll('y.q')
// s.stage_in('w', 'y.c.0', 'shared', order=[1, 2, 3, 0])
// s.stage_in('x_pad', 'y.c.0', 'shared')
// s.compute_inline('x_pad')

extern "C" __global__ void __launch_bounds__(256)
y_kernel(const float *__restrict__ x, const float *__restrict__ w, float *__restrict__ y)
{
  __shared__ float x_pad_shared[432];
  __shared__ float w_shared[1152];
  const int out_p_0_out_q_0 = blockIdx.x;
  const int out_k_1 = threadIdx.y;
  const int out_p_1_out_q_1 = threadIdx.x;
  float y_register[8];
  #pragma unroll
  for (int init_k = 0; init_k < 4; ++init_k) {
    #pragma unroll
    for (int init_q = 0; init_q < 2; ++init_q)
      y_register[init_k * 2 + init_q] = 0.0f;
  }
  const int x_pad_shared_at = out_p_1_out_q_1 / 8 * 18 + out_p_1_out_q_1 % 8 * 2;
  for (int c_0 = 0; c_0 < 2; ++c_0) {
    for (int n = 0; n < 5; ++n) {
      const int e = n * 256 + out_k_1 * 32 + out_p_1_out_q_1;
      const int e1 = e / 9;
      const int e2 = e / 3;
      if (e < 1152)
        w_shared[e1 % 4 * 288 + e2 % 3 * 96 + e % 3 * 32 + e / 36] = e / 36 < 16 ? w[e / 36 * 72 + c_0 * 36 + e1 % 4 * 9 + e2 % 3 * 3 + e % 3] : 0.0f;
    }
    for (int n = 0; n < 2; ++n) {
      const int e = n * 256 + out_k_1 * 32 + out_p_1_out_q_1;
      const int e1 = e / 108;
      const int e2 = e / 18;
      if (e < 432)
        x_pad_shared[e1 % 4 * 108 + e2 % 6 * 18 + e % 18] = 1 <= out_p_0_out_q_0 * 4 + e2 % 6 && out_p_0_out_q_0 * 4 + e2 % 6 < 9 && 1 <= e % 18 && e % 18 < 9 ? x[c_0 * 256 + e1 % 4 * 64 + out_p_0_out_q_0 * 32 + e2 % 6 * 8 + e % 18 - 9] : 0.0f;
    }
    __syncthreads();
    for (int c_1 = 0; c_1 < 4; ++c_1)
      for (int r = 0; r < 3; ++r)
        for (int s = 0; s < 3; ++s) {
          #pragma unroll
          for (int k = 0; k < 4; ++k) {
            #pragma unroll
            for (int q = 0; q < 2; ++q)
              y_register[k * 2 + q] += x_pad_shared[x_pad_shared_at + c_1 * 108 + r * 18 + q + s] * w_shared[c_1 * 288 + r * 96 + s * 32 + out_k_1 * 4 + k];
          }
        }
    __syncthreads();
  }
  const int y_at = out_k_1 * 256 + out_p_0_out_q_0 * 32 + out_p_1_out_q_1 / 8 * 8 + out_p_1_out_q_1 % 8 * 2;
  for (int out_k_2 = 0; out_k_2 < 4; ++out_k_2)
    if (out_k_1 * 4 + out_k_2 < 16)
      for (int out_q_2 = 0; out_q_2 < 2; ++out_q_2)
        if (out_p_1_out_q_1 % 8 * 2 + out_q_2 < 8)
          y[y_at + out_k_2 * 64 + out_q_2] = y_register[out_k_2 * 2 + out_q_2];
}
