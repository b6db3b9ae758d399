// C float32[128, 128] from A float32[128, 64], B float32[64, 128]
// launch C_kernel: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B

extern "C" __global__ void __launch_bounds__(1)
C_kernel(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C)
{
  for (int i = 0; i < 128; ++i)
    for (int j = 0; j < 128; ++j) {
      C[i * 128 + j] = 0.0f;
      for (int k = 0; k < 64; ++k)
        C[i * 128 + j] += A[i * 64 + k] * B[k * 128 + j];
    }
}
