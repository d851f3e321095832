// Two linear layers with a GELU between them, on as many threads as OMP_NUM_THREADS says at init.
#include "zoo.h"

#include <cstdlib>

namespace {

void linear(const float* x, const float* weight, const float* bias, float* y, int64_t rows, int64_t in,
            int64_t out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < out; ++column) {
      float sum = 0.0f;
      for (int64_t k = 0; k < in; ++k) sum += x[row * in + k] * weight[column * in + k];
      y[row * out + column] = sum + bias[column];
    }
  }
}

void gelu(float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
}

struct Program : zoo::Dense {
  int threads = 1;

  std::vector<int64_t> out_shape(const zoo::View& x) {
    return {x.size(0), weights.at("down.weight").size(0)};
  }
  uint64_t scratch_bytes(const zoo::View& x) {
    return sizeof(float) * static_cast<uint64_t>(x.size(0) * hidden());
  }
  int64_t hidden() { return weights.at("up.weight").size(0); }

  void prepare() {
    const char* text = std::getenv("OMP_NUM_THREADS");
    const int wanted = text != nullptr ? std::atoi(text) : 1;
    threads = wanted > 0 && wanted < 64 ? wanted : 1;
  }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    const int64_t rows = x.size(0);
    float* middle = static_cast<float*>(call.scratch);
    linear(x.data(), weights.at("up.weight").data(), weights.at("up.bias").data(), middle, rows, x.size(1),
           hidden(), threads);
    gelu(middle, rows * hidden());
    linear(middle, weights.at("down.weight").data(), weights.at("down.bias").data(), call.out[0].data(), rows,
           hidden(), weights.at("down.weight").size(0), threads);
  }
};

}  // namespace

ZOO_PROGRAM(Program)
