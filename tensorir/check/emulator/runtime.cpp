// Runs CUDA threads as fibers of one CPU thread, a block or a cluster of blocks at a time, and watches every access they
// make.
//
// A program, compiled once, that loads the kernels: process.h. They are compiled with -fsanitize=thread, without the
// sanitizer's own library: the hooks below stand in for it. Fibers switch only where a thread waits, so between two waits a thread runs
// alone; whether two accesses are ordered is told by vector clocks (Flanagan and Freund, "FastTrack: efficient and precise
// dynamic race detection", PLDI 2009), not by the order in which the fibers happened to run.
//
// Counted for each place in the text, on the first block that runs: requests of a warp, shared-memory wavefronts (a bank
// gives 4 bytes each; 8-byte requests go by half warps, 16-byte ones by quarters) and sectors of 32 bytes of global
// memory, each beside the least that the bytes asked for would take.
#include "world.h"
#include "fibers.h"
#include "counts.h"
#include "watch.h"

// --- arithmetic that rounds otherwise than to nearest

namespace {

uint16_t to_half(double x);  // instructions.h

struct Rounding {  // as long as it is there
  int before = std::fegetround();
  explicit Rounding(char mode) {
    std::fesetround(mode == 'z' ? FE_TOWARDZERO : mode == 'u' ? FE_UPWARD : mode == 'd' ? FE_DOWNWARD : FE_TONEAREST);
  }
  ~Rounding() { std::fesetround(before); }
};

template <class T> T rounded(char what, char mode, T x, T y, T z) {
  Rounding at(mode);
  volatile T a = x, b = y, c = z, out = 0;
  if (what == '+') out = a + b;
  if (what == '-') out = a - b;
  if (what == '*') out = a * b;
  if (what == '/') out = a / b;
  if (what == 's') out = std::sqrt((T)a);
  if (what == 'f') out = std::fma((T)a, (T)b, (T)c);
  return out;
}

}  // namespace

// --- what the text calls

extern "C" {
Index tir_thread_index() { return W.current->thread; }
Index tir_block_index() { return W.current->block; }
Index tir_block_size() { return W.block; }
Index tir_grid_size() { return W.grid; }

// n: the value of a condition that encloses what a warp runs together, or the number of a place that runs it
void tir_took_one(u64 n) { W.current->path = (W.current->path ^ n) * 0x9E3779B97F4A7C15ull + 1; }

// turns.h: the loops that a thread is in, by their numbers from 1. One that it has left otherwise than at its end is
// forgotten at the next turn of a loop around it.
int tir_begin_loop() {
  Fiber *f = W.current;
  if (!f || !W.count) return 1;
  f->loops.push_back({f->turn, 0});
  return (int)f->loops.size();
}
void tir_next_turn(int loop) {
  Fiber *f = W.current;
  W.turned_at = (u8 *)__builtin_return_address(0);
  if (!f || !W.count) return;
  f->loops.resize(loop);
  f->turn = mixed(f->loops.back().around, ++f->loops.back().turn);
}
void tir_end_loop(int loop) {
  Fiber *f = W.current;
  if (!f || !W.count) return;
  f->turn = f->loops[loop - 1].around;
  f->loops.resize(loop - 1);
}

// Lanes that run something together have come to it by the same branches, in the same turns of loops.
static void same_path(const Fiber *f, bool first, u64 &path, const void *at) {
  if (first) path = f->path;
  if (path != f->path)
    problem("warp.divergent", at, nullptr, "thread %d comes here by another branch, or in another turn of a loop, than others "
            "of its warp", f->number);
}

// Barriers are aligned instructions: all lanes of a warp come to the same one before any goes on.
static void same_place(const Fiber *f, const void *at) {
  auto &place = W.aligned[f->warp];
  int lanes = std::min(WARP, W.threads - (f->number - f->lane));
  same_path(f, !place.second, W.aligned_path[f->warp], at);
  if (!place.second) place.first = at;
  if (place.first != at)  // Python forgets it where both are one line, which the compiler has copied
    problem("warp.divergent", at, place.first, "thread %d comes to a barrier, others of its warp to another one", f->number);
  place.second = (place.second + 1) % lanes;
}

void tir_sync_block() {
  Fiber *f = W.current;
  same_place(f, HERE);
  if (++W.at_barrier[f->rank] < W.threads) {
    wait(WAITS_BLOCK, HERE);
    return;
  }
  W.at_barrier[f->rank] = 0;
  if (W.count && !f->rank) settle_all();
  meet(W.blocks[f->rank]);
  wake_others(W.blocks[f->rank]);
}

static std::vector<Fiber *> warp_of(const Fiber *f) {
  auto block = W.blocks[f->rank].begin();
  int first = f->number - f->lane;
  return {block + first, block + std::min(first + WARP, W.threads)};
}

// what: the same for lanes that may meet, one line of the text or not: they read what others of them brought.
// orders: what each did before is ordered before what others do next; instructions that only exchange registers do not.
static void sync_warp(const void *at, const void *what, bool orders = false) {
  Fiber *f = W.current;
  const void *&place = W.warp_at[f->warp], *&kind = W.warp_what[f->warp];
  if (!W.at_warp[f->warp]) place = at, kind = what;
  if (place != at)  // Python forgets it where both are one line, which the compiler has copied
    problem("warp.divergent", at, place, "thread %d runs what a warp runs together, others of its warp another line",
            f->number);
  if (kind != what) {  // also where that is one line
    problem("warp.divergent", at, nullptr, "thread %d and others of its warp run different instructions of a warp",
            f->number);
    give_up();
  }
  same_path(f, !W.at_warp[f->warp], W.warp_path[f->warp], at);
  if (++W.at_warp[f->warp] < std::min(WARP, W.threads - (f->number - f->lane))) {
    wait(WAITS_WARP, at);
    return;
  }
  W.at_warp[f->warp] = 0;
  std::vector<Fiber *> warp = warp_of(f);
  if (orders) meet(warp);
  for (Fiber *g : warp)
    if (g != f) wake(g);
}

// All lanes of the warp take part here; a device waits for those that the mask names, and is right about the others by
// chance.
static void need_lanes(unsigned mask, const void *at) {
  const Fiber *f = W.current;
  int lanes = std::min(WARP, W.threads - (f->number - f->lane));
  unsigned all = lanes == WARP ? ~0u : (1u << lanes) - 1;
  if ((mask & all) != all)
    problem("warp.divergent", at, nullptr, "thread %d names the lanes %08x, and %d lanes of its warp take part", f->number,
            mask, lanes);
}

void tir_sync_warp(unsigned mask) {
  need_lanes(mask, HERE);
  sync_warp(HERE, (const void *)tir_sync_warp, true);
}

void *tir_copy_bytes(void *to, const void *from, size_t n) {
  access_bytes(from, n, false, HERE);
  access_bytes(to, n, true, HERE);
  return std::memmove(to, from, n);
}
void *tir_fill_bytes(void *to, int byte, size_t n) {
  access_bytes(to, n, true, HERE);
  return std::memset(to, byte, n);
}

float tir_rounded_float(char what, char mode, float a, float b, float c) {
  return rounded(what, mode, a, b, c);
}
double tir_rounded_double(char what, char mode, double a, double b, double c) {
  return rounded(what, mode, a, b, c);
}
float tir_narrowed(char mode, double x) {
  Rounding at(mode);
  volatile double from = x;
  volatile float to = (float)from;
  return to;
}
double tir_whole(char mode, double x) {
  Rounding at(mode);
  volatile double from = x, to = std::nearbyint(from);
  return to;
}
uint16_t tir_rounded_half(char mode, float x) {
  bool inward = mode == 'z' || (mode == 'u' ? x < 0 : mode == 'd' && x > 0);
  Rounding at(mode == 'n' ? 'n' : inward ? 'z' : 'u');  // to_half rounds the number without its sign
  uint16_t found = to_half(x);
  return inward && (found & 0x7fff) == 0x7c00 && !std::isinf(x) ? found - 1 : found;  // no infinity that was none
}

void tir_unset(void *room, size_t size) { std::memset(room, 0xff, size); }

float tir_add_float(float *p, float v) {
  access(p, 4, true, HERE, true);
  float old = *p;
  *p = old + v;
  return old;
}

u32 tir_add_word(u32 *p, u32 v) {
  access(p, 4, true, HERE, true);
  u32 old = *p;
  *p = old + v;
  return old;
}

uint32_t tir_shuffle(uint32_t value, int lane, int how, unsigned mask, int width) {
  need_lanes(mask, HERE);
  Fiber *f = W.current;
  int first = f->id - f->lane, by = lane & (WARP - 1);  // five bits of it count
  int base = f->lane & -width;  // of the lane's own segment of the warp
  int from = how == 0 ? base + (by & (width - 1)) : how == 1 ? f->lane ^ by : how == 2 ? f->lane + by : f->lane - by;
  W.shuffled[f->id] = value;
  sync_warp(HERE, (const void *)tir_shuffle);
  if (from >= base + width || (how == 3 && from < base)) from = f->lane;  // a lane that no warp, or its segment, has: its own
  bool there = f->number - f->lane + from < W.threads;
  uint32_t got = there ? W.shuffled[first + from] : ~0u;  // of a thread that the block lacks: whatever it is, a NaN here
  sync_warp(HERE, (const void *)tir_shuffle);
  return got;
}

// --- the hooks of -fsanitize=thread

#define HOOKS(n) \
  void __tsan_read##n(void *p) { aligned_access(p, n, false, HERE); } \
  void __tsan_write##n(void *p) { aligned_access(p, n, true, HERE); } \
  void __tsan_unaligned_read##n(void *p) { access(p, n, false, HERE); } \
  void __tsan_unaligned_write##n(void *p) { access(p, n, true, HERE); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void *p, size_t n) { access(p, (unsigned)n, false, HERE); }
void __tsan_write_range(void *p, size_t n) { access(p, (unsigned)n, true, HERE); }
// Clang calls these for memset and its like, what it fills and copies of its own accord as well.
void *__tsan_memset(void *to, int byte, size_t n) {
  access(to, (unsigned)n, true, HERE);
  return std::memset(to, byte, n);
}
void *__tsan_memcpy(void *to, const void *from, size_t n) {
  access(from, (unsigned)n, false, HERE);
  access(to, (unsigned)n, true, HERE);
  return std::memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n) {
  access(from, (unsigned)n, false, HERE);
  access(to, (unsigned)n, true, HERE);
  return std::memmove(to, from, n);
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void *) {}
void __tsan_vptr_update(void *, void *) {}

// Arrays that the text declares, which -fsanitize=bounds,object-size watches: those in registers lie on the stack, where
// nothing else would notice. The structures are those that the compilers agreed on for their sanitizer's library.
struct tir_type { uint16_t kind, info; char name[1]; };
struct tir_where { const char *file; u32 line, column; };
struct tir_pointer_use { tir_where where; const tir_type *type; u8 align, kind; };  // align: log2 of bytes
struct tir_array_use { tir_where where; const tir_type *array, *index; };

void __ubsan_handle_out_of_bounds(tir_array_use *use, uintptr_t index) {
  if (!W.current) return;
  problem("memory.out-of-bounds", HERE, nullptr, "thread %d accesses element %lld of an array that is %s",
          W.current->number, (long long)(intptr_t)index, use->array->name);
  give_up();
}
void __ubsan_handle_type_mismatch_v1(tir_pointer_use *use, uintptr_t address) {
  if (!W.current) return;
  if (address & ((1ull << use->align) - 1))
    problem("memory.misaligned", HERE, nullptr, "thread %d accesses %s at no multiple of %llu bytes", W.current->number,
            use->type->name, 1ull << use->align);
  else
    problem("memory.out-of-bounds", HERE, nullptr, "thread %d leaves an array that the text declares", W.current->number);
  give_up();
}
}

// --- launches

// What a kernel is run with.
struct Launch {
  void (*entry)(void **);
  void **arguments;
  Index grid, block;
  int cluster;       // blocks of one, along x
  int begins;        // registers that a thread begins with; 0: what it asks for is ignored
  int granule;       // log2 of the bytes of a cell
  u64 own;           // bytes of arrays that a function has to itself
  bool eager;        // copies may land early
  u64 seed;
  u8 *shared;        // memory of a block's arrays
  u64 shared_size;
  const Listed *arrays;  // in it; none where not all are known
  u64 count;
};

static void watch_array(u8 *first, u64 size, const char *name, bool writable, int granule) {
  Global b{first, first + size, name, writable, {}, {}, {}, {}, {}, -1};
  if (writable) {
    b.written.assign(size, 0);
    b.last_block.assign((size >> granule) + 1, -1);
    b.read_block.assign((size >> granule) + 1, -1);
    b.added.assign((size >> granule) + 1, 0);
  }
  W.globals.push_back(b);
  std::sort(W.globals.begin(), W.globals.end(), [](const Global &a, const Global &c) { return a.first < c.first; });
}

// A kernel has ended: the next one may read what it wrote.
static void forget_blocks() {
  for (Global &b : W.globals) {
    std::fill(b.last_block.begin(), b.last_block.end(), -1);
    std::fill(b.read_block.begin(), b.read_block.end(), -1);
    std::fill(b.added.begin(), b.added.end(), 0);
    b.cells_of = -1;
  }
}

// A block, or the blocks of a cluster, from the first one's number on.
static void start_blocks(int number) {
  W.block_number = number;
  std::memset(W.at_barrier, 0, sizeof W.at_barrier);
  W.at_cluster = 0;
  W.at_warp.assign(W.cluster * W.warps, 0);
  W.warp_at.assign(W.cluster * W.warps, nullptr);
  W.warp_what.assign(W.cluster * W.warps, nullptr);
  W.aligned.assign(W.cluster * W.warps, {nullptr, 0});
  W.warp_path.assign(W.cluster * W.warps, 0);
  W.aligned_path.assign(W.cluster * W.warps, 0);
  W.ready.clear();
  W.late.clear();
  W.lag = W.eager ? random_number() % 3 : 0;
  if (W.shared) std::memset(W.shared, 0xff, (size_t)(W.shared_end - W.shared));  // NaN, -1
  clear(W.cells, ((size_t)(W.shared_end - W.shared) >> W.granule) + 1);
  for (int rank = 0; rank < W.cluster; rank++)
    for (const auto &gap : W.gaps)
      for (u64 b = gap.first; b < gap.second; b += 1 << W.granule) W.cells[(rank * W.stride + b) >> W.granule].nobodys = true;
  W.taken.clear();
  W.agents = (int)W.fibers.size();
  W.agent_names.clear();
  W.fences = false;
  start_units();
  std::vector<int> order;
  for (Fiber *f : W.fibers) {
    f->state = READY;
    f->clock = 1;
    f->turn = f->path = 0;
    f->loops.clear();
    f->seen.assign(W.fibers.size(), 0);
    f->seen[f->id] = 1;
    f->fenced.clear();
    f->leaving.clear();
    f->groups.clear();
    unsigned n = (unsigned)(number + f->rank);
    f->block = {n % W.grid.x, n / W.grid.x % W.grid.y, n / (W.grid.x * W.grid.y)};
    begin(f);
    order.push_back(f->id);
  }
  for (size_t k = order.size(); k > 1; k--) std::swap(order[k - 1], order[random_number() % k]);
  for (int id : order) W.ready.push_back(id);
}

// The blocks of a cluster have memory of their own beside what the text declares, and as it is aligned.
static void place_shared(u8 *image, u64 size) {
  W.image = image;
  W.shared_size = size;
  W.stride = W.cluster == 1 ? size : (size + 1023) / 1024 * 1024 + BETWEEN_SHARED;
  u64 all = W.cluster == 1 ? size : W.cluster * W.stride;
  W.shared = size ? image : nullptr;
  if (size && W.cluster > 1)
    W.shared = (u8 *)mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  W.shared_end = W.shared + (size ? all : 0);
}

// What lies between the arrays of shared memory, in whole cells.
static void find_gaps(const Listed *listed, u64 arrays) {
  W.gaps.clear();
  if (!arrays) return;
  std::vector<std::pair<u64, u64>> owned;
  for (u64 n = 0; n < arrays; n++) {
    u64 first = (u64)(listed[n].at - W.image);
    owned.push_back({first, first + listed[n].size});
  }
  owned.push_back({W.shared_size, W.shared_size});
  std::sort(owned.begin(), owned.end());
  u64 done = 0, cell = 1 << W.granule;
  for (const auto &one : owned) {
    u64 from = (done + cell - 1) / cell * cell, to = one.first / cell * cell;
    if (from < to) W.gaps.push_back({from, to});
    done = std::max(done, one.second);
  }
}

static void launch_kernel(const Launch &k) {
  W.entry = k.entry;
  W.arguments = k.arguments;
  W.grid = k.grid;
  W.block = k.block;
  W.threads = (int)(k.block.x * k.block.y * k.block.z);
  W.granule = k.granule;
  W.eager = k.eager;
  W.cluster = k.cluster;
  W.stack = STACK + (k.own + 4095) / 4096 * 4096;
  W.warps = (W.threads + WARP - 1) / WARP;
  W.begins = k.begins;
  place_shared(k.shared, k.shared_size);
  find_gaps(k.arrays, k.count);
  W.random = k.seed * 0x9E3779B97F4A7C15ull + 88172645463325252ull;
  W.stop = false;
  W.shuffled.assign(W.cluster * W.threads, 0);
  W.together.clear();
  W.passes.assign(W.threads, {});
  W.open.assign(W.warps, {});
  W.blocks.assign(W.cluster, {});
  for (int n = 0; n < W.cluster * W.threads; n++) {
    Fiber *f = new Fiber;
    f->stack = (u8 *)mmap(nullptr, W.stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    f->id = n;
    f->rank = n / W.threads;
    f->number = n % W.threads;
    f->warp = f->rank * W.warps + f->number / WARP;
    f->lane = f->number % WARP;
    unsigned i = (unsigned)f->number;
    f->thread = {i % k.block.x, i / k.block.x % k.block.y, i / (k.block.x * k.block.y)};
    W.fibers.push_back(f);
    W.blocks[f->rank].push_back(f);
  }
  forget_blocks();
  int blocks = (int)(k.grid.x * k.grid.y * k.grid.z);
  for (int number = 0; number < blocks && !W.stop; number += W.cluster) {
    W.count = number == 0;
    start_blocks(number);
    W.current = nullptr;
    int first = W.ready.front();
    W.ready.pop_front();
    enter(W.fibers[first]);
    W.current = nullptr;
    if (!W.stop) end_units();
    compare_overwrites();
    if (W.count) settle_all();
  }
  for (Fiber *f : W.fibers) {
    munmap(f->stack, W.stack);
    if (f->touched) munmap(f->touched, W.stack);
    delete f;
  }
  W.fibers.clear();
  W.blocks.clear();
  if (W.shared && W.cluster > 1) munmap(W.shared, (size_t)(W.shared_end - W.shared));
}

#include "instructions.h"
#include "barriers.h"
#include "clusters.h"
#include "copies.h"
#include "wgmma.h"
#include "process.h"
