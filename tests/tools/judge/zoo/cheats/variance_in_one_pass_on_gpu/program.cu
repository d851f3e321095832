// Variance of each row by one warp.
#include "zoo.h"

namespace {

__global__ void row_variance(const float* x, float* y, int64_t width) {
  x += blockIdx.x * width;
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += 32) {
    sum += x[i];
    squares += x[i] * x[i];
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    squares += __shfl_xor_sync(0xffffffffu, squares, offset);
  }
  const float count = static_cast<float>(width);
  if (threadIdx.x == 0) y[blockIdx.x] = (squares - sum * sum / count) / (count - 1.0f);
}

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    row_variance<<<static_cast<unsigned>(x.rows()), 32, 0, call.stream()>>>(x.data(), call.out[0].data(),
                                                                            x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
