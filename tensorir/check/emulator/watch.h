// Every access is looked at: is it in bounds, is what it reads written, does an order lie between it and others?
#pragma once

namespace {

bool before(const Fiber *f, int agent, u32 clock) { return agent == f->id || f->seen[agent] >= clock; }

std::string who(int agent) {
  int threads = (int)W.fibers.size();
  if (agent >= threads) return W.agent_names[agent - threads];
  return "thread " + std::to_string(W.fibers[agent]->number) + of_block(W.fibers[agent]->rank);
}

int new_agent(const std::string &name) {
  W.agent_names.push_back(name + (W.cluster > 1 ? " of block " + std::to_string(W.block_number + W.current->rank) : ""));
  W.agents++;
  for (Fiber *f : W.fibers) f->seen.resize(W.agents, 0);
  return W.agents - 1;
}

// what `f` does at a site although `other` did something at another, and nothing orders the two
void race(const Fiber *f, int id, const char *memory, u64 offset, int other, int other_site) {
  auto shared = [](int s) { return W.sites[s].kind == READ_SHARED || W.sites[s].kind == WRITE_SHARED; };
  auto writes = [](int s) {
    return W.sites[s].kind == WRITE_SHARED || W.sites[s].kind == WRITE_GLOBAL || W.sites[s].kind == ADD_GLOBAL;
  };
  const char *code = shared(id) ? "race.shared" : "race.global";
  if (known(code, W.sites[id].at, W.sites[other_site].at)) return;
  std::string where = memory + (shared(id) ? of_block(rank_at(offset)) : "");
  problem(code, W.sites[id].at, W.sites[other_site].at,
          "thread %d %s %s at byte %llu, which %s %s with no barrier between", f->number, writes(id) ? "writes" : "reads",
          where.c_str(), shared(id) ? in_block(offset) : (unsigned long long)offset, who(other).c_str(),
          writes(other_site) ? "wrote" : "read");
}

// Clocks of readers that no cell holds any more: the next cell that several threads read takes them.
std::vector<std::vector<u32> *> spare;

std::vector<u32> *no_readers() {
  if (spare.empty()) return new std::vector<u32>(W.fibers.size(), 0);
  std::vector<u32> *found = spare.back();
  spare.pop_back();
  found->assign(W.fibers.size(), 0);
  return found;
}

void forget_readers(Cell &c) {
  if (c.readers) spare.push_back(c.readers);
  c.readers = nullptr;
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
    c.readers = no_readers();  // no other agent reads this way
    (*c.readers)[c.reader] = c.read_clock;
  }
  (*c.readers)[f->id] = f->clock;
  c.read_site = id;
}

void write_cell(Fiber *f, Cell &c, int id, const char *memory, u64 offset) {
  if (c.writer >= 0 && !before(f, c.writer, c.write_clock)) race(f, id, memory, offset, c.writer, c.write_site);
  int late = c.reader >= 0 && !before(f, c.reader, c.read_clock) ? c.reader : -1;
  for (int k = 0; c.readers && late < 0 && k < (int)c.readers->size(); k++)
    if ((*c.readers)[k] && !before(f, k, (*c.readers)[k])) late = k;
  if (late >= 0) race(f, id, memory, offset, late, c.read_site);
  forget_readers(c);
  c.reader = -1;
  c.writer = f->id;
  c.write_clock = f->clock;
  c.write_site = id;
  c.initialised = true;
  c.by_copy = false;
}

// Shared memory is used although a copy into it, or a product or store that reads it, is under way.
void too_early(Fiber *f, const Cell &c, int id, bool write, u64 offset) {
  std::string whose = of_block(rank_at(offset));
  if (c.in_flight)
    problem("memory.in-flight", W.sites[id].at, W.sites[c.write_site].at, "thread %d %s byte %llu of shared memory%s while "
            "a copy to it is under way, which its thread has not waited for", f->number, write ? "writes" : "reads",
            in_block(offset), whose.c_str());
  else
    problem("memory.in-flight", W.sites[id].at, W.sites[c.read_site].at, "thread %d writes byte %llu of shared memory%s, "
            "which a product or a store that is under way still reads", f->number, in_block(offset), whose.c_str());
}

void off_arrays(const Fiber *f, int id, u64 offset) {
  problem("memory.out-of-bounds", W.sites[id].at, nullptr, "thread %d accesses byte %llu of shared memory, where no array is",
          f->number, in_block(offset));
}

void write_shared(Fiber *f, u64 g, int id, u64 offset) {
  Cell &c = W.cells[g];
  if (c.nobodys) off_arrays(f, id, g << W.granule);
  if (c.in_flight || c.pinned) too_early(f, c, id, true, offset);
  write_cell(f, c, id, "shared memory", offset);
  if (W.taken.empty()) return;
  const int *agents = W.product_agent[rank_at(offset)];
  for (int w = 0; w < MOST_WARPGROUPS; w++) {
    u32 &clock = W.taken[g].clock[w];
    if (clock && f->seen[agents[w]] < clock) race(f, id, "shared memory", offset, agents[w], c.read_site);
    clock = 0;
  }
}

void clear(std::vector<Cell> &cells, size_t count) {
  for (Cell &c : cells) forget_readers(c);
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
    if (c.nobodys) off_arrays(f, id, g << W.granule);
    else if (!c.initialised)
      problem("memory.uninitialised", at, nullptr, "thread %d reads byte %llu of shared memory, which was never written",
              f->number, in_block(offset));
    read_cell(f, c, id, "shared memory", offset);
  }
}

// Whether a block that does not run with this one wrote there.
bool by_others(const Global &b, u64 g) {
  int last = b.last_block[g];
  return last >= 0 && (last < W.block_number || last >= W.block_number + W.cluster);
}

// What was overwritten although nothing orders the two, until the new value is there to be compared with it.
struct Overwrite {
  const Global *array;
  u64 offset, size;
  u8 old[4];
  int thread, site;
  const void *other;
  std::string whose;
};
std::vector<Overwrite> overwrites;

// Two threads may store the same value (a tile that was moved back), at any time; another value is a race.
void compare_overwrites() {
  for (const Overwrite &o : overwrites)
    if (std::memcmp(o.array->first + o.offset, o.old, o.size))
      problem("race.global", W.sites[o.site].at, o.other, "thread %d writes byte %llu of %s, where %s wrote another value: "
              "nothing orders the two", o.thread, (unsigned long long)o.offset, o.array->name.c_str(), o.whose.c_str());
  overwrites.clear();
}

void overwritten(const Fiber *f, const Global &b, u64 g, u64 offset, unsigned width, int id) {
  const Cell &c = b.cells[g];
  bool others = by_others(b, g), unordered = c.writer >= 0 && !before(f, c.writer, c.write_clock);
  if (b.added[g] || !(others || unordered)) return;
  Overwrite o{&b, std::max(offset, g << W.granule), 0, {0}, f->number, id, nullptr, ""};
  o.size = std::min(offset + width, (g + 1) << W.granule) - o.offset;
  std::memcpy(o.old, b.first + o.offset, o.size);
  if (unordered) o.other = W.sites[c.write_site].at;
  o.whose = unordered ? who(c.writer) : "block " + std::to_string(b.last_block[g]);
  overwrites.push_back(o);
}

// What is stored plainly is no atomic sum of another thread's.
void unordered(Fiber *f, Global &b, u64 g, u64 offset, const void *at) {
  Cell &c = b.cells[g];
  if (b.added[g] && (by_others(b, g) || (c.added && !before(f, c.writer, c.write_clock))))
    problem("race.global", at, nullptr, "thread %d writes byte %llu of %s, to which others add: nothing orders the two",
            f->number, (unsigned long long)offset, b.name.c_str());
  c.added = false;
  b.added[g] = 0;
}

// An atomic sum, in four bytes that are known to lie inside `b`.
void add_global(Fiber *f, Global &b, u64 offset, int id) {
  const void *at = W.sites[id].at;
  if (std::count(b.written.begin() + offset, b.written.begin() + offset + 4, 0))
    problem("memory.uninitialised", at, nullptr, "thread %d adds to byte %llu of %s, which was never written",
            f->number, (unsigned long long)offset, b.name.c_str());
  for (u64 g = offset >> W.granule; g <= (offset + 3) >> W.granule; g++) {
    Cell &c = b.cells[g];
    if (by_others(b, g) && !b.added[g])
      problem("race.global", at, nullptr, "block %d adds to byte %llu of %s, which block %d wrote: nothing orders blocks",
              W.block_number + f->rank, (unsigned long long)offset, b.name.c_str(), b.last_block[g]);
    if (c.added) c.writer = -1;
    write_cell(f, c, id, b.name.c_str(), offset);
    c.added = true;
    b.added[g] = 1;
    b.last_block[g] = W.block_number + f->rank;
  }
}

// An access that is known to lie inside `b`.
void watch_global(Fiber *f, Global &b, u64 offset, unsigned width, bool write, int id) {
  const void *at = W.sites[id].at;
  if (write && !b.writable) {
    problem("launch.input-written", at, nullptr, "thread %d writes byte %llu of %s, which is only read", f->number,
            (unsigned long long)offset, b.name.c_str());
    return;
  }
  if (!b.writable) return;
  if (b.cells_of != W.block_number) {
    clear(b.cells, ((size_t)(b.end - b.first) >> W.granule) + 1);
    b.cells_of = W.block_number;
  }
  if (W.sites[id].kind == ADD_GLOBAL) return add_global(f, b, offset, id);
  auto first = b.written.begin() + (long long)offset;
  if (!write && std::count(first, first + width, 0))
    problem("memory.uninitialised", at, nullptr, "thread %d reads byte %llu of %s, which was never written", f->number,
            (unsigned long long)offset, b.name.c_str());
  for (u64 g = offset >> W.granule; g <= (offset + width - 1) >> W.granule; g++) {
    if (!write) {
      if (by_others(b, g))
        problem("race.global", at, nullptr, "block %d reads byte %llu of %s, which block %d wrote: nothing orders "
                "blocks", W.block_number + f->rank, (unsigned long long)offset, b.name.c_str(), b.last_block[g]);
      int &reader = b.read_block[g], own = W.block_number / W.cluster;  // a cluster runs at once, and has clocks
      reader = reader == -1 || reader == own ? own : MANY;
      read_cell(f, b.cells[g], id, b.name.c_str(), offset);
      continue;
    }
    if (b.read_block[g] != -1 && b.read_block[g] != W.block_number / W.cluster)
      problem("race.global", at, nullptr, "block %d writes byte %llu of %s, which another block reads: nothing orders blocks",
              W.block_number + f->rank, (unsigned long long)offset, b.name.c_str());
    overwritten(f, b, g, offset, width, id);
    unordered(f, b, g, offset, at);
    b.cells[g].writer = -1;
    write_cell(f, b.cells[g], id, b.name.c_str(), offset);
    b.last_block[g] = W.block_number + f->rank;
  }
  if (write) std::fill(first, first + width, 1);
}

void global_access(Fiber *f, Global &b, u8 *address, unsigned width, bool write, const void *at, bool add = false) {
  int id = site(at, add ? ADD_GLOBAL : write ? WRITE_GLOBAL : READ_GLOBAL, width);
  if (W.count) counted(f, id, (u64)address);
  u64 offset = (u64)(address - b.first);
  if (address + width > b.end) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d accesses %u bytes at byte %llu of %s, which has %llu",
            f->number, width, (unsigned long long)offset, b.name.c_str(), (unsigned long long)(b.end - b.first));
    give_up();
  }
  watch_global(f, b, offset, width, write, id);
}

void access(const void *pointer, unsigned width, bool write, const void *at, bool add = false);

// As the text says it: a device faults where an access of 2, 4, 8 or 16 bytes is not at a multiple of that.
void aligned_access(const void *pointer, unsigned width, bool write, const void *at) {
  if (W.current && (u64)pointer % width) {
    problem("memory.misaligned", at, nullptr, "thread %d accesses %u bytes at no multiple of that", W.current->number, width);
    give_up();
  }
  access(pointer, width, write, at);
}

void access(const void *pointer, unsigned width, bool write, const void *at, bool add) {
  Fiber *f = W.current;
  if (!f) return;
  if (!overwrites.empty()) compare_overwrites();
  u8 *address = (u8 *)pointer;
  if (address >= f->stack && address < f->stack + W.stack) {  // a local variable
    if (f->touched) registers_used(f, address, width, write, at);
    return;
  }
  if (W.shared && address >= W.shared && address < W.shared_end) {
    if (address + width > W.shared_end || (W.cluster > 1 && !in_shared(address, width))) {
      problem("memory.out-of-bounds", at, nullptr, "thread %d leaves shared memory", f->number);
      give_up();
    }
    shared_access(f, address, width, write, at);
    return;
  }
  for (Global &b : W.globals)
    if (address >= b.first - 2048 && address < b.end + 2048) {
      if (address < b.first) {
        problem("memory.out-of-bounds", at, nullptr, "thread %d accesses %lld bytes before %s", f->number,
                (long long)(b.first - address), b.name.c_str());
        give_up();
      }
      if (address < b.end || &b == &W.globals.back() || address < (&b + 1)->first - 2048) {
        global_access(f, b, address, width, write, at, add);
        return;
      }
    }
  if (W.shared && address >= W.shared - AROUND_SHARED && address < W.shared_end + AROUND_SHARED) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d leaves shared memory", f->number);
    give_up();
  }
  if (W.cluster > 1 && address >= W.image && address < W.image + W.shared_size) {
    problem("memory.out-of-bounds", at, nullptr, "thread %d accesses an array that is declared __shared__: blocks of "
            "clusters have theirs from TIR_SHARED here", f->number);
    give_up();
  }
  Dl_info image;
  if (!write && dladdr(pointer, &image)) return;  // a constant of the program
  problem("memory.out-of-bounds", at, nullptr, "thread %d accesses memory that belongs to no array", f->number);
  give_up();
}

// As many bytes as a function is told of: in pieces that one request may have.
void access_bytes(const void *pointer, size_t n, bool write, const void *at) {
  for (size_t done = 0; done < n; done += 16)
    access((const u8 *)pointer + done, (unsigned)std::min(n - done, (size_t)16), write, at);
}

}  // namespace
