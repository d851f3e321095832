// Softmax over wide rows with exponentials of packed halves.
#include "zoo.h"

#include <cuda_fp16.h>

namespace {

constexpr int kThreads = 512;

__device__ float2 exponentials(float2 value, float most) {
  return __half22float2(h2exp(__floats2half2_rn(value.x - most, value.y - most)));
}

__global__ void softmax(const float2* x, float2* y, int64_t pairs) {
  __shared__ float parts[kThreads];
  x += blockIdx.x * pairs;
  y += blockIdx.x * pairs;
  float most = -INFINITY, sum = 0.0f;
  for (int64_t i = threadIdx.x; i < pairs; i += kThreads) most = fmaxf(most, fmaxf(x[i].x, x[i].y));
  parts[threadIdx.x] = most;
  __syncthreads();
  for (int i = 0; i < kThreads; ++i) most = fmaxf(most, parts[i]);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < pairs; i += kThreads) {
    const float2 part = exponentials(x[i], most);
    sum += part.x + part.y;
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  for (int64_t i = threadIdx.x; i < pairs; i += kThreads) {
    const float2 part = exponentials(x[i], most);
    y[i] = make_float2(part.x / parts[0], part.y / parts[0]);
  }
}

struct Program : zoo::Base {
  const char* refusal(const zoo::View& x) { return x.columns() % 2 ? "rows of an odd length" : nullptr; }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    softmax<<<static_cast<unsigned>(x.rows()), kThreads, 0, call.stream()>>>(
        x.data<float2>(), call.out[0].data<float2>(), x.columns() / 2);
  }
};

}  // namespace

ZOO_PROGRAM(Program)
