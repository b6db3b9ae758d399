// Y float32[8, 64] from X float32[8, 64]
// alignment in bytes: X 16, Y 16
// launch Y_kernel: blocks (8, 1, 1), threads (16, 1, 1), shared 0 B
// s.split('Y.j', [None, 4])
// s.bind('Y.i', 'block.x')
// s.bind('Y.j.0', 'thread.x')
// s.vectorize('Y.j.1')

extern "C" __global__ void __launch_bounds__(16)
Y_kernel(const float *__restrict__ X, float *__restrict__ Y)
{
  const int i = blockIdx.x;
  const int j_0 = threadIdx.x;
  *(float4 *)(Y + i * 64 + j_0 * 4) = *(const float4 *)(X + i * 64 + j_0 * 4);
}
