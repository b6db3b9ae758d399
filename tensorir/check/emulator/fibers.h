// Threads as fibers: who runs, who waits, and what is ordered before what.
#pragma once

namespace {

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
  void **top = (void **)(f->stack + W.stack - 64);
  *--top = nullptr;  // the stack is aligned as after a call
  *--top = (void *)run_thread;
  for (int k = 0; k < 6; k++) *--top = nullptr;
  f->stack_pointer = top;
#else
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = W.stack;
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

void wake_others(std::vector<Fiber *> those) {
  those.erase(std::find(those.begin(), those.end(), W.current));
  for (size_t k = those.size(); k > 1; k--) std::swap(those[k - 1], those[random_number() % k]);
  for (Fiber *f : those) wake(f);
}

// watch.h, barriers.h, copies.h, wgmma.h
void stuck();    // no thread can go on
void compare_overwrites();
bool deliver();  // a copy that is under way lands, if there is one
void start_units();
void end_units();
void off_barriers(const u8 *place, u64 size, const void *at);
void registers_used(Fiber *f, const u8 *address, unsigned width, bool write, const void *at);

void leave() {  // the thread waits or has ended: another goes on
  compare_overwrites();
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

}  // namespace
