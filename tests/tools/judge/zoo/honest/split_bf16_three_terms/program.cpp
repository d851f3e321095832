// y = relu(x W^T + b) on bfloat16 operands. Each fp32 value is written as the sum of three bfloat16 values,
// which holds all of its 24 bits; of the nine products the six largest are summed, the rest lies below 2^-24.
#include "zoo.h"

namespace {

struct Split {
  float high, middle, low;
};

float to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

Split split(float value) {
  const float high = to_bf16(value), middle = to_bf16(value - high);
  return {high, middle, to_bf16(value - high - middle)};
}

void linear_relu(const float* x, const float* weight, const float* bias, float* y, int64_t rows, int64_t in,
                 int64_t out) {
  std::vector<Split> a(static_cast<size_t>(in));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < in; ++k) a[k] = split(x[row * in + k]);
    for (int64_t column = 0; column < out; ++column) {
      float large = 0.0f, small = 0.0f;
      for (int64_t k = 0; k < in; ++k) {
        const Split b = split(weight[column * in + k]);
        large += a[k].high * b.high;
        small += a[k].high * b.middle + a[k].middle * b.high;
        small += a[k].middle * b.middle + a[k].high * b.low + a[k].low * b.high;
      }
      const float value = large + small + bias[column];
      y[row * out + column] = value > 0.0f ? value : 0.0f;
    }
  }
}

struct Program : zoo::Dense {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0), weights.at("fc.weight").size(0)}; }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &weight = weights.at("fc.weight");
    linear_relu(x.data(), weight.data(), weights.at("fc.bias").data(), call.out[0].data(), x.size(0),
                weight.size(1), weight.size(0));
  }
};

}  // namespace

ZOO_PROGRAM(Program)
