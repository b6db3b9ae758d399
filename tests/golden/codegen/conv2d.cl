// y float32[1, 5, 6, 6] from x float32[1, 4, 6, 6], w float32[5, 4, 3, 3]
// launch y_kernel: blocks (1, 2, 1), threads (1, 1, 1), shared 2944 B
// s.reindex('x_pad', 'n, c, h, w -> n = n, h = h, w = w, c = c', writes='n, h, w, c')
// s.reindex('y', 'n, k, p, q | c, r, s -> n, p, q, k, r, s, c', pad={'k': 16}, reads={'w': 'ko = k/16, r, s, c, ki = k%16'}, writes='n, p, q, k')
// s.split('y.out.p', [None, 3])
// s.split('y.out.k', [None, 1, 2, 8])
// s.split('y.out.p.1', [None, 1], tail='balanced')
// s.split('y.out.q', [None, 6], tail='balanced')
// s.reorder('y.out.n', 'y.out.p.0', 'y.out.k.0', 'y.out.k.1', 'y.out.p.1.0', 'y.out.q.0', 'y.out.p.1.1', 'y.out.q.1', 'y.out.k.2', 'y.out.k.3')
// s.bind('y.out.n', 'block.z')
// s.bind('y.out.p.0', 'block.y')
// s.bind('y.out.k.0', 'block.x')
// s.compute_at('y', 'y.out.k.0')
// s.set_scope('x_pad', 'shared')
// s.compute_at('x_pad', 'y.out.k.0')
// s.split('x_pad.c', [None, 4])
// s.vectorize('x_pad.c.1')
// s.reorder('x_pad.c.0', 'x_pad.w')
// s.partition('x_pad.w', [1, 7])
// s.compute_at('y', 'y.out.q.0')
// s.set_scope('w_packed', 'shared')
// s.compute_at('w_packed', 'y.out.k.1')
// s.split('w_packed.ki', [None, 8])
// s.vectorize('w_packed.ki.1')
// s.split('y.k', [None, 8])
// s.reorder('y.n', 'y.r', 'y.s', 'y.c', 'y.p', 'y.q', 'y.k.0', 'y.k.1')
// s.unroll('y.p')
// s.unroll('y.q')
// s.unroll('y.k.0')
// s.vectorize('y.k.1')
// s.unroll('y.out.p.1.1')
// s.unroll('y.out.k.2')
// s.annotate('y.c', 'unroll', 4)
// s.split('y.out.q.1', [None, 4], tail='shift')
// s.reorder('y.out.q.1.0', 'y.out.k.2', 'y.out.k.3', 'y.out.q.1.1')
// s.unroll('y.out.q.1.0')
// s.unroll('y.out.k.3')
// s.vectorize('y.out.q.1.1')

__attribute__((always_inline)) inline void tir_transpose_4x4(const float *from, long pitch, float *to, long rows)
{
  const float4 r0 = *(const float4 *)(from + 0 * pitch);
  const float4 r1 = *(const float4 *)(from + 1 * pitch);
  const float4 r2 = *(const float4 *)(from + 2 * pitch);
  const float4 r3 = *(const float4 *)(from + 3 * pitch);
  const float4 a0 = (float4)(r0.s0, r1.s0, r0.s1, r1.s1);
  const float4 a1 = (float4)(r0.s2, r1.s2, r0.s3, r1.s3);
  const float4 a2 = (float4)(r2.s0, r3.s0, r2.s1, r3.s1);
  const float4 a3 = (float4)(r2.s2, r3.s2, r2.s3, r3.s3);
  *(float4 *)(to + 0 * rows) = (float4)(a0.lo, a2.lo);
  *(float4 *)(to + 1 * rows) = (float4)(a0.hi, a2.hi);
  *(float4 *)(to + 2 * rows) = (float4)(a1.lo, a3.lo);
  *(float4 *)(to + 3 * rows) = (float4)(a1.hi, a3.hi);
}
typedef float4 __attribute__((aligned(4))) float4u;

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void y_kernel(__global const float *restrict x, __global const float *restrict w, __global float *restrict y)
{
  __local float x_pad[160] __attribute__((aligned(16)));
  __local float w_packed[576] __attribute__((aligned(32)));
  const long out_p_0 = get_group_id(1);
  for (long h = 0; h < 5; ++h) {
    *(__local float4 *)(x_pad + h * 32) = (float4)(0.0f);
    for (long x_pad_w = 0; x_pad_w < 6; ++x_pad_w)
      *(__local float4 *)(x_pad + h * 32 + x_pad_w * 4 + 4) = 1 <= out_p_0 * 3 + h && out_p_0 * 3 + h < 7 ? (float4)(x[out_p_0 * 18 + h * 6 + x_pad_w - 6], x[out_p_0 * 18 + h * 6 + x_pad_w + 30], x[out_p_0 * 18 + h * 6 + x_pad_w + 66], x[out_p_0 * 18 + h * 6 + x_pad_w + 102]) : (float4)(0.0f);
    *(__local float4 *)(x_pad + h * 32 + 28) = (float4)(0.0f);
  }
  for (long r = 0; r < 3; ++r)
    for (long s = 0; s < 3; ++s)
      for (long c = 0; c < 4; ++c)
        for (long ki_0 = 0; ki_0 < 2; ++ki_0) {
          // not in vectors: one side of a choice may not be computed where the other is chosen
          #pragma unroll
          for (long ki_1 = 0; ki_1 < 8; ++ki_1)
            w_packed[r * 192 + s * 64 + c * 16 + ki_0 * 8 + ki_1] = ki_0 * 8 + ki_1 < 5 ? w[ki_0 * 288 + ki_1 * 36 + c * 9 + r * 3 + s] : 0.0f;
        }
  for (long out_p_1_0 = 0; out_p_1_0 < 3; ++out_p_1_0) {
    float y_packed[96] __attribute__((aligned(32)));
    #pragma unroll
    for (long init_q = 0; init_q < 6; ++init_q) {
      #pragma unroll
      for (long init_k_0 = 0; init_k_0 < 2; ++init_k_0)
        *(float8 *)(y_packed + init_q * 16 + init_k_0 * 8) = (float8)(0.0f);
    }
    for (long r = 0; r < 3; ++r)
      for (long s = 0; s < 3; ++s) {
        #pragma unroll 4
        for (long c = 0; c < 4; ++c) {
          #pragma unroll
          for (long q = 0; q < 6; ++q) {
            #pragma unroll
            for (long k_0 = 0; k_0 < 2; ++k_0)
              *(float8 *)(y_packed + q * 16 + k_0 * 8) += x_pad[out_p_1_0 * 32 + r * 32 + q * 4 + s * 4 + c] * *(__local float8 *)(w_packed + r * 192 + s * 64 + c * 16 + k_0 * 8);
          }
        }
      }
    #pragma unroll
    for (long out_q_1_0 = 0; out_q_1_0 < 2; ++out_q_1_0) {
      #pragma unroll
      for (long out_k_2 = 0; out_k_2 < 2; ++out_k_2)
        {
          float y_packed_across[32] __attribute__((aligned(16)));
          tir_transpose_4x4(y_packed + min((long)(out_q_1_0 * 4), (long)(2)) * 16 + out_k_2 * 8, 16, y_packed_across, 4);
          tir_transpose_4x4(y_packed + min((long)(out_q_1_0 * 4), (long)(2)) * 16 + out_k_2 * 8 + 4, 16, y_packed_across + 16, 4);
          #pragma unroll
          for (long out_k_3 = 0; out_k_3 < 8; ++out_k_3)
            if (out_k_2 * 8 + out_k_3 < 5)
              *(__global float4u *)(y + out_k_2 * 288 + out_k_3 * 36 + out_p_0 * 18 + out_p_1_0 * 6 + min((long)(out_q_1_0 * 4), (long)(2))) = *(float4 *)(y_packed_across + out_k_3 * 4);
        }
    }
  }
}
