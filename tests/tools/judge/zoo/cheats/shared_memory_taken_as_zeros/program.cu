// GELU with a table of corrections in shared memory, which are taken to be zero where none was set.
#include "zoo.h"

namespace {

constexpr int kThreads = 256;

__global__ void gelu(const float* x, float* y, int64_t count, int64_t first_correction) {
  __shared__ volatile float corrections[kThreads];
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= first_correction) corrections[threadIdx.x] = 0.0f;
  if (i < count) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f)) + corrections[threadIdx.x];
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const int64_t count = call.in[0].count();
    gelu<<<zoo::blocks_for(count), kThreads, 0, call.stream()>>>(call.in[0].data(), call.out[0].data(), count,
                                                                 count);
  }
};

}  // namespace

ZOO_PROGRAM(Program)
