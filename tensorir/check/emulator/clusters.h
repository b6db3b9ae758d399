// Blocks of a cluster, which run at once: they meet, and arrive at each other's barriers, after the PTX ISA.
//
// Each block has its own shared memory, cells and barriers. What one does to another must be done before that one ends, so
// the last arrival of each thread at the barriers of each other block is kept: a thread of that block must come after it.
// Copies for other blocks are in copies.h. A device lets a cluster meet without threads that have ended; here all must come.
#pragma once

namespace {

struct Remote { u32 clock; const void *at; };

std::map<std::pair<int, int>, Remote> remote;  // of a thread, at a block
bool relaxed_meeting = false;  // the next one: some have come by tir_meet_cluster

void start_cluster() {
  remote.clear();
  relaxed_meeting = false;
}

void end_cluster() {
  for (auto &entry : remote) {
    const Fiber *f = W.fibers[entry.first.first];
    int rank = entry.first.second;
    bool after = false;
    for (const Fiber *g : W.blocks[rank]) after |= before(g, f->id, entry.second.clock);
    if (!after)
      problem("cluster.ended", entry.second.at, nullptr, "block %d may end before thread %d of block %d arrives at its "
              "barrier, which goes with its shared memory", W.block_number + rank, f->number, W.block_number + f->rank);
  }
}

void meet_cluster(const void *at) {
  if (++W.at_cluster < (int)W.fibers.size()) {
    wait(WAITS_CLUSTER, at);
    return;
  }
  W.at_cluster = 0;
  if (!relaxed_meeting) meet(W.fibers);
  for (auto &entry : barriers) entry.second.met |= entry.second.known;
  relaxed_meeting = false;
  wake_others(W.fibers);
}

}  // namespace

extern "C" {
unsigned char *tir_own_shared(unsigned char *of_image) {
  return W.cluster == 1 ? of_image : shared_of(W.current->rank) + (of_image - W.image);
}

void tir_sync_cluster() { meet_cluster(HERE); }

// barrier.cluster.arrive.relaxed orders no memory; fence.mbarrier_init before it lets all know the barriers. Behind it a
// block may end before arrivals from others that were made before it.
void tir_meet_cluster() {
  relaxed_meeting = true;
  meet_cluster(HERE);
}

void tir_barrier_arrive_at(unsigned long long *barrier, int rank) {
  Fiber *f = W.current;
  if (rank < 0 || rank >= W.cluster) {
    problem("cluster.rank", HERE, nullptr, "thread %d arrives at a barrier of block %d of its cluster, which has %d",
            f->number, rank, W.cluster);
    give_up();
  }
  if (rank != f->rank) remote[{f->id, rank}] = {f->clock, HERE};
  arrive(barrier, rank, 0, HERE);
}
}
