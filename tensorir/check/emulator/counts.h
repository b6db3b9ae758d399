// What each place of the text asks of memory, counted by requests of warps.
#pragma once

namespace {

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

void settle(const Request &r) {
  Site &s = W.sites[r.site];
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

// A request of a warp is of the lanes that come by a place in the same turns of all loops around it, between the same
// barriers of the block; where they do so several times (loops of other kinds, functions), the n-th time of each.
void counted(Fiber *f, int id, u64 address) {
  if (f->rank) return;  // another block, of the same cluster
  u64 turn = mixed(f->turn, W.meetings);
  Pass &pass = W.passes[f->id][id];
  pass = {turn, pass.turn == turn ? pass.times + 1 : 1};
  auto &open = W.open[f->warp];
  u64 key = mixed(mixed(turn, (u64)id), pass.times);
  Request &r = open[key];
  r.site = id;
  r.lanes |= 1u << f->lane;
  r.address[f->lane] = address;
  int lanes = std::min(WARP, W.threads - (f->number - f->lane));  // the last warp may have fewer
  if (r.lanes != 0xffffffffu >> (WARP - lanes)) return;
  settle(r);
  open.erase(key);
}

// No lane comes by any more: the block is at a barrier, or at its end.
void settle_all() {
  for (auto &open : W.open) {
    for (auto &entry : open) settle(entry.second);
    open.clear();
  }
  W.meetings++;
}

}  // namespace
