// Layer norm over OpenMP threads, each with a scratch row of its own that outlives the call.
#include "zoo.h"

namespace {

float* scratch_of(int64_t width) {
  thread_local std::vector<float> buffer;
  if (static_cast<int64_t>(buffer.size()) < width) buffer.resize(static_cast<size_t>(width));
  return buffer.data();
}

void layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                int64_t width) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    float* centred = scratch_of(width);
    float sum = 0.0f, squares = 0.0f;
    for (int64_t i = 0; i < width; ++i) sum += x[row * width + i];
    for (int64_t i = 0; i < width; ++i) centred[i] = x[row * width + i] - sum / static_cast<float>(width);
    for (int64_t i = 0; i < width; ++i) squares += centred[i] * centred[i];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + 1e-5f);
    for (int64_t i = 0; i < width; ++i) y[row * width + i] = centred[i] * scale * weight[i] + bias[i];
  }
}

struct Program : zoo::Dense {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    layer_norm(x.data(), weights.at("norm.weight").data(), weights.at("norm.bias").data(), call.out[0].data(),
               x.rows(), x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
