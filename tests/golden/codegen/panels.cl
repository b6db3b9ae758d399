// C float32[8, 64] from A float32[8, 6], B float32[6, 64]
// alignment in bytes: B 32
// launch C_kernel: blocks (2, 1, 1), threads (1, 1, 1), shared 768 B
// s.split('C.j', [None, 2, 2, 8])
// s.split('C.i', [None, 4])
// s.reorder('C.j.0', 'C.j.1', 'C.i.0', 'C.k', 'C.i.1', 'C.j.2', 'C.j.3')
// s.bind('C.j.0', 'block.x')
// s.stage_in('B', 'C.j.0', 'shared', vector=8, layout='k, j -> j/16, k, j%16')
// s.stage_out('C', 'C.i.0', 'register')
// s.unroll('C.i.1')
// s.unroll('C.j.2')
// s.vectorize('C.j.3')

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void C_kernel(__global const float *restrict A, __global const float *restrict B, __global float *restrict C)
{
  __local float B_shared[192] __attribute__((aligned(32)));
  const long j_0 = get_group_id(0);
  for (long ax0 = 0; ax0 < 6; ++ax0)
    for (long ax1_0 = 0; ax1_0 < 4; ++ax1_0)
      *(__local float8 *)(B_shared + ax1_0 / 2 * 96 + ax0 * 16 + ax1_0 % 2 * 8) = *(__global const float8 *)(B + ax0 * 64 + j_0 * 32 + ax1_0 * 8);
  for (long j_1 = 0; j_1 < 2; ++j_1)
    for (long i_0 = 0; i_0 < 2; ++i_0) {
      float C_register[64] __attribute__((aligned(32)));
      #pragma unroll
      for (long init_i_1 = 0; init_i_1 < 4; ++init_i_1) {
        #pragma unroll
        for (long init_j_2 = 0; init_j_2 < 2; ++init_j_2)
          *(float8 *)(C_register + init_i_1 * 16 + init_j_2 * 8) = (float8)(0.0f);
      }
      for (long k = 0; k < 6; ++k) {
        #pragma unroll
        for (long i_1 = 0; i_1 < 4; ++i_1) {
          #pragma unroll
          for (long j_2 = 0; j_2 < 2; ++j_2)
            *(float8 *)(C_register + i_1 * 16 + j_2 * 8) += A[i_0 * 24 + i_1 * 6 + k] * *(__local float8 *)(B_shared + j_1 * 96 + k * 16 + j_2 * 8);
        }
      }
      for (long out_i = 0; out_i < 4; ++out_i)
        for (long out_j = 0; out_j < 16; ++out_j)
          C[i_0 * 256 + out_i * 64 + j_0 * 32 + j_1 * 16 + out_j] = C_register[out_i * 16 + out_j];
    }
}
