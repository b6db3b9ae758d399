// Y int32[6] from X float32[6, 9]
// launch Y_kernel: blocks (2, 1, 1), threads (4, 1, 1), shared 0 B
// s.split('Y.i', [None, 4])
// s.bind('Y.i.0', 'block.x')
// s.bind('Y.i.1', 'thread.x')
// s.split('Y.r', [None, 2])

__kernel __attribute__((reqd_work_group_size(4, 1, 1)))
void Y_kernel(__global const float *restrict X, __global int *restrict Y)
{
  const long i_0 = get_group_id(0);
  const long i_1 = get_local_id(0);
  float Y_state0[1];
  if (i_0 * 4 + i_1 < 6) {
    Y_state0[0] = INFINITY;
    Y[i_0 * 4 + i_1] = 2147483647;
  }
  const long X_at = i_0 * 36 + i_1 * 9;
  if (i_0 * 4 + i_1 < 6)
    for (long r_0 = 0; r_0 < 5; ++r_0)
      for (long r_1 = 0; r_1 < 2; ++r_1)
        if (r_0 * 2 + r_1 < 9) {
          const float Y_state0_old = Y_state0[0];
          const int Y_old = Y[i_0 * 4 + i_1];
          const float Y_state0_new = X[X_at + r_0 * 2 + r_1];
          const int Y_new = (int)(r_0 * 2 + r_1);
          Y_state0[0] = !(Y_state0_old <= Y_state0_new) && (Y_state0_old == Y_state0_old || Y_state0_new != Y_state0_new && Y_new < Y_old) || Y_state0_old == Y_state0_new && Y_new < Y_old ? Y_state0_new : Y_state0_old;
          Y[i_0 * 4 + i_1] = !(Y_state0_old <= Y_state0_new) && (Y_state0_old == Y_state0_old || Y_state0_new != Y_state0_new && Y_new < Y_old) || Y_state0_old == Y_state0_new && Y_new < Y_old ? Y_new : Y_old;
        }
}
