// C float32[128, 128] from A float32[128, 64], B float32[64, 128]
// alignment in bytes: B 32, C 32
// launch C_kernel: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// s.split('C.i', [None, 32])
// s.split('C.j', [None, 32])
// s.reorder('C.i.0', 'C.j.0', 'C.i.1', 'C.j.1')
// s.split('C.k', [None, 4])
// s.reorder('C.i.0', 'C.j.0', 'C.k.0', 'C.k.1', 'C.i.1', 'C.j.1')
// s.split('C.j.1', [None, 8])
// s.vectorize('C.j.1.1')

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void C_kernel(__global const float *restrict A, __global const float *restrict B, __global float *restrict C)
{
  for (long i_0 = 0; i_0 < 4; ++i_0)
    for (long j_0 = 0; j_0 < 4; ++j_0) {
      for (long init_i_1 = 0; init_i_1 < 32; ++init_i_1)
        for (long init_j_1_0 = 0; init_j_1_0 < 4; ++init_j_1_0)
          *(__global float8 *)(C + i_0 * 4096 + init_i_1 * 128 + j_0 * 32 + init_j_1_0 * 8) = (float8)(0.0f);
      for (long k_0 = 0; k_0 < 16; ++k_0)
        for (long k_1 = 0; k_1 < 4; ++k_1)
          for (long i_1 = 0; i_1 < 32; ++i_1)
            for (long j_1_0 = 0; j_1_0 < 4; ++j_1_0)
              *(__global float8 *)(C + i_0 * 4096 + i_1 * 128 + j_0 * 32 + j_1_0 * 8) += A[i_0 * 2048 + i_1 * 64 + k_0 * 4 + k_1] * *(__global const float8 *)(B + k_0 * 512 + k_1 * 128 + j_0 * 32 + j_1_0 * 8);
    }
}
