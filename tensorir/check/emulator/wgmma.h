// Instructions of warpgroups (wgmma, setmaxnreg), after the PTX ISA. g is lane / 4, t is lane % 4.
//
// A product is issued by all threads of a warpgroup and runs on its own: until a wait covers it, its sums are NaN, its tiles
// in shared memory may not be written and its registers not be touched. It reads its tiles at that wait, so what was
// overwritten too early is a wrong result as well. The registers are arrays on the stack, whose accesses are seen.
#pragma once

namespace {

const int TILE_ROW = 32;         // bytes of k in a product, of every type
const u64 ATOM = 1024;           // bytes of eight rows of 128

enum Kind { F16, BF16, TF32, S8, U8, E4M3, E5M2 };
const int KIND_BYTES[] = {2, 2, 4, 1, 1, 1, 1};

struct Sum {  // what products under way add to
  u8 *of[WARPGROUP];
  size_t bytes;
  std::vector<u8> values;
  int pending;
};

struct Product {
  Kind kind;
  int n;
  bool a_along, b_along;      // along m, along n: not along k
  std::vector<u32> a, b;      // where their pieces of 16 bytes lie, behind base()
  const u8 *held[WARPGROUP];  // a in registers; nullptr: it is in shared memory
  std::vector<u8> a_bytes;
  bool adds;  // to what its registers hold, or to 0
  Sum *sum;
  int site;
};

struct Issue {  // what one thread brings to a product
  u8 *d;
  size_t room, a_room;  // bytes there, as far as the compiler knows
  const u8 *held;
  u64 a, b;
  bool adds;
};

struct Warpgroup {
  int there = 0;
  const char *doing = nullptr;
  const void *at = nullptr;
  void *brought[WARPGROUP];
  std::vector<Sum *> sums;
  std::vector<Product> gathered;  // no group yet
  std::deque<std::vector<Product>> groups;
  u32 clock = 0;  // of its products: the waits so far
  bool fenced = false;
  int registers = 0;
} warpgroups[MOST_BLOCKS][MOST_WARPGROUPS];

Warpgroup &group_of(const Fiber *f) { return warpgroups[f->rank][f->number / WARPGROUP]; }

Warpgroup &own_group() { return group_of(W.current); }

Fiber **members() { return W.blocks[W.current->rank].data() + W.current->number / WARPGROUP * WARPGROUP; }

// True in the last thread that comes, which does what is to be done and then lets the others go on.
bool gather(const char *doing, void *mine, const void *at) {
  Fiber *f = W.current;
  Warpgroup &w = own_group();
  if (f->number / WARPGROUP * WARPGROUP + WARPGROUP > W.threads) {
    problem("warp.divergent", at, nullptr, "thread %d runs %s, which takes a warpgroup of %d threads", f->number, doing,
            WARPGROUP);
    give_up();
  }
  if (w.there && std::strcmp(w.doing, doing)) {
    problem("warp.divergent", at, w.at, "thread %d runs %s, others of its warpgroup %s", f->number, doing, w.doing);
    give_up();
  }
  same_place(f, at);
  w.doing = doing;
  w.at = at;
  w.brought[f->number % WARPGROUP] = mine;
  if (++w.there == WARPGROUP) {
    w.there = 0;
    return true;
  }
  wait(WAITS_GROUP, at);
  return false;
}

void scatter() {
  for (int k = 0; k < WARPGROUP; k++)
    if (members()[k] != W.current) wake(members()[k]);
}

// --- tiles in shared memory

u64 base() { return (u64)shared_of(W.current->rank) & ~(ATOM - 1); }

u64 descriptor(const void *p, int leading, int stride, const void *at) {
  if (!in_shared(p, 1) || (u64)p % PIECE || leading < 0 || stride < 0 || leading % PIECE || stride % PIECE ||
      leading >= 1 << 18 || stride >= 1 << 18) {
    problem("wgmma.operand", at, nullptr, "thread %d describes a tile at no multiple of 16 bytes of shared memory, or with "
            "steps that are not: leading %d, stride %d", W.current->number, leading, stride);
    give_up();
  }
  return ((u64)p - base()) >> 4 | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

// Eight rows of 128 bytes, swizzled, are an atom. Along k (a row is one of m or n): stride leads to the next eight rows.
// Otherwise a row is one of k and holds 64 of m or n: stride leads to the next eight of k, leading to the next 64.
std::vector<u32> pieces(u64 d, int rows, bool along, int bytes, const void *at) {
  u64 start = (d & 0xffff) << 4, leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;
  if (d >> 62 != 1) {
    problem("wgmma.operand", at, nullptr, "thread %d multiplies what is no tile with a swizzle of 128 bytes",
            W.current->number);
    give_up();
  }
  if (start % ATOM >= 128)
    problem("memory.misaligned", at, nullptr, "thread %d multiplies a tile that does not begin at a multiple of %llu bytes",
            W.current->number, (unsigned long long)ATOM);
  std::vector<u32> out;
  int wide = rows * bytes / (int)PIECE;  // pieces of a row of k
  for (int k = 0; along && k < TILE_ROW / bytes; k++)
    for (int m = 0; m < wide; m++)
      out.push_back(swizzled(start + m / 8 * leading + m % 8 * PIECE + k % 8 * 128 + k / 8 * stride, 128));
  for (int r = 0; !along && r < rows; r++)
    for (int k = 0; k < TILE_ROW; k += PIECE) out.push_back(swizzled(start + r / 8 * stride + r % 8 * 128 + k, 128));
  for (u32 p : out)
    if (!in_shared((u8 *)base() + p, PIECE)) {
      problem("memory.out-of-bounds", at, nullptr, "thread %d multiplies a tile that leaves shared memory at byte %lld",
              W.current->number, (long long)(base() + p - (u64)shared_of(W.current->rank)));
      give_up();
    }
  return out;
}

// Pieces of eight rows are read together (a core matrix): in as many wavefronts as of them lie in the same four banks.
void count_reads(const std::vector<u32> &where, int wide, int id) {
  Site &s = W.sites[id];
  for (size_t first = 0; first < where.size(); first += 8 * wide)
    for (int piece = 0; piece < wide; piece++) {
      int in_banks[8] = {};
      for (int row = 0; row < 8; row++) in_banks[where[first + row * wide + piece] / PIECE % 8]++;
      s.requests++;
      s.lanes += 8;
      s.units += *std::max_element(in_banks, in_banks + 8);
      s.ideal++;
    }
}

template <class Each> void each_operand_cell(const Product &p, Each each) {
  for (const std::vector<u32> *tile : {&p.a, &p.b})
    for (u32 piece : *tile) each_cell((u8 *)base() + piece, PIECE, each);
}

// Each warp reads; what is right for its first lane is for all, which run together.
void check_tiles(const Product &p) {
  int writer = -1;
  u32 clock = 0;
  each_operand_cell(p, [&](u64 g) {
    Cell &c = W.cells[g];
    c.read_site = p.site;
    c.pinned++;
    if (c.initialised && !c.in_flight && c.writer == writer && c.write_clock == clock) return;  // as the last one
    writer = c.writer;
    clock = c.write_clock;
    for (int warp = 0; warp < WARPGROUP; warp += WARP) read_by_unit(members()[warp], g, "a product reads", p.site);
  });
}

void let_tiles_go(const Product &p, int group, u32 clock) {
  if (W.taken.empty()) W.taken.resize(W.cells.size());
  each_operand_cell(p, [&](u64 g) {
    W.cells[g].pinned--;
    W.taken[g].clock[group] = clock;
  });
}

// --- registers

const u32 HELD = 1u << 31;     // beside the date: nothing has used the word since it was held
const u32 LANDED = HELD - 1;   // instead of a date: a result of a product, which nobody has held since

void track(Fiber *f) {
  if (!f->touched)
    f->touched =
        (u32 *)mmap(nullptr, W.stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// Words of the stack, for which the last access is dated.
void note_use(Fiber *f, const u8 *address, size_t bytes) {
  for (size_t w = (size_t)(address - f->stack) / 4; w <= (size_t)(address - f->stack + bytes - 1) / 4; w++)
    f->touched[w] = f->fence;
}

bool used_since_fence(const Fiber *f, const u8 *address, size_t bytes) {
  for (size_t w = (size_t)(address - f->stack) / 4; w < (size_t)(address - f->stack + bytes) / 4; w++)
    if ((f->touched[w] & ~HELD) == f->fence) return true;
  return false;
}

bool holds(const Fiber *f, const u8 *address, size_t bytes) {
  for (size_t w = (size_t)(address - f->stack) / 4; w < (size_t)(address - f->stack + bytes) / 4; w++)
    if (!(f->touched[w] & HELD)) return false;
  return true;
}

void landed(Fiber *f, const u8 *address, size_t bytes) {
  for (size_t w = (size_t)(address - f->stack) / 4; f->touched && w < (size_t)(address - f->stack + bytes) / 4; w++)
    f->touched[w] = LANDED;
}

void registers_used(Fiber *f, const u8 *address, unsigned width, bool write, const void *at) {
  for (size_t w = (size_t)(address - f->stack) / 4; w <= (size_t)(address - f->stack + width - 1) / 4; w++)
    if (f->touched[w] == LANDED) {
      problem("hold.registers", at, nullptr, "thread %d %s a register of a product with no tir_hold since the wait for it",
              f->number, write ? "writes" : "reads");
      break;
    }
  note_use(f, address, width);
  Warpgroup &w = group_of(f);
  if (w.sums.empty()) return;
  int k = f->number % WARPGROUP;
  auto tell = [&](const char *what) {
    problem("memory.in-flight", at, nullptr, "thread %d %s a register %s, and no tir_wgmma_wait is between", f->number,
            write ? "writes" : "reads", what);
  };
  for (const Sum *s : w.sums)
    if (address + width > s->of[k] && address < s->of[k] + s->bytes) tell("that a product under way adds to");
  auto holds = [&](const Product &p) {
    if (p.held[k] && address + width > p.held[k] && address < p.held[k] + 16) tell("that a product under way reads");
  };
  for (const Product &p : w.gathered) holds(p);
  for (const auto &group : w.groups)
    for (const Product &p : group) holds(p);
}

bool on_stack(const Fiber *f, const u8 *address, size_t bytes) {
  return address >= f->stack && address + bytes <= f->stack + W.stack;
}

void check_registers(size_t bytes, const void *at) {
  for (int k = 0; k < WARPGROUP; k++) {
    const Fiber *f = members()[k];
    const Issue &mine = *(const Issue *)own_group().brought[k], &first = *(const Issue *)own_group().brought[0];
    if (mine.adds != first.adds)
      problem("wgmma.operand", at, nullptr, "thread %d %s its registers, unlike the first of its warpgroup", f->number,
              mine.adds ? "adds to" : "replaces");
    if (mine.a != first.a || mine.b != first.b)
      problem("wgmma.operand", at, nullptr, "thread %d describes other tiles than the first of its warpgroup", f->number);
    if (mine.room < bytes || !on_stack(f, mine.d, bytes) ||
        (mine.held && (mine.a_room < 16 || !on_stack(f, mine.held, 16)))) {
      problem("memory.out-of-bounds", at, nullptr, "thread %d leaves an array that the text declares", f->number);
      give_up();
    }
    if (!own_group().fenced)
      problem("fence.registers", at, nullptr, "thread %d multiplies with no tir_wgmma_fence before", f->number);
    else if (used_since_fence(f, mine.d, bytes) || (mine.held && used_since_fence(f, mine.held, 16)))
      problem("fence.registers", at, nullptr, "thread %d has used registers of a product since its last tir_wgmma_fence",
              f->number);
    else if (!holds(f, mine.d, bytes) || (mine.held && !holds(f, mine.held, 16)))
      problem("hold.registers", at, nullptr, "thread %d uses registers of a product between the last tir_hold and the fence",
              f->number);
  }
}

// The sums that begin at the same registers, or new ones: from here on they are NaN.
Sum *sum_of(Warpgroup &w, size_t bytes) {
  for (Sum *s : w.sums)
    if (s->of[0] == ((Issue *)w.brought[0])->d && s->bytes == bytes) return s;
  Sum *s = new Sum{{}, bytes, std::vector<u8>(bytes * WARPGROUP), 0};
  for (int k = 0; k < WARPGROUP; k++) {
    s->of[k] = ((Issue *)w.brought[k])->d;
    std::memcpy(s->values.data() + k * bytes, s->of[k], bytes);
    std::memset(s->of[k], 0xff, bytes);
  }
  w.sums.push_back(s);
  return s;
}

void start_product(Product p, Issue mine, const void *at) {
  if (!gather("a product", &mine, at)) return;
  Warpgroup &w = own_group();
  int group = W.current->number / WARPGROUP, bytes = KIND_BYTES[p.kind];
  int &agent = W.product_agent[W.current->rank][group];
  size_t sum_bytes = (size_t)p.n / 2 * 4;
  if (!agent) agent = new_agent("a product of warpgroup " + std::to_string(group));
  check_registers(sum_bytes, at);
  if (!mine.held) p.a = pieces(mine.a, 64, p.a_along, bytes, at);
  p.b = pieces(mine.b, p.n, p.b_along, bytes, at);
  p.site = site(at, READ_SHARED, (unsigned)PIECE);
  for (int k = 0; k < WARPGROUP; k++) {
    p.held[k] = ((Issue *)w.brought[k])->held;
    if (p.held[k]) p.a_bytes.insert(p.a_bytes.end(), p.held[k], p.held[k] + 16);
  }
  if (W.count) {
    int row = TILE_ROW / (int)PIECE;
    if (!mine.held) count_reads(p.a, p.a_along ? 64 * bytes / (int)PIECE : row, p.site);
    count_reads(p.b, p.b_along ? p.n * bytes / (int)PIECE : row, p.site);
  }
  check_tiles(p);
  p.sum = sum_of(w, sum_bytes);
  p.sum->pending++;
  w.gathered.push_back(std::move(p));
  scatter();
}

// --- what a product computes

double number(Kind kind, const u8 *p) {
  u32 word = 0;
  std::memcpy(&word, p, KIND_BYTES[kind]);
  switch (kind) {
    case F16: return from_half((u16)word);
    case BF16: return from_bfloat16((u16)word);
    case TF32: return bits_to_float(word & ~0x1fffu);  // the lower bits are not looked at
    case S8: return (int8_t)word;
    case E4M3: return from_float8((u8)word, 3);
    case E5M2: return from_float8((u8)word, 2);
    default: return (u8)word;
  }
}

double tile_a[64][TILE_ROW], tile_b[TILE_ROW][256], tile_d[64][256];

// put(row, k, value) for a tile in shared memory.
template <class Put> void read_tile(const std::vector<u32> &where, Kind kind, int rows, bool along, Put put) {
  int bytes = KIND_BYTES[kind], each = (int)PIECE / bytes, wide = (along ? rows : TILE_ROW / bytes) / each;
  for (int n = 0; n < (int)where.size(); n++)
    for (int e = 0; e < each; e++) {
      int line = n / wide, inside = n % wide * each + e;
      put(along ? inside : line, along ? line : inside, number(kind, (u8 *)base() + where[n] + e * bytes));
    }
}

// Four registers a thread: rows g, g + 8, g, g + 8 of the 16 of its warp, the last two half of k further on; neighbours
// along k share a register.
void read_held(const Product &p) {
  int bytes = KIND_BYTES[p.kind], each = 4 / bytes;
  for (int k = 0; k < WARPGROUP; k++)
    for (int n = 0; n < 4 * each; n++) {
      int r = n / each, lane = k % WARP;
      tile_a[k / WARP * 16 + lane / 4 + 8 * (r % 2)][(lane % 4 + 4 * (r / 2)) * each + n % each] =
          number(p.kind, p.a_bytes.data() + k * 16 + n * bytes);
    }
}

// Terms are added to what the sums were in this order, and rounded once: interp/tensor_cores.py.
void multiply(int n, int depth) {
  for (int r = 0; r < 64; r++) {
    double *d = tile_d[r];
    for (int k = 0; k < depth; k++) {
      double a = tile_a[r][k];
      const double *b = tile_b[k];
      for (int j = 0; j < n; j += 8)
        for (int i = 0; i < 8; i++) d[j + i] += a * b[j + i];
    }
  }
}

// Thread k holds columns 2 t, 2 t + 1 of each eight, of rows g and g + 8 of the 16 of its warp.
double &sum_at(int k, int j) {
  int lane = k % WARP, row = k / WARP * 16 + lane / 4;
  return tile_d[row + 8 * (j / 2 % 2)][j / 4 * 8 + lane % 4 * 2 + j % 2];
}

template <class D> void add_up(const Product &p, int depth) {
  D *d = (D *)p.sum->values.data();
  int each = p.n / 2;
  for (int k = 0; k < WARPGROUP; k++)
    for (int j = 0; j < each; j++) sum_at(k, j) = p.adds ? d[k * each + j] : 0;
  multiply(p.n, depth);
  for (int k = 0; k < WARPGROUP; k++)
    for (int j = 0; j < each; j++) {
      double made = sum_at(k, j);
      d[k * each + j] = (D)(std::is_integral<D>::value ? (long long)made : made);
    }
}

void finish(Warpgroup &w, const Product &p) {
  int depth = TILE_ROW / KIND_BYTES[p.kind];
  if (p.a.empty())
    read_held(p);
  else
    read_tile(p.a, p.kind, 64, p.a_along, [](int m, int k, double v) { tile_a[m][k] = v; });
  read_tile(p.b, p.kind, p.n, p.b_along, [](int n, int k, double v) { tile_b[k][n] = v; });
  if (p.kind == S8 || p.kind == U8)
    add_up<int>(p, depth);
  else
    add_up<float>(p, depth);
  if (--p.sum->pending) return;
  for (int k = 0; k < WARPGROUP; k++) {
    std::memcpy(p.sum->of[k], p.sum->values.data() + k * p.sum->bytes, p.sum->bytes);
    landed(members()[k], p.sum->of[k], p.sum->bytes);
  }
  w.sums.erase(std::find(w.sums.begin(), w.sums.end(), p.sum));
  delete p.sum;
}

// Of a block: what it begins with is all that its warpgroups can deal out.
int all_registers() { return W.begins * W.threads; }

void set_registers(int n, bool up, const void *at) {
  const char *doing = up ? "tir_registers_up" : "tir_registers_down";
  if (n < 24 || n > 256 || n % 8) {
    problem("warp.registers", at, nullptr, "%d registers a thread: multiples of 8 from 24 to 256 can be asked for", n);
    give_up();
  }
  if (!gather(doing, nullptr, at)) return;
  if (!W.begins)
    problem("warp.registers", at, nullptr, "thread %d runs %s, which ptxas ignores in a kernel without __launch_bounds__",
            W.current->number, doing);
  int has = own_group().registers ? own_group().registers : W.begins;
  if (W.begins && (up ? n < has : n > has))
    problem("warp.registers", at, nullptr, "thread %d runs %s for %d registers, and its warpgroup has %d", W.current->number,
            doing, n, has);
  own_group().registers = n;
  int all = 0;
  for (const Warpgroup &w : warpgroups[W.current->rank]) all += w.registers * WARPGROUP;
  if (W.begins && all > all_registers())
    problem("warp.registers", at, nullptr, "the warpgroups of a block ask for %d registers together, and it begins with %d",
            all, all_registers());
  scatter();
}

void start_products() {
  for (int rank = 0; rank < W.cluster; rank++)
    for (Warpgroup &w : warpgroups[rank]) {
      for (Sum *s : w.sums) delete s;
      w = Warpgroup();
    }
  std::memset(W.product_agent, 0, sizeof W.product_agent);
  for (Fiber *f : W.fibers) f->fence++;
}

// Who asks for more registers waits until others have left enough: all begin with as many as there are for each.
void enough_registers(const Warpgroup *of_block) {
  int begins = W.begins, all = 0;
  const void *at = nullptr;
  for (int w = 0; w < W.threads / WARPGROUP; w++) {
    int n = of_block[w].registers;
    if (n > begins) at = of_block[w].at;
    all += (n ? n : begins) * WARPGROUP;
  }
  if (at && begins && all > all_registers())
    problem("warp.registers", at, nullptr, "the warpgroups of a block need %d registers, of which some are not left by "
            "those that began with %d a thread, and there are %d", all, begins, all_registers());
}

void end_products() {
  for (int rank = 0; rank < W.cluster; rank++) enough_registers(warpgroups[rank]);
  for (int rank = 0; rank < W.cluster; rank++)
    for (const Warpgroup &w : warpgroups[rank])
      if (!w.sums.empty())
        problem("memory.unfinished", w.at, nullptr, "block %d ends while products of warpgroup %d are under way",
                W.block_number + rank, (int)(&w - warpgroups[rank]));
}

void start_units() {
  start_cluster();
  start_copies();
  start_products();
}

void end_units() {
  end_copies();
  end_products();
  end_cluster();
}

}  // namespace

extern "C" {
unsigned long long tir_descriptor(const void *p, int leading, int stride) { return descriptor(p, leading, stride, HERE); }

void tir_wgmma_fence() {
  Fiber *f = W.current;
  track(f);
  f->fence++;
  if (!gather("tir_wgmma_fence", nullptr, HERE)) return;
  own_group().fenced = true;
  scatter();
}

void tir_wgmma_product(void *d, size_t room, u64 a, u64 b, int n, int kind, int a_along, int b_along, int adds) {
  Product p{(Kind)kind, n, a_along != 0, b_along != 0, {}, {}, {}, {}, adds != 0, nullptr, 0};
  start_product(p, {(u8 *)d, room, 0, nullptr, a, b, adds != 0}, HERE);
}

void tir_wgmma_product_held(void *d, size_t room, const void *a, size_t a_room, u64 b, int n, int kind, int b_along,
                            int adds) {
  Product p{(Kind)kind, n, false, b_along != 0, {}, {}, {}, {}, adds != 0, nullptr, 0};
  start_product(p, {(u8 *)d, room, a_room, (const u8 *)a, 0, b, adds != 0}, HERE);
}

void tir_hold_registers(const void *first, size_t bytes) {
  Fiber *f = W.current;
  const u8 *address = (const u8 *)first;
  track(f);
  for (size_t w = (size_t)(address - f->stack) / 4; w < (size_t)(address - f->stack + bytes) / 4; w++) {
    u32 &word = f->touched[w];
    if (word == LANDED) word = 0;
    else if (!(word & HELD)) word = f->fence;  // what set it may come as late as this, behind the fence
    word |= HELD;
  }
}

void tir_wgmma_commit() {
  if (!gather("tir_wgmma_commit", nullptr, HERE)) return;
  Warpgroup &w = own_group();
  w.groups.push_back(std::move(w.gathered));
  w.gathered.clear();
  scatter();
}

void tir_wgmma_wait_but(int pending) {
  if (!gather("tir_wgmma_wait", nullptr, HERE)) return;
  Warpgroup &w = own_group();
  int group = W.current->number / WARPGROUP, agent = W.product_agent[W.current->rank][group];
  w.clock++;
  for (; (int)w.groups.size() > pending; w.groups.pop_front())
    for (const Product &p : w.groups.front()) {
      finish(w, p);
      let_tiles_go(p, group, w.clock);
    }
  for (int k = 0; agent && k < WARPGROUP; k++) members()[k]->seen[agent] = w.clock;
  scatter();
}

void tir_set_registers(int n, int up) { set_registers(n, up != 0, HERE); }
}
