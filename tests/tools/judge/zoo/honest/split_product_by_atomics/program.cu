// y = relu(x W^T + b), the sum over the inputs split among blocks.
#include "zoo.h"

namespace {

constexpr int kParts = 4;

__global__ void start_with_bias(const float* bias, float* y, int64_t count, int64_t out) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) y[i] = bias[i % out];
}

__global__ void add_products(const float* x, const float* weight, float* y, int64_t in, int64_t out) {
  const int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = blockIdx.y;
  if (column >= out) return;
  const int64_t length = (in + kParts - 1) / kParts, first = blockIdx.z * length;
  const int64_t last = first + length < in ? first + length : in;
  float sum = 0.0f;
  for (int64_t k = first; k < last; ++k) sum += x[row * in + k] * weight[column * in + k];
  atomicAdd(y + row * out + column, sum);
}

__global__ void clear_negatives(float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count && y[i] < 0.0f) y[i] = 0.0f;
}

struct Program : zoo::Dense {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0), weights.at("fc.weight").size(0)}; }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &y = call.out[0];
    const unsigned blocks = zoo::blocks_for(y.count());
    const dim3 grid(zoo::blocks_for(y.columns(), 128), static_cast<unsigned>(x.rows()), kParts);
    start_with_bias<<<blocks, 256, 0, call.stream()>>>(weights.at("fc.bias").data(), y.data(), y.count(),
                                                       y.columns());
    add_products<<<grid, 128, 0, call.stream()>>>(x.data(), weights.at("fc.weight").data(), y.data(),
                                                  x.columns(), y.columns());
    clear_negatives<<<blocks, 256, 0, call.stream()>>>(y.data(), y.count());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
