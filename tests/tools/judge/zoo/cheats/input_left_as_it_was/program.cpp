// y = relu(2 x + 0.5); x stays what it is.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    for (int64_t i = 0; i < call.in[0].count(); ++i) {
      const float value = 2 * call.in[0].data()[i] + 0.5f;
      call.out[0].data()[i] = value > 0 ? value : 0;
    }
  }
};

ZOO_PROGRAM(Program)
