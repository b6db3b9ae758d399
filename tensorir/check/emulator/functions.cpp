// The functions of floats that lowered programs call, once: the emulator has them for its texts, and the interpreter
// calls them as arrays (check/same_bits.py). A float's is that of double precision, rounded once.
#include <cmath>
#include <cstddef>

#define TIR_TABLE_OF_ONE(f) f(exp) f(exp2) f(log) f(log2) f(tanh) f(erf) f(sin) f(cos)

extern "C" {
#define TIR_ONE(name) \
  double tir_##name(double x) { return std::name(x); } \
  float tir_##name##f(float x) { return (float)std::name((double)x); }
TIR_TABLE_OF_ONE(TIR_ONE)
double tir_pow(double x, double y) { return std::pow(x, y); }
float tir_powf(float x, float y) { return (float)std::pow((double)x, (double)y); }
double tir_rsqrt(double x) { return 1.0 / std::sqrt(x); }
float tir_rsqrtf(float x) { return 1.0f / std::sqrt(x); }
float tir_fast_expf(float x) { return (float)std::exp2((double)(x * 1.44269504f)); }  // ex2.approx of a product

#define TIR_EACH(name, T) \
  void tir_each_##name(T *to, const T *x, size_t count) { \
    for (size_t n = 0; n < count; ++n) to[n] = tir_##name(x[n]); \
  }
#define TIR_EACH_OF_BOTH(name) TIR_EACH(name, double) TIR_EACH(name##f, float)
TIR_TABLE_OF_ONE(TIR_EACH_OF_BOTH)
TIR_EACH_OF_BOTH(rsqrt)
TIR_EACH(fast_expf, float)
void tir_each_pow(double *to, const double *x, const double *y, size_t count) {
  for (size_t n = 0; n < count; ++n) to[n] = tir_pow(x[n], y[n]);
}
void tir_each_powf(float *to, const float *x, const float *y, size_t count) {
  for (size_t n = 0; n < count; ++n) to[n] = tir_powf(x[n], y[n]);
}
}
