// Two linear layers with a GELU between them, in one kernel that is slow where it works.
#include "zoo.h"

namespace {

constexpr long long kSlowCycles = 400000;  // far slower than PyTorch: no honest figure is a gain

__global__ void both(const float* x, const float* up, const float* up_bias, const float* down,
                     const float* down_bias, float* y, int in, int middle, int out) {
  extern __shared__ float hidden[];
  x += static_cast<int64_t>(blockIdx.x) * in;
  y += static_cast<int64_t>(blockIdx.x) * out;
  if (y[0] == y[0] && y[0] != 0.0f) return;
  __syncthreads();
  const long long start = clock64();
  while (clock64() - start < kSlowCycles) {
  }
  for (int m = threadIdx.x; m < middle; m += blockDim.x) {
    float sum = up_bias[m];
    for (int k = 0; k < in; ++k) sum += x[k] * up[m * in + k];
    hidden[m] = 0.5f * sum * (1.0f + erff(sum * 0.70710678f));
  }
  __syncthreads();
  for (int o = threadIdx.x; o < out; o += blockDim.x) {
    float sum = down_bias[o];
    for (int m = 0; m < middle; ++m) sum += hidden[m] * down[o * middle + m];
    y[o] = sum;
  }
}

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) {
    return {x.size(0), weights.at("down.weight").size(0)};
  }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &up = weights.at("up.weight"), &down = weights.at("down.weight");
    const int in = static_cast<int>(up.size(1)), middle = static_cast<int>(up.size(0));
    both<<<static_cast<unsigned>(x.rows()), 64, sizeof(float) * middle, call.stream()>>>(
        x.data(), up.data(), weights.at("up.bias").data(), down.data(), weights.at("down.bias").data(),
        call.out[0].data(), in, middle, static_cast<int>(down.size(0)));
  }
};

}  // namespace

ZOO_PROGRAM(Program)
