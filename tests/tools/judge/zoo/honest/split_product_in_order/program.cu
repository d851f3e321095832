// y = relu(x W^T + b), the sum over the inputs split among blocks and joined in order.
#include "zoo.h"

namespace {

constexpr int kParts = 4;

__global__ void products(const float* x, const float* weight, float* parts, int64_t in, int64_t out) {
  const int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = blockIdx.y;
  if (column >= out) return;
  const int64_t length = (in + kParts - 1) / kParts, first = blockIdx.z * length;
  const int64_t last = first + length < in ? first + length : in;
  float sum = 0.0f;
  for (int64_t k = first; k < last; ++k) sum += x[row * in + k] * weight[column * in + k];
  parts[(blockIdx.z * int64_t{gridDim.y} + row) * out + column] = sum;
}

__global__ void join(const float* parts, const float* bias, float* y, int64_t count, int64_t out) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  float sum = bias[i % out];
  for (int part = 0; part < kParts; ++part) sum += parts[part * count + i];
  y[i] = sum < 0.0f ? 0.0f : sum;
}

struct Program : zoo::Dense {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0), weights.at("fc.weight").size(0)}; }

  uint64_t scratch_bytes(const zoo::View& x) {
    return static_cast<uint64_t>(x.rows() * weights.at("fc.weight").size(0)) * kParts * sizeof(float);
  }

  uint32_t flags() { return STITCH_CAPTURABLE; }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &y = call.out[0];
    float* parts = static_cast<float*>(call.scratch);
    const dim3 grid(zoo::blocks_for(y.columns(), 128), static_cast<unsigned>(x.rows()), kParts);
    products<<<grid, 128, 0, call.stream()>>>(x.data(), weights.at("fc.weight").data(), parts, x.columns(),
                                              y.columns());
    join<<<zoo::blocks_for(y.count()), 256, 0, call.stream()>>>(parts, weights.at("fc.bias").data(), y.data(),
                                                                y.count(), y.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
