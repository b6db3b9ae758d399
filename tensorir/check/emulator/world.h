// What a run of kernels is made of, and how what is wrong is told. All of it is one object, W.
#pragma once
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
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
const int MOST_BLOCKS = 8;      // of a cluster
const size_t STACK = 128 << 10;  // of a thread, beside what it has in arrays of its own
const int MOST_PROBLEMS = 50;
const u64 BETWEEN_SHARED = 4096;  // bytes between the shared memories of the blocks of a cluster
const int AROUND_SHARED = 2048;  // bytes before and behind it in the image; constants lie further away
const int MOST_TOGETHER = 64;  // bytes that a lane brings to an instruction of its warp

struct Index { unsigned x, y, z; };
enum State { READY, WAITS_BLOCK, WAITS_CLUSTER, WAITS_WARP, WAITS_SOME, WAITS_PHASE, WAITS_GROUP, DONE };
enum Access { READ_SHARED, WRITE_SHARED, READ_GLOBAL, WRITE_GLOBAL, ADD_GLOBAL };
const char *const ACCESS[] = {"shared read", "shared write", "global read", "global write", "global add"};

// A copy from global to shared memory that is under way.
struct Flight {
  u8 *to;
  unsigned size;
  const void *at;
  u8 bytes[16];
};

struct Turns { u64 around, turn; };  // of a loop: the turns of the loops around it, and its own

struct Fiber {
  ucontext_t context;
  void *stack_pointer = nullptr;
  u8 *stack = nullptr;
  State state = READY;
  int id = 0;                        // among those that run at once: the threads of a block, or of the blocks of a cluster
  int rank = 0, number = 0;          // its block in the cluster, and itself in that
  int warp = 0, lane = 0;
  Index thread{}, block{};
  u64 turn = 0;           // of all loops that it is in, as one number
  std::vector<Turns> loops;
  u64 path = 0;           // of the conditions and places by which it came to what its warp runs together: translation.py
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
  int writer = -1, reader = -1;  // agents; writers of global memory from other blocks: see Global
  int write_site = 0, read_site = 0;
  std::vector<u32> *readers = nullptr;
  bool initialised = false, in_flight = false;
  bool by_copy = false;  // written by an asynchronous unit: for its like no fence is needed
  bool added = false;    // written by atomic sums: others of these are no race
  bool nobodys = false;  // in no array
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
struct Request { int site = 0; u32 lanes = 0; u64 address[WARP]; };
struct Pass { u64 turn = 0, times = 0; };  // of a thread at a site: in which turns of loops it was there last, and how often

const int MANY = -2;

struct Global {
  u8 *first, *end;
  std::string name;
  bool writable;
  std::vector<u8> written;      // each byte, by any block
  std::vector<int> last_block;  // of each granule: that wrote it
  std::vector<int> read_block;  // and that read it: -1 for none, MANY for several
  std::vector<u8> added;        // of each granule: by an atomic sum
  std::vector<Cell> cells;      // of each granule, for the blocks that run
  int cells_of = -1;
};

struct Listed { const u8 *at; u64 size, at_launch, none; };  // an array in shared memory

struct World {
  Index grid, block;
  int cluster = 1;               // blocks that run at once
  int threads = 0, warps = 0;    // of a block
  int granule = 2;               // log2 of the bytes of a cell
  size_t stack = STACK;          // of a thread
  int agents = 0;  // whose clocks are kept: the threads, then what copies into shared memory, then what reads it for products
  std::vector<std::string> agent_names;  // of those that are no threads
  u64 random = 0;
  bool count = false, fences = false;
  bool eager = false;  // copies may land before anyone must wait for them
  u32 lag = 0;         // of two threads at a barrier that counts, so many fall behind
  std::vector<Taken> taken;  // beside the cells, from the first product on
  int product_agent[MOST_BLOCKS][MOST_WARPGROUPS] = {{0}};
  u8 *shared = nullptr, *shared_end = nullptr;  // of all blocks that run
  size_t shared_size = 0, stride = 0;           // of one block, and from one to the next
  const u8 *image = nullptr;                    // where the text declares it
  std::vector<std::pair<u64, u64>> gaps;        // bytes of it that are in no array
  int begins = 0;                               // registers of a thread
  std::vector<Cell> cells;
  std::vector<Fiber *> fibers;
  std::vector<std::vector<Fiber *>> blocks;  // the same, of each block
  std::deque<int> ready, late;  // late: go on when no other can
  Fiber *current = nullptr;
  u8 *turned_at = nullptr;  // where in the text a loop went on last
  ucontext_t main_context;
  void *main_stack = nullptr;
  int at_barrier[MOST_BLOCKS] = {0}, at_cluster = 0;
  int block_number = 0;  // the first that runs
  std::vector<int> at_warp;
  std::vector<const void *> warp_at, warp_what;  // where the first of them came to, and to what
  std::vector<u64> warp_path, aligned_path;      // and by which conditions; to a barrier
  std::vector<std::pair<const void *, int>> aligned;   // where the first lane came to a barrier, and how many have
  std::vector<u32> shuffled;
  std::vector<u8> together, derived;
  std::vector<Global> globals;
  std::set<std::string> told;
  std::set<std::tuple<const char *, const void *, const void *>> met;  // the same, before it is put into words
  std::vector<std::string> problems;
  std::map<std::pair<const void *, Access>, int> site_of;  // an asynchronous copy reads and writes at one place
  std::vector<Site> sites;
  std::vector<std::unordered_map<int, Pass>> passes;      // of each thread at each site
  std::vector<std::unordered_map<u64, Request>> open;     // of each warp: those that not all lanes have made yet
  u64 meetings = 0;                                       // of the block that is counted, at its barriers
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

// Whether such a problem is on record: a fault in a loop comes thousands of times, and putting it into words takes longer
// than all that is watched.
bool known(const char *code, const void *at, const void *other) { return W.met.count({code, at, other}); }

void problem(const char *code, const void *at, const void *other, const char *format, ...) {
  if (!W.met.insert({code, at, other}).second) return;
  char text[512];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  if (W.cluster > 1 && W.current) {
    size_t end = std::strlen(text);
    snprintf(text + end, sizeof text - end, " (block %d)", W.block_number + W.current->rank);
  }
  std::string key = std::string(code) + "|" + place(at) + "|" + place(other);
  if (W.told.insert(key).second && (int)W.problems.size() < MOST_PROBLEMS) W.problems.push_back(key + "|" + text);
}

u64 mixed(u64 a, u64 b) {
  a = a * 0x9E3779B97F4A7C15ull + b + 1;
  a = (a ^ a >> 32) * 0xBF58476D1CE4E5B9ull;
  return a ^ a >> 29;
}

u32 random_number() {
  W.random ^= W.random << 13;
  W.random ^= W.random >> 7;
  W.random ^= W.random << 17;
  return (u32)(W.random >> 11);
}

// --- blocks that run at once

// Names a block where a message is about another one.
std::string of_block(int rank) {
  bool own = W.cluster == 1 || (W.current && W.current->rank == rank);
  return own ? "" : " of block " + std::to_string(W.block_number + rank);
}

u8 *shared_of(int rank) { return W.shared + rank * W.stride; }

// Whole in the shared memory of the thread's own block.
bool in_shared(const void *p, u64 size) {
  const u8 *first = shared_of(W.current->rank);
  return W.shared && (const u8 *)p >= first && (const u8 *)p + size <= first + W.shared_size;
}

// Cells are those of all blocks that run; messages tell the byte in one block.
u64 shared_offset(const void *p) { return (u64)((const u8 *)p - W.shared); }
int rank_at(u64 offset) { return W.cluster > 1 ? (int)(offset / W.stride) : 0; }
unsigned long long in_block(u64 offset) { return W.cluster > 1 ? offset % W.stride : offset; }
unsigned long long byte_of(const void *p) { return in_block(shared_offset(p)); }

}  // namespace
