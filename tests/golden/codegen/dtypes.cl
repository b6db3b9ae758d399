// a_0 float16[16], a_1 int8[16], a_2 int8[16], a_3 int32[16], a_4 bfloat16[16], a_5 bool[16], a_6 float32[16], a_7 uint8[16] from H float16[16], I int8[16], U uint8[16], Q bfloat16[16]
// launch a_7_kernel: blocks (1, 1, 1), threads (16, 1, 1), shared 0 B
// s.bind('a.i', 'thread.x')

inline int tir_floordiv_int(int a, int b) { if (b == -1) return (int)-(unsigned int)a; int q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
inline int tir_mod_int(int a, int b) { if (b == -1) return 0; int r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
inline float tir_from_bfloat16(ushort x) { return as_float((unsigned int)x << 16); }
inline ushort tir_to_bfloat16(float x) { unsigned int u = as_uint(x); return (ushort)(x != x ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16); }
__attribute__((always_inline)) inline float tir_exp_float(float x) {
  // exp(x) within 1 ulp: 2^n e^r, where x = n ln 2 + r
  const float low = -104.0f, high = 89.0f;
  float t = x < low ? low : x;
  t = t > high ? high : t;
  const float k = t * 1.44269504f + 12582912.0f, m = k - 12582912.0f;
  const uint n = as_uint(k) - 0x4b3fff02u;
  const float r = (t - m * 0.693359375f) + m * 2.12194440e-4f;
  const float p = ((((0.00019739558f * r + 0.0013935097f) * r + 0.008333571f) * r + 0.041666463f) * r + 0.16666666f) * r + 0.5f;
  return ((p * (r * r) + r) + 1.0f) * as_float((n >> 1) << 23) * as_float((n - (n >> 1)) << 23);
}

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void a_7_kernel(__global const half *restrict H, __global const char *restrict I, __global const uchar *restrict U, __global const ushort *restrict Q, __global half *restrict a_0, __global char *restrict a_1, __global char *restrict a_2, __global int *restrict a_3, __global ushort *restrict a_4, __global uchar *restrict a_5, __global float *restrict a_6, __global uchar *restrict a_7)
{
  const long i = get_local_id(0);
  vstore_half(vload_half(i, (const __global half *)H) * 2.0f, i, (__global half *)a_0);
  a_1[i] = (char)(I[i] + I[i]);
  a_2[i] = (char)(tir_floordiv_int(I[i], 3) + tir_mod_int(I[i], 3));
  a_3[i] = (int)U[i] - 300;
  a_4[i] = tir_to_bfloat16(tir_from_bfloat16(Q[i]) + 1.0f);
  a_5[i] = 2 < I[i];
  a_6[i] = tir_exp_float((float)I[i]);
  a_7[i] = min((uchar)(U[i]), (uchar)(7));
}
