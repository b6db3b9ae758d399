// C float32[128, 128] from A float32[128, 64], B float32[64, 128]
// alignment in bytes: B 16, C 16, P 16
// launch P_kernel0: blocks (4, 1, 1), threads (64, 1, 1), shared 0 B
// launch C_kernel1: blocks (4, 4, 1), threads (32, 1, 1), shared 0 B
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
// s.reorder('C.i.1', 'C.k.0', 'C.k.1', 'C.j.1.0')
// s.stage_out('C', 'C.i.1', 'register')
// s.split('C.out.j', [None, 8])
// s.vectorize('C.out.j.1')
// s.unroll('C.out.j.0')
// s.unroll('C.k.1')
// s.unroll('C.j.1.0')
// s.bind('C.i.0', 'block.y')
// s.bind('C.j.0', 'block.x')
// s.bind('C.i.1', 'thread.x')
// s.bind('P.b', 'block.x')
// s.bind('P.r', 'thread.x')

extern "C" __global__ void __launch_bounds__(64)
P_kernel0(const float *__restrict__ B, float *__restrict__ P)
{
  const int b = blockIdx.x;
  const int r = threadIdx.x;
  const int P_at = b * 2048 + r * 32;
  const int B_at = r * 128 + b * 32;
  for (int c_0 = 0; c_0 < 4; ++c_0) {
    #pragma unroll
    for (int c_1_v = 0; c_1_v < 2; ++c_1_v)
      *(float4 *)(P + P_at + c_0 * 8 + c_1_v * 4) = *(const float4 *)(B + B_at + c_0 * 8 + c_1_v * 4);
  }
}

extern "C" __global__ void __launch_bounds__(32)
C_kernel1(const float *__restrict__ A, float *__restrict__ C, const float *__restrict__ P)
{
  const int i_0 = blockIdx.y;
  const int j_0 = blockIdx.x;
  const int i_1 = threadIdx.x;
  __align__(16) float C_register[32];
  #pragma unroll
  for (int init_j_1_0 = 0; init_j_1_0 < 4; ++init_j_1_0) {
    #pragma unroll
    for (int init_j_1_1_v = 0; init_j_1_1_v < 2; ++init_j_1_1_v)
      *(float4 *)(C_register + init_j_1_0 * 8 + init_j_1_1_v * 4) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  const int A_at = i_0 * 2048 + i_1 * 64;
  for (int k_0 = 0; k_0 < 16; ++k_0) {
    #pragma unroll
    for (int k_1 = 0; k_1 < 4; ++k_1) {
      #pragma unroll
      for (int j_1_0 = 0; j_1_0 < 4; ++j_1_0) {
        #pragma unroll
        for (int j_1_1 = 0; j_1_1 < 8; ++j_1_1)
          C_register[j_1_0 * 8 + j_1_1] += A[A_at + k_0 * 4 + k_1] * P[j_0 * 2048 + k_0 * 128 + k_1 * 32 + j_1_0 * 8 + j_1_1];
      }
    }
  }
  const int C_at = i_0 * 4096 + i_1 * 128 + j_0 * 32;
  #pragma unroll
  for (int out_j_0 = 0; out_j_0 < 4; ++out_j_0) {
    #pragma unroll
    for (int out_j_1_v = 0; out_j_1_v < 2; ++out_j_1_v)
      *(float4 *)(C + C_at + out_j_0 * 8 + out_j_1_v * 4) = *(float4 *)(C_register + out_j_0 * 8 + out_j_1_v * 4);
  }
}
