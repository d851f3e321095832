// y = relu(x W^T + b) by bf16 tensor cores with sums in fp32.
#include "zoo_tile.h"

#include <cuda_bf16.h>

struct Bf16 {
  using Factor = __nv_bfloat16;
  using Stored = __nv_bfloat16;
  using Sum = float;
  static constexpr int kDepth = 16;
  __device__ static __nv_bfloat16 rounded(float value) { return __float2bfloat16(value); }
};

struct Program : zoo::LinearRelu<Bf16, zoo::Dense> {};

ZOO_PROGRAM(Program)
