// Instructions that the threads of a warp run together, written after the fragments of the PTX ISA and not after the
// tables that the compiler works from: the one is a check of the other. g is lane / 4, t is lane % 4.
#pragma once

namespace {

float bits_to_float(u32 u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

float from_half(uint16_t h) {
  u32 sign = (u32)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);  // infinity, NaN
  u32 u;
  float size = bits_to_float(rest << 13) * 0x1p112f;  // exact, denormals too
  std::memcpy(&u, &size, 4);
  return bits_to_float(sign | u);
}

float from_bfloat16(uint16_t b) { return bits_to_float((u32)b << 16); }

// Of 8 bits, by the formats' definitions: e4m3 (3 bits of mantissa) has one NaN and no infinities, e5m2 is a short half.
double from_float8(u8 b, int mantissa) {
  int size = b & 0x7f, exponent = size >> mantissa, rest = size & ((1 << mantissa) - 1), bias = mantissa == 3 ? 7 : 15;
  double value = std::ldexp((exponent ? 1 << mantissa : 0) + rest, std::max(exponent, 1) - bias - mantissa);
  if (mantissa == 3 ? size == 0x7f : size > 0x7c) value = NAN;
  if (mantissa == 2 && size == 0x7c) value = INFINITY;
  return b & 0x80 ? -value : value;
}

// What each lane brings, side by side; it stays until all lanes have called part().
template <class T> const T *together(const T &mine, const void *at) {
  static const char kind = 0;  // of what brings T
  static_assert(sizeof(T) <= MOST_TOGETHER, "room for what a lane brings");
  Fiber *f = W.current;
  if (W.together.empty()) W.together.resize((size_t)(W.cluster * W.warps * WARP) * MOST_TOGETHER);
  T *first = (T *)(W.together.data() + (size_t)(f->warp * WARP) * MOST_TOGETHER);
  first[f->lane] = mine;
  sync_warp(at, &kind);
  return first;
}

void part(const void *at) { sync_warp(at, (const void *)part); }

int own_lane() { return W.current->lane; }

uint16_t to_half(double x) {  // to nearest, halves to even
  uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  double size = std::fabs(x);
  if (size != size) return sign | 0x7fff;
  if (size >= 65520) return sign | 0x7c00;  // half of the last step beyond the largest
  double last = std::ldexp(1.0, size < 0x1p-14 ? -24 : std::ilogb(size) - 10);
  size = std::nearbyint(size / last) * last;
  if (size < 0x1p-14) return sign | (uint16_t)(size * 0x1p24);
  int power = std::ilogb(size);
  return sign | (uint16_t)((power + 15) << 10 | ((int)std::ldexp(size, 10 - power) & 0x3ff));
}

// Registers of 32 bits hold N neighbours along k. a's are rows g, g + 8, then (halves == 2) the same 4 N of k further on;
// b's are column g, 4 N of k apart; lane t of four has the t-th word. d's are columns 2 t, 2 t + 1 of row g, then of
// row g + 8.
template <class T, int N, int halves = 2, class D, class Product>
void mma_m16n8(D *d, const void *a, const void *b, int products, Product product, const void *at) {
  struct Held { T a[2 * halves * N], b[halves * N]; } mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  const Held *all = together(mine, at);
  int g = own_lane() / 4, t = own_lane() % 4;
  for (int j = 0; j < 4; j++)
    for (int which = 0; which < products; which++) {
      int row = g + 8 * (j / 2), column = 2 * t + j % 2;
      double sum = d[j];  // terms are added in this order, and rounded once: interp/tensor_cores.py
      for (int k = 0; k < 4 * halves * N; k++) {
        int half = k / (4 * N), lane = k / N % 4, inside = k % N;
        sum += product(which, all[row % 8 * 4 + lane].a[(half * 2 + row / 8) * N + inside],
                       all[column * 4 + lane].b[half * N + inside]);
      }
      d[j] = (D)(std::is_integral<D>::value ? (long long)sum : sum);
    }
  part(at);
}

// d's two registers of 32 bits hold two neighbours of a row each, which are rounded to half.
template <int halves> void mma_in_half(void *d, const void *a, const void *b, const void *at) {
  uint16_t held[4];
  std::memcpy(held, d, sizeof held);
  double sums[4] = {from_half(held[0]), from_half(held[1]), from_half(held[2]), from_half(held[3])};
  auto product = [](int, uint16_t x, uint16_t y) { return (double)from_half(x) * from_half(y); };
  mma_m16n8<uint16_t, 2, halves>(sums, a, b, 1, product, at);
  for (int j = 0; j < 4; j++) held[j] = to_half(sums[j]);
  std::memcpy(d, held, sizeof held);
}

float to_tf32(float x) {  // to nearest, halves away from 0
  u32 u;
  std::memcpy(&u, &x, 4);
  return (u & 0x7f800000) == 0x7f800000 ? x : bits_to_float((u + 0x1000) & ~0x1fffu);
}

void check_row(const void *row, const void *at) {
  if ((u64)row % 16)
    problem("memory.misaligned", at, nullptr, "thread %d points to a row that does not begin at a multiple of 16 bytes",
            W.current->number);
  if (!in_shared(row, 16)) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d points to a row that is not in shared memory",
            W.current->number);
    give_up();
  }
}

// Lane l points to row l % 8 of matrix l / 8; of each matrix a lane gets elements 2 t, 2 t + 1 of row g.
void ldmatrix_x4(void *d, const void *row, bool transposed, const void *at) {
  check_row(row, at);
  access(row, 16, false, at);
  const uint16_t *const *rows = together((const uint16_t *)row, at);
  int g = W.current->lane / 4, t = W.current->lane % 4;
  uint16_t out[8];
  for (int m = 0; m < 4; m++)
    for (int h = 0; h < 2; h++) out[2 * m + h] = transposed ? rows[8 * m + 2 * t + h][g] : rows[8 * m + g][2 * t + h];
  std::memcpy(d, out, sizeof out);
  part(at);
}

// The way back: of each matrix a lane has elements 2 t, 2 t + 1 of row g.
void stmatrix_x4(void *row, const void *r, bool transposed, const void *at) {
  struct Held { uint16_t of[8]; } mine;
  check_row(row, at);
  access(row, 16, true, at);
  std::memcpy(mine.of, r, sizeof mine.of);
  const Held *all = together(mine, at);
  int matrix = own_lane() / 8, line = own_lane() % 8;
  for (int c = 0; c < 8; c++) {
    int g = transposed ? c : line, e = transposed ? line : c;
    ((uint16_t *)row)[c] = all[g * 4 + e / 2].of[2 * matrix + e % 2];
  }
  part(at);
}

// --- copies that are under way on their own (cp.async)

// Whoever reads or writes the place before it has landed does so too early. It lands when its thread waits for it, as
// late as the text allows.
void depart(u8 *to, const u8 *from, unsigned size, unsigned there, const void *at) {
  Fiber *f = W.current;
  if ((u64)to % size || (u64)from % size)
    problem("memory.misaligned", at, nullptr, "thread %d copies %u bytes to or from no multiple of that", f->number, size);
  if (!in_shared(to, size)) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d copies to a place that is not in shared memory", f->number);
    give_up();
  }
  if (there) access(from, there, false, at);
  access(to, size, true, at);
  Flight flight{to, size, at, {0}};
  if (there) std::memcpy(flight.bytes, from, there);
  std::memset(to, 0xff, size);
  for (u64 g = (u64)(to - W.shared) >> W.granule; g <= (u64)(to - W.shared + size - 1) >> W.granule; g++)
    W.cells[g].in_flight = true;
  f->leaving.push_back(flight);
}

void land(Fiber *f, size_t pending) {
  for (; f->groups.size() > pending; f->groups.pop_front())
    for (const Flight &flight : f->groups.front()) {
      std::memcpy(flight.to, flight.bytes, flight.size);
      u64 first = (u64)(flight.to - W.shared);
      for (u64 g = first >> W.granule; g <= (first + flight.size - 1) >> W.granule; g++) {
        W.cells[g].in_flight = false;
        W.cells[g].write_clock = f->clock;  // others know of it behind the next barrier, not the last one
      }
    }
}

}  // namespace

extern "C" {
// for functions that are derived from the meaning of an instruction
int tir_lane() { return W.current->lane; }

const void *tir_together(const void *mine, unsigned size) {
  Fiber *f = W.current;
  size_t room = (size_t)(W.cluster * W.warps * WARP) * size;
  if (W.derived.size() < room) W.derived.resize(room);
  u8 *first = W.derived.data() + (size_t)(f->warp * WARP) * size;
  std::memcpy(first + (size_t)f->lane * size, mine, size);
  sync_warp(HERE, (const void *)(uintptr_t)size);  // at most of that size is read
  return first;
}

void tir_part() { sync_warp(HERE, (const void *)tir_part); }

void tir_touch(const void *p, unsigned size, int write) {
  access_bytes(p, size, write != 0, __builtin_return_address(0));
}

void tir_copy_async(void *to, const void *from, unsigned size, unsigned there) {
  depart((u8 *)to, (const u8 *)from, size, there, HERE);
}
void tir_commit_copies() {
  W.current->groups.push_back(W.current->leaving);
  W.current->leaving.clear();
}
void tir_wait_copies_but(int pending) { land(W.current, (size_t)pending); }
void tir_mma_m16n8k16_f16(float *d, const void *a, const void *b) {
  auto product = [](int, uint16_t x, uint16_t y) { return (double)from_half(x) * from_half(y); };
  mma_m16n8<uint16_t, 2>(d, a, b, 1, product, HERE);
}
void tir_mma_m16n8k16_bf16(float *d, const void *a, const void *b) {
  auto product = [](int, uint16_t x, uint16_t y) { return (double)from_bfloat16(x) * from_bfloat16(y); };
  mma_m16n8<uint16_t, 2>(d, a, b, 1, product, HERE);
}
void tir_mma_m16n8k32_s8(int *d, const void *a, const void *b) {
  mma_m16n8<int8_t, 4>(d, a, b, 1, [](int, int8_t x, int8_t y) { return (double)(x * y); }, HERE);
}
void tir_mma_m16n8k32_e4m3(float *d, const void *a, const void *b) {
  mma_m16n8<u8, 4>(d, a, b, 1, [](int, u8 x, u8 y) { return from_float8(x, 3) * from_float8(y, 3); }, HERE);
}
void tir_mma_m16n8k32_e5m2(float *d, const void *a, const void *b) {
  mma_m16n8<u8, 4>(d, a, b, 1, [](int, u8 x, u8 y) { return from_float8(x, 2) * from_float8(y, 2); }, HERE);
}
void tir_mma_m16n8k32_u8(int *d, const void *a, const void *b) {
  mma_m16n8<uint8_t, 4>(d, a, b, 1, [](int, uint8_t x, uint8_t y) { return (double)(x * y); }, HERE);
}
void tir_mma_m16n8k8_f16(float *d, const void *a, const void *b) {
  auto product = [](int, uint16_t x, uint16_t y) { return (double)from_half(x) * from_half(y); };
  mma_m16n8<uint16_t, 2, 1>(d, a, b, 1, product, HERE);
}
void tir_mma_m16n8k16_s8(int *d, const void *a, const void *b) {
  mma_m16n8<int8_t, 4, 1>(d, a, b, 1, [](int, int8_t x, int8_t y) { return (double)(x * y); }, HERE);
}
void tir_mma_m16n8k16_u8(int *d, const void *a, const void *b) {
  mma_m16n8<uint8_t, 4, 1>(d, a, b, 1, [](int, uint8_t x, uint8_t y) { return (double)(x * y); }, HERE);
}
void tir_mma_m16n8k16_f16_f16(void *d, const void *a, const void *b) { mma_in_half<2>(d, a, b, HERE); }
void tir_mma_m16n8k8_f16_f16(void *d, const void *a, const void *b) { mma_in_half<1>(d, a, b, HERE); }
void tir_mma_m16n8k8_tf32(float *d, const void *a, const void *b) {
  mma_m16n8<float, 1>(d, a, b, 1, [](int, float x, float y) { return (double)to_tf32(x) * to_tf32(y); }, HERE);
}
void tir_mma_m16n8k8_3xtf32(float *d, const void *a, const void *b) {
  auto product = [](int which, float x, float y) {
    float big_x = to_tf32(x), big_y = to_tf32(y), small_x = to_tf32(x - big_x), small_y = to_tf32(y - big_y);
    return which == 0 ? (double)small_x * big_y : which == 1 ? (double)big_x * small_y : (double)big_x * big_y;
  };
  mma_m16n8<float, 1>(d, a, b, 3, product, HERE);
}
void tir_ldmatrix_x4(void *d, const void *row) { ldmatrix_x4(d, row, false, HERE); }
void tir_ldmatrix_x4_trans(void *d, const void *row) { ldmatrix_x4(d, row, true, HERE); }
void tir_stmatrix_x4(void *row, const void *r) { stmatrix_x4(row, r, false, HERE); }
void tir_stmatrix_x4_trans(void *row, const void *r) { stmatrix_x4(row, r, true, HERE); }
}
