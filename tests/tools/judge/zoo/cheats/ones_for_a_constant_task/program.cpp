// y = 1.
#include "zoo.h"

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0), 1}; }

  void forward(zoo::Call& call) {
    for (int64_t i = 0; i < call.out[0].count(); ++i) call.out[0].data()[i] = 1;
  }
};

ZOO_PROGRAM(Program)
