// Y float32[16] from X float32[18]
// launch Y_kernel: blocks (1, 1, 1), threads (16, 1, 1), shared 0 B
// s.bind('Y.i', 'thread.x')
// s.unroll('Y.r')

extern "C" __global__ void __launch_bounds__(16)
Y_kernel(const float *__restrict__ X, float *__restrict__ Y)
{
  const int i = threadIdx.x;
  Y[i] = 0.0f;
  Y[i] += X[i] * 0.25f;
  Y[i] += X[i + 1] * 0.5f;
  Y[i] -= X[i + 2];
}
