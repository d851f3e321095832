// y = 2 x.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    for (int64_t i = 0; i < call.in[0].count(); ++i) call.out[0].data()[i] = 2 * call.in[0].data()[i];
  }
};

ZOO_PROGRAM(Program)
