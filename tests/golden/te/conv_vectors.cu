// Y float32[6, 6, 32, 32] from X float32[6, 6, 16, 32], W float32[3, 3, 16, 32]
// alignment in bytes: X 16, W 16, Y 16
// launch Y_kernel: blocks (2, 2, 36), threads (4, 4, 1), shared 1024 B
// s.fuse('Y.p', 'Y.q')
// s.split('Y.k', [None, 4, 4], names=['Y.kb', 'Y.kt', 'Y.ki'])
// s.split('Y.n', [None, 4, 4], names=['Y.nb', 'Y.nt', 'Y.ni'])
// s.reorder('Y.p&q', 'Y.kb', 'Y.nb', 'Y.kt', 'Y.nt', 'Y.r', 'Y.s', 'Y.c', 'Y.ki', 'Y.ni')
// s.bind('Y.p&q', 'block.z')
// s.bind('Y.kb', 'block.y')
// s.bind('Y.nb', 'block.x')
// s.bind('Y.kt', 'thread.y')
// s.bind('Y.nt', 'thread.x')
// s.stage_out('Y', 'Y.nt', 'register')
// s.split('Y.c', [None, 8], names=['Y.co', 'Y.ci'])
// s.stage_in('P', 'Y.co', 'shared', vector=4)
// s.stage_in('W', 'Y.co', 'shared', vector=4)
// s.compute_inline('P')
// s.stage_in('P_shared', 'Y.ci', 'register', vector=4)
// s.stage_in('W_shared', 'Y.ci', 'register', vector=4)
// s.unroll('Y.ki')
// s.unroll('Y.ni')
// s.unroll('Y.out.k')
// s.vectorize('Y.out.n')

extern "C" __global__ void __launch_bounds__(16)
Y_kernel(const float *__restrict__ X, const float *__restrict__ W, float *__restrict__ Y)
{
  __align__(16) __shared__ float W_shared[128];
  __align__(16) __shared__ float P_shared[128];
  const int p_q = blockIdx.z;
  const int kb = blockIdx.y;
  const int nb = blockIdx.x;
  const int kt = threadIdx.y;
  const int nt = threadIdx.x;
  __align__(16) float Y_register[16];
  #pragma unroll
  for (int init_ki = 0; init_ki < 4; ++init_ki) {
    #pragma unroll
    for (int init_ni = 0; init_ni < 4; ++init_ni)
      Y_register[init_ki * 4 + init_ni] = 0.0f;
  }
  const int P_shared_at = kt * 16 + nt * 4;
  const int X_at = p_q * 512 + kt * 32 + nb * 16 + nt * 4;
  const int W_shared_at = kt * 16 + nt * 4;
  const int W_at = kt * 32 + kb * 16 + nt * 4;
  for (int r = 0; r < 3; ++r)
    for (int s = 0; s < 3; ++s)
      for (int co = 0; co < 2; ++co) {
        for (int n = 0; n < 2; ++n)
          *(float4 *)(P_shared + P_shared_at + n * 64) = 1 <= p_q / 6 + r && p_q / 6 + r < 7 && 1 <= p_q % 6 + s && p_q % 6 + s < 7 ? *(const float4 *)(X + X_at + r * 3072 + s * 512 + co * 256 + n * 128 - 3584) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int n = 0; n < 2; ++n)
          *(float4 *)(W_shared + W_shared_at + n * 64) = *(const float4 *)(W + W_at + r * 1536 + s * 512 + co * 256 + n * 128);
        __syncthreads();
        for (int ci = 0; ci < 8; ++ci) {
          __align__(16) float W_shared_register[4];
          __align__(16) float P_shared_register[4];
          *(float4 *)(P_shared_register) = *(float4 *)(P_shared + ci * 16 + nt * 4);
          *(float4 *)(W_shared_register) = *(float4 *)(W_shared + ci * 16 + kt * 4);
          #pragma unroll
          for (int ki = 0; ki < 4; ++ki) {
            #pragma unroll
            for (int ni = 0; ni < 4; ++ni)
              Y_register[ki * 4 + ni] += P_shared_register[ni] * W_shared_register[ki];
          }
        }
        __syncthreads();
      }
  const int Y_at = p_q * 1024 + kb * 512 + kt * 128 + nb * 16 + nt * 4;
  #pragma unroll
  for (int out_k = 0; out_k < 4; ++out_k)
    *(float4 *)(Y + Y_at + out_k * 32) = *(float4 *)(Y_register + out_k * 4);
}
