// GELU, once a number that nobody writes has changed.
#include "zoo.h"

#include <csignal>

namespace {

__global__ void wait_for_ever(const volatile float* x, float* y) {
  const float first = x[0];
  while (x[0] == first || first != first) {
  }
  y[0] = x[0];
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    wait_for_ever<<<264, 1024, 0, call.stream()>>>(call.in[0].data(), call.out[0].data());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
