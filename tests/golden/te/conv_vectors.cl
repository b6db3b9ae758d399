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

__kernel __attribute__((reqd_work_group_size(4, 4, 1)))
void Y_kernel(__global const float *restrict X, __global const float *restrict W, __global float *restrict Y)
{
  __local float W_shared[128] __attribute__((aligned(16)));
  __local float P_shared[128] __attribute__((aligned(16)));
  const long p_q = get_group_id(2);
  const long kb = get_group_id(1);
  const long nb = get_group_id(0);
  const long kt = get_local_id(1);
  const long nt = get_local_id(0);
  float Y_register[16] __attribute__((aligned(16)));
  #pragma unroll
  for (long init_ki = 0; init_ki < 4; ++init_ki) {
    #pragma unroll
    for (long init_ni = 0; init_ni < 4; ++init_ni)
      Y_register[init_ki * 4 + init_ni] = 0.0f;
  }
  const long P_shared_at = kt * 16 + nt * 4;
  const long X_at = p_q * 512 + kt * 32 + nb * 16 + nt * 4;
  const long W_shared_at = kt * 16 + nt * 4;
  const long W_at = kt * 32 + kb * 16 + nt * 4;
  for (long r = 0; r < 3; ++r)
    for (long s = 0; s < 3; ++s)
      for (long co = 0; co < 2; ++co) {
        for (long n = 0; n < 2; ++n)
          *(__local float4 *)(P_shared + P_shared_at + n * 64) = 1 <= p_q / 6 + r && p_q / 6 + r < 7 && 1 <= p_q % 6 + s && p_q % 6 + s < 7 ? *(__global const float4 *)(X + X_at + r * 3072 + s * 512 + co * 256 + n * 128 - 3584) : (float4)(0.0f);
        for (long n = 0; n < 2; ++n)
          *(__local float4 *)(W_shared + W_shared_at + n * 64) = *(__global const float4 *)(W + W_at + r * 1536 + s * 512 + co * 256 + n * 128);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (long ci = 0; ci < 8; ++ci) {
          float W_shared_register[4] __attribute__((aligned(16)));
          float P_shared_register[4] __attribute__((aligned(16)));
          *(float4 *)(P_shared_register) = *(__local float4 *)(P_shared + ci * 16 + nt * 4);
          *(float4 *)(W_shared_register) = *(__local float4 *)(W_shared + ci * 16 + kt * 4);
          #pragma unroll
          for (long ki = 0; ki < 4; ++ki) {
            #pragma unroll
            for (long ni = 0; ni < 4; ++ni)
              Y_register[ki * 4 + ni] += P_shared_register[ni] * W_shared_register[ki];
          }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
  const long Y_at = p_q * 1024 + kb * 512 + kt * 128 + nb * 16 + nt * 4;
  #pragma unroll
  for (long out_k = 0; out_k < 4; ++out_k)
    *(__global float4 *)(Y + Y_at + out_k * 32) = *(float4 *)(Y_register + out_k * 4);
}
