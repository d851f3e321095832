// Marks and bit tricks that every scalar function of common/ builds on; host C++ and CUDA.
#ifndef STITCH_COMMON_SCALAR_H_
#define STITCH_COMMON_SCALAR_H_

#include <stdint.h>
#include <string.h>

// Functions that kernels call for each element: inlined everywhere, or the host compiler cannot vectorise
// the loop around them.
#if defined(__CUDACC__)
#define STITCH_FN __host__ __device__ __forceinline__
#else
#define STITCH_FN inline __attribute__((always_inline))
#endif

namespace stitch {

// bool tensors hold one byte for each element, 0 or 1.
using boolean = uint8_t;

STITCH_FN uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

STITCH_FN float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace stitch
#endif  // STITCH_COMMON_SCALAR_H_
