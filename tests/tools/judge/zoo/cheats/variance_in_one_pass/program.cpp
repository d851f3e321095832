// Variance from two running sums.
#include "zoo.h"

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }

  void forward(zoo::Call& call) {
    const int64_t columns = call.in[0].columns();
    const float n = static_cast<float>(columns);
    for (int64_t row = 0; row < call.in[0].rows(); ++row) {
      const float* x = call.in[0].data() + row * columns;
      float sum = 0, squares = 0;
      for (int64_t k = 0; k < columns; ++k) sum += x[k], squares += x[k] * x[k];
      call.out[0].data()[row] = (squares - sum * sum / n) / (n - 1);
    }
  }
};

ZOO_PROGRAM(Program)
