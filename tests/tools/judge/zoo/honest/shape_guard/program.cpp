// Softmax of each row. Rows of a multiple of sixteen take the wide kernel; all others the general one.
#include "zoo.h"

#include <algorithm>

namespace {

constexpr int64_t kLanes = 16;

void softmax_wide(const float* x, float* y, int64_t width) {
  float largest[kLanes], sum[kLanes] = {0};
  for (int64_t lane = 0; lane < kLanes; ++lane) largest[lane] = x[lane];
  for (int64_t i = kLanes; i < width; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) largest[lane] = std::max(largest[lane], x[i + lane]);
  float top = largest[0], total = 0.0f;
  for (int64_t lane = 1; lane < kLanes; ++lane) top = std::max(top, largest[lane]);
  for (int64_t i = 0; i < width; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] += y[i + lane] = std::exp(x[i + lane] - top);
  for (int64_t lane = 0; lane < kLanes; ++lane) total += sum[lane];
  for (int64_t i = 0; i < width; ++i) y[i] /= total;
}

void softmax_fallback(const float* x, float* y, int64_t width) {
  float top = x[0], total = 0.0f;
  for (int64_t i = 1; i < width; ++i) top = std::max(top, x[i]);
  for (int64_t i = 0; i < width; ++i) {
    y[i] = std::exp(x[i] - top);
    total += y[i];
  }
  for (int64_t i = 0; i < width; ++i) y[i] = y[i] / total;
}

void softmax(const float* x, float* y, int64_t rows, int64_t width) {
  const bool is_supported = width % kLanes == 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (is_supported) {
      softmax_wide(x + row * width, y + row * width, width);
    } else {
      softmax_fallback(x + row * width, y + row * width, width);
    }
  }
}

struct Program : zoo::Dense {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    softmax(x.data(), call.out[0].data(), x.rows(), x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
