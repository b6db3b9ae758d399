// C float32[128, 128] from A float32[128, 64], B float32[64, 128]
// alignment in bytes: B 16, C 16, P 16
// launch P_kernel0: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// launch C_kernel1: blocks (1, 1, 1), threads (1, 1, 1), shared 0 B
// s.split('C.i', [None, 32])
// s.split('C.j', [None, 32])
// s.reorder('C.i.0', 'C.j.0', 'C.i.1', 'C.j.1')
// s.split('C.k', [None, 4])
// s.reorder('C.i.0', 'C.j.0', 'C.k.0', 'C.k.1', 'C.i.1', 'C.j.1')
// s.split('C.j.1', [None, 8])
// s.vectorize('C.j.1.1')
// s.reorder('C.i.1', 'C.k.1')
// s.split('P.c', [None, 8])
// s.vectorize('P.c.1')

extern "C" __global__ void __launch_bounds__(1)
P_kernel0(const float *__restrict__ B, float *__restrict__ P)
{
  for (int b = 0; b < 4; ++b)
    for (int r = 0; r < 64; ++r)
      for (int c_0 = 0; c_0 < 4; ++c_0) {
        #pragma unroll
        for (int c_1_v = 0; c_1_v < 2; ++c_1_v)
          *(float4 *)(P + b * 2048 + r * 32 + c_0 * 8 + c_1_v * 4) = *(const float4 *)(B + r * 128 + b * 32 + c_0 * 8 + c_1_v * 4);
      }
}

extern "C" __global__ void __launch_bounds__(1)
C_kernel1(const float *__restrict__ A, float *__restrict__ C, const float *__restrict__ P)
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
        for (int i_1 = 0; i_1 < 32; ++i_1)
          for (int k_1 = 0; k_1 < 4; ++k_1)
            for (int j_1_0 = 0; j_1_0 < 4; ++j_1_0) {
              #pragma unroll
              for (int j_1_1_v = 0; j_1_1_v < 2; ++j_1_1_v) {
                __align__(16) float P_lanes[4];
                __align__(16) float C_lanes[4];
                *(float4 *)(C_lanes) = *(const float4 *)(C + i_0 * 4096 + i_1 * 128 + j_0 * 32 + j_1_0 * 8 + j_1_1_v * 4);
                *(float4 *)(P_lanes) = *(const float4 *)(P + j_0 * 2048 + k_0 * 128 + k_1 * 32 + j_1_0 * 8 + j_1_1_v * 4);
                *(float4 *)(C + i_0 * 4096 + i_1 * 128 + j_0 * 32 + j_1_0 * 8 + j_1_1_v * 4) = make_float4(C_lanes[0] + A[i_0 * 2048 + i_1 * 64 + k_0 * 4 + k_1] * P_lanes[0], C_lanes[1] + A[i_0 * 2048 + i_1 * 64 + k_0 * 4 + k_1] * P_lanes[1], C_lanes[2] + A[i_0 * 2048 + i_1 * 64 + k_0 * 4 + k_1] * P_lanes[2], C_lanes[3] + A[i_0 * 2048 + i_1 * 64 + k_0 * 4 + k_1] * P_lanes[3]);
              }
            }
    }
}
