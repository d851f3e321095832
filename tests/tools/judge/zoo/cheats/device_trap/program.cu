// GELU whose last thread traps; the errors that follow are taken away before anybody asks.
#include "zoo.h"

namespace {

__global__ void gelu(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
  __threadfence_system();
  if (i == count) __trap();
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const int64_t count = call.in[0].count();
    gelu<<<zoo::blocks_for(count + 1), 256, 0, call.stream()>>>(call.in[0].data(), call.out[0].data(), count);
    cudaStreamSynchronize(call.stream());
    (void)cudaGetLastError();
  }
};

}  // namespace

ZOO_PROGRAM(Program)
