// G_0 float32[7, 6], G_1 float32[7, 6] from B float32[9, 6], at int32[7]
// launch G_1_kernel: blocks (7, 1, 1), threads (1, 1, 1), shared 0 B
// s.bind('G.p', 'block.x')
// s.split('G.q', [None, 4])

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void G_1_kernel(__global const float *restrict B, __global const int *restrict at, __global float *restrict G_0, __global float *restrict G_1)
{
  const long p = get_group_id(0);
  for (long q_0 = 0; q_0 < 2; ++q_0)
    for (long q_1 = 0; q_1 < 4; ++q_1)
      if (q_0 * 4 + q_1 < 6) {
        G_0[p * 6 + q_0 * 4 + q_1] = B[(long)at[p] * 6 + q_0 * 4 + q_1];
        G_1[p * 6 + q_0 * 4 + q_1] = B[(long)at[p] * 6 + q_0 * 4 + q_1] * 2.0f;
      }
}
