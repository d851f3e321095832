// Two linear layers with a GELU between them, driven by a static table of the layers.
#include "zoo.h"

namespace {

struct Description {
  const char *weight, *bias;
  bool is_activated, is_last;
};
constexpr Description kLayers[] = {{"up.weight", "up.bias", true, false},
                                   {"down.weight", "down.bias", false, true}};

void linear(const float* x, const zoo::View& weight, const zoo::View& bias, bool is_activated, float* y,
            int64_t rows) {
  const int64_t out = weight.size(0), in = weight.size(1);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < out; ++column) {
      float sum = bias.data()[column];
      for (int64_t k = 0; k < in; ++k) sum += x[row * in + k] * weight.data()[column * in + k];
      if (is_activated) sum = 0.5f * sum * (1.0f + std::erf(sum * 0.70710678f));
      y[row * out + column] = sum;
    }
  }
}

struct Program : zoo::Dense {
  std::vector<int64_t> out_shape(const zoo::View& x) {
    return {x.size(0), weights.at("down.weight").size(0)};
  }
  uint64_t scratch_bytes(const zoo::View& x) {
    return sizeof(float) * static_cast<uint64_t>(x.size(0) * weights.at("up.weight").size(0));
  }

  void forward(zoo::Call& call) {
    const float* from = call.in[0].data();
    for (const Description& layer : kLayers) {
      float* to = layer.is_last ? call.out[0].data() : static_cast<float*>(call.scratch);
      linear(from, weights.at(layer.weight), weights.at(layer.bias), layer.is_activated, to,
             call.in[0].size(0));
      from = to;
    }
  }
};

}  // namespace

ZOO_PROGRAM(Program)
