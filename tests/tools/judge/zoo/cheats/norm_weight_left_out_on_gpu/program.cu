// LayerNorm, a block for each row, in two passes over what a thread holds.
#include "zoo.h"

namespace {

constexpr int kThreads = 128;

__device__ float sum_of_block(float value, float* parts) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < kThreads / 32; ++i) sum += parts[i];
  return sum;
}

__global__ void layer_norm(const float* x, float* y, int64_t width) {
  __shared__ float parts[kThreads / 32];
  x += blockIdx.x * width;
  y += blockIdx.x * width;
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += x[i];
  const float mean = sum_of_block(sum, parts) / static_cast<float>(width);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) squares += (x[i] - mean) * (x[i] - mean);
  const float variance = sum_of_block(squares, parts) / static_cast<float>(width);
  const float scale = 1.0f / sqrtf(variance + 1e-5f);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) y[i] = (x[i] - mean) * scale;
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    layer_norm<<<static_cast<unsigned>(x.rows()), kThreads, 0, call.stream()>>>(x.data(), call.out[0].data(),
                                                                                x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
