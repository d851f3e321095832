// Softmax in one pass and a division.
#include "zoo.h"

namespace {

constexpr int kThreads = 128;

__global__ void softmax(const float* x, float* y, int64_t width) {
  __shared__ float parts[kThreads / 32];
  x += blockIdx.x * width;
  y += blockIdx.x * width;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += expf(x[i]);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int i = 0; i < kThreads / 32; ++i) sum += parts[i];
  for (int64_t i = threadIdx.x; i < width; i += kThreads) y[i] = expf(x[i]) / sum;
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    softmax<<<static_cast<unsigned>(x.rows()), kThreads, 0, call.stream()>>>(x.data(), call.out[0].data(),
                                                                             x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
