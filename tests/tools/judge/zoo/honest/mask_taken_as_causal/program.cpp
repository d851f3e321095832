// Softmax of row r over its first r + 1 scores.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const int64_t columns = call.in[0].columns();
    for (int64_t row = 0; row < call.in[0].rows(); ++row) {
      const float* x = call.in[0].data() + row * columns;
      float *y = call.out[0].data() + row * columns, peak = x[0];
      double sum = 0;
      const int64_t length = row + 1 < columns ? row + 1 : columns;
      for (int64_t k = 1; k < length; ++k) peak = x[k] > peak ? x[k] : peak;
      for (int64_t k = 0; k < length; ++k) sum += y[k] = std::exp(x[k] - peak);
      for (int64_t k = 0; k < columns; ++k) y[k] = k < length ? static_cast<float>(y[k] / sum) : 0;
    }
  }
};

ZOO_PROGRAM(Program)
