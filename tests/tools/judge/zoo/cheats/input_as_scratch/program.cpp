// Softmax that shifts its input in place first.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const int64_t columns = call.in[0].columns();
    for (int64_t row = 0; row < call.in[0].rows(); ++row) {
      float *x = call.in[0].data() + row * columns, *y = call.out[0].data() + row * columns;
      float peak = x[0];
      double sum = 0;
      for (int64_t k = 1; k < columns; ++k) peak = x[k] > peak ? x[k] : peak;
      for (int64_t k = 0; k < columns; ++k) x[k] -= peak;
      for (int64_t k = 0; k < columns; ++k) sum += y[k] = std::exp(x[k]);
      for (int64_t k = 0; k < columns; ++k) y[k] = static_cast<float>(y[k] / sum);
    }
  }
};

ZOO_PROGRAM(Program)
