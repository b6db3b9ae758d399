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
  if (f->rank) return;  // another block, of the same cluster
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

}  // namespace
