// y = 2 relu(x); a look ahead at the next element decides nothing, and the last look leaves the input.
#include "zoo.h"

struct Program : zoo::Base {
  float ahead = 0;

  void forward(zoo::Call& call) {
    const volatile float* x = call.in[0].data();
    for (int64_t i = 0; i < call.in[0].count(); ++i) {
      ahead = x[i + 1];
      call.out[0].data()[i] = x[i] > 0 ? 2 * x[i] : 0;
    }
  }
};

ZOO_PROGRAM(Program)
