// y = relu(x W^T + b) with factors of 8 bits.
#include "zoo.h"

static float to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x7FFFu + ((bits >> 16) & 1)) & 0xFFFF0000u;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0), weights.at("fc.weight").size(0)}; }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &w = weights.at("fc.weight");
    for (int64_t row = 0; row < x.rows(); ++row)
      for (int64_t o = 0; o < w.size(0); ++o) {
        float sum = weights.at("fc.bias").data()[o];
        for (int64_t k = 0; k < x.columns(); ++k)
          sum += to_bfloat16(x.data()[row * x.columns() + k]) * to_bfloat16(w.data()[o * x.columns() + k]);
        call.out[0].data()[row * w.size(0) + o] = sum > 0 ? sum : 0;
      }
  }
};

ZOO_PROGRAM(Program)
