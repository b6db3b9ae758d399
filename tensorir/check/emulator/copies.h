// Copies of tiles of arrays that an asynchronous unit makes (TMA), after the PTX ISA and the notes on cuTensorMapEncode.
//
// A load fills its place with 0xFF when it is issued. It lands, in any order, when no thread can go on without it, or earlier
// where the launch is eager. A store reads its place when its thread waits for that, and reaches the array when the thread
// waits for that, or at the end of the block. What is used in between is used too early.
#pragma once

namespace {

const u32 MAP = 0x2070616d;  // "map ", with which emulate.py begins one
const u64 PIECE = 16;        // bytes that a swizzle moves together

// What Python fills: numbers of elements, innermost first. Of a box every steps-th element is in the tile, from the first on.
// pixels: of (c, w, h, n), box[0] channels of box[1] pixels are in the tile, from one to the next along w, then h, then n,
// by steps, within lower and the image's last one + upper (w, h). What is read is offset from there (im2col mode).
// rounded: floats are rounded to 10 bits of mantissa as they are loaded, to nearest, halves to even.
struct TensorMap {
  u32 magic, rank, itemsize, swizzle;
  u64 address;
  u32 shape[5], box[5], steps[5], rounded;
  int pixels, lower[2], upper[2];

  u32 tile(u32 d) const { return (box[d] + steps[d] - 1) / steps[d]; }
  int last(int side) const { return (int)shape[side + 1] - 1 + upper[side]; }
};

struct Tile {
  TensorMap map;
  int corner[5], offset[2];
  int site;    // of what is done to shared memory
  int around;  // of what is done to global memory
};

struct Load {
  Tile tile;
  u8 *to;
  Barrier *barrier;
  std::vector<u32> seen, fenced;  // of the thread that issued it
};

struct StoreUnderWay {
  Tile tile;
  const u8 *from;
  std::vector<u8> bytes;  // once they are read
};

struct Stores {
  std::vector<StoreUnderWay> gathered;  // no group yet
  std::deque<std::vector<StoreUnderWay>> groups;
};

std::vector<Load> loads;
std::map<int, Stores> stores;  // of each thread

u64 tile_bytes(const TensorMap &m) {
  u64 size = m.itemsize;
  if (m.pixels) return size * m.box[0] * m.box[1];
  for (u32 d = 0; d < m.rank; d++) size *= m.tile(d);
  return size;
}

// By the address itself, so what is swizzled begins at multiples of 8 (4, 2) rows of 128 bytes. The bits are those of the
// address on a device too: the image is loaded at a multiple of 1024.
u64 swizzled(u64 address, u32 span) { return address ^ (address >> 7 & (span / PIECE - (span ? 1 : 0))) << 4; }

template <class Each> void each_pixel(const Tile &t, Each each) {
  const TensorMap &m = t.map;
  long long first = std::max(0, t.corner[0]), end = std::min((long long)t.corner[0] + m.box[0], (long long)m.shape[0]);
  long long at[3] = {t.corner[1], t.corner[2], t.corner[3]};
  for (u64 pixel = 0; pixel < m.box[1]; pixel++) {
    bool inside = first < end && at[2] >= 0 && at[2] < (long long)m.shape[3];
    long long x[2];
    for (int side = 0; side < 2; side++) {
      x[side] = at[side] + t.offset[side];
      inside = inside && x[side] >= 0 && x[side] < (long long)m.shape[side + 1];
    }
    long long element = (((at[2] * m.shape[2] + x[1]) * m.shape[1] + x[0]) * m.shape[0] + first);
    if (inside)
      each(pixel * m.box[0] * m.itemsize + (u64)(first - t.corner[0]) * m.itemsize, (u8 *)m.address + element * m.itemsize,
           (u64)(end - first) * m.itemsize);
    for (int side = 0; side < 3; side++) {
      at[side] += m.steps[side + 1];
      if (side == 2 || at[side] <= m.last(side)) break;
      at[side] = m.lower[side];
    }
  }
}

// each(offset in the tile, address in the array, bytes) for the part of each row of the tile that lies in the array.
template <class Each> void each_row(const Tile &t, Each each) {
  const TensorMap &m = t.map;
  if (m.pixels) return each_pixel(t, each);
  u64 row_bytes = (u64)m.box[0] * m.itemsize, rows = tile_bytes(m) / row_bytes;
  long long first = std::max(0, t.corner[0]), end = std::min((long long)t.corner[0] + m.box[0], (long long)m.shape[0]);
  for (u64 row = 0; row < rows; row++) {
    u64 rest = row, size = m.shape[0];
    long long element = 0;
    bool inside = first < end;
    for (u32 d = 1; d < m.rank; d++) {
      long long x = t.corner[d] + (long long)(rest % m.tile(d)) * m.steps[d];
      rest /= m.tile(d);
      inside = inside && x >= 0 && x < (long long)m.shape[d];
      element += x * (long long)size;
      size *= m.shape[d];
    }
    if (inside)
      each(row * row_bytes + (u64)(first - t.corner[0]) * m.itemsize,
           (u8 *)m.address + (element + first) * m.itemsize, (u64)(end - first) * m.itemsize);
  }
}

template <class Each> void each_cell(const u8 *from, u64 size, Each each) {
  u64 first = shared_offset(from);
  for (u64 g = first >> W.granule; g <= (first + size - 1) >> W.granule; g++) each(g);
}

Global *array_of(const u8 *address) {
  for (Global &b : W.globals)
    if (address >= b.first && address < b.end) return &b;
  return nullptr;
}

void cost(int id, u64 address, u64 bytes) {
  Site &s = W.sites[id];
  s.requests++;
  s.lanes++;
  s.units += (address + bytes - 1) / 32 - address / 32 + 1;
  s.ideal += (bytes + 31) / 32;
}

// A copy begins at a pixel between the corners, and reads 0 to 255 rows and columns from there.
void need_pixels(const Tile &t, const void *at) {
  for (int side = 0; side < 2; side++) {
    const char *what = side ? "row" : "column";
    if (t.offset[side] < 0 || t.offset[side] > 255)
      problem("tma.pixels", at, nullptr, "thread %d copies pixels %d %ss from where they are; 0 to 255 can be told",
              W.current->number, t.offset[side], what);
    if (t.corner[side + 1] < t.map.lower[side] || t.corner[side + 1] > t.map.last(side))
      problem("tma.pixels", at, nullptr, "thread %d copies pixels from %s %d on, and those of its map are in %d to %d",
              W.current->number, what, t.corner[side + 1], t.map.lower[side], t.map.last(side));
  }
}

// Both ends of the copy, looked at when it is issued: behind this all of it is known to be there.
Tile tile_of(const void *map, const void *place, int rank, const int *corner, const int *offset, bool loads, const void *at) {
  Fiber *f = W.current;
  Tile t;
  std::memcpy(&t.map, map, sizeof t.map);
  const TensorMap &m = t.map;
  if (m.magic != MAP || (int)m.rank != rank) {
    problem("tma.map", at, nullptr, "thread %d gives %d coordinates for a map of %d dimensions", f->number, rank,
            m.magic == MAP ? (int)m.rank : 0);
    give_up();
  }
  if ((m.pixels != 0) != (offset != nullptr)) {
    problem("tma.map", at, nullptr, "thread %d copies %s by a map of %s", f->number, offset ? "pixels" : "a box",
            offset ? "boxes" : "pixels");
    give_up();
  }
  for (int d = 0; d < 5; d++) t.corner[d] = d < rank ? corner[d] : 0;
  for (int side = 0; side < 2; side++) t.offset[side] = offset ? offset[side] : 0;
  if (offset) need_pixels(t, at);
  u64 size = tile_bytes(m);
  if ((u64)place % 128)
    problem("memory.misaligned", at, nullptr, "thread %d copies a tile %s shared memory at no multiple of 128 bytes",
            f->number, loads ? "to" : "from");
  if (!in_shared(place, size)) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d copies a tile of %llu bytes %s a place that is not in shared "
            "memory", f->number, (unsigned long long)size, loads ? "to" : "from");
    give_up();
  }
  off_barriers((const u8 *)place, size, at);
  t.site = site(at, loads ? WRITE_SHARED : READ_SHARED, (unsigned)PIECE);
  t.around = site(at, loads ? READ_GLOBAL : WRITE_GLOBAL, m.box[0] * m.itemsize);
  each_row(t, [&](u64, u8 *address, u64 bytes) {
    Global *b = array_of(address);
    if (!b || address + bytes > b->end) {
      problem("memory.out-of-bounds", at, nullptr, "thread %d copies a tile that is not in the array of its map",
              f->number);
      give_up();
    }
    if (W.count && !f->rank) cost(t.around, (u64)address, bytes);
    if (loads) watch_global(f, *b, (u64)(address - b->first), (unsigned)bytes, false, t.around);
  });
  return t;
}

bool known_to_units(const Fiber *f, const Cell &c) {
  return c.by_copy || c.writer < 0 || (c.writer < (int)f->fenced.size() && f->fenced[c.writer] >= c.write_clock);
}

void no_fence(const Fiber *f, const Cell &c, u64 g, const char *what, const void *at) {
  problem("fence.async", at, W.sites[c.write_site].at, "%s byte %llu of shared memory, which %s wrote, and no "
          "tir_async_fence of that thread is between (thread %d)", what, in_block(g << W.granule), who(c.writer).c_str(),
          f->number);
}

// A product or a store begins to read a cell for `f`. wanted: what it reads there goes anywhere
void read_by_unit(Fiber *f, u64 g, const char *what, int id, bool wanted = true) {
  Cell &c = W.cells[g];
  u64 offset = g << W.granule;
  if (c.in_flight) {
    too_early(f, c, id, false, offset);
    return;
  }
  if (wanted && !c.initialised)
    problem("memory.uninitialised", W.sites[id].at, nullptr, "%s byte %llu of shared memory, which was never written", what,
            in_block(offset));
  if (c.writer >= 0 && !before(f, c.writer, c.write_clock))
    race(f, id, "shared memory", offset, c.writer, c.write_site);
  else if (!known_to_units(f, c))
    no_fence(f, c, g, what, W.sites[id].at);
}

void land(const Load &l) {
  u64 size = tile_bytes(l.tile.map);
  std::vector<u8> bytes(size, 0);
  each_row(l.tile, [&](u64 offset, const u8 *from, u64 count) { std::memcpy(bytes.data() + offset, from, count); });
  for (u64 k = 0; l.tile.map.rounded && k < size; k += 4) {
    u32 u;
    std::memcpy(&u, bytes.data() + k, 4);
    if ((u & 0x7f800000) != 0x7f800000) u = (u + 0xfff + (u >> 13 & 1)) & ~0x1fffu;
    std::memcpy(bytes.data() + k, &u, 4);
  }
  for (u64 k = 0; k < size; k += PIECE)
    std::memcpy((u8 *)swizzled((u64)(l.to + k), l.tile.map.swizzle), bytes.data() + k, PIECE);
  each_cell(l.to, size, [&](u64 g) {
    Cell &c = W.cells[g];
    c.in_flight = false;
    c.initialised = c.by_copy = true;
    c.writer = l.barrier->agent;
    c.write_clock = l.barrier->phase + 1;
  });
  join(l.barrier->seen, l.seen);
  join(l.barrier->fenced, l.fenced);
  l.barrier->bytes -= (long long)size;
  l.barrier->landed = l.barrier->phase + 1;
  l.barrier->landed_at = W.sites[l.tile.site].at;
  advance(*l.barrier);
}

bool deliver() {
  if (loads.empty()) return false;
  std::swap(loads[random_number() % loads.size()], loads.back());
  Load l = std::move(loads.back());
  loads.pop_back();
  land(l);
  return true;
}

void issue(const Tile &t, u8 *to, Barrier *b, const void *at) {
  Fiber *f = W.current;
  u64 size = tile_bytes(t.map);
  each_cell(to, size, [&](u64 g) {
    Cell &c = W.cells[g];
    if (!c.in_flight && c.writer >= 0 && before(f, c.writer, c.write_clock) && !known_to_units(f, c))
      no_fence(f, c, g, "a copy overwrites", at);
    write_shared(f, g, t.site, g << W.granule);
    c.in_flight = true;
  });
  std::memset(to, 0xff, size);
  loads.push_back({t, to, b, f->seen, f->fenced});
}

// One copy for each block of `mask`: to the same place there, for the same barrier there.
void load(void *to, const void *map, const void *barrier, u32 mask, int rank, const int *corner, const int *offset,
          const void *at) {
  Fiber *f = W.current;
  Barrier *own[MOST_BLOCKS] = {nullptr};
  for (int block = 0; block < W.cluster; block++)
    if (mask >> block & 1) own[block] = barrier_at(barrier, block, "copies for", true, at);
  Tile t = tile_of(map, to, rank, corner, offset, true, at);
  bool any = false;
  for (int block = 0; block < W.cluster; block++)
    if (own[block]) {
      issue(t, (u8 *)to + (block - f->rank) * (long long)W.stride, own[block], at);
      any = true;
    }
  if (!any) return;
  f->clock++;  // what the thread does from here on is not ordered before the landing
  f->seen[f->id] = f->clock;
}

void store(const void *map, const void *from, int rank, const int *corner, const void *at) {
  Fiber *f = W.current;
  Tile t = tile_of(map, from, rank, corner, nullptr, false, at);
  std::vector<bool> wanted(W.cells.size(), false);  // what lies beyond the array is read, and goes nowhere
  each_row(t, [&](u64 offset, u8 *, u64 bytes) {
    for (u64 k = offset / PIECE * PIECE; k < offset + bytes; k += PIECE) {
      u64 first = std::max(k, offset), end = std::min(k + PIECE, offset + bytes);
      const u8 *piece = (const u8 *)swizzled((u64)from + k, t.map.swizzle);
      each_cell(piece + (first - k), end - first, [&](u64 g) { wanted[g] = true; });
    }
  });
  each_cell((const u8 *)from, tile_bytes(t.map), [&](u64 g) {
    read_by_unit(f, g, "a store reads", t.site, wanted[g]);
    W.cells[g].read_site = t.site;
    W.cells[g].pinned++;
  });
  stores[f->id].gathered.push_back({t, (const u8 *)from, {}});
}

void read_source(Fiber *f, StoreUnderWay &s) {
  if (!s.bytes.empty()) return;
  s.bytes.resize(tile_bytes(s.tile.map));
  for (u64 k = 0; k < s.bytes.size(); k += PIECE)
    std::memcpy(s.bytes.data() + k, (u8 *)swizzled((u64)(s.from + k), s.tile.map.swizzle), PIECE);
  each_cell(s.from, s.bytes.size(), [&](u64 g) {
    W.cells[g].pinned--;
    read_cell(f, W.cells[g], s.tile.site, "shared memory", g << W.granule);
  });
}

void write_array(Fiber *f, const StoreUnderWay &s) {
  each_row(s.tile, [&](u64 offset, u8 *to, u64 count) {
    Global *b = array_of(to);
    watch_global(f, *b, (u64)(to - b->first), (unsigned)count, true, s.tile.around);
    if (b->writable) std::memcpy(to, s.bytes.data() + offset, count);
  });
}

void start_copies() {
  loads.clear();
  stores.clear();
  barriers.clear();
  for (int rank = 0; rank < W.cluster; rank++)
    for (Meeting &m : meetings[rank]) m = Meeting();
}

// The blocks have ended: what is under way has lost its shared memory.
void end_copies() {
  auto number = [](const void *p) { return W.block_number + rank_at(shared_offset(p)); };
  for (const Load &l : loads)
    problem("memory.unfinished", W.sites[l.tile.site].at, nullptr, "block %d ends while a copy to byte %llu of its shared "
            "memory is under way", number(l.to), byte_of(l.to));
  for (auto &entry : barriers) {
    const Barrier &b = entry.second;
    bool waited = !b.landed;
    for (const Fiber *f : W.blocks[b.maker->rank]) waited |= f->seen[b.agent] >= b.landed;
    if (!waited)
      problem("memory.unfinished", b.landed_at, nullptr, "block %d ends and no thread has waited for a copy that the barrier "
              "at byte %llu of shared memory counts", number(entry.first), byte_of(entry.first));
  }
  for (auto &entry : stores) {
    W.current = W.fibers[entry.first];
    entry.second.groups.push_back(entry.second.gathered);
    for (auto &group : entry.second.groups)
      for (StoreUnderWay &s : group) {
        if (s.bytes.empty())
          problem("memory.unfinished", W.sites[s.tile.site].at, nullptr, "thread %d ends while its store still reads byte "
                  "%llu of shared memory", W.current->number, byte_of(s.from));
        read_source(W.current, s);
        write_array(W.current, s);
      }
  }
  W.current = nullptr;
}

}  // namespace

extern "C" {
// offset: of pixels, null for a box
void tir_tma_load_tile(void *to, const void *map, unsigned long long *barrier, int rank, const int *corner, const int *offset) {
  load(to, map, barrier, 1u << W.current->rank, rank, corner, offset, HERE);
}

void tir_tma_multicast_tile(void *to, const void *map, unsigned long long *barrier, int mask, int rank, const int *corner,
                            const int *offset) {
  if (mask <= 0 || mask >> W.cluster) {
    problem("cluster.rank", HERE, nullptr, "thread %d copies a tile for the blocks of mask %d: a cluster of %d blocks has "
            "the masks 1 to %d", W.current->number, mask, W.cluster, (1 << W.cluster) - 1);
    give_up();
  }
  load(to, map, barrier, (u32)mask, rank, corner, offset, HERE);
}

void tir_tma_store_tile(const void *map, const void *from, int rank, const int *corner) {
  store(map, from, rank, corner, HERE);
}

void tir_commit_stores() {
  Stores &s = stores[W.current->id];
  s.groups.push_back(std::move(s.gathered));
  s.gathered.clear();
}

void tir_wait_stores_but(int pending, int done) {
  Stores &s = stores[W.current->id];
  int left = (int)s.groups.size() - pending;
  for (int k = 0; k < left; k++)
    for (StoreUnderWay &one : s.groups[k]) read_source(W.current, one);
  for (int k = 0; done && k < left; k++) {
    for (const StoreUnderWay &one : s.groups.front()) write_array(W.current, one);
    s.groups.pop_front();
  }
}
}
