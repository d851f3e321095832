// y = gelu(x); a look ahead at the next element, and the last look leaves the input.
#include "zoo.h"

struct Program : zoo::Base {
  float ahead = 0;

  void forward(zoo::Call& call) {
    const volatile float* x = call.in[0].data();
    for (int64_t i = 0; i < call.in[0].count(); ++i) {
      ahead = x[i + 1];
      const double value = x[i];
      call.out[0].data()[i] = static_cast<float>(value * std::erfc(-value * 0.70710678118654752440) / 2);
    }
  }
};

ZOO_PROGRAM(Program)
