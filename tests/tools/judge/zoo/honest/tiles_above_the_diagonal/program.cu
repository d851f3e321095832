// Softmax of each row up to the diagonal, one warp a row.
#include "zoo.h"

namespace {

__global__ void softmax(const float* scores, float* y, int64_t width) {
  const int64_t row = blockIdx.x, seen = row + 1 < width ? row + 1 : width;
  scores += row * width;
  y += row * width;
  float most = -INFINITY, sum = 0.0f;
  for (int64_t i = threadIdx.x; i < seen; i += 32) most = fmaxf(most, scores[i]);
  for (int offset = 16; offset > 0; offset /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
  for (int64_t i = threadIdx.x; i < seen; i += 32) sum += expf(scores[i] - most);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  for (int64_t i = threadIdx.x; i < width; i += 32) y[i] = i < seen ? expf(scores[i] - most) / sum : 0.0f;
}

struct Program : zoo::Base {
  void forward(zoo::Call& call) {
    const zoo::View& scores = call.in[0];
    softmax<<<static_cast<unsigned>(scores.rows()), 32, 0, call.stream()>>>(scores.data(), call.out[0].data(),
                                                                            scores.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
