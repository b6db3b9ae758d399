// y float32[1, 5, 6, 6] from x float32[1, 4, 6, 6], w float32[5, 4, 3, 3]
// launch y_kernel: blocks (1, 6, 1), threads (1, 1, 1), shared 480 B
// s.stage_out('y', 'root', 'register')
// s.split('y.out.k', [None, 1, 6])
// s.split('y.out.p', [None, 1])
// s.split('y.out.q', [None, 8])
// s.reorder('y.out.n', 'y.out.k.0', 'y.out.p.0', 'y.out.k.1', 'y.out.p.1', 'y.out.q.0', 'y.out.k.2', 'y.out.q.1')
// s.bind('y.out.n', 'block.z')
// s.bind('y.out.k.0', 'block.x')
// s.bind('y.out.p.0', 'block.y')
// s.compute_at('y', 'y.out.q.0')
// s.split('y.q', [None, 8])
// s.reorder('y.n', 'y.p', 'y.c', 'y.r', 'y.s', 'y.k', 'y.q.0', 'y.q.1')
// s.unroll('y.k')
// s.unroll('y.q.0')
// s.vectorize('y.q.1')
// s.set_scope('x_pad', 'shared')
// s.compute_at('x_pad', 'y.out.p.0')
// s.split('y.out.q.1', [None, 8])
// s.reorder('y.out.k.2', 'y.out.q.1.0', 'y.out.q.1.1')
// s.unroll('y.out.k.2')
// s.unroll('y.out.q.1.0')
// s.vectorize('y.out.q.1.1')
typedef float8 __attribute__((aligned(4))) float8u;

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void y_kernel(__global const float *restrict x, __global const float *restrict w, __global float *restrict y)
{
  __local float x_pad[120];
  const int out_p_0 = get_group_id(1);
  for (int c = 0; c < 4; ++c)
    for (int h = 0; h < 3; ++h)
      for (int x_pad_w = 0; x_pad_w < 10; ++x_pad_w)
        x_pad[c * 30 + h * 10 + x_pad_w] = 1 <= out_p_0 + h && out_p_0 + h < 7 && 1 <= x_pad_w && x_pad_w < 7 ? x[c * 36 + out_p_0 * 6 + h * 6 + x_pad_w - 7] : 0.0f;
  float y_register[48] __attribute__((aligned(32)));
  #pragma unroll
  for (int init_k = 0; init_k < 6; ++init_k)
    *(float8 *)(y_register + init_k * 8) = (float8)(0.0f);
  for (int c = 0; c < 4; ++c)
    for (int r = 0; r < 3; ++r)
      for (int s = 0; s < 3; ++s) {
        #pragma unroll
        for (int k = 0; k < 6; ++k)
          *(float8 *)(y_register + k * 8) += *(__local float8u *)(x_pad + c * 30 + r * 10 + s) * w[min(k, 4) * 36 + c * 9 + r * 3 + s];
      }
  #pragma unroll
  for (int out_k_2 = 0; out_k_2 < 5; ++out_k_2) {
    #pragma unroll
    for (int out_q_1_1 = 0; out_q_1_1 < 6; ++out_q_1_1)
      y[out_k_2 * 36 + out_p_0 * 6 + out_q_1_1] = y_register[out_k_2 * 8 + out_q_1_1];
  }
}
