// Y float32[8, 64] from X float32[8, 64]
// alignment in bytes: X 16, Y 16
// launch Y_kernel: blocks (8, 1, 1), threads (16, 1, 1), shared 0 B
// s.split('Y.j', [None, 4])
// s.bind('Y.i', 'block.x')
// s.bind('Y.j.0', 'thread.x')
// s.vectorize('Y.j.1')

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void Y_kernel(__global const float *restrict X, __global float *restrict Y)
{
  const long i = get_group_id(0);
  const long j_0 = get_local_id(0);
  *(__global float4 *)(Y + i * 64 + j_0 * 4) = *(__global const float4 *)(X + i * 64 + j_0 * 4);
}
