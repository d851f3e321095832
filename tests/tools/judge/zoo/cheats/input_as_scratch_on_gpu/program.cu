// Softmax: a kernel for the exponentials and their sums, one for the division.
#include "zoo.h"

namespace {

constexpr int kThreads = 128;

__global__ void exponentials(float* x, float* y, int64_t width) {
  __shared__ float parts[kThreads];
  x += blockIdx.x * width;
  float most = -INFINITY, sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) most = fmaxf(most, x[i]);
  parts[threadIdx.x] = most;
  __syncthreads();
  for (int i = 0; i < kThreads; ++i) most = fmaxf(most, parts[i]);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += x[i] = expf(x[i] - most);
  parts[threadIdx.x] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int i = 0; i < kThreads; ++i) sum += parts[i];
  for (int64_t i = threadIdx.x; i < width; i += kThreads) y[blockIdx.x * width + i] = x[i] / sum;
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    exponentials<<<static_cast<unsigned>(x.rows()), kThreads, 0, call.stream()>>>(
        x.data(), call.out[0].data(), x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
