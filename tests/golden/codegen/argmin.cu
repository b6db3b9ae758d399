// Y int32[6] from X float32[6, 9]
// launch Y_kernel: blocks (2, 1, 1), threads (4, 1, 1), shared 0 B
// s.split('Y.i', [None, 4])
// s.bind('Y.i.0', 'block.x')
// s.bind('Y.i.1', 'thread.x')
// s.split('Y.r', [None, 2])

extern "C" __global__ void __launch_bounds__(4)
Y_kernel(const float *__restrict__ X, int *__restrict__ Y)
{
  const int i_0 = blockIdx.x;
  const int i_1 = threadIdx.x;
  float Y_state0[1];
  if (i_0 * 4 + i_1 < 6) {
    Y_state0[0] = __int_as_float(0x7f800000);
    Y[i_0 * 4 + i_1] = 2147483647;
  }
  const int X_at = i_0 * 36 + i_1 * 9;
  if (i_0 * 4 + i_1 < 6)
    for (int r_0 = 0; r_0 < 5; ++r_0)
      for (int r_1 = 0; r_1 < 2; ++r_1)
        if (r_0 * 2 + r_1 < 9) {
          const float Y_state0_old = Y_state0[0];
          const int Y_old = Y[i_0 * 4 + i_1];
          const float Y_state0_new = X[X_at + r_0 * 2 + r_1];
          const int Y_new = r_0 * 2 + r_1;
          Y_state0[0] = !(Y_state0_old <= Y_state0_new) && (Y_state0_old == Y_state0_old || Y_state0_new != Y_state0_new && Y_new < Y_old) || Y_state0_old == Y_state0_new && Y_new < Y_old ? Y_state0_new : Y_state0_old;
          Y[i_0 * 4 + i_1] = !(Y_state0_old <= Y_state0_new) && (Y_state0_old == Y_state0_old || Y_state0_new != Y_state0_new && Y_new < Y_old) || Y_state0_old == Y_state0_new && Y_new < Y_old ? Y_new : Y_old;
        }
}
