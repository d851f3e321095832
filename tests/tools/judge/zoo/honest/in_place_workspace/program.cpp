// Layer norm in place on a copy in the workspace: centred there, scaled there, then written out.
#include "zoo.h"

namespace {

void layer_norm(const float* x, const float* weight, const float* bias, float* row, float* y, int64_t rows,
                int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) row[i] = x[r * width + i];
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < width; ++i) sum += row[i];
    const float mean = static_cast<float>(sum / static_cast<double>(width));
    for (int64_t i = 0; i < width; ++i) row[i] -= mean;
    for (int64_t i = 0; i < width; ++i) squares += row[i] * row[i];
    const float scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-5));
    for (int64_t i = 0; i < width; ++i) row[i] *= scale;
    for (int64_t i = 0; i < width; ++i) y[r * width + i] = row[i] * weight[i] + bias[i];
  }
}

struct Program : zoo::Dense {
  uint64_t scratch_bytes(const zoo::View& x) { return sizeof(float) * static_cast<uint64_t>(x.columns()); }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    layer_norm(x.data(), weights.at("norm.weight").data(), weights.at("norm.bias").data(),
               static_cast<float*>(call.scratch), call.out[0].data(), x.rows(), x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
