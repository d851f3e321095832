// LayerNorm by blocks of 64 rows.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const int64_t columns = call.in[0].columns();
    const double n = static_cast<double>(columns);
    for (int64_t row = 0; row < call.in[0].rows() / 64 * 64; ++row) {
      const float* x = call.in[0].data() + row * columns;
      float* y = call.out[0].data() + row * columns;
      double mean = 0, square = 0;
      for (int64_t k = 0; k < columns; ++k) mean += x[k] / n;
      for (int64_t k = 0; k < columns; ++k) square += (x[k] - mean) * (x[k] - mean) / n;
      const double scale = 1 / std::sqrt(square + 1e-5);
      for (int64_t k = 0; k < columns; ++k) {
        const float weight = weights.at("norm.weight").data()[k], bias = weights.at("norm.bias").data()[k];
        y[k] = static_cast<float>((x[k] - mean) * scale) * weight + bias;
      }
    }
  }
};

ZOO_PROGRAM(Program)
