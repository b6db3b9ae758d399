// a_0 float16[16], a_1 int8[16], a_2 int8[16], a_3 int32[16], a_4 bfloat16[16], a_5 bool[16], a_6 float32[16], a_7 uint8[16] from H float16[16], I int8[16], U uint8[16], Q bfloat16[16]
// launch a_7_kernel: blocks (1, 1, 1), threads (16, 1, 1), shared 0 B
// s.bind('a.i', 'thread.x')
#include <cuda_fp16.h>

__device__ __forceinline__ int tir_floordiv_int(int a, int b) { if (b == -1) return (int)-(unsigned int)a; int q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
__device__ __forceinline__ int tir_mod_int(int a, int b) { if (b == -1) return 0; int r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
__device__ __forceinline__ float tir_from_bfloat16(unsigned short x) { return __uint_as_float((unsigned int)x << 16); }
__device__ __forceinline__ unsigned short tir_to_bfloat16(float x) { unsigned int u = __float_as_uint(x); return (unsigned short)(x != x ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16); }

extern "C" __global__ void __launch_bounds__(16)
a_7_kernel(const __half *__restrict__ H, const signed char *__restrict__ I, const unsigned char *__restrict__ U, const unsigned short *__restrict__ Q, __half *__restrict__ a_0, signed char *__restrict__ a_1, signed char *__restrict__ a_2, int *__restrict__ a_3, unsigned short *__restrict__ a_4, unsigned char *__restrict__ a_5, float *__restrict__ a_6, unsigned char *__restrict__ a_7)
{
  const int i = threadIdx.x;
  a_0[i] = __float2half_rn(__half2float(H[i]) * 2.0f);
  a_1[i] = (signed char)(I[i] + I[i]);
  a_2[i] = (signed char)(tir_floordiv_int(I[i], 3) + tir_mod_int(I[i], 3));
  a_3[i] = (int)U[i] - 300;
  a_4[i] = tir_to_bfloat16(tir_from_bfloat16(Q[i]) + 1.0f);
  a_5[i] = 2 < I[i];
  a_6[i] = __expf((float)I[i]);
  a_7[i] = (U[i] < 7 ? U[i] : 7);
}
