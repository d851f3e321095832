// GELU by a slow kernel on a side stream, with the words of a fork and a join in the wrong order.
#include "zoo.h"

namespace {

constexpr long long kSlowCycles = 400000;  // far slower than PyTorch: no honest figure is a gain

__global__ void gelu(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const long long start = clock64();
  while (clock64() - start < kSlowCycles) {
  }
  if (i < count) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

struct Program : zoo::Base {
  cudaStream_t side = nullptr;
  cudaEvent_t forked = nullptr, joined = nullptr;

  ~Program() {
    cudaStreamDestroy(side);
    cudaEventDestroy(forked);
    cudaEventDestroy(joined);
  }

  void prepare() {
    cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&forked, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&joined, cudaEventDisableTiming);
  }

  void forward(zoo::Call& call) {
    const int64_t count = call.in[0].count();
    cudaEventRecord(forked, call.stream());
    cudaStreamWaitEvent(side, forked, 0);
    cudaEventRecord(joined, side);
    gelu<<<zoo::blocks_for(count), 256, 0, side>>>(call.in[0].data(), call.out[0].data(), count);
    cudaStreamWaitEvent(call.stream(), joined, 0);
  }
};

}  // namespace

ZOO_PROGRAM(Program)
