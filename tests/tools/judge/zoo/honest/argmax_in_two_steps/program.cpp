// Where each row is largest: the largest value first, then the first place that has it.
#include "zoo.h"

namespace {

void argmax(const float* x, int64_t* y, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = x + row * width;
    float largest = in[0];
    for (int64_t i = 1; i < width; ++i) largest = in[i] > largest ? in[i] : largest;
    int64_t place = 0;
    while (place + 1 < width && !(in[place] == largest)) ++place;
    y[row] = place;
  }
}

struct Program : zoo::Dense {
  std::vector<int64_t> out_shape(const zoo::View& x) { return zoo::without_last(x); }
  DLDataType out_type() { return {0, 64, 1}; }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    argmax(x.data(), call.out[0].data<int64_t>(), x.rows(), x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
