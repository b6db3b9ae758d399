// Y float32[6, 6, 32, 32] from X float32[6, 6, 16, 32], W float32[3, 3, 16, 32]
// launch Y_kernel: blocks (2, 2, 36), threads (4, 4, 1), shared 0 B
// s.fuse('Y.p', 'Y.q')
// s.split('Y.k', [None, 4, 4], names=['Y.kb', 'Y.kt', 'Y.ki'])
// s.split('Y.n', [None, 4, 4], names=['Y.nb', 'Y.nt', 'Y.ni'])
// s.reorder('Y.p&q', 'Y.kb', 'Y.nb', 'Y.kt', 'Y.nt', 'Y.r', 'Y.s', 'Y.c', 'Y.ki', 'Y.ni')
// s.bind('Y.p&q', 'block.z')
// s.bind('Y.kb', 'block.y')
// s.bind('Y.nb', 'block.x')
// s.bind('Y.kt', 'thread.y')
// s.bind('Y.nt', 'thread.x')
// s.compute_inline('P')

__kernel __attribute__((reqd_work_group_size(4, 4, 1)))
void Y_kernel(__global const float *restrict X, __global const float *restrict W, __global float *restrict Y)
{
  const long p_q = get_group_id(2);
  const long kb = get_group_id(1);
  const long nb = get_group_id(0);
  const long kt = get_local_id(1);
  const long nt = get_local_id(0);
  const long Y_at = p_q * 1024 + kb * 512 + kt * 128 + nb * 16 + nt * 4;
  for (long init_ki = 0; init_ki < 4; ++init_ki)
    for (long init_ni = 0; init_ni < 4; ++init_ni)
      Y[Y_at + init_ki * 32 + init_ni] = 0.0f;
  const long Y_at2 = p_q * 1024 + kb * 512 + kt * 128 + nb * 16 + nt * 4;
  const long X_at = p_q * 512 + nb * 16 + nt * 4;
  const long W_at = kb * 16 + kt * 4;
  for (long r = 0; r < 3; ++r)
    for (long s = 0; s < 3; ++s)
      for (long c = 0; c < 16; ++c)
        for (long ki = 0; ki < 4; ++ki)
          for (long ni = 0; ni < 4; ++ni)
            Y[Y_at2 + ki * 32 + ni] += (1 <= p_q / 6 + r && p_q / 6 + r < 7 && 1 <= p_q % 6 + s && p_q % 6 + s < 7 ? X[X_at + r * 3072 + s * 512 + c * 32 + ni - 3584] : 0.0f) * W[W_at + r * 1536 + s * 512 + c * 32 + ki];
}
