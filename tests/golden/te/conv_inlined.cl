// Y float32[6, 6, 32, 32] from X float32[6, 6, 16, 32], W float32[3, 3, 16, 32]
// launch Y_kernel: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// s.compute_inline('P')

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void Y_kernel(__global const float *restrict X, __global const float *restrict W, __global float *restrict Y)
{
  for (long p = 0; p < 6; ++p)
    for (long q = 0; q < 6; ++q)
      for (long k = 0; k < 32; ++k)
        for (long n = 0; n < 32; ++n) {
          Y[p * 6144 + q * 1024 + k * 32 + n] = 0.0f;
          for (long r = 0; r < 3; ++r)
            for (long s = 0; s < 3; ++s) {
              if (1 <= p + r && p + r < 7 && 1 <= q + s && q + s < 7)
                for (long c = 0; c < 16; ++c)
                  Y[p * 6144 + q * 1024 + k * 32 + n] += X[p * 3072 + r * 3072 + q * 512 + s * 512 + c * 32 + n - 3584] * W[r * 1536 + s * 512 + c * 32 + k];
              if (p + r < 1 || 7 <= p + r || q + s < 1 || 7 <= q + s)
                for (long c = 0; c < 16; ++c)
                  Y[p * 6144 + q * 1024 + k * 32 + n] += (1 <= p + r && p + r < 7 && 1 <= q + s && q + s < 7 ? X[p * 3072 + r * 3072 + q * 512 + s * 512 + c * 32 + n - 3584] : 0.0f) * W[r * 1536 + s * 512 + c * 32 + k];
            }
        }
}
