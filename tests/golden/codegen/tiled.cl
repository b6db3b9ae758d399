// C float32[9, 13] from A float32[9, 7], B float32[7, 13]
// launch C_kernel: blocks (3, 3, 1), threads (3, 2, 1), shared 176 B
// s.split('C.i', [None, 2, 2])
// s.split('C.j', [None, 3, 2])
// s.split('C.k', [None, 4])
// s.reorder('C.i.0', 'C.j.0', 'C.i.1', 'C.j.1', 'C.k.0', 'C.k.1', 'C.i.2', 'C.j.2')
// s.bind('C.i.0', 'block.y')
// s.bind('C.j.0', 'block.x')
// s.bind('C.i.1', 'thread.y')
// s.bind('C.j.1', 'thread.x')
// s.stage_out('C', 'C.j.1', 'register')
// s.stage_in('A', 'C.k.0', 'shared')
// s.stage_in('B', 'C.k.0', 'shared', pad=1)

__kernel __attribute__((reqd_work_group_size(3, 2, 1)))
void C_kernel(__global const float *restrict A, __global const float *restrict B, __global float *restrict C)
{
  __local float B_shared[28];
  __local float A_shared[16];
  const long i_0 = get_group_id(1);
  const long j_0 = get_group_id(0);
  const long i_1 = get_local_id(1);
  const long j_1 = get_local_id(0);
  float C_register[4];
  for (long init_i_2 = 0; init_i_2 < 2; ++init_i_2)
    for (long init_j_2 = 0; init_j_2 < 2; ++init_j_2)
      C_register[init_i_2 * 2 + init_j_2] = 0.0f;
  const long B_shared_at = i_1 * 3 + j_1;
  const long B_at = j_0 * 6 + i_1 * 3 + j_1;
  for (long k_0 = 0; k_0 < 2; ++k_0) {
    for (long n = 0; n < 3; ++n) {
      const long e = n * 6 + i_1 * 3 + j_1;
      if (e < 16)
        A_shared[e] = i_0 * 4 + e / 4 < 9 && k_0 * 4 + e % 4 < 7 ? A[i_0 * 28 + e / 4 * 7 + k_0 * 4 + e % 4] : 0.0f;
    }
    for (long n = 0; n < 4; ++n)
      B_shared[B_shared_at + n * 7] = k_0 * 4 + n < 7 && j_0 * 6 + i_1 * 3 + j_1 < 13 ? B[B_at + k_0 * 52 + n * 13] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (long k_1 = 0; k_1 < 4; ++k_1)
      for (long i_2 = 0; i_2 < 2; ++i_2)
        for (long j_2 = 0; j_2 < 2; ++j_2)
          C_register[i_2 * 2 + j_2] += A_shared[i_1 * 8 + i_2 * 4 + k_1] * B_shared[k_1 * 7 + j_1 * 2 + j_2];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const long C_at = i_0 * 52 + i_1 * 26 + j_0 * 6 + j_1 * 2;
  for (long out_i = 0; out_i < 2; ++out_i)
    if (i_0 * 4 + i_1 * 2 + out_i < 9)
      for (long out_j = 0; out_j < 2; ++out_j)
        if (j_0 * 6 + j_1 * 2 + out_j < 13)
          C[C_at + out_i * 13 + out_j] = C_register[out_i * 2 + out_j];
}
