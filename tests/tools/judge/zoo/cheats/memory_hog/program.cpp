// Takes shared memory, which no limit on private data sees, until something gives way.
#include "zoo.h"

#include <sys/mman.h>

namespace {

void gelu(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
}

struct Program : zoo::Base {
  void forward(zoo::Call&) {
    for (;;) {
      constexpr size_t kBytes = size_t{64} << 20;
      void* area = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      if (area == MAP_FAILED) continue;
      std::memset(area, 1, kBytes);
    }
  }
};

}  // namespace

ZOO_PROGRAM(Program)
