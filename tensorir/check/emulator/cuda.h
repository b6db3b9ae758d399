// What emitted CUDA text needs to be compiled by a C++ compiler, unchanged: put in front of it with -include.
// Threads, barriers and shuffles are calls into runtime.cpp; plain loads and stores are seen through the hooks that
// -fsanitize=thread puts in, which runtime.cpp implements.
#pragma once
#define TIR_EMULATED 1  // what the text wraps in functions, instructions.h has
// No header of the host is included: a text sees here what NVRTC gives it, and names that begin with tir_ or TIR_.
typedef decltype(sizeof 0) size_t;
typedef signed char tir_i8;
typedef unsigned char tir_u8;
typedef unsigned short tir_u16;
typedef unsigned int tir_u32;
typedef unsigned long long tir_u64;
#define TIR_NAN __builtin_nanf("")

// always in the text itself, so that what goes wrong is told with its line
#define TIR_INLINE static inline __attribute__((always_inline))

extern "C" {  // those that the host's C library has too
void *malloc(size_t);
void free(void *);
int abs(int);
long labs(long);
long long llabs(long long);
#define TIR_OF_ONE(name) \
  double name(double); \
  float name##f(float);
#define TIR_OF_TWO(name) \
  double name(double, double); \
  float name##f(float, float);
TIR_OF_ONE(acos) TIR_OF_ONE(acosh) TIR_OF_ONE(asin) TIR_OF_ONE(asinh) TIR_OF_ONE(atan) TIR_OF_ONE(atanh) TIR_OF_ONE(cbrt)
TIR_OF_ONE(ceil) TIR_OF_ONE(cosh) TIR_OF_ONE(erfc) TIR_OF_ONE(exp10) TIR_OF_ONE(expm1) TIR_OF_ONE(fabs) TIR_OF_ONE(floor)
TIR_OF_ONE(lgamma) TIR_OF_ONE(log10) TIR_OF_ONE(log1p) TIR_OF_ONE(logb) TIR_OF_ONE(nearbyint) TIR_OF_ONE(rint) TIR_OF_ONE(round)
TIR_OF_ONE(sinh) TIR_OF_ONE(sqrt) TIR_OF_ONE(tan) TIR_OF_ONE(tgamma) TIR_OF_ONE(trunc)
// those that lowered programs call: functions.cpp
#define TIR_OF_TABLE(name) \
  double name(double) __asm__("tir_" #name); \
  float name##f(float) __asm__("tir_" #name "f");
TIR_OF_TABLE(exp) TIR_OF_TABLE(exp2) TIR_OF_TABLE(log) TIR_OF_TABLE(log2) TIR_OF_TABLE(tanh) TIR_OF_TABLE(erf) TIR_OF_TABLE(sin)
TIR_OF_TABLE(cos) TIR_OF_TABLE(rsqrt)
double pow(double, double) __asm__("tir_pow");
float powf(float, float) __asm__("tir_powf");
float __expf(float) __asm__("tir_fast_expf");
TIR_OF_TWO(atan2) TIR_OF_TWO(copysign) TIR_OF_TWO(fdim) TIR_OF_TWO(fmax) TIR_OF_TWO(fmin) TIR_OF_TWO(fmod) TIR_OF_TWO(hypot)
TIR_OF_TWO(nextafter) TIR_OF_TWO(remainder)
#define TIR_OTHERS(T, s) \
  T fma##s(T, T, T); \
  T ldexp##s(T, int); \
  T scalbn##s(T, int); \
  int ilogb##s(T); \
  long lrint##s(T); \
  long lround##s(T); \
  long long llrint##s(T); \
  long long llround##s(T); \
  T tir_c_frexp##s(T, int *) __asm__("frexp" #s); \
  T tir_c_modf##s(T, T *) __asm__("modf" #s); \
  T tir_c_remquo##s(T, T, int *) __asm__("remquo" #s); \
  void tir_c_sincos##s(T, T *, T *) __asm__("sincos" #s);
TIR_OTHERS(double, )
TIR_OTHERS(float, f)
}
// What these write is no library's business: the text stores it, and is watched.
#define TIR_STORES(T, s) \
  TIR_INLINE T frexp##s(T x, int *power) { \
    int own; \
    T made = tir_c_frexp##s(x, &own); \
    *power = own; \
    return made; \
  } \
  TIR_INLINE T modf##s(T x, T *whole) { \
    T own, made = tir_c_modf##s(x, &own); \
    *whole = own; \
    return made; \
  } \
  TIR_INLINE T remquo##s(T x, T y, int *quotient) { \
    int own; \
    T made = tir_c_remquo##s(x, y, &own); \
    *quotient = own; \
    return made; \
  } \
  TIR_INLINE void sincos##s(T x, T *sine, T *cosine) { \
    T own[2]; \
    tir_c_sincos##s(x, own, own + 1); \
    *sine = own[0], *cosine = own[1]; \
  }
TIR_STORES(double, )
TIR_STORES(float, f)
#define TIR_OVERLOAD_ONE(name) \
  static inline float name(float a) { return name##f(a); }
TIR_OVERLOAD_ONE(exp) TIR_OVERLOAD_ONE(exp2) TIR_OVERLOAD_ONE(log) TIR_OVERLOAD_ONE(log2) TIR_OVERLOAD_ONE(sqrt)
TIR_OVERLOAD_ONE(sin) TIR_OVERLOAD_ONE(cos) TIR_OVERLOAD_ONE(tanh) TIR_OVERLOAD_ONE(fabs) TIR_OVERLOAD_ONE(floor)
TIR_OVERLOAD_ONE(ceil) TIR_OVERLOAD_ONE(trunc) TIR_OVERLOAD_ONE(round) TIR_OVERLOAD_ONE(rint)
static inline float pow(float a, float b) { return powf(a, b); }
static inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
static inline long abs(long a) { return labs(a); }
static inline long long abs(long long a) { return llabs(a); }
static inline float abs(float a) { return fabsf(a); }
static inline double abs(double a) { return fabs(a); }
#define TIR_ASKED(T) \
  static inline bool isnan(T a) { return __builtin_isnan(a); } \
  static inline bool isinf(T a) { return __builtin_isinf(a); } \
  static inline bool isfinite(T a) { return __builtin_isfinite(a); } \
  static inline bool signbit(T a) { return __builtin_signbit(a); }
TIR_ASKED(float)
TIR_ASKED(double)
template <class T> TIR_INLINE T min(T a, T b) { return b < a ? b : a; }
template <class T> TIR_INLINE T max(T a, T b) { return a < b ? b : a; }
static inline float min(float a, float b) { return fminf(a, b); }  // which no NaN leaves
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
struct tir_index { unsigned x, y, z; };
extern "C" {
tir_index tir_thread_index();
tir_index tir_block_index();
tir_index tir_block_size();
tir_index tir_grid_size();
void tir_sync_block();
void tir_sync_warp(unsigned mask);
void tir_took_one(unsigned long long n);
unsigned char *tir_own_shared(unsigned char *of_image);
void tir_unset(void *room, size_t size);
void *tir_copy_bytes(void *to, const void *from, size_t n);
void *tir_fill_bytes(void *to, int byte, size_t n);
// how: 0 from lane, 1 from own lane ^ lane, 2 from own + lane, 3 from own - lane;  mask: the lanes that take part
tir_u32 tir_shuffle(tir_u32 value, int lane, int how, unsigned mask, int width);
// instructions that the threads of a warp run together: instructions.h
void tir_mma_m16n8k16_f16(float *d, const void *a, const void *b);
void tir_mma_m16n8k16_bf16(float *d, const void *a, const void *b);
void tir_mma_m16n8k32_s8(int *d, const void *a, const void *b);
void tir_mma_m16n8k32_e4m3(float *d, const void *a, const void *b);
void tir_mma_m16n8k32_e5m2(float *d, const void *a, const void *b);
void tir_mma_m16n8k32_u8(int *d, const void *a, const void *b);
void tir_mma_m16n8k8_tf32(float *d, const void *a, const void *b);
void tir_mma_m16n8k8_3xtf32(float *d, const void *a, const void *b);
void tir_mma_m16n8k8_f16(float *d, const void *a, const void *b);
void tir_mma_m16n8k16_s8(int *d, const void *a, const void *b);
void tir_mma_m16n8k16_u8(int *d, const void *a, const void *b);
void tir_mma_m16n8k16_f16_f16(void *d, const void *a, const void *b);
void tir_mma_m16n8k8_f16_f16(void *d, const void *a, const void *b);
void tir_ldmatrix_x4(void *d, const void *row);
void tir_ldmatrix_x4_trans(void *d, const void *row);
void tir_stmatrix_x4(void *row, const void *r);
void tir_stmatrix_x4_trans(void *row, const void *r);
void tir_copy_async(void *to, const void *from, unsigned size, unsigned there);
void tir_commit_copies();
void tir_wait_copies_but(int pending);
}
// what derived functions (derived.py) are made of
extern "C" {
int tir_lane();
const void *tir_together(const void *mine, unsigned size);
void tir_part();
void tir_touch(const void *p, unsigned size, int write);
}
extern "C" {
float tir_add_float(float *p, float v);
tir_u32 tir_add_word(tir_u32 *p, tir_u32 v);
}
TIR_INLINE void *memcpy(void *to, const void *from, size_t n) { return tir_copy_bytes(to, from, n); }
TIR_INLINE void *memset(void *to, int byte, size_t n) { return tir_fill_bytes(to, byte, n); }
static inline int __dp4a(int a, int b, int c) {
  for (int n = 0; n < 4; n++) c += (int)(tir_i8)(a >> 8 * n) * (tir_i8)(b >> 8 * n);
  return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int n = 0; n < 4; n++) c += (tir_u8)(a >> 8 * n) * (tir_u8)(b >> 8 * n);
  return c;
}
// The registers that instructions are given: looked at in the text, whose arrays are watched (-fsanitize=object-size).
struct tir_held_4 { volatile tir_u32 of[1]; };
struct tir_held_8 { volatile tir_u32 of[2]; };
struct tir_held_16 { volatile tir_u32 of[4]; };
#define TIR_HELD(size, p) ((void)((tir_held_##size *)(p))->of[0], (void)((tir_held_##size *)(p))->of[size / 4 - 1], (p))
#define TIR_MMA(name, d, a, b) name(TIR_HELD(16, d), TIR_HELD(16, a), TIR_HELD(8, b))
#define tir_mma_m16n8k16_f16(d, a, b) TIR_MMA((tir_mma_m16n8k16_f16), d, a, b)
#define tir_mma_m16n8k16_bf16(d, a, b) TIR_MMA((tir_mma_m16n8k16_bf16), d, a, b)
#define tir_mma_m16n8k32_e4m3(d, a, b) TIR_MMA((tir_mma_m16n8k32_e4m3), d, a, b)
#define tir_mma_m16n8k32_e5m2(d, a, b) TIR_MMA((tir_mma_m16n8k32_e5m2), d, a, b)
#define tir_mma_m16n8k32_s8(d, a, b) TIR_MMA((tir_mma_m16n8k32_s8), d, a, b)
#define tir_mma_m16n8k32_u8(d, a, b) TIR_MMA((tir_mma_m16n8k32_u8), d, a, b)
#define tir_mma_m16n8k8_tf32(d, a, b) TIR_MMA((tir_mma_m16n8k8_tf32), d, a, b)
#define tir_mma_m16n8k8_3xtf32(d, a, b) TIR_MMA((tir_mma_m16n8k8_3xtf32), d, a, b)
#define tir_mma_m16n8k8_f16(d, a, b) (tir_mma_m16n8k8_f16)(TIR_HELD(16, d), TIR_HELD(8, a), TIR_HELD(4, b))
#define tir_mma_m16n8k16_s8(d, a, b) (tir_mma_m16n8k16_s8)(TIR_HELD(16, d), TIR_HELD(8, a), TIR_HELD(4, b))
#define tir_mma_m16n8k16_u8(d, a, b) (tir_mma_m16n8k16_u8)(TIR_HELD(16, d), TIR_HELD(8, a), TIR_HELD(4, b))
#define tir_mma_m16n8k16_f16_f16(d, a, b) (tir_mma_m16n8k16_f16_f16)(TIR_HELD(8, d), TIR_HELD(16, a), TIR_HELD(8, b))
#define tir_mma_m16n8k8_f16_f16(d, a, b) (tir_mma_m16n8k8_f16_f16)(TIR_HELD(8, d), TIR_HELD(8, a), TIR_HELD(4, b))
#define tir_ldmatrix_x4(d, row) (tir_ldmatrix_x4)(TIR_HELD(16, d), row)
#define tir_ldmatrix_x4_trans(d, row) (tir_ldmatrix_x4_trans)(TIR_HELD(16, d), row)
#define tir_stmatrix_x4(row, r) (tir_stmatrix_x4)(row, TIR_HELD(16, r))
#define tir_stmatrix_x4_trans(row, r) (tir_stmatrix_x4_trans)(row, TIR_HELD(16, r))
TIR_INLINE void tir_copy_async_4(void *to, const void *from, bool there = true) {
  tir_copy_async(to, from, 4, there ? 4 : 0);
}
TIR_INLINE void tir_copy_async_8(void *to, const void *from, bool there = true) {
  tir_copy_async(to, from, 8, there ? 8 : 0);
}
TIR_INLINE void tir_copy_async_16(void *to, const void *from, bool there = true) {
  tir_copy_async(to, from, 16, there ? 16 : 0);
}
TIR_INLINE float atomicAdd(float *p, float v) { return tir_add_float(p, v); }
TIR_INLINE unsigned atomicAdd(unsigned *p, unsigned v) { return tir_add_word(p, v); }
TIR_INLINE int atomicAdd(int *p, int v) { return (int)tir_add_word((unsigned *)p, (unsigned)v); }
template <int pending> TIR_INLINE void tir_wait_copies() { tir_wait_copies_but(pending); }
// what translation.py hands on: conditions and places of the text
template <class T> TIR_INLINE T tir_took(T v) {
  tir_took_one((unsigned long long)v);
  return v;
}
#define threadIdx tir_thread_index()
#define blockIdx tir_block_index()
#define blockDim tir_block_size()
#define gridDim tir_grid_size()
#define __syncthreads() tir_sync_block()
TIR_INLINE void __syncwarp(unsigned mask = 0xffffffffu) { tir_sync_warp(mask); }
template <class T> static inline T tir_shuffled(unsigned mask, T v, int lane, int how, int width = 32) {
  static_assert(sizeof(T) % 4 == 0, "shuffles move words of four bytes");
  tir_u32 u[sizeof(T) / 4];
  __builtin_memcpy(u, &v, sizeof v);
  for (tir_u32 &word : u) word = tir_shuffle(word, lane, how, mask, width);
  __builtin_memcpy(&v, u, sizeof v);
  return v;
}
template <class T> static inline T tir_shuffled_from(unsigned mask, T v, int lane, int width = 32) {
  return tir_shuffled(mask, v, lane, 0, width);
}
template <class T> static inline T tir_shuffled_xor(unsigned mask, T v, int lane, int width = 32) {
  return tir_shuffled(mask, v, lane, 1, width);
}
template <class T> static inline T tir_shuffled_down(unsigned mask, T v, int lane, int width = 32) {
  return tir_shuffled(mask, v, lane, 2, width);
}
template <class T> static inline T tir_shuffled_up(unsigned mask, T v, int lane, int width = 32) {
  return tir_shuffled(mask, v, lane, 3, width);
}
#define __shfl_sync tir_shuffled_from
#define __shfl_xor_sync tir_shuffled_xor
#define __shfl_down_sync tir_shuffled_down
#define __shfl_up_sync tir_shuffled_up

#define __global__
#define __device__
#define __constant__ static const
#define __forceinline__ inline
#define TIR_SECTION "tir_shared"  // translation.py gives each of several kernels its own
#define __shared__ static __attribute__((section(TIR_SECTION)))
// The arrays of shared memory are listed, those that come at launch and others. A declared one begins at an odd multiple of
// what it is aligned to, as does one of a thread: a device does no better than what is declared.
struct alignas(32) tir_array { void *at; unsigned long long size, at_launch, none; };
#define TIR_LISTED(name, first, bytes, at_launch) \
  static tir_array name __attribute__((section("at_" TIR_SECTION), used)) = {first, bytes, at_launch, 0}
#define TIR_ALIGN(n, T) ((n) > alignof(T) ? (n) : alignof(T))
#define TIR_PLACED(n, T, name, of) \
  static __attribute__((section(TIR_SECTION), aligned(2 * TIR_ALIGN(n, T)))) \
  unsigned char name##_image[TIR_ALIGN(n, T) + sizeof(T of)]; \
  TIR_LISTED(name##_listed, name##_image + TIR_ALIGN(n, T), sizeof(T of), 0); \
  T(&name) of = *(T(*) of)(name##_image + TIR_ALIGN(n, T))
#define TIR_OWN(n, T, name, of) \
  alignas(2 * TIR_ALIGN(n, T)) unsigned char name##_room[TIR_ALIGN(n, T) + sizeof(T of)]; \
  tir_unset(name##_room, sizeof name##_room); \
  T(&name) of = *(T(*) of)(name##_room + TIR_ALIGN(n, T))  /* by its name: compilers know how large it is */
// What nobody has written is a NaN in every type of floats: garbage is one now and then, and no product with 0 hides it.
#define TIR_UNSET(T, name) for (T &tir_one : name) tir_one = tir_none((T *)nullptr)
static inline float tir_none(float *) { return TIR_NAN; }
static inline double tir_none(double *) { return TIR_NAN; }
static inline unsigned short tir_none(unsigned short *) { return 0xffff; }
static inline unsigned char tir_none(unsigned char *) { return 0xff; }
#define TIR_IMAGE(name, bytes) \
  static __attribute__((section(TIR_SECTION), aligned(1024))) unsigned char name[bytes]; \
  TIR_LISTED(name##_listed, name, bytes, 1)
#ifdef TIR_CLUSTERS  // blocks that run at once have memory of their own each
#define TIR_SHARED(name, bytes) \
  TIR_IMAGE(name##_of_image, bytes); \
  unsigned char *const name = tir_own_shared(name##_of_image)
#else
#define TIR_SHARED(name, bytes) TIR_IMAGE(name, bytes)
#endif
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

// Structures are copied by functions of their own. A compiler passes others by value, and returns them, with no load or
// store of the text's that the hooks would see. ``fields`` is copied whole: one request.
#define TIR_COPIED(name, fields) \
  name() = default; \
  inline __attribute__((always_inline)) name(const name &from) : fields(from) {} \
  inline __attribute__((always_inline)) name &operator=(const name &from) { \
    *static_cast<fields *>(this) = from; \
    return *this; \
  }
struct tir_copied {  // a member of structures that a text declares: translation.py
  tir_copied() = default;
  tir_copied(const tir_copied &) {}
  tir_copied &operator=(const tir_copied &) { return *this; }
};
template <class T, int N> struct tir_fields;
template <class T> struct alignas(2 * sizeof(T)) tir_fields<T, 2> { T x, y; };
template <class T> struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) tir_fields<T, 4> { T x, y, z, w; };
template <class T, int N> struct tir_vector : tir_fields<T, N> {
  typedef tir_fields<T, N> fields;
  TIR_COPIED(tir_vector, fields)
  template <class... More> constexpr tir_vector(T x, T y, More... more) : fields{x, y, more...} {}
};
#define TIR_VECTORS(T, name) \
  typedef tir_vector<T, 2> name##2; \
  typedef tir_vector<T, 4> name##4; \
  TIR_INLINE name##2 make_##name##2(T a, T b) { return {a, b}; } \
  TIR_INLINE name##4 make_##name##4(T a, T b, T c, T d) { return {a, b, c, d}; }
TIR_VECTORS(float, float)
TIR_VECTORS(double, double)
TIR_VECTORS(int, int)
TIR_VECTORS(unsigned int, uint)
TIR_VECTORS(short, short)
TIR_VECTORS(unsigned short, ushort)
TIR_VECTORS(signed char, char)
TIR_VECTORS(unsigned char, uchar)
TIR_VECTORS(long long, longlong)
TIR_VECTORS(unsigned long long, ulonglong)

template <class To, class From> static inline To tir_bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To out;
  __builtin_memcpy(&out, &v, sizeof(To));
  return out;
}
static inline float __int_as_float(int i) { return tir_bits<float>(i); }
static inline int __float_as_int(float f) { return tir_bits<int>(f); }
static inline float __uint_as_float(unsigned i) { return tir_bits<float>(i); }
static inline unsigned __float_as_uint(float f) { return tir_bits<unsigned>(f); }
static inline double __longlong_as_double(long long i) { return tir_bits<double>(i); }
static inline long long __double_as_longlong(double d) { return tir_bits<long long>(d); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}

struct tir_half_bits { tir_u16 bits; };
struct __half : tir_half_bits {
  TIR_COPIED(__half, tir_half_bits)
  explicit constexpr __half(tir_half_bits of) : tir_half_bits(of) {}
  explicit operator float() const;
};
TIR_INLINE __half tir_half(tir_u32 bits) { return __half(tir_half_bits{(tir_u16)bits}); }
static inline float __half2float(__half h) {
  tir_u32 sign = (tir_u32)(h.bits & 0x8000) << 16, rest = h.bits & 0x7fff;
  if (rest >= 0x7c00) return tir_bits<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);  // infinity, NaN
  float size = tir_bits<float>(rest << 13) * 0x1p112f;                                    // exact, denormals too
  return tir_bits<float>(sign | tir_bits<tir_u32>(size));
}
inline __half::operator float() const { return __half2float(*this); }
static inline __half __float2half_rn(float f) {
  tir_u32 u = tir_bits<tir_u32>(f), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
  if (size > 0x7f800000) return tir_half(0x7fff);  // the NaN of PTX
  if (size >= 0x477ff000) return tir_half(sign | 0x7c00);  // rounds to infinity
  if (size < 0x38800000)  // denormal: the adder rounds to nearest even at the last place of a half
    return tir_half(sign | (tir_bits<tir_u32>(tir_bits<float>(size) + 0.5f) - 0x3f000000));
  return tir_half(sign | ((size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13));
}
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }
static inline __half __ushort_as_half(unsigned short bits) { return tir_half(bits); }
struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __half2(__half low, __half high) : x(low), y(high) {}
  inline __attribute__((always_inline)) __half2(const __half2 &from) { *(tir_u32 *)this = *(const tir_u32 *)&from; }
  inline __attribute__((always_inline)) __half2 &operator=(const __half2 &from) {
    *(tir_u32 *)this = *(const tir_u32 *)&from;
    return *this;
  }
};
static inline __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
