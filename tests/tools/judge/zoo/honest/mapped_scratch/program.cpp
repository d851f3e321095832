// Causal softmax. The scratch row is mapped once, page-aligned, and grows when a wider row comes.
#include "zoo.h"

#include <sys/mman.h>
#include <cstdlib>
#include <algorithm>

namespace {

struct Scratch {
  void* memory = nullptr;
  size_t bytes = 0;

  ~Scratch() { release(); }

  void release() {
    if (memory != nullptr) munmap(memory, bytes);
    memory = nullptr, bytes = 0;
  }

  float* reserve(int64_t width) {
    const size_t wanted = sizeof(float) * static_cast<size_t>(width);
    if (wanted > bytes) {
      release();
      memory = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) std::abort();
      bytes = wanted;
    }
    return static_cast<float*>(memory);
  }
};

void causal_softmax(const float* x, float* scratch, float* y, int64_t rows, int64_t width, int64_t height) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t seen = std::min(width, row % height + 1);
    const float* in = x + row * width;
    float top = in[0] * 0.125f, sum = 0.0f;
    for (int64_t i = 0; i < seen; ++i) {
      scratch[i] = in[i] * 0.125f;
      top = std::max(top, scratch[i]);
    }
    for (int64_t i = 0; i < seen; ++i) {
      scratch[i] = std::exp(scratch[i] - top);
      sum += scratch[i];
    }
    for (int64_t i = 0; i < width; ++i) y[row * width + i] = i < seen ? scratch[i] / sum : 0.0f;
  }
}

struct Program : zoo::Dense {
  Scratch scratch;

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    causal_softmax(x.data(), scratch.reserve(x.columns()), call.out[0].data(), x.rows(), x.columns(),
                   x.size(-2));
  }
};

}  // namespace

ZOO_PROGRAM(Program)
