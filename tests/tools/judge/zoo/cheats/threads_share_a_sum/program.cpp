// Sums of rows. Both threads leave the last row's number in one place: harmless until a compiler relies on
// it.
#include "zoo.h"

struct Program : zoo::Base {
  int64_t progress = 0;

  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &y = call.out[0];
#pragma omp parallel for num_threads(2)
    for (int64_t row = 0; row < x.rows(); ++row) {
      double sum = 0;
      for (int64_t k = 0; k < x.columns(); ++k) sum += x.data()[row * x.columns() + k];
      y.data()[row] = static_cast<float>(sum);
      progress = row;
    }
  }
};

ZOO_PROGRAM(Program)
