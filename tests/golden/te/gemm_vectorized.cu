// C float32[128, 128] from A float32[128, 64], B float32[64, 128]
// alignment in bytes: B 16, C 16
// launch C_kernel: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// s.split('C.i', [None, 32])
// s.split('C.j', [None, 32])
// s.reorder('C.i.0', 'C.j.0', 'C.i.1', 'C.j.1')
// s.split('C.k', [None, 4])
// s.reorder('C.i.0', 'C.j.0', 'C.k.0', 'C.k.1', 'C.i.1', 'C.j.1')
// s.split('C.j.1', [None, 8])
// s.vectorize('C.j.1.1')

extern "C" __global__ void __launch_bounds__(1)
C_kernel(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C)
{
  for (int i_0 = 0; i_0 < 4; ++i_0)
    for (int j_0 = 0; j_0 < 4; ++j_0) {
      for (int init_i_1 = 0; init_i_1 < 32; ++init_i_1)
        for (int init_j_1_0 = 0; init_j_1_0 < 4; ++init_j_1_0) {
          #pragma unroll
          for (int init_j_1_1_v = 0; init_j_1_1_v < 2; ++init_j_1_1_v)
            *(float4 *)(C + i_0 * 4096 + init_i_1 * 128 + j_0 * 32 + init_j_1_0 * 8 + init_j_1_1_v * 4) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
      for (int k_0 = 0; k_0 < 16; ++k_0)
        for (int k_1 = 0; k_1 < 4; ++k_1)
          for (int i_1 = 0; i_1 < 32; ++i_1)
            for (int j_1_0 = 0; j_1_0 < 4; ++j_1_0) {
              #pragma unroll
              for (int j_1_1_v = 0; j_1_1_v < 2; ++j_1_1_v) {
                __align__(16) float B_lanes[4];
                __align__(16) float C_lanes[4];
                *(float4 *)(C_lanes) = *(const float4 *)(C + i_0 * 4096 + i_1 * 128 + j_0 * 32 + j_1_0 * 8 + j_1_1_v * 4);
                *(float4 *)(B_lanes) = *(const float4 *)(B + k_0 * 512 + k_1 * 128 + j_0 * 32 + j_1_0 * 8 + j_1_1_v * 4);
                *(float4 *)(C + i_0 * 4096 + i_1 * 128 + j_0 * 32 + j_1_0 * 8 + j_1_1_v * 4) = make_float4(C_lanes[0] + A[i_0 * 2048 + i_1 * 64 + k_0 * 4 + k_1] * B_lanes[0], C_lanes[1] + A[i_0 * 2048 + i_1 * 64 + k_0 * 4 + k_1] * B_lanes[1], C_lanes[2] + A[i_0 * 2048 + i_1 * 64 + k_0 * 4 + k_1] * B_lanes[2], C_lanes[3] + A[i_0 * 2048 + i_1 * 64 + k_0 * 4 + k_1] * B_lanes[3]);
              }
            }
    }
}
