// C float32[7, 9] from A float32[7, 5], B float32[5, 9]
// launch B_global_kernel0: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// launch C_kernel1: blocks (7, 1, 1), threads (9, 1, 1), shared 36 B
// s.stage_in('B', 'root', 'global', pad=2, order=[1, 0])
// s.bind('C.i', 'block.x')
// s.stage_out('C', 'C.i', 'shared')
// s.bind('C.out.j', 'thread.x')
// s.bind('C.j', 'thread.x')

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void B_global_kernel0(__global const float *restrict B, __global float *restrict B_global)
{
  for (long ax0 = 0; ax0 < 5; ++ax0)
    for (long ax1 = 0; ax1 < 9; ++ax1)
      B_global[ax1 * 7 + ax0] = B[ax0 * 9 + ax1];
}

__kernel __attribute__((reqd_work_group_size(9, 1, 1)))
void C_kernel1(__global const float *restrict A, __global float *restrict C, __global const float *restrict B_global)
{
  __local float C_shared[9];
  const long i = get_group_id(0);
  const long j = get_local_id(0);
  C_shared[j] = 0.0f;
  for (long k = 0; k < 5; ++k)
    C_shared[j] += A[i * 5 + k] * B_global[j * 7 + k];
  C[i * 9 + j] = C_shared[j];
}
