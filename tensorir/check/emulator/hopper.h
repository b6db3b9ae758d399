// What the text of kernels for sm_90a calls: put in front of it behind cuda.h. barriers.h, copies.h and wgmma.h run it.
// Functions here are always in the text itself, so that what goes wrong is told with its line.
#pragma once

struct alignas(64) TirTensorMap { unsigned char bytes[128]; };
extern "C" {
void tir_sync_some(int id, int threads);
void tir_sync_cluster();
void tir_meet_cluster();
void tir_barrier_init(unsigned long long *barrier, int arrivals);
void tir_barriers_ready();
void tir_barrier_expect(unsigned long long *barrier, int bytes);
void tir_barrier_arrive(unsigned long long *barrier);
void tir_barrier_arrive_at(unsigned long long *barrier, int rank);
void tir_barrier_wait(unsigned long long *barrier, int parity);
void tir_async_fence();
void tir_tma_load_tile(void *to, const void *map, unsigned long long *barrier, int rank, const int *corner, const int *offset);
void tir_tma_multicast_tile(void *to, const void *map, unsigned long long *barrier, int mask, int rank, const int *corner,
                            const int *offset);
void tir_tma_store_tile(const void *map, const void *from, int rank, const int *corner);
void tir_commit_stores();
void tir_wait_stores_but(int pending, int done);
unsigned long long tir_descriptor(const void *p, int leading, int stride);
void tir_wgmma_fence();
void tir_wgmma_commit();
void tir_wgmma_wait_but(int pending);
void tir_hold_registers(const void *first, size_t bytes);
void tir_wgmma_product(void *d, size_t room, tir_u64 a, tir_u64 b, int n, int kind, int a_along, int b_along,
                       int adds);
void tir_wgmma_product_held(void *d, size_t room, const void *a, size_t a_room, tir_u64 b, int n, int kind, int b_along,
                            int adds);
void tir_set_registers(int n, int up);
}

// coordinates innermost first
template <class... C> TIR_INLINE void tir_tma_load(void *to, const TirTensorMap *map, unsigned long long *barrier, C... c) {
  const int corner[] = {c...};
  tir_tma_load_tile(to, map, barrier, sizeof...(c), corner, nullptr);
}
template <class... C>
TIR_INLINE void tir_tma_multicast(void *to, const TirTensorMap *map, unsigned long long *barrier, int mask, C... c) {
  const int corner[] = {c...};
  tir_tma_multicast_tile(to, map, barrier, mask, sizeof...(c), corner, nullptr);
}
TIR_INLINE void tir_tma_im2col(void *to, const TirTensorMap *map, unsigned long long *barrier, int c, int w, int h, int n,
                               int along_w, int along_h) {
  const int corner[] = {c, w, h, n}, offset[] = {along_w, along_h};
  tir_tma_load_tile(to, map, barrier, 4, corner, offset);
}
TIR_INLINE void tir_tma_im2col_multicast(void *to, const TirTensorMap *map, unsigned long long *barrier, int mask, int c,
                                         int w, int h, int n, int along_w, int along_h) {
  const int corner[] = {c, w, h, n}, offset[] = {along_w, along_h};
  tir_tma_multicast_tile(to, map, barrier, mask, 4, corner, offset);
}
template <class... C> TIR_INLINE void tir_tma_store(const TirTensorMap *map, const void *from, C... c) {
  const int corner[] = {c...};
  tir_tma_store_tile(map, from, sizeof...(c), corner);
}
template <int pending> TIR_INLINE void tir_wait_stores() { tir_wait_stores_but(pending, 0); }
template <int pending> TIR_INLINE void tir_wait_stores_done() { tir_wait_stores_but(pending, 1); }
template <class T, int n> TIR_INLINE void tir_hold(T (&r)[n]) { tir_hold_registers(r, sizeof r); }
template <int pending> TIR_INLINE void tir_wgmma_wait() { tir_wgmma_wait_but(pending); }
template <int n> TIR_INLINE void tir_registers_up() { tir_set_registers(n, 1); }
template <int n> TIR_INLINE void tir_registers_down() { tir_set_registers(n, 0); }

// bytes behind a pointer into an array of registers, as far as the compiler can tell
#if defined(__has_builtin)
#if __has_builtin(__builtin_dynamic_object_size)
#define TIR_ROOM(p) __builtin_dynamic_object_size(p, 0)
#endif
#endif
#ifndef TIR_ROOM
#define TIR_ROOM(p) __builtin_object_size(p, 0)
#endif

// kinds are numbered as in wgmma.h; the letters: a is n, or t where it lies along m, or r for registers; b is t, or n where
// it lies along n
#define TIR_WGMMA(N, K, kind, number, D, letters, a_along, b_along) \
  TIR_INLINE void tir_wgmma_m64n##N##k##K##_##kind##_##letters(D *d, unsigned long long a, unsigned long long b, int adds = 1) { \
    tir_wgmma_product(d, TIR_ROOM(d), a, b, N, number, a_along, b_along, adds); \
  }
#define TIR_WGMMA_HELD(N, K, kind, number, D, letters, b_along) \
  TIR_INLINE void tir_wgmma_m64n##N##k##K##_##kind##_##letters(D *d, const void *a, unsigned long long b, int adds = 1) { \
    tir_wgmma_product_held(d, TIR_ROOM(d), a, TIR_ROOM(a), b, N, number, b_along, adds); \
  }
#define TIR_WGMMA_ALONG_K(N, K, kind, number, D) \
  TIR_WGMMA(N, K, kind, number, D, nt, 0, 0) \
  TIR_WGMMA_HELD(N, K, kind, number, D, rt, 0)
#define TIR_WGMMA_ANY(n, kind, number) \
  TIR_WGMMA_ALONG_K(n, 16, kind, number, float) \
  TIR_WGMMA(n, 16, kind, number, float, nn, 0, 1) \
  TIR_WGMMA(n, 16, kind, number, float, tt, 1, 0) \
  TIR_WGMMA(n, 16, kind, number, float, tn, 1, 1) \
  TIR_WGMMA_HELD(n, 16, kind, number, float, rn, 1)
#define TIR_WGMMA_SIZE(n) \
  TIR_WGMMA_ANY(n, f16, 0) \
  TIR_WGMMA_ANY(n, bf16, 1) \
  TIR_WGMMA_ALONG_K(n, 8, tf32, 2, float) \
  TIR_WGMMA_ALONG_K(n, 32, s8, 3, int) \
  TIR_WGMMA_ALONG_K(n, 32, u8, 4, int) \
  TIR_WGMMA_ALONG_K(n, 32, e4m3, 5, float) \
  TIR_WGMMA_ALONG_K(n, 32, e5m2, 6, float)
TIR_WGMMA_SIZES  // those that the text names: all of them take as long as a text
