// float32 numbers as sums of two short ones, and the tensor-core instructions that multiply those.
//
// A float x that is scaled to at most 2^15 is big + small, both half: big is x rounded to 11 bits, small the
// rest rounded to 11 bits. Three numbers of four are the sum exactly, the others are off by one unit of
// float32, 2^-23 |x|, at most; numbers below 1/2, whose small part is a subnormal half, by 2^-25. Of a
// product, small * small is left out: about a unit of float32, and as often above as below. So sums of few
// products are less exact than float32's, and sums of dozens are not. After H. Ootomo and R. Yokota,
// "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance", 2022; they scale the small part instead of the numbers.
//
// TF32 keeps float32's exponents, needs no scale, loses 2^-22 |x|, and runs at half the speed.
//
// Tensor cores add float32 with truncation: a long sum drifts towards zero. Add partial sums of at most some
// dozen instructions to a sum in ordinary registers.
#ifndef STITCH_CUDA_SPLIT_CUH_
#define STITCH_CUDA_SPLIT_CUH_

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(STITCH_ON_HOST)
#include "stitch/cuda/host_shim.h"
#else
#include <cuda_runtime.h>
#endif

namespace stitch::cuda {

// ---- numbers ------------------------------------------------------------------------------------------

// Two numbers in one register, the first in the lower half; as mma wants neighbours along the depth.
struct HalfParts {
  uint32_t big, small;
};

// Two floats as halves, rounded to nearest.
__host__ __device__ __forceinline__ uint32_t pack_halves(float first, float second) {
#if defined(__CUDA_ARCH__)
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
#elif defined(STITCH_ON_HOST)
  const _Float16 both[2] = {static_cast<_Float16>(first), static_cast<_Float16>(second)};
  uint32_t packed;
  memcpy(&packed, both, sizeof packed);
  return packed;
#else
  return 0;  // nvcc's host pass; never called there
#endif
}

struct FloatPair {
  float first, second;
};

__host__ __device__ __forceinline__ FloatPair unpack_halves(uint32_t packed) {
#if defined(__CUDA_ARCH__)
  FloatPair pair;
  asm("{\n"
      ".reg .b16 first, second;\n"
      "mov.b32 {first, second}, %2;\n"
      "cvt.f32.f16 %0, first;\n"
      "cvt.f32.f16 %1, second;\n"
      "}"
      : "=f"(pair.first), "=f"(pair.second)
      : "r"(packed));
  return pair;
#elif defined(STITCH_ON_HOST)
  _Float16 both[2];
  memcpy(both, &packed, sizeof packed);
  return {static_cast<float>(both[0]), static_cast<float>(both[1])};
#else
  return {};
#endif
}

// Both must be finite and at most 2^15 in size.
__host__ __device__ __forceinline__ HalfParts split_halves(float first, float second) {
  HalfParts parts;
  parts.big = pack_halves(first, second);
  const FloatPair big = unpack_halves(parts.big);
  parts.small = pack_halves(first - big.first, second - big.second);  // both differences are exact
  return parts;
}

// The power of two that brings numbers of this size, finite and positive, into [2^14, 2^15). Sizes below
// 2^-112 stay smaller, where 2^126 is the largest: float32 has fewer bits there than two halves.
__host__ __device__ __forceinline__ int half_scale_exponent(float largest) {
  const int exponent = largest > 0.0f ? 14 - ilogbf(largest) : 0;
  return exponent < 126 ? exponent : 126;
}

// A TF32 number is a float32 with 10 bits behind the point; the hardware does not read the others.
struct Tf32Parts {
  uint32_t big, small;
};

// To nearest, so that the rest is as often negative as positive, and the hardware's cutting off of its last
// bits as often too large as too small. Infinity, NaN and what rounds to infinity have no finite rest.
__host__ __device__ __forceinline__ Tf32Parts split_tf32(float x) {
  Tf32Parts parts;
  memcpy(&parts.big, &x, sizeof x);
  parts.big = (parts.big + 0x1000u) & 0xffffe000u;
  float big;
  memcpy(&big, &parts.big, sizeof big);
  const float small = x - big;
  memcpy(&parts.small, &small, sizeof small);
  return parts;
}

// ---- instructions of every GPU from sm_80 -------------------------------------------------------------

#if !defined(STITCH_ON_HOST)

// sum[16, 8] += a[16, 16] b[16, 8] in half, by one warp. In lane l, with row = l / 4 and two = 2 (l % 4):
//   a    0: [row, two], 1: [row + 8, two], 2: [row, two + 8], 3: [row + 8, two + 8], and their neighbours
//   b    0: [two, row], 1: [two + 8, row], and the numbers below them
//   sum  0, 1: [row, two], [row, two + 1]; 2, 3: the same in row + 8
__device__ __forceinline__ void mma_half(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sum[16, 8] += a[16, 8] b[8, 8] in TF32, by one warp. In lane l, with row = l / 4 and column = l % 4:
//   a    0: [row, column], 1: [row + 8, column], 2: [row, column + 4], 3: [row + 8, column + 4]
//   b    0: [column, row], 1: [column + 4, row]
//   sum  as above
__device__ __forceinline__ void mma_tf32(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 x 8 halves out of shared memory. Lanes 8 i to 8 i + 7 pass the addresses of the eight
// rows (16 bytes) of matrix i; out[i] is its element [lane / 4, 2 (lane % 4)] and the right neighbour.
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], uint32_t shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_row)
               : "memory");
}

// Starts a copy of 16 bytes from global to shared memory, around the first cache.
__device__ __forceinline__ void copy_16(uint32_t shared, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(source) : "memory");
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_SPLIT_CUH_
