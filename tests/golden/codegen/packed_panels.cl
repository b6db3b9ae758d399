// C float32[7, 40] from A float32[7, 6], B float32[6, 40]
// alignment in bytes: B_global 32
// launch B_global_kernel0: blocks (3, 1, 1), threads (1, 1, 1), shared 0 B
// launch A_global_kernel1: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// launch C_kernel2: blocks (3, 1, 1), threads (1, 1, 1), shared 0 B
// s.split('C.j', [None, 2, 8])
// s.split('C.i', [None, 3])
// s.reorder('C.j.0', 'C.i.0', 'C.k', 'C.i.1', 'C.j.1', 'C.j.2')
// s.bind('C.j.0', 'block.x')
// s.stage_in('B', 'root', 'global', layout='k, j -> j/16, k, j%16')
// s.split('B_global.ax1', [None, 16])
// s.reorder('B_global.ax1.0', 'B_global.ax0', 'B_global.ax1.1')
// s.bind('B_global.ax1.0', 'block.x')
// s.stage_in('A', 'root', 'global', pad=1, layout='i, k -> i/3, k, i%3')
// s.stage_out('C', 'C.i.0', 'register', layout='i, j -> j/8, i, j%8')
// s.unroll('C.i.1')
// s.unroll('C.j.1')
// s.vectorize('C.j.2')

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void B_global_kernel0(__global const float *restrict B, __global float *restrict B_global)
{
  const long ax1_0 = get_group_id(0);
  for (long ax0 = 0; ax0 < 6; ++ax0)
    for (long ax1_1 = 0; ax1_1 < 16; ++ax1_1)
      B_global[ax1_0 * 96 + ax0 * 16 + ax1_1] = ax1_0 * 16 + ax1_1 < 40 ? B[ax0 * 40 + ax1_0 * 16 + ax1_1] : 0.0f;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void A_global_kernel1(__global const float *restrict A, __global float *restrict A_global)
{
  for (long ax0 = 0; ax0 < 9; ++ax0)
    for (long ax1 = 0; ax1 < 6; ++ax1)
      A_global[ax0 / 3 * 24 + ax1 * 4 + ax0 % 3] = ax0 < 7 ? A[ax0 * 6 + ax1] : 0.0f;
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void C_kernel2(__global float *restrict C, __global const float *restrict A_global, __global const float *restrict B_global)
{
  const long j_0 = get_group_id(0);
  for (long i_0 = 0; i_0 < 3; ++i_0) {
    float C_register[48] __attribute__((aligned(32)));
    #pragma unroll
    for (long init_i_1 = 0; init_i_1 < 3; ++init_i_1) {
      #pragma unroll
      for (long init_j_1 = 0; init_j_1 < 2; ++init_j_1)
        *(float8 *)(C_register + init_j_1 * 24 + init_i_1 * 8) = (float8)(0.0f);
    }
    for (long k = 0; k < 6; ++k) {
      #pragma unroll
      for (long i_1 = 0; i_1 < 3; ++i_1) {
        #pragma unroll
        for (long j_1 = 0; j_1 < 2; ++j_1)
          *(float8 *)(C_register + j_1 * 24 + i_1 * 8) += A_global[i_0 * 24 + k * 4 + i_1] * *(__global const float8 *)(B_global + j_0 * 96 + k * 16 + j_1 * 8);
      }
    }
    for (long out_i = 0; out_i < 3; ++out_i)
      if (i_0 * 3 + out_i < 7)
        for (long out_j = 0; out_j < 16; ++out_j)
          if (j_0 * 16 + out_j < 40)
            C[i_0 * 120 + out_i * 40 + j_0 * 16 + out_j] = C_register[out_j / 8 * 24 + out_i * 8 + out_j % 8];
  }
}
