// BatchNorm as in eval mode.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    const int64_t channels = x.size(1), plane = x.size(2) * x.size(3);
    for (int64_t i = 0; i < x.count(); ++i) {
      const int64_t c = i / plane % channels;
      const double scale = 1 / std::sqrt(weights.at("norm.running_var").data()[c] + 1e-5);
      const double value = (x.data()[i] - weights.at("norm.running_mean").data()[c]) * scale;
      call.out[0].data()[i] =
          static_cast<float>(value * weights.at("norm.weight").data()[c] + weights.at("norm.bias").data()[c]);
    }
  }
};

ZOO_PROGRAM(Program)
