// Y float64[16] from X float32[16], alpha float32, steps int32
// launch Y_kernel: blocks (1, 1, 1), threads (16, 1, 1), shared 0 B
// s.bind('Y.i', 'thread.x')

extern "C" __global__ void __launch_bounds__(16)
Y_kernel(const float *__restrict__ X, double *__restrict__ Y, const float alpha, const int steps)
{
  const int i = threadIdx.x;
  Y[i] = (double)(X[i] * alpha) + (double)steps;
}
