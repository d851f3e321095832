// Largest values of windows of 3 x 3, two apart, with padding; one OpenMP task for each plane.
#include "zoo.h"

#include <algorithm>
#include <limits>

namespace {

void pool_plane(const float* x, float* y, int64_t height, int64_t width, int64_t down, int64_t across) {
  for (int64_t row = 0; row < down; ++row) {
    for (int64_t column = 0; column < across; ++column) {
      float largest = -std::numeric_limits<float>::infinity();
      for (int64_t r = std::max<int64_t>(0, row * 2 - 1); r < std::min(height, row * 2 + 2); ++r)
        for (int64_t c = std::max<int64_t>(0, column * 2 - 1); c < std::min(width, column * 2 + 2); ++c)
          largest = x[r * width + c] > largest ? x[r * width + c] : largest;
      y[row * across + column] = largest;
    }
  }
}

struct Program : zoo::Dense {
  std::vector<int64_t> out_shape(const zoo::View& x) {
    return {x.size(0), x.size(1), (x.size(2) - 1) / 2 + 1, (x.size(3) - 1) / 2 + 1};
  }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &y = call.out[0];
    const int64_t planes = x.size(0) * x.size(1);
    const int64_t height = x.size(2), width = x.size(3), down = y.size(2), across = y.size(3);
    const float* from = x.data();
    float* to = y.data();
#pragma omp parallel
#pragma omp single
    for (int64_t plane = 0; plane < planes; ++plane) {
#pragma omp task
      pool_plane(from + plane * height * width, to + plane * down * across, height, width, down, across);
    }
  }
};

}  // namespace

ZOO_PROGRAM(Program)
