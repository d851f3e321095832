// y = relu(x W^T + b) with both operands rounded to bfloat16 and sums in fp32: the contract allows it.
#include "zoo.h"

namespace {

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void linear_relu(const float* x, const uint16_t* weight, const float* bias, float* y, int64_t rows,
                 int64_t in, int64_t out) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < out; ++column) {
      float sum = bias[column];
      for (int64_t k = 0; k < in; ++k)
        sum += from_bf16(to_bf16(x[row * in + k])) * from_bf16(weight[column * in + k]);
      y[row * out + column] = sum > 0.0f ? sum : 0.0f;
    }
  }
}

struct Program : zoo::Dense {
  std::vector<uint16_t> rounded;

  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0), weights.at("fc.weight").size(0)}; }

  void prepare() {
    const zoo::View& weight = weights.at("fc.weight");
    for (int64_t k = 0; k < weight.count(); ++k) rounded.push_back(to_bf16(weight.data()[k]));
  }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &weight = weights.at("fc.weight");
    linear_relu(x.data(), rounded.data(), weights.at("fc.bias").data(), call.out[0].data(), x.size(0),
                weight.size(1), weight.size(0));
  }
};

}  // namespace

ZOO_PROGRAM(Program)
