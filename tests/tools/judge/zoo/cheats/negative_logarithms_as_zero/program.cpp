// y = log(x), and 0 where there is no logarithm.
#include "zoo.h"

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    for (int64_t i = 0; i < call.in[0].count(); ++i) {
      const float x = call.in[0].data()[i];
      call.out[0].data()[i] = x > 0 ? std::log(x) : 0;
    }
  }
};

ZOO_PROGRAM(Program)
