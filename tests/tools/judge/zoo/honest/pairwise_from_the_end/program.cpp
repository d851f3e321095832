// Row sums in pairs, the later half first: another order of additions than the reference's.
#include "zoo.h"

namespace {

float sum_of(const float* x, int64_t count) {
  if (count == 0) return 0.0f;
  if (count == 1) return x[0];
  const int64_t half = count / 2;
  return sum_of(x + half, count - half) + sum_of(x, half);
}

void row_sum(const float* x, float* y, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) y[row] = sum_of(x + row * width, width);
}

struct Program : zoo::Dense {
  std::vector<int64_t> out_shape(const zoo::View& x) { return zoo::without_last(x); }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    row_sum(x.data(), call.out[0].data(), x.rows(), x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
