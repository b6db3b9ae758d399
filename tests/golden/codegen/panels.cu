// C float32[8, 64] from A float32[8, 6], B float32[6, 64]
// alignment in bytes: B 16
// launch C_kernel: blocks (2, 1, 1), threads (1, 1, 1), shared 768 B
// s.split('C.j', [None, 2, 2, 8])
// s.split('C.i', [None, 4])
// s.reorder('C.j.0', 'C.j.1', 'C.i.0', 'C.k', 'C.i.1', 'C.j.2', 'C.j.3')
// s.bind('C.j.0', 'block.x')
// s.stage_in('B', 'C.j.0', 'shared', vector=8, layout='k, j -> j/16, k, j%16')
// s.stage_out('C', 'C.i.0', 'register')
// s.unroll('C.i.1')
// s.unroll('C.j.2')
// s.vectorize('C.j.3')

extern "C" __global__ void __launch_bounds__(1)
C_kernel(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C)
{
  __align__(16) __shared__ float B_shared[192];
  const int j_0 = blockIdx.x;
  for (int ax0 = 0; ax0 < 6; ++ax0)
    for (int ax1_0 = 0; ax1_0 < 4; ++ax1_0) {
      #pragma unroll
      for (int ax1_1_v = 0; ax1_1_v < 2; ++ax1_1_v)
        *(float4 *)(B_shared + ax1_0 / 2 * 96 + ax0 * 16 + ax1_0 % 2 * 8 + ax1_1_v * 4) = *(const float4 *)(B + ax0 * 64 + j_0 * 32 + ax1_0 * 8 + ax1_1_v * 4);
    }
  for (int j_1 = 0; j_1 < 2; ++j_1)
    for (int i_0 = 0; i_0 < 2; ++i_0) {
      __align__(16) float C_register[64];
      #pragma unroll
      for (int init_i_1 = 0; init_i_1 < 4; ++init_i_1) {
        #pragma unroll
        for (int init_j_2 = 0; init_j_2 < 2; ++init_j_2) {
          #pragma unroll
          for (int init_j_3_v = 0; init_j_3_v < 2; ++init_j_3_v)
            *(float4 *)(C_register + init_i_1 * 16 + init_j_2 * 8 + init_j_3_v * 4) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
      }
      for (int k = 0; k < 6; ++k) {
        #pragma unroll
        for (int i_1 = 0; i_1 < 4; ++i_1) {
          #pragma unroll
          for (int j_2 = 0; j_2 < 2; ++j_2) {
            #pragma unroll
            for (int j_3 = 0; j_3 < 8; ++j_3)
              C_register[i_1 * 16 + j_2 * 8 + j_3] += A[i_0 * 24 + i_1 * 6 + k] * B_shared[j_1 * 96 + k * 16 + j_2 * 8 + j_3];
          }
        }
      }
      for (int out_i = 0; out_i < 4; ++out_i)
        for (int out_j = 0; out_j < 16; ++out_j)
          C[i_0 * 256 + out_i * 64 + j_0 * 32 + j_1 * 16 + out_j] = C_register[out_i * 16 + out_j];
    }
}
