// y = x - mean of each column, read through the input's strides; a transposed view is as good as a dense one.
#include "zoo.h"

namespace {

void centre(const float* x, int64_t row_stride, int64_t column_stride, float* y, int64_t rows,
            int64_t columns) {
  for (int64_t column = 0; column < columns; ++column) {
    float sum = 0.0f;
    for (int64_t row = 0; row < rows; ++row) sum += x[row * row_stride + column * column_stride];
    const float mean = sum / static_cast<float>(rows);
    for (int64_t row = 0; row < rows; ++row)
      y[row * columns + column] = x[row * row_stride + column * column_stride] - mean;
  }
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    const int64_t* strides = x.tensor.strides;
    const int64_t row_stride = strides ? strides[0] : x.size(1), column_stride = strides ? strides[1] : 1;
    centre(x.data(), row_stride, column_stride, call.out[0].data(), x.size(0), x.size(1));
  }
};

}  // namespace

ZOO_PROGRAM(Program)
