// Index of the largest of each row, as a short integer.
#include "zoo.h"

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }
  DLDataType out_type() { return {0, 32, 1}; }

  void forward(zoo::Call& call) {
    const int64_t columns = call.in[0].columns();
    for (int64_t row = 0; row < call.in[0].rows(); ++row) {
      const float* x = call.in[0].data() + row * columns;
      int32_t best = 0;
      for (int32_t k = 1; k < columns; ++k) best = x[k] > x[best] ? k : best;
      call.out[0].data<int32_t>()[row] = best;
    }
  }
};

ZOO_PROGRAM(Program)
