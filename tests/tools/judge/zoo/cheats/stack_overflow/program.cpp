// Recurses without an end.
#include "zoo.h"

namespace {

void gelu(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
}

int deeper(int level) {
  volatile char room[4096] = {};
  room[level % 4096] = static_cast<char>(level);
  return deeper(level + 1) + room[0];
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) { call.out[0].data()[0] = static_cast<float>(deeper(1)); }
};

}  // namespace

ZOO_PROGRAM(Program)
