// Logarithms of what is left of negative numbers.
#include "zoo.h"

namespace {

__global__ void logarithm(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) y[i] = logf(fmaxf(x[i], 0.0f));
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const int64_t count = call.in[0].count();
    logarithm<<<zoo::blocks_for(count), 256, 0, call.stream()>>>(call.in[0].data(), call.out[0].data(),
                                                                 count);
  }
};

}  // namespace

ZOO_PROGRAM(Program)
