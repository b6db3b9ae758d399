// Y float32[6, 6, 32, 32] from X float32[6, 6, 16, 32], W float32[3, 3, 16, 32]
// launch P_kernel0: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// launch Y_kernel1: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void P_kernel0(__global const float *restrict X, __global float *restrict P)
{
  for (long h = 0; h < 8; ++h)
    for (long w = 0; w < 8; ++w)
      for (long c = 0; c < 16; ++c) {
        if (1 <= h && h < 7 && 1 <= w && w < 7)
          for (long n = 0; n < 32; ++n)
            P[h * 4096 + w * 512 + c * 32 + n] = X[h * 3072 + w * 512 + c * 32 + n - 3584];
        if (h < 1 || 7 <= h || w < 1 || 7 <= w)
          for (long n = 0; n < 32; ++n)
            P[h * 4096 + w * 512 + c * 32 + n] = 1 <= h && h < 7 && 1 <= w && w < 7 ? X[h * 3072 + w * 512 + c * 32 + n - 3584] : 0.0f;
      }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void Y_kernel1(__global const float *restrict W, __global float *restrict Y, __global const float *restrict P)
{
  for (long p = 0; p < 6; ++p)
    for (long q = 0; q < 6; ++q)
      for (long k = 0; k < 32; ++k)
        for (long n = 0; n < 32; ++n) {
          Y[p * 6144 + q * 1024 + k * 32 + n] = 0.0f;
          for (long r = 0; r < 3; ++r)
            for (long s = 0; s < 3; ++s)
              for (long c = 0; c < 16; ++c)
                Y[p * 6144 + q * 1024 + k * 32 + n] += P[p * 4096 + r * 4096 + q * 512 + s * 512 + c * 32 + n] * W[r * 1536 + s * 512 + c * 32 + k];
        }
}
