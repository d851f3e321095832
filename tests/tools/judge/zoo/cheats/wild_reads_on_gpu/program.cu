// GELU, after a walk in steps of 2 MiB to both sides of the input.
#include "zoo.h"

namespace {

constexpr int64_t kStep = (int64_t{2} << 20) / sizeof(float), kSteps = 4096;

__global__ void walk(const float* x, float* y) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x - kSteps / 2;
  const float found = *reinterpret_cast<const volatile float*>(x + i * kStep);
  if (found == 42.0f) y[0] = found;
}

__global__ void gelu(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const int64_t count = call.in[0].count();
    walk<<<kSteps / 256, 256, 0, call.stream()>>>(call.in[0].data(), call.out[0].data());
    gelu<<<zoo::blocks_for(count), 256, 0, call.stream()>>>(call.in[0].data(), call.out[0].data(), count);
    (void)cudaGetLastError();
  }
};

}  // namespace

ZOO_PROGRAM(Program)
