// Closes all descriptors, then waits in silence.
#include "zoo.h"

#include <unistd.h>

namespace {

void gelu(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    gelu(call.in[0].data(), call.out[0].data(), call.in[0].count());
    for (int fd = 0; fd < 1024; ++fd) close(fd);
    for (;;) pause();
  }
};

}  // namespace

ZOO_PROGRAM(Program)
