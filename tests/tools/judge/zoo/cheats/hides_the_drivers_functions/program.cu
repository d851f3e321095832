// GELU by a slow kernel, and a clock that runs slower still.
#include "zoo.h"

extern "C" {

STITCH_EXPORT int cuCtxSynchronize() { return 0; }

STITCH_EXPORT int cuStreamSynchronize(void*) { return 0; }

STITCH_EXPORT int cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 0.001f;
  return 0;
}
}

namespace {

constexpr long long kSlowCycles = 400000;

__global__ void gelu(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const long long start = clock64();
  while (clock64() - start < kSlowCycles) {
  }
  if (i < count) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const int64_t count = call.in[0].count();
    gelu<<<zoo::blocks_for(count), 256, 0, call.stream()>>>(call.in[0].data(), call.out[0].data(), count);
  }
};

}  // namespace

ZOO_PROGRAM(Program)
