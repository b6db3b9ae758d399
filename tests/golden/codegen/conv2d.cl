// y float32[1, 5, 6, 6] from x float32[1, 4, 6, 6], w float32[5, 4, 3, 3]
// launch y_kernel: blocks (1, 2, 1), threads (1, 1, 1), shared 5248 B
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
// s.reindex('w_packed', 'ko, r, s, c, ki -> ko, r, s, c, ki', reads={'w': 'ko, t = (c, r, s), ki'})
// s.set_scope('w_packed', 'shared')
// s.compute_at('w_packed', 'y.out.k.1')
// s.split('w_packed.c', [None, 4])
// s.reorder('w_packed.ko', 'w_packed.c.0', 'w_packed.r', 'w_packed.s', 'w_packed.c.1', 'w_packed.ki')
// s.set_scope('w_packed_1', 'shared')
// s.compute_at('w_packed_1', 'w_packed.c.0')
// s.stage_out('w_packed_1', 'w_packed.c.0', 'register')
// s.split('w_packed_1.out.t', [None, 8], tail='shift')
// s.split('w_packed_1.out.ki', [None, 8], tail='shift')
// s.split('w_packed_1.out.t.0', [None, 5])
// s.split('w_packed_1.out.ki.0', [None, 1])
// s.reorder('w_packed_1.out.t.0.0', 'w_packed_1.out.ki.0.0', 'w_packed_1.out.ki.0.1', 'w_packed_1.out.t.0.1', 'w_packed_1.out.t.1', 'w_packed_1.out.ki.1')
// s.compute_at('w_packed_1', 'w_packed_1.out.t.0.1')
// s.reorder('w_packed_1.ki', 'w_packed_1.t')
// s.unroll('w_packed_1.ki')
// s.vectorize('w_packed_1.t')
// s.unroll('w_packed_1.out.t.1')
// s.vectorize('w_packed_1.out.ki.1')
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

typedef float8 __attribute__((aligned(4))) float8u;
__attribute__((always_inline)) inline void tir_transpose_8x8(const float *from, long pitch, float *to, long rows)
{
  const float8 r0 = *(const float8 *)(from + 0 * pitch);
  const float8 r1 = *(const float8 *)(from + 1 * pitch);
  const float8 r2 = *(const float8 *)(from + 2 * pitch);
  const float8 r3 = *(const float8 *)(from + 3 * pitch);
  const float8 r4 = *(const float8 *)(from + 4 * pitch);
  const float8 r5 = *(const float8 *)(from + 5 * pitch);
  const float8 r6 = *(const float8 *)(from + 6 * pitch);
  const float8 r7 = *(const float8 *)(from + 7 * pitch);
  const float8 a0 = (float8)(r0.s0, r1.s0, r0.s1, r1.s1, r0.s4, r1.s4, r0.s5, r1.s5);
  const float8 a1 = (float8)(r0.s2, r1.s2, r0.s3, r1.s3, r0.s6, r1.s6, r0.s7, r1.s7);
  const float8 a2 = (float8)(r2.s0, r3.s0, r2.s1, r3.s1, r2.s4, r3.s4, r2.s5, r3.s5);
  const float8 a3 = (float8)(r2.s2, r3.s2, r2.s3, r3.s3, r2.s6, r3.s6, r2.s7, r3.s7);
  const float8 a4 = (float8)(r4.s0, r5.s0, r4.s1, r5.s1, r4.s4, r5.s4, r4.s5, r5.s5);
  const float8 a5 = (float8)(r4.s2, r5.s2, r4.s3, r5.s3, r4.s6, r5.s6, r4.s7, r5.s7);
  const float8 a6 = (float8)(r6.s0, r7.s0, r6.s1, r7.s1, r6.s4, r7.s4, r6.s5, r7.s5);
  const float8 a7 = (float8)(r6.s2, r7.s2, r6.s3, r7.s3, r6.s6, r7.s6, r6.s7, r7.s7);
  const float8 b0 = (float8)(a0.s01, a2.s01, a0.s45, a2.s45);
  const float8 b1 = (float8)(a0.s23, a2.s23, a0.s67, a2.s67);
  const float8 b2 = (float8)(a1.s01, a3.s01, a1.s45, a3.s45);
  const float8 b3 = (float8)(a1.s23, a3.s23, a1.s67, a3.s67);
  const float8 b4 = (float8)(a4.s01, a6.s01, a4.s45, a6.s45);
  const float8 b5 = (float8)(a4.s23, a6.s23, a4.s67, a6.s67);
  const float8 b6 = (float8)(a5.s01, a7.s01, a5.s45, a7.s45);
  const float8 b7 = (float8)(a5.s23, a7.s23, a5.s67, a7.s67);
  *(float8 *)(to + 0 * rows) = (float8)(b0.lo, b4.lo);
  *(float8 *)(to + 1 * rows) = (float8)(b1.lo, b5.lo);
  *(float8 *)(to + 2 * rows) = (float8)(b2.lo, b6.lo);
  *(float8 *)(to + 3 * rows) = (float8)(b3.lo, b7.lo);
  *(float8 *)(to + 4 * rows) = (float8)(b0.hi, b4.hi);
  *(float8 *)(to + 5 * rows) = (float8)(b1.hi, b5.hi);
  *(float8 *)(to + 6 * rows) = (float8)(b2.hi, b6.hi);
  *(float8 *)(to + 7 * rows) = (float8)(b3.hi, b7.hi);
}
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
  __local float w_packed_1[576] __attribute__((aligned(32)));
  const long out_p_0 = get_group_id(1);
  for (long h = 0; h < 5; ++h) {
    *(__local float4 *)(x_pad + h * 32) = (float4)(0.0f);
    for (long x_pad_w = 0; x_pad_w < 6; ++x_pad_w)
      *(__local float4 *)(x_pad + h * 32 + x_pad_w * 4 + 4) = 1 <= out_p_0 * 3 + h && out_p_0 * 3 + h < 7 ? (float4)(x[out_p_0 * 18 + h * 6 + x_pad_w - 6], x[out_p_0 * 18 + h * 6 + x_pad_w + 30], x[out_p_0 * 18 + h * 6 + x_pad_w + 66], x[out_p_0 * 18 + h * 6 + x_pad_w + 102]) : (float4)(0.0f);
    *(__local float4 *)(x_pad + h * 32 + 28) = (float4)(0.0f);
  }
  for (long out_ki_0_0 = 0; out_ki_0_0 < 2; ++out_ki_0_0)
    for (long out_t_0_1 = 0; out_t_0_1 < 5; ++out_t_0_1) {
      float w_packed_1_register[64] __attribute__((aligned(32)));
      #pragma unroll
      for (long ki = 0; ki < 8; ++ki)
        *(float8 *)(w_packed_1_register + ki * 8) = out_ki_0_0 * 8 + ki < 5 ? *(__global const float8u *)(w + out_ki_0_0 * 288 + ki * 36 + min((long)(out_t_0_1 * 8), (long)(28))) : (float8)(0.0f);
      {
        float w_packed_1_register_across[64] __attribute__((aligned(32)));
        tir_transpose_8x8(w_packed_1_register, 8, w_packed_1_register_across, 8);
        #pragma unroll
        for (long out_t_1 = 0; out_t_1 < 8; ++out_t_1)
          *(__local float8 *)(w_packed_1 + min((long)(out_t_0_1 * 8), (long)(28)) * 16 + out_t_1 * 16 + out_ki_0_0 * 8) = *(float8 *)(w_packed_1_register_across + out_t_1 * 8);
      }
    }
  for (long r = 0; r < 3; ++r)
    for (long s = 0; s < 3; ++s)
      for (long c_1 = 0; c_1 < 4; ++c_1)
        for (long ki_0 = 0; ki_0 < 2; ++ki_0)
          *(__local float8 *)(w_packed + r * 192 + s * 64 + c_1 * 16 + ki_0 * 8) = ((int8)(0, 1, 2, 3, 4, 5, 6, 7) < (int)(5 - ki_0 * 8)) ? *(__local float8 *)(w_packed_1 + c_1 * 144 + r * 48 + s * 16 + ki_0 * 8) : (float8)(0.0f);
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
