// Y float32[16] from X float32[18]
// launch Y_kernel: blocks (1, 1, 1), threads (16, 1, 1), shared 0 B
// s.bind('Y.i', 'thread.x')
// s.unroll('Y.r')

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void Y_kernel(__global const float *restrict X, __global float *restrict Y)
{
  const long i = get_local_id(0);
  Y[i] = 0.0f;
  Y[i] += X[i] * 0.25f;
  Y[i] += X[i + 1] * 0.5f;
  Y[i] -= X[i + 2];
}
