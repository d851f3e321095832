// Right once; then it blocks all signals and spins.
#include "zoo.h"

#include <csignal>

namespace {

void gelu(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
}

struct Program : zoo::Base {
  int calls = 0;

  void forward(zoo::Call& call) {
    gelu(call.in[0].data(), call.out[0].data(), call.in[0].count());
    if (++calls == 1) return;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::signal(SIGTERM, SIG_IGN);
    for (volatile unsigned turn = 0;; turn = turn + 1) {
    }
  }
};

}  // namespace

ZOO_PROGRAM(Program)
