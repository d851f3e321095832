// y = x W^T.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &w = weights.at("fc.weight");
    for (int64_t row = 0; row < x.rows(); ++row)
      for (int64_t o = 0; o < w.size(0); ++o) {
        float sum = 0;
        for (int64_t k = 0; k < x.columns(); ++k)
          sum += x.data()[row * x.columns() + k] * w.data()[o * x.columns() + k];
        call.out[0].data()[row * w.size(0) + o] = sum;
      }
  }
};

ZOO_PROGRAM(Program)
