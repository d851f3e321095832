// y = relu(x W^T + b) by TF32 tensor cores.
#include "zoo_tile.h"

struct Tf32 {
  using Factor = nvcuda::wmma::precision::tf32;
  using Stored = float;
  using Sum = float;
  static constexpr int kDepth = 8;
  __device__ static float rounded(float value) { return nvcuda::wmma::__float_to_tf32(value); }
};

struct Program : zoo::LinearRelu<Tf32, zoo::Base> {};

ZOO_PROGRAM(Program)
