// Rows over the sum of their absolute values, with a guard that the reference lacks.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const int64_t columns = call.in[0].columns();
    for (int64_t row = 0; row < call.in[0].rows(); ++row) {
      const float* x = call.in[0].data() + row * columns;
      double sum = 0;
      for (int64_t k = 0; k < columns; ++k) sum += std::fabs(x[k]);
      for (int64_t k = 0; k < columns; ++k)
        call.out[0].data()[row * columns + k] = sum > 0 ? static_cast<float>(x[k] / sum) : 0;
    }
  }
};

ZOO_PROGRAM(Program)
