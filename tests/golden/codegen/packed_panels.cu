// C float32[7, 40] from A float32[7, 6], B float32[6, 40]
// launch B_global_kernel0: blocks (3, 1, 1), threads (1, 1, 1), shared 0 B
// launch A_global_kernel1: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// launch C_kernel2: blocks (3, 1, 1), threads (1, 1, 1), shared 0 B
// s.split('C.j', [None, 2, 8])
// s.split('C.i', [None, 3])
// s.reorder('C.j.0', 'C.i.0', 'C.k', 'C.i.1', 'C.j.1', 'C.j.2')
// s.bind('C.j.0', 'block.x')
// s.stage_in('B', 'root', 'global', layout='k, j -> j/16, k, j%16')
// s.split('B_global.ax1', [None, 16])
// s.reorder('B_global.ax1.0', 'B_global.ax0', 'B_global.ax1.1')
// s.bind('B_global.ax1.0', 'block.x')
// s.stage_in('A', 'root', 'global', pad=1, layout='i, k -> i/3, k, i%3')
// s.stage_out('C', 'C.i.0', 'register', layout='i, j -> j/8, i, j%8')
// s.unroll('C.i.1')
// s.unroll('C.j.1')
// s.vectorize('C.j.2')

extern "C" __global__ void __launch_bounds__(1)
B_global_kernel0(const float *__restrict__ B, float *__restrict__ B_global)
{
  const int ax1_0 = blockIdx.x;
  for (int ax0 = 0; ax0 < 6; ++ax0)
    for (int ax1_1 = 0; ax1_1 < 16; ++ax1_1)
      B_global[ax1_0 * 96 + ax0 * 16 + ax1_1] = ax1_0 * 16 + ax1_1 < 40 ? B[ax0 * 40 + ax1_0 * 16 + ax1_1] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(1)
A_global_kernel1(const float *__restrict__ A, float *__restrict__ A_global)
{
  for (int ax0 = 0; ax0 < 9; ++ax0)
    for (int ax1 = 0; ax1 < 6; ++ax1)
      A_global[ax0 / 3 * 24 + ax1 * 4 + ax0 % 3] = ax0 < 7 ? A[ax0 * 6 + ax1] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(1)
C_kernel2(float *__restrict__ C, const float *__restrict__ A_global, const float *__restrict__ B_global)
{
  const int j_0 = blockIdx.x;
  for (int i_0 = 0; i_0 < 3; ++i_0) {
    __align__(16) float C_register[48];
    #pragma unroll
    for (int init_i_1 = 0; init_i_1 < 3; ++init_i_1) {
      #pragma unroll
      for (int init_j_1 = 0; init_j_1 < 2; ++init_j_1) {
        #pragma unroll
        for (int init_j_2_v = 0; init_j_2_v < 2; ++init_j_2_v)
          *(float4 *)(C_register + init_j_1 * 24 + init_i_1 * 8 + init_j_2_v * 4) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
    }
    for (int k = 0; k < 6; ++k) {
      #pragma unroll
      for (int i_1 = 0; i_1 < 3; ++i_1) {
        #pragma unroll
        for (int j_1 = 0; j_1 < 2; ++j_1) {
          #pragma unroll
          for (int j_2 = 0; j_2 < 8; ++j_2)
            C_register[j_1 * 24 + i_1 * 8 + j_2] += A_global[i_0 * 24 + k * 4 + i_1] * B_global[j_0 * 96 + k * 16 + j_1 * 8 + j_2];
        }
      }
    }
    for (int out_i = 0; out_i < 3; ++out_i)
      if (i_0 * 3 + out_i < 7)
        for (int out_j = 0; out_j < 16; ++out_j)
          if (j_0 * 16 + out_j < 40)
            C[i_0 * 120 + out_i * 40 + j_0 * 16 + out_j] = C_register[out_j / 8 * 24 + out_i * 8 + out_j % 8];
  }
}
