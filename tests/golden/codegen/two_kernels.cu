// C float32[7, 9] from A float32[7, 5], B float32[5, 9]
// launch B_global_kernel0: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// launch C_kernel1: blocks (7, 1, 1), threads (9, 1, 1), shared 36 B
// s.stage_in('B', 'root', 'global', pad=2, order=[1, 0])
// s.bind('C.i', 'block.x')
// s.stage_out('C', 'C.i', 'shared')
// s.bind('C.out.j', 'thread.x')
// s.bind('C.j', 'thread.x')

extern "C" __global__ void __launch_bounds__(1)
B_global_kernel0(const float *__restrict__ B, float *__restrict__ B_global)
{
  for (int ax0 = 0; ax0 < 5; ++ax0)
    for (int ax1 = 0; ax1 < 9; ++ax1)
      B_global[ax1 * 7 + ax0] = B[ax0 * 9 + ax1];
}

extern "C" __global__ void __launch_bounds__(9)
C_kernel1(const float *__restrict__ A, float *__restrict__ C, const float *__restrict__ B_global)
{
  __shared__ float C_shared[9];
  const int i = blockIdx.x;
  const int j = threadIdx.x;
  C_shared[j] = 0.0f;
  float C_shared_held[1];
  C_shared_held[0] = C_shared[j];
  for (int k = 0; k < 5; ++k)
    C_shared_held[0] += A[i * 5 + k] * B_global[j * 7 + k];
  C_shared[j] = C_shared_held[0];
  C[i * 9 + j] = C_shared[j];
}
