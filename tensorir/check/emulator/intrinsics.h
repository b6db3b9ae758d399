// Functions of CUDA that emitted text does not call and edited text may: each rounds as the CUDA Math API documents, those
// of the special function units excepted, which are exact here and rounded once.
#pragma once

extern "C" {
// what: + - * / s(quare root) f(used multiply-add);  mode: as the suffix of the name, n z u d
float tir_rounded_float(char what, char mode, float a, float b, float c);
double tir_rounded_double(char what, char mode, double a, double b, double c);
float tir_narrowed(char mode, double x);
double tir_whole(char mode, double x);  // a whole number next to x
unsigned short tir_rounded_half(char mode, float x);
}
#define TIR_OF_MODES(of) of(rn, 'n') of(rz, 'z') of(ru, 'u') of(rd, 'd')
#define TIR_ROUNDED(suffix, mode) \
  TIR_INLINE float __fadd_##suffix(float a, float b) { return tir_rounded_float('+', mode, a, b, 0); } \
  TIR_INLINE float __fsub_##suffix(float a, float b) { return tir_rounded_float('-', mode, a, b, 0); } \
  TIR_INLINE float __fmul_##suffix(float a, float b) { return tir_rounded_float('*', mode, a, b, 0); } \
  TIR_INLINE float __fdiv_##suffix(float a, float b) { return tir_rounded_float('/', mode, a, b, 0); } \
  TIR_INLINE float __frcp_##suffix(float a) { return tir_rounded_float('/', mode, 1, a, 0); } \
  TIR_INLINE float __fsqrt_##suffix(float a) { return tir_rounded_float('s', mode, a, 0, 0); } \
  TIR_INLINE float __fmaf_##suffix(float a, float b, float c) { return tir_rounded_float('f', mode, a, b, c); } \
  TIR_INLINE double __dadd_##suffix(double a, double b) { return tir_rounded_double('+', mode, a, b, 0); } \
  TIR_INLINE double __dsub_##suffix(double a, double b) { return tir_rounded_double('-', mode, a, b, 0); } \
  TIR_INLINE double __dmul_##suffix(double a, double b) { return tir_rounded_double('*', mode, a, b, 0); } \
  TIR_INLINE double __ddiv_##suffix(double a, double b) { return tir_rounded_double('/', mode, a, b, 0); } \
  TIR_INLINE double __drcp_##suffix(double a) { return tir_rounded_double('/', mode, 1, a, 0); } \
  TIR_INLINE double __dsqrt_##suffix(double a) { return tir_rounded_double('s', mode, a, 0, 0); } \
  TIR_INLINE double __fma_##suffix(double a, double b, double c) { return tir_rounded_double('f', mode, a, b, c); } \
  TIR_INLINE float __double2float_##suffix(double a) { return tir_narrowed(mode, a); } \
  TIR_INLINE float __int2float_##suffix(int a) { return tir_narrowed(mode, a); } \
  TIR_INLINE float __uint2float_##suffix(unsigned a) { return tir_narrowed(mode, a); } \
  TIR_INLINE int __float2int_##suffix(float a) { return tir_limited<int>(mode, a, -0x1p31, 0x1p31); } \
  TIR_INLINE unsigned __float2uint_##suffix(float a) { return tir_limited<unsigned>(mode, a, 0, 0x1p32); } \
  TIR_INLINE long long __float2ll_##suffix(float a) { return tir_limited<long long>(mode, a, -0x1p63, 0x1p63); } \
  TIR_INLINE int __double2int_##suffix(double a) { return tir_limited<int>(mode, a, -0x1p31, 0x1p31); } \
  TIR_INLINE int __half2int_##suffix(__half a) { return __float2int_##suffix(__half2float(a)); }
// a conversion takes the nearest number that the type has, and 0 for a NaN
template <class T> static inline T tir_limited(char mode, double x, double low, double high) {
  double whole = tir_whole(mode, x);
  return whole != whole ? 0 : whole < low ? (T)low : whole >= high ? (T)(high > 0x1p62 ? (T)~0ull >> 1 : (T)(high - 1)) : (T)whole;
}
TIR_OF_MODES(TIR_ROUNDED)
#define TIR_TO_HALF(suffix, mode) \
  TIR_INLINE __half __float2half_##suffix(float a) { return tir_half(tir_rounded_half(mode, a)); }
TIR_TO_HALF(rz, 'z') TIR_TO_HALF(ru, 'u') TIR_TO_HALF(rd, 'd')
TIR_INLINE __half __float2half(float a) { return __float2half_rn(a); }

// Halves are computed in float and rounded again, which is one rounding: 24 digits are 2 * 11 + 2. A product and a sum
// may need more; what is cut off of those leaves its mark in their last digit.
TIR_INLINE __half __hadd(__half a, __half b) { return __float2half_rn(__half2float(a) + __half2float(b)); }
TIR_INLINE __half __hsub(__half a, __half b) { return __float2half_rn(__half2float(a) - __half2float(b)); }
TIR_INLINE __half __hmul(__half a, __half b) { return __float2half_rn(__half2float(a) * __half2float(b)); }
TIR_INLINE __half __hdiv(__half a, __half b) { return __float2half_rn(__half2float(a) / __half2float(b)); }
TIR_INLINE __half hsqrt(__half a) { return __float2half_rn(sqrtf(__half2float(a))); }
static inline __half __hfma(__half a, __half b, __half c) {
  double product = (double)__half2float(a) * __half2float(b), d = __half2float(c), sum = product + d;
  double there = sum - product, off = (product - (sum - there)) + (d - there);
  if (isfinite(sum) && off != 0 && !(__double_as_longlong(sum) & 1))
    sum = __longlong_as_double(__double_as_longlong(sum) + ((off > 0) == (sum > 0) ? 1 : -1));
  float narrow = (float)sum;
  if (isfinite(narrow) && narrow != sum) {
    int bits = __float_as_int(narrow) - (fabs((double)narrow) > fabs(sum));
    narrow = __int_as_float(bits | 1);
  }
  return __float2half_rn(narrow);
}
TIR_INLINE __half __hneg(__half a) { return tir_half(a.bits ^ 0x8000); }
TIR_INLINE __half __habs(__half a) { return tir_half(a.bits & 0x7fff); }
TIR_INLINE bool __hisnan(__half a) { return (a.bits & 0x7fff) > 0x7c00; }
TIR_INLINE bool __heq(__half a, __half b) { return __half2float(a) == __half2float(b); }
TIR_INLINE bool __hne(__half a, __half b) { return !__hisnan(a) && !__hisnan(b) && !__heq(a, b); }
TIR_INLINE bool __hlt(__half a, __half b) { return __half2float(a) < __half2float(b); }
TIR_INLINE bool __hle(__half a, __half b) { return __half2float(a) <= __half2float(b); }
TIR_INLINE bool __hgt(__half a, __half b) { return __hlt(b, a); }
TIR_INLINE bool __hge(__half a, __half b) { return __hle(b, a); }
// of two zeros the positive one is the larger; a number before a NaN, in those named _nan the NaN
TIR_INLINE __half __hmax_nan(__half a, __half b) {
  if (__hisnan(a) || __hisnan(b)) return tir_half(0x7fff);
  return __heq(a, b) ? tir_half(a.bits & b.bits) : __hlt(a, b) ? b : a;
}
TIR_INLINE __half __hmin_nan(__half a, __half b) {
  return __hisnan(a) || __hisnan(b) ? tir_half(0x7fff) : __hneg(__hmax_nan(__hneg(a), __hneg(b)));
}
TIR_INLINE __half __hmax(__half a, __half b) { return __hmax_nan(__hisnan(a) ? b : a, __hisnan(b) ? a : b); }
TIR_INLINE __half __hmin(__half a, __half b) { return __hmin_nan(__hisnan(a) ? b : a, __hisnan(b) ? a : b); }
TIR_INLINE __half __low2half(__half2 a) { return a.x; }
TIR_INLINE __half __high2half(__half2 a) { return a.y; }
TIR_INLINE float __low2float(__half2 a) { return __half2float(a.x); }
TIR_INLINE float __high2float(__half2 a) { return __half2float(a.y); }
TIR_INLINE __half2 __half2half2(__half a) { return {a, a}; }
TIR_INLINE __half2 __halves2half2(__half a, __half b) { return {a, b}; }
TIR_INLINE __half2 __float2half2_rn(float a) { return __half2half2(__float2half_rn(a)); }
TIR_INLINE float2 __half22float2(__half2 a) { return {__half2float(a.x), __half2float(a.y)}; }
TIR_INLINE __half2 __hadd2(__half2 a, __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
TIR_INLINE __half2 __hsub2(__half2 a, __half2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
TIR_INLINE __half2 __hmul2(__half2 a, __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
TIR_INLINE __half2 __hmax2(__half2 a, __half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
TIR_INLINE __half2 __hmin2(__half2 a, __half2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
TIR_INLINE __half2 __h2div(__half2 a, __half2 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }
TIR_INLINE __half2 __hneg2(__half2 a) { return {__hneg(a.x), __hneg(a.y)}; }
TIR_INLINE __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
#define TIR_OPERATORS(T, add, sub, mul, div, neg) \
  TIR_INLINE T operator+(T a, T b) { return add(a, b); } \
  TIR_INLINE T operator-(T a, T b) { return sub(a, b); } \
  TIR_INLINE T operator*(T a, T b) { return mul(a, b); } \
  TIR_INLINE T operator/(T a, T b) { return div(a, b); } \
  TIR_INLINE T operator-(T a) { return neg(a); } \
  TIR_INLINE T &operator+=(T &a, T b) { return a = add(a, b); } \
  TIR_INLINE T &operator-=(T &a, T b) { return a = sub(a, b); } \
  TIR_INLINE T &operator*=(T &a, T b) { return a = mul(a, b); } \
  TIR_INLINE T &operator/=(T &a, T b) { return a = div(a, b); }
TIR_OPERATORS(__half, __hadd, __hsub, __hmul, __hdiv, __hneg)
TIR_OPERATORS(__half2, __hadd2, __hsub2, __hmul2, __h2div, __hneg2)
TIR_INLINE bool operator==(__half a, __half b) { return __heq(a, b); }
TIR_INLINE bool operator!=(__half a, __half b) { return !__heq(a, b); }
TIR_INLINE bool operator<(__half a, __half b) { return __hlt(a, b); }
TIR_INLINE bool operator<=(__half a, __half b) { return __hle(a, b); }
TIR_INLINE bool operator>(__half a, __half b) { return __hgt(a, b); }
TIR_INLINE bool operator>=(__half a, __half b) { return __hge(a, b); }

TIR_INLINE float __frsqrt_rn(float a) { return tir_narrowed('n', 1 / sqrt((double)a)); }
TIR_INLINE float __fdividef(float a, float b) {  // 0 where the approximate inverse is
  float size = fabsf(b);
  return size > 0x1p126f && size < 0x1p128 ? a * (b < 0 ? -0.0f : 0.0f) : a / b;
}
TIR_INLINE float __logf(float a) { return (float)log((double)a); }
TIR_INLINE float __log2f(float a) { return (float)log2((double)a); }
TIR_INLINE float __log10f(float a) { return (float)log10((double)a); }
TIR_INLINE float __sinf(float a) { return (float)sin((double)a); }
TIR_INLINE float __cosf(float a) { return (float)cos((double)a); }
TIR_INLINE float __exp10f(float a) { return (float)exp10((double)a); }
TIR_INLINE float __powf(float a, float b) { return (float)exp2((double)(b * __log2f(a))); }
TIR_INLINE float __saturatef(float a) { return a > 0 ? a < 1 ? a : 1.0f : 0.0f; }

TIR_INLINE int __popc(unsigned a) { return __builtin_popcount(a); }
TIR_INLINE int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
TIR_INLINE int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
TIR_INLINE int __clzll(long long a) { return a ? __builtin_clzll((unsigned long long)a) : 64; }
TIR_INLINE int __ffs(int a) { return __builtin_ffs(a); }
TIR_INLINE int __ffsll(long long a) { return __builtin_ffsll(a); }
TIR_INLINE int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
TIR_INLINE unsigned __byte_perm(unsigned low, unsigned high, unsigned order) {
  unsigned out = 0;
  for (int n = 0; n < 4; n++) {
    unsigned from = order >> 4 * n & 7;
    out |= ((from < 4 ? low >> 8 * from : high >> 8 * (from - 4)) & 0xff) << 8 * n;
  }
  return out;
}
// how caches keep it is no matter of what is read and written
template <class T> TIR_INLINE T __ldg(const T *p) { return *p; }
template <class T> TIR_INLINE T __ldca(const T *p) { return *p; }
template <class T> TIR_INLINE T __ldcg(const T *p) { return *p; }
template <class T> TIR_INLINE T __ldcs(const T *p) { return *p; }
template <class T> TIR_INLINE T __ldcv(const T *p) { return *p; }
template <class T> TIR_INLINE T __ldlu(const T *p) { return *p; }
template <class T, class V> TIR_INLINE void __stcg(T *p, V value) { *p = value; }
template <class T, class V> TIR_INLINE void __stcs(T *p, V value) { *p = value; }
template <class T, class V> TIR_INLINE void __stwb(T *p, V value) { *p = value; }
template <class T, class V> TIR_INLINE void __stwt(T *p, V value) { *p = value; }

// a lane that does not take part has no say
template <class Join> static inline tir_u32 tir_voted(unsigned mask, tir_u32 mine, Join join) {
  tir_u32 out = tir_shuffle(mine, 0, 0, mask, 32);
  for (int lane = 1; lane < 32; lane++) {
    tir_u32 other = tir_shuffle(mine, lane, 0, mask, 32);
    if (mask >> lane & 1) out = join(out, other);
  }
  return out;
}
static inline tir_u32 tir_ballot(unsigned mask, int asked) {
  tir_u32 mine = asked ? 1u << (tir_lane() & 31) : 0;
  return tir_voted(mask, mine, [](tir_u32 a, tir_u32 b) { return a | b; });
}
#define __ballot_sync tir_ballot
#define __any_sync(mask, asked) (tir_ballot(mask, asked) != 0)
#define __all_sync(mask, asked) (tir_ballot(mask, !(asked)) == 0)
