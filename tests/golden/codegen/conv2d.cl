// y float32[1, 5, 6, 6] from x float32[1, 4, 6, 6], w float32[5, 4, 3, 3]
// launch y_kernel: blocks (1, 2, 1), threads (1, 1, 1), shared 1792 B
// # tile: a product of 36 x 5 sums of 36 terms
// s.reindex('y', 'n, k, p, q | c, r, s -> z0 = n, i = (p, q), j = k, k = (c, r, s)', writes='z0, i, j')
// s.reindex('y.out', 'n, k, p, q -> z0 = n, i = (p, q), j = k')
// s.reindex('y', 'z0, i, j | k -> z0, i, j, k', reads={'w': 'jo = j/8, k, ji = j%8'})
// s.share_out('y.out.z0', to='block.z')
// s.share_out('y.out.j', each=8)
// s.share_out('y.out.i', each=18, to='block.y', tail='shift')
// s.compute_at('y', 'y.out.i.0')
// s.set_scope('x_pad', 'shared')
// s.compute_at('x_pad', 'y.out.i.0')
// s.partition('x_pad.w', [1, 7])
// s.split('y.out.i.1', [None, 6], tail='balanced')
// s.split('y.out.j.1', [None, 1, 8])
// s.reorder('y.out.i.1.0', 'y.out.j.1.0', 'y.out.i.1.1', 'y.out.j.1.1', 'y.out.j.1.2')
// s.split('y.out.i.1.1', [None, 4], tail='shift')
// s.reorder('y.out.i.1.1.0', 'y.out.j.1.1', 'y.out.j.1.2', 'y.out.i.1.1.1')
// s.unroll('y.out.i.1.1.0')
// s.unroll('y.out.j.1.1')
// s.unroll('y.out.j.1.2')
// s.vectorize('y.out.i.1.1.1')
// s.compute_at('y', 'y.out.i.1.0')
// s.split('y.k', [None, 3, 3])
// s.register_tile('y.i', 'y.j', lanes=8)
// s.compute_at('w_packed', 'y.out.i.0', scope='shared')
// s.stage_out('w_packed', 'y.out.i.0', 'register')
// s.split('w_packed.out.k', [None, 8], tail='shift')
// s.split('w_packed.out.ji', [None, 8], tail='shift')
// s.split('w_packed.out.k.0', [None, 5])
// s.split('w_packed.out.ji.0', [None, 1])
// s.reorder('w_packed.out.k.0.0', 'w_packed.out.ji.0.0', 'w_packed.out.ji.0.1', 'w_packed.out.k.0.1', 'w_packed.out.k.1', 'w_packed.out.ji.1')
// s.compute_at('w_packed', 'w_packed.out.k.0.1')
// s.reorder('w_packed.ji', 'w_packed.k')
// s.unroll('w_packed.ji')
// s.vectorize('w_packed.k')
// s.unroll('w_packed.out.k.1')
// s.vectorize('w_packed.out.ji.1')

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
  __local float w_packed[288] __attribute__((aligned(32)));
  __local float x_pad[160];
  const long out_i_0 = get_group_id(1);
  for (long c = 0; c < 4; ++c)
    for (long h = 0; h < 5; ++h) {
      x_pad[c * 40 + h * 8] = 0.0f;
      for (long x_pad_w = 0; x_pad_w < 6; ++x_pad_w)
        x_pad[c * 40 + h * 8 + x_pad_w + 1] = 1 <= out_i_0 * 3 + h && out_i_0 * 3 + h < 7 ? x[c * 36 + out_i_0 * 18 + h * 6 + x_pad_w - 6] : 0.0f;
      x_pad[c * 40 + h * 8 + 7] = 0.0f;
    }
  for (long out_k_0_1 = 0; out_k_0_1 < 5; ++out_k_0_1) {
    float w_packed_register[64] __attribute__((aligned(32)));
    #pragma unroll
    for (long ji = 0; ji < 8; ++ji)
      *(float8 *)(w_packed_register + ji * 8) = ji < 5 ? *(__global const float8u *)(w + ji * 36 + min((long)(out_k_0_1 * 8), (long)(28))) : (float8)(0.0f);
    {
      float w_packed_register_across[64] __attribute__((aligned(32)));
      tir_transpose_8x8(w_packed_register, 8, w_packed_register_across, 8);
      #pragma unroll
      for (long out_k_1 = 0; out_k_1 < 8; ++out_k_1)
        *(__local float8 *)(w_packed + min((long)(out_k_0_1 * 8), (long)(28)) * 8 + out_k_1 * 8) = *(float8 *)(w_packed_register_across + out_k_1 * 8);
    }
  }
  for (long out_i_1_0 = 0; out_i_1_0 < 3; ++out_i_1_0) {
    float y_packed[48] __attribute__((aligned(32)));
    #pragma unroll
    for (long init_i = 0; init_i < 6; ++init_i)
      *(float8 *)(y_packed + init_i * 8) = (float8)(0.0f);
    for (long k_0 = 0; k_0 < 4; ++k_0)
      for (long k_1 = 0; k_1 < 3; ++k_1)
        for (long k_2 = 0; k_2 < 3; ++k_2) {
          #pragma unroll
          for (long i = 0; i < 6; ++i)
            *(float8 *)(y_packed + i * 8) += x_pad[k_0 * 40 + out_i_1_0 * 8 + k_1 * 8 + i + k_2] * *(__local float8 *)(w_packed + k_0 * 72 + k_1 * 24 + k_2 * 8);
        }
    #pragma unroll
    for (long out_i_1_1_0 = 0; out_i_1_1_0 < 2; ++out_i_1_1_0)
      {
        float y_packed_across[32] __attribute__((aligned(16)));
        tir_transpose_4x4(y_packed + min((long)(out_i_1_1_0 * 4), (long)(2)) * 8, 8, y_packed_across, 4);
        tir_transpose_4x4(y_packed + min((long)(out_i_1_1_0 * 4), (long)(2)) * 8 + 4, 8, y_packed_across + 16, 4);
        #pragma unroll
        for (long out_j_1_2 = 0; out_j_1_2 < 5; ++out_j_1_2)
          *(__global float4u *)(y + out_j_1_2 * 36 + out_i_0 * 18 + out_i_1_0 * 6 + min((long)(out_i_1_1_0 * 4), (long)(2))) = *(float4 *)(y_packed_across + out_j_1_2 * 4);
      }
  }
}
