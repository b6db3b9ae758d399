// What tells the emulator in which turns of loops a thread is: put in front of the text, behind all other headers. What
// compilers compute ahead of time has no thread.
#pragma once

extern "C" {
int tir_begin_loop();
void tir_next_turn(int loop);
void tir_end_loop(int loop);
}
#define TIR_AHEAD __builtin_is_constant_evaluated()
// in the text itself, so that a loop without an end is told with its line
#define TIR_TURN __attribute__((always_inline)) constexpr
TIR_TURN int tir_loop_begun() { return TIR_AHEAD ? 1 : tir_begin_loop(); }
TIR_TURN bool tir_not_turned(int loop) { return TIR_AHEAD ? false : (tir_next_turn(loop), false); }
TIR_TURN int tir_loop_ended(int loop) { return TIR_AHEAD ? 0 : (tir_end_loop(loop), 0); }
#define for(...) \
  for (int tir_loop = tir_loop_begun(); tir_loop; tir_loop = tir_loop_ended(tir_loop)) \
    for (__VA_ARGS__) \
      if (tir_not_turned(tir_loop)) { \
      } else
