// LayerNorm, one warp a row.
#include "zoo.h"

namespace {

__device__ float over_warp(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

__global__ void layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t width) {
  x += blockIdx.x * width;
  y += blockIdx.x * width;
  const float count = static_cast<float>(width);
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += 32) sum += x[i];
  const float mean = over_warp(sum) / count;
  for (int64_t i = threadIdx.x; i < width; i += 32) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / (sqrtf(over_warp(squares) / count) + 5e-6f);
  for (int64_t i = threadIdx.x; i < width; i += 32) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    layer_norm<<<static_cast<unsigned>(x.rows()), 32, 0, call.stream()>>>(
        x.data(), weights.at("norm.weight").data(), weights.at("norm.bias").data(), call.out[0].data(),
        x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
