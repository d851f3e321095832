// Row sums with Kahan's compensation: what an addition loses is added to the next.
#include "zoo.h"

namespace {

void row_sum(const float* x, float* y, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    float sum = 0.0f, lost = 0.0f;
    for (int64_t i = 0; i < width; ++i) {
      const float value = x[row * width + i] - lost;
      const float next = sum + value;
      lost = (next - sum) - value;
      sum = next;
    }
    y[row] = sum;
  }
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
