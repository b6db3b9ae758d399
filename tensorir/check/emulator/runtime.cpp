// Runs CUDA threads as fibers of one CPU thread, a block at a time, and watches every access they make.
//
// Compiled once, linked to each kernel. The kernel is compiled with -fsanitize=thread, without the sanitizer's own
// library: the hooks below stand in for it. Fibers switch only where a thread waits, so between two waits a thread runs
// alone; whether two accesses are ordered is told by vector clocks (Flanagan and Freund, "FastTrack: efficient and precise
// dynamic race detection", PLDI 2009), not by the order in which the fibers happened to run.
//
// Counted for each place in the text, on the first block that runs: requests of a warp, shared-memory wavefronts (a bank
// gives 4 bytes each; 8-byte requests go by half warps, 16-byte ones by quarters) and sectors of 32 bytes of global
// memory, each beside the least that the bytes asked for would take.
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#define HERE __builtin_return_address(0)

namespace {

const int WARP = 32;
const int WARPGROUP = 128;
const int MOST_WARPGROUPS = 8;
const size_t STACK = 128 << 10;
const int MOST_PROBLEMS = 50;
const int AROUND_SHARED = 2048;  // bytes before and behind it in the image; constants lie further away
const int MOST_TOGETHER = 64;  // bytes that a lane brings to an instruction of its warp

struct Index { unsigned x, y, z; };
enum State { READY, WAITS_BLOCK, WAITS_WARP, WAITS_SOME, WAITS_PHASE, WAITS_GROUP, DONE };
enum Access { READ_SHARED, WRITE_SHARED, READ_GLOBAL, WRITE_GLOBAL };
const char *const ACCESS[] = {"shared read", "shared write", "global read", "global write"};

// A copy from global to shared memory that is under way.
struct Flight {
  u8 *to;
  unsigned size;
  const void *at;
  u8 bytes[16];
};

struct Fiber {
  ucontext_t context;
  void *stack_pointer = nullptr;
  u8 *stack = nullptr;
  State state = READY;
  int id = 0, lane = 0;
  Index thread{}, block{};
  u32 clock = 0;          // counts this thread's releases
  std::vector<u32> seen;  // the clock of each thread, as far as it is ordered before now
  std::vector<u32> fenced;  // as `seen`: up to where what each thread wrote is ordered for the asynchronous units too
  const void *waits_at = nullptr, *waits_on = nullptr;
  int waits_for = 0;      // the parity, the number of the barrier
  u32 *touched = nullptr; // of each word of the stack: the fence of registers after which it was used last
  u32 fence = 0;          // fences of registers so far
  std::vector<Flight> leaving;  // no group yet
  std::deque<std::vector<Flight>> groups;
};

// Who touched a few bytes last. Readers beyond the first are kept in a vector of clocks.
struct Cell {
  u32 write_clock = 0, read_clock = 0;
  int writer = -1, reader = -1;  // agents of the block; writers of global memory from other blocks: see Global
  int write_site = 0, read_site = 0;
  std::vector<u32> *readers = nullptr;
  bool initialised = false, in_flight = false;
  bool by_copy = false;  // written by an asynchronous unit: for its like no fence is needed
  u16 pinned = 0;        // products and stores under way that read it
};

// When the products of each warpgroup had last read a cell.
struct Taken { u32 clock[MOST_WARPGROUPS] = {0}; };

struct Site {
  const void *at;
  Access kind;
  unsigned width;
  u64 requests = 0, lanes = 0, units = 0, ideal = 0;
};
struct Request { u32 lanes = 0; u64 address[WARP]; };
struct Queue { u64 first = 0; std::deque<Request> open; };

struct Global {
  u8 *first, *end;
  std::string name;
  bool writable;
  std::vector<u8> written;      // each byte, by any block
  std::vector<int> last_block;  // of each granule
  std::vector<Cell> cells;      // of each granule, for the block that runs
  int cells_of = -1;
};

struct World {
  Index grid, block;
  int threads = 0, granule = 2;  // log2 of the bytes of a cell
  int agents = 0;  // whose clocks are kept: the threads, then what copies into shared memory, then what reads it for products
  std::vector<std::string> agent_names;  // of those that are no threads
  u64 random = 0;
  bool count = false, fences = false;
  bool eager = false;  // copies may land before anyone must wait for them
  u32 lag = 0;         // of two threads at a barrier that counts, so many fall behind
  std::vector<Taken> taken;  // beside the cells, from the first product on
  int product_agent[MOST_WARPGROUPS] = {0};
  u8 *shared = nullptr;
  size_t shared_size = 0;
  std::vector<Cell> cells;
  std::vector<Fiber *> fibers;
  std::deque<int> ready, late;  // late: go on when no other can
  Fiber *current = nullptr;
  ucontext_t main_context;
  void *main_stack = nullptr;
  int at_barrier = 0, block_number = 0;
  std::vector<int> at_warp;
  std::vector<u32> shuffled;
  std::vector<u8> together, derived;
  std::vector<Global> globals;
  std::map<std::string, int> told;
  std::vector<std::string> problems;
  std::map<std::pair<const void *, Access>, int> site_of;  // an asynchronous copy reads and writes at one place
  std::vector<Site> sites;
  std::vector<std::unordered_map<int, u64>> passes;  // of each thread at each site
  std::unordered_map<u64, Queue> queues;             // requests of a warp at a site that not all lanes have made yet
  void (*entry)(void **) = nullptr;
  void **arguments = nullptr;
  bool stop = false;
} W;

// --- problems

std::string place(const void *at) {
  Dl_info info;
  char text[64] = "?";
  if (at && dladdr(at, &info)) snprintf(text, sizeof text, "@%lx", (unsigned long)((u8 *)at - (u8 *)info.dli_fbase) - 1);
  return text;
}

void problem(const char *code, const void *at, const void *other, const char *format, ...) {
  char text[512];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  std::string key = std::string(code) + "|" + place(at) + "|" + place(other);
  if (W.told[key]++ == 0 && (int)W.problems.size() < MOST_PROBLEMS) W.problems.push_back(key + "|" + text);
}

u32 random_number() {
  W.random ^= W.random << 13;
  W.random ^= W.random >> 7;
  W.random ^= W.random << 17;
  return (u32)(W.random >> 11);
}

// --- fibers

#if defined(__x86_64__)
extern "C" void tir_switch_stack(void **save, void *next);
asm(R"(
.text
.globl tir_switch_stack
.type tir_switch_stack,@function
tir_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tir_switch_stack,.-tir_switch_stack
)");
#define OWN_SWITCH 1
#endif

void leave();

void run_thread() {
  W.entry(W.arguments);
  W.current->state = DONE;
  leave();
  abort();
}

void begin(Fiber *f) {
#ifdef OWN_SWITCH
  void **top = (void **)(f->stack + STACK - 64);
  *--top = nullptr;  // the stack is aligned as after a call
  *--top = (void *)run_thread;
  for (int k = 0; k < 6; k++) *--top = nullptr;
  f->stack_pointer = top;
#else
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = STACK;
  f->context.uc_link = nullptr;
  makecontext(&f->context, run_thread, 0);
#endif
}

void enter(Fiber *to) {  // nullptr: back to the launch
  Fiber *from = W.current;
  W.current = to;
  if (from == to) return;
#ifdef OWN_SWITCH
  tir_switch_stack(from ? &from->stack_pointer : &W.main_stack, to ? to->stack_pointer : W.main_stack);
#else
  swapcontext(from ? &from->context : &W.main_context, to ? &to->context : &W.main_context);
#endif
}

void wake(Fiber *f) {
  f->state = READY;
  W.ready.push_back(f->id);
}

// barriers.h, copies.h, wgmma.h
void stuck();    // no thread can go on
bool deliver();  // a copy that is under way lands, if there is one
void start_units();
void end_units();
void off_barriers(const u8 *place, u64 size, const void *at);
void registers_used(Fiber *f, const u8 *address, unsigned width, bool write, const void *at);

void leave() {  // the thread waits or has ended: another goes on
  if (W.eager && random_number() % 4 == 0) deliver();
  bool waits = false;
  if (W.ready.empty())
    for (Fiber *f : W.fibers) waits |= f->state != DONE;
  while (waits && W.ready.empty()) {  // copies land as late as can be, but before threads that fall far behind
    bool first = !W.late.empty() && W.lag < 2 && random_number() % 2;
    if (!first && deliver()) continue;
    if (W.late.empty()) break;
    W.ready.push_back(W.late.front());
    W.late.pop_front();
  }
  if (W.ready.empty()) {
    if (waits) stuck();
    enter(nullptr);
    return;
  }
  int next = W.ready.front();
  W.ready.pop_front();
  enter(W.fibers[next]);
}

void wait(State state, const void *at) {
  W.current->state = state;
  W.current->waits_at = at;
  leave();
}

// What threads do at a barrier that counts may be slow: a kernel is right only if others can go on meanwhile.
void fall_behind() {
  if (random_number() % 2 >= W.lag) return;
  W.late.push_back(W.current->id);
  leave();
}

void join(std::vector<u32> &into, const std::vector<u32> &from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t k = 0; k < from.size(); k++) into[k] = std::max(into[k], from[k]);
}

// All of `those` have met: what each did is ordered before what any of them does next.
void meet(const std::vector<Fiber *> &those) {
  std::vector<u32> all(W.agents, 0), fenced;
  for (Fiber *f : those)
    for (int k = 0; k < W.agents; k++) all[k] = std::max(all[k], f->seen[k]);
  for (Fiber *f : those)
    if (W.fences) join(fenced, f->fenced);
  for (Fiber *f : those) {
    f->seen = all;
    if (W.fences) f->fenced = fenced;
    f->clock++;
    f->seen[f->id] = f->clock;
  }
}

// --- sites and counts

int site(const void *at, Access kind, unsigned width) {
  auto found = W.site_of.find({at, kind});
  if (found != W.site_of.end()) return found->second;
  int id = (int)W.sites.size();
  W.sites.push_back({at, kind, width});
  W.site_of[{at, kind}] = id;
  return id;
}

// Distinct items among `items`.
u64 distinct(std::vector<u64> &items) {
  std::sort(items.begin(), items.end());
  return (u64)(std::unique(items.begin(), items.end()) - items.begin());
}

// Wavefronts of one request to shared memory: the most words that one bank is asked for.
u64 wavefronts(const std::vector<u64> &addresses, unsigned width, u64 *ideal) {
  size_t together = width <= 4 ? 32 : width == 8 ? 16 : 8;
  u64 all = 0;
  *ideal = 0;
  for (size_t k = 0; k < addresses.size(); k += together) {
    std::vector<u64> words;
    for (size_t l = k; l < std::min(k + together, addresses.size()); l++)
      for (unsigned byte = 0; byte < width; byte += 4) words.push_back((addresses[l] + byte) / 4);
    words.resize(distinct(words));
    u64 bank[32] = {0}, most = 0;
    for (u64 w : words) most = std::max(most, ++bank[w % 32]);
    all += most;
    *ideal += (words.size() + 31) / 32;
  }
  return all;
}

u64 sectors(const std::vector<u64> &addresses, unsigned width, u64 *ideal) {
  std::vector<u64> found, bytes;
  for (u64 a : addresses) {
    for (u64 s = a / 32; s <= (a + width - 1) / 32; s++) found.push_back(s);
    bytes.push_back(a);
  }
  *ideal = (distinct(bytes) * width + 31) / 32;
  return distinct(found);
}

void settle(int id, const Request &r) {
  Site &s = W.sites[id];
  std::vector<u64> addresses;
  for (int l = 0; l < WARP; l++)
    if (r.lanes >> l & 1) addresses.push_back(r.address[l]);
  u64 ideal = 0;
  bool shared = s.kind == READ_SHARED || s.kind == WRITE_SHARED;
  s.units += shared ? wavefronts(addresses, s.width, &ideal) : sectors(addresses, s.width, &ideal);
  s.ideal += ideal;
  s.requests++;
  s.lanes += addresses.size();
}

// The n-th time that a lane comes by belongs to the n-th request of its warp.
void counted(Fiber *f, int id, u64 address) {
  u64 pass = W.passes[f->id][id]++;
  Queue &q = W.queues[(u64)id << 32 | (u32)(f->id / WARP)];
  while (q.first + q.open.size() <= pass) q.open.emplace_back();
  Request &r = q.open[pass - q.first];
  r.lanes |= 1u << f->lane;
  r.address[f->lane] = address;
  while (!q.open.empty() && q.open.front().lanes == 0xffffffffu) {
    settle(id, q.open.front());
    q.open.pop_front();
    q.first++;
  }
}

void settle_all() {
  for (auto &entry : W.queues)
    for (Request &r : entry.second.open)
      if (r.lanes) settle((int)(entry.first >> 32), r);
  W.queues.clear();
  for (auto &p : W.passes) p.clear();
}

// --- order

bool before(const Fiber *f, int agent, u32 clock) { return agent == f->id || f->seen[agent] >= clock; }

std::string who(int agent) {
  return agent < W.threads ? "thread " + std::to_string(agent) : W.agent_names[agent - W.threads];
}

int new_agent(const std::string &name) {
  W.agent_names.push_back(name);
  W.agents++;
  for (Fiber *f : W.fibers) f->seen.resize(W.agents, 0);
  return W.agents - 1;
}

// what `f` does at a site although `other` did something at another, and nothing orders the two
void race(const Fiber *f, int id, const char *memory, u64 offset, int other, int other_site) {
  auto shared = [](int s) { return W.sites[s].kind == READ_SHARED || W.sites[s].kind == WRITE_SHARED; };
  auto writes = [](int s) { return W.sites[s].kind == WRITE_SHARED || W.sites[s].kind == WRITE_GLOBAL; };
  problem(shared(id) ? "race.shared" : "race.global", W.sites[id].at, W.sites[other_site].at,
          "thread %d %s %s at byte %llu, which %s %s with no barrier between", f->id, writes(id) ? "writes" : "reads",
          memory, (unsigned long long)offset, who(other).c_str(), writes(other_site) ? "wrote" : "read");
}

void read_cell(Fiber *f, Cell &c, int id, const char *memory, u64 offset) {
  if (c.writer >= 0 && !before(f, c.writer, c.write_clock)) race(f, id, memory, offset, c.writer, c.write_site);
  if (c.reader < 0 || before(f, c.reader, c.read_clock)) {
    c.reader = f->id;
    c.read_clock = f->clock;
    c.read_site = id;
    return;
  }
  if (!c.readers) {
    c.readers = new std::vector<u32>(W.threads, 0);  // no other agent reads this way
    (*c.readers)[c.reader] = c.read_clock;
  }
  (*c.readers)[f->id] = f->clock;
  c.read_site = id;
}

void write_cell(Fiber *f, Cell &c, int id, const char *memory, u64 offset) {
  if (c.writer >= 0 && !before(f, c.writer, c.write_clock)) race(f, id, memory, offset, c.writer, c.write_site);
  int late = c.reader >= 0 && !before(f, c.reader, c.read_clock) ? c.reader : -1;
  for (int k = 0; c.readers && late < 0 && k < W.threads; k++)
    if ((*c.readers)[k] && !before(f, k, (*c.readers)[k])) late = k;
  if (late >= 0) race(f, id, memory, offset, late, c.read_site);
  delete c.readers;
  c.readers = nullptr;
  c.reader = -1;
  c.writer = f->id;
  c.write_clock = f->clock;
  c.write_site = id;
  c.initialised = true;
  c.by_copy = false;
}

// Shared memory is used although a copy into it, or a product or store that reads it, is under way.
void too_early(Fiber *f, const Cell &c, int id, bool write, u64 offset) {
  if (c.in_flight)
    problem("memory.in-flight", W.sites[id].at, W.sites[c.write_site].at, "thread %d %s byte %llu of shared memory while "
            "a copy to it is under way, which its thread has not waited for", f->id, write ? "writes" : "reads",
            (unsigned long long)offset);
  else
    problem("memory.in-flight", W.sites[id].at, W.sites[c.read_site].at, "thread %d writes byte %llu of shared memory, "
            "which a product or a store that is under way still reads", f->id, (unsigned long long)offset);
}

void write_shared(Fiber *f, u64 g, int id, u64 offset) {
  Cell &c = W.cells[g];
  if (c.in_flight || c.pinned) too_early(f, c, id, true, offset);
  write_cell(f, c, id, "shared memory", offset);
  if (W.taken.empty()) return;
  for (int w = 0; w < MOST_WARPGROUPS; w++) {
    u32 &clock = W.taken[g].clock[w];
    if (clock && f->seen[W.product_agent[w]] < clock) race(f, id, "shared memory", offset, W.product_agent[w], c.read_site);
    clock = 0;
  }
}

void clear(std::vector<Cell> &cells, size_t count) {
  for (Cell &c : cells) delete c.readers;
  cells.assign(count, Cell());
}

// The access would touch memory of the process itself: the run ends before it is made.
void give_up() {
  W.stop = true;
  enter(nullptr);
}

void shared_access(Fiber *f, u8 *address, unsigned width, bool write, const void *at) {
  int id = site(at, write ? WRITE_SHARED : READ_SHARED, width);
  u64 offset = (u64)(address - W.shared);
  off_barriers(address, width, at);
  if (W.count) counted(f, id, offset);
  for (u64 g = offset >> W.granule; g <= (offset + width - 1) >> W.granule; g++) {
    if (write) {
      write_shared(f, g, id, offset);
      continue;
    }
    Cell &c = W.cells[g];
    if (c.in_flight) too_early(f, c, id, false, offset);
    if (!c.initialised)
      problem("memory.uninitialised", at, nullptr, "thread %d reads byte %llu of shared memory, which was never written",
              f->id, (unsigned long long)offset);
    read_cell(f, c, id, "shared memory", offset);
  }
}

// An access that is known to lie inside `b`.
void watch_global(Fiber *f, Global &b, u64 offset, unsigned width, bool write, int id) {
  const void *at = W.sites[id].at;
  if (write && !b.writable) {
    problem("launch.input-written", at, nullptr, "thread %d writes byte %llu of %s, which is only read", f->id,
            (unsigned long long)offset, b.name.c_str());
    return;
  }
  if (!b.writable) return;
  if (b.cells_of != W.block_number) {
    clear(b.cells, ((size_t)(b.end - b.first) >> W.granule) + 1);
    b.cells_of = W.block_number;
  }
  for (u64 g = offset >> W.granule; g <= (offset + width - 1) >> W.granule; g++) {
    if (!write) {
      if (b.last_block[g] >= 0 && b.last_block[g] != W.block_number)
        problem("race.global", at, nullptr, "block %d reads byte %llu of %s, which block %d wrote: nothing orders "
                "blocks", W.block_number, (unsigned long long)offset, b.name.c_str(), b.last_block[g]);
      read_cell(f, b.cells[g], id, b.name.c_str(), offset);
      continue;
    }
    // two threads may store the same value (a tile that was moved back): only a read in between tells them apart
    b.cells[g].writer = -1;
    write_cell(f, b.cells[g], id, b.name.c_str(), offset);
    b.last_block[g] = W.block_number;
  }
  if (write) std::fill(b.written.begin() + offset, b.written.begin() + offset + width, 1);
}

void global_access(Fiber *f, Global &b, u8 *address, unsigned width, bool write, const void *at) {
  int id = site(at, write ? WRITE_GLOBAL : READ_GLOBAL, width);
  if (W.count) counted(f, id, (u64)address);
  u64 offset = (u64)(address - b.first);
  if (address + width > b.end) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d accesses %u bytes at byte %llu of %s, which has %llu", f->id,
            width, (unsigned long long)offset, b.name.c_str(), (unsigned long long)(b.end - b.first));
    give_up();
  }
  watch_global(f, b, offset, width, write, id);
}

void access(const void *pointer, unsigned width, bool write, const void *at) {
  Fiber *f = W.current;
  if (!f) return;
  u8 *address = (u8 *)pointer;
  if (address >= f->stack && address < f->stack + STACK) {  // a local variable
    if (f->touched) registers_used(f, address, width, write, at);
    return;
  }
  if (W.shared && address >= W.shared && address < W.shared + W.shared_size) {
    if (address + width > W.shared + W.shared_size) {
      problem("memory.out-of-bounds", at, nullptr, "thread %d leaves shared memory", f->id);
      give_up();
    }
    shared_access(f, address, width, write, at);
    return;
  }
  for (Global &b : W.globals)
    if (address >= b.first - 2048 && address < b.end + 2048) {
      if (address < b.first) {
        problem("memory.out-of-bounds", at, nullptr, "thread %d accesses %lld bytes before %s", f->id,
                (long long)(b.first - address), b.name.c_str());
        give_up();
      }
      if (address < b.end || &b == &W.globals.back() || address < (&b + 1)->first - 2048) {
        global_access(f, b, address, width, write, at);
        return;
      }
    }
  if (W.shared && address >= W.shared - AROUND_SHARED && address < W.shared + W.shared_size + AROUND_SHARED) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d leaves shared memory", f->id);
    give_up();
  }
  Dl_info image;
  if (!write && dladdr(pointer, &image)) return;  // a constant of the program
  problem("memory.out-of-bounds", at, nullptr, "thread %d accesses memory that belongs to no array", f->id);
  give_up();
}

}  // namespace

// --- what the text calls

extern "C" {
Index tir_thread_index() { return W.current->thread; }
Index tir_block_index() { return W.current->block; }
Index tir_block_size() { return W.block; }
Index tir_grid_size() { return W.grid; }

void tir_sync_block() {
  Fiber *f = W.current;
  if (++W.at_barrier < W.threads) {
    wait(WAITS_BLOCK, HERE);
    return;
  }
  W.at_barrier = 0;
  meet(W.fibers);
  std::vector<Fiber *> others;
  for (Fiber *g : W.fibers)
    if (g != f) others.push_back(g);
  for (size_t k = others.size(); k > 1; k--) std::swap(others[k - 1], others[random_number() % k]);
  for (Fiber *g : others) wake(g);
}

static std::vector<Fiber *> warp_of(const Fiber *f) {
  int first = f->id / WARP * WARP;
  return {W.fibers.begin() + first, W.fibers.begin() + std::min(first + WARP, W.threads)};
}

static void sync_warp(const void *at) {
  Fiber *f = W.current;
  std::vector<Fiber *> warp = warp_of(f);
  if (++W.at_warp[f->id / WARP] < (int)warp.size()) {
    wait(WAITS_WARP, at);
    return;
  }
  W.at_warp[f->id / WARP] = 0;
  meet(warp);
  for (Fiber *g : warp)
    if (g != f) wake(g);
}

void tir_sync_warp() { sync_warp(HERE); }

uint32_t tir_shuffle(uint32_t value, int lane, int how) {
  Fiber *f = W.current;
  int first = f->id / WARP * WARP, from = how == 0 ? lane : how == 1 ? f->lane ^ lane : f->lane + lane;
  W.shuffled[f->id] = value;
  sync_warp(HERE);
  bool there = from >= 0 && from < WARP && first + from < W.threads;
  uint32_t got = W.shuffled[there ? first + from : f->id];
  sync_warp(HERE);
  return got;
}

// --- the hooks of -fsanitize=thread

#define HOOKS(n) \
  void __tsan_read##n(void *p) { access(p, n, false, HERE); } \
  void __tsan_write##n(void *p) { access(p, n, true, HERE); } \
  void __tsan_unaligned_read##n(void *p) { access(p, n, false, HERE); } \
  void __tsan_unaligned_write##n(void *p) { access(p, n, true, HERE); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void *p, size_t n) { access(p, (unsigned)n, false, HERE); }
void __tsan_write_range(void *p, size_t n) { access(p, (unsigned)n, true, HERE); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void *) {}
void __tsan_vptr_update(void *, void *) {}

// Arrays that the text declares, which -fsanitize=bounds,object-size watches: those in registers lie on the stack, where
// nothing else would notice. The structures are those that the compilers agreed on for their sanitizer's library.
struct tir_type { uint16_t kind, info; char name[1]; };
struct tir_where { const char *file; u32 line, column; };
struct tir_array_use { tir_where where; const tir_type *array, *index; };

void __ubsan_handle_out_of_bounds(tir_array_use *use, uintptr_t index) {
  if (!W.current) return;
  problem("memory.out-of-bounds", HERE, nullptr, "thread %d accesses element %lld of an array that is %s", W.current->id,
          (long long)(intptr_t)index, use->array->name);
  give_up();
}
void __ubsan_handle_type_mismatch_v1(void *, uintptr_t) {
  if (!W.current) return;
  problem("memory.out-of-bounds", HERE, nullptr, "thread %d leaves an array that the text declares", W.current->id);
  give_up();
}

// --- what Python calls

void tir_reset() {
  for (Global &b : W.globals) clear(b.cells, 0);
  W.globals.clear();
  W.told.clear();
  W.problems.clear();
  W.site_of.clear();
  W.sites.clear();
}

void tir_array(u8 *first, u64 size, const char *name, int writable, int granule) {
  Global b{first, first + size, name, writable != 0, {}, {}, {}, -1};
  if (writable) {
    b.written.assign(size, 0);
    b.last_block.assign((size >> granule) + 1, -1);
  }
  W.globals.push_back(b);
  std::sort(W.globals.begin(), W.globals.end(), [](const Global &a, const Global &c) { return a.first < c.first; });
}

// A kernel has ended: the next one may read what it wrote.
static void forget_blocks() {
  for (Global &b : W.globals) {
    std::fill(b.last_block.begin(), b.last_block.end(), -1);
    b.cells_of = -1;
  }
}

static void start_block(int number) {
  W.block_number = number;
  W.at_barrier = 0;
  W.at_warp.assign(W.threads / WARP + 1, 0);
  W.ready.clear();
  W.late.clear();
  W.lag = W.eager ? random_number() % 3 : 0;
  if (W.shared) std::memset(W.shared, 0xff, W.shared_size);  // NaN, -1
  clear(W.cells, (W.shared_size >> W.granule) + 1);
  W.taken.clear();
  W.agents = W.threads;
  W.agent_names.clear();
  W.fences = false;
  start_units();
  std::vector<int> order;
  for (Fiber *f : W.fibers) {
    f->state = READY;
    f->clock = 1;
    f->seen.assign(W.threads, 0);
    f->seen[f->id] = 1;
    f->fenced.clear();
    f->leaving.clear();
    f->groups.clear();
    f->block = {number % W.grid.x, number / W.grid.x % W.grid.y, number / (W.grid.x * W.grid.y)};
    begin(f);
    order.push_back(f->id);
  }
  for (size_t k = order.size(); k > 1; k--) std::swap(order[k - 1], order[random_number() % k]);
  for (int id : order) W.ready.push_back(id);
}

// Run a kernel; the number of problems so far. shape: grid x y z, block x y z, log2 of the bytes of a cell, whether copies
// may land early.
int tir_launch(void (*entry)(void **), void **arguments, const u32 *shape, u8 *shared, u64 shared_size, u64 seed) {
  W.entry = entry;
  W.arguments = arguments;
  W.grid = {shape[0], shape[1], shape[2]};
  W.block = {shape[3], shape[4], shape[5]};
  W.threads = (int)(shape[3] * shape[4] * shape[5]);
  W.granule = (int)shape[6];
  W.eager = shape[7] != 0;
  W.shared = shared_size ? shared : nullptr;
  W.shared_size = shared_size;
  W.random = seed * 0x9E3779B97F4A7C15ull + 88172645463325252ull;
  W.stop = false;
  W.shuffled.assign(W.threads, 0);
  W.together.clear();
  W.passes.assign(W.threads, {});
  for (int k = 0; k < W.threads; k++) {
    Fiber *f = new Fiber;
    f->stack = (u8 *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    f->id = k;
    f->lane = k % WARP;
    unsigned i = (unsigned)k;
    f->thread = {i % shape[3], i / shape[3] % shape[4], i / (shape[3] * shape[4])};
    W.fibers.push_back(f);
  }
  forget_blocks();
  int blocks = (int)(shape[0] * shape[1] * shape[2]);
  for (int number = 0; number < blocks && !W.stop; number++) {
    W.count = number == 0;
    start_block(number);
    W.current = nullptr;
    int first = W.ready.front();
    W.ready.pop_front();
    enter(W.fibers[first]);
    W.current = nullptr;
    if (!W.stop) end_units();
    if (W.count) settle_all();
  }
  for (Fiber *f : W.fibers) {
    munmap(f->stack, STACK);
    if (f->touched) munmap(f->touched, STACK);
    delete f;
  }
  W.fibers.clear();
  return (int)W.problems.size();
}

int tir_problems() { return (int)W.problems.size(); }

const char *tir_problem(int n) { return W.problems[n].c_str(); }

u64 tir_unwritten(const u8 *first) {  // bytes of an array that no thread wrote
  for (Global &b : W.globals)
    if (b.first == first) return (u64)std::count(b.written.begin(), b.written.end(), 0);
  return 0;
}

int tir_sites() { return (int)W.sites.size(); }

const char *tir_site(int n, u64 *numbers) {  // what it does; its place, width, requests, lanes, units, ideal units
  const Site &s = W.sites[n];
  Dl_info info;
  numbers[0] = s.at && dladdr(s.at, &info) ? (u64)((u8 *)s.at - (u8 *)info.dli_fbase) - 1 : 0;
  numbers[1] = s.width;
  numbers[2] = s.requests;
  numbers[3] = s.lanes;
  numbers[4] = s.units;
  numbers[5] = s.ideal;
  return ACCESS[s.kind];
}
}

#include "instructions.h"
#include "barriers.h"
#include "copies.h"
#include "wgmma.h"
