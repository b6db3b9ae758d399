// S_0 float32[6, 8], S_1 int32[6, 8] from X float32[6, 8]
// launch S_1_kernel: blocks (6, 1, 1), threads (8, 1, 1), shared 0 B
// s.bind('S.i', 'block.x')
// s.bind('S.j', 'thread.x')

__kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void S_1_kernel(__global const float *restrict X, __global float *restrict S_0, __global int *restrict S_1)
{
  const long i = get_group_id(0);
  const long j = get_local_id(0);
  S_0[i * 8 + j] = X[i * 8 + j] + 1.0f;
  S_1[i * 8 + j] = (int)(X[i * 8 + j] * X[i * 8 + j]);
}
