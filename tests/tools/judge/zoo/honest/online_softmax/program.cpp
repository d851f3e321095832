// Softmax whose first pass keeps a running maximum and a sum that is rescaled when the maximum moves.
#include "zoo.h"

#include <limits>

namespace {

void softmax(const float* x, float* y, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = x + row * width;
    float top = -std::numeric_limits<float>::infinity(), sum = 0.0f;
    for (int64_t i = 0; i < width; ++i) {
      if (in[i] > top) {
        sum *= std::exp(top - in[i]);
        top = in[i];
      }
      sum += std::exp(in[i] - top);
    }
    for (int64_t i = 0; i < width; ++i) y[row * width + i] = std::exp(in[i] - top) / sum;
  }
}

struct Program : zoo::Dense {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    softmax(x.data(), call.out[0].data(), x.rows(), x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
