// C float32[128, 128] from A float32[128, 64], B float32[64, 128]
// alignment in bytes: B 32, C 32, P 32
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

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void P_kernel0(__global const float *restrict B, __global float *restrict P)
{
  const long b = get_group_id(0);
  const long r = get_local_id(0);
  const long P_at = b * 2048 + r * 32;
  const long B_at = r * 128 + b * 32;
  for (long c_0 = 0; c_0 < 4; ++c_0)
    *(__global float8 *)(P + P_at + c_0 * 8) = *(__global const float8 *)(B + B_at + c_0 * 8);
}

__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void C_kernel1(__global const float *restrict A, __global float *restrict C, __global const float *restrict P)
{
  const long i_0 = get_group_id(1);
  const long j_0 = get_group_id(0);
  const long i_1 = get_local_id(0);
  float8 C_register[4];
  #pragma unroll
  for (long init_j_1_0 = 0; init_j_1_0 < 4; ++init_j_1_0)
    C_register[init_j_1_0] = (float8)(0.0f);
  const long A_at = i_0 * 2048 + i_1 * 64;
  for (long k_0 = 0; k_0 < 16; ++k_0) {
    #pragma unroll
    for (long k_1 = 0; k_1 < 4; ++k_1) {
      #pragma unroll
      for (long j_1_0 = 0; j_1_0 < 4; ++j_1_0)
        C_register[j_1_0] += A[A_at + k_0 * 4 + k_1] * *(__global const float8 *)(P + j_0 * 2048 + k_0 * 128 + k_1 * 32 + j_1_0 * 8);
    }
  }
  const long C_at = i_0 * 4096 + i_1 * 128 + j_0 * 32;
  #pragma unroll
  for (long out_j_0 = 0; out_j_0 < 4; ++out_j_0)
    *(__global float8 *)(C + C_at + out_j_0 * 8) = C_register[out_j_0];
}
