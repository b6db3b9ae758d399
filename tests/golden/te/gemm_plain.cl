// C float32[128, 128] from A float32[128, 64], B float32[64, 128]
// launch C_kernel: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void C_kernel(__global const float *restrict A, __global const float *restrict B, __global float *restrict C)
{
  for (long i = 0; i < 128; ++i)
    for (long j = 0; j < 128; ++j) {
      C[i * 128 + j] = 0.0f;
      for (long k = 0; k < 64; ++k)
        C[i * 128 + j] += A[i * 64 + k] * B[k * 128 + j];
    }
}
