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

// What each lane brings, side by side; it stays until all lanes have called part().
template <class T> const T *together(const T &mine, const void *at) {
  static_assert(sizeof(T) <= MOST_TOGETHER, "room for what a lane brings");
  Fiber *f = W.current;
  if (W.together.empty()) W.together.resize((size_t)((W.threads + WARP - 1) / WARP * WARP) * MOST_TOGETHER);
  T *first = (T *)(W.together.data() + (size_t)(f->id / WARP * WARP) * MOST_TOGETHER);
  first[f->lane] = mine;
  sync_warp(at);
  return first;
}

void part(const void *at) { sync_warp(at); }

// a0..a7 are rows g, g + 8 by pairs of k (2 t, 2 t + 1, then 8 more); b0..b3 such pairs of column g;
// d0..d3 columns 2 t, 2 t + 1 of row g, then of row g + 8
void mma_m16n8k16(float *d, const void *a, const void *b, float (*widened)(uint16_t), const void *at) {
  struct Held { uint16_t a[8], b[4]; } mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  const Held *all = together(mine, at);
  int g = W.current->lane / 4, t = W.current->lane % 4;
  for (int j = 0; j < 4; j++) {
    int row = g + 8 * (j / 2), column = 2 * t + j % 2;
    for (int k = 0; k < 16; k++) {
      const Held &left = all[row % 8 * 4 + k % 8 / 2], &right = all[column * 4 + k % 8 / 2];
      d[j] += widened(left.a[k / 8 * 4 + row / 8 * 2 + k % 2]) * widened(right.b[k / 8 * 2 + k % 2]);
    }
  }
  part(at);
}

// Lane l points to row l % 8 of matrix l / 8; of each matrix a lane gets elements 2 t, 2 t + 1 of row g.
void ldmatrix_x4(void *d, const void *row, bool transposed, const void *at) {
  if ((u64)row % 16)
    problem("memory.misaligned", at, nullptr, "thread %d points to a row that does not begin at a multiple of 16 bytes",
            W.current->id);
  if (!W.shared || (u8 *)row < W.shared || (u8 *)row + 16 > W.shared + W.shared_size) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d points to a row that is not in shared memory", W.current->id);
    give_up();
  }
  access(row, 16, false, at);
  const uint16_t *const *rows = together((const uint16_t *)row, at);
  int g = W.current->lane / 4, t = W.current->lane % 4;
  uint16_t out[8];
  for (int m = 0; m < 4; m++)
    for (int h = 0; h < 2; h++) out[2 * m + h] = transposed ? rows[8 * m + 2 * t + h][g] : rows[8 * m + g][2 * t + h];
  std::memcpy(d, out, sizeof out);
  part(at);
}

// --- copies that are under way on their own (cp.async)

// Whoever reads or writes the place before it has landed does so too early. It lands when its thread waits for it, as
// late as the text allows.
void depart(u8 *to, const u8 *from, unsigned size, unsigned there, const void *at) {
  Fiber *f = W.current;
  if ((u64)to % size || (u64)from % size)
    problem("memory.misaligned", at, nullptr, "thread %d copies %u bytes to or from no multiple of that", f->id, size);
  if (!W.shared || to < W.shared || to + size > W.shared + W.shared_size) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d copies to a place that is not in shared memory", f->id);
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
void tir_copy_async(void *to, const void *from, unsigned size, unsigned there) {
  depart((u8 *)to, (const u8 *)from, size, there, HERE);
}
void tir_commit_copies() {
  W.current->groups.push_back(W.current->leaving);
  W.current->leaving.clear();
}
void tir_wait_copies_but(int pending) { land(W.current, (size_t)pending); }
void tir_mma_m16n8k16_f16(float *d, const void *a, const void *b) { mma_m16n8k16(d, a, b, from_half, HERE); }
void tir_mma_m16n8k16_bf16(float *d, const void *a, const void *b) { mma_m16n8k16(d, a, b, from_bfloat16, HERE); }
void tir_ldmatrix_x4(void *d, const void *row) { ldmatrix_x4(d, row, false, HERE); }
void tir_ldmatrix_x4_trans(void *d, const void *row) { ldmatrix_x4(d, row, true, HERE); }
}
