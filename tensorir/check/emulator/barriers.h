// Barriers that a part of a block meets at, and those that count arrivals and bytes (mbarrier), after the PTX ISA.
//
// A counting barrier completes phase after phase: one phase when as many threads have arrived as it was set up for, and
// all bytes that were announced have come. Who arrives lets go of what it did; who waits gets hold of it. What a copy
// writes is dated by the barrier's own clock, its phases, so that only who waited for that phase may read it.
#pragma once

namespace {

const int MOST_ARRIVALS = (1 << 20) - 1;  // bytes too

struct Barrier {
  int count = 0, pending = 0;  // arrivals of a phase, and how many are missing
  long long bytes = 0;         // announced, and not come yet
  unsigned phase = 0;
  int agent = 0;               // whose clock counts the phases
  Fiber *maker = nullptr;
  u32 made = 0;                // the maker's clock
  bool known = false;          // tir_barriers_ready
  bool met = false;            // by a meeting of the cluster behind that
  u32 ready = 0;               // the maker's clock then
  u32 landed = 0;              // the last phase that bytes came for, and where from
  const void *landed_at = nullptr;
  std::vector<u32> seen, fenced;
  std::vector<Fiber *> waiting;
};

struct Meeting {  // at a numbered barrier
  int threads = 0;
  std::vector<Fiber *> waiting;
  std::vector<std::pair<int, u32>> before;  // who met there last, each with its clock behind that
};

std::map<const u8 *, Barrier> barriers;
Meeting meetings[MOST_BLOCKS][16];

void wake_all(std::vector<Fiber *> those) {
  for (size_t k = those.size(); k > 1; k--) std::swap(those[k - 1], those[random_number() % k]);
  for (Fiber *f : those) wake(f);
}

void let_go(Fiber *f, std::vector<u32> &seen, std::vector<u32> &fenced) {
  join(seen, f->seen);
  join(fenced, f->fenced);
  f->clock++;
  f->seen[f->id] = f->clock;
}

void get_hold(Fiber *f, const Barrier &b) {
  join(f->seen, b.seen);
  join(f->fenced, b.fenced);
}

bool has_completed(const Barrier &b, int parity) { return (int)(b.phase & 1) != parity; }

// An arrival or bytes have come: the phase may be complete.
void advance(Barrier &b) {
  if (b.pending || b.bytes) return;
  b.phase++;
  b.pending = b.count;
  b.seen.resize(W.agents, 0);
  b.seen[b.agent] = b.phase;
  std::vector<Fiber *> go, stay;
  for (Fiber *f : b.waiting) (has_completed(b, f->waits_for) ? go : stay).push_back(f);
  b.waiting = stay;
  for (Fiber *f : go) get_hold(f, b);
  wake_all(go);
}

const u8 *barrier_place(const void *p, const void *at) {
  if (!in_shared(p, 8)) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d uses a barrier that is not in shared memory",
            W.current->number);
    give_up();
  }
  if ((u64)p % 8)
    problem("memory.misaligned", at, nullptr, "thread %d uses a barrier that is at no multiple of 8 bytes",
            W.current->number);
  return (const u8 *)p;
}

// The barrier where `p` is, in block `rank` of the cluster; nullptr where there is none.
Barrier *barrier_at(const void *p, int rank, const char *does, bool by_copy, const void *at) {
  Fiber *f = W.current;
  bool own = rank == f->rank;
  auto found = barriers.find(barrier_place(p, at) + (rank - f->rank) * (long long)W.stride);
  auto tell = [&](const std::string &how) {
    problem("barrier.uninitialised", at, nullptr, "thread %d %s the barrier at byte %llu of shared memory%s, which %s",
            f->number, does, byte_of(p), of_block(rank).c_str(), how.c_str());
  };
  if (found == barriers.end()) {
    tell("no thread has set up");
    return nullptr;
  }
  Barrier &b = found->second;
  if (f != b.maker && !b.met && !before(f, b.maker->id, own ? b.made : b.ready))
    tell(who(b.maker->id) + " has set up with no " + (own ? "barrier of the block" : "meeting of the cluster") + " between");
  if (!b.known && (f != b.maker || by_copy)) tell(who(b.maker->id) + " has set up without tir_barriers_ready");
  return &b;
}

void arrive(const void *p, int rank, long long bytes, const void *at) {
  Fiber *f = W.current;
  Barrier *b = barrier_at(p, rank, "arrives at", false, at);
  if (!b) return;
  if (bytes < 0 || bytes > MOST_ARRIVALS)
    problem("barrier.misused", at, nullptr, "thread %d announces %lld bytes: a barrier counts 0 to %d", f->number, bytes,
            MOST_ARRIVALS);
  let_go(f, b->seen, b->fenced);
  b->bytes += bytes;
  if (!b->pending) {
    problem("barrier.misused", at, nullptr, "thread %d arrives at the barrier at byte %llu of shared memory%s, where all %d "
            "of its phase have arrived, while %lld bytes are missing", f->number, byte_of(p), of_block(rank).c_str(),
            b->count, b->bytes);
    return;
  }
  b->pending--;
  advance(*b);
}

// What lies in shared memory besides barriers does not lie where one is.
void off_barriers(const u8 *place, u64 size, const void *at) {
  if (barriers.empty()) return;
  auto found = barriers.lower_bound(place - 7);
  if (found == barriers.end() || found->first >= place + size) return;
  problem("barrier.misused", at, nullptr, "thread %d reads or writes bytes %llu to %llu of shared memory, in which the "
          "barrier at byte %llu is", W.current->number, (unsigned long long)shared_offset(place),
          (unsigned long long)(shared_offset(place) + size - 1), (unsigned long long)shared_offset(found->first));
}

// --- when nobody can go on

std::string waits(const Fiber *f) {
  char text[200];
  auto found = barriers.find((const u8 *)f->waits_on);
  if (f->state == WAITS_PHASE && found != barriers.end()) {
    const Barrier &b = found->second;
    snprintf(text, sizeof text, "for parity %d of the barrier at byte %llu of shared memory, which is in phase %u: %d of %d "
             "arrivals and %lld bytes are missing", f->waits_for, byte_of(f->waits_on), b.phase,
             b.pending, b.count, b.bytes);
  } else if (f->state == WAITS_SOME) {
    const Meeting &m = meetings[f->rank][f->waits_for];
    snprintf(text, sizeof text, "at barrier %d, where %d of %d threads are", f->waits_for, (int)m.waiting.size(), m.threads);
  } else {
    snprintf(text, sizeof text, "for the rest of the %s", f->state == WAITS_BLOCK ? "block" :
             f->state == WAITS_CLUSTER ? "cluster" : f->state == WAITS_WARP ? "warp" : "warpgroup");
  }
  return text;
}

void stuck() {  // threads wait for others that have ended, or that wait elsewhere
  std::map<std::pair<int, std::string>, std::vector<Fiber *>> alike;
  Fiber *last = W.current;
  W.current = nullptr;  // what is told is about all blocks
  int ended = 0;
  for (Fiber *f : W.fibers) {
    ended += f->state == DONE;
    if (f->state != DONE) alike[{f->rank, place(f->waits_at) + waits(f)}].push_back(f);
  }
  for (auto &entry : alike) {
    const Fiber *f = entry.second.front();
    std::string text = std::to_string(entry.second.size()) + " of " + std::to_string(W.threads) + " threads of block " +
                       std::to_string(W.block_number + f->rank) + " (" + std::to_string(f->number) +
                       " the first) wait " + waits(f) + "; " + std::to_string(ended) +
                       (W.cluster > 1 ? " of the cluster" : "") + " have ended and no other can go on";
    if (f->state == WAITS_PHASE)
      problem("barrier.stuck", f->waits_at, nullptr, "%s", text.c_str());
    else if (f->state == WAITS_GROUP)
      problem("warp.divergent", f->waits_at, nullptr, "%s", text.c_str());
    else
      problem("barrier.divergent", f->waits_at, nullptr, "%s", text.c_str());
  }
  W.current = last;
  W.stop = true;
}

void whole_warps(const std::vector<Fiber *> &those, const void *at) {
  std::map<int, int> lanes;
  for (const Fiber *f : those) lanes[f->number / WARP]++;
  for (auto &warp : lanes)
    if (warp.second != WARP)
      problem("warp.divergent", at, nullptr, "%d lanes of warp %d meet others at a barrier: warps meet there as a whole",
              warp.second, warp.first);
}

// Threads that have met at a barrier may come to it again; others once one of those is known to be behind it.
void comes_after(const Fiber *f, const Meeting &m, int id, const void *at) {
  for (const auto &other : m.before)
    if (f->seen[other.first] >= other.second) return;
  if (!m.before.empty())
    problem("barrier.misused", at, nullptr, "thread %d comes to barrier %d, where %s and others met, and nothing orders the "
            "two: they may meet in any mixture", f->number, id, who(m.before[0].first).c_str());
}

}  // namespace

extern "C" {
void tir_sync_some(int id, int threads) {
  Fiber *f = W.current;
  if (id < 1 || id > 15 || threads <= 0 || threads % WARP || threads > W.threads) {
    problem("barrier.misused", HERE, nullptr, "barrier %d for %d threads: barriers 1 to 15 are for parts of a block, which are "
            "whole warps of its %d threads", id, threads, W.threads);
    give_up();
  }
  Meeting &m = meetings[f->rank][id];
  same_place(f, HERE);
  if (m.waiting.empty()) m.threads = threads;
  if (m.threads != threads)
    problem("barrier.misused", HERE, m.waiting[0]->waits_at, "thread %d meets %d threads at barrier %d, others %d",
            f->number, threads, id, m.threads);
  comes_after(f, m, id, HERE);
  m.waiting.push_back(f);
  if ((int)m.waiting.size() < m.threads) {
    f->waits_for = id;
    wait(WAITS_SOME, HERE);
    return;
  }
  std::vector<Fiber *> all;
  all.swap(m.waiting);
  whole_warps(all, HERE);
  meet(all);
  m.before.clear();
  for (const Fiber *one : all) m.before.push_back({one->id, one->clock});
  all.pop_back();  // this thread
  wake_all(all);
}

void tir_barrier_init(unsigned long long *barrier, int arrivals) {
  Fiber *f = W.current;
  const u8 *place = barrier_place(barrier, HERE);
  if (arrivals < 1 || arrivals > MOST_ARRIVALS)
    problem("barrier.misused", HERE, nullptr, "thread %d sets up a barrier for %d arrivals", f->number, arrivals);
  if (barriers.count(place))
    problem("barrier.misused", HERE, nullptr, "thread %d sets up the barrier at byte %llu of shared memory again",
            f->number, byte_of(place));
  Barrier b;
  b.count = b.pending = arrivals;
  b.maker = f;
  b.made = f->clock;
  b.agent = new_agent("a copy for the barrier at byte " + std::to_string(byte_of(place)));
  barriers[place] = b;
}

void tir_barriers_ready() {
  for (auto &entry : barriers) {
    Barrier &b = entry.second;
    if (b.known || b.maker != W.current) continue;
    b.known = true;
    b.ready = b.maker->clock;
  }
}

void tir_barrier_expect(unsigned long long *barrier, int bytes) { arrive(barrier, W.current->rank, bytes, HERE); }

void tir_barrier_arrive(unsigned long long *barrier) { arrive(barrier, W.current->rank, 0, HERE); }

void tir_barrier_wait(unsigned long long *barrier, int parity) {
  Fiber *f = W.current;
  fall_behind();
  Barrier *b = barrier_at(barrier, f->rank, "waits at", false, HERE);
  if (!b) return;
  if (parity != 0 && parity != 1)
    problem("barrier.misused", HERE, nullptr, "thread %d waits for parity %d: it is 0 or 1", f->number, parity);
  if (has_completed(*b, parity & 1)) {
    get_hold(f, *b);
    return;
  }
  f->waits_on = barrier;
  f->waits_for = parity & 1;
  b->waiting.push_back(f);
  wait(WAITS_PHASE, HERE);
}

// What the thread has written is ordered for the asynchronous units, which read shared memory past it. By whoever wrote, in
// front of the barrier: the PTX ISA may be read to allow it behind, and nobody does that.
void tir_async_fence() {
  Fiber *f = W.current;
  W.fences = true;
  if ((int)f->fenced.size() < W.agents) f->fenced.resize(W.agents, 0);
  f->fenced[f->id] = f->clock;
  f->clock++;
  f->seen[f->id] = f->clock;
}
}
