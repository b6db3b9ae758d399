// S_0 float32[6, 8], S_1 int32[6, 8] from X float32[6, 8]
// launch S_1_kernel: blocks (6, 1, 1), threads (8, 1, 1), shared 0 B
// s.bind('S.i', 'block.x')
// s.bind('S.j', 'thread.x')

extern "C" __global__ void __launch_bounds__(8)
S_1_kernel(const float *__restrict__ X, float *__restrict__ S_0, int *__restrict__ S_1)
{
  const int i = blockIdx.x;
  const int j = threadIdx.x;
  S_0[i * 8 + j] = X[i * 8 + j] + 1.0f;
  S_1[i * 8 + j] = (int)(X[i * 8 + j] * X[i * 8 + j]);
}
