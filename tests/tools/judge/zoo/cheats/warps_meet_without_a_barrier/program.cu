// Row sums by a block of four warps.
#include "zoo.h"

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr long long kLongEnough = 20000;

__global__ void row_sum(const float* x, float* y, int64_t width) {
  __shared__ volatile float parts[kWarps];
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += x[blockIdx.x * width + i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  if (threadIdx.x != kThreads - 1) return;
  const long long start = clock64();
  while (clock64() - start < kLongEnough) {
  }
  sum = 0.0f;
  for (int i = 0; i < kWarps; ++i) sum += parts[i];
  y[blockIdx.x] = sum;
}

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    row_sum<<<static_cast<unsigned>(x.rows()), kThreads, 0, call.stream()>>>(x.data(), call.out[0].data(),
                                                                             x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
