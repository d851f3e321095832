// y = relu(x W^T + b). stitch_init packs W into panels of eight columns, so that the inner loop reads
// contiguous lanes; forward reads the copy alone.
#include "zoo.h"

namespace {

constexpr int64_t kLanes = 8;

// packed[(panel * in + k) * kLanes + lane] is W[panel * kLanes + lane][k]; missing columns are zero.
std::vector<float> pack(const float* weight, int64_t out, int64_t in) {
  const int64_t panels = (out + kLanes - 1) / kLanes;
  std::vector<float> packed(static_cast<size_t>(panels * in * kLanes), 0.0f);
  for (int64_t column = 0; column < out; ++column)
    for (int64_t k = 0; k < in; ++k)
      packed[((column / kLanes) * in + k) * kLanes + column % kLanes] = weight[column * in + k];
  return packed;
}

void linear_relu(const float* x, const float* packed, const float* bias, float* y, int64_t rows, int64_t in,
                 int64_t out) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < out; first += kLanes) {
      float sum[kLanes] = {0};
      const float* panel = packed + first * in;
      for (int64_t k = 0; k < in; ++k)
        for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] += x[row * in + k] * panel[k * kLanes + lane];
      for (int64_t lane = 0; lane < kLanes && first + lane < out; ++lane) {
        const float value = sum[lane] + bias[first + lane];
        y[row * out + first + lane] = value > 0.0f ? value : 0.0f;
      }
    }
  }
}

struct Program : zoo::Dense {
  std::vector<float> packed, bias;

  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0), weights.at("fc.weight").size(0)}; }

  void prepare() {
    const zoo::View &weight = weights.at("fc.weight"), &own = weights.at("fc.bias");
    packed = pack(weight.data(), weight.size(0), weight.size(1));
    bias.assign(own.data(), own.data() + own.count());
  }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &weight = weights.at("fc.weight");
    linear_relu(x.data(), packed.data(), bias.data(), call.out[0].data(), x.size(0), weight.size(1),
                weight.size(0));
  }
};

}  // namespace

ZOO_PROGRAM(Program)
