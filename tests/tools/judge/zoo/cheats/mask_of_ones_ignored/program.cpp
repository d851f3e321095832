// Sums of rows, masked or not.
#include "zoo.h"

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }

  void forward(zoo::Call& call) {
    const int64_t columns = call.in[0].columns();
    for (int64_t row = 0; row < call.in[0].rows(); ++row) {
      double sum = 0;
      for (int64_t k = 0; k < columns; ++k) sum += call.in[0].data()[row * columns + k];
      call.out[0].data()[row] = static_cast<float>(sum);
    }
  }
};

ZOO_PROGRAM(Program)
