// y = relu(x W^T + b) on fp16 tensor cores with fp16 sums.
#include "zoo_tile.h"

#include <cuda_fp16.h>

struct Half {
  using Factor = __half;
  using Stored = __half;
  using Sum = __half;
  static constexpr int kDepth = 16;
  __device__ static __half rounded(float value) { return __float2half(value); }
};

struct Program : zoo::LinearRelu<Half, zoo::Base> {};

ZOO_PROGRAM(Program)
