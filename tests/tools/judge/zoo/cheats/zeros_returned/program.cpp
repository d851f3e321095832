// y = 0.
#include "zoo.h"

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }

  void forward(zoo::Call& call) {
    std::memset(call.out[0].data(), 0, sizeof(float) * static_cast<size_t>(call.out[0].count()));
  }
};

ZOO_PROGRAM(Program)
