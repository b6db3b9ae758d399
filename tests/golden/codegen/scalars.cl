// Y float64[16] from X float32[16], alpha float32, steps int32
// launch Y_kernel: blocks (1, 1, 1), threads (16, 1, 1), shared 0 B
// s.bind('Y.i', 'thread.x')
#pragma OPENCL EXTENSION cl_khr_fp64 : enable

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void Y_kernel(__global const float *restrict X, __global double *restrict Y, const float alpha, const int steps)
{
  const long i = get_local_id(0);
  Y[i] = (double)(X[i] * alpha) + (double)steps;
}
